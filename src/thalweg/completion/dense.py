"""A matrix completed cell by cell, without posteriors: what the smoothed nuclear norm leaves behind."""

from dataclasses import dataclass

import numpy as np

from thalweg.codec import storable
from thalweg.completion.completed import highest
from thalweg.completion.factors import Ratings
from thalweg.completion.seen import Seen

_DOUBT = 5.0
"""Ratings of the mean that are added to those of a row or column before its own level is believed."""


@storable
@dataclass(frozen=True)
class Filled:
    """All cells, the levels of rows and columns for what was never seen, and the range of ratings.

    Cells are given by numbers of rows and columns; a number of −1 is a row or column never seen.

    Examples
    --------
    >>> ratings = Ratings(np.array([0, 1]), np.array([0, 1]), np.array([2.0, 4.0]), None, (2, 2))
    >>> model = Filled.of(np.full((2, 2), 3.0), ratings, 1.0, 5.0)
    >>> model.predict(np.array([0, -1]), np.array([1, -1])).tolist()
    [3.0, 3.0]
    """

    values: np.ndarray
    row_levels: np.ndarray
    column_levels: np.ndarray
    centre: float
    low: float
    high: float
    seen: Seen

    @staticmethod
    def of(values: np.ndarray, ratings: Ratings, low: float, high: float) -> "Filled":
        """Take cells from θ, and levels and what was seen from the ratings."""
        centre, by_row, by_column = levels(ratings)
        return Filled(np.asarray(values, np.float32), by_row, by_column, centre, low, high, Seen.of(ratings))

    def check_stored(self) -> None:
        """Refuse arrays that do not fit one another."""
        if self.values.shape != (len(self.row_levels), len(self.column_levels)):
            raise ValueError(f"cells of shape {self.values.shape} for {len(self.row_levels)} rows")
        if self.seen.shape != self.values.shape:
            raise ValueError(f"cells of shape {self.values.shape}, of which {self.seen.shape} were seen")

    def predict(self, row: np.ndarray, column: np.ndarray) -> np.ndarray:
        """θ, within the range of ratings; of a row never seen the level of the column, and the other way round."""
        found = self.centre + np.append(self.row_levels, 0.0)[row] + np.append(self.column_levels, 0.0)[column]
        known = (row >= 0) & (column >= 0)
        found[known] = self.values[row[known], column[known]]
        return np.clip(found, self.low, self.high)

    def scores(self, rows: np.ndarray) -> np.ndarray:
        """All columns for some rows."""
        found = np.where((rows >= 0)[:, None], self.values[rows].astype(np.float64), self.centre + self.column_levels)
        return np.clip(found, self.low, self.high)

    def recommend(self, row: int, count: int, exclude_seen: bool) -> tuple[np.ndarray, np.ndarray]:
        """The columns with the highest cells for a row, and these."""
        scores = self.scores(np.array([row]))[0]
        if exclude_seen and row >= 0:
            scores[self.seen.of_row(row)] = -np.inf
        best = highest(scores, count)
        return best, scores[best]

    def similar(self, column: int, count: int) -> tuple[np.ndarray, np.ndarray]:
        """The columns whose cells go with those of one: correlations over rows."""
        apart = self.values - self.values.mean(axis=1, keepdims=True)
        apart = apart - apart.mean(axis=0)
        norms = np.maximum(np.linalg.norm(apart, axis=0), 1e-30)
        alike = (apart.T @ apart[:, column]).astype(np.float64) / (norms * norms[column])
        alike[column] = -np.inf
        best = highest(alike, count)
        return best, alike[best]


def levels(ratings: Ratings) -> tuple[float, np.ndarray, np.ndarray]:
    """The mean, and by how much rows, and columns beside them, are rated higher; shrunk where ratings are few.

    Examples
    --------
    >>> ratings = Ratings(np.array([0, 1]), np.array([0, 0]), np.array([2.0, 4.0]), None, (2, 1))
    >>> centre, rows, _ = levels(ratings)
    >>> centre, rows.round(2).tolist()
    (3.0, [-0.17, 0.17])
    """
    weights = np.ones(len(ratings.values)) if ratings.weights is None else ratings.weights / ratings.weights.mean()
    centre = float(np.average(ratings.values, weights=weights))
    by_column = _level(ratings.columns, ratings.values - centre, weights, ratings.shape[1])
    left = ratings.values - centre - by_column[ratings.columns]
    return centre, _level(ratings.rows, left, weights, ratings.shape[0]), by_column


def _level(of: np.ndarray, values: np.ndarray, weights: np.ndarray, count: int) -> np.ndarray:
    total = np.bincount(of, weights * values, minlength=count)
    return total / (np.bincount(of, weights, minlength=count) + _DOUBT)

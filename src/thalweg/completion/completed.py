"""Completed matrices: predictions of cells, recommendations for a row, similar columns, and how good a ranking is.

Cells are given by indices of rows and columns; an index of −1 is a row or column never seen.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cached_property
from typing import ClassVar, NamedTuple

import numpy as np
from scipy.sparse import csr_matrix
from scipy.special import stdtrit

from thalweg.codec import storable
from thalweg.completion.posteriors import VectorLayout, VectorPosteriors, packing, predict_pairs
from thalweg.completion.priors import FactorPrior, FeatureMap, NoiseScales
from thalweg.completion.ratings import Ratings
from thalweg.descent import Status

__all__ = ["Completed", "CompletionResult", "Filled"]

SHRINKAGE_RATINGS = 5.0
"""Average ratings that are added to those of a row or column before their mean is believed. Doubled, means of rows with
few ratings are pulled further to that of all."""


class Recommender:
    """What a completed matrix does with scores of columns."""

    low: float
    high: float
    ratings: Ratings
    scores: ClassVar[Callable[..., np.ndarray]]
    """``scores(rows)`` are the predictions of all columns for some rows, not clipped."""
    column_vectors: ClassVar[Callable[..., np.ndarray]]
    """``column_vectors()`` are vectors whose cosines are correlations of predictions over rows, one for each column."""

    @cached_property
    def rated(self) -> csr_matrix:
        """A sparse matrix with a 1 in each rated cell."""
        return self.ratings.cells()

    def recommend(self, row: int, count: int, exclude_seen: bool) -> tuple[np.ndarray, np.ndarray]:
        """Return the columns with the highest predictions for a row, and these."""
        scores = self.scores(np.array([row]))[0]
        if exclude_seen and row >= 0:
            scores[self.rated[row].indices] = -np.inf
        best = _highest(scores, count)
        return best, np.clip(scores[best], self.low, self.high)

    def similar(self, column: int, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the columns whose predictions correlate most with those of one, over rows, and the correlations."""
        vectors = self.column_vectors()
        units = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), np.finfo(float).tiny)
        correlations = units @ units[column]
        correlations[column] = -np.inf
        best = _highest(correlations, count)
        return best, correlations[best]


@storable
@dataclass(frozen=True)
class RatingUnits:
    """The units in which ratings have mean 0 and variance 1, or counts are ratings beside a background of zeros.

    Examples
    --------
    >>> ratings = Ratings(np.array([0, 1]), np.array([0, 1]), np.array([2.0, 4.0]), None, (2, 2))
    >>> RatingUnits.of(ratings).standardise(ratings).values.tolist()
    [-1.0, 1.0]
    """

    centre: float
    scale: float
    usual_weight: float
    """The mean weight of ratings: intervals are those of a rating of this weight."""
    confidence: float
    """How much more a count of 1 weighs than none; 0 with explicit feedback."""

    @staticmethod
    def of(ratings: Ratings, confidence: float = 0.0) -> "RatingUnits":
        """Return the units of a training set; with a ``confidence`` it holds counts."""
        if confidence:
            density = min(len(ratings.values) / (ratings.shape[0] * ratings.shape[1]), 0.5)
            return RatingUnits(0.0, float(np.sqrt(density * (1 - density))), 1.0, confidence)
        weights = ratings.scaled_weights()
        centre = float(np.average(ratings.values, weights=weights))
        spread = float(np.sqrt(np.average((ratings.values - centre) ** 2, weights=weights)))
        if spread <= 8 * np.finfo(float).eps * abs(centre):  # equal ratings, but for rounding
            spread = max(abs(centre), 1.0)
        return RatingUnits(centre, spread, 1.0 if ratings.weights is None else float(ratings.weights.mean()), 0.0)

    def standardise(self, ratings: Ratings) -> Ratings:
        """Return ratings in these units.

        A count of c says "1" with weight 1 + kc, k being the confidence. The background says "0" with weight 1 in that
        cell too, so that (1 + kc)/(kc) with weight kc remains.
        """
        if self.confidence:
            extra = self.confidence * ratings.values
            return ratings._replace(values=(1 + extra) / extra / self.scale, weights=extra)
        weights = None if ratings.weights is None else ratings.weights / self.usual_weight
        return ratings._replace(values=(ratings.values - self.centre) / self.scale, weights=weights)


@storable
@dataclass(frozen=True)
class SideVectors:
    """The posteriors of one side, that of a row never seen last, and what is needed to update them."""

    layout: VectorLayout
    means: np.ndarray
    covariances: np.ndarray
    prior: FactorPrior
    noise_scales: NoiseScales
    feature_map: FeatureMap
    information: np.ndarray
    """Side information, a line for each row, NaN where there is none."""
    selection: np.ndarray
    """By how much those who chose to rate a column rate it higher than others like them would. It is added for rows
    without ratings, as a mean over the ratings of the column would have it."""
    tempering: float
    usual_weight: float
    """The ratings of a row weigh as this over the power ``tempering`` of their number."""

    def weights(self, counts: np.ndarray) -> np.ndarray:
        """Return the weights of the ratings of rows with these numbers of them."""
        return self.usual_weight / np.maximum(counts, 1) ** self.tempering

    @property
    def count(self) -> int:
        """The number of rows, without the one never seen."""
        return len(self.means) - 1

    @property
    def posteriors(self) -> VectorPosteriors:
        """Means and covariances, that of a row never seen last."""
        return VectorPosteriors(self.means, self.covariances)

    def noise_variances(self, rows: np.ndarray) -> np.ndarray:
        """Return E 1/ω of rows."""
        return np.append(self.noise_scales.variances, 1.0)[rows]

    def check_stored(self) -> None:
        """Refuse arrays that do not fit one another."""
        width = self.layout.width
        if self.means.shape[1] != width or self.covariances.shape != (len(self.means), width * (width + 1) // 2):
            raise ValueError(f"covariances of shape {self.covariances.shape} for {len(self.means)} vectors of {width}")
        lengths = {len(part) for part in (self.noise_scales.shape, self.information, self.selection)}
        if lengths != {self.count} or self.prior.coefficients.shape[1] != width - 1:
            raise ValueError("a prior, noise, features or selection of another size than the vectors")
        if not all(np.all(np.isfinite(part)) for part in (self.means, self.covariances)):
            raise ValueError("vectors that are no finite numbers")


def prior_vectors(prior: FactorPrior, features: np.ndarray, layout: VectorLayout) -> VectorPosteriors:
    """Return means and covariances of rows with these features and without ratings."""
    first, second, _, _ = packing(layout.width)
    free = np.array(layout.free)
    means = np.ones((len(features), layout.width), np.float32)
    means[:, free] = prior.mean(features)
    covariance = np.zeros((layout.width, layout.width))
    covariance[np.ix_(free, free)] = prior.covariance
    factor = prior.covariance_factor(features)
    return VectorPosteriors(means, (factor[:, None] * covariance[first, second]).astype(np.float32))


@storable
@dataclass(frozen=True)
class Completed(Recommender):
    """The posteriors of both sides, the noise, and the units of the ratings.

    Examples
    --------
    >>> from thalweg.completion import FactorSettings, Options, Ratings, complete
    >>> row, column = np.divmod(np.arange(36), 6)
    >>> ratings = Ratings(row, column, np.sin(row) * np.cos(column), None, (6, 6))
    >>> none = np.zeros((6, 0))
    >>> model = complete(ratings, none, none, Options(FactorSettings(rank=1, max_iter=9))).model
    >>> mean, deviation = model.predict(np.array([0, -1]), np.array([0, 0]))
    >>> bool(deviation[1] > deviation[0])
    True
    """

    rows: SideVectors
    columns: SideVectors
    noise: float
    """Its precision, in the units of the fit."""
    units: RatingUnits
    low: float
    high: float
    ratings: Ratings
    """All ratings so far, for a fit anew."""
    fitted: int
    """The number of ratings that the last fit had."""

    @property
    def rank(self) -> int:
        """The number of factors."""
        return self.rows.layout.rank

    def has_shape(self, rank: int, rows: tuple[int, ...], columns: tuple[int, ...]) -> bool:
        """Return whether a fit of this rank, and with features of these shapes, can start from here."""
        own = [(side.count, len(side.prior.ridge)) for side in (self.rows, self.columns)]
        return rank == self.rank and own == [rows, columns]

    def check_stored(self) -> None:
        """Refuse sides that do not belong to the ratings."""
        counts, layouts = zip(*((side.count, side.layout) for side in (self.rows, self.columns)), strict=True)
        if self.ratings.shape != counts or layouts != (VectorLayout(self.rank, False), VectorLayout(self.rank, True)):
            raise ValueError(f"{counts} rows and columns of {layouts}, and ratings of {self.ratings.shape}")
        numbers = self.noise, *(getattr(self.units, field.name) for field in fields(self.units))
        if not all(np.ndim(number) == 0 and np.isfinite(number) for number in numbers):
            raise ValueError(f"{numbers}, where finite numbers belong")

    @property
    def strengths(self) -> np.ndarray:
        """Standard deviations, in the units of the ratings, of what each direction adds to them, largest first.

        √ of the eigenvalues of Σ_p Σ_q, which no change of the factors' coordinates alters.
        """
        p, q = (side.prior.covariance[:-1, :-1] for side in (self.rows, self.columns))
        eigenvalues = np.linalg.eigvals(p @ q).real
        return self.units.scale * np.sqrt(np.sort(np.maximum(eigenvalues, 0.0))[::-1])

    def predict(self, row: np.ndarray, column: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return means, within the range of ratings, and standard deviations of ratings, noise included."""
        mean, deviation = self._in_units(row, column)
        return np.clip(mean, self.low, self.high), deviation

    def _in_units(self, row: np.ndarray, column: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        mean, variance = self.raw(row, column)
        noise = self.rows.noise_variances(row) * self.columns.noise_variances(column) / self.noise
        # Mean and noise of the ratings were taken as known, and are known up to the last term.
        variance = np.maximum(variance, 0.0) + noise + (0.0 if self.units.confidence else 2 / len(self.ratings.values))
        return self.units.centre + self.units.scale * mean, self.units.scale * np.sqrt(variance)

    def interval(self, row: np.ndarray, column: np.ndarray, level: float) -> tuple[np.ndarray, np.ndarray]:
        """Return the ends between which a rating lies with probability ``level``, cut off at the range of ratings.

        The noise was learned from ratings as they are given, so that their rounding to a few levels is part of it.
        """
        mean, deviation = self._in_units(row, column)
        reach = stdtrit(max(len(self.ratings.values) - 1, 1), (1 + level) / 2) * deviation
        return np.clip(mean - reach, self.low, self.high), np.clip(mean + reach, self.low, self.high)

    def raw(self, row: np.ndarray, column: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return means and variances of cells in the units of the fit, without noise."""
        row, column = (np.where(of < 0, side.count, of) for of, side in ((row, self.rows), (column, self.columns)))
        means, variances = predict_pairs(self.rows.posteriors, self.columns.posteriors, row, column)
        return means + self._selection(row, column), variances

    def _selection(self, row: np.ndarray, column: np.ndarray) -> np.ndarray:
        """Return what being rated says of a cell, for rows and columns without any other rating."""
        new_row = np.append(self.ratings.counts == 0, True)[row]
        new_column = np.append(self.ratings.transposed.counts == 0, True)[column]
        by_column = np.where(new_row, np.append(self.columns.selection, 0.0)[column], 0.0)
        return by_column + np.where(new_column, np.append(self.rows.selection, 0.0)[row], 0.0)

    def scores(self, rows: np.ndarray) -> np.ndarray:
        """Return the mean of every column for some rows, not clipped."""
        rows = np.where(rows < 0, self.rows.count, rows)
        products = (self.rows.means[rows] @ self.columns.means[:-1].T).astype(np.float64)
        every = np.arange(self.columns.count)
        selection = self._selection(np.repeat(rows, len(every)), np.tile(every, len(rows)))
        return self.units.centre + self.units.scale * (products + selection.reshape(products.shape))

    def column_vectors(self) -> np.ndarray:
        """Return the factors of columns in units of their effect; the biases of rows are left out."""
        factors = self.columns.means[:-1, : self.rank].astype(np.float64)
        return factors @ np.linalg.cholesky(self.rows.prior.covariance[:-1, :-1])


@storable
@dataclass(frozen=True)
class Filled(Recommender):
    """All cells without posteriors, as the nuclear norm has them, and effects of rows and columns for new ones.

    Examples
    --------
    >>> ratings = Ratings(np.array([0, 1]), np.array([0, 1]), np.array([2.0, 4.0]), None, (2, 2))
    >>> model = Filled(np.full((2, 2), 3.0), np.zeros(2), np.zeros(2), 3.0, low=1.0, high=5.0, ratings=ratings)
    >>> model.predict(np.array([0, -1]), np.array([1, -1])).tolist()
    [3.0, 3.0]
    """

    values: np.ndarray
    row_effects: np.ndarray
    column_effects: np.ndarray
    centre: float
    low: float
    high: float
    ratings: Ratings

    def check_stored(self) -> None:
        """Refuse arrays that do not fit one another."""
        if not self.values.shape == self.ratings.shape == (len(self.row_effects), len(self.column_effects)):
            raise ValueError(f"cells of shape {self.values.shape}, and ratings of {self.ratings.shape}")

    def predict(self, row: np.ndarray, column: np.ndarray) -> np.ndarray:
        """Return θ within the range of ratings; for a row never seen the effect of the column, and vice versa."""
        means = self.centre + np.append(self.row_effects, 0.0)[row] + np.append(self.column_effects, 0.0)[column]
        known = (row >= 0) & (column >= 0)
        means[known] = self.values[row[known], column[known]]
        return np.clip(means, self.low, self.high)

    def scores(self, rows: np.ndarray) -> np.ndarray:
        """Return all columns of some rows."""
        return np.where((rows >= 0)[:, None], self.values[rows].astype(np.float64), self.centre + self.column_effects)

    def column_vectors(self) -> np.ndarray:
        """Return the columns of θ, centred over rows and columns."""
        centred = self.values - self.values.mean(axis=1, keepdims=True)
        return (centred - centred.mean(axis=0)).T.astype(np.float64)


def additive_effects(ratings: Ratings) -> tuple[float, np.ndarray, np.ndarray]:
    """Return the mean, and by how much rows, and columns beside them, are rated higher, shrunk towards 0.

    Examples
    --------
    >>> ratings = Ratings(np.array([0, 1]), np.array([0, 0]), np.array([2.0, 4.0]), None, (2, 1))
    >>> centre, rows, _ = additive_effects(ratings)
    >>> centre, rows.round(2).tolist()
    (3.0, [-0.17, 0.17])
    """
    weights = ratings.scaled_weights()
    centre = float(np.average(ratings.values, weights=weights))

    def effects(of: np.ndarray, values: np.ndarray, count: int) -> np.ndarray:
        total = np.bincount(of, weights * values, minlength=count)
        return total / (np.bincount(of, weights, minlength=count) + SHRINKAGE_RATINGS)

    columns = effects(ratings.columns, ratings.values - centre, ratings.shape[1])
    rows = effects(ratings.rows, ratings.values - centre - columns[ratings.columns], ratings.shape[0])
    return centre, rows, columns


def _highest(scores: np.ndarray, count: int) -> np.ndarray:
    """Return the indices of the highest finite scores, best first."""
    count = min(count, int(np.sum(scores > -np.inf)))
    best = np.argpartition(-scores, max(count - 1, 0))[:count]
    return best[np.argsort(-scores[best], kind="stable")]


class CompletionResult(NamedTuple):
    """A completed matrix, and how it came about.

    Examples
    --------
    >>> CompletionResult._fields
    ('model', 'history', 'status')
    """

    model: Completed | Filled
    history: dict[str, np.ndarray]
    status: Status

"""A matrix that was completed: what it says of cells, which columns suit a row, which columns are alike."""

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from scipy.special import ndtri, stdtrit

from thalweg.codec import storable
from thalweg.completion.features import Describer
from thalweg.completion.posteriors import Posteriors, Shape, packing, predicted
from thalweg.completion.priors import Expectation, Unevenness
from thalweg.completion.seen import Seen
from thalweg.padding import padded, padded_size

_FEW = 20
"""Ratings below which the noise is hardly known: intervals are then Student's."""

_PAIRS = 16_384
"""Cells that are predicted at a time."""


@storable
@dataclass(frozen=True)
class Vectors:
    """The posteriors of one side, the last line that of a row about which nothing is known, and what they came from."""

    means: np.ndarray
    covariances: np.ndarray
    expectation: Expectation
    unevenness: Unevenness
    describer: Describer
    tempering: float
    usual: float
    """What a row is told weighs as ``usual`` over this power of the number of its ratings."""

    def tempered(self, ratings: np.ndarray) -> np.ndarray:
        """The weights of what rows with so many ratings are told."""
        return self.usual / np.maximum(ratings, 1) ** self.tempering

    @property
    def count(self) -> int:
        """Rows, without the unknown one."""
        return len(self.means) - 1

    @property
    def posteriors(self) -> Posteriors:
        """On the device, padded so that a few more rows compile nothing."""
        size = padded_size(len(self.means), 64)
        return Posteriors(jnp.asarray(padded(self.means, size)), jnp.asarray(padded(self.covariances, size)))

    def noise_scales(self, numbers: np.ndarray) -> np.ndarray:
        """E 1/ω of rows."""
        return np.append(self.unevenness.variances, 1.0)[numbers]

    def check_stored(self) -> None:
        """Refuse arrays that do not fit one another."""
        width = self.means.shape[1]
        if self.covariances.shape != (len(self.means), width * (width + 1) // 2):
            raise ValueError(f"covariances of shape {self.covariances.shape} for {len(self.means)} vectors of {width}")
        if self.unevenness.shape.shape != (self.count,) or self.expectation.coefficients.shape[1] != width - 1:
            raise ValueError("a prior or noise of another size than the vectors")
        if not all(np.all(np.isfinite(part)) for part in (self.means, self.covariances)):
            raise ValueError("vectors that are no finite numbers")


def unknown(expectation: Expectation, features: np.ndarray, shape: Shape) -> Posteriors:
    """What is known of rows without ratings: their features' part in the prior."""
    first, second, _, _ = packing(shape.width)
    free = np.array(shape.free)
    means = np.ones((len(features), shape.width), np.float32)
    means[:, free] = expectation.expected(features)
    covariance = np.zeros((shape.width, shape.width))
    covariance[np.ix_(free, free)] = np.linalg.inv(expectation.precision)
    factor = expectation.covariance_factor(features)
    return Posteriors(means, (factor[:, None] * covariance[first, second]).astype(np.float32))  # type: ignore[arg-type]


@storable
@dataclass(frozen=True)
class Completed:
    """Both sides, the noise, and the units of the ratings.

    Cells are given by numbers of rows and columns; a number of −1 is a row or column never seen.

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

    rows: Vectors
    columns: Vectors
    noise: float
    centre: float
    scale: float
    low: float
    high: float
    seen: Seen
    row_choice: np.ndarray
    column_choice: np.ndarray
    """By how much those who chose to rate a column rate it higher than others like them would: what item means have,
    and is added for rows of which no rating is known."""
    known: int
    """Ratings."""
    spread: float
    """Their standard deviation."""
    usual_weight: float
    """The mean of their weights."""
    confidence: float
    """How much more a count of 1 weighs than none; 0 where ratings are explicit."""

    @property
    def rank(self) -> int:
        """Factors of a row."""
        return self.rows.means.shape[1] - 2

    def fits(self, rank: int, rows: tuple[int, ...], columns: tuple[int, ...]) -> bool:
        """Whether a fit of this rank, and with features of these shapes, can start from here."""
        mine = [(side.count, len(side.expectation.ridge)) for side in (self.rows, self.columns)]
        return rank == self.rank and mine == [rows, columns]

    def check_stored(self) -> None:
        """Refuse sides that are not of the cells that were seen."""
        if self.seen.shape != (self.rows.count, self.columns.count):
            raise ValueError(
                f"{self.rows.count} rows and {self.columns.count} columns, of which {self.seen.shape} were seen"
            )
        if (len(self.row_choice), len(self.column_choice)) != self.seen.shape:
            raise ValueError("choices of other rows or columns")
        numbers = self.noise, self.centre, self.scale, self.spread, self.usual_weight, self.confidence
        if not all(np.ndim(found) == 0 and np.isfinite(found) for found in numbers):
            raise ValueError(f"{numbers}, where finite numbers belong")

    @property
    def strengths(self) -> np.ndarray:
        """Standard deviations, in the units of the ratings, of what each direction adds to them, largest first.

        √ of the eigenvalues of Σ_p Σ_q, which no change of the factors' coordinates alters.
        """
        p, q = (np.linalg.inv(side.expectation.precision)[:-1, :-1] for side in (self.rows, self.columns))
        found = np.linalg.eigvals(p @ q).real
        return self.scale * np.sqrt(np.sort(np.maximum(found, 0.0))[::-1])

    def predict(self, row: np.ndarray, column: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Means, within the range of ratings, and standard deviations of ratings, noise included."""
        mean, deviation = self._in_units(row, column)
        return np.clip(mean, self.low, self.high), deviation

    def _in_units(self, row: np.ndarray, column: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        mean, variance = self.raw(row, column)
        noise = self.rows.noise_scales(row) * self.columns.noise_scales(column) / self.noise
        deviation = self.scale * np.sqrt(np.maximum(variance, 0.0) + noise)
        return self.centre + self.scale * mean, np.hypot(deviation, self._doubt)

    @property
    def _few(self) -> bool:
        return self.known < _FEW and not self.confidence

    @property
    def _doubt(self) -> float:
        """What few ratings leave open about their mean and the noise, which are taken as known above."""
        return float(np.sqrt(2 / self.known)) * self.spread if self._few else 0.0

    def interval(self, row: np.ndarray, column: np.ndarray, level: float) -> tuple[np.ndarray, np.ndarray]:
        """Ends between which a rating lies with probability ``level``, cut off at the range of ratings.

        The noise was learned from ratings as they are given, so that their rounding to a few levels is part of it.
        """
        mean, deviation = self._in_units(row, column)
        share = (1 + level) / 2
        reach = (stdtrit(max(self.known - 1, 1), share) if self._few else ndtri(share)) * deviation
        return np.clip(mean - reach, self.low, self.high), np.clip(mean + reach, self.low, self.high)

    def raw(self, row: np.ndarray, column: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Means and variances of cells in the units of the fit, without noise."""
        rows, columns = self.rows.posteriors, self.columns.posteriors
        row, column = (np.where(of < 0, side.count, of) for of, side in ((row, self.rows), (column, self.columns)))
        means, variances = [], []
        for start in range(0, len(row), _PAIRS):
            some = slice(start, start + _PAIRS)
            size = padded_size(len(row[some]), 64)
            mean, variance = predicted(
                rows, columns, padded(row[some], size).astype(np.int32), padded(column[some], size).astype(np.int32)
            )
            means.append(np.asarray(mean, np.float64)[: len(row[some])])
            variances.append(np.asarray(variance, np.float64)[: len(row[some])])
        return np.concatenate([*means, []]) + self._chosen(row, column), np.concatenate([*variances, []])

    def _chosen(self, row: np.ndarray, column: np.ndarray) -> np.ndarray:
        """What a rating says by being there, for rows and columns without any other."""
        blank_row = np.append(self.seen.by_row == 0, True)[row]
        blank_column = np.append(self.seen.by_column == 0, True)[column]
        by_column = np.where(blank_row, np.append(self.column_choice, 0.0)[column], 0.0)
        return by_column + np.where(blank_column, np.append(self.row_choice, 0.0)[row], 0.0)

    def scores(self, rows: np.ndarray) -> np.ndarray:
        """The mean of every column, not clipped, for some rows."""
        numbers = np.where(rows < 0, self.rows.count, rows)
        found = (self.rows.means[numbers] @ self.columns.means[:-1].T).astype(np.float64)
        every = np.arange(self.columns.count)
        found += self._chosen(np.repeat(numbers, len(every)), np.tile(every, len(rows))).reshape(found.shape)
        return self.centre + self.scale * found

    def recommend(self, row: int, count: int, exclude_seen: bool) -> tuple[np.ndarray, np.ndarray]:
        """The columns with the highest means for a row, and these."""
        scores = self.scores(np.array([row]))[0]
        if exclude_seen and row >= 0:
            scores[self.seen.of_row(row)] = -np.inf
        best = highest(scores, count)
        return best, np.clip(scores[best], self.low, self.high)

    def similar(self, column: int, count: int) -> tuple[np.ndarray, np.ndarray]:
        """The columns whose ratings go with those of one, and how: the correlation over rows that the model expects.

        Of what factors say; the biases of rows, which all columns share, left out.
        """
        spread = np.linalg.inv(self.rows.expectation.precision)[:-1, :-1]
        factors = self.columns.means[:-1, : self.rank].astype(np.float64) @ np.linalg.cholesky(spread)
        norms = np.maximum(np.linalg.norm(factors, axis=1), 1e-300)
        alike = (factors @ factors[column]) / (norms * norms[column])
        alike[column] = -np.inf
        best = highest(alike, count)
        return best, alike[best]


def highest(scores: np.ndarray, count: int) -> np.ndarray:
    """Which of the finite scores are highest, best first."""
    count = min(count, int(np.sum(scores > -np.inf)))
    best = np.argpartition(-scores, max(count - 1, 0))[:count]
    return best[np.argsort(-scores[best], kind="stable")]

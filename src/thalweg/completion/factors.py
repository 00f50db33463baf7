"""Factors and biases with Gaussian posteriors, by coordinate ascent on the bound.

A sweep finds the posteriors of all rows given the columns, then those of all columns given the rows, each in closed
form, and after each the prior of that side, how uneven its noise is, and the noise: the bound never falls.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from thalweg.compiling import quick_jit
from thalweg.completion.entries import Entries, sums
from thalweg.completion.posteriors import Found, Posteriors, Prior, Shape, packing, second_moments, updated
from thalweg.completion.priors import Expectation, Unevenness
from thalweg.descent import Status
from thalweg.padding import padded, padded_size
from thalweg.threads import enough_threads

_AT_A_TIME = 8192
"""Rows whose posteriors are found at a time."""

_STARTING_SPREAD, _STARTING_VARIANCE = 0.3, 0.01
"""Of the columns' factors before anything is learned; ratings have variance 1."""

SMALL = 100_000
"""Ratings below which a direction may be switched off before it is found, and more sweeps cost little."""

_STARTING_PRECISION, _SETTLING = {True: 1.0, False: 3.0}, {True: 5, False: 0}
"""Of the priors of small and large sets, and the sweeps for which they stay as wide as that."""

_FEW = 200
"""Ratings below which gains are judged as of so many: a hundredth of a nat in all is nothing that could be seen."""

_SOME = 20_000
"""Cells of which it is seen whether predictions stand still."""

_OFF = 1e6
"""The prior precision of a factor that is switched off."""

_LEAST_NOISE = 1e-6
"""The least variance of the noise, as a share of that of the ratings."""

_EVEN_SWEEPS = 2
"""Sweeps before the noise may be uneven: until then it is mostly what is not learned yet."""


class Ratings(NamedTuple):
    """Who rated what how: numbers of rows and columns, values, weights (None for ones), and how many rows and columns.

    Examples
    --------
    >>> ratings = Ratings(np.array([0, 1]), np.array([1, 0]), np.array([1.0, 2.0]), None, (2, 2))
    >>> ratings.turned.shape, len(ratings.part(np.array([True, False])).values)
    ((2, 2), 1)
    """

    rows: np.ndarray
    columns: np.ndarray
    values: np.ndarray
    weights: np.ndarray | None
    shape: tuple[int, int]

    @property
    def turned(self) -> "Ratings":
        """Columns as rows."""
        return Ratings(self.columns, self.rows, self.values, self.weights, self.shape[::-1])

    def part(self, chosen: np.ndarray) -> "Ratings":
        """Some of them."""
        weights = None if self.weights is None else self.weights[chosen]
        return Ratings(self.rows[chosen], self.columns[chosen], self.values[chosen], weights, self.shape)


@dataclass(frozen=True)
class FactorSettings:
    """How to fit factors.

    Examples
    --------
    >>> FactorSettings(rank=10).max_iter
    30
    """

    rank: int = 30
    """The most directions; those of no use are switched off by the prior."""
    uneven: bool = True
    """Whether rows and columns may differ in their noise."""
    background: float = 0.0
    """The weight of a rating of 0 in every cell, for implicit feedback."""
    tempering: float = 0.0
    """What a row is told weighs as one over this power of the number of its ratings: those of a busy row say less each.
    The bound is then no bound, and a fit ends when predictions stand still."""
    noise: float = 1.0
    """The precision of the noise to start with."""
    learn_noise: bool = True
    """Whether it is learned."""
    max_iter: int = 30
    """The most sweeps."""
    tol: float = 1e-4
    """A gain in nats a rating (of some hundreds at the least) that is not worth another sweep."""
    seed: int = 0
    """Of the columns' factors at the start."""
    directions: int | None = None
    """How many factors are there at the start; the others wait, switched off. All, or what the bound likes best."""
    dtype: type = np.float32
    """Of the vectors; priors are in float64."""


class Side:
    """The rows, or the columns: what they were rated, their posteriors and their prior."""

    def __init__(self, ratings: Ratings, features: np.ndarray, shape: Shape, settings: FactorSettings) -> None:
        self.shape, self.settings = shape, settings
        self.count, self.small = ratings.shape[0], len(ratings.values) < SMALL
        self.size = padded_size(self.count, 64)
        if self.size > _AT_A_TIME:
            self.size = -(-self.size // _AT_A_TIME) * _AT_A_TIME
        self.entries = Entries.of(*ratings[:4], self.count, settings.dtype)
        self.ratings = np.bincount(ratings.rows, minlength=self.count).astype(np.float64)
        self.seen = (self.ratings > 0) | (settings.background > 0)
        busy = np.maximum(self.ratings, 1.0) ** settings.tempering
        self.usual = float(np.mean(busy))
        self.tempered = self.usual / busy
        # Features of rows without ratings say nothing about the coefficients.
        self.features, self.told = features, features * self.seen[:, None]
        precisions = np.full(shape.rank + 1, _STARTING_PRECISION[self.small])
        precisions[self._begun : shape.rank] = _OFF
        self.expectation = Expectation.start(self.told, precisions)
        self.unevenness = Unevenness.even(self.count)
        self.misfit = np.zeros(self.count)
        self.logdets, self.spread = 0.0, np.zeros(shape.width * (shape.width + 1) // 2)
        self.scatter = np.zeros((shape.rank + 1, shape.rank + 1))
        self.posteriors = self._start()

    @property
    def _begun(self) -> int:
        """Factors that are not switched off at the start."""
        return self.shape.rank if self.settings.directions is None else self.settings.directions

    def _start(self) -> Posteriors:
        rng, kind = np.random.default_rng(self.settings.seed), self.settings.dtype
        means: np.ndarray = np.zeros((self.size, self.shape.width), kind)
        means[: self.count, : self._begun] = _STARTING_SPREAD * rng.normal(size=(self.count, self._begun))
        means[:, self.shape.constant] = 1
        first, second = np.triu_indices(self.shape.width)
        variance = (first == second) & (first != self.shape.constant)
        off = (first >= self._begun) & (first < self.shape.rank)
        variances = np.where(off, 1 / _OFF, _STARTING_VARIANCE) * variance
        covariances = np.tile(variances.astype(kind), (self.size, 1))
        return Posteriors(jnp.asarray(means), jnp.asarray(covariances))

    def _device(self, numbers: np.ndarray) -> Array:
        return jnp.asarray(padded(numbers, self.size).astype(self.settings.dtype))

    def take(self, means: np.ndarray, covariances: np.ndarray, prior: Expectation, uneven: Unevenness) -> None:
        """Go on from posteriors and a prior found earlier."""
        self.posteriors = Posteriors(self._device(means), self._device(covariances))
        self.expectation, self.unevenness = prior, uneven

    def step(self, other: "Side", noise: float) -> None:
        """The posteriors of this side, given the other; then its prior."""
        prior = Prior(
            self._device(self.expectation.expected(self.features)),
            jnp.asarray(self.expectation.precision.astype(self.settings.dtype)),
        )
        scales = other.unevenness.means
        told = Told(
            self.entries,
            other.posteriors,
            other._device(scales),
            other._device(self.settings.background * scales * other.seen),
        )
        counted = self._device(self.seen.astype(float))
        found, spread = stepped(
            told, self._device(noise * self.tempered * self.unevenness.means), prior, counted, self.shape
        )
        self.posteriors = found.posteriors
        self.misfit = np.asarray(found.misfit, np.float64)[: self.count]
        self.logdets = float(np.sum(np.asarray(found.logdet, np.float64)[: self.count][self.seen]))
        self.spread = np.asarray(spread, np.float64)

    def learn(self, spread: bool = True) -> None:
        """The prior that the posteriors call for; its spread only if asked for."""
        means = self._means()
        self.expectation = self.expectation.regressed(self.told, means)
        self._measure(means)
        if spread:
            self.expectation = self.expectation.scaled(self.scatter, int(self.seen.sum()))

    def _means(self) -> np.ndarray:
        return np.asarray(self.posteriors.means, np.float64)[: self.count, self.shape.free]

    def _measure(self, means: np.ndarray) -> None:
        apart = (means - self.expectation.expected(self.features))[self.seen]
        _, _, place, _ = packing(self.shape.width)
        free = np.array(self.shape.free)
        self.scatter = apart.T @ apart + self.spread[place[free[:, None], free[None]]]

    def bound(self) -> float:
        """The part of the bound that is this side's."""
        return self.expectation.bound(self.scatter, int(self.seen.sum()), self.logdets) + self.unevenness.bound()


class Told(NamedTuple):
    """What a side is told: its ratings, the other side, the scales of its noise, and its weight in every cell."""

    entries: Entries
    other: Posteriors
    scales: Array
    background: Array


def stepped(told: Told, noise: Array, prior: Prior, counted: Array, shape: Shape) -> tuple[Found, Array]:
    """The posteriors of a side given the other, and the sum of the covariances of those rows that are counted.

    ``noise`` is its precision in each row, and ``counted`` 1 for the rows that count, else 0.
    """
    # Thousands of small factorisations: with more threads, OpenBLAS would spend most of its time waiting for them.
    with enough_threads(shape.width):
        return jax.block_until_ready(_stepped(told, noise, prior, counted, shape))


@quick_jit(lambda *_: False, tuned=False, static_argnums=4)
def _stepped(told: Told, noise: Array, prior: Prior, counted: Array, shape: Shape) -> tuple[Found, Array]:
    moments, size = second_moments(told.other), len(noise)
    given = sums(told.entries, moments, told.other.means, told.scales, size)
    every = jnp.matmul(told.background, moments, precision="highest")
    given = given._replace(moments=given.moments + every[None])
    if size <= _AT_A_TIME:
        found = updated(given, noise, prior, shape)
    else:
        # Some thousands at a time, so that memory for the unpacked matrices is bounded.
        parted = lambda leaf: leaf.reshape(-1, _AT_A_TIME, *leaf.shape[1:])
        own = prior.precision.ndim == 3
        parts = jax.tree.map(parted, (given, noise, prior if own else prior.means))

        def some(part: tuple) -> Found:
            return updated(part[0], part[1], part[2] if own else Prior(part[2], prior.precision), shape)

        found = jax.tree.map(lambda leaf: leaf.reshape(size, *leaf.shape[2:]), jax.lax.map(some, parts))
    return found, jnp.matmul(counted, found.posteriors.covariances, precision="highest")


class Fit(NamedTuple):
    """Both sides, the precision of the noise, the bound after each sweep, and why the fit ended."""

    rows: Side
    columns: Side
    noise: float
    bounds: list[float]
    status: Status


def bound(rows: Side, columns: Side, noise: float) -> float:
    """The bound on the log evidence, up to constants; the columns were found last."""
    ratings = rows.ratings.sum()
    found = ratings * (np.log(noise) - np.log(2 * np.pi)) - noise * np.sum(columns.unevenness.means * columns.misfit)
    found += np.sum(rows.ratings * rows.unevenness.logs) + np.sum(columns.ratings * columns.unevenness.logs)
    return float(found) / 2 + rows.bound() + columns.bound()


def _means_of_some(rows: Side, columns: Side, ratings: Ratings) -> np.ndarray:
    some = np.linspace(0, len(ratings.values) - 1, min(len(ratings.values), _SOME)).astype(int)
    sides = ((rows, ratings.rows), (columns, ratings.columns))
    return np.prod([np.asarray(side.posteriors.means)[of[some]] for side, of in sides], axis=0).sum(axis=1)


def fit(
    ratings: Ratings,
    row_features: np.ndarray,
    column_features: np.ndarray,
    settings: FactorSettings,
    watch: Callable[[int, Side, Side, float, float, bool], bool] | None = None,
    start: Callable[[Side, Side], float] | None = None,
) -> Fit:
    """Posteriors of factors and biases of centred ratings of about unit variance.

    Features have a line for each row or column, the first number of each a 1. ``watch`` is called after each sweep with
    its number, both sides, the noise, the bound and whether all is being learned by now, and may ask to stop by True.
    ``start`` puts both sides where to start from, and returns the precision of the noise there.
    """
    rows = Side(ratings, row_features, Shape(settings.rank, False), settings)
    columns = Side(ratings.turned, column_features, Shape(settings.rank, True), settings)
    noise = settings.noise if start is None else start(rows, columns)
    settling = _SETTLING[rows.small] if start is None else 0
    bounds: list[float] = []
    said: np.ndarray = np.zeros(0)
    status = Status.STEPS_SPENT
    try:
        for sweep in range(settings.max_iter):
            for side, other in ((rows, columns), (columns, rows)):
                side.step(other, noise)
                side.learn(spread=sweep >= settling)
                if settings.uneven and sweep >= _EVEN_SWEEPS:
                    uneven, factor = side.unevenness.learned(side.ratings, noise * side.misfit).centred()
                    side.unevenness, noise = uneven, noise * factor
                if settings.learn_noise:
                    misfit = max(float(np.sum(side.unevenness.means * side.misfit)), 1e-30)
                    noise = min(side.ratings.sum() / misfit, 1 / _LEAST_NOISE)
            bounds.append(bound(rows, columns, noise))
            enough = len(bounds) > 1 and bounds[-1] - bounds[-2] < settings.tol * max(len(ratings.values), _FEW)
            if settings.tempering:
                before, said = said, _means_of_some(rows, columns, ratings)
                enough = len(bounds) > 1 and noise * np.mean((said - before) ** 2) / 2 < settings.tol
            settled = sweep > max(_EVEN_SWEEPS, settling) + 1
            if watch is not None and watch(sweep, rows, columns, noise, bounds[-1], settled):
                status = Status.STOPPED_BY_CALLBACK
                break
            if enough and settled:
                status = Status.CONVERGED
                break
    except KeyboardInterrupt:
        if not bounds:
            raise
        status = Status.INTERRUPTED
    return Fit(rows, columns, noise, bounds, status)

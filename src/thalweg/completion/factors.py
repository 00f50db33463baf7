"""Factors and biases with Gaussian posteriors, by coordinate ascent on the bound.

A sweep updates the posteriors of all rows given the columns, then those of all columns given the rows, each in closed
form, and after each the prior of that side, the scales of its noise, and the noise itself: the bound never falls.
"""

from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from thalweg.completion.posteriors import SideEvidence, VectorLayout, VectorPosteriors, packing, update_posteriors
from thalweg.completion.priors import PRIOR_VARIANCE, FactorPrior, NoiseScales
from thalweg.completion.ratings import GRAIN, RatingBlocks, Ratings
from thalweg.padding import padded, padded_size
from thalweg.threads import enough_threads

__all__ = ["FactorSettings"]

SETTLING_SWEEPS = 5
"""Sweeps of a set with few ratings before the spread of factors is learned and noise may differ between rows: until
then, most of it is what factors do not explain yet. Doubled, a fit takes as many more sweeps."""

MIN_NOISE_VARIANCE = 1e-6
"""The least mean square misfit of a row's ratings, which have variance 1: sums in float32 are off by up to a quarter of
it. Doubled, a fit of ratings without noise ends with errors larger by a factor of 1.4."""


@dataclass(frozen=True)
class FactorSettings:
    """How to fit factors.

    Examples
    --------
    >>> FactorSettings(rank=10).max_iter
    30
    """

    rank: int = 30
    """The most factors; those of no use are switched off by the prior."""
    uneven: bool = True
    """Whether the noise may differ between rows and between columns."""
    background: float = 0.0
    """The weight of a rating of 0 in every cell, for implicit feedback."""
    tempering: float = 0.0
    """The ratings of a row weigh as one over this power of their number, so that those of busy rows say less each."""
    noise: float = 1.0
    """The initial precision of the noise."""
    learn_noise: bool = True
    """Whether it is learned."""
    max_iter: int = 30
    """The most sweeps."""
    tol: float = 1e-4
    """A fit has converged when a sweep moves the bound by less, in nats a rating."""
    seed: int = 0
    """Seeds the initial factors of the columns."""
    directions: int | None = None
    """The number of factors that are not switched off from the start; None for all."""
    dtype: type = np.float32
    """Of the vectors; priors are in float64."""


@dataclass(frozen=True)
class Side:
    """The rows, or the columns: their ratings, posteriors and prior."""

    layout: VectorLayout
    settings: FactorSettings
    blocks: RatingBlocks
    counts: np.ndarray
    """The number of ratings of each row."""
    features: np.ndarray
    posteriors: VectorPosteriors
    prior: FactorPrior
    noise_scales: NoiseScales
    misfit: np.ndarray = field(default_factory=lambda: np.zeros(0))
    """Σ w E(r − f)² of each row."""
    log_determinants: float = 0.0
    """The sum of the log-determinants of the posterior precisions."""

    @staticmethod
    def initial(ratings: Ratings, features: np.ndarray, layout: VectorLayout, settings: FactorSettings) -> "Side":
        """Return a side with random factors, as far as they are not switched off."""
        counts = ratings.counts.astype(float)
        factors = layout.rank if settings.directions is None else settings.directions
        active = np.append(np.arange(layout.rank) < factors, True)  # the last is the bias
        # Products of all factors then have variance 1 together, as the ratings have.
        precision = max(factors, 1) ** 0.5
        observed = (counts > 0) | (settings.background > 0)
        prior = FactorPrior.initial(features * observed[:, None], np.where(active, precision, 1 / PRIOR_VARIANCE))
        size = padded_size(len(counts), GRAIN)
        means: np.ndarray = np.zeros((size, layout.width), settings.dtype)
        rng = np.random.default_rng(settings.seed)
        means[: len(counts), :factors] = precision**-0.5 * rng.normal(size=(len(counts), factors))
        means[:, layout.constant] = 1
        covariances: np.ndarray = np.zeros((size, len(packing(layout.width)[0])), settings.dtype)
        return Side(
            layout,
            settings,
            RatingBlocks.of(ratings, settings.dtype),
            counts,
            features,
            VectorPosteriors(means, covariances),
            prior,
            NoiseScales.prior(len(counts), 4.0 if settings.uneven else 1 / float(np.finfo(np.float32).eps)),
        )

    @property
    def count(self) -> int:
        """The number of rows, without padding."""
        return len(self.counts)

    @property
    def observed(self) -> np.ndarray:
        """The rows that have something to learn from."""
        return (self.counts > 0) | (self.settings.background > 0)

    @property
    def usual_weight(self) -> float:
        """The mean power of the number of ratings by which those of a row are divided; see ``tempering``."""
        return float(np.mean(np.maximum(self.counts, 1.0) ** self.settings.tempering))

    def padded(self, numbers: np.ndarray) -> np.ndarray:
        """Return numbers, one or more a row, filled up to the size of the posteriors."""
        return padded(numbers, len(self.posteriors.means)).astype(self.settings.dtype)

    def updated(self, other: "Side", noise: float) -> "Side":
        """Return the side with its posteriors given the other side."""
        scales = other.noise_scales.means
        background = self.settings.background * scales * other.observed
        evidence = SideEvidence(self.blocks, other.posteriors, other.padded(scales), other.padded(background))
        precision: np.ndarray = self.prior.precision.astype(self.settings.dtype)
        means = self.padded(self.prior.mean(self.features))
        tempered = self.usual_weight / np.maximum(self.counts, 1.0) ** self.settings.tempering
        noise_of_rows = self.padded(noise * tempered * self.noise_scales.means)
        posteriors, *sums = update_posteriors(evidence, noise_of_rows, means, precision, self.layout)
        misfit, log_determinants = (np.asarray(of_rows, np.float64)[: self.count] for of_rows in sums)
        return replace(
            self,
            posteriors=posteriors,
            misfit=np.maximum(misfit, MIN_NOISE_VARIANCE * self.counts),
            log_determinants=float(np.sum(log_determinants[self.observed])),
        )

    def with_prior(self, learn_spread: bool) -> "Side":
        """Return the side with the prior that its posteriors call for; its spread only if asked for."""
        means = np.asarray(self.posteriors.means, np.float64)[: self.count, self.layout.free]
        side = replace(self, prior=self.prior.with_coefficients(self.features * self.observed[:, None], means))
        if not learn_spread:
            return side
        return replace(side, prior=side.prior.with_spread(side.scatter(), int(self.observed.sum())))

    def scatter(self) -> np.ndarray:
        """Return the expected sum of squares of the vectors about their prior means."""
        means = np.asarray(self.posteriors.means, np.float64)[: self.count, self.layout.free]
        deviations = (means - self.prior.mean(self.features))[self.observed]
        covariances = self.observed.astype(self.settings.dtype) @ np.asarray(self.posteriors.covariances)[: self.count]
        return deviations.T @ deviations + self.layout.free_entries(covariances.astype(np.float64))

    def bound(self) -> float:
        """Return the part of the bound that belongs to this side."""
        prior = self.prior.bound(self.scatter(), int(self.observed.sum()), self.log_determinants)
        return prior + self.noise_scales.bound()


class FactorState(NamedTuple):
    """Both sides, the precision of the noise, and the bound after each sweep so far."""

    rows: Side
    columns: Side
    noise: float
    bounds: tuple[float, ...] = ()

    @staticmethod
    def initial(
        ratings: Ratings, row_features: np.ndarray, column_features: np.ndarray, settings: FactorSettings
    ) -> "FactorState":
        """Begin with centred ratings of about unit variance; the first feature of every row and column is a 1."""
        rows = Side.initial(ratings, row_features, VectorLayout(settings.rank, False), settings)
        columns = Side.initial(ratings.transposed, column_features, VectorLayout(settings.rank, True), settings)
        return FactorState(rows, columns, settings.noise)

    @property
    def settled(self) -> bool:
        """Whether everything has been learned for more than one sweep."""
        return len(self.bounds) > SETTLING_SWEEPS + 2

    @property
    def converged(self) -> bool:
        """Whether the last sweep moved the bound by less than the tolerance."""
        few = self.rows.settings.tol * self.rows.counts.sum()
        return self.settled and abs(self.bounds[-1] - self.bounds[-2]) < few

    @enough_threads(1)
    def swept(self) -> "FactorState":
        """Return the state after one more sweep."""
        rows, noise = self._step(self.rows, self.columns, self.noise)
        columns, noise = self._step(self.columns, rows, noise)
        after = FactorState(rows, columns, noise, self.bounds)
        return after._replace(bounds=(*self.bounds, after.bound()))

    def _step(self, side: Side, other: Side, noise: float) -> tuple[Side, float]:
        settled = side.settings.directions is None or len(self.bounds) >= SETTLING_SWEEPS
        side = side.updated(other, noise).with_prior(learn_spread=settled)
        if side.settings.uneven and settled:
            scales, factor = side.noise_scales.learned(side.counts, noise * side.misfit).centred()
            side, noise = replace(side, noise_scales=scales), noise * factor
        if side.settings.learn_noise:
            noise = side.counts.sum() / float(np.sum(side.noise_scales.means * side.misfit))
        return side, noise

    def bound(self) -> float:
        """Return the bound on the log evidence, up to constants; the columns were updated last."""
        rows, columns = self.rows, self.columns
        total = rows.counts.sum() * (np.log(self.noise) - np.log(2 * np.pi))
        total -= self.noise * np.sum(columns.noise_scales.means * columns.misfit)
        for side in (rows, columns):
            total += np.sum(side.counts * side.noise_scales.logs)
        return float(total) / 2 + rows.bound() + columns.bound()

"""Counts: Poisson or negative binomial targets, a dispersion that is learned, and intervals of new counts."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import numpy as np
from scipy.special import betainc, gammainc, logsumexp, pdtr

from thalweg.descent import Status
from thalweg.gaussian.likelihood import REACH, Likelihood
from thalweg.gaussian.likelihoods import NegativeBinomial, Poisson
from thalweg.gaussian.linear.observations import LinearObservations
from thalweg.gaussian.linear.solution import LinearFit, LinearProblem
from thalweg.gaussian.linear.targets import TargetModel, climb
from thalweg.runs import Run

__all__ = ["CountTargets"]

DISPERSIONS = (1e-6, 1e4)
"""The range of a dispersion that is learned. At the lower end counts are Poisson for all that data can tell; the upper
one leaves a mean without meaning."""

SMOOTH_POINTS, SHARP_POINTS = 33, 513
"""Points of the quadrature over the log rate in intervals of counts: half as many would miss 0.1 % of the probability
where the count given its rate varies as much as the rate, and 2 % where it hardly varies."""


@dataclass(frozen=True)
class CountTargets(TargetModel):
    """Numbers of at least 0 of mean μ = eᶻ and variance μ + dispersion·μ²: Poisson for 0; learned if it is None.

    Examples
    --------
    >>> rows = LinearObservations(np.ones((2, 1)), np.array([0.0, 1.0]), np.ones(2))
    >>> round(CountTargets(0.0).intercept_only(rows), 4)  # log(1.5/2)
    -0.2877
    """

    dispersion: float | None = None

    def uses_jeffreys(self, rows: LinearObservations) -> bool:
        """For Poisson counts, and where a group of examples has no event."""
        return bool(np.any(self._needs_pseudo_counts(rows)))

    def pseudo_observations(self, rows: LinearObservations, fit: LinearFit) -> LinearObservations:
        """Half as many counts more as each such example has leverage."""
        more = np.where(self._needs_pseudo_counts(rows), fit.leverages(rows) / (2 * rows.weights), 0.0)
        return rows._replace(targets=rows.targets + more)

    def _needs_pseudo_counts(self, rows: LinearObservations) -> np.ndarray:
        """A dispersion that is learned makes up for few events, but not for a likelihood that is highest at rate 0."""
        return without_events(rows) | (self.dispersion == 0)

    def balance(self, rows: LinearObservations, fit: LinearFit) -> LinearFit:
        """As others, for Poisson events: without any, pseudo-counts alone say what rates are possible."""
        return super().balance(rows, fit) if self.dispersion == 0 and np.any(rows.targets) else fit

    def balancing_shift(self, rows: LinearObservations, fit: LinearFit) -> float:
        """Where means add up to the events seen, and half an event."""
        mean, variance = fit.weights.latent(rows.columns)
        goal = rows.weights @ rows.targets + 0.5
        return float(np.log(goal) - logsumexp(mean + variance / 2 + rows.offsets, b=rows.weights))

    def intercept_only(self, rows: LinearObservations) -> float:
        """The logarithm of the mean, with half a count more."""
        exposure = logsumexp(np.broadcast_to(rows.offsets, len(rows.targets)), b=rows.weights)
        return float(np.log(rows.weights @ rows.targets + 0.5) - exposure)

    def draw(self, likelihood: Any, z: np.ndarray, factors: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Poisson counts, of a gamma-distributed rate where they are dispersed."""
        rates, dispersion = np.exp(z), float(likelihood.dispersion)
        if dispersion:
            rates *= rng.gamma(1 / dispersion, dispersion, size=z.shape)
        # NumPy draws counts of no rate near the largest integer.
        return rng.poisson(np.minimum(rates, 0.9 * np.iinfo(np.int64).max))

    def interval(self, fit: LinearFit, X: np.ndarray, offsets: np.ndarray | float, level: float) -> np.ndarray:
        """Whole numbers, both of which belong to the interval."""
        shares, parts, means, variances = fit.latents(X, offsets)
        dispersions = np.array([float(part.likelihood.dispersion) for part in parts])
        return count_intervals(shares, means, variances, dispersions, level)

    def posterior(self, problem: LinearProblem, nearby: LinearFit | None = None) -> LinearFit:
        """At the dispersion given, or where the bound and its prior are highest over it.

        The derivative of the bound in the dispersion is that of the likelihood alone, since the posterior maximises it.
        """
        if self.dispersion is not None:
            return problem.solve(self.likelihood(self.dispersion), nearby)
        steps, rows = 0, problem.rows

        def slope(log: float) -> float:
            nonlocal steps
            dispersion = float(np.exp(log)) if log > lowest else DISPERSIONS[0]
            fit = problem.solve(self.likelihood(dispersion), nearby if run.kept is None else run.kept)
            steps += fit.steps
            run.keep(fit)
            if run.interrupted:
                raise KeyboardInterrupt
            mean, variance = fit.weights.latent(rows.columns)
            slopes = fit.likelihood.slope_in_log_dispersion(rows.targets, mean + rows.offsets, variance)
            return float(rows.weights @ slopes) + log_prior(log) / 2

        lowest, highest = np.log(DISPERSIONS)
        known = lowest if nearby is None else float(np.log(nearby.likelihood.dispersion))
        # The lower end is always a maximum, since the derivative of the prior is largest there: no place to start from.
        start = known if known > lowest else 0.0
        with Run("dispersion") as run:
            slope(climb(slope, start, 0.1, (lowest, highest), problem.settings.tol))
        fit = run.kept
        status = Status.INTERRUPTED if run.interrupted else fit.status
        return fit._replace(steps=steps, status=status, log_prior=log_prior(float(np.log(fit.likelihood.dispersion))))

    def likelihood(self, dispersion: float) -> Likelihood:
        """Of counts, or of rates: counts divided by exposures."""
        with jax.enable_x64(True):
            return NegativeBinomial(dispersion, whole=False) if dispersion else Poisson(whole=False)

    def with_parameters_of(self, fit: LinearFit) -> TargetModel:
        """The same with the dispersion of a fit."""
        return CountTargets(float(fit.likelihood.dispersion))

    def allow_for_learning(self, fit: LinearFit, total: float) -> LinearFit:
        """By tails as heavy as those of a noise learned from as many, if the dispersion was learned."""
        if self.dispersion is not None:
            return fit
        return fit._replace(weights=replace(fit.weights, freedom=fit.weights.learned_freedom(total)))


def without_events(rows: LinearObservations) -> np.ndarray:
    """Whether each example is of a group without events: on one side of the value that a column has at every event.

    Examples
    --------
    >>> X, counts = np.array([[0.0, 1.0], [0.0, 2.0], [1.0, 1.0]]), np.array([3.0, 1.0, 0.0])
    >>> without_events(LinearObservations(X, counts, np.ones(3)))
    array([False, False,  True])
    """
    events = rows.columns[rows.targets > 0]
    if not len(events):
        return np.ones(len(rows.targets), bool)
    away = rows.columns - events[0]
    one_sided = np.all(away >= 0, axis=0) | np.all(away <= 0, axis=0)
    return np.any((away != 0) & one_sided & np.all(events == events[0], axis=0), axis=1)


def log_prior(log: float) -> float:
    """That of the square root of the dispersion, exponential of mean 1; without it a few counts leave it anywhere."""
    return -float(np.exp(log / 2))


def count_intervals(
    shares: np.ndarray, means: np.ndarray, variances: np.ndarray, dispersions: np.ndarray, level: float
) -> np.ndarray:
    """Central intervals that counts are in with at least this probability: both ends belong to them, one per column.

    Rows are the parts of the mixture, each with its share, its dispersion, and mean and variance of the log rate z for
    each count. An end beyond the largest number is infinite.

    Examples
    --------
    >>> one = np.ones(1)
    >>> count_intervals(one, np.log([[2.0, 1e9]]), np.array([[0.0, 0.01]]), np.zeros(1), 0.9)[0]
    array([0., 5.])
    """
    with np.errstate(over="ignore"):
        rates = np.exp(means + 2 * np.sqrt(variances))
        noise = 1 / np.maximum(rates, 1) + dispersions[:, None]
    # Where z is known less well than the log of a count given z, the distribution of a count is a step as seen from z:
    # quantiles are then those of the points, and must be many.
    sharp = np.any(variances > noise, axis=0)
    ends = np.empty((means.shape[1], 2))
    for rows, points in ((~sharp, SMOOTH_POINTS), (sharp, SHARP_POINTS)):
        nodes = np.linspace(-REACH, REACH, points)
        weights = np.exp(-0.5 * nodes**2)
        with np.errstate(over="ignore"):
            rates = np.exp(means[:, None, rows] + nodes[:, None] * np.sqrt(variances)[:, None, rows])
        below = partial(
            _probability_up_to,
            np.concatenate(shares[:, None] * weights / np.sum(weights)),
            np.concatenate(rates),
            np.repeat(dispersions, points)[:, None],
        )
        for column, probability in enumerate(((1 - level) / 2, (1 + level) / 2)):
            ends[rows, column] = _least_count(below, int(np.sum(rows)), probability)
    return ends


def _probability_up_to(
    shares: np.ndarray, rates: np.ndarray, dispersions: np.ndarray, counts: np.ndarray
) -> np.ndarray:
    """P(y ≤ count) of each column of rates, averaged over its rows."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        dispersed = betainc(1 / dispersions, counts + 1, 1 / (1 + dispersions * rates))
        # Of large counts, where those are NaN: the rate itself, or a share of it that is gamma-distributed.
        large = np.where(dispersions > 0, gammainc(1 / dispersions, counts / (dispersions * rates)), counts >= rates)
    small = np.where(dispersions > 0, dispersed, pdtr(counts, rates))
    # Beyond 1/eps neighbouring counts are one number.
    return shares @ np.where(counts * np.finfo(float).eps > 1, large, small)


@np.errstate(over="ignore")
def _least_count(below: Callable[[np.ndarray], np.ndarray], rows: int, probability: float) -> np.ndarray:
    """The least whole number of each row with at least this probability up to it."""
    low, high = np.full(rows, -1.0), np.ones(rows)
    while np.any(short := (below(high) < probability) & np.isfinite(high)):
        low, high = np.where(short, high, low), np.where(short, 2 * high, high)
    while np.any(high - low > np.maximum(1, 1e-12 * high)):
        middle = np.ceil((low + high) / 2)  # never the lower end: below 0 there are no probabilities
        under = below(middle) < probability
        low, high = np.where(under, middle, low), np.where(under, high, middle)
    return high

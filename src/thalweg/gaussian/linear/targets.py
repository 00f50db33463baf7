"""How targets depend on the linear predictor: likelihoods, what is learned of them, and where a search starts."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from scipy.optimize import minimize_scalar

from thalweg.descent import Status
from thalweg.gaussian.likelihood import Likelihood
from thalweg.gaussian.likelihoods import BernoulliLogit, GaussianNoise, NegativeBinomial, Poisson
from thalweg.gaussian.linear.mixture import Mixture
from thalweg.gaussian.linear.observations import Observations
from thalweg.gaussian.linear.search import Pseudo, Search, Solution, expected, find_weights, seen_from
from thalweg.gaussian.linear.weights import Frame, Weights

_SMALLEST_VARIANCE = 1e-100
"""The variance of the noise where all targets are 0."""

_DISPERSIONS = (1e-6, 1e4)
"""Between these the dispersion is learned. At the lower end the counts are Poisson for all that data can tell."""

_MOST_ROUNDS = 100


class Targets(ABC):
    """Base of the kinds of targets: a subclass says what the likelihood is, and where to start.

    Examples
    --------
    >>> [kind.__name__ for kind in Targets.__subclasses__()]
    ['Labels', 'Measurements', 'Counts']
    """

    reach: ClassVar[float] = np.inf
    """A search starts at 0 instead of at a linear predictor beyond this."""

    remembers: ClassVar[bool] = False
    """Whether a stream keeps its observations in short, so that it is exact."""

    @abstractmethod
    def start(self, likelihood: Any, rows: Observations, frame: Frame, before: Solution | None) -> Pseudo:
        """Where the search starts if nothing better is known."""

    @abstractmethod
    def posterior(self, rows: Observations, frame: Frame, search: Search, nearby: Solution | None = None) -> Solution:
        """The posterior in these coordinates; ``nearby`` is that with another prior, to start from."""

    def at(
        self,
        likelihood: Likelihood,
        rows: Observations,
        frame: Frame,
        search: Search,
        before: Solution | None = None,
        nearby: Solution | None = None,
    ) -> Solution:
        """The posterior for a given likelihood and, in a stream, given the posterior ``before``."""
        if nearby is None:
            start = self.start(likelihood, rows, frame, before)
        else:
            start = seen_from(nearby.weights, likelihood, rows, self.reach)
        return find_weights(frame, rows, likelihood, start, search, before)


@dataclass(frozen=True)
class Labels(Targets):
    """0 or 1, with p(1|z) = 1/(1 + e⁻ᶻ).

    Examples
    --------
    >>> frame, rows = Frame(None, np.ones(1)), Observations(np.ones((2, 1)), np.array([0.0, 1.0]), np.ones(2))
    >>> Labels().start(None, rows, frame, None).pulls
    array([-0.5,  0.5])
    """

    def start(self, likelihood: Any, rows: Observations, frame: Frame, before: Solution | None) -> Pseudo:
        """The likelihood averaged over N(0, v): its slope is ±1/2, its curvature about 1/√(16 + 2πv)."""
        # Where there are fewer examples than weights v is that of the prior, else examples leave little of it.
        fewer = before is None and len(rows.targets) < rows.columns.shape[1]
        variance = np.sum(frame.design(rows.columns) ** 2, axis=1) if fewer else 0.0
        return Pseudo(rows.weights * (rows.targets - 0.5), rows.weights / np.sqrt(16 + 2 * np.pi * variance))

    def posterior(self, rows: Observations, frame: Frame, search: Search, nearby: Solution | None = None) -> Solution:
        """With the logistic likelihood."""
        return self.at(BernoulliLogit(), rows, frame, search, nearby=nearby)


@dataclass(frozen=True)
class Measurements(Targets):
    """y = z + noise, the noise being N(0, ``noise_variance``), learned if it is None. The posterior is exact.

    Prior scales are in units of the standard deviation of the noise: the conjugate prior.

    Examples
    --------
    >>> rows = Observations(np.ones((2, 1)), np.array([1.0, 3.0]), np.ones(2))
    >>> round(Measurements().variance(Frame(None, np.array([1e3])), rows), 3)  # of 1 and 3 around their mean
    1.0
    """

    noise_variance: float | None = None

    remembers: ClassVar[bool] = True

    def start(self, likelihood: Any, rows: Observations, frame: Frame, before: Solution | None) -> Pseudo:
        """A Gaussian observation of each example is what the likelihood is."""
        precisions = rows.weights / float(likelihood.variance)
        return Pseudo(precisions * rows.targets, precisions)

    def posterior(self, rows: Observations, frame: Frame, search: Search, nearby: Solution | None = None) -> Solution:
        """Where nothing depends on where a search starts."""
        variance = self.variance(frame, rows)
        frame = Frame(frame.centre, frame.scales * np.sqrt(variance))
        solution = self.at(GaussianNoise(variance), rows, frame, search)
        if self.noise_variance is not None:
            return solution
        assert isinstance(solution.weights, Weights)
        return solution._replace(weights=solution.weights.with_learned_noise(float(np.sum(rows.weights))))

    def variance(self, units: Frame, rows: Observations) -> float:
        """As given, or where the evidence is highest: (‖y − z‖² + ‖u‖²)/n at the best weights u."""
        if self.noise_variance is not None:
            return float(self.noise_variance)
        root = np.sqrt(rows.weights)[:, None]
        examples = root * np.column_stack([units.design(rows.columns), rows.targets])
        prior = np.eye(len(units.scales), examples.shape[1])
        # The last entry of the triangular factor is the distance of the targets from the span of the features.
        triangle: Any = np.linalg.qr(np.vstack([examples, prior]), mode="r")
        return float(max(triangle[-1, -1] ** 2 / np.sum(rows.weights), _SMALLEST_VARIANCE))


@dataclass(frozen=True)
class Counts(Targets):
    """Numbers of at least 0 of mean μ = eᶻ and variance μ + dispersion·μ²: Poisson for 0; learned if it is None.

    Examples
    --------
    >>> rows = Observations(np.ones((1, 1)), np.array([0.5]), np.ones(1))
    >>> Counts(0.0).start(Poisson(), rows, Frame(None, np.ones(1)), None).precisions
    array([1.])
    """

    dispersion: float | None = None

    reach: ClassVar[float] = 300.0  # Beyond it the exponential could overflow.

    def start(self, likelihood: Any, rows: Observations, frame: Frame, before: Solution | None) -> Pseudo:
        """The likelihood at its highest point, with half a count more for the sake of counts of 0."""
        means = rows.targets + 0.5
        # At least as precise as an example of weight 1: otherwise the average of the exponential could overflow.
        precisions = np.maximum(rows.weights, 1) * means / (1 + float(getattr(likelihood, "dispersion", 0.0)) * means)
        return Pseudo(precisions * np.log(means), precisions, self.reach)

    def posterior(self, rows: Observations, frame: Frame, search: Search, nearby: Solution | None = None) -> Solution:
        """At the dispersion given, or where the bound is highest over it too."""
        if self.dispersion is not None:
            return self.at(_likelihood(self.dispersion), rows, frame, search, nearby=nearby)
        log = 0.0 if nearby is None else float(np.log(nearby.likelihood.dispersion))  # type: ignore[attr-defined]
        solution, steps, moves = nearby, 0, []
        for _ in range(_MOST_ROUNDS):
            solution = self.at(_likelihood(_dispersion(log)), rows, frame, search, nearby=solution)
            steps += solution.steps
            if solution.status is Status.INTERRUPTED:
                break
            better = _best_dispersion(rows, solution.weights, search.tol)
            if abs(better - log) < search.tol / 10:
                break
            moves.append((log, better))
            log = _extrapolated(*moves[-2:])
        assert solution is not None
        return solution._replace(steps=steps, log_prior=_log_prior(log))


def _dispersion(log: float) -> float:
    """Exactly the lowest at the lower end."""
    return float(np.exp(log)) if log > np.log(_DISPERSIONS[0]) else _DISPERSIONS[0]


def _extrapolated(*moves: tuple[float, float]) -> float:
    """Where a map that has led from each first to each second number would lead in the end, were it linear."""
    (before, _), (now, led) = moves[0], moves[-1]
    last, move = moves[0][1] - before, led - now
    if len(moves) == 1 or move == last:
        return led
    further = -move / (move - last) * (now - before)
    # At most as far as e² times further, and within the range.
    return float(np.clip(now + np.clip(further, -2.0, 2.0), *np.log(_DISPERSIONS)))


def _log_prior(log: float) -> float:
    """That of the square root of the dispersion, exponential of mean 1; without it a few counts leave it anywhere."""
    return -float(np.exp(log / 2))


def _likelihood(dispersion: float) -> Likelihood:
    """Of counts, or of rates: counts divided by exposures."""
    return NegativeBinomial(dispersion, whole=False) if dispersion else Poisson(whole=False)


def _best_dispersion(rows: Observations, weights: Weights | Mixture, tol: float) -> float:
    """The logarithm of the dispersion at which bound and prior are highest for this posterior."""
    latent = weights.latent(rows.columns)
    value = lambda log: rows.weights @ expected(_likelihood(np.exp(log)), rows.targets, *latent).value
    lowest, highest = np.log(_DISPERSIONS)
    loss = lambda log: -value(log) - _log_prior(log)
    found = minimize_scalar(loss, bounds=(lowest, highest), options={"xatol": tol / 100}).x
    # Next to the lower end the bound is flat but for rounding: without this the search would never settle.
    return float(found) if found > lowest + 0.1 else float(lowest)

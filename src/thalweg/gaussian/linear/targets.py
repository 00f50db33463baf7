"""How targets depend on the linear predictor: likelihoods, what is learned of them, and where a search starts."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from scipy.optimize import brentq
from scipy.special import expit, logsumexp

from thalweg.descent import Status
from thalweg.gaussian.likelihood import Likelihood
from thalweg.gaussian.likelihoods import BernoulliLogit, GaussianNoise
from thalweg.gaussian.linear.count_intervals import count_intervals
from thalweg.gaussian.linear.dispersion import (
    best_dispersion,
    between,
    dispersion_at,
    extrapolated,
    likelihood_of,
    log_prior,
)
from thalweg.gaussian.linear.marginals import Marginals
from thalweg.gaussian.linear.observations import Observations
from thalweg.gaussian.linear.search import (
    Pseudo,
    Search,
    Solution,
    at_shift,
    expected,
    find_weights,
    mean_targets,
    seen_from,
)
from thalweg.gaussian.linear.weights import Frame, Weights

_SMALLEST_VARIANCE = 1e-100
"""The variance of the noise where all targets are 0."""

_MOST_ROUNDS, _PATIENCE = 100, 5

_LARGEST_RATE = 9e18
"""The largest that NumPy draws Poisson counts of."""

_FAR = 30.0
"""No shift of a logit is larger."""

_FEW_EVENTS = 10
"""With fewer Poisson events than so many for each weight their likelihood is far from normal."""

_SOME = 100
"""Rows after which one more hardly changes a dispersion."""

WIDEST = 1e7
"""A prior scale, for features in standard deviations, that leaves nothing to wish for."""


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

    def evens(self, rows: Observations, few: bool) -> bool:
        """Whether a wide prior is to be joined by Jeffreys', as :meth:`evened` has it; ``few`` are the examples."""
        return False

    def evened(self, rows: Observations, solution: Solution) -> Observations:
        """The observations, and with them what Jeffreys' prior says near this posterior.

        A likelihood alone, or with a wide prior, leads away from 0, the further the more weights there are for each
        example. To first order that is undone by half an observation for each weight that says as little as it can,
        spread over the examples by their leverage (Firth 1993).
        """
        return rows

    def balanced(self, rows: Observations, solution: Solution) -> Solution:
        """The posterior with predictions that add up to what was seen, where observations have been evened."""
        return solution

    def resumed(self, before: Solution | None) -> Solution | None:
        """What a search starts from when there are some more rows; next to the optimum rounding can stop it."""
        return None

    @abstractmethod
    def level(self, rows: Observations) -> float:
        """The linear predictor of a model with an intercept only, about which the intercept's prior is."""

    def unit(self, rows: Observations, wide: Frame) -> float:
        """What the size of plausible weights is counted in; ``wide`` is the frame of a very wide prior."""
        return 1.0

    def draw(self, likelihood: Any, z: np.ndarray, off: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Targets with these linear predictors; ``off`` is what the variance of noise is off by, for each row."""
        raise NotImplementedError

    def interval(self, solution: Solution, X: np.ndarray, offsets: np.ndarray | float, level: float) -> np.ndarray:
        """Central intervals that hold targets with the probability ``level`` or more, one per row of features."""
        raise NotImplementedError

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
            start = seen_from(nearby.weights, frame, likelihood, rows, self.reach)
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
        """The slope of the likelihood, and its curvature averaged over N(0, v), about 1/√(16 + 2πv)."""
        # Where there are fewer examples than weights v is that of the prior, else examples leave little of it.
        fewer = before is None and len(rows.targets) < rows.columns.shape[1]
        variance = np.sum(frame.design(rows.columns) ** 2, axis=1) if fewer else 0.0
        pulls = rows.targets - expit(frame.origin(rows.columns) + rows.offsets)
        return Pseudo(rows.weights * pulls, rows.weights / np.sqrt(16 + 2 * np.pi * variance))

    def evens(self, rows: Observations, few: bool) -> bool:
        """Unless the scale is learned, which shrinks."""
        return not few

    def evened(self, rows: Observations, solution: Solution) -> Observations:
        """Three quarters as many labels of either kind as each example has leverage.

        Half as many make the mode unbiased; the mean, around which intervals lie, is further out.
        """
        more = 0.75 * _leverage(rows, solution)
        same, other = rows._replace(weights=rows.weights + more), rows._replace(targets=1 - rows.targets, weights=more)
        return same.joined(other)

    def balanced(self, rows: Observations, solution: Solution) -> Solution:
        """Where chances add up to the labels seen, and half a label: labels that evened them made rare ones frequent.

        The coefficients are better with them, predictions are not (Puhr and others 2017). Nor are standard deviations:
        what examples tell of the weights grows with the labels of the rarer kind, and is counted where predictions are.
        """
        shifted = solution._replace(shift=self._balance(rows, solution))
        wider = shifted._replace(weights=at_shift(shifted, self.evened(rows, solution)))
        return wider._replace(shift=self._balance(rows, wider))

    def _balance(self, rows: Observations, solution: Solution) -> float:
        total, (mean, variance) = np.sum(rows.weights), solution.weights.latent(rows.columns)
        goal = (rows.weights @ rows.targets + 0.5) / (total + 1)
        chances = lambda shift: mean_targets(solution.likelihood, mean + rows.offsets + shift, variance)
        return float(brentq(lambda shift: rows.weights @ chances(shift) / total - goal, -_FAR, _FAR, xtol=1e-9))

    def level(self, rows: Observations) -> float:
        """The logarithm of the odds, with half a label more of each kind, less the mean offset."""
        total, ones = np.sum(rows.weights), rows.weights @ rows.targets
        return float(np.log((ones + 0.5) / (total - ones + 0.5)) - np.sum(rows.weights * rows.offsets) / total)

    def draw(self, likelihood: Any, z: np.ndarray, off: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """0 or 1."""
        return (rng.uniform(size=z.shape) < expit(z)).astype(int)

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
        return Pseudo(precisions * (rows.targets - frame.origin(rows.columns) - rows.offsets), precisions)

    def level(self, rows: Observations) -> float:
        """The mean target."""
        pull = rows.weights * rows.columns[:, 0]
        return float(pull @ (rows.targets - rows.offsets) / (pull @ rows.columns[:, 0]))

    def unit(self, rows: Observations, wide: Frame) -> float:
        """The standard deviation of the targets, in units of that of the noise."""
        deviations = rows.targets - rows.offsets - wide.origin(rows.columns)
        total = rows.weights @ deviations**2 / np.sum(rows.weights)
        return float(np.clip(np.sqrt(total / self.variance(wide, rows)), 1.0, WIDEST))

    def draw(self, likelihood: Any, z: np.ndarray, off: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """With the noise."""
        return z + np.sqrt(float(likelihood.variance) * off)[:, None] * rng.normal(size=z.shape)

    def interval(self, solution: Solution, X: np.ndarray, offsets: np.ndarray | float, level: float) -> np.ndarray:
        """Those of Student's t distributions, or of normal ones where the noise is given."""
        shares, parts, means, variances = zip(*solution.latents(X, offsets), strict=True)
        noise = np.array([[float(part.likelihood.variance) * part.inflation] for part in parts])
        freedoms = np.array([part.freedom for part in parts])
        return Marginals(np.array(shares), np.stack(means), np.sqrt(variances + noise), freedoms).interval(level)

    def posterior(self, rows: Observations, frame: Frame, search: Search, nearby: Solution | None = None) -> Solution:
        """Where nothing depends on where a search starts."""
        variance = self.variance(frame, rows)
        frame = replace(frame, scales=frame.scales * np.sqrt(variance))
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
        targets = rows.targets - rows.offsets - units.origin(rows.columns)
        examples = root * np.column_stack([units.design(rows.columns), targets])
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
    >>> Counts(0.0).start(likelihood_of(0.0), rows, Frame(None, np.ones(1)), None).precisions
    array([1.])
    """

    dispersion: float | None = None

    reach: ClassVar[float] = 300.0  # Beyond it the exponential could overflow.

    def start(self, likelihood: Any, rows: Observations, frame: Frame, before: Solution | None) -> Pseudo:
        """The likelihood at its highest point, with half a count more for the sake of counts of 0."""
        means = rows.targets + 0.5
        # At least as precise as an example of weight 1: otherwise the average of the exponential could overflow.
        precisions = np.maximum(rows.weights, 1) * means / (1 + float(getattr(likelihood, "dispersion", 0.0)) * means)
        beyond = np.log(means) - frame.origin(rows.columns) - rows.offsets
        return Pseudo(precisions * beyond, precisions, self.reach)

    def resumed(self, before: Solution | None) -> Solution | None:
        """The dispersion before, if it is learned: to look for it again takes many searches."""
        known = None if before is None else before.stream
        return before if self.dispersion is None and known is not None and len(known.targets) > _SOME else None

    def evens(self, rows: Observations, few: bool) -> bool:
        """Where examples of some kind have no event: their likelihood is highest at a rate of 0, and the prior decides.

        And where Poisson events are few, since the intercept is then too low. Unless the scale is learned, which
        shrinks, and there are some events.
        """
        return bool(np.any(self._uneven(rows)) and not (few and np.any(rows.targets)))

    def evened(self, rows: Observations, solution: Solution) -> Observations:
        """Half as many counts more as each such example has leverage."""
        more = np.where(self._uneven(rows), _leverage(rows, solution) / (2 * rows.weights), 0.0)
        return rows._replace(targets=rows.targets + more)

    def _uneven(self, rows: Observations) -> np.ndarray:
        return _eventless(rows) | self._scarce(rows)

    def _scarce(self, rows: Observations) -> bool:
        """Whether there are some Poisson events, but few for each weight."""
        events = rows.weights @ rows.targets
        return self.dispersion == 0 and 0 < events < _FEW_EVENTS * rows.columns.shape[1]

    def balanced(self, rows: Observations, solution: Solution) -> Solution:
        """Where means add up to the events seen, and half an event, if few were evened; so are standard deviations."""
        if not self._scarce(rows):
            return solution
        shifted = solution._replace(shift=self._balance(rows, solution))
        wider = shifted._replace(weights=at_shift(shifted, self.evened(rows, solution)))
        return wider._replace(shift=self._balance(rows, wider))

    def _balance(self, rows: Observations, solution: Solution) -> float:
        mean, variance = solution.weights.latent(rows.columns)
        goal = rows.weights @ rows.targets + 0.5
        return float(np.log(goal) - logsumexp(mean + variance / 2 + rows.offsets, b=rows.weights))

    def level(self, rows: Observations) -> float:
        """The logarithm of the mean, with half a count more."""
        exposure = logsumexp(np.broadcast_to(rows.offsets, len(rows.targets)), b=rows.weights)
        return float(np.log(rows.weights @ rows.targets + 0.5) - exposure)

    def draw(self, likelihood: Any, z: np.ndarray, off: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Poisson counts, of a gamma-distributed rate where they are dispersed."""
        rates, dispersion = np.exp(z), float(getattr(likelihood, "dispersion", 0.0))
        if dispersion:
            rates *= rng.gamma(1 / dispersion, dispersion, size=z.shape)
        return rng.poisson(np.minimum(rates, _LARGEST_RATE))

    def interval(self, solution: Solution, X: np.ndarray, offsets: np.ndarray | float, level: float) -> np.ndarray:
        """Whole numbers, both of which belong to the interval."""
        shares, parts, means, variances = zip(*solution.latents(X, offsets), strict=True)
        dispersions = np.array([float(getattr(part.likelihood, "dispersion", 0.0)) for part in parts])
        return count_intervals(np.array(shares), np.stack(means), np.stack(variances), dispersions, level)

    def posterior(self, rows: Observations, frame: Frame, search: Search, nearby: Solution | None = None) -> Solution:
        """At the dispersion given, or where the bound is highest over it too."""
        if self.dispersion is not None:
            return self.at(likelihood_of(self.dispersion), rows, frame, search, nearby=nearby)
        log = 0.0 if nearby is None else float(np.log(nearby.likelihood.dispersion))  # type: ignore[attr-defined]
        moves: list[tuple[float, float]] = []
        solution, steps = nearby, 0
        ends: list[float | None] = [None, None]  # Between them the best is: from the first one moves up.
        try:
            for count in range(1, _MOST_ROUNDS + 1):
                solution = self.at(likelihood_of(dispersion_at(log)), rows, frame, search, nearby=solution)
                steps += solution.steps
                if solution.status is Status.INTERRUPTED:
                    break
                better = best_dispersion(rows, solution.weights, search.tol / 100, log if moves else None)
                if abs(better - log) < search.tol / 10:
                    break
                ends[int(better < log)] = log
                if None not in ends and abs(ends[1] - ends[0]) < search.tol / 10:  # type: ignore[operator]
                    break
                moves.append((log, better))
                log = between(extrapolated(*moves[-2:]), better, ends, halve=count % _PATIENCE == 0)
            else:
                solution = solution._replace(status=Status.STEPS_SPENT)  # type: ignore[union-attr]
        except KeyboardInterrupt:
            if not steps:
                raise
            solution = solution._replace(status=Status.INTERRUPTED)  # type: ignore[union-attr]
        assert solution is not None
        assert isinstance(solution.weights, Weights)
        weights = solution.weights.with_learned_dispersion(float(np.sum(rows.weights)))
        return solution._replace(weights=weights, steps=steps, log_prior=log_prior(log))


def _eventless(rows: Observations) -> np.ndarray:
    """Examples of a kind without an event: all those on one side of a value that a column has at every event."""
    events = rows.columns[rows.targets > 0]
    if not len(events):
        return np.ones(len(rows.targets), bool)
    away = rows.columns - events[0]
    one_sided = np.all(away >= 0, axis=0) | np.all(away <= 0, axis=0)
    return np.any((away != 0) & one_sided & np.all(events == events[0], axis=0), axis=1)


def _leverage(rows: Observations, solution: Solution) -> np.ndarray:
    """The part of the examples' information that is in each, times the number of weights that it is about."""
    mean, variance = solution.weights.latent(rows.columns)
    curvature = expected(solution.likelihood, rows.targets, mean + rows.offsets, variance).second
    return np.clip(-rows.weights * np.asarray(curvature) * variance, 0.0, 1.0)

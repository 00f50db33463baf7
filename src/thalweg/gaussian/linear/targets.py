"""How targets depend on the linear predictor: likelihoods, and what is learned of them."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, ClassVar

import jax
import numpy as np
from scipy.optimize import brentq
from scipy.special import expit

from thalweg.gaussian.likelihood import mean_targets
from thalweg.gaussian.likelihoods import BernoulliLogit, GaussianNoise
from thalweg.gaussian.linear.observations import LinearObservations
from thalweg.gaussian.linear.solution import LinearFit, LinearProblem
from thalweg.gaussian.linear.weights import CoefficientMarginals, PriorFrame

__all__ = ["BinaryTargets", "RealTargets", "TargetModel"]

WIDEST_SCALE = 1e7
"""A prior scale, for features in standard deviations, that leaves least squares as they are. Beyond 1e8 the squares of
such weights would lose the prior in rounding."""

ROWS_PER_FEATURE = 10
"""With fewer examples for each feature the scale is learned: a wide prior then predicts badly. At twice as many,
intervals of large effects would be too short."""

PSEUDO_LABELS = 0.75
"""Labels of either kind for an example of leverage 1: half of one makes the mode unbiased (Firth 1993), but the mean,
around which intervals lie, is further out. With 1 an effect of 2 among 20 features is estimated as 1.9."""


class TargetModel(ABC):
    """Base of the kinds of targets: a subclass says what the likelihood is.

    Examples
    --------
    >>> from thalweg.gaussian.linear import CountTargets
    >>> [kind.__name__ for kind in TargetModel.__subclasses__()]
    ['BinaryTargets', 'RealTargets', 'CategoricalTargets', 'CountTargets']
    """

    compresses: ClassVar[bool] = False
    """Whether a stream keeps compressed observations, so that it is exact."""
    jeffreys_widening: ClassVar[float] = 2.0
    """How much wider the prior is where Jeffreys' prior is there too, which leads back to 0."""

    @abstractmethod
    def intercept_only(self, rows: LinearObservations) -> float:
        """The linear predictor of a model with an intercept only, about which the intercept's prior is."""

    @abstractmethod
    def posterior(self, problem: LinearProblem, nearby: LinearFit | None = None) -> LinearFit:
        """The posterior; ``nearby`` is that with another prior, to start from."""

    def with_parameters_of(self, fit: LinearFit) -> "TargetModel":
        """The same with parameters of the likelihood that a fit has learned as given ones."""
        return self

    def allow_for_learning(self, fit: LinearFit, total: float) -> LinearFit:
        """Widen a posterior for parameters that were learned with it, from examples of this total weight."""
        return fit

    def wide_scale(self, rows: LinearObservations, wide: PriorFrame) -> float:
        """The size of plausible effects in the units of the prior; ``wide`` is the frame of a very wide one."""
        return 1.0

    def uses_jeffreys(self, rows: LinearObservations) -> bool:
        """Whether a wide prior is joined by Jeffreys', in the form of :meth:`pseudo_observations`."""
        return False

    def learns_scale(self, rows: LinearObservations) -> bool:
        """Whether few examples are averaged over prior scales: without an event there is nothing to learn one from."""
        return bool(np.any(rows.targets)) or not self.uses_jeffreys(rows)

    def pseudo_observations(self, rows: LinearObservations, fit: LinearFit) -> LinearObservations:
        """The observations, and with them what Jeffreys' prior says near a posterior.

        A likelihood alone, or with a wide prior, leads away from 0, the further the more weights there are for each
        example. To first order that is undone by half an observation for each weight that says as little as it can,
        spread over the examples by their leverage (Firth 1993).
        """
        return rows

    def balance(self, rows: LinearObservations, fit: LinearFit) -> LinearFit:
        """Shift predictions so that they add up to what was seen, and half an event, in spite of pseudo-observations.

        Coefficients are better with those, predictions are not (Puhr and others 2017). Nor are standard deviations:
        the information on the weights grows with the events of the rarer kind, and is taken where predictions are.
        """
        shifted = fit._replace(shift=self.balancing_shift(rows, fit))
        wider = shifted.with_covariance_at_shift(self.pseudo_observations(rows, fit))
        return wider._replace(shift=self.balancing_shift(rows, wider))

    balancing_shift: ClassVar[Callable[..., float]]
    """``balancing_shift(rows, fit)`` is the shift of the linear predictor with which predictions add up to what was
    seen, and half an event."""
    draw: ClassVar[Callable[..., np.ndarray]]
    """``draw(likelihood, z, factors, rng)`` are targets with the linear predictors z; factors multiply the variance of
    noise, one for each row."""
    interval: ClassVar[Callable[..., np.ndarray]]
    """``interval(fit, X, offsets, level)`` are central intervals that hold targets with the probability ``level`` or
    more, one per row of features."""


@dataclass(frozen=True)
class BinaryTargets(TargetModel):
    """0 or 1, with p(1|z) = 1/(1 + e⁻ᶻ).

    Examples
    --------
    >>> rows = LinearObservations(np.ones((3, 1)), np.array([0.0, 1.0, 1.0]), np.ones(3))
    >>> round(BinaryTargets().intercept_only(rows), 4)  # log(2.5/1.5)
    0.5108
    """

    def uses_jeffreys(self, rows: LinearObservations) -> bool:
        """Always."""
        return True

    def pseudo_observations(self, rows: LinearObservations, fit: LinearFit) -> LinearObservations:
        """Three quarters as many labels of either kind as each example has leverage."""
        more = PSEUDO_LABELS * fit.leverages(rows)
        same, other = rows._replace(weights=rows.weights + more), rows._replace(targets=1 - rows.targets, weights=more)
        return same.joined(other)

    def balancing_shift(self, rows: LinearObservations, fit: LinearFit) -> float:
        """Where probabilities add up to the labels seen, and half a label."""
        total, (mean, variance) = np.sum(rows.weights), fit.weights.latent(rows.columns)
        goal = (rows.weights @ rows.targets + 0.5) / (total + 1)
        share = lambda shift: rows.weights @ mean_targets(fit.likelihood, mean + rows.offsets + shift, variance) / total
        return climb(lambda shift: goal - share(shift), 0.0, 1.0, (-np.inf, np.inf), 1e-9)

    def intercept_only(self, rows: LinearObservations) -> float:
        """The logarithm of the odds, with half a label more of each kind, less the mean offset."""
        total, ones = np.sum(rows.weights), rows.weights @ rows.targets
        return float(np.log((ones + 0.5) / (total - ones + 0.5)) - np.sum(rows.weights * rows.offsets) / total)

    def draw(self, likelihood: Any, z: np.ndarray, factors: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """0 or 1."""
        return (rng.uniform(size=z.shape) < expit(z)).astype(int)

    def posterior(self, problem: LinearProblem, nearby: LinearFit | None = None) -> LinearFit:
        """With the logistic likelihood."""
        return problem.solve(BernoulliLogit(), nearby)


@dataclass(frozen=True)
class RealTargets(TargetModel):
    """y = z + noise, the noise being N(0, ``noise_variance``), learned if it is None. The posterior is exact.

    Prior scales are in units of the standard deviation of the noise: the conjugate prior.

    Examples
    --------
    >>> rows = LinearObservations(np.ones((2, 1)), np.array([1.0, 3.0]), np.ones(2))
    >>> round(RealTargets().variance(PriorFrame(None, np.array([1e3])), rows), 3)  # of 1 and 3 around their mean
    1.0
    """

    noise_variance: float | None = None

    compresses: ClassVar[bool] = True

    def intercept_only(self, rows: LinearObservations) -> float:
        """The mean target."""
        weights = rows.weights * rows.columns[:, 0]
        return float(weights @ (rows.targets - rows.offsets) / (weights @ rows.columns[:, 0]))

    def wide_scale(self, rows: LinearObservations, wide: PriorFrame) -> float:
        """The standard deviation of the targets, in units of that of the noise."""
        deviations = rows.targets - rows.offsets - wide.origin(rows.columns)
        total = rows.weights @ deviations**2 / np.sum(rows.weights)
        return float(np.clip(np.sqrt(total / self.variance(wide, rows)), 1.0, WIDEST_SCALE))

    def draw(self, likelihood: Any, z: np.ndarray, factors: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """With the noise."""
        return z + np.sqrt(float(likelihood.variance) * factors)[:, None] * rng.normal(size=z.shape)

    def interval(self, fit: LinearFit, X: np.ndarray, offsets: np.ndarray | float, level: float) -> np.ndarray:
        """Those of Student's t distributions, or of normal ones where the noise is given."""
        shares, parts, means, variances = fit.latents(X, offsets)
        noise = np.array([[float(part.likelihood.variance) * part.inflation] for part in parts])
        freedoms = np.array([part.freedom for part in parts])
        return CoefficientMarginals(shares, means, np.sqrt(variances + noise), freedoms).interval(level)

    def posterior(self, problem: LinearProblem, nearby: LinearFit | None = None) -> LinearFit:
        """The exact one, which the first step reaches from anywhere."""
        variance = self.variance(problem.frame, problem.rows)
        frame = replace(problem.frame, scales=problem.frame.scales * np.sqrt(variance))
        with jax.enable_x64(True):
            likelihood = GaussianNoise(variance)
        return problem._replace(frame=frame).solve(likelihood)

    def allow_for_learning(self, fit: LinearFit, total: float) -> LinearFit:
        """By Student's distributions, if the noise was learned."""
        if self.noise_variance is not None:
            return fit
        return fit._replace(weights=fit.weights.with_learned_noise(total))

    def variance(self, frame: PriorFrame, rows: LinearObservations) -> float:
        """As given, or where the evidence is highest: (‖y − z‖² + ‖u‖²)/n at the best weights u."""
        if self.noise_variance is not None:
            return float(self.noise_variance)
        root = np.sqrt(rows.weights)[:, None]
        targets = rows.targets - rows.offsets - frame.origin(rows.columns)
        examples = root * np.column_stack([frame.design(rows.columns), targets])
        prior = np.eye(len(frame.scales), examples.shape[1])
        # The last entry of the triangular factor is the distance of the targets from the span of the features.
        triangle: Any = np.linalg.qr(np.vstack([examples, prior]), mode="r")
        # Above 0 where all targets are equal, by so much that its inverse and squares are numbers.
        return float(max(triangle[-1, -1] ** 2 / np.sum(rows.weights), np.sqrt(np.finfo(float).tiny)))


def climb(
    slope: Callable[[float], float], start: float, step: float, limits: tuple[float, float], tolerance: float
) -> float:
    """Return the maximum uphill of a start: walk, in steps that double, until the derivative changes its sign.

    Brent's method finds where it does.

    Examples
    --------
    >>> [round(climb(lambda x: 5.25 - x, 0.0, 1.0, limits, 1e-6), 4) for limits in ((-10, 10), (0, 3))]
    [5.25, 3.0]
    """
    slope = cache(slope)
    here, direction = start, np.sign(slope(start))
    while direction:
        there = float(np.clip(here + direction * step, *limits))
        if there == here:
            break
        if slope(there) * direction <= 0:
            return float(brentq(slope, here, there, xtol=tolerance))
        here, step = there, 2 * step
    return here

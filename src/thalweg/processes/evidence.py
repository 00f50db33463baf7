"""The parameters that make rows most probable, and draws of others that are plausible.

A search moves the logarithms of parameters: by Newton's steps where the evidence knows their information, else by
L-BFGS. The logarithms have a weak normal prior around an origin, so that what the rows say nothing about stays there.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
import scipy.optimize

from thalweg.descent import Status
from thalweg.linalg import NotPositiveDefinite
from thalweg.processes.observations import varying
from thalweg.trees import flattened, unflattened

PRIOR_DEVIATION = 3.0
"""Standard deviation of the prior of a logarithm: a factor of 20, so that it costs tenths of a nat at most. With twice
as much, lengthscales of features that say nothing wander off."""

TOLERANCE_NATS = 0.1
"""A gain that is worth another step of a search. Ten times as much shows in the predictions."""

MAX_LOG_MOVE = np.log(1e5)
"""How far a search may take a logarithm from the origin: beyond that arithmetic overflows before anything is gained."""

MAX_LOG_STEP = 2.0
"""How far a step may take a logarithm: the information is that of the neighbourhood. With twice as much, searches jump
over optima."""

INITIAL_DAMPING = 1e-2
"""The share of the curvature that is first added to its diagonal; each step adapts it."""

T_DEGREES = 5.0
"""Degrees of freedom of the t law that approximates the posterior of the parameters: its tails must be the heavier."""


class Optimum(NamedTuple):
    """The best parameters of a search, and how it ended."""

    parameters: Any
    losses: np.ndarray
    """Without the prior."""
    evaluations: int
    status: Status
    origin: Any
    """The centre of the prior."""

    @property
    def loss(self) -> float:
        """−log p(y)."""
        return float(np.sum(self.losses))


class LogPosterior:
    """−log p(y) and a normal prior as a function of the logarithms of free parameters, less those of an origin.

    Lengthscales of features that do not vary, of which rows say nothing, stay at the origin.

    Parameters
    ----------
    evidence
        The rows: ``inputs``, and ``evaluate(parameters)``, which returns an
        :class:`~thalweg.processes.exact.EvidenceEvaluation`.
    origin
        The centre of the prior.
    fixed
        How many of the parameters, from the last, stay at the origin.
    tied
        Whether the entries of a parameter keep their proportions.
    deviation
        That of the prior.
    least_noise
        A lower bound of the last parameter, for a search.
    """

    def __init__(
        self,
        evidence: Any,
        origin: Any,
        *,
        fixed: int = 0,
        tied: bool = False,
        deviation: float = PRIOR_DEVIATION,
        least_noise: float | None = None,
    ) -> None:
        self.evidence, self.origin, self.deviation = evidence, origin, deviation
        self.values, self.centre = flattened(origin), _logs(origin)
        varies, columns, leaves = varying(np.asarray(evidence.inputs)), [], jax.tree.leaves(origin)
        ends = np.cumsum([np.size(leaf) for leaf in leaves])
        for leaf, own in zip(leaves, np.split(np.eye(self.centre.size), ends[:-1], axis=1), strict=True):
            if tied:
                own = np.sum(own, axis=1, keepdims=True)
            elif np.shape(leaf) == varies.shape:
                own = own[:, varies]
            columns.append(own)
        moves = np.concatenate(columns, axis=1)
        self.moves = moves[:, : moves.shape[1] - fixed]
        """How free logarithms move those of all parameters; the last ``fixed`` of them do not move."""
        count = self.moves.shape[1]
        self.lower, self.upper = np.full(count, -MAX_LOG_MOVE), np.full(count, MAX_LOG_MOVE)
        if least_noise is not None:
            self.lower[-1] = min(np.log(least_noise) - self.centre[-1], 0.0)

    def point(self, parameters: Any) -> np.ndarray:
        """Return the free logarithms of parameters."""
        return self.moves.T @ (_logs(parameters) - self.centre) / np.sum(self.moves, axis=0)

    def parameters(self, point: np.ndarray) -> Any:
        """Return the parameters with these free logarithms."""
        return unflattened(self.values * np.exp(self.moves @ point), self.origin)

    def draw(self, rng: np.random.Generator) -> Any:
        """Return the origin with free parameters multiplied at random, by e on average or its inverse."""
        return self.parameters(rng.standard_normal(self.moves.shape[1:]))

    def prior(self, point: np.ndarray) -> float:
        """Return the negative logarithm of the prior, up to a constant."""
        return float(point @ point) / (2 * self.deviation**2)

    def evaluate(self, point: np.ndarray) -> tuple[float, np.ndarray, np.ndarray | None, np.ndarray]:
        """Return the value, its gradient, a positive curvature where it is known, and the losses of the rows.

        The value is infinite, with a gradient of 0, where anything is not finite.
        """
        losses, gradient, information = self.evidence.evaluate(self.parameters(point))
        value = float(np.sum(losses)) + self.prior(point)
        gradient = gradient @ self.moves + point / self.deviation**2
        curvature = None
        if information is not None:
            curvature = self.moves.T @ information @ self.moves + np.eye(len(point)) / self.deviation**2
        usable = np.isfinite(value) and all(part is None or np.all(np.isfinite(part)) for part in (gradient, curvature))
        return (value, gradient, curvature, losses) if usable else (np.inf, 0 * point, curvature, losses)

    def integrated(self, point: np.ndarray) -> float:
        """Return the value with the coefficients of the mean integrated over.

        At their best, as a search has them, they take up some of the scatter, and with ten rows the posterior of the
        noise would be that of eleven (Patterson and Thompson, 1971).
        """
        if np.max(np.abs(point)) > 2 * MAX_LOG_MOVE:
            return np.inf
        try:
            solution = self.evidence.solution(self.parameters(point))
        except NotPositiveDefinite:
            return np.inf
        coefficients = float(np.sum(np.log(np.diagonal(solution.basis_factor))))
        value = float(np.sum(solution.losses)) + solution.weights.shape[1] * coefficients + self.prior(point)
        return value if np.isfinite(value) else np.inf


def _logs(tree: Any) -> np.ndarray:
    return np.log(np.maximum(flattened(tree), np.finfo(float).tiny))


class ParameterSearch:
    """A search for the least value of a log posterior within bounds, which keeps the best point that it saw."""

    def __init__(self, posterior: LogPosterior, keep: Callable[[Optimum], None] | None) -> None:
        self.posterior, self.keep = posterior, keep
        self.lower, self.upper = posterior.lower, posterior.upper
        self.best: tuple[float, np.ndarray, np.ndarray] | None = None
        self.evaluations = 0

    def evaluate(self, point: np.ndarray) -> tuple[float, np.ndarray, np.ndarray | None]:
        """Evaluate a point, and keep it if it is the best so far."""
        value, gradient, curvature, losses = self.posterior.evaluate(point)
        self.evaluations += 1
        if self.best is None or value < self.best[0]:
            self.best = value, point.copy(), losses
            if self.keep is not None and np.isfinite(value):
                self.keep(self.optimum(Status.INTERRUPTED))
        return value, gradient, curvature

    def optimum(self, status: Status) -> Optimum:
        """Return the best so far."""
        assert self.best is not None
        _, point, losses = self.best
        return Optimum(self.posterior.parameters(point), losses, self.evaluations, status, self.posterior.origin)

    def newton(self, point: np.ndarray, first: tuple, max_iter: int, tolerance: float) -> bool:
        """Take damped Newton steps until two in a row gain less than a tolerance; say whether that was reached.

        Each takes one evaluation, and a few of them do what L-BFGS, which finds out about the curvature from gradients,
        needs dozens for. Damping is Marquardt's (1963), adapted by Nielsen's rule (1999). The information says nothing
        of a lengthscale that is too long to matter, and steps would jump over its optimum and back: the curvature that
        gradients show beyond it is added to the diagonal, and forgotten by and by.
        """
        value, gradient, curvature = first
        damping, growth, idle, hidden = INITIAL_DAMPING, 2.0, 0, np.zeros_like(point)
        for _ in range(max_iter):
            step, promised = self._damped_step(point, gradient, curvature + np.diag(hidden), damping)
            if promised < tolerance / 2:
                return True
            ahead = self.evaluate(point + step)
            gain = value - ahead[0]
            idle = idle + 1 if abs(gain) < tolerance else 0
            change = ahead[1] - gradient
            if np.isfinite(ahead[0]) and change @ step > step @ ahead[2] @ step:
                secant = change / np.where(step == 0, np.inf, step)
                hidden = np.maximum(hidden / 3, secant - np.diag(ahead[2]))  # type: ignore[arg-type]
            if gain > 0:
                point, (value, gradient, curvature) = point + step, ahead
                damping *= max(1 / 3, 1 - (2 * min(gain / promised, 1.0) - 1) ** 3)
                growth = 2.0
            else:
                damping, growth = damping * growth, 2 * growth
            if idle == 2:
                return True
        return False

    def _damped_step(
        self, point: np.ndarray, gradient: np.ndarray, curvature: np.ndarray, damping: float
    ) -> tuple[np.ndarray, float]:
        """Return a step within the bounds, and the gain that a parabola promises."""
        free = ~(((point <= self.lower) & (gradient > 0)) | ((point >= self.upper) & (gradient < 0)))
        damped = curvature + np.diag(damping * (1 + np.diag(curvature)))
        step = np.zeros_like(point)
        step[free] = -np.linalg.solve(damped[np.ix_(free, free)], gradient[free])
        step *= min(1.0, MAX_LOG_STEP / max(np.max(np.abs(step), initial=0.0), MAX_LOG_STEP))
        step = np.clip(point + step, self.lower, self.upper) - point
        return step, -float(gradient @ step + step @ curvature @ step / 2)

    def l_bfgs(self, point: np.ndarray, first: tuple, max_iter: int, tolerance: float) -> bool:
        """Search by gradients alone until steps gain less than a tolerance; say whether that was reached.

        As many steps as there are parameters must gain less together, or as many as the search remembers: they find
        out about the curvature.
        """
        together = min(len(point), 10)  # SciPy's L-BFGS remembers ten
        # The first step is as long as the gradient: here an e-fold change of a parameter.
        unit = max(np.max(np.abs(first[1])), tolerance)
        values = [first[0]]

        def scaled(trial: np.ndarray) -> tuple[float, np.ndarray]:
            value, gradient, _ = first if np.array_equal(trial, point) else self.evaluate(trial)
            # A line search backs away from what is finite and large.
            value = value if np.isfinite(value) else abs(first[0]) + 1 / np.finfo(float).eps
            return (value - first[0]) / unit, gradient / unit

        def stop_if_settled(_: np.ndarray) -> None:
            assert self.best is not None
            values.append(self.best[0])
            if len(values) > together and values[-1 - together] - values[-1] < tolerance:
                raise StopIteration

        options: dict[str, Any] = {"bounds": np.stack([self.lower, self.upper], axis=1), "callback": stop_if_settled}
        options["options"] = {"maxiter": max_iter, "maxfun": 2 * max_iter, "ftol": 0.0, "gtol": 0.0}
        scipy.optimize.minimize(scaled, point, jac=True, method="L-BFGS-B", **options)
        return len(values) - 1 < max_iter


def maximise(
    posterior: LogPosterior,
    start: Any,
    *,
    max_iter: int,
    tolerance: float = TOLERANCE_NATS,
    keep: Callable[[Optimum], None] | None = None,
) -> Optimum:
    """Return the parameters that make rows most probable, under a normal prior around an origin.

    Parameters
    ----------
    posterior
        The rows, the prior, and what is free.
    start
        Where to start.
    max_iter, tolerance
        The most steps, and the gain in nats that is worth another one.
    keep
        Is given each optimum so far, so that an interrupt does not lose it.
    """
    search = ParameterSearch(posterior, keep)
    point = np.clip(posterior.point(start), search.lower, search.upper)
    first = search.evaluate(point)
    steps = search.l_bfgs if first[2] is None else search.newton
    settled = not max_iter or (np.isfinite(first[0]) and steps(point, first, max_iter, tolerance))
    return search.optimum(Status.CONVERGED if settled else Status.STEPS_SPENT)


def sample_parameters(
    posterior: LogPosterior, best: Any, count: int, rng: np.random.Generator, stride: int = 1
) -> list[tuple[float, Any]]:
    """Draw parameters from their posterior, each after its value, by a Markov chain that starts at the best.

    Elliptical slice sampling (Murray, Adams and MacKay, 2010; Nishihara, Murray and Adams, 2014) around a t law, made
    of the curvature at the best: each step draws an ellipse through the present point and turns on it until the
    posterior allows it, so that no step is rejected and there is nothing to tune. Of every ``stride`` steps the last is
    a draw.
    """
    mode = posterior.point(best)
    root, whiten = _laplace(posterior, mode)
    square = lambda point: float(np.sum((whiten @ (point - mode)) ** 2))
    degrees = T_DEGREES + len(mode)

    def height(point: np.ndarray) -> tuple[float, float]:
        """The logarithm of the posterior against the t law, and the value."""
        value = posterior.integrated(point)
        return degrees / 2 * np.log1p(square(point) / T_DEGREES) - value, value

    point, (level, value) = mode, height(mode)
    draws, burn_in = [], min(len(mode), count)  # ten steps forget all but a tenth of where the chain was
    for step in range((burn_in + count) * stride):
        # A t law is a mixture of normal ones: the next step knows which.
        width = np.sqrt((T_DEGREES + square(point)) / rng.chisquare(degrees))
        other, goal = width * (root @ rng.standard_normal(len(mode))), level + np.log(rng.uniform())
        angle = rng.uniform(0, 2 * np.pi)
        low, high = angle - 2 * np.pi, angle
        reached = -np.inf
        while reached <= goal and high - low > np.sqrt(np.finfo(float).eps):
            proposed = mode + (point - mode) * np.cos(angle) + other * np.sin(angle)
            reached, here = height(proposed)
            if reached > goal:
                point, level, value = proposed, reached, here
            low, high = (angle, high) if angle < 0 else (low, angle)
            angle = rng.uniform(low, high)
        if step >= burn_in * stride and (step + 1) % stride == 0:
            draws.append((value, posterior.parameters(point)))
    return draws


def _laplace(posterior: LogPosterior, mode: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A square root of the inverse of the curvature, and its inverse."""
    here, change = posterior.evaluate(mode)[1], np.cbrt(np.finfo(float).eps)
    ahead = [posterior.evaluate(mode + change * unit)[1] for unit in np.eye(len(mode))]
    curvature = (np.array(ahead) - here) / change
    # No direction is wider than the prior.
    values, vectors = np.linalg.eigh((curvature + curvature.T) / 2)
    deviations = 1 / np.sqrt(np.maximum(values, 1 / posterior.deviation**2))
    # Symmetric, so that rows that differ little have roots that differ little.
    return vectors * deviations @ vectors.T, vectors / deviations @ vectors.T

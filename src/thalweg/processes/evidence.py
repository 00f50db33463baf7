"""The parameters that make rows most probable, and others that are about as plausible.

The search is a quasi-Newton method on the logarithms of the parameters that keeps the best it saw. The logarithms have
a weak normal prior around an origin, so that what the rows say nothing about stays where it was.
"""

from typing import Any, NamedTuple, Protocol

import jax
import numpy as np
import scipy.optimize

from thalweg.descent import Status
from thalweg.processes.exact import Parameters

_FURTHEST = np.log(1e5)
"""How far a search may take a parameter from where it starts, as a logarithm."""

_LARGEST = 700.0
"""A logarithm of which the exponential is still a number."""

_SPREAD = 3.0
"""Standard deviation of the weak normal prior of each logarithm around its start."""

_DIFFERENCE = 0.03
"""Of logarithms, for second derivatives."""

_TAIL = 5.0
"""Degrees of freedom of the t law that approximates the posterior of the parameters."""

_FORGOTTEN = 6
"""Steps of the chain before the first draw: it starts from the best, and one step all but forgets where it was."""


class Optimum(NamedTuple):
    """What a search found, and how it ended."""

    parameters: Parameters
    loss: float
    steps: int
    status: Status
    origin: Parameters
    """The point that the prior is around."""


class Searched(Protocol):
    """What a search needs of rows."""

    @property
    def inputs(self) -> Any:
        """Where they are."""

    def loss_and_slope(self, parameters: Parameters) -> tuple[Any, Parameters]:
        """−log p(y), and its derivative in the logarithms of all parameters."""


def varying(inputs: np.ndarray) -> np.ndarray:
    """Which features differ between rows.

    Examples
    --------
    >>> varying(np.array([[1.0, 2.0], [1.0, 3.0]]))
    array([False,  True])
    """
    return np.any(inputs != inputs[:1], axis=0)


class Landscape:
    """−log p(y) and a weak prior, as a function of the logarithms of the parameters that are free.

    Lengthscales of features that do not vary, of which the rows say nothing, are held where the prior has them.
    """

    def __init__(self, rows: Any, origin: Parameters, learn_noise: bool) -> None:
        self.rows, self.origin, self.learn_noise = rows, origin, learn_noise
        tree = self._free(origin)
        self.structure = jax.tree.structure(tree)
        self.shapes = [np.shape(leaf) for leaf in jax.tree.leaves(tree)]
        self.ends = np.cumsum([int(np.prod(shape)) for shape in self.shapes])[:-1]
        varies = varying(rows.inputs) if isinstance(rows.inputs, np.ndarray) else np.ones(rows.inputs.shape[1], bool)
        free = [varies if shape == varies.shape else np.ones(int(np.prod(shape)), bool) for shape in self.shapes]
        self.free = np.flatnonzero(np.concatenate(free))
        self.held = _logs(self._flat(tree))
        self.centre = self.held[self.free]

    def _free(self, parameters: Parameters) -> Any:
        return parameters if self.learn_noise else parameters.kernel

    def _flat(self, tree: Any) -> np.ndarray:
        return np.concatenate([np.ravel(np.asarray(leaf, np.float64)) for leaf in jax.tree.leaves(tree)])

    def logs(self, parameters: Parameters) -> np.ndarray:
        """The logarithms of what is free."""
        return _logs(self._flat(self._free(parameters)))[self.free]

    def parameters(self, logs: np.ndarray) -> Parameters:
        """What has these logarithms."""
        everything = self.held.copy()
        everything[self.free] = logs
        parts = zip(np.split(np.exp(np.clip(everything, -_LARGEST, _LARGEST)), self.ends), self.shapes, strict=True)
        tree = jax.tree.unflatten(self.structure, [part.reshape(shape) for part, shape in parts])
        return tree if self.learn_noise else Parameters(tree, self.origin.noise)

    def value(self, logs: np.ndarray) -> float:
        """Infinite where it cannot be computed."""
        value = float(self.rows.solution(self.parameters(logs)).loss)
        away = (logs - self.centre) / _SPREAD
        return value + float(away @ away) / 2 if np.isfinite(value) else np.inf

    def value_and_slope(self, logs: np.ndarray) -> tuple[float, np.ndarray]:
        """Infinite, with a slope of 0, where either cannot be computed."""
        value, slope = self.rows.loss_and_slope(self.parameters(logs))
        away = (logs - self.centre) / _SPREAD
        total, pull = float(value) + float(away @ away) / 2, self._flat(self._free(slope))[self.free] + away / _SPREAD
        usable = np.isfinite(total) and np.all(np.isfinite(pull))
        return (total, pull) if usable else (np.inf, np.zeros_like(logs))


def _logs(values: np.ndarray) -> np.ndarray:
    return np.log(np.maximum(values, np.finfo(np.float64).tiny))


def maximise(
    rows: Searched,
    start: Parameters,
    origin: Parameters,
    max_iter: int,
    learn_noise: bool,
    least_noise: float,
    worth: float = 1e-3,
    unit: float = 1.0,
    furthest: float | None = None,
) -> Optimum:
    """Make the rows most probable, under a weak prior around an origin, until a step gains less than it is worth.

    The first step is as long as the derivative in units of ``unit`` nats. A search goes no further than ``furthest``
    from its start, in logarithms.
    """
    landscape = Landscape(rows, origin, learn_noise)
    centre = landscape.centre
    best: tuple[float, np.ndarray] = (np.inf, landscape.logs(start))
    evaluations = 0

    def noted(logs: np.ndarray) -> tuple[float, np.ndarray]:
        nonlocal best, evaluations
        evaluations += 1
        total, pull = landscape.value_and_slope(logs)
        if total < best[0]:
            best = total, logs.copy()
        total = total if np.isfinite(total) else 1e10 + abs(np.nan_to_num(best[0], posinf=0.0))
        return total / unit, pull / unit

    lower, upper = centre - _FURTHEST, centre + _FURTHEST
    if furthest is not None:
        lower, upper = np.maximum(lower, best[1] - furthest), np.minimum(upper, best[1] + furthest)
    elif learn_noise:  # the last of them
        lower[-1] = min(np.log(least_noise), centre[-1])
    # SciPy's tolerance is relative to a loss that is about as large as the number of rows.
    ends = {"ftol": worth / len(rows.inputs), "gtol": 1e-2 / unit}
    options = {"maxiter": max_iter, "maxfun": 2 * max_iter, "maxls": 8, **ends}
    try:
        ended = scipy.optimize.minimize(
            noted,
            np.clip(best[1], lower, upper),
            jac=True,
            bounds=np.stack([lower, upper], 1),
            method="L-BFGS-B",
            options=options,
        )
        status = Status.CONVERGED if ended.success and np.isfinite(best[0]) else Status.STEPS_SPENT
    except KeyboardInterrupt:
        status = Status.INTERRUPTED
    return Optimum(landscape.parameters(best[1]), best[0], evaluations, status, origin)


def plausible(
    landscape: Landscape, best: Parameters, count: int, rng: np.random.Generator
) -> list[tuple[float, Parameters]]:
    """Parameters drawn from their posterior, by a Markov chain that starts from the best ones, after its value there.

    Elliptical slice sampling (Murray, Adams and MacKay, 2010; Nishihara, Murray and Adams, 2014) around a t law, made
    of the curvature at the best: each step draws an ellipse through the present point and turns on it until the
    posterior allows it, so no step is rejected and there is nothing to tune. Where the law is about right, draws are
    nearly independent.
    """
    mode = landscape.logs(best)
    root, whiten = _laplace(landscape, mode)
    square = lambda logs: float(np.sum((whiten @ (logs - mode)) ** 2))
    degrees = _TAIL + len(mode)

    def height(logs: np.ndarray) -> tuple[float, float]:
        """The posterior against the approximation, as a logarithm, and the value."""
        value = landscape.value(logs)
        return degrees / 2 * np.log1p(square(logs) / _TAIL) - value, value

    place, (level, loss) = mode, height(mode)
    drawn = []
    for step in range(_FORGOTTEN + count):
        # A t law is a mixture of normal ones: the next step knows which.
        width = np.sqrt((_TAIL + square(place)) / rng.chisquare(degrees))
        other, goal = width * (root @ rng.standard_normal(len(mode))), level + np.log(rng.uniform())
        angle = rng.uniform(0, 2 * np.pi)
        low, high = angle - 2 * np.pi, angle
        while True:
            proposed = mode + (place - mode) * np.cos(angle) + other * np.sin(angle)
            reached, value = height(proposed)
            if reached > goal or high - low < 1e-6:
                break
            low, high = (angle, high) if angle < 0 else (low, angle)
            angle = rng.uniform(low, high)
        if reached > goal:
            place, level, loss = proposed, reached, value
        if step >= _FORGOTTEN:
            drawn.append((loss, landscape.parameters(place)))
    return drawn


def _laplace(landscape: Landscape, mode: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A square root of the inverse of the curvature, and its inverse."""
    _, here = landscape.value_and_slope(mode)
    ahead = [landscape.value_and_slope(mode + _DIFFERENCE * unit)[1] for unit in np.eye(len(mode))]
    curvature = (np.array(ahead) - here) / _DIFFERENCE
    # No direction is wider than the prior.
    values, vectors = np.linalg.eigh((curvature + curvature.T) / 2)
    deviations = 1 / np.sqrt(np.maximum(values, 1 / _SPREAD**2))
    # Symmetric, so that rows that differ little have roots that differ little.
    return vectors * deviations @ vectors.T, vectors / deviations @ vectors.T

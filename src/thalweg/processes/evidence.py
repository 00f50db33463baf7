"""The parameters that make rows most probable, and others that are about as plausible.

A search moves the logarithms of the parameters and keeps the best it saw: by Newton's steps where rows tell their
information, else by a quasi-Newton method. The logarithms have a weak normal prior around an origin, so that what the
rows say nothing about stays where it was.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import numpy as np
import scipy.optimize

from thalweg.descent import Status
from thalweg.kernels import Kernel
from thalweg.processes.exact import Parameters, unflattened

_FURTHEST = np.log(1e5)
"""How far a search may take a parameter from where it starts, as a logarithm."""

_LARGEST = 700.0
"""A logarithm of which the exponential is still a number."""

_SPREAD, _WIDE = 3.0, 100.0
"""Standard deviations of the normal prior of each logarithm around its start: a weak one, and next to none."""

_ADDED, _MORE, _LEAST_CHANGE = 1e-2, 2.0, 1 / 3
"""The share of the curvature that is first added to its diagonal; what it is multiplied by after a step that lost,
twice that after another one, and at least after one that gained."""

_REMEMBERED = 0.3
"""The share of the curvature that a step found hidden which the step after the next still counts with."""

_STRIDE = 2.0
"""How far a step may take the logarithm of a parameter."""

_HOPE = 3.0
"""A search may gain so many times what its next step promises."""

_IDLE = 2
"""Steps in turn that gain less than is worth another one."""

_SETTLED = 0.02
"""A gain in nats that is worth another step where a search settles."""

_DIFFERENCE = 0.03
"""Of logarithms, for second derivatives."""

_TAIL = 5.0
"""Degrees of freedom of the t law that approximates the posterior of the parameters."""

_FORGOTTEN = 6
"""Draws that are left away: the chain starts from the best, and one step all but forgets where it was."""


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


@runtime_checkable
class Informed(Searched, Protocol):
    """Rows that tell the curvature too."""

    def knows(self, kernel: Kernel) -> bool:
        """Whether they do for such a kernel."""

    def loss_slope_and_information(self, parameters: Parameters) -> tuple[Any, Parameters, Any]:
        """−log p(y), its derivative in the logarithms of all parameters, and their information, the noise last."""


def varying(inputs: np.ndarray) -> np.ndarray:
    """Which features differ between rows."""
    return np.any(inputs != inputs[:1], axis=0)


class Landscape:
    """−log p(y) and a weak prior, as a function of the logarithms of the parameters that are free.

    Lengthscales of features that do not vary, of which the rows say nothing, are held where the prior has them.
    """

    def __init__(self, rows: Any, origin: Parameters, learn_noise: bool, spread: float = _SPREAD) -> None:
        self.rows, self.origin, self.learn_noise, self.spread = rows, origin, learn_noise, spread
        tree = self._free(origin)
        shapes = [np.shape(leaf) for leaf in jax.tree.leaves(tree)]
        varies = varying(rows.inputs) if isinstance(rows.inputs, np.ndarray) else np.ones(rows.inputs.shape[1], bool)
        free = [varies if shape == varies.shape else np.ones(int(np.prod(shape)), bool) for shape in shapes]
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
        tree = unflattened(np.exp(np.clip(everything, -_LARGEST, _LARGEST)), self._free(self.origin))
        return tree if self.learn_noise else Parameters(tree, self.origin.noise)

    def integrated(self, logs: np.ndarray) -> float:
        """With the coefficients of the mean integrated over; infinite where it cannot be computed.

        At their best, as a search has them, they take up some of the scatter, and with ten rows the posterior of the
        noise would be that of eleven (Patterson and Thompson, 1971).
        """
        if np.max(np.abs(logs - self.centre)) > 2 * _FURTHEST:  # where arithmetic overflows
            return np.inf
        found = self.rows.solution(self.parameters(logs))
        value = float(found.loss) + self.rows.targets.shape[1] * float(np.sum(np.log(np.diag(found.basis_factor))))
        away = (logs - self.centre) / self.spread
        return value + float(away @ away) / 2 if np.isfinite(value) else np.inf

    def value_and_slope(self, logs: np.ndarray) -> tuple[float, np.ndarray]:
        """Infinite, with a slope of 0, where either cannot be computed."""
        return self._with_prior(logs, *self.rows.loss_and_slope(self.parameters(logs)))

    def value_slope_and_curvature(self, logs: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        """Those and an approximate curvature that is positive, by the information that the rows give."""
        loss, slope, information = self.rows.loss_slope_and_information(self.parameters(logs))
        value, pull = self._with_prior(logs, loss, slope)
        curvature = np.eye(len(logs)) / self.spread**2
        if np.isfinite(value):
            curvature = curvature + np.asarray(information)[np.ix_(self.free, self.free)]
        usable = np.all(np.isfinite(curvature))
        return (value, pull, curvature) if usable else (np.inf, np.zeros_like(pull), np.zeros_like(curvature))

    def _with_prior(self, logs: np.ndarray, loss: Any, slope: Parameters) -> tuple[float, np.ndarray]:
        away = (logs - self.centre) / self.spread
        total = float(loss) + float(away @ away) / 2
        pull = self._flat(self._free(slope))[self.free] + away / self.spread
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
    hopeless: float = np.inf,
    spread: float = _SPREAD,
    by_slopes: bool = False,
    bold: bool = False,
) -> Optimum:
    """Make the rows most probable, under a normal prior around an origin, until a step gains less than it is worth.

    Where rows tell no more than slopes, the first step is as long as the derivative in units of ``unit`` nats. A search
    goes no further than ``furthest`` from its start, in logarithms, and ends early where its steps promise too little
    to come below a ``hopeless`` value. A ``bold`` one may overshoot, which takes it away from where it would stay.
    """
    landscape = Landscape(rows, origin, learn_noise, spread)
    begin = landscape.logs(start)
    lower, upper = landscape.centre - _FURTHEST, landscape.centre + _FURTHEST
    if furthest is not None:
        lower, upper = np.maximum(lower, begin - furthest), np.minimum(upper, begin + furthest)
    elif learn_noise:  # the last of them
        lower[-1] = min(np.log(least_noise), landscape.centre[-1])
    informed = not by_slopes and isinstance(rows, Informed) and rows.knows(start.kernel)
    kind = Scoring if informed else QuasiNewton
    search: Search = kind(landscape, lower, upper, max_iter, worth, unit, hopeless, bold)
    try:
        settled = search.run(np.clip(begin, lower, upper))
        status = Status.CONVERGED if settled and np.isfinite(search.best[0]) else Status.STEPS_SPENT
    except KeyboardInterrupt:
        status = Status.INTERRUPTED
    loss, logs = search.best
    return Optimum(landscape.parameters(logs if len(logs) else begin), loss, search.evaluations, status, origin)


def settled(rows: Searched, found: Optimum, max_iter: int, learn_noise: bool, least_noise: float) -> Optimum:
    """Where the rows are most probable, with next to no prior, from what was found with one.

    The average information may be ten times the curvature along a ridge, and then promises next to nothing of steps
    that are worth some nats: a search by slopes alone goes on from where Newton's steps end.
    """
    options = (found.origin, max_iter, learn_noise, least_noise)
    near = maximise(rows, found.parameters, *options, _SETTLED, spread=_WIDE)
    if near.status is Status.INTERRUPTED:
        return near
    there = maximise(rows, near.parameters, *options, _SETTLED / 2, spread=_WIDE, by_slopes=True)
    status = there.status if there.status is Status.INTERRUPTED else near.status
    return there._replace(steps=near.steps + there.steps, status=status)


@dataclass
class Search:
    """A search of a landscape within bounds, which keeps the best that it saw."""

    landscape: Landscape
    lower: np.ndarray
    upper: np.ndarray
    max_iter: int
    worth: float
    unit: float
    hopeless: float
    bold: bool = False
    evaluations: int = 0
    best: tuple[float, np.ndarray] = (np.inf, np.zeros(0))

    def run(self, logs: np.ndarray) -> bool:
        """Search from a point; whether it settled."""
        raise NotImplementedError

    def _seen(self, value: float, logs: np.ndarray) -> None:
        self.evaluations += 1
        if value < self.best[0]:
            self.best = value, logs.copy()


class QuasiNewton(Search):
    """L-BFGS-B: for rows of which no more than slopes are known."""

    def run(self, logs: np.ndarray) -> bool:
        """Search from a point; whether it settled."""
        # SciPy's tolerance is relative to a loss that is about as large as the number of rows.
        ends = {"ftol": self.worth / len(self.landscape.rows.inputs), "gtol": 1e-2 / self.unit}
        options = {"maxiter": self.max_iter, "maxfun": 2 * self.max_iter, "maxls": 8, **ends}
        bounds = np.stack([self.lower, self.upper], 1)
        found = scipy.optimize.minimize(self._scaled, logs, jac=True, bounds=bounds, method="L-BFGS-B", options=options)
        return bool(found.success)

    def _scaled(self, logs: np.ndarray) -> tuple[float, np.ndarray]:
        total, pull = self.landscape.value_and_slope(logs)
        self._seen(total, logs)
        total = total if np.isfinite(total) else 1e10 + abs(np.nan_to_num(self.best[0], posinf=0.0))
        return total / self.unit, pull / self.unit


class Scoring(Search):
    """Newton's steps with the average information as the curvature, shortened where they promise too much.

    Each takes one evaluation, and a few of them do what a quasi-Newton method, which has to find out about the
    curvature from the slopes it sees, needs dozens for. A share of the curvature is added to its diagonal until a step
    gains (Levenberg, 1944; Marquardt, 1963). The information says nothing of a lengthscale that is long enough not to
    matter, and steps would jump over the best one and back: what slopes changed by beyond it is added too, if not bold.
    """

    def run(self, logs: np.ndarray) -> bool:
        """Search from a point; whether it settled."""
        value, slope, curvature = self._evaluated(logs)
        added, more, idle, hidden = _ADDED, _MORE, 0, np.zeros_like(logs)
        for _ in range(self.max_iter):
            step, promised = self._step(logs, slope, curvature + np.diag(hidden), added)
            hoped = self._step(logs, slope, curvature, added)[1] if np.isfinite(self.hopeless) else promised
            if not np.isfinite(value) or promised < self.worth / 2 or value - _HOPE * hoped > self.hopeless:
                return True
            ahead = self._evaluated(logs + step)
            gain = value - ahead[0]
            idle = idle + 1 if abs(gain) < self.worth else 0
            change, known = ahead[1] - slope, ahead[2] if gain > 0 else curvature
            hidden = hidden if gain <= 0 else _REMEMBERED * hidden
            if not self.bold and np.isfinite(ahead[0]) and change @ step > step @ known @ step:
                hidden = np.maximum(hidden, change / np.where(step == 0, np.inf, step) - np.diag(known))
            if gain > 0:
                logs, (value, slope, curvature) = logs + step, ahead
                # Nielsen's rule (1999): little is changed after a step that gained about half of what it promised.
                added *= np.clip(1 - (2 * min(gain / promised, 1.0) - 1) ** 3, _LEAST_CHANGE, 2.0)
                more = _MORE
            else:
                added, more = added * more, 2 * more
            if idle == _IDLE:
                return True
        return False

    def _step(
        self, logs: np.ndarray, slope: np.ndarray, curvature: np.ndarray, added: float
    ) -> tuple[np.ndarray, float]:
        """A step within the bounds, and the gain that a parabola promises of it."""
        free = ~(((logs <= self.lower) & (slope > 0)) | ((logs >= self.upper) & (slope < 0)))
        raised = curvature + np.diag(added * (1 + np.diag(curvature)))
        step = np.zeros_like(logs)
        step[free] = -np.linalg.solve(raised[np.ix_(free, free)], slope[free])
        step *= min(1.0, _STRIDE / max(np.max(np.abs(step), initial=0.0), _STRIDE))
        step = np.clip(logs + step, self.lower, self.upper) - logs
        return step, -float(slope @ step + step @ curvature @ step / 2)

    def _evaluated(self, logs: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        found = self.landscape.value_slope_and_curvature(logs)
        self._seen(found[0], logs)
        return found


def plausible(
    landscape: Landscape, best: Parameters, count: int, rng: np.random.Generator, every: int = 1
) -> list[tuple[float, Parameters]]:
    """Parameters drawn from their posterior, by a Markov chain that starts from the best ones, after its value there.

    Of every so many steps of the chain the last is a draw.

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
        value = landscape.integrated(logs)
        return degrees / 2 * np.log1p(square(logs) / _TAIL) - value, value

    place, (level, loss) = mode, height(mode)
    drawn = []
    for step in range((_FORGOTTEN + count) * every):
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
        if step >= _FORGOTTEN * every and (step + 1) % every == 0:
            drawn.append((loss, landscape.parameters(place)))
    return drawn


def _laplace(landscape: Landscape, mode: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A square root of the inverse of the curvature, and its inverse."""
    _, here = landscape.value_and_slope(mode)
    ahead = [landscape.value_and_slope(mode + _DIFFERENCE * unit)[1] for unit in np.eye(len(mode))]
    curvature = (np.array(ahead) - here) / _DIFFERENCE
    # No direction is wider than the prior.
    values, vectors = np.linalg.eigh((curvature + curvature.T) / 2)
    deviations = 1 / np.sqrt(np.maximum(values, 1 / landscape.spread**2))
    # Symmetric, so that rows that differ little have roots that differ little.
    return vectors * deviations @ vectors.T, vectors / deviations @ vectors.T

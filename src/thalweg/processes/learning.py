"""The kernel that makes the bound highest: where to start, and the climb from there."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import numpy as np
import scipy.optimize
from scipy.linalg import block_diag
from scipy.linalg.blas import dsymm, dsyrk
from scipy.spatial.distance import pdist

from thalweg.descent import Status
from thalweg.kernels import Gaussian, Kernel, Stationary
from thalweg.processes.covariance import log_gradient
from thalweg.processes.inference import ClassifierSettings, Found, Problem, infer

_FURTHEST = np.log(1e4)
"""How far learning may take a parameter of the kernel from where it starts, as a logarithm."""

_RESTART_SPREAD = np.log(4.0)
"""Standard deviation of the logarithm of the parameters at a restart."""

_PART, _ALL = 256, 512
"""Of more rows than ``_ALL`` so many are enough to compare starting points on."""

_DISTANCES = 300
"""Rows among which distances are measured."""

_ALIKE = 1.5
"""A ratio of standard deviations below which features have one scale."""

_LOOSE = 0.1
"""The tolerance, and the gain in nats that is worth another step, where starting points are compared."""

_ON_THE_WAY = 5.0
"""How many times wider the tolerance is for posteriors on the way to the best kernel."""


def default_kernel(inputs: np.ndarray, kind: type[Stationary] = Gaussian) -> Kernel:
    """A kernel with the median distance between rows as lengthscale, and variance 10.

    Examples
    --------
    >>> default_kernel(np.array([[0.0], [2.0], [2.0]]))
    Gaussian(lengthscale=2, variance=10)
    """
    return starting_kernels(inputs, kind)[0]


def starting_kernels(inputs: np.ndarray, kind: type[Stationary] = Gaussian) -> list[Kernel]:
    """The default kernel, and if features differ in scale another with a lengthscale for each.

    Those are as the standard deviations are: the kernel of standardised features.

    Examples
    --------
    >>> starting_kernels(np.array([[0.0, 0.0], [2.0, 200.0]]))[1]
    Gaussian(lengthscale=[2.82843, 282.843], variance=10)
    """
    # Of rows that differ, so that a row given twice and a row of weight two lead to the same kernel.
    rows = np.unique(inputs, axis=0)
    rows = rows[0] - rows  # an offset costs digits
    unit = np.max(np.abs(rows)) or 1.0  # squares of very large or small numbers have none
    rows = rows / unit
    spread = rows.std(axis=0)
    varying = spread > 0
    scales: list[np.ndarray] = [np.ones(())]
    if np.any(varying) and spread.max() > _ALIKE * spread[varying].min():
        scales = [np.ones(len(spread)), np.where(varying, spread, 1.0)]
    rows = rows[np.random.default_rng(0).permutation(len(rows))[:_DISTANCES]]
    with jax.enable_x64(True):
        lengths = [jax.device_put(unit * _median(rows / scale) * scale) for scale in scales]  # compiles nothing
        return [kind(lengthscale=length, variance=jax.device_put(np.array(10.0))) for length in lengths]


def _median(rows: np.ndarray) -> float:
    distances = pdist(rows)
    return float(np.median(distances[distances > 0])) if np.any(distances > 0) else 1.0


class Learned(NamedTuple):
    """A kernel, its posterior, and the rows that the posterior is of."""

    kernel: Kernel
    found: Found
    rows: np.ndarray


class Search:
    """Kernels tried on some rows of ``data``, all inputs, targets and weights, and the best of them.

    If ``tied``, the entries of a parameter keep their proportions.

    Examples
    --------
    >>> from thalweg.gaussian import BernoulliLogit
    >>> data = np.array([[-1.0], [1.0]]), np.array([0.0, 1.0]), None
    >>> with jax.enable_x64(True):
    ...     search = Search(np.arange(2), data, ClassifierSettings(BernoulliLogit(), learn=False), 0, True)
    ...     search.go(default_kernel(data[0]), print)
    2 rows, start 1, bound -1.76, best -1.76: Gaussian(lengthscale=2, variance=10)
    """

    def __init__(self, rows: np.ndarray, data: tuple, settings: ClassifierSettings, seed: int, tied: bool) -> None:
        inputs, targets, weights = data
        self.problem = Problem.of(inputs[rows], targets[rows], None if weights is None else weights[rows])
        self.rows, self.settings, self.seed, self.tied = rows, settings, seed, tied
        self.best: Any = None
        self.starts = 0

    def go(self, kernel: Kernel, note: Callable[[str], None], start: Any = None) -> None:
        """Learn from a kernel on, or take it as it is; ``start`` is the posterior to begin with."""
        self.note, self.starts = note, self.starts + 1
        self._climb(kernel, start) if self.settings.learn else self.infer(kernel, start)

    def infer(self, kernel: Kernel, start: Any) -> Found:
        """Find the posterior for a kernel, and keep it if it is the best. An interruption is passed on."""
        found = infer(kernel, self.problem, self.settings, self.seed, start)
        if self.best is None or not found.bound <= self.best.found.bound:
            self.best = Learned(kernel, found, self.rows)
        best = self.best.found.bound
        self.note(f"{len(self.rows)} rows, start {self.starts}, bound {found.bound:.2f}, best {best:.2f}: {kernel}")
        if found.status is Status.INTERRUPTED:
            raise KeyboardInterrupt
        return found

    def _climb(self, kernel: Kernel, start: Any) -> None:
        """Maximise the bound over the logarithms of the kernel's parameters, from where they are."""
        leaves, structure = jax.tree.flatten(kernel)
        shapes = [() if self.tied else np.shape(leaf) for leaf in leaves]
        ends = np.cumsum([int(np.prod(shape)) for shape in shapes])
        count, rows = int(ends[-1]), len(self.rows)
        sizes = [np.size(leaf) for leaf in leaves]
        ties = block_diag(*(np.ones((1, size)) if self.tied else np.eye(size) for size in sizes))

        def moved(logs: np.ndarray) -> Kernel:
            parts = zip(leaves, np.split(np.exp(logs), ends[:-1]), shapes, strict=True)
            return jax.tree.unflatten(
                structure, [np.asarray(leaf * part.reshape(shape)) for leaf, part, shape in parts]
            )

        def bound(logs: np.ndarray) -> tuple[Found, np.ndarray, np.ndarray]:
            """The posterior, the derivative of −bound, and at first about the second one."""
            nonlocal start
            proposed = moved(logs)
            found = start = self.infer(proposed, start)
            weights, precision = found.weights[:, None], found.precision
            # At the best posterior its own part vanishes, and this is the derivative of −bound in the covariance.
            pull = dsyrk(-0.5, weights, 0.5, precision, lower=1)
            pull = pull + np.tril(pull, -1).T
            slope, changes = log_gradient(proposed, self.problem.inputs, pull, weights if logs is origin else None)
            gradient = ties @ slope
            curvature = np.eye(count) * rows / 3
            if changes is not None:
                # The average information, as if targets had Gaussian noise of the sites' size.
                change = changes[:, :, 0] @ ties.T
                curvature = change.T @ dsymm(0.5, precision, change, lower=1)
            return found, gradient, curvature

        origin = np.zeros(count)
        first, rise, curvature = bound(origin)
        metric = np.linalg.inv(np.linalg.cholesky(curvature + np.eye(count))).T
        # Newton's step by this curvature is the first, but an e-fold one at most.
        unit = max(1.0, float(np.max(np.abs(metric @ (metric.T @ rise)))))

        def loss(place: np.ndarray) -> tuple[float, np.ndarray]:
            logs = np.clip(metric @ place, -_FURTHEST, _FURTHEST)
            found, gradient, _ = bound(logs) if np.any(place) else (first, rise, None)
            return (first.bound - found.bound) / unit, metric.T @ gradient / unit

        worth = min(self.settings.tol / _ON_THE_WAY, _LOOSE) / unit
        scipy.optimize.minimize(
            loss,
            origin,
            jac=True,
            method="L-BFGS-B",
            bounds=[(-1e9, 1e9)] * count,  # none, but with some the first step is not shortened
            options={"maxiter": 50, "ftol": worth, "gtol": np.sqrt(worth / unit)},
        )


def learn(kernels: list[Kernel], data: tuple, settings: ClassifierSettings, seed: int, tied: bool) -> Learned:
    """The best kernel that learning finds; without learning the best of those given.

    Starting points are compared loosely, on a part of many rows, and the best of them goes on with all. An interruption
    keeps the best that was found before.
    """
    everything = np.arange(len(data[1]))
    part = everything if len(everything) <= _ALL else _part(data[1], seed)
    rng = np.random.default_rng(seed)
    away = lambda leaf: np.exp(_RESTART_SPREAD * rng.standard_normal(() if tied else np.shape(leaf)))
    search = Search(part, data, replace(settings, tol=max(_LOOSE, _ON_THE_WAY * settings.tol)), seed, tied)
    polish = Search(everything, data, replace(settings, tol=_ON_THE_WAY * settings.tol), seed, tied)
    with line_of_progress(settings.verbose) as note:
        try:
            for kernel in kernels:
                search.go(kernel, note)
            for _ in range(settings.restarts if settings.learn else 0):
                search.go(jax.tree.map(lambda leaf: np.asarray(leaf * away(leaf)), search.best.kernel), note)
            kernel, found, _ = search.best
            polish.go(kernel, note, found if part is everything else None)
            polish.settings = settings
            polish.infer(polish.best.kernel, polish.best.found)
        except KeyboardInterrupt:
            best = polish.best or search.best
            if best is None:
                raise
            return best._replace(found=replace(best.found, status=Status.INTERRUPTED))
    return polish.best


def _part(targets: np.ndarray, seed: int) -> np.ndarray:
    """Some rows, a quarter of them at least of the rarer half of the targets if there are as many."""
    order = np.random.default_rng([seed, 1]).permutation(len(targets))
    above = targets[order] > np.mean(targets)
    rare = order[above if 2 * np.sum(above) < len(order) else ~above]
    few = rare[: max(_PART // 4, _PART * len(rare) // len(order))]
    rest = order[~np.isin(order, rare)]
    return np.sort(np.concatenate([few, rest[: _PART - len(few)]]))


@contextmanager
def line_of_progress(shown: bool) -> Iterator[Callable[[str], None]]:
    """A line on the screen, and the function that writes on it."""
    if not shown:
        yield lambda text: None
        return
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    with Progress(SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()) as bar:
        task = bar.add_task("learning", total=None)
        yield lambda text: bar.update(task, description=text)

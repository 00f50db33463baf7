"""Seven methods on one finite sum, from one start, with steps from the data: the demo's common part."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree
from matplotlib.axes import Axes

from thalweg.descent import (
    FISTA,
    AdaptiveRestart,
    HeavyBall,
    InverseTime,
    Momentum,
    Nesterov,
    Term,
    Tolerance,
    Work,
    minimize,
)
from thalweg.experiments import plots
from thalweg.oracles import SVRG, Exact, MiniBatch, Oracle

_BATCH = 8
_RECORDS = 200
# Rounding decides what is below; on a logarithmic axis it would only draw noise.
_FLOOR = 1e-12


@dataclass(frozen=True)
class Problem:
    """Minimise the mean of ``losses(x, data)`` plus a term; ``optimum`` is known from elsewhere.

    ``smoothness`` bounds the curvature of the mean of the losses, ``roughest`` that of a single one.
    """

    losses: Callable[[PyTree, PyTree], Float[Array, " n"]]
    data: tuple[Array, ...]
    term: Term
    x0: PyTree[Array]
    smoothness: float
    roughest: float
    optimum: float

    @property
    def examples(self) -> int:
        """n."""
        return len(self.data[0])

    def objective(self, x: PyTree[Array]) -> Array:
        """The mean loss plus the term."""
        return self.losses(x, self.data).mean() + self.term.value(x)

    @property
    def batch_smoothness(self) -> float:
        """The smoothness that matters for a mini-batch: between that of one example and that of the mean."""
        n, b = self.examples, _BATCH
        return n * (b - 1) / (b * (n - 1)) * self.smoothness + (n - b) / (b * (n - 1)) * self.roughest


@dataclass(frozen=True)
class Lane:
    """How one method ran: its relative objective gap after so many passes over the data, and how it ended."""

    name: str
    passes: np.ndarray
    gaps: np.ndarray
    x: PyTree[np.ndarray]
    steps: int
    seconds: float
    status: str

    def passes_to(self, gap: float) -> float:
        """Return the passes it took to reach the gap, NaN if it did not."""
        reached = np.flatnonzero(self.gaps <= gap)
        return float(self.passes[reached[0]]) if reached.size else np.nan


def race(problem: Problem, *, passes: int, seed: int) -> list[Lane]:
    """Give every method ``passes`` passes over the data, or fewer if it converges."""
    objective = jax.jit(problem.objective)
    start = float(objective(problem.x0))

    def gap(x: PyTree[Array]) -> float:
        return (float(objective(x)) - problem.optimum) / (start - problem.optimum)

    return [_run(problem, method, gap, passes, seed) for method in _methods(problem)]


@dataclass(frozen=True)
class _Method:
    name: str
    oracle: Oracle
    step: Any
    momentum: Momentum | None = None
    stride: int = 1


def _methods(problem: Problem) -> list[_Method]:
    mean = lambda x, *data: problem.losses(x, data).mean()
    exact = Exact(mean, *problem.data, work=problem.examples)
    epochs = MiniBatch(problem.losses, problem.data, _BATCH, replacement=False)
    independent = MiniBatch(problem.losses, problem.data, _BATCH)
    epoch = problem.examples // _BATCH
    step, short = 1 / problem.smoothness, 1 / problem.batch_smoothness
    return [
        _Method("GD", exact, step),
        _Method("heavy ball", exact, step, HeavyBall(0.9)),
        _Method("Nesterov", exact, step, Nesterov()),
        _Method("FISTA", exact, step, FISTA()),
        _Method("restarted", exact, step, AdaptiveRestart(FISTA())),
        _Method("SGD", epochs, InverseTime(short, scale=10 * epoch), stride=epoch),
        # A snapshot after each epoch of steps; two gradients a step and the snapshot's make three passes.
        _Method("SVRG", SVRG(independent, epoch, restart="last"), short, stride=epoch // 3),
    ]


def _run(problem: Problem, method: _Method, gap: Callable[[PyTree], float], passes: int, seed: int) -> Lane:
    stride = method.stride * max(1, passes // _RECORDS)
    again = partial(
        minimize,
        method.oracle,
        problem.x0,
        term=problem.term,
        step=method.step,
        momentum=method.momentum,
        steps=passes * (method.stride + 1),  # the work ends it
        stride=stride,
        key=jax.random.key(seed),
        tol=Tolerance() | Work(jnp.asarray(passes * problem.examples)),
    )
    curve = [(0.0, 1.0)]
    result = again(callback=lambda seen: curve.append((seen.work / problem.examples, gap(seen.x))))
    curve.append((result.work / problem.examples, gap(result.x)))
    began = time.perf_counter()
    again()  # compiled by now, and nobody watches
    seconds = time.perf_counter() - began
    work, gaps = np.array(curve).T
    x = jax.tree.map(np.asarray, result.x)
    return Lane(method.name, work, gaps, x, result.steps, seconds, result.status.name.lower().replace("_", " "))


CAPTION = (
    "Gap: relative objective gap at the end; to 1e-6: passes over the data until it was that small; sec: seconds of a "
    "second run, compiled and unwatched; nnz: coefficients that are not zero."
)


def columns(lanes: Sequence[Lane], weights: Callable[[PyTree], np.ndarray]) -> dict[str, list[Any]]:
    """Return the table of a race; ``weights(x)`` are the parameters that should be sparse."""
    return {
        "method": [lane.name for lane in lanes],
        "gap": [_two_digits(max(lane.gaps[-1], 0.0)) for lane in lanes],
        "to 1e-6": ["–" if np.isnan(n := lane.passes_to(1e-6)) else f"{n:.0f}" for lane in lanes],
        "passes": [round(lane.passes[-1]) for lane in lanes],
        "steps": [lane.steps for lane in lanes],
        "sec": [_two_digits(lane.seconds) for lane in lanes],
        "nnz": [np.count_nonzero(weights(lane.x)) for lane in lanes],
        "status": [lane.status for lane in lanes],
    }


def _two_digits(number: float) -> float:
    return float(f"{number:.1e}")


def draw(axes: Axes, lanes: Sequence[Lane]) -> None:
    """Draw the gaps against passes over the data."""
    for lane in lanes:
        style = "--" if lane.name == "Nesterov" else "-"  # it hides under FISTA
        axes.semilogy(lane.passes, np.maximum(lane.gaps, _FLOOR), style, label=lane.name)
    axes.set_xlabel("passes over the data")
    axes.set_ylabel("relative objective gap")
    axes.set_ylim(_FLOOR, 2)
    plots.label_lines(axes)


def numbers(lanes: Sequence[Lane]) -> dict[str, Any]:
    """Return the curves, for the file of raw numbers."""
    return {lane.name: {"passes": lane.passes, "gap": lane.gaps, "x": lane.x} for lane in lanes}

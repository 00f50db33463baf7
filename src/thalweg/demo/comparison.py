"""Seven methods on one finite sum, from one start, with steps from the data: what two sections of the demo share."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from thalweg.demo import plots
from thalweg.demo.section import Section
from thalweg.descent import FISTA, AdaptiveRestart, HeavyBall, InverseTime, Nesterov, Term, Tolerance, Work, minimize
from thalweg.oracles import SVRG, Exact, MiniBatch

# Examples in a mini-batch. Twice as many halve the noise of SGD and the number of its steps in a pass.
BATCH_SIZE = 8
# Points on a curve. Twice as many make the run slower by as many evaluations and the plot no clearer.
MAX_RECORDS = 200
# The smallest gap that is drawn: below it rounding decides, and twice as much would hide digits that are right.
MIN_GAP = 1e-12


@dataclass(frozen=True)
class FiniteSum:
    """Minimise the mean of ``losses(x, data)`` plus a term; the ``optimum`` is known from elsewhere.

    ``smoothness`` bounds the curvature of the mean of the losses, ``max_smoothness`` that of a single loss.
    """

    losses: Callable[[PyTree, PyTree], Float[Array, " n"]]
    data: tuple[Array, ...]
    term: Term
    x0: PyTree[Array]
    smoothness: float
    max_smoothness: float
    optimum: float

    def objective(self, x: PyTree[Array]) -> Array:
        """Return the mean loss plus the term."""
        return self.losses(x, self.data).mean() + self.term.value(x)

    def solve(self) -> PyTree[Array]:
        """Return the optimum to rounding: restarted FISTA with no tolerance."""
        return minimize(x0=self.x0, term=self.term, tol=0.0, **self.methods()["restarted"]).x

    def violation(self, x: PyTree[Array]) -> float:
        """Return the largest entry of the proximal gradient, which is 0 at the optimum."""
        gradient = jax.grad(lambda x: self.losses(x, self.data).mean())(x)
        size = 1 / self.smoothness
        nearby = self.term.prox(jax.tree.map(lambda x, g: x - size * g, x, gradient), size)
        return max(float(jnp.abs(a - b).max()) / size for a, b in zip(*map(jax.tree.leaves, (x, nearby)), strict=True))

    def methods(self) -> dict[str, dict[str, Any]]:
        """Return the arguments of ``minimize`` for each method; ``stride`` is the number of steps in a pass."""
        n, b = len(self.data[0]), BATCH_SIZE
        # The smoothness that matters for a mini-batch is between that of one example and that of the mean.
        of_batch = n * (b - 1) / (b * (n - 1)) * self.smoothness + (n - b) / (b * (n - 1)) * self.max_smoothness
        exact = Exact(lambda x, *data: self.losses(x, data).mean(), *self.data, work=n)
        shuffled = MiniBatch(self.losses, self.data, b, replacement=False)
        # One snapshot per epoch of steps; two gradients a step and that of the snapshot make three passes.
        svrg = SVRG(MiniBatch(self.losses, self.data, b), n // b, restart="last")
        step, batch_step = 1 / self.smoothness, 1 / of_batch
        return {
            "GD": {"oracle": exact, "step": step},
            "heavy ball": {"oracle": exact, "step": step, "momentum": HeavyBall(0.9)},
            "Nesterov": {"oracle": exact, "step": step, "momentum": Nesterov()},
            "FISTA": {"oracle": exact, "step": step, "momentum": FISTA()},
            "restarted": {"oracle": exact, "step": step, "momentum": AdaptiveRestart(FISTA())},
            "SGD": {"oracle": shuffled, "step": InverseTime(batch_step, scale=10 * (n // b)), "stride": n // b},
            "SVRG": {"oracle": svrg, "step": batch_step, "stride": n // b // 3},
        }


@dataclass(frozen=True)
class ConvergenceCurve:
    """The relative objective gap of a method after so many passes over the data, and how its run ended."""

    name: str
    passes: np.ndarray
    gaps: np.ndarray
    x: PyTree[np.ndarray]
    steps: int
    seconds: float
    status: str

    def passes_to(self, gap: float) -> str:
        """Return the passes it took to reach the gap, or a dash."""
        reached = np.flatnonzero(self.gaps <= gap)
        return f"{self.passes[reached[0]]:.0f}" if reached.size else "–"


def compare(problem: FiniteSum, *, passes: int, seed: int) -> list[ConvergenceCurve]:
    """Give every method ``passes`` passes over the data, or fewer if it converges."""
    examples, objective = len(problem.data[0]), jax.jit(problem.objective)
    initial = float(objective(problem.x0))

    def gap(x: PyTree[Array]) -> float:
        return (float(objective(x)) - problem.optimum) / (initial - problem.optimum)

    def follow(name: str, stride: int = 1, **method: Any) -> ConvergenceCurve:
        run = partial(
            minimize,
            x0=problem.x0,
            term=problem.term,
            steps=passes * (stride + 1),  # the work ends it
            stride=stride * max(1, passes // MAX_RECORDS),
            key=jax.random.key(seed),
            tol=Tolerance() | Work(jnp.asarray(passes * examples)),
            **method,
        )
        points = [(0.0, 1.0)]
        result = run(callback=lambda snapshot: points.append((snapshot.work / examples, gap(snapshot.x))))
        points.append((result.work / examples, gap(result.x)))
        start = time.perf_counter()
        run()  # compiled by now, and without a callback
        seconds = time.perf_counter() - start
        work, gaps = np.array(points).T
        status = result.status.name.lower().replace("_", " ")
        return ConvergenceCurve(name, work, gaps, jax.tree.map(np.asarray, result.x), result.steps, seconds, status)

    return [follow(name, **method) for name, method in problem.methods().items()]


def show_curves(
    section: Section,
    problem: FiniteSum,
    curves: Sequence[ConvergenceCurve],
    weights: Callable[[PyTree], np.ndarray],
    caption: str,
) -> None:
    """Add the table, the plot and the numbers; ``weights(x)`` are the parameters that should be sparse."""
    two_digits = lambda number: float(f"{number:.1e}")
    columns: dict[str, list[Any]] = {
        "method": [curve.name for curve in curves],
        "gap": [two_digits(max(curve.gaps[-1], 0.0)) for curve in curves],
        "to 1e-6": [curve.passes_to(1e-6) for curve in curves],
        "passes": [round(curve.passes[-1]) for curve in curves],
        "steps": [curve.steps for curve in curves],
        "sec": [two_digits(curve.seconds) for curve in curves],
        "nnz": [np.count_nonzero(weights(curve.x)) for curve in curves],
        "status": [curve.status for curve in curves],
    }
    explanation = (
        "Gap: relative objective gap at the end; to 1e-6: passes over the data until it was that small; sec: seconds "
        "of a second run, compiled and without evaluations; nnz: coefficients that are not zero."
    )
    section.table("methods", columns, f"{caption} {explanation}")
    caption = "Relative objective gap (F − F*)/(F(0) − F*) against passes over the data."
    with section.figure("gaps", caption) as axes:
        for curve in curves:
            dashes = "--" if curve.name == "Nesterov" else "-"  # it hides under FISTA
            axes.semilogy(curve.passes, np.maximum(curve.gaps, MIN_GAP), dashes, label=curve.name)
        axes.set(xlabel="passes over the data", ylabel="relative objective gap", ylim=(MIN_GAP, 2))
        plots.label_lines(axes)
    raw = {curve.name: {"passes": curve.passes, "gap": curve.gaps, "x": curve.x} for curve in curves}
    section.numbers("curves", {"optimum": problem.optimum, **raw})

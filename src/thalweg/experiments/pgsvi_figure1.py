"""Figure 1 of "Faster stochastic variational inference using proximal-gradient methods": examples by step size."""

from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key, PyTree, Scalar

from thalweg.descent import Constant, Descent
from thalweg.experiments import _pgsvi, plots
from thalweg.experiments.registry import experiment
from thalweg.experiments.section import Run
from thalweg.gaussian import Factored, Implicit, NegativeBound, ScoreSamples

_CLOSE = 1.0
"""Nats above the optimum that count as converged."""
_SAMPLES = 500


@dataclass(frozen=True)
class Method:
    """A method as a function of its step size: which are tried, as powers of ten, and how far it may go.

    ``stride`` is the number of steps between two looks at the bound.
    """

    oracle: Any
    start: PyTree[Array]
    powers: tuple[float, float]
    most_passes: int
    stride: int = 1


@dataclass(frozen=True)
class Sweep:
    """At each size the examples seen (NaN where the target was not reached) and the nats that were left at the end."""

    sizes: np.ndarray
    examples: np.ndarray
    gaps: np.ndarray
    budget: float

    @property
    def reached(self) -> np.ndarray:
        """Where every seed reached the target."""
        return np.isfinite(self.examples)


@experiment(
    "pgsvi-figure1",
    title="GP classification with a constant step: examples to convergence",
    paper="Faster stochastic variational inference using proximal-gradient methods, Figure 1",
    order=40,
)
def pgsvi_figure1(run: Run) -> None:
    """Count the examples that GD, PG, PG-MC and PG-SVI need at each step size, and find where they fail."""
    with jax.enable_x64(True):
        problem = _pgsvi.load_small() if run.quick else _pgsvi.load("ionosphere")
        best = float(_pgsvi.measures(problem)(problem.optimum())[0])
        methods = _methods(problem, run.quick)
        found = {name: _sweep(problem, method, best, run) for name, method in methods.items()}
    show(run, problem, found)


def show(run: Run, problem: _pgsvi.Problem, found: dict[str, Sweep]) -> None:
    """Draw, tabulate and comment."""
    fig, axes = plots.figure()
    for colour, (name, sweep) in zip(plots.PALETTE, found.items(), strict=False):
        reached = sweep.reached
        axes.loglog(sweep.sizes[reached], sweep.examples[reached], "o-", color=colour, markersize=4, label=name)
        missed = sweep.sizes[~reached]
        axes.loglog(missed, np.full(missed.shape, sweep.budget), "^", color=colour, fillstyle="none", markersize=4)
        if reached.any():
            axes.axvline(sweep.sizes[reached].max(), color=colour, linestyle="--", linewidth=1)
    axes.set(xlabel="step size", ylabel="examples until within 1 nat")
    axes.legend()
    run.figure("examples", fig, _FIGURE.format(name=problem.name.capitalize()))
    run.table("methods", _columns(problem, found), _TABLE)
    run.note(_SEEN)
    run.numbers("curves", {name: vars(sweep) for name, sweep in found.items()})


_FIGURE = (
    "{name}: examples seen until −ELBO is within 1 nat of its optimum, by step size; the dashed line is the largest "
    "size tried at which a method gets there. Open triangles: not there after the budget, at whose height they are."
)
_TABLE = (
    "The fewest examples until −ELBO is within 1 nat of its optimum, how many passes they are, the size at which they "
    "suffice, and the largest size that reaches it; the smallest gap at the end of any run, in nats."
)
_SEEN = (
    "The paper stops where the bound changes by less than a threshold that it does not state, which a small step "
    "passes anywhere; here a method has converged when its bound is within a nat of the optimum. By that measure the "
    "paper's order holds: gradient descent on (m, L) needs thousands of times the examples of the proximal methods on "
    "Ionosphere, and shorter steps than PG. PG-SVI needs far fewer passes than PG at the same size, since it takes "
    "many steps in a pass, but its noise bounds its size at a thousandth of PG's; each at its best size, PG and "
    "PG-SVI need about as many examples."
)


def _methods(problem: _pgsvi.Problem, quick: bool) -> dict[str, Method]:
    exact, process = problem.oracle(), Implicit.prior(problem.covariance)
    gradient = NegativeBound(exact, problem.covariance)
    sampled = problem.oracle(ScoreSamples(_SAMPLES, shared=True))
    few = 20 if quick else 1
    return {
        "GD": Method(gradient, Factored.prior(problem.covariance), (-2.5, -1.5), 20_000 // few**2, stride=10),
        "PG": Method(exact, process, (-3, 2), 2000 // few),
        "PG-MC": Method(sampled, process, (-3, 2), 2000 // few),
        "PG-SVI": Method(problem.noisy, process, (-3, -0.5), 100 // few),
    }


def _sweep(problem: _pgsvi.Problem, method: Method, best: float, run: Run) -> Sweep:
    """Try the sizes one by one, each from all seeds."""
    per_decade, seeds = (1, 1) if run.quick else (4, 10)
    low, high = method.powers
    sizes = 10 ** np.linspace(low, high, round((high - low) * per_decade) + 1)
    keys = jax.random.split(jax.random.key(run.seed), 1 if method.oracle.deterministic else seeds)
    work = method.oracle.fixed_work
    budget = method.most_passes * problem.examples
    ends = [
        _until(_descent(problem, method, size), method.start, keys, best + _CLOSE, method.stride, int(budget / work))
        for size in sizes
    ]
    steps, objectives = np.mean(ends, axis=2).T
    return Sweep(sizes, work * steps, objectives - best, budget)


def _descent(problem: _pgsvi.Problem, method: Method, size: float) -> Descent:
    if isinstance(method.start, Implicit):
        return problem.proximal(method.oracle, Constant(size))
    return Descent(method.oracle, step=Constant(size))


@eqx.filter_jit
def _until(
    descent: Descent, start: PyTree[Array], keys: Key[Array, " seeds"], target: float, stride: int, most: int
) -> tuple[Float[Array, " seeds"], Float[Array, " seeds"]]:
    """Steps until the objective is at most ``target`` (NaN if it is not to be), and the objective then.

    It is looked at every ``stride`` steps; one that is NaN ends a run.
    """

    def going(carry: tuple) -> Array:
        state, objective = carry
        return (objective > target) & (state.steps < most)

    def one(key: Key[Array, ""]) -> tuple[Scalar, Scalar]:
        def advance(carry: tuple) -> tuple:
            state, _ = carry
            several = jax.random.split(jax.random.fold_in(key, state.steps), stride)
            state, _ = jax.lax.scan(descent.update, state, several)
            return state, descent.objective(state.x)

        state, objective = jax.lax.while_loop(going, advance, (descent.init(start), jnp.asarray(jnp.inf)))
        return jnp.where(objective <= target, state.steps.astype(objective.dtype), jnp.nan), objective

    return _pgsvi.for_each_seed(one, keys)


def _columns(problem: _pgsvi.Problem, found: dict[str, Sweep]) -> dict[str, list]:
    rows = []
    for name, sweep in found.items():
        least = int(np.argmin(np.where(sweep.reached, sweep.examples, np.inf)))
        if sweep.reached.any():
            fewest, largest = sweep.examples[least], sweep.sizes[sweep.reached].max()
            reach = (f"{fewest:.0f}", f"{fewest / problem.examples:.1f}", f"{sweep.sizes[least]:.2g}", f"{largest:.2g}")
        else:
            reach = (f"> {sweep.budget:.0f}", f"> {sweep.budget / problem.examples:.0f}", "–", "–")
        rows.append((name, *reach, float(np.nanmin(sweep.gaps))))
    headers = ("method", "examples", "passes", "at size", "largest size", "gap")
    return {header: list(column) for header, column in zip(headers, zip(*rows, strict=True), strict=True)}

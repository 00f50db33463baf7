"""Figure 1 of "Faster stochastic variational inference using proximal-gradient methods": examples by step size."""

import time
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key, PyTree, Scalar

from papers import _pgsvi
from papers._factored import Factored, NegativeBound
from papers.claims import Claim, at_full_size, show_claims
from thalweg.demo import Section, experiment, plots
from thalweg.descent import Constant, Descent
from thalweg.gaussian import Implicit, ScoreSamples

_CLOSE = 1.0
"""Nats above the optimum that count as converged."""
_SAMPLES = 500
_MAX_SECONDS = 300.0
"""The time for one size, all seeds together, after which it is cut."""
_EVALUATIONS_PER_LOOP = 500
"""Evaluations of the bound in one compiled loop."""
_STRIDES = {"GD": 10, "PG": 1, "PG-MC": 1, "PG-SVI": 1}
"""Steps between two evaluations of the bound."""


def _grid(powers: Any, passes: Any) -> dict[float, int]:
    """Return the sizes 10^powers and how many passes each may take; the last number is that of all further ones."""
    passes = [*passes, *[passes[-1]] * (len(powers) - len(passes))]
    return {float(10.0**power): int(limit) for power, limit in zip(powers, passes, strict=True)}


_HALVES = np.arange(-5, -0.5, 0.5)
# Sizes and passes as in the code that the authors published.
AUTHORS = {
    "GD": _grid(
        [-4, -3.75, -3.5, -3.25, -3, -2.75, -2.5, -2.25, -2, -1.75, -1.7, -1.69],
        [4e6, 4e6, 2e6, 8e5, 4e5, 6e5, 3e5, 3e5, 3e5, 3e4, 3e4, 500],
    ),
    "PG": _grid([*_HALVES, *np.log10(np.arange(1, 11))], [2e5, 8e4, 5e4, 1e4, 5000, 2500, 2000]),
    "PG-MC": _grid([*_HALVES, *np.log10(np.arange(2, 11) / 10)], [2.5e5, 2e5, 5e4, 2e4, 3000, 2500, 2500, 2000]),
    "PG-SVI": _grid([*np.arange(-5, -1.8, 0.15), -1], [3500, 3500, 3500, 3000, 3000, 2500, 2500, 2000]),
}
_QUICK = {
    "GD": _grid([-2.5, -1.5], [50]),
    "PG": _grid([-3, -2, -1, 0, 1, 2], [100]),
    "PG-MC": _grid([-3, -2, -1, 0, 1, 2], [100]),
    "PG-SVI": _grid([-3, -2, -1], [5]),
}


@dataclass(frozen=True)
class Sweep:
    """Step sizes, the examples until each reached the target (NaN if it did not), and the gap in nats at the end.

    ``spent`` are the examples that a run saw, fewer than its budget where ``cut`` says that time ended it.
    """

    sizes: np.ndarray
    examples: np.ndarray
    gaps: np.ndarray
    spent: np.ndarray
    cut: np.ndarray

    @property
    def reached(self) -> np.ndarray:
        """Return whether every seed reached the target, by size."""
        return np.isfinite(self.examples)

    @property
    def fewest(self) -> float:
        """Return the fewest examples of all sizes that reached it; infinite if none did."""
        return float(np.min(self.examples[self.reached], initial=np.inf))

    @property
    def at_least(self) -> float:
        """Return the fewest examples, or else the most that did not suffice."""
        return self.fewest if self.reached.any() else float(np.max(self.spent))

    @property
    def largest(self) -> float:
        """Return the largest size that reaches it, NaN if none."""
        return float(np.max(self.sizes[self.reached])) if self.reached.any() else np.nan


@dataclass(frozen=True)
class Figure1Results:
    """The sweeps by method, and whether the data and the sizes were the paper's."""

    name: str
    examples: int
    sweeps: dict[str, Sweep]
    full: bool

    def passes(self, method: str) -> str:
        """Return the fewest passes as text."""
        sweep = self.sweeps[method]
        return f"{'' if sweep.reached.any() else '> '}{sweep.at_least / self.examples:.3g}"


_PROXIMAL = ("PG", "PG-MC", "PG-SVI")
_MANY, _SIMILAR = 2.0, 1.5
"""Factors between numbers of examples: so many times more is many more, so many times at most is as fast."""


def _are_faster(results: Figure1Results) -> bool:
    return all(_MANY * results.sweeps[name].fewest < results.sweeps["GD"].at_least for name in _PROXIMAL)


def _takes_longer_steps(results: Figure1Results) -> bool | None:
    ours, theirs = results.sweeps["PG"].largest, results.sweeps["GD"]
    # A largest size that is the last one tried is no bound.
    if not theirs.reached.any() or theirs.largest == theirs.sizes.max():
        return None
    return ours >= 10 * theirs.largest


CLAIMS = (
    Claim(
        "GD requires many more passes through the data, and proximal-gradient methods converge faster than GD "
        f"(here: more than {_MANY:g} times the examples of each, all at their best sizes)",
        at_full_size(_are_faster),
        lambda results: "passes: " + ", ".join(f"{name} {results.passes(name)}" for name in results.sweeps),
    ),
    Claim(
        "the upper bound on the step-size for PG is much larger than GD (here: 10 times)",
        at_full_size(_takes_longer_steps),
        lambda results: ", ".join(f"{name} {results.sweeps[name].largest:.3g}" for name in ("PG", "GD")),
    ),
    Claim(
        f"PG-SVI is surprisingly as fast as PG (here: at most {_SIMILAR:g} times the examples, each at its best size)",
        at_full_size(lambda results: results.sweeps["PG-SVI"].fewest <= _SIMILAR * results.sweeps["PG"].at_least),
        lambda results: f"{results.passes('PG-SVI')} passes against {results.passes('PG')}",
    ),
)


@experiment(
    "pgsvi-figure1",
    title="GP classification with a constant step: examples to convergence",
    paper="Faster stochastic variational inference using proximal-gradient methods, Figure 1",
)
def pgsvi_figure1(section: Section) -> None:
    """Count the examples that GD, PG, PG-MC and PG-SVI need at each step size, and find the sizes that fail."""
    grids, seeds = (_QUICK, 1) if section.quick else (AUTHORS, 3)
    with jax.enable_x64(True):
        problem = _pgsvi.load_small_problem() if section.quick else _pgsvi.load_problem("ionosphere")
        sweeps = {name: sweep(problem, name, grid, seeds, section.seed) for name, grid in grids.items()}
    show_results(section, Figure1Results(problem.name, problem.examples, sweeps, not section.quick))


def show_results(section: Section, results: Figure1Results) -> None:
    """Add the figure, the table and the verdicts."""
    with section.figure("examples", _FIGURE.format(name=results.name.capitalize())) as axes:
        for colour, (name, sweep) in zip(plots.PALETTE, results.sweeps.items(), strict=False):
            reached = sweep.reached
            axes.loglog(sweep.sizes[reached], sweep.examples[reached], "o-", color=colour, markersize=4, label=name)
            missed = ~reached
            axes.loglog(sweep.sizes[missed], sweep.spent[missed], "^", color=colour, fillstyle="none", markersize=4)
            if reached.any():
                axes.axvline(sweep.largest, color=colour, linestyle="--", linewidth=1)
        axes.set(xlabel="step size", ylabel="examples until within 1 nat")
        axes.legend()
    section.table("methods", _columns(results), _TABLE)
    section.note(_SETTING)
    section.numbers("curves", {name: vars(sweep) for name, sweep in results.sweeps.items()})
    show_claims(section, CLAIMS, results)


_FIGURE = (
    "{name}: examples seen until −ELBO is within 1 nat of its optimum, by step size; the dashed line is the largest "
    "size tried at which a method gets there. Open triangles: examples that did not suffice."
)
_TABLE = (
    "The fewest examples until −ELBO is within 1 nat of its optimum, how many passes they are, the size at which they "
    "suffice, and the largest size that reaches it; the smallest gap at the end of any run, in nats; sizes at which "
    "time ended a run before the authors' number of passes."
)
_SETTING = (
    "The paper stops where the bound changes by less than a threshold that it does not state, which a small step "
    "passes anywhere; here a method has converged when its bound is within a nat of the optimum. Sizes and numbers of "
    "passes are those of the code that the authors published; what takes longer than "
    f"{_MAX_SECONDS:g} s is cut. Negative accumulated precisions are replaced by their absolute value, which is then "
    "carried on; the authors' code carries them on with their sign."
)


def sweep(
    problem: _pgsvi.GPProblem, name: str, grid: dict[float, int], seeds: int, seed: int, seconds: float = _MAX_SECONDS
) -> Sweep:
    """Try the sizes of a method one by one, each from all seeds."""
    best = float(_pgsvi.make_measure(problem)(problem.optimum())[0])
    oracle, start = _method(problem, name)
    keys = jax.random.split(jax.random.key(seed), 1 if oracle.deterministic else seeds)
    work, ends = oracle.fixed_work, []
    for size, passes in grid.items():
        descent = _descent(problem, oracle, start, size)
        max_steps = int(passes * problem.examples / work)
        ends.append(_run_to(best + _CLOSE, descent, start, keys, _STRIDES[name], max_steps, seconds))
    steps, objectives, spent, cut = (np.array(column) for column in zip(*ends, strict=True))
    return Sweep(np.array(list(grid)), work * steps, objectives - best, work * spent, cut)


def _method(problem: _pgsvi.GPProblem, name: str) -> tuple[Any, PyTree[Array]]:
    process = Implicit.prior(problem.covariance)
    if name == "GD":
        return NegativeBound(problem.oracle(), problem.covariance), Factored.prior(problem.covariance)
    if name == "PG":
        return problem.oracle(), process
    return (
        problem.oracle(ScoreSamples(_SAMPLES, shared=True)) if name == "PG-MC" else problem.stochastic_oracle
    ), process


def _descent(problem: _pgsvi.GPProblem, oracle: Any, start: PyTree[Array], size: float) -> Descent:
    if isinstance(start, Implicit):
        return problem.proximal(oracle, Constant(size))
    return Descent(oracle, step=Constant(size))


def _run_to(
    target: float,
    descent: Descent,
    start: PyTree[Array],
    keys: Key[Array, " seeds"],
    stride: int,
    max_steps: int,
    seconds: float,
) -> tuple[float, float, int, bool]:
    """Return the steps until the objective is at most ``target``, NaN if it never is, as the mean over seeds.

    Return also the objective at the end, the steps taken, and whether time ended a run.
    """
    steps, objectives, spent, cut, deadline = [], [], 0, False, time.monotonic() + seconds
    for key in keys:
        state, objective, is_late = descent.init(start), np.inf, False
        while objective > target and int(state.steps) < max_steps and not is_late:
            limit = jnp.asarray(min(max_steps, int(state.steps) + _EVALUATIONS_PER_LOOP * stride))
            state, last = _advance(descent, state, key, jnp.asarray(target), limit, stride)
            objective = float(last)
            is_late = time.monotonic() > deadline
        arrived = objective <= target
        steps.append(float(state.steps) if arrived else np.nan)
        objectives.append(objective)
        spent = max(spent, int(state.steps))
        cut |= is_late and not arrived
        if not arrived:  # the mean over seeds is NaN already
            break
    return float(np.mean(steps)), float(np.mean(objectives)), spent, cut


@eqx.filter_jit
def _advance(
    descent: Descent, state: Any, key: Key[Array, ""], target: Float[Array, ""], limit: Int[Array, ""], stride: int
) -> tuple[Any, Scalar]:
    """Run until the objective, evaluated every ``stride`` steps, is at most ``target`` or NaN, or to step ``limit``."""

    def goes_on(carry: tuple) -> Array:
        state, objective = carry
        return (objective > target) & (state.steps < limit)

    def advance(carry: tuple) -> tuple:
        state, _ = carry
        keys = jax.random.split(jax.random.fold_in(key, state.steps), stride)
        state, _ = jax.lax.scan(descent.update, state, keys)
        return state, descent.objective(state.x)

    return jax.lax.while_loop(goes_on, advance, (state, jnp.asarray(jnp.inf)))


def _columns(results: Figure1Results) -> dict[str, list]:
    rows = []
    for name, sweep in results.sweeps.items():
        best = int(np.argmin(np.where(sweep.reached, sweep.examples, np.inf)))
        more, sizes = ("", (f"{sweep.sizes[best]:.2g}", f"{sweep.largest:.2g}"))
        if not sweep.reached.any():
            more, sizes = "> ", ("–", "–")
        cut = ", ".join(f"{size:.2g}" for size in sweep.sizes[sweep.cut]) or "–"
        gap = float(np.nanmin(sweep.gaps))
        rows.append((name, f"{more}{sweep.at_least:.0f}", results.passes(name), *sizes, gap, cut))
    headers = ("method", "examples", "passes", "at size", "largest size", "gap", "cut at")
    return {header: list(column) for header, column in zip(headers, zip(*rows, strict=True), strict=True)}

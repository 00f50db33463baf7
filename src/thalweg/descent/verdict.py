"""Checks at the end of a run: whether its status holds, and what else the user should know."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key, PyTree

from thalweg import trees
from thalweg.descent.engines import Progress, RunPlan
from thalweg.descent.iteration import Descent, objective
from thalweg.descent.programs import compiled
from thalweg.descent.result import Status
from thalweg.descent.stopping import Tolerance, rules_within


def objective_of(descent: Descent) -> Callable[[PyTree[Array]], float]:
    """Return f + h, compiled when it is called, since what it captures may have changed by then.

    One program serves all methods with this oracle and term.
    """
    return lambda x: float(compiled(objective, (descent.oracle, descent.term))(x))


@dataclass
class Verdict:
    """The end of a run; the checks change its status, its solution and its note."""

    plan: RunPlan
    progress: Progress
    start: PyTree[Array]
    status: Status
    note: str = ""

    def __post_init__(self) -> None:
        self.x = trees.call(self.plan.descent, "solution", self.progress.state)
        self.eps, self.tiny = (float(getattr(jnp.finfo(trees.dtype(self.x)), name)) for name in ("eps", "tiny"))
        self._objective = objective_of(self.plan.descent)

    def check(self) -> None:
        """Run all checks."""
        if self.plan.descent.exact:
            self._check_rounding()
            self._check_standstill()
            self._check_underflow()
        if self.status in (Status.STAGNATED, Status.STEPS_SPENT):
            rounding = f"The rounding of {trees.dtype(self.x)} hides what may be left to gain. "
            untested = self.plan.descent.step.untested(self.progress.history, trees.dtype(self.x))
            hidden = rounding if self.status is Status.STAGNATED else ""
            self.note += self._describe_unbounded() or untested or hidden
        if self.plan.descent.exact:
            self._check_start()
            self._check_rise()
        if self.status.success and np.isposinf(self.progress.history.last["value"]):
            self.status = Status.DIVERGED
            self.note += "The objective is infinite at x: the sets of a term may have no point in common. "

    @cached_property
    def _first(self) -> float:
        return self._objective(self.start)

    @cached_property
    def _last(self) -> float:
        return self._objective(self.x)

    def _check_standstill(self) -> None:
        """A last step that led nowhere has not converged, where rounding loses steps and longer ones gain."""
        stands = self.plan.descent.divergence.swallows and self.progress.history.last["residual"] == 0
        if self.status is Status.CONVERGED and stands and self._longer_steps_gain():
            self.status = Status.STAGNATED
            self.note += "The last step was too short to move x; longer ones lower the objective. "

    def _longer_steps_gain(self) -> bool:
        size = self.progress.history.last["size"]
        with np.errstate(over="ignore"):
            sizes = np.geomspace(size, max(size / self.eps, 1.0), 50).astype(trees.dtype(self.x))
        after = compiled(_objectives_after, self.plan.descent)
        values = np.asarray(after(self.x, self.progress.state.oracle, self.plan.key, sizes), np.float64)
        return bool(np.fmin.reduce(values) < self._last - 100 * self.eps * abs(self._last))

    def _check_rounding(self) -> None:
        """Rounding that can hide less than the tolerance allows leaves nothing to gain, unless by longer steps."""
        tolerances = [rule for rule in rules_within(self.plan.rule) if isinstance(rule, Tolerance)]
        if self.status is Status.STAGNATED and tolerances:
            rtol = max(tolerance.rtol_for(self.eps) for tolerance in tolerances)
            # What a step promises when a run stagnates is at most this, and as many steps may be to come.
            hidden = self.progress.steps * 100 * self.eps * abs(self._last)
            enough = rtol * min(self._first - self._last, abs(self._last))
            if hidden <= enough and not self._longer_steps_gain():
                self.status = Status.CONVERGED

    def _check_underflow(self) -> None:
        """Values and gradients that are, from the start, too small to fall by all their digits do not converge."""
        least = self.tiny / self.eps
        seen = np.abs([*self.progress.history["value"], *self.progress.history["residual"]])
        ended = self.status in (Status.CONVERGED, Status.STAGNATED, Status.STEPS_SPENT)
        if ended and np.any(seen > 0) and not np.any(seen >= least) and abs(self._first) < least:
            self.status = Status.STAGNATED if self.status.success else self.status
            self.note += "The objective is so small that its digits are lost: multiply it. "

    def _describe_unbounded(self) -> str:
        """Say that x went, and the objective fell, so far that rounding hides where they began, if they did."""
        length, before = (np.linalg.norm(trees.flattened(point)) for point in (self.x, self.start))
        if not self.plan.descent.exact or not self.eps * length > 1 + before:
            return ""
        if not -self.eps * self._last > 1 + abs(self._first):
            return ""
        return f"x has the norm {length:.1e} and the objective fell with it: it may have no minimum. "

    def _check_start(self) -> None:
        """A run that could not take a first step may have started where the objective is not finite."""
        if self.status is Status.DIVERGED and not self.progress.steps and not np.isfinite(self._last):
            self.note += f"The objective is {self._last:g} at x0. "

    def _check_rise(self) -> None:
        """A run whose end is worse than its start returns its start."""
        if not self._may_have_risen() or not self._first < self._last:
            return
        self.note += "The last point is worse than the start, which is returned. "
        # What rose above all that it had been is not on its way.
        highest = np.nanmax(self.progress.history["value"])
        risen = self.status.success or (self.status is Status.STEPS_SPENT and self._last >= highest)
        if risen and not self._last - self._first <= 100 * self.eps * abs(self._first):
            self.status = Status.DIVERGED
        self.x = self.start

    def _may_have_risen(self) -> bool:
        """Return whether the records do not show that the objective fell."""
        values = self.progress.history["value"]
        if values.size < 2 or (np.isnan(values[-1]) and not self.status.success):
            return False
        with np.errstate(invalid="ignore"):  # ∞ − ∞
            return not values[-1] <= values[0] - 10 * self.eps * abs(values[-1])


def _objectives_after(
    descent: Descent, x: PyTree[Array], oracle_state: PyTree, key: Key[Array, ""], sizes: Array
) -> Array:
    """Return the objective after one step of each size."""

    def after(size: Array) -> Array:
        gradient = descent.oracle.estimate(x, oracle_state, key)[0].gradient
        size = descent.divergence.admissible(x, gradient, size, descent.term)
        return descent.objective(descent.divergence.step(x, gradient, size, descent.term))

    return jax.lax.map(after, sizes)

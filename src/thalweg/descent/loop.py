"""The loop around the iteration: chunks, history, stopping, progress, callbacks, checkpoints."""

import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key, PyTree

from thalweg import trees
from thalweg.arguments import flag, number, one_of, random_key, whole
from thalweg.descent.averaging import Averaging
from thalweg.descent.checkpoint import Checkpoint, Keeper, as_checkpoint
from thalweg.descent.chunks import CompiledEngine
from thalweg.descent.display import Bar
from thalweg.descent.divergences import Divergence
from thalweg.descent.engines import Course, Progress, refuse_traced
from thalweg.descent.fingerprint import describe, describe_part
from thalweg.descent.host import HostEngine
from thalweg.descent.iteration import Descent
from thalweg.descent.momentum import Momentum
from thalweg.descent.result import History, Result, Status
from thalweg.descent.stopping import Stagnation, Steps, StoppingRule, Tolerance
from thalweg.descent.terms import Term
from thalweg.errors import IncompatiblePartsError

_MOST_STEPS = 2**31 - 1
"""Steps are counted in int32."""

_LARGE = 200
"""The side of a matrix from which factorising it takes far longer than a visit to the host."""

_UNBOUNDED = 1e8
"""How many times further than where they began an objective has fallen, and x gone, that may have no minimum."""


@dataclass(frozen=True)
class Snapshot:
    """What a callback is shown.

    Examples
    --------
    >>> Snapshot(step=1, x=0.0, value=2.0, residual=0.1, size=0.5, work=1.0, seconds=0.0).value
    2.0
    """

    step: int
    x: PyTree[Array]
    """The solution so far: the average if one was asked for, else the iterate."""
    value: float
    residual: float
    size: float
    work: float
    seconds: float


def minimize(
    oracle: Any,
    x0: PyTree | Result,
    *,
    term: Term | None = None,
    divergence: Divergence | None = None,
    step: Any = None,
    momentum: Momentum | None = None,
    average: Averaging | None = None,
    steps: int = 10_000,
    key: Key[Array, ""] | None = None,
    tol: float | StoppingRule | None = None,
    stride: int | None = None,
    callback: Callable[[Snapshot], bool | None] | None = None,
    progress: bool = False,
    checkpoint: Any = None,
    engine: str | None = None,
    compiler_options: Mapping[str, Any] | None = None,
) -> Result:
    """Minimise f + h by the iteration x⁺ = argmin ⟨ĝ, x⟩ + h(x) + D(x ‖ x_k)/β_k.

    Parameters
    ----------
    oracle
        ĝ: an oracle, or a plain function x -> scalar whose exact gradient is taken.
    x0
        Where to start, any pytree of arrays; or a :class:`Result` to go on from.
    term, divergence, step, momentum, average
        The parts, as in :class:`Descent`. With none of them given, an exact oracle is minimised by gradient
        descent with backtracking.
    steps
        The most steps to take (in this call).
    key
        Randomness of a stochastic oracle, e.g. ``jax.random.key(0)``. The same key gives the same run.
    tol
        When to stop: a number, ``Tolerance(tol)``: what is left to gain is small against what the run has gained
        lately; a rule, e.g. ``Plateau() | Seconds(60)``; or None, which for an exact oracle follows the dtype and for a
        stochastic one runs all ``steps``.
    stride
        Steps between two records, at which the stopping rule looks. By default records are about ten steps apart at
        first, then ever further, a few hundred in all, and the rule looks more often, at every step at first.
    callback
        Called with a :class:`Snapshot` after each record; a true return value stops the run.
    progress
        Show a progress bar with rate and estimated time left.
    checkpoint
        A path, or a :class:`Checkpoint`: write the state there now and then, and go on from it if it exists.
    engine
        ``"compiled"``: many steps in one program, for cheap ones. ``"host"``: a program per step, driven from Python,
        for a few dear ones, since it compiles faster and a search takes value and gradient together. The iterates and
        the records are the same. None takes the host for an exact oracle whose steps factorise large matrices
        (``term.factorises`` or ``divergence.factorises``).
    compiler_options
        Passed on to ``jax.jit``. A short run on a CPU can gain from ``thalweg.compiling.quick_options()``, with which
        compiling takes a fraction of its time.

    Returns
    -------
    Result
        Never raises for want of convergence: look at ``result.status`` and ``result.message``.

    Examples
    --------
    The lasso, by FISTA:

    >>> import jax.numpy as jnp
    >>> from thalweg.descent import FISTA, L1, minimize
    >>> A, b = jnp.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]), jnp.array([1.0, 0.0, 0.0])
    >>> result = minimize(
    ...     lambda x: 0.5 * jnp.sum((A @ x - b) ** 2), jnp.zeros(2), term=L1(0.1), momentum=FISTA())
    >>> result.status
    <Status.CONVERGED: 1>
    """
    descent = Descent(oracle, term=term, divergence=divergence, step=step, momentum=momentum, average=average)
    refuse_traced((descent, key, x0, tol))
    if callback is not None and not callable(callback):
        raise TypeError(f"callback must be a function of a Snapshot, found {callback!r}")
    progress = flag("progress", progress)
    if not isinstance(compiler_options, Mapping | None):
        raise TypeError(f"compiler_options must be a mapping or None, found {compiler_options!r}")
    steps = whole("steps", steps, most=_MOST_STEPS)
    stride = 0 if stride is None else whole("stride", stride, most=_MOST_STEPS)
    rule = _as_rule(tol, descent)
    key = _as_key(key, descent)
    if isinstance(x0, Result):
        start = _resumed(x0, descent, rule)
    else:
        state, rule_state = trees.strongly_typed((trees.call(descent, "init", x0), trees.call(rule, "init")))
        start = Progress(state, rule_state, History())
    keeper = None
    last_step = whole("steps, with those already taken,", start.steps + steps, most=_MOST_STEPS)
    if (kept := as_checkpoint(checkpoint)) is not None:
        keeper = Keeper(kept, describe(descent, key, start.state.x), describe_part(rule))
        start = keeper.find_or_write(start)
    plan = Course(descent, rule, key, last_step, stride, callback is not None, compiler_options)
    run = _Run(plan, _engine(engine, plan, start), start, callback, keeper)
    with Bar(last_step, run.progress.steps) if progress else nullcontext() as bar:
        status = run.until_stopped(bar)
    return run.result(status)


class _Run:
    """One call of :func:`minimize`: what happens between chunks."""

    def __init__(
        self,
        plan: Course,
        engine: CompiledEngine | HostEngine,
        start: Progress,
        callback: Callable[[Snapshot], bool | None] | None,
        keeper: Keeper | None,
    ) -> None:
        self.plan, self.engine = plan, engine
        self.progress = start
        self.start = start.state.x
        self.callback, self.keeper = callback, keeper
        self.note = ""
        self.before = start.seconds
        self.started = time.perf_counter()

    def until_stopped(self, bar: Bar | None) -> Status:
        """Run chunk after chunk; return why it ended."""
        status, recorded = self.progress.status, self._recorded()
        try:
            while status is Status.RUNNING and self.progress.steps < self.plan.last_step:
                status = self._chunk()
                if bar is not None:
                    bar.show(self.progress.steps, self.progress.history)
                if status is Status.DIVERGED:
                    break
                if self.callback is not None and self._recorded() != recorded:
                    recorded = self._recorded()
                    if self.callback(self._snapshot()) and status is Status.RUNNING:
                        status = Status.STOPPED_BY_CALLBACK
                if self.keeper is not None:
                    self.keeper.write_if_due(self.progress)
        except KeyboardInterrupt:
            status = Status.INTERRUPTED
        status = Status.STEPS_SPENT if status is Status.RUNNING else status
        if self.keeper is not None:
            # What ended for want of anything to gain is not taken up again; all else goes on.
            ended = status.success or status is Status.STAGNATED
            self.progress.status = status if ended else Status.RUNNING
            self.keeper.write(self.progress)
        return status

    def _recorded(self) -> float:
        """The step of the last record."""
        return self.progress.history.last["step"]

    def _chunk(self) -> Status:
        last = self.progress
        chunk = self.engine.run(last)
        seconds = self.before + time.perf_counter() - self.started
        if chunk.status is Status.DIVERGED:
            self.note = f"Step {int(chunk.state.steps) + 1} was the first to be NaN or infinite. "
        if chunk.steps.size:
            value, residual, size, work = chunk.numbers.T
            # Time is known at the ends of a chunk; within it steps are taken to be equally long.
            share = (chunk.steps - last.steps) / chunk.taken
            columns = (chunk.steps, value, residual, size, last.work + work)
            last.history.append(
                dict(zip(History.names, (*columns, last.seconds + share * (seconds - last.seconds)), strict=True))
            )
        self.progress = Progress(chunk.state, chunk.rule_state, last.history, last.work + chunk.work, seconds)
        return chunk.status

    def _snapshot(self) -> Snapshot:
        row = self.progress.history.last
        row.pop("step")
        return Snapshot(self.progress.steps, self.plan.descent.solution(self.progress.state), **row)

    def result(self, status: Status) -> Result:
        """Gather what the run has to show."""
        progress = self.progress
        x = trees.call(self.plan.descent, "solution", progress.state)
        if status is Status.CONVERGED and self._stands_still() and self._would_fall(x):
            status = Status.STAGNATED
            self.note += "The last step was too short to move x; longer ones lower the objective. "
        if status in (Status.CONVERGED, Status.STAGNATED, Status.STEPS_SPENT) and self._underflows():
            status = Status.STAGNATED if status.success else status
            self.note += "The objective is so small that its digits are lost: multiply it. "
        if status in (Status.STAGNATED, Status.STEPS_SPENT):
            hidden = f"The rounding of {trees.dtype(x)} hides what may be left to gain. " * (status is Status.STAGNATED)
            untested = self.plan.descent.step.untested(progress.history, trees.dtype(x))
            self.note += self._unbounded(x) or untested or hidden
        if status is Status.DIVERGED and not progress.steps and self.plan.descent.exact:
            at_start = self._objective(x)
            self.note += "" if np.isfinite(at_start) else f"The objective is {at_start:g} at x0. "
        if self._may_have_risen(status) and (first := self._objective(self.start)) < (last := self._objective(x)):
            x = self.start
            self.note += "The last point is worse than the start, which is returned. "
            rounding = 100 * float(jnp.finfo(trees.dtype(x)).eps) * abs(first)
            # What rose above all that it had been is not on its way.
            risen = status.success or (status is Status.STEPS_SPENT and last >= np.nanmax(progress.history["value"]))
            status = Status.DIVERGED if risen and not last - first <= rounding else status
        if status.success and np.isposinf(progress.history.last["value"]):
            status = Status.DIVERGED
            self.note += "The objective is infinite at x: the sets of a term may have no point in common. "
        return Result(
            x=x,
            status=status,
            message=f"{status.name} after {progress.steps} steps. {self.note}{status.advice}",
            steps=progress.steps,
            work=progress.work,
            seconds=progress.seconds,
            history=progress.history,
            state=progress.state,
            rule_state=progress.rule_state,
            objective=self._objective,
        )

    def _objective(self, x: PyTree[Array]) -> float:
        # Compiled afresh, since what the function captures may have changed; it is seldom asked for.
        return float(jax.jit(lambda x: self.plan.descent.objective(x))(x))

    def _unbounded(self, x: PyTree[Array]) -> str:
        """What to say where the objective fell without end, as far as x went; else nothing."""
        length = trees.norm_on_host(x)
        if not self.plan.descent.exact or not length > _UNBOUNDED * (1 + trees.norm_on_host(self.start)):
            return ""
        first, last = self._objective(self.start), self._objective(x)
        if not -last > _UNBOUNDED * (1 + abs(first)):
            return ""
        return f"x has the norm {length:.1e} and the objective fell with it: it may have no minimum. "

    def _stands_still(self) -> bool:
        """Whether the last step led nowhere, in a geometry where that does not tell that the slope is 0."""
        descent = self.plan.descent
        return descent.exact and descent.divergence.swallows and self.progress.history.last["residual"] == 0

    def _underflows(self) -> bool:
        """Whether values and slopes are, from the start, too small to fall by as many digits as numbers have."""
        history, limits = self.progress.history, jnp.finfo(trees.dtype(self.start))
        least = float(limits.tiny) / float(limits.eps)
        seen = np.abs([*history["value"], *history["residual"]])
        if not self.plan.descent.exact or not np.any(seen > 0) or np.any(seen >= least):
            return False
        return abs(self._objective(self.start)) < least

    def _would_fall(self, x: PyTree[Array]) -> bool:
        """Whether a longer step lowers the objective by more than rounding."""
        descent, size = self.plan.descent, self.progress.history.last["size"]

        def after(size: Array) -> Array:
            gradient = descent.oracle.estimate(x, self.progress.state.oracle, self.plan.key)[0].gradient
            size = descent.divergence.admissible(x, gradient, size, descent.term)
            return descent.objective(descent.divergence.step(x, gradient, size, descent.term))

        eps = float(jnp.finfo(trees.dtype(x)).eps)
        sizes = jnp.asarray(np.geomspace(size, max(size / eps, 1.0), 50), trees.dtype(x))
        now, least = self._objective(x), float(jnp.nanmin(jax.jit(lambda sizes: jax.lax.map(after, sizes))(sizes)))
        return least < now - 100 * eps * abs(now)

    def _may_have_risen(self, status: Status) -> bool:
        """Whether the records of an exact oracle do not show that the objective fell."""
        values = self.progress.history["value"]
        if not self.plan.descent.exact or values.size < 2:
            return False
        if np.isnan(values[-1]) and not status.success:
            return False
        rounding = 10 * float(jnp.finfo(trees.dtype(self.start)).eps) * abs(values[-1])
        with np.errstate(invalid="ignore"):  # ∞ − ∞
            return not values[-1] <= values[0] - rounding


def _engine(name: str | None, plan: Course, start: Progress) -> CompiledEngine | HostEngine:
    """The engine that was asked for, or the one that suits the cost of a step."""
    if name is None:
        descent = plan.descent
        factorises = descent.term.factorises or descent.divergence.factorises
        side = max(max(leaf.shape, default=0) for leaf in jax.tree.leaves(start.state.x))
        name = "host" if descent.oracle.deterministic and factorises and side >= _LARGE else "compiled"
    return ENGINES[one_of("engine", name, ENGINES)](plan, start)


ENGINES: dict[str, Any] = {"compiled": CompiledEngine, "host": HostEngine}


def _as_rule(tol: Any, descent: Descent) -> StoppingRule:
    oracle = descent.oracle
    if isinstance(tol, StoppingRule):
        return tol
    if tol is None:
        # Stochastic oracles have no tolerance that fits all; they run their steps.
        return Tolerance() | Stagnation() if oracle.deterministic else Steps(np.inf)
    if isinstance(tol, (int, float, np.floating)) and not isinstance(tol, bool):
        if not oracle.vanishing_noise:
            raise IncompatiblePartsError(
                f"tol={tol!r} is compared with ‖G_k‖, which the noise of oracle={type(oracle).__name__} keeps from "
                f"vanishing. Pass tol=Plateau(), or a budget: Work(…), Seconds(…)."
            )
        number("tol", tol, least=0)
        # One noisy residual can be small by luck; ten in a row are not.
        return Tolerance(tol) | Stagnation() if oracle.deterministic else Tolerance(tol, in_a_row=10)
    raise TypeError(f"tol must be None, a number or a StoppingRule, found {tol!r}")


@cache
def _unused_key() -> Key[Array, ""]:
    """What an exact oracle is handed in place of randomness."""
    return jax.random.wrap_key_data(jax.device_put(np.zeros(2, np.uint32)), impl="threefry2x32")


def _as_key(key: Any, descent: Descent) -> Key[Array, ""]:
    if key is not None:
        return random_key("key", key)
    if descent.oracle.deterministic:
        return _unused_key()
    raise ValueError(
        f"key must be given: oracle={type(descent.oracle).__name__} is random. "
        f"Pass key=jax.random.key(0), or another seed."
    )


def _resumed(result: Result, descent: Descent, rule: StoppingRule) -> Progress:
    """Where a run stands that goes on from a result, after checking that its state is one of this method."""
    fresh = descent.init(result.state.x)
    shapes = lambda tree: [jnp.shape(leaf) for leaf in jax.tree.leaves(tree)]
    if not trees.same_structure(fresh, result.state) or shapes(fresh) != shapes(result.state):
        raise ValueError(
            "x0 is the Result of a run with another oracle, step, momentum or average, whose state this run cannot "
            "take up; pass x0=result.x to start afresh from its solution"
        )
    rule_state = trees.strongly_typed(rule.init())
    if trees.same_structure(rule_state, result.rule_state):
        rule_state = result.rule_state
    return Progress(result.state, rule_state, History(result.history), result.work, result.seconds)


__all__ = ["Checkpoint", "Snapshot", "minimize"]

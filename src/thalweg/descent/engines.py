"""The two engines of :func:`~thalweg.descent.minimize`: each takes a run from where it stands a chunk further.

The compiled engine puts many steps, the stopping rule and a record now and then into one program, with no Python
inside. How many steps a chunk holds and how many lie between two records are its arguments, so that nothing is compiled
twice. The host engine is a Python loop over one compiled step. Where a step factorises a matrix, and a few dozen of
them are enough, the larger program takes longer to compile than to run, and between two milliseconds of LAPACK a visit
to the host costs nothing. It evaluates the stopping rule, arithmetic of a few numbers, in NumPy.

Iterates, records and verdicts are the same.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key, PyTree, Scalar

from thalweg import trees
from thalweg.descent.iteration import Descent, Info, State
from thalweg.descent.programs import compiled
from thalweg.descent.result import History, Status
from thalweg.descent.stopping import RECORD_SPACING, Code, Record, StoppingRule
from thalweg.linalg import namespace

LOOK_DIVISOR = 32
"""With no stride given, looks of the stopping rule lie 1 + steps/32 apart: a few hundred whatever the length of the
run, and at most 3 % of the steps come after it could have stopped. Twice as many looks would halve both."""

MAX_RECORDS = 4096
"""The most records a chunk can hold. A chunk of half a second rarely has more; twice as many would copy 64 kB more."""

CHUNK_SECONDS = 0.5
"""How long a chunk is, about: short enough for a progress bar and Ctrl-C, long enough that a chunk's overhead of a
millisecond does not count. Twice as long would make Ctrl-C wait twice as long."""


@dataclass
class Progress:
    """Where a run stands between two chunks."""

    state: State
    rule_state: PyTree
    history: History
    work: float = 0.0
    seconds: float = 0.0
    status: Status = Status.RUNNING

    @cached_property
    def steps(self) -> int:
        """Steps taken."""
        return int(self.state.steps)

    @cached_property
    def recorded(self) -> int:
        """The step of the last record; 0 if there is none."""
        last = self.history.last["step"]
        return 0 if np.isnan(last) else int(last)

    def after(
        self, state: State, rule_state: PyTree, status: Status, records: np.ndarray, work: float, seconds: float
    ) -> "Progress":
        """Return where the run stands after a chunk; a state that is not finite was replaced by the last one that was.

        A row of ``records`` holds the step, value, residual, size, and the work since the start of the chunk.
        """
        if records.size:
            step, value, residual, size, spent = records.T
            # Time is known at the ends of a chunk; within it steps are taken to be equally long.
            times = self.seconds + (step - self.steps) / (int(state.steps) - self.steps) * (seconds - self.seconds)
            columns = step, value, residual, size, self.work + spent, times
            self.history.append(dict(zip(History.names, columns, strict=True)))
        return Progress(state, rule_state, self.history, self.work + work, seconds, status)


@dataclass(frozen=True)
class RunPlan:
    """What an engine is to run, and how far."""

    descent: Descent
    rule: StoppingRule
    key: Key[Array, ""]
    last_step: int
    """No step is taken after this one."""
    stride: int
    """Steps between two records; 0 for a stride that grows with the run."""
    record_by_record: bool
    """Whether a chunk ends with its first record, because somebody looks at each."""
    compiler_options: Mapping[str, Any] | None
    began: float
    """The time at which no second of the run was spent."""

    @property
    def seconds(self) -> float:
        """Seconds of the run until now."""
        return time.perf_counter() - self.began


def _steps_to_look(steps: Any, stride: Any, last_step: Any) -> Any:
    """Return how many steps lie between a look after ``steps`` steps and the next one."""
    xp = namespace(steps)
    return xp.minimum(xp.where(stride > 0, stride, 1 + steps // LOOK_DIVISOR), last_step - steps)


def _look(
    method: "Method", rule_state: PyTree, record: Record, last: Record, looked: Any, limits: Any
) -> tuple[PyTree, Code, Any]:
    """Let the rule look; return its state, its code, and whether a record is due.

    ``last`` is the last record, ``looked`` the step of the last look. The objective of an exact oracle is computed for
    records alone: the rule is shown that of the last one.
    """
    (descent, rule), xp, step = method, namespace(record.step), record.step
    exact = descent.oracle.deterministic
    shown = record._replace(value=last.value, valued=last.step) if exact else record
    rule_state, code = trees.call(rule, "update", rule_state, shown)
    spacing = xp.where(limits.stride > 0, limits.stride, xp.maximum(1 + looked // LOOK_DIVISOR, RECORD_SPACING))
    due = (code != 0) | (last.step == 0) | (step >= last.step + spacing) | (step == limits.last_step)
    return rule_state, code, due | (not exact)


def _take_step(descent: Descent, state: State, key: Key[Array, ""]) -> tuple[State, Info]:
    """Take one step, with the oracle's outer loop and the step's own key."""
    period = descent.oracle.period
    if period is not None:
        due = (state.steps > 0) & (state.steps % period == 0)
        state = jax.lax.cond(due, lambda state: descent.renew(state), lambda state: state, state)
    if not descent.oracle.deterministic:
        key = jax.random.fold_in(key, state.steps)
    return descent.update(state, key)


def _record_dtype(state: State) -> np.dtype:
    """Return the dtype in which values and residuals are recorded."""
    return trees.single(trees.dtype(state.x))


Method = tuple[Descent, StoppingRule]


class ChunkLimits(NamedTuple):
    """What ends a chunk; whole numbers, on the host or traced."""

    until: Any
    """The chunk ends with the first look at or after this step."""
    records: Any
    """The chunk ends after this many records, at most ``MAX_RECORDS``."""
    last_step: Any
    """No step is taken after this one."""
    stride: Any
    """Steps between two records; 0 for a stride that grows with the run."""


class ChunkState(NamedTuple):
    """What a chunk carries from look to look."""

    state: State
    rule_state: PyTree
    code: Int[Array, ""]
    record_steps: Int[Array, " capacity"]
    record_numbers: Float[Array, "capacity 4"]
    """Value, residual, size, and the work since the start of the chunk."""
    filled: Int[Array, ""]
    """How many records there are."""
    work: Scalar
    """Since the start of the chunk."""
    recorded: Int[Array, ""]
    """The step of the last record."""
    value: Scalar
    """The value of the last record."""


def _run_chunk(
    method: Method, state: State, rule_state: PyTree, key: Key[Array, ""], limits: ChunkLimits, last: Record
) -> ChunkState:
    """Run from look to look of the stopping rule, and record where a record is due."""
    descent, kind, zero = method[0], _record_dtype(state), jnp.zeros((), jnp.int32)
    noisy = not descent.oracle.deterministic
    # Whether value, residual and size are known after every step: a search has nearly all of them.
    informs = descent.step.needs_value and not descent.factorises and descent.tests_iterate
    unknown = (jnp.zeros((), trees.dtype(state.x)),) * 3 if informs else ()
    step = jax.jit(partial(_take_step, descent))  # traced once for both of its places

    def take(before: tuple, looks: bool) -> tuple:
        state, work, total, _ = before
        state, info = step(state, key)
        # The estimates of a noisy oracle are free, and averaged; an exact value is computed for records alone.
        total = total + info.value.astype(kind) if noisy else total
        return state, work + info.work.astype(work.dtype), total, info[:3] if looks else ()

    def run_to_next_look(carry: ChunkState) -> ChunkState:
        looked = carry.state.steps
        steps = _steps_to_look(looked, limits.stride, limits.last_step)
        before = carry.state, carry.work, jnp.zeros((), kind), unknown
        # Else the last step alone is looked at, and traced on its own.
        taken = jax.lax.fori_loop(0, steps if informs else steps - 1, lambda _, before: take(before, informs), before)
        state, work, total, numbers = taken if informs else take(taken, True)
        value, residual, size = (number.astype(kind) for number in numbers)
        value = total / jnp.asarray(steps, kind) if noisy else value
        record = Record(state.steps, value, residual, size, last.work + work, last.seconds)
        recorded = last._replace(step=carry.recorded, value=carry.value)
        rule_state, code, due = _look(method, carry.rule_state, record, recorded, looked, limits)
        code = jnp.where(trees.all_finite(state.x), code, int(Status.DIVERGED)).astype(jnp.int32)
        if informs:
            value = jnp.where(due, value, carry.value)
        elif not noisy:
            value = jax.lax.cond(due, lambda: descent.objective(state.x).astype(kind), lambda: carry.value)
        write = partial(jax.lax.dynamic_update_index_in_dim, index=carry.filled, axis=0)
        row = jnp.stack([value, residual, size, work.astype(kind)])
        # Written always and counted when due: two small writes cost less than a branch.
        records = write(carry.record_steps, state.steps), write(carry.record_numbers, row)
        filled, newest = carry.filled + due.astype(jnp.int32), jnp.where(due, state.steps, carry.recorded)
        return ChunkState(state, rule_state, code, *records, filled, work, newest, value)

    def is_unfinished(carry: ChunkState) -> Array:
        return (carry.code == 0) & (carry.filled < limits.records) & (carry.state.steps < limits.until)

    records = jnp.zeros(MAX_RECORDS, jnp.int32), jnp.zeros((MAX_RECORDS, 4), kind), zero
    recorded = last.step, last.value.astype(kind)
    start = ChunkState(state, rule_state, zero, *records, jnp.zeros_like(last.work), *recorded)
    return jax.lax.while_loop(is_unfinished, run_to_next_look, start)


def _last_finite(method: Method, state: State, key: Key[Array, ""], steps: Int[Array, ""]) -> State:
    """Replay a chunk that ended in NaN or infinity, step by step; return the last state with a finite x.

    Steps are pure, so replaying finds the very step; looking at every step the first time would cost every run.
    """
    follow = lambda carry: (carry[1], _take_step(method[0], carry[1], key)[0])
    finite = lambda carry: trees.all_finite(carry[1].x) & (carry[0].steps < steps)
    return jax.lax.while_loop(finite, follow, (state, state))[0]


class CompiledEngine:
    """Runs a method in chunks of about half a second."""

    def __init__(self, plan: RunPlan, start: Progress) -> None:
        self.plan = plan
        self._run = compiled(_run_chunk, (plan.descent, plan.rule), options=plan.compiler_options)
        self._steps_per_second = 0.0

    def run(self, progress: Progress) -> Progress:
        """Run for about half a second, or to the next record, or until the rule stops."""
        plan, began = self.plan, self.plan.seconds
        # The first chunk is one look; it may hold the compilation.
        chunk_steps = max(int(self._steps_per_second * CHUNK_SECONDS), 1)
        until = plan.last_step if plan.record_by_record else min(progress.steps + chunk_steps, plan.last_step)
        limits = until, 1 if plan.record_by_record else MAX_RECORDS, plan.last_step, plan.stride
        before: Any = progress.history.last["value"], np.nan, np.nan, progress.work, progress.seconds
        last = Record(np.int32(progress.recorded), *map(np.float64, before))  # type: ignore[arg-type]
        end = self._run(progress.state, progress.rule_state, plan.key, ChunkLimits(*map(np.int32, limits)), last)
        status, state = Status(int(end.code)), end.state
        self._steps_per_second = (int(state.steps) - progress.steps) / (plan.seconds - began)
        records = np.column_stack([end.record_steps, end.record_numbers])[: int(end.filled)]
        if status is Status.DIVERGED:
            state = compiled(_last_finite, (plan.descent, plan.rule))(progress.state, plan.key, end.state.steps)
            records = records[records[:, 0] <= int(state.steps)]
        return progress.after(state, end.rule_state, status, records, float(end.work), plan.seconds)


def _step(descent: Descent, state: State, key: Key[Array, ""]) -> tuple[State, Info, Array]:
    """Take one step, and say whether it is finite."""
    state, info = _take_step(descent, state, key)
    return state, info, trees.all_finite(state.x)


class HostEngine:
    """Runs a method step by step; a chunk is what lies between two looks of the stopping rule."""

    def __init__(self, plan: RunPlan, start: Progress) -> None:
        self.plan = plan
        self._step = compiled(_step, plan.descent, options=plan.compiler_options)
        # Numbers of NumPy, whose arithmetic needs no compiling.
        self._method = plan.descent, jax.tree.map(np.asarray, plan.rule)
        self._kind = _record_dtype(start.state)

    # What overflows shows in the status, as in compiled code, and not in a warning.
    @np.errstate(all="ignore")
    def run(self, progress: Progress) -> Progress:
        """Take the steps up to the next look, and look."""
        plan, state, first, no_records = self.plan, progress.state, progress.steps, np.zeros((0, 5))
        until = first + int(_steps_to_look(np.int32(first), plan.stride, plan.last_step))
        total = work = 0.0
        for _ in range(first, until):
            following, info, valid = self._step(state, plan.key)
            work += float(info.work)
            if not valid:
                return progress.after(state, progress.rule_state, Status.DIVERGED, no_records, work, plan.seconds)
            state, total = following, total + float(info.value)
        value = float(info.value) if plan.descent.oracle.deterministic else total / (until - first)
        numbers: Any = (np.asarray(n, self._kind) for n in (value, info.residual, info.size))
        spent: Any = np.float64(progress.work + work), np.float64(plan.seconds)
        record = Record(np.asarray(until, np.int32), *numbers, *spent)  # type: ignore[arg-type]
        known: Any = np.asarray(progress.recorded, np.int32), np.asarray(progress.history.last["value"], self._kind)
        last, rule_state = record._replace(step=known[0], value=known[1]), jax.tree.map(np.asarray, progress.rule_state)
        rule_state, code, due = _look(self._method, rule_state, record, last, first, plan)
        records = np.array([[until, value, info.residual, info.size, work]] if due else no_records, np.float64)
        return progress.after(state, rule_state, Status(int(code)), records, work, plan.seconds)

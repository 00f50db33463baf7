"""The compiled engine: many steps, the stopping rule and a record now and then in one program; no Python inside.

One compiled function serves a whole run. How many steps a chunk holds and how many lie between two records are
arguments, not constants, so nothing is compiled twice.
"""

import time
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key, PyTree, Scalar

from thalweg import trees
from thalweg.descent.engines import Chunk, Progress, RunPlan, is_record_due, record_dtype, steps_to_look, take_step
from thalweg.descent.iteration import Descent, State
from thalweg.descent.programs import compiled
from thalweg.descent.result import Status
from thalweg.descent.stopping import Record, StoppingRule

MAX_RECORDS = 4096
"""The most records a chunk can hold. A chunk of half a second rarely has more; twice as many would copy 64 kB more."""

CHUNK_SECONDS = 0.5
"""How long a chunk is, about: short enough for a progress bar and Ctrl-C, long enough that a chunk's overhead of a
millisecond does not count. Twice as long would make Ctrl-C wait twice as long."""

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


class RecordBuffer(NamedTuple):
    """The records of a chunk so far, at the front of arrays of fixed length."""

    steps: Int[Array, " capacity"]
    numbers: Float[Array, "capacity 4"]
    """Value, residual, size, and the work since the start of the chunk."""
    filled: Int[Array, ""]

    def add(self, step: Int[Array, ""], numbers: Float[Array, "4"], due: Array) -> "RecordBuffer":
        """Write always and count when due: two small writes cost less than a branch."""
        write = partial(jax.lax.dynamic_update_index_in_dim, index=self.filled, axis=0)
        return RecordBuffer(write(self.steps, step), write(self.numbers, numbers), self.filled + due.astype(jnp.int32))


class ChunkState(NamedTuple):
    """What a chunk carries from look to look."""

    state: State
    rule_state: PyTree
    code: Int[Array, ""]
    records: RecordBuffer
    work: Scalar
    """Since the start of the chunk."""
    recorded: Int[Array, ""]
    value: Scalar


def _run_chunk(
    method: Method,
    state: State,
    rule_state: PyTree,
    key: Key[Array, ""],
    limits: ChunkLimits,
    last: Record,
) -> ChunkState:
    kind, zero = record_dtype(state), jnp.zeros((), jnp.int32)
    records = RecordBuffer(jnp.zeros(MAX_RECORDS, jnp.int32), jnp.zeros((MAX_RECORDS, 4), kind), zero)
    carry = ChunkState(state, rule_state, zero, records, jnp.zeros_like(last.work), last.step, last.value.astype(kind))

    def is_unfinished(carry: ChunkState) -> Array:
        return (carry.code == 0) & (carry.records.filled < limits.records) & (carry.state.steps < limits.until)

    look = partial(_run_to_next_look, method, key, limits, last)
    return jax.lax.while_loop(is_unfinished, look, carry)


def _last_finite(method: Method, state: State, key: Key[Array, ""], steps: Int[Array, ""]) -> State:
    """Replay a chunk that ended in NaN or infinity, step by step; return the last state with a finite x.

    Steps are pure, so replaying finds the very step; looking at every step the first time would cost every run.
    """
    after = lambda state: take_step(method[0], state, key)[0]
    finite = lambda carry: trees.all_finite(carry[1].x) & (carry[0].steps < steps)
    return jax.lax.while_loop(finite, lambda carry: (carry[1], after(carry[1])), (state, after(state)))[0]


def _run_to_next_look(
    method: Method, key: Key[Array, ""], limits: ChunkLimits, last: Record, carry: ChunkState
) -> ChunkState:
    """Take the steps up to a look, let the rule look, and record if a record is due."""
    descent, rule = method
    noisy, looked = not descent.oracle.deterministic, carry.state.steps
    steps = steps_to_look(looked, limits.stride, limits.last_step)
    state, work, value, residual, size = _take_steps(descent, carry, key, steps)
    known, valued = (value, state.steps) if noisy else (carry.value, carry.recorded)
    record = Record(state.steps, known, residual, size, last.work + work, last.seconds, valued)
    rule_state, code = rule.update(carry.rule_state, record)
    code = jnp.where(trees.all_finite(state.x), code, int(Status.DIVERGED)).astype(jnp.int32)
    due = jnp.ones((), bool)
    if not noisy:
        due = (code != 0) | is_record_due(state.steps, looked, carry.recorded, limits.stride, limits.last_step)
        if _informs_at_every_step(descent):
            value = jnp.where(due, value, carry.value)
        else:
            value = jax.lax.cond(due, lambda: descent.objective(state.x).astype(value.dtype), lambda: carry.value)
    numbers = jnp.stack([value, residual, size, work.astype(value.dtype)])
    records = carry.records.add(state.steps, numbers, due)
    return ChunkState(state, rule_state, code, records, work, jnp.where(due, state.steps, carry.recorded), value)


def _informs_at_every_step(descent: Descent) -> bool:
    """Return whether value, residual and size are known after every step: a search has nearly all of them."""
    factorises = descent.term.factorises or descent.divergence.factorises
    return descent.step.searches and not factorises and descent.tests_iterate


def _take_steps(
    descent: Descent, carry: ChunkState, key: Key[Array, ""], steps: Any
) -> tuple[State, Scalar, Scalar, Scalar, Scalar]:
    """Return state, work, value, residual and size after some steps; a noisy oracle's value is the mean over them."""
    kind, noisy = carry.value.dtype, not descent.oracle.deterministic
    informs = _informs_at_every_step(descent)

    def take(_: Any, before: tuple) -> tuple:
        state, work, total, _ = before
        state, info = take_step(descent, state, key)
        # The estimates of a noisy oracle are free, and averaged; an exact value is computed for records alone.
        return (
            state,
            work + info.work.astype(work.dtype),
            total + info.value.astype(kind) if noisy else total,
            info[:3] if informs else (),
        )

    unknown = (jnp.zeros((), trees.dtype(carry.state.x)),) * 3 if informs else ()
    taken = carry.state, carry.work, jnp.zeros((), kind), unknown
    if informs:
        state, work, _, numbers = jax.lax.fori_loop(0, steps, take, taken)
    else:
        # The last step alone is looked at, and traced on its own.
        state, work, total, _ = jax.lax.fori_loop(0, steps - 1, take, taken)
        state, info = take_step(descent, state, key)
        numbers, work = info[:3], work + info.work.astype(work.dtype)
    value, residual, size = (number.astype(kind) for number in numbers)
    if noisy:
        value = (total + value) / jnp.asarray(steps, kind)
    return state, work, value, residual, size


class CompiledEngine:
    """Runs a method in chunks of about half a second."""

    def __init__(self, plan: RunPlan, start: Progress) -> None:
        self.plan = plan
        method = plan.descent, plan.rule
        self._run = compiled(_run_chunk, method, options=plan.compiler_options)
        self._steps_per_second = 0.0

    def run(self, progress: Progress) -> Chunk:
        """Run for about half a second, or to the next record, or until the rule stops."""
        plan, began = self.plan, time.perf_counter()
        # The first chunk is one look; it may hold the compilation.
        chunk_steps = max(int(self._steps_per_second * CHUNK_SECONDS), 1)
        until = plan.last_step if plan.record_by_record else min(progress.steps + chunk_steps, plan.last_step)
        limits = until, 1 if plan.record_by_record else MAX_RECORDS, plan.last_step, plan.stride
        before: Any = progress.history.last["value"], np.nan, np.nan, progress.work, progress.seconds
        last = Record(np.int32(progress.recorded), *map(np.float64, before))  # type: ignore[arg-type]
        end = self._run(progress.state, progress.rule_state, plan.key, ChunkLimits(*map(np.int32, limits)), last)
        status, count = Status(int(end.code)), int(end.records.filled)
        taken, state = int(end.state.steps) - progress.steps, end.state
        self._steps_per_second = taken / (time.perf_counter() - began)
        steps, numbers = np.asarray(end.records.steps)[:count], np.asarray(end.records.numbers, np.float64)[:count]
        if status is Status.DIVERGED:
            replay = compiled(_last_finite, (plan.descent, plan.rule))
            state = replay(progress.state, plan.key, end.state.steps)
            finite = steps <= int(state.steps)
            steps, numbers = steps[finite], numbers[finite]
        return Chunk(state, end.rule_state, status, steps, numbers, taken, float(end.work))

"""The compiled engine: many steps, the stopping rule and a record now and then in one program; no Python inside.

One compiled function serves a whole run. How many steps a chunk holds and how many lie between two records are
arguments, not constants, so nothing is compiled twice.
"""

import time
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key, PyTree, Scalar

from thalweg import trees
from thalweg.descent.engines import (
    APART,
    GROWTH,
    Chunk,
    Course,
    Progress,
    book_dtype,
    captures_of,
    join,
    one_step,
    split,
)
from thalweg.descent.iteration import Descent, State
from thalweg.descent.result import Status
from thalweg.descent.stopping import Record, StoppingRule

_CAPACITY = 4096
"""The most records a chunk can hold."""

CHUNK_SECONDS = 0.5
"""A chunk is about this long: short enough for a progress bar and Ctrl-C, long enough to cost nothing."""


class Bounds(NamedTuple):
    """What bounds a chunk; whole numbers, on the host or traced."""

    until: Any
    """The chunk ends with the first look at or after this step."""
    records: Any
    """The chunk ends after so many records, at most ``_CAPACITY``."""
    last_step: Any
    """No step is taken after this one."""
    stride: Any
    """Steps between two records; 0 for a stride that grows with the run."""


class Before(NamedTuple):
    """What was spent, and recorded last, before a chunk; numbers, on the host or traced."""

    work: Any
    seconds: Any
    recorded: Any
    """The step of the last record; 0 if there is none."""
    value: Any
    """The objective there; NaN if there is none."""


class _Records(NamedTuple):
    steps: Int[Array, " capacity"]
    numbers: Float[Array, "capacity 4"]
    """Value, residual, size, and the work since the start of the chunk."""
    filled: Int[Array, ""]


class _Carry(NamedTuple):
    state: State
    rule_state: PyTree
    code: Int[Array, ""]
    records: _Records
    work: Scalar
    """Since the start of the chunk."""
    recorded: Int[Array, ""]
    value: Scalar


class _Program:
    """The compiled functions of one method, and how many steps a second it takes on arrays of given shapes."""

    def __init__(self, rest: tuple, whole_stride: int | None, options: tuple, captures: tuple) -> None:
        # What the functions captured when they were traced only tells programs apart.
        self._rest, self._whole_stride = rest, whole_stride
        self.run = jax.jit(self._run, compiler_options=dict(options))
        self.last_finite = jax.jit(self._last_finite)
        self.paces: dict[tuple, float] = {}

    def _run(
        self,
        arrays: tuple,
        state: State,
        rule_state: PyTree,
        key: Key[Array, ""],
        bounds: Bounds,
        before: Before,
    ) -> _Carry:
        method = join(self._rest, arrays)
        kind = book_dtype(state)
        none = jnp.zeros((), jnp.int32)
        records = _Records(jnp.zeros(_CAPACITY, jnp.int32), jnp.zeros((_CAPACITY, 4), kind), none)
        start = _Carry(
            state, rule_state, none, records, jnp.zeros_like(before.work), before.recorded, before.value.astype(kind)
        )

        def unfinished(carry: _Carry) -> Array:
            return (carry.code == 0) & (carry.records.filled < bounds.records) & (carry.state.steps < bounds.until)

        ahead = partial(_to_the_next_look, method, self._whole_stride, key, bounds, before)
        return jax.lax.while_loop(unfinished, ahead, start)

    def _last_finite(self, arrays: tuple, state: State, key: Key[Array, ""], steps: Int[Array, ""]) -> State:
        """Replay a chunk that ended in NaN or infinity, step by step; return the last state with a finite x.

        Steps are pure, so replaying finds the very step; looking at every step the first time would cost every run.
        """
        descent, _ = join(self._rest, arrays)
        ahead = lambda state: one_step(descent, state, key)[0]
        finite = lambda carry: trees.all_finite(carry[1].x) & (carry[0].steps < steps)
        return jax.lax.while_loop(finite, lambda carry: (carry[1], ahead(carry[1])), (state, ahead(state)))[0]


def _to_the_next_look(
    method: tuple[Descent, StoppingRule],
    whole_stride: int | None,
    key: Key[Array, ""],
    bounds: Bounds,
    before: Before,
    carry: _Carry,
) -> _Carry:
    """Take the steps up to a look, let the rule look, and record if a record is due."""
    descent, rule = method
    noisy = not descent.oracle.deterministic
    kind = carry.value.dtype
    growing = 1 + carry.state.steps // GROWTH
    free = jnp.where(bounds.stride > 0, bounds.stride, growing)
    # A loop whose length is known when it is compiled is faster by a test a step.
    steps = whole_stride or jnp.minimum(free, bounds.last_step - carry.state.steps)
    fixed_work = None if descent.step.searches else descent.oracle.fixed_work

    # A search knows nearly all that is looked at, which is kept at every step; elsewhere it is found for the last step
    # alone, which is traced on its own.
    dear = descent.term.factorises or descent.divergence.factorises
    kept = descent.step.searches and not dear and descent.tests_iterate

    def step(_, taken):
        state, work, total, _ = taken
        state, info = one_step(descent, state, key)
        if fixed_work is None:
            work = work + info.work.astype(work.dtype)
        # The estimates of a noisy oracle are free, and averaged; an exact value is computed for records alone.
        return state, work, total + info.value.astype(kind) if noisy else total, info[:3] if kept else ()

    taken = carry.state, carry.work, jnp.zeros((), kind), (jnp.zeros((), trees.dtype(carry.state.x)),) * 3 * kept
    if kept:
        state, work, _, (value, residual, size) = jax.lax.fori_loop(0, steps, step, taken)
    else:
        # A loop that never runs would still be traced, and a step is the larger part of what there is to trace.
        if whole_stride != 1:
            taken = jax.lax.fori_loop(0, steps - 1, step, taken)
        state, work, total, _ = taken
        state, info = one_step(descent, state, key)
        value, residual, size, last_work = info
        work = work + (
            last_work.astype(work.dtype) if fixed_work is None else jnp.asarray(steps, work.dtype) * fixed_work
        )
    value, residual, size = (part.astype(kind) for part in (value, residual, size))
    value = (total + value) / jnp.asarray(steps, kind) if noisy else value
    last, valued = (value, state.steps) if noisy else (carry.value, carry.recorded)
    seen = Record(state.steps, last, residual, size, before.work + work, before.seconds, valued)
    rule_state, code = rule.update(carry.rule_state, seen)
    code = jnp.where(trees.all_finite(state.x), code, int(Status.DIVERGED)).astype(jnp.int32)
    apart = jnp.where(bounds.stride > 0, bounds.stride, jnp.maximum(growing, APART))
    due = noisy | (carry.recorded == 0) | (state.steps >= carry.recorded + apart)
    due = due | (code != 0) | (state.steps == bounds.last_step)
    if whole_stride:
        due = jnp.ones((), bool)
    elif kept:
        value = jnp.where(due, value, carry.value)
    elif not noisy:
        value = jax.lax.cond(due, lambda: descent.objective(state.x).astype(kind), lambda: carry.value)
    numbers = jnp.stack([value, residual, size, work.astype(kind)])
    records = _recorded(carry.records, state.steps, numbers, due)
    return _Carry(state, rule_state, code, records, work, jnp.where(due, state.steps, carry.recorded), value)


def _recorded(records: _Records, step: Int[Array, ""], numbers: Float[Array, "4"], due: Array) -> _Records:
    """Write always and count when due: two small writes cost less than a branch."""
    write = partial(jax.lax.dynamic_update_index_in_dim, index=records.filled, axis=0)
    return _Records(write(records.steps, step), write(records.numbers, numbers), records.filled + due.astype(jnp.int32))


_program = lru_cache(maxsize=32)(_Program)
"""One program per method and what its functions capture; only the last few are kept, with the data captured."""


class CompiledEngine:
    """Runs a method in chunks of about half a second."""

    def __init__(self, plan: Course, start: Progress) -> None:
        self.plan = plan
        self._arrays, rest = split((plan.descent, plan.rule))
        # A stride that divides the steps is known to the compiler.
        whole = plan.stride and (plan.last_step - start.steps) % plan.stride == 0
        captures = captures_of((plan.descent, plan.rule), rest)
        self._program = _program(rest, plan.stride if whole else None, plan.options, captures)
        self._shapes = tuple(
            (np.shape(leaf), str(leaf.dtype)) for leaf in (*self._arrays, *jax.tree.leaves(start.state))
        )
        self._pace = self._program.paces.get(self._shapes)
        # The first chunk of a method that was never run is one look; it holds the compilation.
        self._chunk_steps = 1 if self._pace is None else _chunk_steps(self._pace)

    def run(self, progress: Progress) -> Chunk:
        """Run for about half a second, or to the next record, or until the rule stops."""
        plan, row = self.plan, progress.history.last
        begun = time.perf_counter()
        until = plan.last_step if plan.record_by_record else min(progress.steps + self._chunk_steps, plan.last_step)
        bounds = Bounds(until, 1 if plan.record_by_record else _CAPACITY, plan.last_step, plan.stride)
        recorded = 0 if np.isnan(row["step"]) else int(row["step"])
        end = self._program.run(
            self._arrays,
            progress.state,
            progress.rule_state,
            plan.key,
            Bounds(*map(np.int32, bounds)),
            Before(
                np.float64(progress.work), np.float64(progress.seconds), np.int32(recorded), np.float64(row["value"])
            ),
        )
        status, count = Status(int(end.code)), int(end.records.filled)
        taken = int(end.state.steps) - progress.steps
        self._adapt(taken, time.perf_counter() - begun)
        state = end.state
        steps, numbers = np.asarray(end.records.steps)[:count], np.asarray(end.records.numbers, np.float64)[:count]
        if status is Status.DIVERGED:
            state = self._program.last_finite(self._arrays, progress.state, plan.key, end.state.steps)
            finite = steps <= int(state.steps)
            steps, numbers = steps[finite], numbers[finite]
        return Chunk(state, end.rule_state, status, steps, numbers, taken, float(end.work))

    def _adapt(self, steps: int, seconds: float) -> None:
        """Choose how many steps make a chunk of the wanted length."""
        pace = max(steps, 1) / max(seconds, 1e-9)
        compiled = self._pace is None and self._chunk_steps == 1
        self._chunk_steps = min(_chunk_steps(pace), 1000 * max(steps, 1))
        if not compiled:
            self._pace = self._program.paces[self._shapes] = pace


def _chunk_steps(pace: float) -> int:
    return max(int(pace * CHUNK_SECONDS), 1)

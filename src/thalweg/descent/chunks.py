"""The compiled part of the loop: many steps, the stopping rule and a record now and then; no Python inside.

One compiled function serves a whole run. How many steps a chunk holds and how many lie between two records are
arguments, not constants, so nothing is compiled twice.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key, PyTree, Scalar

from thalweg import trees
from thalweg.descent.iteration import Descent, Info, State
from thalweg.descent.result import Status
from thalweg.descent.stopping import Record, StoppingRule

CAPACITY = 4096
"""The most records a chunk can hold."""

_GROWTH = 32
"""With no stride given, the rule looks at every step at first and then at about every 1/32 of the way so far: a few
hundred looks whatever the length of the run, and at most 3 % of the steps after it could have stopped."""

_APART = 10
"""With no stride given, records of an exact oracle lie at least this many steps apart. A record evaluates the
objective, which costs about half a step: about 5 % of a short run, and nothing of a long one."""


class Bounds(NamedTuple):
    """What bounds a chunk; whole numbers, on the host or traced."""

    until: Any
    """The chunk ends with the first look at or after this step."""
    rows: Any
    """The chunk ends after so many records, at most ``CAPACITY``."""
    last_step: Any
    """No step is taken after this one."""
    stride: Any
    """Steps between two records; 0 for a stride that grows with the run."""


class Before(NamedTuple):
    """What was spent, and recorded last, before a chunk; numbers, on the host or traced."""

    work: Any
    seconds: Any
    row: Any
    """The step of the last record; 0 if there is none."""
    value: Any
    """The objective there; NaN if there is none."""


class Rows(NamedTuple):
    """The records of a chunk: steps, and value, residual, size and work (since the start of the chunk)."""

    steps: Int[Array, " capacity"]
    numbers: Float[Array, "capacity 4"]


class Chunk(NamedTuple):
    """What a chunk returns."""

    state: State
    rule_state: PyTree
    code: Int[Array, ""]
    rows: Rows
    filled: Int[Array, ""]
    """How many rows are."""
    work: Scalar
    """Work done in this chunk."""


class _Carry(NamedTuple):
    state: State
    rule_state: PyTree
    code: Int[Array, ""]
    rows: Rows
    filled: Int[Array, ""]
    work: Scalar
    last_row: Int[Array, ""]
    value: Scalar


def _one_step(descent: Descent, state: State, key: Key[Array, ""]) -> tuple[State, Info]:
    period = descent.oracle.period
    if period is not None:
        due = (state.steps > 0) & (state.steps % period == 0)
        state = jax.lax.cond(due, lambda state: descent.renew(state), lambda state: state, state)
    if not descent.oracle.deterministic:
        key = jax.random.fold_in(key, state.steps)
    return descent.update(state, key)


class Split:
    """A pytree as arrays, which travel through ``jit``, and the rest, which is hashed once instead of at every chunk.

    The arrays are a plain tuple, which costs far less to take apart at every call than the modules they came from.
    """

    def __init__(self, tree: PyTree) -> None:
        leaves, structure = jax.tree.flatten(tree)
        self.arrays = tuple(leaf for leaf in leaves if eqx.is_array(leaf))
        self.rest = _Rest(structure, tuple(None if eqx.is_array(leaf) else leaf for leaf in leaves))


class _Rest:
    def __init__(self, structure: Any, others: tuple) -> None:
        self._identity = (structure, others)
        self._hash = hash(self._identity)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, _Rest) and self._identity == other._identity)

    def joined(self, arrays: tuple) -> PyTree:
        """Put the arrays back where they were."""
        structure, others = self._identity
        rest = iter(arrays)
        return jax.tree.unflatten(structure, [next(rest) if leaf is None else leaf for leaf in others])


@dataclass
class _Compiled:
    """A compiled method, and how many steps a second it was last seen to take on arrays of these shapes."""

    run: Callable[..., Chunk]
    paces: dict[tuple, float]


@lru_cache(maxsize=32)
def _compiled(rest: _Rest, whole_stride: int | None, options: tuple) -> _Compiled:
    """One compiled function a method; only the last few are kept, with the data their functions close over."""
    return _Compiled(jax.jit(partial(_run, rest, whole_stride), compiler_options=dict(options)), {})


def _run(
    rest: _Rest,
    whole_stride: int | None,
    arrays: tuple,
    state: State,
    rule_state: PyTree,
    key: Key[Array, ""],
    bounds: Bounds,
    before: Before,
) -> Chunk:
    descent, rule = rest.joined(arrays)
    # Half precision is too coarse to keep books in.
    dtype = jnp.promote_types(trees.dtype(state.x), jnp.float32)
    noisy = not descent.oracle.deterministic
    fixed_work = None if descent.step.searches else descent.oracle.fixed_work

    def inner(_, carry):
        state, work, total = carry
        state, info = _one_step(descent, state, key)
        if fixed_work is None:
            work = work + info.work.astype(work.dtype)
        # The estimates of a noisy oracle are free, and averaged; an exact value is computed for records alone.
        return state, work, total + info.value.astype(dtype) if noisy else total

    def look(carry: _Carry) -> _Carry:
        growing = 1 + carry.state.steps // _GROWTH
        free = jnp.where(bounds.stride > 0, bounds.stride, growing)
        # A loop whose length is known when it is compiled is faster by a test a step.
        steps = whole_stride or jnp.minimum(free, bounds.last_step - carry.state.steps)
        before_last = (carry.state, carry.work, jnp.zeros((), dtype))
        # A loop that never runs would still be traced, and a step is the larger part of what there is to trace.
        if whole_stride != 1:
            before_last = jax.lax.fori_loop(0, steps - 1, inner, before_last)
        state, work, total = before_last
        state, info = _one_step(descent, state, key)
        work = work + jnp.asarray(info.work if fixed_work is None else steps * fixed_work, work.dtype)

        value = (total + info.value.astype(dtype)) / steps if noisy else carry.value
        residual, size = info.residual.astype(dtype), info.size.astype(dtype)
        seen = Record(state.steps, value, residual, size, before.work + work, before.seconds)
        rule_state, code = rule.update(carry.rule_state, seen)
        code = jnp.where(trees.all_finite(state.x), code, int(Status.DIVERGED)).astype(jnp.int32)

        if whole_stride:
            due = jnp.ones((), bool)
            value = value if noisy else info.value.astype(dtype)
        else:
            apart = jnp.where(bounds.stride > 0, bounds.stride, jnp.maximum(growing, _APART))
            due = noisy | (carry.last_row == 0) | (state.steps >= carry.last_row + apart)
            due = due | (code != 0) | (state.steps == bounds.last_step)
            if not noisy:
                value = jax.lax.cond(due, lambda: descent.objective(state.x).astype(dtype), lambda: carry.value)
        numbers = jnp.stack([value, residual, size, work.astype(dtype)])
        # Written always and counted when due: two small writes cost less than a branch.
        rows = Rows(
            jax.lax.dynamic_update_index_in_dim(carry.rows.steps, state.steps, carry.filled, 0),
            jax.lax.dynamic_update_index_in_dim(carry.rows.numbers, numbers, carry.filled, 0),
        )
        last_row = jnp.where(due, state.steps, carry.last_row)
        return _Carry(state, rule_state, code, rows, carry.filled + due, work, last_row, value)

    def unfinished(carry: _Carry) -> Array:
        return (carry.code == 0) & (carry.filled < bounds.rows) & (carry.state.steps < bounds.until)

    rows = Rows(jnp.zeros(CAPACITY, jnp.int32), jnp.zeros((CAPACITY, 4), dtype))
    none = jnp.zeros((), jnp.int32)
    value = before.value.astype(dtype)
    start = _Carry(state, rule_state, none, rows, none, jnp.zeros_like(before.work), before.row, value)
    end = jax.lax.while_loop(unfinished, look, start)
    return Chunk(end.state, end.rule_state, end.code, end.rows, end.filled, end.work)


class Runner:
    """Runs the chunks of one run of a method, the pair (descent, rule)."""

    def __init__(
        self,
        method: tuple[Descent, StoppingRule],
        state: State,
        stride: int,
        steps: int,
        compiler_options: Mapping[str, Any] | None,
    ) -> None:
        split = Split(method)
        self._rest, self._arrays = split.rest, split.arrays
        # A stride that divides the steps is known to the compiler.
        whole_stride = stride if stride and steps % stride == 0 else None
        self._compiled = _compiled(split.rest, whole_stride, tuple(sorted((compiler_options or {}).items())))
        self._shapes = tuple((jnp.shape(leaf), str(leaf.dtype)) for leaf in [*split.arrays, *jax.tree.leaves(state)])

    @property
    def pace(self) -> float | None:
        """Steps a second, if this method was run on arrays of these shapes before."""
        return self._compiled.paces.get(self._shapes)

    @pace.setter
    def pace(self, steps_a_second: float) -> None:
        self._compiled.paces[self._shapes] = steps_a_second

    def run(self, state: State, rule_state: PyTree, key: Key[Array, ""], bounds: Bounds, before: Before) -> Chunk:
        """Run until the bounds are met or the rule stops."""
        bounds = Bounds(*(np.asarray(n, np.int32) for n in bounds))
        before = Before(*(np.asarray(n, np.int32 if isinstance(n, int) else np.float64) for n in before))
        return self._compiled.run(self._arrays, state, rule_state, key, bounds, before)

    def last_finite(self, state: State, key: Key[Array, ""], steps: Int[Array, ""]) -> State:
        """Replay a chunk that ended in NaN or infinity, step by step; return the last state with a finite x.

        Steps are pure, so replaying finds the very step; looking at every step the first time would cost every run.
        """
        return _replay(self._rest, self._arrays, state, key, steps)


@partial(jax.jit, static_argnums=0)
def _replay(rest: _Rest, arrays: tuple, state: State, key: Key[Array, ""], steps: Int[Array, ""]) -> State:
    descent, _ = rest.joined(arrays)

    def ahead(state):
        return _one_step(descent, state, key)[0]

    def finite(carry):
        state, following = carry
        return trees.all_finite(following.x) & (state.steps < steps)

    return jax.lax.while_loop(finite, lambda carry: (carry[1], ahead(carry[1])), (state, ahead(state)))[0]

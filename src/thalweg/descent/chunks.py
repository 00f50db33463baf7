"""The compiled part of the loop: many steps, a record at a stride, the stopping rule; no Python inside.

One compiled function serves a whole run. How many records a chunk holds and how many steps lie between two
records are arguments, not constants, so nothing is compiled twice.
"""

from functools import partial
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key, PyTree, Scalar

from thalweg import trees
from thalweg.descent.iteration import Descent, Info, State
from thalweg.descent.result import Status
from thalweg.descent.stopping import Record

CAPACITY = 4096
"""The most records a chunk can hold."""

_GROWTH = 32
"""With no stride given, records come at every step at first and then at about every 1/32 of the way so far: a few
hundred records whatever the length of the run, and at most 3 % of the steps after a rule could have stopped."""


class Bounds(NamedTuple):
    """What bounds a chunk."""

    until: Int[Array, ""] | int
    """The chunk ends with the first record at or after this step."""
    last_step: Int[Array, ""] | int
    """No step is taken after this one."""
    stride: Int[Array, ""] | int
    """Steps between two records; 0 for a stride that grows with the run."""


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
    count: Int[Array, ""]
    """How many rows are filled."""


def _one_step(descent: Descent, state: State, key: Key[Array, ""]) -> tuple[State, Info]:
    period = descent.oracle.period
    if period is not None:
        due = (state.count > 0) & (state.count % period == 0)
        state = jax.lax.cond(due, lambda state: descent.renew(state), lambda state: state, state)
    return descent.update(state, jax.random.fold_in(key, state.count))


class Split:
    """A pytree as arrays, which travel through ``jit``, and the rest, hashed once instead of at every chunk."""

    def __init__(self, tree: PyTree) -> None:
        arrays, rest = eqx.partition(tree, eqx.is_array)
        self.arrays = arrays
        leaves, structure = jax.tree.flatten(rest)
        self.rest = _Rest(rest, (tuple(leaves), structure))


class _Rest:
    def __init__(self, tree: PyTree, identity: tuple) -> None:
        self.tree = tree
        self._identity = identity
        self._hash = hash(identity)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, _Rest) and self._identity == other._identity)


@partial(jax.jit, static_argnums=0)
def _run(
    rest: _Rest,
    arrays: PyTree,
    state: State,
    rule_state: PyTree,
    key: Key[Array, ""],
    bounds: Bounds,
    work: Scalar,
    seconds: Scalar,
) -> Chunk:
    descent, rule = eqx.combine(arrays, rest.tree)
    dtype = trees.dtype(state.x)
    noisy = not descent.oracle.deterministic
    fixed_work = None if descent.step.searches else descent.oracle.fixed_work

    def inner(_, carry):
        state, spent, total = carry
        state, info = _one_step(descent, state, key)
        if fixed_work is None:
            spent = spent + info.work.astype(work.dtype)
        # An exact value would be a function evaluation at every step; it is computed for records alone.
        return state, spent, total + info.value if noisy else total

    def record(carry):
        state, rule_state, _, rows, i, spent = carry
        free = jnp.where(bounds.stride > 0, bounds.stride, 1 + state.count // _GROWTH)
        steps = jnp.minimum(free, bounds.last_step - state.count)
        state, spent, total = jax.lax.fori_loop(0, steps - 1, inner, (state, spent, jnp.zeros((), dtype)))
        state, info = _one_step(descent, state, key)
        spent = spent + (info.work if fixed_work is None else steps * fixed_work).astype(work.dtype)
        value = (total + info.value) / steps if noisy else info.value
        row = Record(state.count, value, info.residual, info.size, work + spent, seconds)
        rule_state, code = rule.update(rule_state, row)
        code = jnp.where(trees.all_finite(state.x), code, int(Status.DIVERGED)).astype(jnp.int32)
        numbers = jnp.stack([value, info.residual, info.size, spent.astype(dtype)])
        # Two small writes, unchecked: they are what a record costs beside its own arithmetic.
        rows = Rows(
            rows.steps.at[i].set(state.count, mode="promise_in_bounds"),
            rows.numbers.at[i].set(numbers, mode="promise_in_bounds"),
        )
        return state, rule_state, code, rows, i + 1, spent

    def unfinished(carry):
        state, _, code, _, i, _ = carry
        return (code == 0) & (i < CAPACITY) & (state.count < bounds.until)

    rows = Rows(jnp.zeros(CAPACITY, jnp.int32), jnp.zeros((CAPACITY, 4), dtype))
    none = jnp.zeros((), jnp.int32)
    start = (state, rule_state, none, rows, none, jnp.zeros_like(work))
    state, rule_state, code, rows, count, _ = jax.lax.while_loop(unfinished, record, start)
    return Chunk(state, rule_state, code, rows, count)


def run_chunk(
    method: Split,
    state: State,
    rule_state: PyTree,
    key: Key[Array, ""],
    bounds: Bounds,
    work: float,
    seconds: float,
) -> Chunk:
    """Run until the bounds are met or the rule stops; ``work`` and ``seconds`` are those spent before.

    ``method`` is the pair (descent, rule).
    """
    bounds = Bounds(*(np.asarray(n, np.int32) for n in bounds))
    spent = np.asarray(work, np.float32), np.asarray(seconds, np.float32)
    return _run(method.rest, method.arrays, state, rule_state, key, bounds, *spent)


def last_finite(method: Split, state: State, key: Key[Array, ""], steps: Int[Array, ""]) -> State:
    """Replay a chunk that ended in NaN or infinity, step by step; return the last state with a finite x.

    Steps are pure, so replaying finds the very step; looking at every step the first time would cost every run.
    """
    return _replay(method.rest, method.arrays, state, key, steps)


@partial(jax.jit, static_argnums=0)
def _replay(rest: _Rest, arrays: PyTree, state: State, key: Key[Array, ""], steps: Int[Array, ""]) -> State:
    descent, _ = eqx.combine(arrays, rest.tree)

    def ahead(state):
        return _one_step(descent, state, key)[0]

    def finite(carry):
        state, following = carry
        return trees.all_finite(following.x) & (state.count < steps)

    return jax.lax.while_loop(finite, lambda carry: (carry[1], ahead(carry[1])), (state, ahead(state)))[0]

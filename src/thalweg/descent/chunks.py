"""The compiled part of the loop: many steps, a record at a stride, the stopping rule; no Python inside.

One compiled function serves a whole run. How many records a chunk holds and how many steps lie between two
records are arguments, not constants, so nothing is compiled twice.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, Key, PyTree, Scalar

from thalweg import trees
from thalweg.descent.iteration import Descent, Info, State
from thalweg.descent.result import Status
from thalweg.descent.stopping import Record, StoppingRule

CAPACITY = 4096
"""The most records a chunk can hold."""

_GROWTH = 32
"""With no stride given, records come at every step at first and then at about every 1/32 of the way so far: a few
hundred records whatever the length of the run, and at most 3 % of the steps after a rule could have stopped."""


class Bounds(NamedTuple):
    """What bounds a chunk."""

    records: Int[Array, ""]
    last_step: Int[Array, ""]
    stride: Int[Array, ""]
    """Steps between two records; 0 for a stride that grows with the run."""


class Chunk(NamedTuple):
    """What a chunk returns."""

    state: State
    rule_state: PyTree
    code: Int[Array, ""]
    rows: Record
    """Columns of capacity ``CAPACITY``; work counted from the start of the chunk."""
    count: Int[Array, ""]
    """How many rows are filled."""


def _one_step(descent: Descent, state: State, key: Key[Array, ""]) -> tuple[State, Info]:
    period = descent.oracle.period
    if period is not None:
        due = (state.count > 0) & (state.count % period == 0)
        state = jax.lax.cond(due, lambda state: descent.renew(state), lambda state: state, state)
    return descent.update(state, jax.random.fold_in(key, state.count))


@eqx.filter_jit
def run_chunk(
    descent: Descent,
    rule: StoppingRule,
    state: State,
    rule_state: PyTree,
    key: Key[Array, ""],
    bounds: Bounds,
    work: Scalar,
    seconds: Scalar,
) -> Chunk:
    """Run until the bounds are met or the rule stops; ``work`` and ``seconds`` are those spent before."""
    dtype = trees.dtype(state.x)
    noisy = not descent.oracle.deterministic

    def inner(_, carry):
        state, spent, total = carry
        state, info = _one_step(descent, state, key)
        # An exact value would be a function evaluation at every step; it is computed for records alone.
        return state, spent + info.work.astype(work.dtype), total + info.value if noisy else total

    def record(carry):
        state, rule_state, _, rows, i, spent = carry
        free = jnp.where(bounds.stride > 0, bounds.stride, 1 + state.count // _GROWTH)
        steps = jnp.minimum(free, bounds.last_step - state.count)
        state, spent, total = jax.lax.fori_loop(0, steps - 1, inner, (state, spent, jnp.zeros((), dtype)))
        state, info = _one_step(descent, state, key)
        spent = spent + info.work.astype(work.dtype)
        value = (total + info.value) / steps if noisy else info.value
        row = Record(state.count, value, info.residual, info.size, spent, seconds)
        rule_state, code = rule.update(rule_state, row._replace(work=work + spent))
        code = jnp.where(trees.all_finite(state.x), code, int(Status.DIVERGED)).astype(jnp.int32)
        rows = jax.tree.map(lambda column, entry: column.at[i].set(entry.astype(column.dtype)), rows, row)
        return state, rule_state, code, rows, i + 1, spent

    def unfinished(carry):
        state, _, code, _, i, _ = carry
        return (code == 0) & (i < bounds.records) & (state.count < bounds.last_step)

    column = lambda dtype: jnp.zeros(CAPACITY, dtype)
    rows = Record(column(jnp.int32), *[column(dtype)] * 3, column(work.dtype), column(seconds.dtype))
    start = (
        state,
        rule_state,
        jnp.zeros((), jnp.int32),
        rows,
        jnp.zeros((), jnp.int32),
        jnp.zeros_like(work),
    )
    state, rule_state, code, rows, count, _ = jax.lax.while_loop(unfinished, record, start)
    return Chunk(state, rule_state, code, rows, count)


@eqx.filter_jit
def last_finite(descent: Descent, state: State, key: Key[Array, ""], steps: Int[Array, ""]) -> State:
    """Replay a chunk that ended in NaN or infinity, step by step; return the last state with a finite x.

    Steps are pure, so replaying finds the very step; looking at every step the first time would cost every run.
    """

    def ahead(state):
        return _one_step(descent, state, key)[0]

    def finite(carry):
        state, following = carry
        return trees.all_finite(following.x) & (state.count < steps)

    return jax.lax.while_loop(finite, lambda carry: (carry[1], ahead(carry[1])), (state, ahead(state)))[0]

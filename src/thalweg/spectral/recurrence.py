"""The recurrence w_{j+1} = 2Ãw_j − w_{j−1}, compiled, on a block of probes that shrinks as they finish.

Values need half the products, because T_{2j} and T_{2j+1} of a symmetric operator are products of two vectors known
already: v·w_{2j} = 2‖w_j‖² − ‖v‖² and v·w_{2j−1} = 2 w_{j−1}·w_j − v·w_1.

Probes come sorted by stratum, the longest degrees first (see :mod:`thalweg.spectral.probes`), so that the ones that
have finished are always the last columns: the block is halved by dropping them, with shapes known to the compiler.
"""

from collections.abc import Callable
from functools import reduce
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int


class Tables(NamedTuple):
    """What a recurrence reads: the map Ã = scale·A − shift onto [−1, 1] and the weights b_j/S_j, b′_j/S_j."""

    scale: Float[Array, ""]
    shift: Float[Array, ""]
    weights: Float[Array, " n"]
    derivative: Float[Array, " n"]


class Forms(NamedTuple):
    """Quadratic forms of the truncated series."""

    mean: Float[Array, ""]
    values: Float[Array, " m"]
    squares: Float[Array, " m"]
    """‖w_0‖² of each probe."""
    outside: Float[Array, ""]
    """1 or −1 where an eigenvalue was seen above or below the interval, else 0."""
    products: Float[Array, ""]


class _SweepState(NamedTuple):
    step: Int[Array, ""]
    older: Float[Array, "d w"]
    newer: Float[Array, "d w"]
    values: Float[Array, " w"]
    vectors: tuple
    outside: Float[Array, ""]


def _columns(carry: _SweepState, columns: slice) -> _SweepState:
    return jax.tree.map(lambda x: x[..., columns] if x.ndim else x, carry)


def block_widths(units: int, group: int) -> tuple[int, ...]:
    """Return the widths through which the block shrinks: halves in whole strata (pairs of units), of at least four.

    Every width is a loop of its own to compile; narrower ones would save less than that costs.
    """
    strata, widths = units // 2, [units * group]
    while strata >= 8:
        strata //= 2
        widths.append(2 * strata * group)
    return tuple(widths)


def sweep(
    apply: Callable[[Any], Any],
    tables: Tables,
    start: Float[Array, "d m"],
    degrees: Int[Array, " m"],
    widths: tuple[int, ...],
    accumulate: tuple[Int[Array, " m"], ...] = (),
    keep_last: bool = False,
    stride: int = 1,
) -> tuple[Forms, tuple, tuple]:
    """Run the recurrence for every probe of ``start``, sorted so that degrees do not increase, up to its degree.

    It returns the forms; for each array of degrees in ``accumulate`` also u = Σ_{j≤n} (b′_j/S_j) w_j, which takes n
    products where the value takes n/2. With ``keep_last`` it runs to the full degree and returns (w_n, w_{n−1}) of
    every probe, from where the recurrence can be run backwards. ``stride`` is :attr:`Operator.stride`: at most one step
    is wasted.
    """
    full = bool(accumulate) or keep_last
    own = jnp.maximum(reduce(jnp.maximum, accumulate, degrees) if full else -(-degrees // 2), 1)
    # Degrees fall from one stratum to the next, but not within one: bound them from the right.
    needed = jax.lax.cummax(own, reverse=True)

    # Where ‖w_j‖² exceeds ‖v‖² by more, an eigenvalue must lie outside: rounding alone does less.
    dtype, limit = start.dtype, 1.0 + max(1e-6, 1e4 * float(jnp.finfo(start.dtype).eps))
    shifted = lambda block: tables.scale * apply(block) - tables.shift * block
    squares, first = jnp.sum(start * start, axis=0), shifted(start)
    moment = jnp.sum(start * first, axis=0)
    weigh = lambda j, limit, table: jnp.where(j <= limit, table.at[j].get(mode="fill", fill_value=0), 0)

    def watch(outside: Any, size: Any, cross: Any) -> Any:
        # The component that has grown most dominates w_j ever more: at the upper end it keeps its sign from step to
        # step, at the lower end it alternates. (`not ≤` also holds for NaN, where `>` would let it pass.)
        share = size / squares[: size.size]
        largest = jnp.argmax(share)
        grown = ~(share[largest] <= limit)
        side = jnp.where(cross[largest] < 0, -1.0, 1.0).astype(dtype)
        known = (outside != 0) & ~jnp.isfinite(cross[largest])
        return jnp.where(grown & ~known, side, outside)

    def add(k: Any, older: Array, newer: Array, values: Array, vectors: tuple, outside: Array) -> _SweepState:
        """Add the terms of T_k, T_(2k−1) and T_2k, where ``newer`` is w_k."""
        width = newer.shape[1]
        cross, size = jnp.sum(older * newer, axis=0), jnp.sum(newer * newer, axis=0)
        odd = weigh(2 * k - 1, degrees[:width], tables.weights) * (2.0 * cross - moment[:width])
        even = weigh(2 * k, degrees[:width], tables.weights) * (2.0 * size - squares[:width])
        grown = lambda u, other: u + weigh(k, other[:width], tables.derivative)[None, :] * newer
        vectors = tuple(map(grown, vectors, accumulate))
        return _SweepState(k + 1, older, newer, values + odd + even, vectors, watch(outside, size, cross))

    def advance(carry: _SweepState) -> _SweepState:
        older, newer = carry.newer, 2.0 * shifted(carry.newer) - carry.older
        if keep_last:
            active = (carry.step <= own[: newer.shape[1]])[None, :]
            older, newer = jnp.where(active, older, carry.older), jnp.where(active, newer, carry.newer)
        return add(carry.step, older, newer, carry.values, carry.vectors, carry.outside)

    def turn(carry: _SweepState) -> _SweepState:
        for _ in range(stride):
            carry = advance(carry)
        return carry

    vectors = tuple(tables.derivative[0] * start for _ in accumulate)
    one = jnp.asarray(1, needed.dtype)
    carry = add(one, start, first, tables.weights[0] * squares, vectors, jnp.zeros((), dtype))
    products = jnp.asarray(start.shape[1], dtype)
    done: list[_SweepState] = []
    for index, width in enumerate(widths):
        following = widths[index + 1] if index + 1 < len(widths) else 0
        # The next width holds once every probe beyond it has finished.
        before, bound = carry.step, needed[following]
        carry = jax.lax.while_loop(lambda carry: carry.step <= bound, turn, carry)  # noqa: B023
        products = products + width * (carry.step - before).astype(dtype)
        done.append(_columns(carry, slice(following, None)))
        carry = _columns(carry, slice(0, following))
    joined = jax.tree.map(lambda *parts: jnp.concatenate(parts, axis=-1) if parts[0].ndim else parts[-1], *done[::-1])
    forms = Forms(jnp.mean(joined.values), joined.values, squares, carry.outside, products)
    return forms, joined.vectors, (joined.newer, joined.older)

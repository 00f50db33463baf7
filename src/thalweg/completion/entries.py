"""Ratings in blocks of one length, so that sums over the ratings of a row are a few wide operations."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from thalweg.padding import padded_size

_LONG, _SHORT = 32, 8
"""Ratings a block: the longer the fewer blocks, the shorter the less padding where rows have few."""

_BLOCKS = {"cpu": 512}
"""Blocks that are summed at a time: on a CPU their sums should stay in the cache, elsewhere they should fill it."""


_GRAIN = 128
"""Blocks that small sets are padded to a multiple of, so that many share a program."""


class Entries(NamedTuple):
    """The ratings of each row in turn, in chunks of blocks, each block with ratings of one row; padding weighs 0.

    Examples
    --------
    >>> entries = Entries.of(np.array([0, 0, 1]), np.array([0, 2, 1]), np.array([3.0, 4.0, 5.0]), None, 2)
    >>> float(jnp.sum(entries.weights)), float(jnp.sum(entries.values))
    (3.0, 12.0)
    """

    columns: Int[Array, "chunks length blocks"]
    values: Float[Array, "chunks length blocks"]
    weights: Float[Array, "chunks length blocks"]
    rows: Int[Array, "chunks blocks"]

    @staticmethod
    def of(
        rows: np.ndarray,
        columns: np.ndarray,
        values: np.ndarray,
        weights: np.ndarray | None,
        count: int,
        dtype: type = np.float32,
    ) -> "Entries":
        """Arrange ratings, in any order, of ``count`` rows."""
        order = np.argsort(rows, kind="stable")
        ratings = np.bincount(rows, minlength=count)
        length = _LONG if len(rows) >= 2 * _LONG * np.count_nonzero(ratings) else _SHORT
        blocks = -(-ratings // length)
        total = int(blocks.sum())
        wide = _BLOCKS.get(jax.default_backend(), 8192)
        wide = min(wide, padded_size(max(total, 1), _GRAIN))
        chunks = padded_size(max(-(-total // wide), 1), 1)
        first = np.cumsum(blocks) - blocks
        within = np.arange(len(rows)) - np.repeat(np.cumsum(ratings) - ratings, ratings)
        place = np.repeat(first * length, ratings) + within

        def laid(entry: np.ndarray | None, kind: type) -> Array:
            flat: np.ndarray = np.zeros(chunks * wide * length, kind)
            flat[place] = 1 if entry is None else entry[order]
            return jnp.asarray(np.ascontiguousarray(flat.reshape(chunks, wide, length).swapaxes(1, 2)))

        owners = np.full(chunks * wide, np.iinfo(np.int32).max, np.int32)
        owners[:total] = np.repeat(np.arange(count), blocks)
        return Entries(
            laid(columns, np.int32), laid(values, dtype), laid(weights, dtype), jnp.asarray(owners.reshape(chunks, -1))
        )


class Sums(NamedTuple):
    """What the ratings of each row say: Σ w E[xxᵀ] (packed), Σ w r E[x] and Σ w r², with x the other side's vectors."""

    moments: Float[Array, "rows packed"]
    targets: Float[Array, "rows width"]
    squares: Float[Array, " rows"]


@partial(jax.jit, static_argnames=("count",))
def sums(
    entries: Entries,
    moments: Float[Array, "columns packed"],
    means: Float[Array, "columns width"],
    noise: Float[Array, " columns"],
    count: int,
) -> Sums:
    """Sums over the ratings of each of ``count`` rows of what their columns say, each column scaled by ``noise``.

    Examples
    --------
    >>> with jax.enable_x64(False):
    ...     entries = Entries.of(np.array([0, 0, 1]), np.array([0, 2, 1]), np.array([3.0, 4.0, 5.0]), None, 2)
    ...     table = jnp.arange(3, dtype=jnp.float32)[:, None]
    ...     sums(entries, table, table, jnp.ones(3, jnp.float32), 2).targets.tolist()
    [[8.0], [5.0]]
    """

    def chunk(totals: Sums, part: Entries) -> tuple[Sums, None]:
        def position(k: Array, here: Sums) -> Sums:
            column, value, weight = part.columns[k], part.values[k], part.weights[k] * noise[part.columns[k]]
            return Sums(
                here.moments + weight[:, None] * moments[column],
                here.targets + (weight * value)[:, None] * means[column],
                here.squares + weight * value * value,
            )

        nothing = _nothing(len(part.rows), moments, means)
        found = jax.lax.fori_loop(0, part.columns.shape[0], position, nothing)
        return Sums(*(old.at[part.rows].add(new, mode="drop") for old, new in zip(totals, found, strict=True))), None

    return jax.lax.scan(chunk, _nothing(count, moments, means), entries)[0]


def _nothing(count: int, moments: Array, means: Array) -> Sums:
    kind = means.dtype
    return Sums(
        jnp.zeros((count, moments.shape[1]), kind), jnp.zeros((count, means.shape[1]), kind), jnp.zeros(count, kind)
    )

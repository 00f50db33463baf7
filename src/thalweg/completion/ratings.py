"""Ratings, and sums over the ratings of each row.

For the sums, ratings stand in blocks of one length, each with ratings of one row, so that a few wide operations add
them up on any device.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int
from scipy.sparse import csr_matrix

from thalweg.codec import storable
from thalweg.padding import padded_size

__all__ = ["Ratings"]

GRAIN = 64
"""Rows, blocks and cells are padded to multiples of this, so that sets of about one size share a compiled program.
Twice as many would double the work of the smallest sets."""

BLOCK_LENGTH = 16
"""Ratings in a block. With twice as many, padding doubles where rows have few ratings; with half, the blocks to be
added up double where rows have many."""

BLOCKS_AT_ONCE = {"cpu": 512, "gpu": 8192}
"""Blocks that are summed at once: the sums should stay in the cache of a CPU (with twice as many they do not), and fill
a GPU (twice as many take twice the memory)."""


@storable
class Ratings(NamedTuple):
    """Indices of rows and columns, values, weights (None for ones), and the numbers of rows and columns.

    Examples
    --------
    >>> ratings = Ratings(np.array([0, 1]), np.array([1, 0]), np.array([1.0, 2.0]), None, (2, 2))
    >>> ratings.transposed.shape, len(ratings.part(np.array([True, False])).values)
    ((2, 2), 1)
    """

    rows: np.ndarray
    columns: np.ndarray
    values: np.ndarray
    weights: np.ndarray | None
    shape: tuple[int, int]

    @property
    def transposed(self) -> "Ratings":
        """The ratings of the columns by the rows."""
        return Ratings(self.columns, self.rows, self.values, self.weights, self.shape[::-1])

    @property
    def counts(self) -> np.ndarray:
        """The number of ratings of each row."""
        return np.bincount(self.rows, minlength=self.shape[0])

    def part(self, chosen: np.ndarray) -> "Ratings":
        """Return the ratings that a mask or an index chooses."""
        weights = None if self.weights is None else self.weights[chosen]
        return Ratings(self.rows[chosen], self.columns[chosen], self.values[chosen], weights, self.shape)

    def split(self, share: float, rng: np.random.Generator) -> tuple["Ratings", "Ratings"]:
        """Draw a validation set of about this share; return the others and it."""
        held_out = rng.random(len(self.values)) < share
        return self.part(~held_out), self.part(held_out)

    def joined(self, more: "Ratings") -> "Ratings":
        """Return these ratings and further ones, which give the shape."""
        rows, columns, values = (np.concatenate(pair) for pair in zip(self[:3], more[:3], strict=True))
        weights = None
        if self.weights is not None or more.weights is not None:
            parts = [np.ones(len(of.values)) if of.weights is None else of.weights for of in (self, more)]
            weights = np.concatenate(parts)
        return Ratings(rows, columns, values, weights, more.shape)

    def check_stored(self) -> None:
        """Refuse ratings of rows and columns that do not exist."""
        parts = [part for part in self[:4] if part is not None]
        if len({len(part) for part in parts}) > 1 or not all(np.all(np.isfinite(part)) for part in parts):
            raise ValueError("ratings that are no finite numbers, or of several lengths")
        for indices, count in zip(self[:2], self.shape, strict=True):
            if not np.issubdtype(indices.dtype, np.integer) or np.any((indices < 0) | (indices >= count)):
                raise ValueError(f"ratings of a row or column beyond the {count} that there are")

    def cells(self) -> csr_matrix:
        """Return a sparse matrix with a 1 in each cell that has a rating."""
        ones = np.ones(len(self.values), np.float32)
        cells = csr_matrix((ones, (self.rows, self.columns)), self.shape)
        cells.data[:] = 1
        return cells

    def scaled_weights(self) -> np.ndarray:
        """Return weights with a mean of 1."""
        return np.ones(len(self.values)) if self.weights is None else self.weights / self.weights.mean()


class RatingBlocks(NamedTuple):
    """Ratings in chunks of blocks, each block with ratings of one row; padding has weight 0.

    Examples
    --------
    >>> ratings = Ratings(np.array([0, 0, 1]), np.array([0, 2, 1]), np.array([3.0, 4.0, 5.0]), None, (2, 3))
    >>> blocks = RatingBlocks.of(ratings)
    >>> float(jnp.sum(blocks.weights)), float(jnp.sum(blocks.values))
    (3.0, 12.0)
    """

    columns: Int[Array, "chunks length blocks"]
    values: Float[Array, "chunks length blocks"]
    weights: Float[Array, "chunks length blocks"]
    rows: Int[Array, "chunks blocks"]

    @staticmethod
    def of(ratings: Ratings, dtype: type = np.float32) -> "RatingBlocks":
        """Arrange ratings, which may come in any order."""
        order = np.argsort(ratings.rows, kind="stable")
        counts = ratings.counts
        blocks = -(-counts // BLOCK_LENGTH)
        total = int(blocks.sum())
        at_once = BLOCKS_AT_ONCE.get(jax.default_backend(), BLOCKS_AT_ONCE["gpu"])
        at_once = min(at_once, padded_size(max(total, 1), GRAIN))
        chunks = padded_size(max(-(-total // at_once), 1), 1)
        first = np.cumsum(blocks) - blocks
        within = np.arange(len(ratings.rows)) - np.repeat(np.cumsum(counts) - counts, counts)
        position = np.repeat(first * BLOCK_LENGTH, counts) + within

        def arrange(entry: np.ndarray | None, kind: type) -> Array:
            flat: np.ndarray = np.zeros(chunks * at_once * BLOCK_LENGTH, kind)
            flat[position] = 1 if entry is None else entry[order]
            return jnp.asarray(np.ascontiguousarray(flat.reshape(chunks, at_once, BLOCK_LENGTH).swapaxes(1, 2)))

        owners = np.full(chunks * at_once, np.iinfo(np.int32).max, np.int32)
        owners[:total] = np.repeat(np.arange(ratings.shape[0]), blocks)
        return RatingBlocks(
            arrange(ratings.columns, np.int32),
            arrange(ratings.values, dtype),
            arrange(ratings.weights, dtype),
            jnp.asarray(owners.reshape(chunks, -1)),
        )


class RatingSums(NamedTuple):
    """Σ w E[xxᵀ] (packed), Σ w r E[x] and Σ w r² over the ratings of each row, x being the columns' vectors."""

    moments: Float[Array, "rows packed"]
    targets: Float[Array, "rows width"]
    squares: Float[Array, " rows"]


@partial(jax.jit, static_argnames=("count",))
def sum_ratings(
    blocks: RatingBlocks,
    moments: Float[Array, "columns packed"],
    means: Float[Array, "columns width"],
    scales: Float[Array, " columns"],
    count: int,
) -> RatingSums:
    """Return the sums of ``count`` rows, each rating weighed by the scale of its column.

    Examples
    --------
    >>> ratings = Ratings(np.array([0, 0, 1]), np.array([0, 2, 1]), np.array([3.0, 4.0, 5.0]), None, (2, 3))
    >>> with jax.enable_x64(False):
    ...     table = jnp.arange(3, dtype=jnp.float32)[:, None]
    ...     sum_ratings(RatingBlocks.of(ratings), table, table, jnp.ones(3, jnp.float32), 2).targets.tolist()
    [[8.0], [5.0]]
    """

    def zeros(count: int) -> RatingSums:
        shapes = (count, moments.shape[1]), (count, means.shape[1]), (count,)
        return RatingSums(*(jnp.zeros(shape, means.dtype) for shape in shapes))

    def add_chunk(totals: RatingSums, chunk: RatingBlocks) -> tuple[RatingSums, None]:
        def add_position(k: Array, sums: RatingSums) -> RatingSums:
            column, value = chunk.columns[k], chunk.values[k]
            weight = chunk.weights[k] * scales[column]
            return RatingSums(
                sums.moments + weight[:, None] * moments[column],
                sums.targets + (weight * value)[:, None] * means[column],
                sums.squares + weight * value * value,
            )

        sums = jax.lax.fori_loop(0, chunk.columns.shape[0], add_position, zeros(len(chunk.rows)))
        return jax.tree.map(lambda old, new: old.at[chunk.rows].add(new, mode="drop"), totals, sums), None

    return jax.lax.scan(add_chunk, zeros(count), blocks)[0]

"""Sparse matrices: products with blocks by gathering the neighbours of every row."""

from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse
from jaxtyping import Array, Float, Int

from thalweg.linalg.operators.dense import CoordinateOperator

LONG_ROW = 2.0
"""Rows are gathered up to this multiple of their mean length. At twice the multiple, hubs of a graph make twice the
padding of all other rows; at half of it, half of all entries are scattered, which is several times slower."""

GATHERED_AT_ONCE = 8
"""Neighbours gathered in one expression, longer rows in a loop. Twice as many compile twice as long and run alike."""


class SparseOperator(CoordinateOperator):
    """A SciPy sparse matrix: a padded part, whose rows are gathered, and the remainder of long rows, scattered.

    Gathering reads k neighbours of every row and writes once: several times as fast on a CPU as scattering every entry,
    which is what JAX's own sparse formats do. Padding to the longest row would waste all of that on a graph with hubs,
    so rows are cut at about twice the mean length.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> A = SparseOperator(scipy.sparse.diags([1.0, 2.0, 3.0]))
    >>> A @ jnp.ones(3), A.diagonal()
    (Array([1., 2., 3.], dtype=float...), Array([1., 2., 3.], dtype=float...))
    """

    gathered: Float[Array, "k d"]
    """The entries of the padded part, one neighbour per row."""
    neighbours: Int[Array, "k d"]
    values: Float[Array, " e"]
    """The entries of the remainder."""
    coordinates: Int[Array, "e 2"]
    size: int = eqx.field(static=True)
    stride: ClassVar[int] = 2
    column_group: ClassVar[int] = 8

    def __init__(self, A: Any) -> None:
        A = scipy.sparse.csr_matrix(A)
        if not A.has_canonical_format:
            # The caller's arrays may be shared with us: add up duplicates in a copy.
            A = A.copy()
            A.sum_duplicates()
        lengths, self.size = np.diff(A.indptr), A.shape[0]
        rows = np.repeat(np.arange(self.size), lengths)
        position = np.arange(A.nnz) - A.indptr[rows]
        width = min(int(lengths.max(initial=1)), max(4, int(np.ceil(LONG_ROW * lengths.mean()))))
        width = width if width <= GATHERED_AT_ONCE else -(-width // GATHERED_AT_ONCE) * GATHERED_AT_ONCE
        gathered = np.zeros((width, self.size), A.data.dtype)
        # Padding points at its own row: always a valid index, and already in cache.
        neighbours = np.tile(np.arange(self.size, dtype=np.int32), (width, 1))
        short = position < width
        gathered[position[short], rows[short]] = A.data[short]
        neighbours[position[short], rows[short]] = A.indices[short]
        self.gathered, self.neighbours = jnp.asarray(gathered), jnp.asarray(neighbours)
        self.values = jnp.asarray(A.data[~short])
        self.coordinates = jnp.asarray(np.stack([rows[~short], A.indices[~short]], axis=1).astype(np.int32))

    def mv(self, block: Array) -> Array:
        """Gather the neighbours of every row, and scatter the remainder."""
        # Unsigned, or JAX adds a look for negative indices to every read.
        parts = self.gathered, self.neighbours.astype(jnp.uint32)
        gather = lambda values, columns: sum(
            value[:, None] * block.at[column].get(mode="promise_in_bounds")
            for value, column in zip(values, columns, strict=True)
        )
        if len(self.gathered) <= GATHERED_AT_ONCE:
            product = gather(*parts)
        else:
            # Long rows in a loop: a program of hundreds of reads takes a minute to compile.
            turns = [part.reshape(-1, GATHERED_AT_ONCE, self.size) for part in parts]
            turn = lambda index, total: total + gather(turns[0][index], turns[1][index]).astype(block.dtype)
            product = jax.lax.fori_loop(0, len(turns[0]), turn, jnp.zeros_like(block))
        if not self.values.size:
            return product
        return product.at[self.coordinates[:, 0]].add(self.values[:, None] * block[self.coordinates[:, 1]])

    def listed(self) -> tuple[Any, Any, Any]:
        """Return entries, rows and columns; on the host with nothing to compile."""
        xp = np if not isinstance(self.gathered, jax.core.Tracer) else jnp
        rows = np.tile(np.arange(self.size, dtype=np.int32), len(self.gathered))
        values, neighbours = xp.asarray(self.gathered).ravel(), xp.asarray(self.neighbours).ravel()
        remainder = xp.asarray(self.values), *xp.asarray(self.coordinates).T
        pairs = zip((values, rows, neighbours), remainder, strict=True)
        return tuple(xp.concatenate([xp.asarray(first), second]) for first, second in pairs)

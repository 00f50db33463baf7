"""Sparse matrices as an operator on blocks: products by gathering."""

from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse
from jaxtyping import Array, Float, Int

from thalweg.spectral.operators.base import Operator, as_own, gershgorin

_LONG_ROW = 2.0
"""Rows longer than this many times the mean go into a remainder, see :func:`sparse_parts`."""

_AT_ONCE = 8
"""Rows up to this length are gathered in one expression; longer ones in a loop, this many entries at a time."""


def sparse_parts(A: Any) -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """Split a sparse matrix into a padded part, gathered, and the remainder of its long rows, scattered.

    A product by gathering reads k neighbours of every row and writes once: several times as fast on a CPU as
    scattering every entry, which is what JAX's own sparse formats do. Padding to the longest row would waste all of
    it on a graph with hubs, so rows are cut at about twice the mean length and the rest of the hubs is scattered.

    Returns
    -------
    (values, columns), (values, positions)
        The padded part, k × d each (one neighbour per row), and the remainder with an e × 2 array of positions.
    """
    A = scipy.sparse.csr_matrix(A)
    if not A.has_canonical_format:
        # What is given may share its arrays with us, and is not ours to tidy up.
        A = A.copy()
        A.sum_duplicates()
    rows = np.repeat(np.arange(A.shape[0]), np.diff(A.indptr))
    place = np.arange(A.nnz) - A.indptr[rows]
    lengths = np.diff(A.indptr)
    longest = int(lengths.max(initial=1))
    width = min(longest, max(4, int(np.ceil(_LONG_ROW * lengths.mean()))))
    width = width if width <= _AT_ONCE else -(-width // _AT_ONCE) * _AT_ONCE
    values = np.zeros((width, A.shape[0]), A.data.dtype)
    # A padded place points at its own row: always a valid index, and already in cache.
    columns = np.tile(np.arange(A.shape[0], dtype=np.int32), (width, 1))
    short = place < width
    values[place[short], rows[short]] = A.data[short]
    columns[place[short], rows[short]] = A.indices[short]
    rest = np.stack([rows[~short], A.indices[~short]], axis=1).astype(np.int32)
    return (values, columns), (A.data[~short], rest)


def _gathered(values: Any, columns: Any, block: Any) -> Any:
    # Unsigned, or JAX adds a look for negative indices to every read.
    columns = columns.astype(jnp.uint32)
    few = lambda values, columns: sum(
        value[:, None] * block.at[column].get(mode="promise_in_bounds")
        for value, column in zip(values, columns, strict=True)
    )
    if len(values) <= _AT_ONCE:
        return few(values, columns)
    # Long rows in a loop: a program of hundreds of reads takes a minute to compile.
    turns = [array.reshape(-1, _AT_ONCE, array.shape[1]) for array in (values, columns)]
    turn = lambda index, total: total + few(turns[0][index], turns[1][index]).astype(block.dtype)
    return jax.lax.fori_loop(0, len(turns[0]), turn, jnp.zeros((values.shape[1], block.shape[1]), block.dtype))


class SparseOperator(Operator):
    """A SciPy sparse matrix, in the parts of :func:`sparse_parts`.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> A = SparseOperator(scipy.sparse.diags([1.0, 2.0, 3.0]))
    >>> A @ jnp.ones(3), A.diagonal()
    (Array([1., 2., 3.], dtype=float...), Array([1., 2., 3.], dtype=float...))
    """

    values: Float[Array, "k d"]
    rest: Float[Array, " e"]
    neighbours: Int[Array, "k d"]
    positions: Int[Array, "e 2"]
    size: int = eqx.field(static=True)
    dimension = as_own("size")
    materialised: ClassVar[bool] = True
    together: ClassVar[int] = 8

    @property
    def stride(self) -> int:  # type: ignore[override]
        """Two, unless rows are so long that a copy is nothing beside a product."""
        return 2 if len(self.values) <= _AT_ONCE else 1

    def __init__(self, A: Any) -> None:
        (values, neighbours), (rest, positions) = sparse_parts(A)
        self.values, self.neighbours = jnp.asarray(values), jnp.asarray(neighbours)
        self.rest, self.positions = jnp.asarray(rest), jnp.asarray(positions)
        self.size = A.shape[0]

    def mv(self, block: Array) -> Array:
        """AV."""
        product = _gathered(self.values, self.neighbours, block)
        if self.rest.size:
            product = product.at[self.positions[:, 0]].add(self.rest[:, None] * block[self.positions[:, 1]])
        return product

    def to_dense(self) -> Array:
        """The entries in their places."""
        rows = jnp.broadcast_to(jnp.arange(self.dimension)[None, :], self.values.shape)
        dense = jnp.zeros(self.shape, self.dtype).at[rows, self.neighbours].add(self.values)
        return dense.at[self.positions[:, 0], self.positions[:, 1]].add(self.rest)

    def _entries(self) -> np.ndarray:
        # With nothing to compile.
        values, neighbours, rest, positions = map(np.asarray, (self.values, self.neighbours, self.rest, self.positions))
        dense = np.zeros(self.shape)
        np.add.at(dense, (np.broadcast_to(np.arange(self.dimension), values.shape), neighbours), values)
        np.add.at(dense, (positions[:, 0], positions[:, 1]), rest)
        return dense

    def diagonal(self) -> Array:
        """The entries that lie on the diagonal."""
        return _diagonal(self)

    def bounds(self) -> tuple[float, float]:
        """By Gershgorin's discs."""
        # On the host: nothing to compile.
        parts = jax.lax.stop_gradient((self.values, self.rest, self.positions[:, 0]))
        values, rest, rows = (np.abs(np.asarray(part)) for part in parts)
        total = values.sum(axis=0) + np.bincount(rows, rest, minlength=self.dimension)
        diagonal = np.asarray(_diagonal(jax.lax.stop_gradient(self)))
        return gershgorin(diagonal, total - np.abs(diagonal))


@eqx.filter_jit
def _diagonal(A: SparseOperator) -> Array:
    own = jnp.where(A.neighbours == jnp.arange(A.dimension, dtype=A.neighbours.dtype)[None, :], A.values, 0)
    loop = jnp.where(A.positions[:, 0] == A.positions[:, 1], A.rest, 0)
    return jnp.sum(own, axis=0).at[A.positions[:, 0]].add(loop)

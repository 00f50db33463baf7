"""Sparse matrices as an operator on blocks: products by gathering, and the recurrence a strip of rows at a time."""

from functools import partial
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse
from jaxtyping import Array, Float, Int

from thalweg.linalg.operators.base import Operator, Strips, as_own, gershgorin

_LONG_ROW = 2.0
"""Rows longer than this many times the mean go into a remainder, see :func:`sparse_parts`."""

_STRIP_BYTES = 2**17
"""How much of a block one strip holds: a few such strips stay in the cache next to a core."""


_MOST_ROWS = 4096
"""Rows of the longest strip, a power of two."""

_PARTIAL_SUMS = 4096
"""How many partial sums an inner product is added up in, for the numbers of a strip side by side."""

_AT_ONCE = 8
"""Rows up to this length are gathered in one expression; longer ones in a loop, this many entries at a time."""

_STRIPS_FROM = 2**16
"""The dimension from which strips pay: a smaller block is in the cache as a whole."""


def sparse_parts(A: Any) -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """Split a sparse matrix into a padded part, gathered, and the remainder of its long rows, scattered.

    A product by gathering reads k neighbours of every row and writes once: several times as fast on a CPU as
    scattering every entry, which is what JAX's own sparse formats do. Padding to the longest row would waste all of
    it on a graph with hubs, so rows are cut at about twice the mean length and the rest of the hubs is scattered.

    Returns
    -------
    (values, columns), (values, positions)
        The padded part, k × d each (one neighbour per row), and the remainder with an e × 2 array of positions. A large
        matrix has columns of zeros added, so that strips of every width (:meth:`SparseOperator.advance`) come out even.
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
    extra = -A.shape[0] % _MOST_ROWS if A.shape[0] >= _STRIPS_FROM else 0
    values, columns = (np.pad(array, ((0, 0), (0, extra))) for array in (values, columns))
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

    values: Float[Array, "k p"]
    rest: Float[Array, " e"]
    neighbours: Int[Array, "k p"]
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
        """AV; a block may have the rows of zeros of the padded matrix."""
        rows = block.shape[0]
        product = _gathered(self.values[:, :rows], self.neighbours[:, :rows], block)
        if self.rest.size:
            product = product.at[self.positions[:, 0]].add(self.rest[:, None] * block[self.positions[:, 1]])
        return product

    def to_dense(self) -> Array:
        """The entries in their places."""
        rows = jnp.broadcast_to(jnp.arange(self.size)[None, :], (self.values.shape[0], self.size))
        dense = jnp.zeros(self.shape, self.dtype)
        dense = dense.at[rows, self.neighbours[:, : self.size]].add(self.values[:, : self.size])
        return dense.at[self.positions[:, 0], self.positions[:, 1]].add(self.rest)

    def _entries(self) -> np.ndarray:
        # With nothing to compile.
        values, neighbours, rest, positions = map(np.asarray, (self.values, self.neighbours, self.rest, self.positions))
        dense = np.zeros(self.shape)
        rows = np.broadcast_to(np.arange(self.size), (len(values), self.size))
        np.add.at(dense, (rows, neighbours[:, : self.size]), values[:, : self.size])
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
        total = values[:, : self.size].sum(axis=0) + np.bincount(rows, rest, minlength=self.size)
        diagonal = np.asarray(_diagonal(jax.lax.stop_gradient(self)))
        return gershgorin(diagonal, total - np.abs(diagonal))

    def strips(self, scale: Array, shift: Array) -> Strips | None:
        """A strip of rows at a time, for a large matrix of which no row is left over for scattering."""
        rows = self.values.shape[1]
        if self.rest.size or rows < _STRIPS_FROM or rows % _MOST_ROWS:
            return None

        def whole(older: Array, newer: Array) -> tuple[Array, Array, Array]:
            latest = scale * self.mv(newer) - shift * newer - older
            return latest, jnp.sum(newer * latest, axis=0), jnp.sum(latest * latest, axis=0)

        # Strips are taken one after another: right for a core and its cache, wrong for a GPU.
        strips = partial(self.advance, scale, shift)
        return Strips(rows, lambda *blocks: jax.lax.platform_dependent(*blocks, cpu=strips, default=whole))

    def advance(
        self, scale: Any, shift: Any, older: Float[Array, "p w"], newer: Float[Array, "p w"]
    ) -> tuple[Float[Array, "p w"], Float[Array, " w"], Float[Array, " w"]]:
        """w⁺ = (scale·A − shift)w − w⁻, with w·w⁺ and ‖w⁺‖², a strip of rows at a time; blocks are padded.

        A product with a sparse matrix is as cheap as reading its blocks, and so is an inner product: taken by
        themselves the two inner products would make a step half as long again. Strip by strip they are taken of rows
        that are still in the cache. (A shorter strip at the end would make the compiler copy the whole block.)
        """
        dimension, width = newer.shape
        rows = _MOST_ROWS
        while rows > 1 and rows * width * newer.dtype.itemsize > _STRIP_BYTES:
            rows //= 2
        lines = 1
        while lines < rows and rows // lines * width > _PARTIAL_SUMS:
            lines *= 2
        count = rows // lines * width
        # Always 0, which the compiler does not know. Told to read a strip just written it would compute it again.
        zero = jnp.minimum(self.neighbours[0, 0], 0)

        def strip(index: Any, carry: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
            latest, cross, size = carry
            part = lambda array, axis: jax.lax.dynamic_slice_in_dim(array, index * rows, rows, axis)
            product = _gathered(part(self.values, 1), part(self.neighbours, 1), newer)
            ahead = scale * product - shift * part(newer, 0) - part(latest, 0)
            latest = jax.lax.dynamic_update_slice_in_dim(latest, ahead, index * rows, 0)
            for line in range(lines):
                place = index * lines + line + zero
                mine, ahead = (block.reshape(-1, count)[place] for block in (newer, latest))
                cross, size = cross + mine * ahead, size + ahead * ahead
            return latest, cross, size

        # The strips of w⁻ are overwritten one by one: nothing reads them again.
        nothing = jnp.zeros(count, newer.dtype)
        latest, cross, size = jax.lax.fori_loop(0, dimension // rows, strip, (older, nothing, nothing))
        total = lambda partial: jnp.sum(partial.reshape(-1, width), axis=0)
        return latest, total(cross), total(size)


@eqx.filter_jit
def _diagonal(A: SparseOperator) -> Array:
    values, neighbours = A.values[:, : A.size], A.neighbours[:, : A.size]
    own = jnp.where(neighbours == jnp.arange(A.size, dtype=neighbours.dtype)[None, :], values, 0)
    loop = jnp.where(A.positions[:, 0] == A.positions[:, 1], A.rest, 0)
    return jnp.sum(own, axis=0).at[A.positions[:, 0]].add(loop)

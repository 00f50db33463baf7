"""Sparse matrices as an operator on blocks: products by gathering, and the recurrence a strip of rows at a time."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse
from jaxtyping import Array, Float

_LONG_ROW = 2.0
"""Rows longer than this many times the mean go into a remainder, see :func:`sparse_parts`."""

_STRIP_BYTES = 2**17
"""How much of a block one strip holds: a few such strips stay in the cache next to a core."""


_MOST_ROWS = 4096
"""Rows of the longest strip, a power of two."""

_PARTIAL_SUMS = 4096
"""How many partial sums an inner product is added up in, for the numbers of a strip side by side."""

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
        The padded part, k × d each (a row a neighbour), and the remainder with an e × 2 array of positions. A large
        matrix has columns of zeros added, so that strips of every width (:class:`SparseProduct`) come out even.
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
    return sum(
        value[:, None] * block.at[column].get(mode="promise_in_bounds")
        for value, column in zip(values, columns, strict=True)
    )


class SparseProduct:
    """A V for the parts of :func:`sparse_parts`: θ holds the values, ``data`` the places."""

    def __call__(self, theta: Any, data: Any, block: Any) -> Any:
        """Multiply a block."""
        (values, rest), (columns, positions) = theta, data
        rows = block.shape[0]
        product = _gathered(values[:, :rows], columns[:, :rows], block)
        if rest.size:
            product = product.at[positions[:, 0]].add(rest[:, None] * block[positions[:, 1]])
        return product

    def in_strips(self, theta: Any) -> bool:
        """Whether :meth:`advance` can be used: a large matrix of which no row is left over for scattering."""
        values, rest = theta
        rows = values.shape[1]
        return not rest.size and rows >= _STRIPS_FROM and rows % _MOST_ROWS == 0

    def padded(self, theta: Any, start: Array) -> Array:
        """A block with as many rows as the padded matrix; those added are zero and stay so.

        A shorter strip at the end would make the compiler copy the whole block.
        """
        return jnp.pad(start, ((0, theta[0].shape[1] - start.shape[0]), (0, 0)))

    def advance(
        self, theta: Any, data: Any, scale: Any, shift: Any, older: Float[Array, "d w"], newer: Float[Array, "d w"]
    ) -> tuple[Float[Array, "d w"], Float[Array, " w"], Float[Array, " w"]]:
        """w⁺ = (scale·A − shift)w − w⁻, with w·w⁺ and ‖w⁺‖², a strip of rows at a time; blocks are :meth:`padded`.

        A product with a sparse matrix is as cheap as reading its blocks, and so is an inner product: taken by
        themselves the two inner products would make a step half as long again. Strip by strip they are taken of rows
        that are still in the cache.
        """
        (values, _), (columns, _) = theta, data
        dimension, width = newer.shape
        rows = _MOST_ROWS
        while rows > 1 and rows * width * newer.dtype.itemsize > _STRIP_BYTES:
            rows //= 2
        lines = 1
        while lines < rows and rows // lines * width > _PARTIAL_SUMS:
            lines *= 2
        count = rows // lines * width
        # Always 0, which the compiler does not know. Told to read a strip just written it would compute it again.
        zero = jnp.minimum(columns[0, 0], 0)

        def strip(index: Any, carry: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
            latest, cross, size = carry
            part = lambda array, axis: jax.lax.dynamic_slice_in_dim(array, index * rows, rows, axis)
            product = _gathered(part(values, 1), part(columns, 1), newer)
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

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SparseProduct)

    def __hash__(self) -> int:
        return hash(SparseProduct)

"""Matrices whose entries are given, dense or sparse, and squares: XᵀX or XXᵀ of a rectangular X, A² of an operator.

Products of a sparse matrix with a block gather the neighbours of every row.
"""

from operator import attrgetter
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse
from jaxtyping import Array, Float, Int

from thalweg.linalg.operators.base import Operator, frozen, gershgorin, inherit, is_traced, square


class DenseOperator(Operator):
    """A symmetric array.

    Examples
    --------
    >>> import numpy as np
    >>> A = DenseOperator(np.array([[2.0, 1.0], [1.0, 2.0]]))
    >>> A @ np.ones(2), A.bounds()
    (Array([3., 3.], dtype=float...), (0.99..., 3.00...))
    """

    matrix: Float[Array, "d d"]
    materialised: ClassVar[bool] = True
    calls_library: ClassVar[bool] = True
    has_columns: ClassVar[bool] = True

    dimension = property(lambda self: len(self.matrix))

    def mv(self, block: Array) -> Array:
        """AV."""
        return self.to_dense() @ block

    def diagonal(self) -> Array:
        """Return the diagonal."""
        return jnp.diagonal(self.matrix).astype(self.dtype)

    def columns(self, indices: Array) -> Array:
        """Return columns, read as rows, which are contiguous."""
        return self.matrix[indices].T.astype(self.dtype)

    def to_dense(self) -> Array:
        """Return the array."""
        return self.matrix.astype(self.dtype)

    def bounds(self) -> tuple[float, float]:
        """Return Gershgorin's bounds."""
        return gershgorin(*self.compile(_gershgorin_discs)(frozen(self)))


def _gershgorin_discs(operator: DenseOperator) -> tuple[Array, Array]:
    """Return centres and radii, by one program where operations one by one would make five."""
    diagonal = operator.diagonal()
    return diagonal, jnp.sum(jnp.abs(operator.to_dense()), axis=1) - jnp.abs(diagonal)


class CoordinateOperator(Operator):
    """A symmetric matrix as a list of entries and their coordinates; those beyond the matrix are padding.

    Examples
    --------
    >>> import numpy as np
    >>> CoordinateOperator(np.array([2.0, 3.0]), np.array([[0, 0], [1, 1]]), 2) @ np.ones(2)
    Array([2., 3.], dtype=float...)
    """

    values: Float[Array, " e"]
    coordinates: Int[Array, "e 2"]
    size: int = eqx.field(static=True)
    materialised: ClassVar[bool] = True

    dimension = property(attrgetter("size"))

    def mv(self, block: Array) -> Array:
        """AV, entry by entry."""
        terms = self.values.astype(block.dtype)[:, None] * block.at[self.coordinates[:, 1]].get(
            mode="fill", fill_value=0
        )
        return jnp.zeros_like(block).at[self.coordinates[:, 0]].add(terms, mode="drop")

    def listed(self) -> tuple[Any, Any, Any]:
        """Return entries, rows and columns."""
        return self.values, self.coordinates[:, 0], self.coordinates[:, 1]

    def to_dense(self) -> Array:
        """Put the entries in their places."""
        values, rows, columns = self.listed()
        return jnp.zeros(self.shape, self.dtype).at[rows, columns].add(values.astype(self.dtype), mode="drop")

    def diagonal(self) -> Array:
        """Add up the entries on the diagonal."""
        if not is_traced(self):
            return jnp.asarray(self._on_host().diagonal(), self.dtype)
        values, rows, columns = self.listed()
        own = jnp.where(rows == columns, values, 0).astype(self.dtype)
        return jnp.zeros(self.size, self.dtype).at[rows].add(own, mode="drop")

    def _entries_on_host(self) -> np.ndarray:
        return self._on_host().toarray().astype(np.float64, copy=False)

    def bounds(self) -> tuple[float, float]:
        """Return Gershgorin's bounds."""
        matrix = jax.lax.stop_gradient(self)._on_host()
        diagonal = matrix.diagonal()
        return gershgorin(diagonal, abs(matrix).sum(axis=1) - np.abs(diagonal))

    def _on_host(self) -> scipy.sparse.csr_array:
        """Return a matrix of SciPy, for which nothing is compiled."""
        values, rows, columns = map(np.asarray, self.listed())
        inside = (rows < self.size) & (columns < self.size)
        values = values.astype(self.dtype)[inside]
        return scipy.sparse.coo_array((values, (rows[inside], columns[inside])), shape=self.shape).tocsr()


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
    >>> import numpy as np
    >>> A = SparseOperator(scipy.sparse.diags([1.0, 2.0, 3.0]))
    >>> A @ np.ones(3), A.diagonal()
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
        # Our own arrays, so not by jnp.asarray, which compiles a program for each shape to copy it.
        self.gathered, self.neighbours = jax.device_put(gathered), jax.device_put(neighbours)
        self.values = jax.device_put(A.data[~short])
        self.coordinates = jax.device_put(np.stack([rows[~short], A.indices[~short]], axis=1).astype(np.int32))

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


class GramOperator(Operator):
    """XᵀX, or XXᵀ if X is wide: its eigenvalues are the squared singular values of X.

    Examples
    --------
    >>> import numpy as np
    >>> A = GramOperator(np.array([[1.0, 2.0, 2.0]]))
    >>> A.shape, A.diagonal()
    ((1, 1), Array([9.], dtype=float...))
    """

    matrix: Float[Array, "n m"]
    materialised: ClassVar[bool] = True
    calls_library: ClassVar[bool] = True

    dimension = property(lambda self: min(self.matrix.shape))

    @property
    def tall(self) -> Array:
        """X with its longer side first."""
        rows, columns = self.matrix.shape
        return self.matrix if rows >= columns else self.matrix.T

    def mv(self, block: Array) -> Array:
        """Xᵀ(XV)."""
        tall = self.tall.astype(block.dtype)
        return tall.T @ (tall @ block)

    def diagonal(self) -> Array:
        """Return the squared lengths of the columns."""
        return jnp.sum(self.tall.astype(self.dtype) ** 2, axis=0)

    def to_dense(self) -> Array:
        """XᵀX."""
        tall = self.tall.astype(self.dtype)
        return tall.T @ tall

    def eigenvalues(self, xp: Any = np) -> tuple[Any, Any]:
        """Return the squared singular values: small ones keep their digits."""
        matrix = xp.asarray(self.matrix, self.dtype)
        if xp is np and not np.all(np.isfinite(matrix)):
            raise ValueError("X holds NaN or infinity")
        singular = xp.linalg.svd(matrix, compute_uv=False)
        return square(singular, self.rounding * xp.max(singular), xp)


class SparseGramOperator(Operator):
    """XᵀX for the entries of a sparse X with ``height`` rows and ``size`` columns, no wider than high.

    Examples
    --------
    >>> import numpy as np
    >>> A = SparseGramOperator(np.array([3.0, 4.0]), np.array([0, 2]), np.array([1, 1]), 3, 2)
    >>> A.diagonal()
    Array([ 0., 25.], dtype=float...)
    """

    values: Float[Array, " e"]
    rows: Int[Array, " e"]
    indices: Int[Array, " e"]
    height: int = eqx.field(static=True)
    size: int = eqx.field(static=True)

    dimension = property(attrgetter("size"))

    def mv(self, block: Array) -> Array:
        """Xᵀ(XV), entry by entry."""
        values = self.values.astype(block.dtype)[:, None]
        inner = jnp.zeros((self.height, block.shape[1]), block.dtype).at[self.rows].add(values * block[self.indices])
        return jnp.zeros_like(block).at[self.indices].add(values * inner[self.rows])

    def diagonal(self) -> Array:
        """Return the squared lengths of the columns."""
        return jnp.zeros(self.size, self.dtype).at[self.indices].add(self.values.astype(self.dtype) ** 2)


class SquaredOperator(Operator):
    """A² of a symmetric operator.

    Examples
    --------
    >>> import numpy as np
    >>> from thalweg.linalg.operators import as_operator
    >>> SquaredOperator(as_operator(3.0 * np.eye(2))) @ np.ones(2)
    Array([9., 9.], dtype=float...)
    """

    operator: Operator

    materialised, dimension = map(inherit, ("materialised", "dimension"))

    @property
    def symmetric_factor(self) -> Operator:
        """A: the square of an A that is not symmetric may be, but its eigenvalues are no squared singular values."""
        return self.operator

    def to_dense(self) -> Array:
        """Square the matrix A."""
        dense = self.operator.to_dense()
        return dense @ dense

    def eigenvalues(self, xp: Any = np) -> tuple[Any, Any]:
        """Square the eigenvalues of A."""
        return square(*self.operator.eigenvalues(xp), xp)

    def mv(self, block: Array) -> Array:
        """A(AV)."""
        return self.operator.mv(self.operator.mv(block))

"""Matrices whose entries are given: dense arrays, and entries with their coordinates."""

from operator import attrgetter
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse
from jaxtyping import Array, Float, Int

from thalweg.linalg.operators.base import Operator, frozen, gershgorin, is_traced


class DenseOperator(Operator):
    """A symmetric array.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> A = DenseOperator(jnp.array([[2.0, 1.0], [1.0, 2.0]]))
    >>> A @ jnp.ones(2), A.bounds()
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
    >>> import jax.numpy as jnp
    >>> CoordinateOperator(jnp.array([2.0, 3.0]), jnp.array([[0, 0], [1, 1]]), 2) @ jnp.ones(2)
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

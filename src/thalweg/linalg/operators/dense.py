"""Matrices whose entries are given: dense arrays, and BCOO matrices of JAX."""

from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from thalweg.linalg.operators.base import Operator, as_own, gershgorin


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

    @property
    def dimension(self) -> int:
        """The number of rows."""
        return self.matrix.shape[0]

    def mv(self, block: Array) -> Array:
        """AV."""
        return self.matrix.astype(self.dtype) @ block

    def diagonal(self) -> Array:
        """The diagonal."""
        return jnp.diagonal(self.matrix).astype(self.dtype)

    def columns(self, indices: Array) -> Array:
        """Columns, read as rows: those lie in one piece."""
        return self.matrix[indices].T.astype(self.dtype)

    def to_dense(self) -> Array:
        """The array."""
        return self.matrix.astype(self.dtype)

    def bounds(self) -> tuple[float, float]:
        """By Gershgorin's discs."""
        diagonal = self.diagonal()
        return gershgorin(diagonal, jnp.sum(jnp.abs(self.matrix.astype(self.dtype)), axis=1) - jnp.abs(diagonal))


class BCOOOperator(Operator):
    """A symmetric BCOO matrix of JAX: its entries and their places.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> BCOOOperator(jnp.array([2.0, 3.0]), jnp.array([[0, 0], [1, 1]]), 2) @ jnp.ones(2)
    Array([2., 3.], dtype=float...)
    """

    entries: Float[Array, " e"]
    places: Int[Array, "e 2"]
    size: int = eqx.field(static=True)
    dimension = as_own("size")
    materialised: ClassVar[bool] = True

    def to_dense(self) -> Array:
        """The entries in their places."""
        zero = jnp.zeros(self.shape, self.dtype)
        return zero.at[self.places[:, 0], self.places[:, 1]].add(self.entries.astype(self.dtype), mode="drop")

    def mv(self, block: Array) -> Array:
        """AV, entry by entry."""
        # Padding of a BCOO matrix points one past the end: such entries are dropped.
        entries = self.entries.astype(block.dtype)
        terms = entries[:, None] * block.at[self.places[:, 1]].get(mode="fill", fill_value=0)
        return jnp.zeros_like(block).at[self.places[:, 0]].add(terms, mode="drop")

    def diagonal(self) -> Array:
        """The entries that lie on the diagonal."""
        own = jnp.where(self.places[:, 0] == self.places[:, 1], self.entries, 0).astype(self.dtype)
        return jnp.zeros(self.dimension, self.dtype).at[self.places[:, 0]].add(own, mode="drop")

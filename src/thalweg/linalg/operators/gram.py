"""Squares: XᵀX or XXᵀ of a rectangular matrix X, whichever is smaller, and A² of a symmetric operator."""

from operator import attrgetter
from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from thalweg.linalg.operators.base import Operator, inherit, square


class GramOperator(Operator):
    """XᵀX, or XXᵀ if X is wide: its eigenvalues are the squared singular values of X.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> A = GramOperator(jnp.array([[1.0, 2.0, 2.0]]))
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
    >>> import jax.numpy as jnp
    >>> A = SparseGramOperator(jnp.array([3.0, 4.0]), jnp.array([0, 2]), jnp.array([1, 1]), 3, 2)
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
    >>> import jax.numpy as jnp
    >>> from thalweg.linalg.operators import as_operator
    >>> SquaredOperator(as_operator(3.0 * jnp.eye(2))) @ jnp.ones(2)
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

"""Squares: XᵀX or XXᵀ of a rectangular matrix X, whichever is smaller, and A² of a symmetric operator."""

from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import scipy.linalg
from jaxtyping import Array, Float, Int

from thalweg.linalg.operators.base import Operator, as_inner, as_own, moved_squares, sum_of_squares


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

    @property
    def dimension(self) -> int:
        """The smaller of the two sides."""
        return min(self.matrix.shape)

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
        """The squared lengths of the columns."""
        return jnp.sum(self.tall.astype(self.dtype) ** 2, axis=0)

    def to_dense(self) -> Array:
        """XᵀX."""
        tall = self.tall.astype(self.dtype)
        return tall.T @ tall

    def eigenvalues(self) -> np.ndarray:
        """The squared singular values: small ones keep their digits."""
        matrix = np.asarray(self.matrix, np.float64)
        if not np.all(np.isfinite(matrix)):
            raise ValueError("X holds NaN or infinity")
        return scipy.linalg.svdvals(matrix, check_finite=False)[::-1] ** 2

    def traced_sum(self, f: Callable[[Any], Any]) -> tuple[Array, Array]:
        """By singular values."""
        singular = jnp.linalg.svd(self.matrix.astype(self.dtype), compute_uv=False)
        return sum_of_squares(f, singular**2, _lost(self) ** 2)

    def moved(self, eigenvalues: np.ndarray) -> np.ndarray:
        """Small ones by less: singular values are what LAPACK rounds."""
        return moved_squares(eigenvalues)


class SparseGramOperator(Operator):
    """XᵀX for the entries of a sparse X with ``height`` rows and ``size`` columns, no wider than high.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> A = SparseGramOperator(jnp.array([3.0, 4.0]), jnp.array([0, 2]), jnp.array([1, 1]), 3, 2)
    >>> A.diagonal()
    Array([ 0., 25.], dtype=float...)
    """

    entries: Float[Array, " e"]
    rows: Int[Array, " e"]
    places: Int[Array, " e"]
    height: int = eqx.field(static=True)
    size: int = eqx.field(static=True)
    dimension = as_own("size")

    def mv(self, block: Array) -> Array:
        """Xᵀ(XV), entry by entry."""
        entries = self.entries.astype(block.dtype)[:, None]
        inner = jnp.zeros((self.height, block.shape[1]), block.dtype).at[self.rows].add(entries * block[self.places])
        return jnp.zeros_like(block).at[self.places].add(entries * inner[self.rows])

    def traced_sum(self, f: Callable[[Any], Any]) -> tuple[Array, Array]:
        """By the eigenvalues of XᵀX: X itself may be too high to be dense."""
        moved = lambda eigenvalues, eps: eps * jnp.max(eigenvalues)
        return sum_of_squares(f, jnp.linalg.eigvalsh(self.to_dense()), _lost(self), moved)

    def diagonal(self) -> Array:
        """The squared lengths of the columns."""
        return jnp.zeros(self.dimension, self.dtype).at[self.places].add(self.entries.astype(self.dtype) ** 2)


class SquaredOperator(Operator):
    """A² of a symmetric operator.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from thalweg.spectral import as_operator
    >>> SquaredOperator(as_operator(3.0 * jnp.eye(2))) @ jnp.ones(2)
    Array([9., 9.], dtype=float...)
    """

    operator: Operator

    materialised, dimension = map(as_inner, ("materialised", "dimension"))

    def to_dense(self) -> Array:
        """The square of A's entries, as a matrix."""
        dense = self.operator.to_dense()
        return dense @ dense

    def eigenvalues(self) -> np.ndarray:
        """The squares of A's."""
        return np.sort(self.operator.eigenvalues() ** 2)

    def traced_sum(self, f: Callable[[Any], Any]) -> tuple[Array, Array]:
        """By the eigenvalues of A."""
        return sum_of_squares(f, jnp.linalg.eigvalsh(self.operator.to_dense()) ** 2, _lost(self) ** 2)

    def moved(self, eigenvalues: np.ndarray) -> np.ndarray:
        """Small ones by less, as they are squares."""
        return moved_squares(eigenvalues)

    def mv(self, block: Array) -> Array:
        """A(AV)."""
        return self.operator.mv(self.operator.mv(block))


def _lost(operator: Operator) -> float:
    """What a factorisation may be off by, of the largest eigenvalue or singular value."""
    return operator.dimension * float(jnp.finfo(operator.dtype).eps)

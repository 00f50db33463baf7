"""Cholesky factors, with one law for a diagonal that rounding has made too small.

A covariance may have eigenvalues that rounding takes below 0. Its diagonal is then raised by

    τ_k = eps · mean(diagonal) · 10ᵏ,    k = 1, 2, …,

the smallest that factorises; nothing is added where nothing is needed. The factor says what was added, so that whoever
needs the solution without it can refine: :func:`thalweg.linalg.conjugate_gradients` takes the factor as its
preconditioner.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jax.scipy.linalg
import numpy as np

from thalweg.linalg.arrays import namespace, while_loop
from thalweg.linalg.lapack import call

__all__ = ["Factor", "NotPositiveDefinite", "cholesky", "factorise"]

MAX_RAISES = 14
"""The last of them adds more than the diagonal itself in float64: a matrix that needs more is no covariance."""


class NotPositiveDefinite(np.linalg.LinAlgError):
    """A matrix that must be positive definite is not, by more than rounding.

    >>> issubclass(NotPositiveDefinite, ValueError)  # so that ``except ValueError`` catches it
    True
    """


class Factor(NamedTuple):
    """The lower Cholesky factor L of A + τI = LLᵀ.

    Examples
    --------
    >>> factor = factorise(np.array([[4.0, 2.0], [2.0, 3.0]]))
    >>> factor.solve(np.array([8.0, 7.0])).round(9).tolist(), float(factor.raised)
    ([1.25, 1.5], 0.0)
    >>> bool(np.isclose(factor.log_determinant(), np.log(8.0)))
    True
    """

    lower: Any
    """With zeros above its diagonal."""
    raised: Any
    """τ, 0 where nothing was needed."""

    def solve(self, right: Any) -> Any:
        """(A + τI)⁻¹ times columns."""
        if namespace(self.lower) is np and self.lower.size > 1:
            return self._on_host("potrs", right, b"L")
        return self.half_solve(self.half_solve(right), transpose=True)

    def half_solve(self, right: Any, transpose: bool = False) -> Any:
        """L⁻¹ times columns, or L⁻ᵀ times them."""
        if namespace(self.lower) is not np:
            return jax.scipy.linalg.solve_triangular(self.lower, right, lower=True, trans=int(transpose))
        if self.lower.size == 1:
            return right / self.lower[0, 0]
        return self._on_host("trtrs", right, b"L", b"T" if transpose else b"N", b"N")

    def _on_host(self, routine: str, right: np.ndarray, *flags: bytes) -> np.ndarray:
        if not right.size:
            return right
        dtype, rows = np.result_type(self.lower, right), len(right)
        lower, solution = np.asarray(self.lower, dtype, "F"), np.array(right.reshape(rows, -1), dtype, order="F")
        call(routine, *flags, rows, solution.shape[1], lower, rows, solution, rows)
        return solution.reshape(right.shape)

    def log_determinant(self) -> Any:
        """log det (A + τI)."""
        xp = namespace(self.lower)
        return 2 * xp.sum(xp.log(xp.diagonal(self.lower)))

    def inverse_root(self) -> Any:
        """L⁻¹: products with it replace solves where there are many."""
        xp = namespace(self.lower)
        if xp is np:
            root = np.array(self.lower, order="F")
            call("trtri", b"L", b"N", len(root), root, len(root))
            return root
        return self.half_solve(xp.eye(len(self.lower), dtype=self.lower.dtype))

    def inverse(self) -> Any:
        """(A + τI)⁻¹, symmetric.

        Examples
        --------
        >>> factorise(np.array([[2.0, 1.0], [1.0, 1.0]])).inverse().round(9).tolist()
        [[1.0, -1.0], [-1.0, 2.0]]
        """
        if namespace(self.lower) is np:
            half = np.array(self.lower, order="F")
            call("potri", b"L", len(half), half, len(half))
            whole = half + half.T
            whole.flat[:: len(whole) + 1] /= 2
            return whole
        root = self.inverse_root()
        return root.T @ root

    def inverse_diagonal(self) -> Any:
        """The diagonal of (A + τI)⁻¹."""
        root = self.inverse_root()
        return namespace(root).einsum("ij,ij->j", root, root)


def factorise(matrix: Any, diagonal: Any = None) -> Factor:
    """Factorise a covariance, on the host or on a device, raising its diagonal by the least that it takes.

    Parameters
    ----------
    matrix
        A symmetric matrix A, of NumPy or of JAX.
    diagonal
        What is added to its diagonal in any case: a ridge, noise.

    Raises
    ------
    NotPositiveDefinite
        On the host, where no raise helps. On a device, where nothing can be raised, the factor is NaN.

    Examples
    --------
    >>> nearly = np.ones((3, 3))
    >>> factor = factorise(nearly)
    >>> bool(0 < factor.raised < 1e-13), bool(np.allclose(factor.lower @ factor.lower.T, nearly))
    (True, True)
    """
    xp = namespace(matrix)
    if xp is not np:
        return _factorise_on_device(matrix, diagonal)
    lower = cholesky(matrix, np.asarray(0.0 if diagonal is None else diagonal, matrix.dtype))
    if np.isfinite(lower[-1, -1]):  # as nearly always, where nothing more needs to be worked out
        return Factor(lower, np.zeros((), matrix.dtype))
    factor = _raised_until_positive(matrix, diagonal, 1)
    if not np.isfinite(factor.lower[-1, -1]):
        mean = np.mean(np.diagonal(matrix))
        found = "NaN or infinity in it" if not np.all(np.isfinite(matrix)) else f"a diagonal of {mean:.3g} on average"
        raise NotPositiveDefinite(f"a matrix of side {len(matrix)} is not positive definite, found {found}")
    return factor


def _raised_until_positive(matrix: Any, diagonal: Any, begin: int = 0) -> Factor:
    xp = namespace(matrix)
    added = xp.asarray(0.0 if diagonal is None else diagonal, matrix.dtype)
    scale = abs(matrix.diagonal() + added).mean()
    unit = xp.finfo(matrix.dtype).eps * scale

    def attempt(k: Any) -> tuple[Any, Any, Any]:
        raised = xp.where(k > 0, unit * 10.0**k, 0.0).astype(matrix.dtype)
        return k, cholesky(matrix, added + raised), raised

    fails = lambda state: ~xp.isfinite(state[1][-1, -1]) & (state[0] < MAX_RAISES)
    first = attempt(xp.asarray(begin, matrix.dtype))
    _, lower, raised = while_loop(fails, lambda state: attempt(state[0] + 1), first, xp)
    return Factor(lower, raised)


_factorise_on_device = jax.jit(_raised_until_positive)


def cholesky(matrix: Any, added: Any = 0.0) -> Any:
    """Return the lower factor of a matrix with a diagonal added, as it is, with NaN in its last entry if there is none.

    Examples
    --------
    >>> cholesky(np.diag([4.0, -1e-20])).tolist()
    [[2.0, 0.0], [0.0, nan]]
    """
    if namespace(matrix) is not np:
        diagonal = jnp.broadcast_to(jnp.asarray(added, matrix.dtype), matrix.shape[:1])
        return jnp.linalg.cholesky(matrix + jnp.diag(diagonal))
    # The upper triangle of a symmetric matrix is the lower one in Fortran's order; np.triu is slow for small ones.
    rows, columns = map(np.arange, matrix.shape)
    half = np.ascontiguousarray(np.where(rows[:, None] <= columns, matrix, 0))
    half.flat[:: len(half) + 1] += added
    if not call("potrf", b"L", len(half), half.T, len(half)):
        half[-1, -1] = np.nan
    return half.T

"""Preconditioners for log and 1/x: log det A = log det P + tr log(P^(−½) A P^(−½)).

A request (:class:`Jacobi` and :class:`Own` here, :class:`PivotedCholesky` and :class:`Nystrom` in
:mod:`thalweg.spectral.lowrank`) builds its preconditioner for an operator.
"""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from thalweg.linalg.operators.base import Operator
from thalweg.spectral.chebyshev import not_positive_definite
from thalweg.trees import Part

__all__ = ["Jacobi", "Own"]


def whitened_product(operator: Operator, preconditioner: "Preconditioner | None", block: Array) -> Array:
    """P^(−½)AP^(−½) times a block; A times it without a preconditioner."""
    if preconditioner is None:
        return operator.mv(block)
    return preconditioner.inverse_root(operator.mv(preconditioner.inverse_root(block)))


class PreconditionerRequest(Part):
    """A request for a preconditioner."""

    @abstractmethod
    def build(self, operator: Operator, key: Key[Array, ""], probes: int) -> "Preconditioner":
        """Build the preconditioner for an operator and estimates of so many probes."""


class Preconditioner(PreconditionerRequest):
    """A symmetric positive definite P with a cheap P^(−½), and eigenvalues that are known."""

    products: ClassVar[Any] = 0
    """Products with A that it was built by."""

    def build(self, operator: Operator, key: Key[Array, ""], probes: int) -> "Preconditioner":
        """Return itself: it is built."""
        return self

    @abstractmethod
    def inverse_root(self, block: Array) -> Array:
        """Apply P^(−½) to a block of vectors."""

    @abstractmethod
    def offset(self, form: str) -> float:
        """Return log det P or, for the form "inverse", tr P⁻¹."""

    def control(self, operator: Operator, vectors: Array, power: int) -> Array:
        """Return tr(P⁻ᵖ P(θ)) − mean_i x_iᵀ P(θ) x_i for x_i of covariance P⁻ᵖ, p = ``power``: mean zero whatever θ.

        P(θ) is built of the operator as P was; 0 where it is not known how.
        """
        return jnp.zeros((), vectors.dtype)

    def least(self) -> float | None:
        """Return a lower end of the spectrum of P^(−½)AP^(−½), near 1, if one is known."""
        return None


def add_up(eigenvalues: np.ndarray, form: str) -> float:
    """Return log det P or, for the form "inverse", tr P⁻¹, in float64."""
    wide = np.asarray(eigenvalues, np.float64)
    return float(np.sum(1.0 / wide if form == "inverse" else np.log(wide)))


class DiagonalPreconditioner(Preconditioner):
    """P = diag(A)."""

    diagonal: Float[Array, " d"]

    def inverse_root(self, block: Array) -> Array:
        """Divide by the roots of the diagonal."""
        return block / jnp.sqrt(self.diagonal)[:, None]

    def offset(self, form: str) -> float:
        """Add up over the diagonal."""
        return add_up(np.asarray(self.diagonal), form)

    def control(self, operator: Operator, vectors: Array, power: int) -> Array:
        """See :meth:`Preconditioner.control`."""
        moving = operator.diagonal()
        sampled = jnp.sum(moving[:, None] * vectors**2) / vectors.shape[1]
        return jnp.sum(moving * self.diagonal ** -float(power)) - sampled


def positive_diagonal(operator: Operator) -> np.ndarray:
    """Return the diagonal of A on the host, and refuse one that shows that A is not positive definite."""
    diagonal = np.asarray(operator.diagonal(), np.float64)
    if not np.all(diagonal > 0):
        index = int(np.argmin(np.where(np.isnan(diagonal), -np.inf, diagonal)))
        raise not_positive_definite(f"its diagonal has the entry {diagonal[index]:.4g} at index {index}")
    return diagonal


class Jacobi(PreconditionerRequest):
    """Ask for P = diag(A).

    Examples
    --------
    >>> import jax, numpy as np
    >>> from thalweg.spectral import as_operator
    >>> A = as_operator(np.diag(np.array([1.0, 4.0])))
    >>> Jacobi().build(A, jax.random.key(0), probes=2).inverse_root(np.ones((2, 1)))
    Array([[1. ],
           [0.5]], dtype=float...)
    """

    def build(self, operator: Operator, key: Key[Array, ""], probes: int) -> Preconditioner:
        """Read the diagonal."""
        return DiagonalPreconditioner(jnp.asarray(positive_diagonal(operator), operator.dtype))


class Own(Preconditioner):
    """The user's preconditioner.

    Parameters
    ----------
    inverse_root
        ``inverse_root(vectors) -> P^(−½) vectors``, symmetric.
    log_determinant
        log det P; needed for ``logdet``.
    inverse_trace
        tr P⁻¹; needed for ``trace_inverse``.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> halved = Own(lambda v: 0.5 * v, log_determinant=3 * jnp.log(4.0))  # P = 4I in three dimensions
    >>> halved.inverse_root(jnp.ones((3, 1)))[0]
    Array([0.5], dtype=float...)
    """

    function: Callable[[Any], Any] = eqx.field(static=True)
    log_determinant: Array
    inverse_trace: Array

    def __init__(
        self, inverse_root: Callable[[Any], Any], log_determinant: Any = np.nan, inverse_trace: Any = np.nan
    ) -> None:
        self.function = inverse_root
        self.log_determinant, self.inverse_trace = jnp.asarray(log_determinant), jnp.asarray(inverse_trace)

    def inverse_root(self, block: Array) -> Array:
        """Call the function."""
        return self.function(block)

    def offset(self, form: str) -> float:
        """Return what was given, if it was."""
        name = "log_determinant" if form == "log" else "inverse_trace"
        known = float(getattr(self, name))
        if not np.isfinite(known):
            raise ValueError(f"the preconditioner's {name} must be finite for this sum, found {known}: pass {name}=")
        return known

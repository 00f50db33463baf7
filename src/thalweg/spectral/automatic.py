"""The preconditioner for those who ask for none: found by a trial, and left out where it would not help."""

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key

from thalweg.linalg.operators.base import Operator
from thalweg.spectral.bounds import IllConditionedError, NotPositiveDefiniteError, host_random, hosted
from thalweg.spectral.lowrank import PivotedCholesky
from thalweg.spectral.precondition import Jacobi, Preconditioner

_WORTH_SCALING = 4.0
"""Diagonal entries that differ by more than this factor are worth dividing out."""


class _Trial(PivotedCholesky):
    least_explained: ClassVar[float] = 0.8


def automatic(operator: Operator, key: Key[Array, ""], probes: int, wanted: float) -> Preconditioner | None:
    """The preconditioner that suits an operator, or None.

    A pivoted Cholesky where columns can be read and the standard error of log det A is then predicted to be at most
    ``wanted`` for each dimension; the diagonal where it varies.
    """
    try:
        diagonal = np.asarray(operator.diagonal(), np.float64)
    except NotImplementedError:
        return None
    if not np.all(diagonal > 0):
        index = int(np.argmin(np.where(np.isnan(diagonal), -np.inf, diagonal)))
        raise NotPositiveDefiniteError(
            f"A must be positive definite for this function: its diagonal has the entry {diagonal[index]:.4g} at "
            f"index {index}"
        )
    if np.max(diagonal) > _WORTH_SCALING * np.min(diagonal):
        return Jacobi().build(operator, key, probes)
    return _low_rank(operator, key, probes, wanted) if operator.has_columns else None


def _low_rank(operator: Operator, key: Any, probes: int, wanted: float) -> Preconditioner | None:
    try:
        built = (_Trial() if np.isfinite(wanted) else PivotedCholesky()).build(operator, key, probes)
    except IllConditionedError:
        return None
    # Quadratic forms of log B vary by 2‖log B‖² without its mean, which is about ‖B − cI‖² for the best c near 1.
    omega = host_random(key, 5).standard_normal((operator.dimension, 4))
    moved = np.asarray(hosted(_whitened, operator)(operator, built, jnp.asarray(omega, operator.dtype)))
    mean = np.sum(moved * omega) / np.sum(omega**2)
    predicted = np.linalg.norm(moved - mean * omega) / 2 * np.sqrt(2 / probes)
    return built if predicted <= wanted * operator.dimension else None


def _whitened(operator: Operator, built: Preconditioner, block: Array) -> Array:
    with jax.default_matmul_precision("highest"):
        return built.inverse_root(operator.mv(built.inverse_root(block)))

"""Factorisations, where they are cheaper: log det by Cholesky's, everything else by eigenvalues."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from thalweg.spectral.bounds import NotPositiveDefiniteError
from thalweg.spectral.chebyshev import evaluate
from thalweg.spectral.estimate import Estimate, Plan, Status
from thalweg.spectral.operators import Operator
from thalweg.spectral.operators.base import is_concrete

# Multiplications of a factorisation, in units of d³, weighted by how much slower than a product they run.
_CHOLESKY, _EIGENVALUES = 0.5, 5.0
_SMALL = 200


def factorisation_is_cheaper(
    f: Callable[[Any], Any], operator: Operator, plan: Plan | None, estimates: int = 1
) -> bool:
    """Whether a factorisation is predicted to cost less than so many estimates of the kind the plan describes.

    Without a plan: whether the matrix is so small that even making one would cost more.
    """
    if not operator.materialised:
        return False
    size = operator.dimension
    if size <= _SMALL or plan is None:
        return size <= _SMALL
    factor = _CHOLESKY if f is jnp.log else _EIGENVALUES
    return factor * size < 0.5 * plan.probes * float(plan.mean_degree) * estimates


def exact_sum(f: Callable[[Any], Any], operator: Operator) -> Estimate:
    """Compute tr f(A) by a factorisation of the dense matrix; differentiable."""
    dense = operator.to_dense()
    if f is jnp.log:
        root = jnp.linalg.cholesky(dense)
        value = 2.0 * jnp.sum(jnp.log(jnp.diagonal(root)))
        lower = upper = jnp.asarray(np.nan, dense.dtype)
    else:
        eigenvalues = jnp.linalg.eigvalsh(dense)
        value = jnp.sum(f(eigenvalues))
        lower, upper = eigenvalues[0], eigenvalues[-1]
        if is_concrete(operator):
            _check_away_from_zero(f, jax.lax.stop_gradient(eigenvalues))
    if is_concrete(operator) and not bool(jnp.isfinite(value)):
        raise NotPositiveDefiniteError(
            "f is not finite on the spectrum of A: A is not positive definite, or holds NaN or infinity"
        )
    return Estimate(
        value=value,
        standard_error=jnp.zeros((), dense.dtype),
        products=jnp.asarray(0.0, dense.dtype),
        lower=lower,
        upper=upper,
        status=jnp.asarray(int(Status.OK)),
        degrees_of_freedom=np.inf,
        advice="Computed by a factorisation.",
    )


def _check_away_from_zero(function: Any, eigenvalues: Array) -> None:
    """Refuse a matrix that is singular up to rounding, or indefinite, where f has a pole at zero."""
    if np.isfinite(evaluate(function, 0.0)):
        return
    least = eigenvalues.size * float(jnp.finfo(eigenvalues.dtype).eps) * float(jnp.max(jnp.abs(eigenvalues)))
    if not float(eigenvalues[0]) > least:
        raise NotPositiveDefiniteError(
            f"A must be positive definite for this function: its smallest eigenvalue is {float(eigenvalues[0]):.4g}"
        )

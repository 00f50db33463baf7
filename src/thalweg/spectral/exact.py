"""Factorisations, where they are cheaper: log det and tr A⁻¹ by Cholesky's, everything else by eigenvalues.

On arrays that are known they are made by LAPACK on the host, in float64 and with nothing to compile. Where A is
differentiated or traced they are JAX's, in A's own precision. The error bar is what rounding is expected to cost.
"""

from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg
from jaxtyping import Array

from thalweg.linalg.arrays import scaled_norm
from thalweg.linalg.factor import Factor, NotPositiveDefinite
from thalweg.linalg.operators.base import Operator, in_float64, is_concrete, is_traced
from thalweg.spectral.chebyshev import Function, evaluate, not_positive_definite
from thalweg.spectral.estimate import Estimate, EstimateStatus, add_stored_rounding
from thalweg.spectral.functions import reciprocal
from thalweg.threads import enough_threads

EXACT_ROWS = {"cholesky": 5000, "eigenvalues": 2300, "products": 1000}
"""Rows up to which a factorisation takes about two seconds on one core, as long as an estimate takes to plan and
compile; fewer where the entries must be found by products. At twice as many it takes eight times as long."""


def by_cholesky(f: Function) -> bool:
    """Whether the sum comes of a Cholesky factor."""
    return f is jnp.log or f is reciprocal


def exact_rows(f: Function, materialised: bool = True) -> int:
    """Return up to how many rows a factorisation takes no longer than an estimate; fewer if entries must be found."""
    if not materialised:
        return EXACT_ROWS["products"]
    return EXACT_ROWS["cholesky" if by_cholesky(f) else "eigenvalues"]


def exact_sum(f: Function, operator: Operator) -> Estimate:
    """Compute tr f(A) by a factorisation; differentiable."""
    dtype, lower, upper = operator.dtype, np.nan, np.nan
    if is_traced(operator):
        value, error = _traced_cholesky(f, operator, jnp) if by_cholesky(f) else _by_eigenvalues(f, operator, jnp)
        if is_concrete(operator) and not bool(jnp.isfinite(jax.lax.stop_gradient(value))):
            raise NotPositiveDefinite("f is not finite on the spectrum of A: A is not positive definite")
        error = jax.lax.stop_gradient(error)
    else:
        with enough_threads(operator.dimension):
            value, error, lower, upper = _on_host(f, operator, float(jnp.finfo(dtype).eps))
        if abs(value) > float(jnp.finfo(dtype).max):
            raise ValueError(f"the sum is {value:.4g}, too large for {dtype}: pass A as float64")
    scalar = lambda x: jnp.asarray(x, dtype)
    xp = jnp if isinstance(value, jax.Array) else np
    return Estimate(
        value=scalar(value),
        standard_error=scalar(add_stored_rounding(error, value, dtype)),
        products=scalar(0.0),
        lower=scalar(lower),
        upper=scalar(upper),
        status=jnp.asarray(xp.where(xp.isfinite(value), int(EstimateStatus.OK), int(EstimateStatus.NOT_FINITE))),
        degrees_of_freedom=np.inf,
        advice="Computed by a factorisation.",
    )


def _on_host(f: Function, operator: Operator, given_eps: float) -> tuple[float, float, float, float]:
    """Return the sum, what rounding is expected to cost it, and the ends of the spectrum where they are known.

    ``given_eps`` is that of the precision in which entries were given.
    """
    if operator.materialised and operator.dtype != np.float64:
        # Entries that are computed, such as a kernel's, are to have the digits of the factorisation.
        with jax.enable_x64(True):
            return _on_host(f, in_float64(operator), given_eps)
    if by_cholesky(f):
        return *_by_cholesky(f, operator, np), np.nan, np.nan
    eigenvalues, moved = operator.eigenvalues()
    at_zero = np.isfinite(evaluate(f, 0.0))
    if not at_zero and (eigenvalues[0] < 0 or np.any(np.abs(eigenvalues) <= eigenvalues.size * moved)):
        raise not_positive_definite(f"its smallest eigenvalue is {float(eigenvalues[0]):.4g}")
    moved_at_most = np.maximum(moved, given_eps * np.max(np.abs(eigenvalues)))
    undefined = ~np.isfinite(evaluate(f, eigenvalues))
    zero = undefined & (np.abs(eigenvalues) <= eigenvalues.size * moved_at_most)
    if np.any(undefined & ~zero):
        where = eigenvalues[undefined & ~zero][0]
        if where < 0 and at_zero:
            raise not_positive_definite(f"it has the eigenvalue {where:.4g}", "semi-definite")
        raise ValueError(f"f is not finite at an eigenvalue of A, {where:.6g}: it is undefined or too large there")
    value, error = _add_up(partial(evaluate, f), eigenvalues, moved, zero, np)
    return float(value), float(error), float(eigenvalues[0]), float(eigenvalues[-1])


def _by_eigenvalues(f: Function, operator: Operator, xp: Any) -> tuple[Array, Array]:
    eigenvalues, moved = operator.eigenvalues(xp)
    # √x has no derivative at 0 that the chain rule could multiply by 0; as a subgradient of the norm 0 will do.
    smooth = jnp.isfinite(jax.vmap(f)(eigenvalues)) & jnp.isfinite(jax.grad(f)(jnp.zeros((), eigenvalues.dtype)))
    return _add_up(jax.vmap(f), eigenvalues, moved, ~smooth & (jnp.abs(eigenvalues) <= eigenvalues.size * moved), jnp)


def _add_up(f: Function, eigenvalues: Any, moved: Any, zero: Any, xp: Any) -> tuple[Any, Any]:
    """Return Σ f(λ), and what it is expected to be off by where each λ is ``moved``; some λ are taken as ``zero``."""
    values = xp.where(zero, f(xp.zeros_like(eigenvalues)), f(xp.where(zero, 1.0, eigenvalues)))
    held, own, moved = _hold((eigenvalues, values, moved), xp)
    moved = xp.where(zero, xp.maximum(xp.abs(held), moved), moved)
    # Not by the slope, which √x has none of at zero, and a narrow f none that tells.
    beside = f(xp.concatenate([xp.where(zero, 0.0, held) + sign * moved for sign in (1, -1)])).reshape(2, -1)
    changes = xp.max(xp.where(xp.isfinite(beside), xp.abs(beside - own[None]), 0.0), axis=0)
    return xp.sum(values), xp.hypot(scaled_norm(changes), scaled_norm(xp.finfo(own.dtype).eps * own))


def _hold(arrays: Any, xp: Any) -> Any:
    return arrays if xp is np else jax.lax.stop_gradient(arrays)


def _by_cholesky(f: Function, operator: Operator, xp: Any) -> tuple[Any, Any]:
    """Return the sum, and what rounding is expected to cost it.

    A Cholesky factor is that of a matrix whose entries are off by eps·√(a_ii a_jj), which moves the sum by eps times
    numbers of the length ‖D A⁻ᵖ D‖, D² = diag A; a few random vectors estimate Frobenius' norm.
    """
    dense = operator.entries(xp)
    diagonal = xp.diagonal(dense)
    factor = Factor(_lower_on_host(dense) if xp is np else jnp.linalg.cholesky(dense), 0.0)
    with np.errstate(over="ignore"):
        parts = 2 * xp.log(xp.diagonal(factor.lower)) if f is jnp.log else factor.inverse_diagonal()
    if xp is np and not np.all(np.isfinite(parts)):
        raise ValueError("the trace of the inverse is too large for float64: multiply A")
    lower, diagonal, own = _hold((factor.lower, diagonal, parts), xp)
    scale, held = xp.sqrt(diagonal)[:, None], Factor(lower, 0.0)
    moved = scale * np.random.default_rng(0).standard_normal((len(scale), 8)).astype(scale.dtype)
    for _ in range(1 if f is jnp.log else 2):
        moved = held.solve(moved)
    moved = scale * moved / np.sqrt(8).astype(scale.dtype)
    return xp.sum(parts), operator.rounding * xp.hypot(scaled_norm(own), scaled_norm(moved.ravel()))


_traced_cholesky = eqx.filter_jit(_by_cholesky)


def _lower_on_host(dense: np.ndarray) -> np.ndarray:
    """Return the lower Cholesky factor, and refuse a matrix that is not positive definite up to rounding."""
    # LAPACK's order of a symmetric matrix: the transpose needs no copy but the factor's own.
    root, failed = scipy.linalg.lapack.dpotrf(dense.T, lower=1)
    pivots, eps = np.diagonal(root[: failed - 1] if failed else root) ** 2, np.finfo(np.float64).eps
    # A pivot is what is left of its diagonal entry: nothing but rounding, if A is singular.
    lost = pivots <= 8 * eps * np.sqrt(len(pivots)) * np.diagonal(dense)[: len(pivots)]
    if not failed and not np.any(lost):
        return root
    least = _rayleigh_quotient(dense, root, failed - 1 if failed else int(np.argmax(lost)))
    raise not_positive_definite(f"its smallest eigenvalue is at most {least:.4g} up to rounding. Shift it (A + εI).")


def _rayleigh_quotient(dense: np.ndarray, root: np.ndarray, index: int) -> float:
    """Return vᵀAv/vᵀv for the vector v that shows that an A whose pivot of that index is lost is not positive."""
    before = scipy.linalg.cho_solve((root[:index, :index], True), dense[:index, index], check_finite=False)
    vector = np.append(-before, 1.0) / max(np.max(np.abs(before), initial=0.0), 1.0)
    return float(vector @ (dense[: index + 1, : index + 1] @ vector) / (vector @ vector))

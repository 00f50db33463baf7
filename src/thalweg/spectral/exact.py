"""Factorisations, where they are cheaper: log det and tr A⁻¹ by Cholesky's, everything else by eigenvalues.

On arrays that are known they are made by LAPACK on the host, in float64 and with nothing to compile. Where A is
differentiated or traced they are JAX's, in A's own precision. The error bar is what rounding is expected to cost.
"""

import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg
from jax.scipy.linalg import cho_solve, solve_triangular
from jaxtyping import Array

from thalweg.linalg.operators.base import EPS, Operator, is_concrete, is_traced, widened
from thalweg.spectral.bounds import NotPositiveDefiniteError
from thalweg.spectral.chebyshev import evaluate
from thalweg.spectral.estimate import Estimate, EstimateStatus, Plan
from thalweg.spectral.functions import reciprocal
from thalweg.threads import enough_threads

# Multiplications of a factorisation, in units of d³, weighted by how much slower than a product they run.
_CHOLESKY, _EIGENVALUES = 0.5, 5.0
_AT_ONCE = {"cholesky": 5000, "eigenvalues": 1500, "products": 1000}
"""Up to this dimension a factorisation takes less time than a stochastic estimate takes to plan."""
_BARE, _LARGEST = 12_000, 16_000
"""Up to this dimension Cholesky's takes less than an estimate without a preconditioner; and any fits into memory."""


_LAST_RESORT = {"cholesky": _BARE, "eigenvalues": 4000}
"""Up to this dimension a factorisation takes less than ten thousand estimates, whatever the matrix is made of."""

_SECONDS = {"cholesky": 1.5e-11, "eigenvalues": 1.5e-10}
"""What a factorisation takes on one core, in units of d³."""


def by_cholesky(f: Callable[[Any], Any]) -> bool:
    """Whether the sum comes of a Cholesky factor."""
    return f is jnp.log or f is reciprocal


def exact_at_once(f: Callable[[Any], Any], operator: Operator) -> bool:
    """Whether a matrix is so small that even planning an estimate would cost more than a factorisation."""
    kind = "cholesky" if by_cholesky(f) else "eigenvalues"
    return operator.dimension <= min(_AT_ONCE[kind], _AT_ONCE[kind if operator.materialised else "products"])


def exact_instead(f: Callable[[Any], Any], operator: Operator) -> bool:
    """Whether a factorisation is the better way where no preconditioner helps."""
    return by_cholesky(f) and operator.calls_library and operator.dimension <= _BARE


def exact_at_last(f: Callable[[Any], Any], operator: Operator) -> bool:
    """Whether a factorisation is the way where a tolerance takes more estimates than are drawn."""
    return operator.dimension <= _LAST_RESORT["cholesky" if by_cholesky(f) else "eigenvalues"]


def exact_is_possible(operator: Operator) -> bool:
    """Whether a factorisation can be made where an estimate cannot."""
    return operator.materialised and operator.dimension <= _LARGEST


def warn_if_long(f: Callable[[Any], Any], operator: Operator, reason: Exception) -> None:
    """Say that a factorisation nobody asked for takes minutes, before it is made."""
    if exact_at_last(f, operator):
        return
    minutes = int(np.ceil(_SECONDS["cholesky" if by_cholesky(f) else "eigenvalues"] * operator.dimension**3 / 60))
    warnings.warn(
        f"An estimate failed: {reason} A dense matrix of side {operator.dimension:,} is factorised instead, which "
        f"takes some {minutes} minute(s), not to be interrupted from the keyboard. method='stochastic' refuses.",
        stacklevel=6,
    )


def factorisation_is_cheaper(f: Callable[[Any], Any], operator: Operator, plan: Plan, estimates: int) -> bool:
    """Whether a factorisation is predicted to cost less than so many estimates of the kind the plan describes."""
    if exact_at_once(f, operator):
        return True
    factor = _CHOLESKY if by_cholesky(f) else _EIGENVALUES
    dear = factor * operator.dimension < 0.5 * plan.probes * float(plan.mean_degree) * estimates
    return operator.calls_library and exact_is_possible(operator) and dear


def exact_sum(f: Callable[[Any], Any], operator: Operator) -> Estimate:
    """Compute tr f(A) by a factorisation; differentiable."""
    dtype = operator.dtype
    value: Any
    error: Any
    if is_concrete(operator) and not is_traced(operator):
        with enough_threads(operator.dimension):
            value, error, lower, upper = _on_host(f, operator, float(jnp.finfo(dtype).eps))
        if abs(value) > float(jnp.finfo(dtype).max):
            raise ValueError(f"the sum is {value:.4g}, too large for {dtype}: pass A as float64")
    else:
        (value, error), lower, upper = _traced(f, operator), np.nan, np.nan
    # Whatever the digits of the sum, its dtype keeps no more than its own.
    stored = 0.5 * float(jnp.finfo(dtype).eps) * jax.lax.stop_gradient(value)
    error = jnp.hypot(error, stored) if is_traced(operator) else float(np.hypot(error, stored))
    scalar = lambda x: jnp.asarray(x, dtype)
    return Estimate(
        value=value if isinstance(value, jax.Array) else scalar(value),
        standard_error=scalar(error),
        products=scalar(0.0),
        lower=scalar(lower),
        upper=scalar(upper),
        status=jnp.where(jnp.isfinite(value), int(EstimateStatus.OK), int(EstimateStatus.NOT_FINITE)),
        degrees_of_freedom=np.inf,
        advice="Computed by a factorisation.",
    )


def _traced(f: Callable[[Any], Any], operator: Operator) -> tuple[Array, Array]:
    value, error = _traced_cholesky(f is jnp.log, operator) if by_cholesky(f) else operator.traced_sum(f)
    if is_concrete(operator) and not bool(jnp.isfinite(jax.lax.stop_gradient(value))):
        raise NotPositiveDefiniteError("f is not finite on the spectrum of A: A is not positive definite")
    return value, jax.lax.stop_gradient(error)


def _traced_cholesky(log: bool, operator: Operator) -> tuple[Array, Array]:
    dense = operator.to_dense()
    root = jnp.linalg.cholesky(dense)
    if log:
        parts = 2.0 * jnp.log(jnp.diagonal(root))
    else:
        parts = jnp.sum(solve_triangular(root, jnp.eye(len(root), dtype=root.dtype), lower=True) ** 2, axis=0)
    held, diagonal, own = jax.lax.stop_gradient((root, jnp.diagonal(dense), parts))
    moved = _moved_by_entries(lambda block: cho_solve((held, True), block), jnp.sqrt(diagonal), 1 if log else 2)
    eps = float(jnp.finfo(root.dtype).eps)
    return jnp.sum(parts), eps * jnp.hypot(jnp.linalg.norm(own), jnp.linalg.norm(moved))


def _on_host(f: Callable[[Any], Any], operator: Operator, given: float) -> tuple[float, float, float, float]:
    """The sum, what rounding is expected to cost it, and the ends of the spectrum where they are known.

    ``given`` is the eps that entries were rounded by before they came here.
    """
    if operator.materialised and operator.dtype != np.float64:
        # Entries that are computed, such as a kernel's, are to have the digits of the factorisation.
        with jax.enable_x64(True):
            return _on_host(f, widened(operator), given)
    if by_cholesky(f):
        return *_cholesky(f is jnp.log, operator.on_host(), operator.rounding), np.nan, np.nan
    eigenvalues = operator.eigenvalues()
    moved = operator.moved(eigenvalues)
    at_zero = float(evaluate(f, 0.0))
    if not np.isfinite(at_zero) and (eigenvalues[0] < 0 or np.any(np.abs(eigenvalues) <= eigenvalues.size * moved)):
        raise NotPositiveDefiniteError(
            f"A must be positive definite for this function: its smallest eigenvalue is {float(eigenvalues[0]):.4g}"
        )
    # What is zero up to rounding may have come out on the side where f is not defined.
    nothing = eigenvalues.size * np.maximum(moved, given * np.max(np.abs(eigenvalues)))
    lost = (np.abs(eigenvalues) <= nothing) & ~np.isfinite(evaluate(f, eigenvalues))
    moved = np.where(lost, np.maximum(np.abs(eigenvalues), moved), moved)
    taken = np.where(lost, 0.0, eigenvalues)
    beside = evaluate(f, np.stack([taken, taken + moved, taken - moved]))
    values = beside[0]
    if not np.all(np.isfinite(values)):
        where = eigenvalues[~np.isfinite(values)][0]
        if where < 0 and np.isfinite(at_zero):
            raise NotPositiveDefiniteError(
                f"A must be positive semi-definite for this function: it has the eigenvalue {where:.4g}"
            )
        raise ValueError(f"f is not finite at an eigenvalue of A, {where:.6g}: it is undefined or too large there")
    # Not by the slope, which √x has none of at zero, and a narrow f none that tells.
    changes = np.max(np.abs(np.where(np.isfinite(beside), beside, values) - values), axis=0)
    error = np.hypot(scipy.linalg.norm(changes), EPS * scipy.linalg.norm(values))
    return float(np.sum(values)), float(error), float(eigenvalues[0]), float(eigenvalues[-1])


def _cholesky(log: bool, dense: np.ndarray, eps: float) -> tuple[float, float]:
    diagonal = np.diagonal(dense).copy()
    # LAPACK's order of a symmetric matrix: the transpose needs no copy but the factor's own.
    root, failed = scipy.linalg.lapack.dpotrf(dense.T, lower=1, clean=0)
    pivots = np.diagonal(root[: failed - 1] if failed else root) ** 2
    # A pivot is what is left of its diagonal entry: nothing but rounding, if A is singular.
    lost = [failed - 1] if failed else np.nonzero(~(pivots > 8 * EPS * np.sqrt(len(pivots)) * diagonal))[0]
    if len(lost):
        raise NotPositiveDefiniteError(
            "A must be positive definite for this function: its smallest eigenvalue is "
            f"{_least(dense, root, int(lost[0]))} up to rounding. Shift it (A + εI)."
        )
    if log:
        parts = np.log(pivots)
    else:
        inverse, _ = scipy.linalg.lapack.dtrtri(root, lower=1)
        with np.errstate(over="ignore"):
            parts = np.sum(np.tril(inverse) ** 2, axis=0)
        if not np.all(np.isfinite(parts)):
            raise ValueError("the trace of the inverse is too large for float64: multiply A")
    solve = lambda block: scipy.linalg.cho_solve((root, True), block, check_finite=False)
    moved = _moved_by_entries(solve, np.sqrt(diagonal), 1 if log else 2)
    # SciPy's norm: the squares of these numbers may be too large.
    return float(np.sum(parts)), eps * float(np.hypot(scipy.linalg.norm(parts), scipy.linalg.norm(moved.ravel())))


def _least(dense: np.ndarray, root: np.ndarray, index: int) -> str:
    """The smallest eigenvalue, in words, of an A whose pivot of that index is lost.

    Of a large A the quotient vᵀAv/vᵀv of the vector v that shows it: the eigenvalue would take six times the factor's
    time.
    """
    if len(dense) <= _AT_ONCE["eigenvalues"]:
        return f"{float(scipy.linalg.eigvalsh(dense, check_finite=False, subset_by_index=(0, 0))[0]):.4g}"
    before = scipy.linalg.cho_solve((root[:index, :index], True), dense[:index, index], check_finite=False)
    vector = np.append(-before, 1.0) / max(np.max(np.abs(before), initial=0.0), 1.0)
    leading = dense[: index + 1, : index + 1]
    return f"at most {float(vector @ (leading @ vector) / (vector @ vector)):.4g}"


def _moved_by_entries(solve: Callable[[Any], Any], scale: Any, power: int) -> Any:
    """Numbers of the length ‖D A⁻ᵖ D‖, D² = diag A: what the sum moves by where each a_ij does by eps·√(a_ii a_jj).

    A Cholesky factor is that of a matrix so close to A; Frobenius' norm comes of a few random vectors.
    """
    probes = scale[:, None] * np.random.default_rng(0).standard_normal((len(scale), 8)).astype(scale.dtype)
    for _ in range(power):
        probes = solve(probes)
    return scale[:, None] * probes / np.sqrt(8).astype(scale.dtype)

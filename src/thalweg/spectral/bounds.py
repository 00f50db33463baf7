"""Intervals that hold the spectrum: Lanczos' method from a random start, with a stated safety.

Upper end (and lower end where f is entire): after k steps from a random vector, λ_max − θ_max exceeds
ε (λ_max − λ_min) with probability at most 1.648 √d exp(−√ε (2k−1)) (Kuczyński and Woźniakowski, 1992); the interval
is extended by the ε for which this is 10⁻³. Bounds from the entries (Gershgorin), where there are entries, are
proven, and used where they are tighter.

A positive lower end is not certified that way unless k is of the order √κ: there the smallest Ritz value is taken
less its residual, and at least a tenth of it, and the watch on ‖w_j‖ in the recurrence does the rest. Every Ritz value
is a Rayleigh quotient: one below zero *proves* that A is not positive definite.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg
from jaxtyping import Array, Key

from thalweg.spectral.operators import Operator
from thalweg.spectral.precondition import Preconditioner

_CHUNK = 20
_FAILURE = 1e-3


class Spectrum(NamedTuple):
    """An interval that holds the spectrum, and a quadrature for its density: Ritz values and weights of sum 1."""

    lower: float
    upper: float
    nodes: np.ndarray
    weights: np.ndarray
    products: int


class NotPositiveDefiniteError(ValueError):
    """An operator that must be positive definite has been shown not to be."""


def spectrum(
    operator: Operator,
    preconditioner: Preconditioner | None,
    key: Key[Array, ""],
    *,
    positive: bool,
    lower: float | None = None,
    upper: float | None = None,
    proven: tuple[float, float] | None = None,
    steps: int = 200,
) -> Spectrum:
    """Bound the spectrum of a symmetric operator and sketch its density.

    Parameters
    ----------
    operator
        The operator A.
    preconditioner
        Bound the spectrum of P^(−½)AP^(−½) instead.
    key
        For the starting vector.
    positive
        The spectrum must be positive: find a positive lower end.
    lower, upper
        Ends that are known; what is known is not searched for.
    proven
        Bounds proven by other means.
    steps
        At most this many products.
    """
    size, dtype = operator.dimension, operator.dtype
    state = _start(key, size, dtype)
    alphas: list[float] = []
    betas: list[float] = []
    limit = min(steps, size)
    while True:
        count = min(_CHUNK, limit - len(alphas))
        state, *pair = _lanczos(operator, preconditioner, state, count)
        alphas += np.asarray(pair[0], np.float64).tolist()
        betas += np.asarray(pair[1], np.float64).tolist()
        _check_finite(alphas, betas)
        # An invariant subspace has been found: what follows in the chunk is noise.
        scale = max(np.max(np.abs(alphas)), np.max(betas))
        small = np.nonzero(np.asarray(betas) <= 10 * np.finfo(dtype).eps * scale)[0]
        exhausted = small.size > 0
        used = int(small[0]) + 1 if exhausted else len(alphas)
        nodes, vectors = scipy.linalg.eigh_tridiagonal(alphas[:used], betas[: used - 1])
        weights = vectors[0] ** 2
        residuals = np.abs(vectors[-1]) * betas[used - 1]
        low, high = _ends(nodes, residuals, size, used, positive, exhausted or used >= size)
        if positive and nodes[0] <= 0:
            break
        known = (lower is not None or low is not None) and (upper is not None or high is not None)
        if exhausted or known or used >= limit:
            break
    products = len(alphas)
    if positive and nodes[0] <= 0 and (lower is None or lower > 0):
        raise NotPositiveDefiniteError(
            f"A must be positive definite for this function: a vector v was found with vᵀAv/vᵀv = {nodes[0]:.4g}. "
            "Shift it (A + εI), or pass a smoothing where there is one."
        )
    gap = residuals[0]
    if low is None:
        low = max(0.9 * nodes[0] - gap, 0.25 * nodes[0]) if positive else nodes[0] - gap
    if high is None:
        high = nodes[-1] + residuals[-1]
    if proven is not None:
        low, high = max(low, proven[0]), min(high, proven[1])
    low = low if lower is None else float(lower)
    high = high if upper is None else float(upper)
    # A multiple of the identity, nearly, has an interval of no width: give it some, the degree stays tiny.
    if not high - low > 1e-2 * max(abs(high), abs(low)):
        extra = 1e-2 * max(abs(high), abs(low)) or 1.0
        low, high = (low if lower is not None else low - extra), (high if upper is not None else high + extra)
    return Spectrum(float(low), float(high), nodes, weights, products)


def margin(size: int, steps: int) -> float:
    """ε of Kuczyński and Woźniakowski's bound at a failure probability of 10⁻³."""
    return float((np.log(1.648 * np.sqrt(size) / _FAILURE) / (2 * steps - 1)) ** 2)


def _ends(
    nodes: np.ndarray, residuals: np.ndarray, size: int, used: int, positive: bool, complete: bool
) -> tuple[float | None, float | None]:
    """The ends of the interval, each None as long as it needs more steps."""
    low, high = nodes[0], nodes[-1]
    scale = max(abs(low), abs(high))
    if complete:
        # The Krylov space holds every eigenvector that the start does: only rounding is left.
        slack = 1e-3 * max(high - low, 1e-3 * scale)
        return (max(low - slack, 0.9 * low) if positive else low - slack), high + slack
    epsilon = margin(size, used)
    spread = (high - low) / max(1.0 - 2.0 * epsilon, 0.1)
    upper = high + epsilon * spread if epsilon < 0.1 else None
    if not positive:
        return (low - epsilon * spread if epsilon < 0.1 else None), upper
    # Converged: the residual bounds the distance to an eigenvalue.
    converged = residuals[0] < 0.1 * low
    return (0.9 * low - residuals[0] if converged else None), upper


def _check_finite(alphas: list[float], betas: list[float]) -> None:
    if not (np.all(np.isfinite(alphas)) and np.all(np.isfinite(betas))):
        raise ValueError("A holds NaN or infinity: a product with a finite vector is not finite")


@eqx.filter_jit
def _start(key: Key[Array, ""], size: int, dtype: Any) -> tuple[Array, Array, Array]:
    start = jax.random.normal(key, (size, 1), dtype)
    return start / jnp.linalg.norm(start), jnp.zeros_like(start), jnp.zeros((), dtype)


@eqx.filter_jit
def _lanczos(operator: Operator, preconditioner: Preconditioner | None, state: tuple, count: int) -> tuple:
    """Run ``count`` steps of Lanczos' method without reorthogonalisation: extreme Ritz values do not need it."""
    half = (lambda block: block) if preconditioner is None else preconditioner.inverse_root

    def step(carry: tuple, _: None) -> tuple:
        vector, previous, beta = carry
        with jax.default_matmul_precision("highest"):
            product = half(operator @ half(vector))
        alpha = jnp.sum(vector * product)
        product = product - alpha * vector - beta * previous
        norm = jnp.linalg.norm(product)
        following = product / jnp.where(norm > 0, norm, 1.0)
        return (following, vector, norm), (alpha, norm)

    pairs: tuple
    state, pairs = jax.lax.scan(step, state, None, length=count)
    return state, *pairs

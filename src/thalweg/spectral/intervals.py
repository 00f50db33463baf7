"""What a plan must know of an operator before it has a series: that it is symmetric, and where its spectrum lies."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key

from thalweg.spectral.bounds import Spectrum, spectrum
from thalweg.spectral.chebyshev import evaluate
from thalweg.spectral.operators import Operator, entries_bounds
from thalweg.spectral.precondition import LowRank, Preconditioner


def needs_positive(function: Callable[[Any], Any]) -> bool:
    """Whether f or f′ is undefined at or below zero, so that the spectrum must be positive."""
    points = [-1.0, -1e-3, 0.0]
    values = np.append(evaluate(function, points), evaluate(function, points, derivative=True))
    return not bool(np.all(np.isfinite(values)))


def check_symmetric(operator: Operator, key: Key[Array, ""]) -> None:
    """Refuse an operator that changes the shape of vectors, is not finite, or not symmetric: uᵀAv ≠ vᵀAu."""
    finite, gap = _probe_symmetry(operator, key)
    if not bool(finite):
        raise ValueError("A holds NaN or infinity: a product with a finite vector is not finite")
    if float(gap) > 1e3 * float(jnp.finfo(operator.dtype).eps):
        raise ValueError(
            f"A must be symmetric: uᵀAv and vᵀAu differ by {float(gap):.2g} of ‖u‖‖Av‖ for random u, v. "
            "Symmetrise it, (A + Aᵀ)/2, or for singular values use nuclear_norm or schatten_norm."
        )


@eqx.filter_jit
def _probe_symmetry(operator: Operator, key: Key[Array, ""]) -> tuple[Array, Array]:
    size = operator.dimension
    u, v = jax.random.normal(key, (2, size, 2), operator.dtype)
    with jax.default_matmul_precision("highest"):
        both = operator @ jnp.concatenate([u, v], axis=1)
    if both.shape != (size, 4):
        raise ValueError(f"A must map a block of shape {(size, 4)} to the same shape, found {both.shape}")
    left, right = both[:, :2], both[:, 2:]
    gap = jnp.abs(jnp.sum(v * left, axis=0) - jnp.sum(u * right, axis=0))
    norms = jnp.linalg.norm(u, axis=0) * jnp.linalg.norm(right, axis=0)
    return jnp.all(jnp.isfinite(both)), jnp.max(gap / jnp.where(norms > 0, norms, 1.0))


def find_interval(
    function: Callable[[Any], Any],
    operator: Operator,
    built: Preconditioner | None,
    key: Key[Array, ""],
    interval: tuple[float | None, float | None] | None,
) -> Spectrum:
    """Find the interval, or check the user's."""
    if interval is not None and not (isinstance(interval, tuple | list) and len(interval) == 2):
        raise ValueError(f"interval must be (lower, upper), either of them None to be found; found {interval!r}")
    lower, upper = (None, None) if interval is None else interval
    if not all(end is None or np.isfinite(end) for end in (lower, upper)):
        raise ValueError(f"interval must have finite ends, or None for one to be found; found ({lower}, {upper})")
    if lower is not None and upper is not None and not lower < upper:
        raise ValueError(f"interval must be (lower, upper) with lower < upper, found ({lower}, {upper})")
    positive = needs_positive(function)
    if built is not None:
        positive = True
        if isinstance(built, LowRank) and lower is None:
            lower = _below_one(operator, built)
    proven = entries_bounds(operator) if built is None else None
    found = spectrum(operator, built, key, positive=positive, lower=lower, upper=upper, proven=proven)
    tolerance = 1e-6 * (found.upper - found.lower)
    for node in (found.nodes[0], found.nodes[-1]):
        if not found.lower - tolerance <= node <= found.upper + tolerance:
            if interval is None and built is not None:
                low = min(found.lower, 0.9 * found.nodes[0])
                return found._replace(lower=low, upper=max(found.upper, found.nodes[-1]))
            raise ValueError(
                f"interval ({found.lower:.6g}, {found.upper:.6g}) does not hold the spectrum: a vector v was found "
                f"with vᵀAv/vᵀv = {node:.6g}. Widen it, or leave it out to have it found."
            )
    return found


def _below_one(operator: Operator, built: LowRank) -> float:
    """1 less what rounding can do: P ≼ A holds to a few eps·κ(A)."""
    ends = jnp.max(built.eigenvalues) / built.noise
    lost = 8.0 * float(jnp.finfo(operator.dtype).eps) * (1.0 + float(ends))
    if lost > 0.5:
        raise ValueError(
            f"A is too ill-conditioned for {operator.dtype} with this preconditioner: κ is about {float(ends):.2g}. "
            "Use float64, or a larger noise."
        )
    return 1.0 - max(lost, 1e-6)


def widen(lower: float, upper: float, slack: float, positive: bool) -> tuple[float, float]:
    """Make room on both sides for spectra of other parameters: a factor where the spectrum must be positive."""
    if positive:
        return lower / slack, upper * slack
    extra = 0.5 * (slack - 1.0) * (upper - lower)
    return lower - extra, upper + extra

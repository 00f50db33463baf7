"""Lanczos' method: from products with a symmetric A to a small tridiagonal matrix T, and quadrature by T.

After k steps from a vector v of length 1 the eigenvalues of T (Ritz values) with the squared first entries of its
eigenvectors are a quadrature for the spectral measure of v: vᵀf(A)v ≈ Σ_i τ_i f(θ_i), exact for polynomials of degree
2k − 1 (Golub and Meurant, 2010). Conjugate gradients are the same method: their coefficients give the same T.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg
from jaxtyping import Array, Float

from thalweg.linalg.arrays import namespace

__all__ = ["log_quadrature", "log_trace"]


class LanczosState(NamedTuple):
    """The last two Lanczos vectors of each column, and the coefficient that connects them."""

    vector: Float[Array, "d m"]
    previous: Float[Array, "d m"]
    beta: Float[Array, " m"]
    scale: Float[Array, " m"]
    """The largest |α| + β so far, about ‖A‖, to whose rounding products are known."""

    @classmethod
    def start(cls, vectors: Any) -> "LanczosState":
        """Begin from vectors of length 1, of NumPy or of JAX."""
        xp = namespace(vectors)
        zero = xp.zeros_like(vectors[0])
        return cls(vectors, xp.zeros_like(vectors), zero, zero)


def lanczos(
    apply: Callable[[Array], Array], state: LanczosState, steps: int, *, reorthogonalise: bool = False
) -> tuple[LanczosState, Float[Array, "k m"], Float[Array, "k m"], Float[Array, "k d m"] | None]:
    """Take steps of Lanczos' method, for each column by itself.

    Extreme Ritz values need no reorthogonalisation. With it, against all vectors of this call, these are returned. Once
    a column's Krylov space is exhausted, what follows is 0.

    Returns
    -------
    state, alphas, betas, basis
        Where to go on; the diagonal of T and the entries beside it, of which the last is a residual; and the vectors.

    Examples
    --------
    >>> A, v = np.diag(np.array([1.0, 3.0])), np.full((2, 1), 0.5**0.5)
    >>> _, alphas, betas, _ = lanczos(lambda block: A @ block, LanczosState.start(v), 2)
    >>> alphas[:, 0].round(5).tolist(), betas[:, 0].round(5).tolist()
    ([2.0, 2.0], [1.0, 0.0])
    """

    def step(carry: tuple, index: Array) -> tuple:
        (vector, previous, beta, scale), basis = carry
        image = apply(vector)
        alpha = jnp.sum(vector * image, axis=0)
        image = image - alpha[None] * vector - beta[None] * previous
        if basis is not None:
            basis = basis.at[index].set(vector)
            for _ in range(2):  # once is not enough in floating point
                image = image - jnp.einsum("kdm,km->dm", basis, jnp.einsum("kdm,dm->km", basis, image))
        norm = jnp.linalg.norm(image, axis=0)
        scale = jnp.maximum(scale, jnp.abs(alpha) + beta)
        live = norm > 10 * jnp.finfo(norm.dtype).eps * scale
        norm, image = jnp.where(live, norm, 0), jnp.where(live[None], image / jnp.where(live, norm, 1)[None], 0)
        return (LanczosState(image, vector, norm, scale), basis), (alpha, norm)

    basis = jnp.zeros((steps, *state.vector.shape), state.vector.dtype) if reorthogonalise else None
    coefficients: tuple
    (state, basis), coefficients = jax.lax.scan(step, (state, basis), jnp.arange(steps))
    return state, *coefficients, basis


class Ritz(NamedTuple):
    """Ritz values in rising order, the weight of each in the start, and the residual of its vector."""

    nodes: np.ndarray
    weights: np.ndarray
    residuals: np.ndarray
    complete: bool
    """Whether the Krylov space is exhausted: all eigenvalues that the start sees have been found."""


def ritz(alphas: np.ndarray, betas: np.ndarray, eps: float) -> Ritz:
    """Return what one column's coefficients tell; betas up to ``eps`` of the largest coefficient are rounding.

    Examples
    --------
    >>> values = ritz(np.array([2.0, 2.0, 0.0]), np.array([1.0, 0.0, 0.0]), 1e-15)
    >>> values.nodes.round(6).tolist(), values.weights.round(6).tolist(), values.complete
    ([1.0, 3.0], [0.5, 0.5], True)
    """
    ends = np.nonzero(betas <= eps * max(np.max(np.abs(alphas)), np.max(betas)))[0]
    steps = int(ends[0]) + 1 if ends.size else len(alphas)
    nodes, vectors = scipy.linalg.eigh_tridiagonal(alphas[:steps], betas[: steps - 1])
    return Ritz(nodes, vectors[0] ** 2, np.abs(vectors[-1]) * betas[steps - 1], ends.size > 0)


def log_quadrature(sizes: np.ndarray, ratios: np.ndarray) -> float:
    """Return vᵀ log(A) v for v of length 1 from the steps of conjugate gradients that solved Ax = v.

    T has the diagonal 1/α_k + β_(k−1)/α_(k−1) and √β_k/α_k beside it, α the ``sizes`` and β the ``ratios`` (Saad, 2003,
    section 6.7.3). A size of 0 is a step that was not made.

    Examples
    --------
    >>> steps = np.array([0.5, 2 / 3]), np.array([0.25, 0.0])  # of A = diag(1, 3)
    >>> bool(np.isclose(log_quadrature(*steps), np.log(3.0) / 2))
    True
    """
    count = int(np.sum(sizes > 0))
    if not count:  # solved at once, or not at all
        return 0.0
    sizes, ratios = np.asarray(sizes[:count], float), np.asarray(ratios[: count - 1], float)
    alphas = 1 / sizes
    alphas[1:] += ratios / sizes[:-1]
    quadrature = ritz(alphas, np.append(np.sqrt(ratios) / sizes[:-1], 0.0), 0.0)
    return float(quadrature.weights @ np.log(np.maximum(quadrature.nodes, np.finfo(np.float64).tiny)))


def log_trace(sizes: np.ndarray, ratios: np.ndarray, lengths: np.ndarray) -> tuple[float, float]:
    """Estimate tr log A and its standard error from the steps of conjugate gradients for probes, a column for each.

    Probes z have the mean zzᵀ = I, and the squared lengths ``lengths``.

    Examples
    --------
    >>> from thalweg.linalg.cg import conjugate_gradients
    >>> probes = np.array([[1.0, 1.0], [1.0, -1.0]])
    >>> steps = conjugate_gradients(lambda block: np.diag([1.0, 3.0]) @ block, probes)
    >>> value, error = log_trace(steps.sizes, steps.ratios, np.array([2.0, 2.0]))
    >>> bool(np.isclose(value, np.log(3.0))), bool(error < 1e-9)
    (True, True)
    """
    values = lengths * np.array([log_quadrature(*steps) for steps in zip(sizes.T, ratios.T, strict=True)])
    return float(np.mean(values)), float(np.std(values, ddof=1) / np.sqrt(len(values)))

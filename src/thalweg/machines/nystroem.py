"""A preconditioner for K + D, with the Nyström approximation of some landmarks in place of K.

As Frangella, Tropp and Udell (2023); for what that leaves out, its mean is on the diagonal. It takes a thousand numbers
a row at most.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg
from jaxtyping import Array, Float, Scalar

from thalweg.machines.coordinates import Points
from thalweg.machines.problem import Problem, Values, projected, times
from thalweg.threads import enough_threads

# Landmarks of the preconditioner, at most, and at most this part of the rows. The matrices of c outputs together have
# as many entries as one of the most.
_LANDMARKS, _PART, _GRAIN = 1024, 1 / 8, 32
# Added to the diagonal of a matrix that is factorised, in units of it.
_JITTER = 1e-8


class Basis(NamedTuple):
    """What some landmarks make of K, whatever the targets and the weights."""

    features: Float[Array, "tiles r rows"]
    """G with GᵀG ≈ K, in the precision of the tiles."""
    left: Scalar
    """The mean of what GᵀG leaves of the diagonal of K."""


class Preconditioner(NamedTuple):
    """(D + GᵀG)⁻¹ for each output; ``inverse`` are inverse factors of 1 + G D⁻¹ Gᵀ."""

    features: Float[Array, "tiles r rows"]
    inverse: Float[Array, "c r r"]
    diagonal: Values


def basis(problem: Problem) -> Basis:
    """Half of the landmarks are any rows, the others are drawn by how much of them the first half leaves out.

    Two rounds of randomly pivoted Cholesky (Chen, Epperly, Tropp and Webber, 2024).
    """
    rows, outputs = int(np.max(np.flatnonzero(problem.weights))) + 1, problem.targets.shape[-1]
    most = min(_LANDMARKS / outputs**0.5, _PART * rows)
    count = min(max(int(most) // _GRAIN, 1) * _GRAIN, rows)
    first = np.arange(max(count // 2, 1))
    _, left = _explained(problem, first, rows)
    # The largest of log p + Gumbel noise are drawn without replacement in proportion to p.
    lots = np.log(np.maximum(left, 1e-12)) + np.random.default_rng(0).gumbel(size=rows)
    lots[first] = -np.inf
    others = np.argsort(-lots)[: count - len(first)]
    features, left = _explained(problem, np.concatenate([first, others]), rows)
    return Basis(features, jnp.asarray(np.mean(left)))


def _explained(problem: Problem, chosen: np.ndarray, rows: int) -> tuple[Array, np.ndarray]:
    """G of chosen landmarks, and what it leaves of k(x, x) for each row."""
    landmarks = problem.tiles.reshape(-1, problem.tiles.shape[-1])[chosen].astype(jnp.float64)
    matrix = np.array(_matrix(problem.fine, landmarks))
    variance = matrix[0, 0]
    matrix[np.diag_indices(len(chosen))] += _JITTER * variance
    with enough_threads(len(chosen)):
        factor = scipy.linalg.cholesky(matrix, lower=True, overwrite_a=True)
        root = scipy.linalg.solve_triangular(factor, np.eye(len(chosen)), lower=True)
    features, squares = _features(problem, landmarks, root)
    return features, np.maximum(variance - np.asarray(squares).ravel()[:rows], 0.0)


@jax.jit
def _matrix(points: Points, x: Array) -> Array:
    return points.metric(x)


@jax.jit
def _features(problem: Problem, landmarks: Array, root: Array) -> tuple[Array, Array]:
    """G, and the squared lengths of its columns."""

    def of_tile(x: Array) -> tuple[Array, Array]:
        found = times(root, problem.fine.evaluate(landmarks, x.astype(root.dtype)))
        return found.astype(x.dtype), jnp.sum(found**2, axis=0)

    return jax.lax.map(of_tile, problem.tiles)


def preconditioner(problem: Problem, basis: Basis, curvature: Values) -> Preconditioner:
    """The preconditioner for rows whose losses have this curvature."""
    diagonal, inner = _gram(problem, basis, curvature)
    matrices = np.array(inner)
    unit = np.eye(matrices.shape[-1])
    with enough_threads(len(unit)):
        for matrix in matrices:
            factor = scipy.linalg.cholesky(matrix + unit, lower=True)
            matrix[:] = scipy.linalg.solve_triangular(factor, unit, lower=True)
    return Preconditioner(basis.features, jnp.asarray(matrices), diagonal)


@jax.jit
def _gram(problem: Problem, basis: Basis, curvature: Values) -> tuple[Values, Float[Array, "c r r"]]:
    """D, and G D⁻¹ Gᵀ for each output."""
    diagonal = problem.ridge / (problem.row_weights * curvature) + basis.left
    shares = jnp.where(problem.there, 1 / diagonal, 0)

    def add(total: Array, tile: tuple[Array, Array]) -> tuple[Array, None]:
        features, share = tile[0].astype(total.dtype), tile[1]
        return total + jax.lax.map(lambda s: times(features * s[None, :], features.T), share.T), None

    count = basis.features.shape[1]
    start = jnp.zeros((curvature.shape[-1], count, count), curvature.dtype)
    return diagonal, jax.lax.scan(add, start, (basis.features, shares))[0]


def preconditioned(problem: Problem, preconditioner: Preconditioner, v: Values) -> Values:
    """(D + GᵀG)⁻¹ v, where the loss is centred within the outputs that sum to 0."""
    features, inverse, diagonal = preconditioner
    # The inverse within the outputs that sum to 0, of D exactly: oblique, not the mean.
    share = 1 / diagonal / jnp.sum(1 / diagonal, axis=-1, keepdims=True)
    v = v - jnp.sum(share * v, axis=-1, keepdims=True) if problem.loss.centred else v
    scaled = v / diagonal

    def gather(total: Array, tile: tuple[Array, Array]) -> tuple[Array, None]:
        return total + times(tile[0].astype(total.dtype), tile[1]), None

    start = jnp.zeros((features.shape[1], v.shape[-1]), v.dtype)
    inner = jax.lax.scan(gather, start, (features, scaled))[0]
    inner = times(inverse.mT, times(inverse, inner.T[:, :, None]))[:, :, 0].T
    spread = jax.lax.map(lambda tile: times(inner.T, tile.astype(inner.dtype)).T, features)
    found = scaled - spread / diagonal
    return projected(problem, found - share * jnp.sum(found, axis=-1, keepdims=True) if problem.loss.centred else found)

"""Gaussian posteriors of the vectors of rows and columns, and the step that finds those of one side.

The prediction for row u and column i is ũ·ṽ with ũ = (p, b, 1) and ṽ = (q, 1, c): factors p and q, biases b and c, and
a place where each side has the constant that meets the other's bias. With E[ṽṽᵀ] summed over the ratings of a row, its
posterior is Gaussian in closed form: the step of size 1 of the KL-proximal iteration for that block of the bound.
Symmetric matrices are packed: entries (j, k) with j ≤ k.
"""

from functools import lru_cache, partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from thalweg.completion.entries import Sums

_FULL = jax.lax.Precision.HIGHEST
"""Of products: the default of a GPU has ten bits."""


class Shape(NamedTuple):
    """Where the numbers of a side are: its rank, and whether it is the side of the columns.

    Examples
    --------
    >>> Shape(2, False).free, Shape(2, True).free
    ((0, 1, 2), (0, 1, 3))
    """

    rank: int
    columns: bool

    @property
    def width(self) -> int:
        """Numbers of a vector, the constant included."""
        return self.rank + 2

    @property
    def constant(self) -> int:
        """Where the constant is."""
        return self.rank if self.columns else self.rank + 1

    @property
    def free(self) -> tuple[int, ...]:
        """Where the others are: the factors and the bias."""
        return tuple(j for j in range(self.width) if j != self.constant)


class Posteriors(NamedTuple):
    """Means and packed covariances of the vectors of one side; the constant is 1 with variance 0."""

    means: Float[Array, "rows width"]
    covariances: Float[Array, "rows packed"]


class Prior(NamedTuple):
    """N(mean, precision⁻¹) for each row; the precision is one for all, or one for each."""

    means: Float[Array, "rows free"]
    precision: Float[Array, "... free free"]


class Found(NamedTuple):
    """Posteriors, and for each row Σ w E(r − f)² and the log-determinant of its precision."""

    posteriors: Posteriors
    misfit: Float[Array, " rows"]
    logdet: Float[Array, " rows"]


@lru_cache
def packing(width: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """First and second index of each packed entry, where (j, k) is packed, and how often each occurs.

    Examples
    --------
    >>> first, second, place, times = packing(2)
    >>> first.tolist(), second.tolist(), place.tolist(), times.tolist()
    ([0, 0, 1], [0, 1, 1], [[0, 1], [1, 2]], [1, 2, 1])
    """
    first, second = np.triu_indices(width)
    place = np.zeros((width, width), np.int32)
    place[first, second] = place[second, first] = np.arange(len(first))
    return first.astype(np.int32), second.astype(np.int32), place, np.where(first == second, 1, 2)


@jax.jit
def second_moments(posteriors: Posteriors) -> Float[Array, "rows packed"]:
    """E[vvᵀ], packed.

    Examples
    --------
    >>> second_moments(Posteriors(jnp.array([[2.0, 1.0]]), jnp.array([[0.5, 0.0, 0.0]])))
    Array([[4.5, 2. , 1. ]], dtype=float...)
    """
    first, second, _, _ = packing(posteriors.means.shape[1])
    return posteriors.covariances + posteriors.means[:, first] * posteriors.means[:, second]


@partial(jax.jit, static_argnames=("shape",))
def updated(given: Sums, noise: Float[Array, " rows"], prior: Prior, shape: Shape) -> Found:
    """The posterior of each row, given the other side.

    Its precision is Λ + τΣE[xxᵀ], and precision × mean = Λm + τ(Σ r E[x] − Σ E[x c]) with τ the precision of the noise
    in each row and c the other side's bias.
    """
    first, second, place, times = packing(shape.width)
    free = np.array(shape.free)
    # The constant's own entries of xxᵀ are the other side's bias: what of a rating is explained without this row.
    shared = prior.precision if prior.precision.ndim == 3 else prior.precision[None]
    precision = shared + noise[:, None, None] * given.moments[:, place[free[:, None], free[None]]]
    explained = given.moments[:, place[free, shape.constant]]
    pull = jnp.sum(shared * prior.means[:, None, :], axis=2)
    pull = pull + noise[:, None] * (given.targets[:, free] - explained)
    factor = jnp.linalg.cholesky(precision)
    identity = jnp.broadcast_to(jnp.eye(len(free), dtype=factor.dtype), factor.shape)
    inverse = jax.lax.linalg.triangular_solve(factor, identity, left_side=True, lower=True)
    covariance = jnp.einsum("nkj,nkl->njl", inverse, inverse, precision=_FULL)
    mean = jnp.einsum("njk,nk->nj", covariance, pull, precision=_FULL)

    means = jnp.ones((len(mean), shape.width), mean.dtype).at[:, free].set(mean)
    inside = np.isin(first, free) & np.isin(second, free)
    order = np.cumsum(np.arange(shape.width) != shape.constant) - 1
    packed = covariance[:, order[first[inside]], order[second[inside]]]
    covariances = jnp.zeros((len(mean), len(first)), mean.dtype).at[:, np.flatnonzero(inside)].set(packed)
    posteriors = Posteriors(means, covariances)
    moments = second_moments(posteriors)
    misfit = given.squares - 2 * jnp.sum(given.targets * means, axis=1)
    misfit = misfit + jnp.sum(given.moments * moments * times.astype(mean.dtype)[None], axis=1)
    logdet = 2 * jnp.sum(jnp.log(jnp.diagonal(factor, axis1=1, axis2=2)), axis=1)
    return Found(posteriors, misfit, logdet)


@jax.jit
def predicted(
    rows: Posteriors, columns: Posteriors, row: Array, column: Array
) -> tuple[Float[Array, " pairs"], Float[Array, " pairs"]]:
    """Mean and variance of ũ·ṽ for pairs: Var = ⟨V_u, ṽṽᵀ⟩ + ⟨ũũᵀ, V_i⟩ + ⟨V_u, V_i⟩.

    Examples
    --------
    >>> one = Posteriors(jnp.array([[2.0, 1.0]]), jnp.array([[0.5, 0.0, 0.0]]))
    >>> [float(part[0]) for part in predicted(one, one, jnp.array([0]), jnp.array([0]))]
    [5.0, 4.25]
    """
    first, second, _, times = packing(rows.means.shape[1])
    u, v = rows.means[row], columns.means[column]
    known = times.astype(u.dtype)[None]
    here, there = rows.covariances[row] * known, columns.covariances[column]
    variance = jnp.sum(here * (v[:, first] * v[:, second] + there), axis=1)
    variance = variance + jnp.sum(there * known * (u[:, first] * u[:, second]), axis=1)
    return jnp.sum(u * v, axis=1), variance

"""Gaussian posteriors of the vectors of rows and columns, and the update of one side given the other.

The prediction for row u and column i is ũ·ṽ with ũ = (p, b, 1) and ṽ = (q, 1, c): factors p and q, biases b and c, and
on each side a constant that multiplies the other's bias. With E[ṽṽᵀ] summed over the ratings of a row, its posterior is
Gaussian in closed form: the step of size 1 of the KL-proximal iteration for that block of the bound. Symmetric matrices
are packed: entries (j, k) with j ≤ k.
"""

from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from thalweg.codec import storable
from thalweg.compiling import quick_jit
from thalweg.completion.ratings import RatingBlocks, RatingSums, sum_ratings
from thalweg.linalg.arrays import AnyArray
from thalweg.padding import MAX_TEMPORARY_NUMBERS


@storable
class VectorLayout(NamedTuple):
    """The positions of factors, bias and constant in the vectors of a side.

    Examples
    --------
    >>> VectorLayout(2, False).free, VectorLayout(2, True).free
    ((0, 1, 2), (0, 1, 3))
    """

    rank: int
    columns: bool
    """Whether it is the side of the columns."""

    @property
    def width(self) -> int:
        """The length of a vector, with the constant."""
        return self.rank + 2

    @property
    def constant(self) -> int:
        """The position of the constant."""
        return self.rank if self.columns else self.rank + 1

    @property
    def free(self) -> tuple[int, ...]:
        """The positions of the factors and the bias."""
        return tuple(j for j in range(self.width) if j != self.constant)

    def free_entries(self, packed: Any) -> Any:
        """Unpack the entries of a symmetric matrix, or of several, that belong to factors and bias."""
        free = np.array(self.free)
        return packed[..., packing(self.width)[2][free[:, None], free[None]]]


class VectorPosteriors(NamedTuple):
    """Means and packed covariances of the vectors of one side; the constant is 1 with variance 0."""

    means: Float[AnyArray, "rows width"]
    covariances: Float[AnyArray, "rows packed"]


class SideEvidence(NamedTuple):
    """What a side learns from: its ratings, and the other side's posteriors, noise scales and background weights."""

    blocks: RatingBlocks
    other: VectorPosteriors
    scales: AnyArray
    background: AnyArray
    """The weight of a rating of 0 of each row by each of the others."""


@lru_cache
def packing(width: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return row and column of each packed entry, the position of entry (j, k), and how often each entry occurs.

    Examples
    --------
    >>> first, second, position, multiplicity = packing(2)
    >>> first.tolist(), second.tolist(), position.tolist(), multiplicity.tolist()
    ([0, 0, 1], [0, 1, 1], [[0, 1], [1, 2]], [1, 2, 1])
    """
    first, second = np.triu_indices(width)
    position = np.zeros((width, width), np.int32)
    position[first, second] = position[second, first] = np.arange(len(first))
    return first.astype(np.int32), second.astype(np.int32), position, np.where(first == second, 1, 2)


@jax.jit
def second_moments(posteriors: VectorPosteriors) -> Float[AnyArray, "rows packed"]:
    """Return E[vvᵀ], packed.

    Examples
    --------
    >>> second_moments(VectorPosteriors(np.array([[2.0, 1.0]]), np.array([[0.5, 0.0, 0.0]])))
    Array([[4.5, 2. , 1. ]], dtype=float...)
    """
    first, second, _, _ = packing(posteriors.means.shape[1])
    return posteriors.covariances + posteriors.means[:, first] * posteriors.means[:, second]


@quick_jit(lambda *_: False, tuned=False, static_argnums=4)
def update_posteriors(
    evidence: SideEvidence, noise: AnyArray, means: AnyArray, precision: AnyArray, layout: VectorLayout
) -> tuple[VectorPosteriors, AnyArray, AnyArray]:
    """Return the posteriors of a side given the other, and for each row Σ w E(r − f)² and log |posterior precision|.

    ``noise`` is the precision of the noise in each row. Priors are N(mean, precision⁻¹), the precision one for all rows
    or one for each. It is to be called, and waited for, with one thread of BLAS: of thousands of small factorisations,
    OpenBLAS would spend most of its time waiting for more.
    """
    moments, size = second_moments(evidence.other), len(noise)
    sums = sum_ratings(evidence.blocks, moments, evidence.other.means, evidence.scales, size)
    every = jnp.matmul(evidence.background, moments, precision="highest")
    sums = sums._replace(moments=sums.moments + every[None])
    own = precision.ndim == 3
    update = lambda row: _update_row(row[0], row[1], row[2], row[3] if own else precision, layout)
    chunks = -(-size * layout.width**2 // MAX_TEMPORARY_NUMBERS)
    return jax.lax.map(update, (sums, noise, means, precision if own else None), batch_size=-(-size // chunks))


def _update_row(
    sums: RatingSums, noise: Array, prior_mean: Array, prior_precision: AnyArray, layout: VectorLayout
) -> tuple[VectorPosteriors, Array, Array]:
    """Return the posterior of one row.

    Its precision is Λ + τΣE[xxᵀ], and precision × mean = Λm + τ(Σ r E[x] − Σ E[x c]) with τ the precision of the noise
    and c the other side's bias.
    """
    first, second, position, multiplicity = packing(layout.width)
    free, product = np.array(layout.free), partial(jnp.matmul, precision="highest")
    precision = prior_precision + noise * layout.free_entries(sums.moments)
    explained = sums.moments[position[free, layout.constant]]
    shift = product(prior_precision, prior_mean) + noise * (sums.targets[free] - explained)
    factor = jnp.linalg.cholesky(precision)
    inverse = jax.scipy.linalg.solve_triangular(factor, jnp.eye(len(free), dtype=factor.dtype), lower=True)
    covariance = product(inverse.T, inverse)
    mean = jnp.ones(layout.width, factor.dtype).at[free].set(product(covariance, shift))
    whole = jnp.zeros((layout.width, layout.width), factor.dtype).at[free[:, None], free[None]].set(covariance)
    packed = whole[first, second]
    moments = packed + mean[first] * mean[second]
    misfit = sums.squares - 2 * jnp.sum(sums.targets * mean)
    misfit = misfit + jnp.sum(sums.moments * moments * multiplicity.astype(mean.dtype))
    log_determinant = 2 * jnp.sum(jnp.log(jnp.diagonal(factor)))
    return VectorPosteriors(mean, packed), misfit, log_determinant


def predict_pairs(
    rows: VectorPosteriors, columns: VectorPosteriors, row: np.ndarray, column: np.ndarray
) -> tuple[Float[np.ndarray, " pairs"], Float[np.ndarray, " pairs"]]:
    """Return mean and variance of ũ·ṽ for pairs: Var = ⟨V_u, ṽṽᵀ + V_i⟩ + ⟨ũũᵀ, V_i⟩. On the host nothing compiles.

    Examples
    --------
    >>> posterior = VectorPosteriors(np.array([[2.0, 1.0]]), np.array([[0.5, 0.0, 0.0]]))
    >>> [float(part[0]) for part in predict_pairs(posterior, posterior, np.array([0]), np.array([0]))]
    [5.0, 4.25]
    """
    first, second, _, multiplicity = packing(rows.means.shape[1])
    means, variances = np.zeros(len(row)), np.zeros(len(row))
    at_once = MAX_TEMPORARY_NUMBERS // len(first)
    for start in range(0, len(row), at_once):
        part = slice(start, start + at_once)
        u, v = rows.means[row[part]], columns.means[column[part]]
        row_covariance, column_covariance = rows.covariances[row[part]], columns.covariances[column[part]]
        means[part] = np.einsum("ij,ij->i", u, v)
        terms = row_covariance * (v[:, first] * v[:, second] + column_covariance)
        terms += column_covariance * (u[:, first] * u[:, second])
        variances[part] = terms @ multiplicity.astype(terms.dtype)
    return means, variances

"""Exponential families q(z) ∝ exp(⟨λ, s(z)⟩ − A(λ)): natural parameters λ, mean parameters μ = ∇A(λ).

The Fisher matrix F = ∇²A(λ) is never formed: it is the Jacobian of λ ↦ μ, and F⁻¹ that of μ ↦ λ, so both are
applied by one Jacobian-vector product.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PyTree, Scalar

from thalweg import trees

__all__ = ["BernoulliFamily", "CategoricalFamily", "ExponentialFamily", "GaussianFamily", "Moments", "PoissonFamily"]


class ExponentialFamily(eqx.Module):
    """An exponential family in its minimal form, with both maps between natural and mean parameters.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> family = BernoulliFamily()
    >>> family.kl(jnp.zeros(1), jnp.zeros(1))
    Array(0., dtype=float...)
    """

    def log_partition(self, natural: PyTree[Array]) -> Scalar:
        """A(λ), summed over independent entries."""
        raise NotImplementedError

    def mean(self, natural: PyTree[Array]) -> PyTree[Array]:
        """μ = ∇A(λ)."""
        return jax.grad(self.log_partition)(natural)

    def natural(self, mean: PyTree[Array]) -> PyTree[Array]:
        """λ = (∇A)⁻¹(μ)."""
        raise NotImplementedError

    def is_natural(self, natural: PyTree[Array]) -> Bool[Array, ""]:
        """Whether A(λ) is finite, i.e. λ names a distribution of the family."""
        return trees.all_finite(natural)

    def is_mean(self, mean: PyTree[Array]) -> Bool[Array, ""]:
        """Whether μ is inside the open set of mean parameters."""
        raise NotImplementedError

    def kl(self, p: PyTree[Array], q: PyTree[Array]) -> Scalar:
        """KL[p ‖ q] = A(q) − A(p) − ⟨q − p, ∇A(p)⟩, both given by natural parameters."""
        at_p, mean = jax.value_and_grad(self.log_partition)(p)
        return self.log_partition(q) - at_p - trees.inner(trees.subtract(q, p), mean)

    def fisher(self, natural: PyTree[Array], tangent: PyTree[Array]) -> PyTree[Array]:
        """F(λ) · tangent."""
        return jax.jvp(self.mean, (natural,), (tangent,))[1]

    def inverse_fisher(self, natural: PyTree[Array], gradient: PyTree[Array]) -> PyTree[Array]:
        """F(λ)⁻¹ · gradient: turns ∇_λ f into ∇_μ f."""
        return jax.jvp(self.natural, (self.mean(natural),), (gradient,))[1]


class BernoulliFamily(ExponentialFamily):
    """Independent Bernoulli variables; λ is the log-odds, μ = 1 / (1 + e^−λ) the probability.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> BernoulliFamily().mean(jnp.zeros(2))
    Array([0.5, 0.5], dtype=float...)
    """

    def log_partition(self, natural: Float[Array, "*n"]) -> Scalar:
        """Σ log(1 + e^λ)."""
        return jnp.sum(jax.nn.softplus(natural))

    def natural(self, mean: Float[Array, "*n"]) -> Float[Array, "*n"]:
        """log μ − log(1 − μ)."""
        return jnp.log(mean) - jnp.log1p(-mean)

    def is_mean(self, mean: Float[Array, "*n"]) -> Bool[Array, ""]:
        """0 < μ < 1."""
        return jnp.all((mean > 0) & (mean < 1))


class CategoricalFamily(ExponentialFamily):
    """Independent categorical variables over K outcomes, in minimal form along the last axis of length K − 1.

    λ_k is the log-odds of outcome k against outcome 0, μ_k its probability, k = 1 … K − 1.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> CategoricalFamily().mean(jnp.zeros(3))
    Array([0.25, 0.25, 0.25], dtype=float...)
    """

    def log_partition(self, natural: Float[Array, "*n k"]) -> Scalar:
        """Σ log(1 + Σ_k e^λ_k)."""
        with_reference = jnp.concatenate([jnp.zeros_like(natural[..., :1]), natural], axis=-1)
        return jnp.sum(jax.nn.logsumexp(with_reference, axis=-1))

    def natural(self, mean: Float[Array, "*n k"]) -> Float[Array, "*n k"]:
        """log μ_k − log(1 − Σ μ)."""
        return jnp.log(mean) - jnp.log1p(-jnp.sum(mean, axis=-1, keepdims=True))

    def is_mean(self, mean: Float[Array, "*n k"]) -> Bool[Array, ""]:
        """μ > 0 and Σ μ < 1."""
        return jnp.all(mean > 0) & jnp.all(jnp.sum(mean, axis=-1) < 1)


class PoissonFamily(ExponentialFamily):
    """Independent Poisson variables; λ is the log-rate, μ = e^λ the rate.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> PoissonFamily().mean(jnp.zeros(2))
    Array([1., 1.], dtype=float...)
    """

    def log_partition(self, natural: Float[Array, "*n"]) -> Scalar:
        """Σ e^λ."""
        return jnp.sum(jnp.exp(natural))

    def natural(self, mean: Float[Array, "*n"]) -> Float[Array, "*n"]:
        """log μ."""
        return jnp.log(mean)

    def is_mean(self, mean: Float[Array, "*n"]) -> Bool[Array, ""]:
        """μ > 0."""
        return jnp.all(mean > 0)


class Moments(NamedTuple):
    """A vector and a symmetric matrix: (V⁻¹m, −½V⁻¹) as natural, (m, V + mmᵀ) as mean parameters.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> Moments(jnp.zeros(2), jnp.eye(2)).second.shape
    (2, 2)
    """

    first: Float[Array, " d"]
    second: Float[Array, "d d"]


class GaussianFamily(ExponentialFamily):
    """A Gaussian N(m, V) with full covariance; parameters are :class:`Moments`.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> family = GaussianFamily()
    >>> natural = family.from_moments(jnp.array([1.0, 2.0]), jnp.eye(2))
    >>> family.mean(natural).first
    Array([1., 2.], dtype=float...)
    """

    def from_moments(self, mean: Float[Array, " d"], covariance: Float[Array, "d d"]) -> Moments:
        """Return the natural parameters of N(mean, covariance)."""
        factor = jax.scipy.linalg.cho_factor(covariance)
        precision = jax.scipy.linalg.cho_solve(factor, jnp.eye(mean.shape[0], dtype=covariance.dtype))
        return Moments(jax.scipy.linalg.cho_solve(factor, mean), -_symmetric(precision) / 2)

    def log_partition(self, natural: Moments) -> Scalar:
        """½ ηᵀP⁻¹η − ½ log|P| + ½ d log 2π with η = V⁻¹m and P = V⁻¹."""
        cholesky = jnp.linalg.cholesky(-2 * _symmetric(natural.second))
        whitened = jax.scipy.linalg.solve_triangular(cholesky, natural.first, lower=True)
        half_log_determinant = jnp.sum(jnp.log(jnp.diagonal(cholesky)))
        dimension = natural.first.shape[0]
        return whitened @ whitened / 2 - half_log_determinant + dimension * jnp.log(2 * jnp.pi) / 2

    def mean(self, natural: Moments) -> Moments:
        """(m, V + mmᵀ)."""
        factor = jax.scipy.linalg.cho_factor(-2 * _symmetric(natural.second))
        identity = jnp.eye(natural.first.shape[0], dtype=natural.second.dtype)
        mean = jax.scipy.linalg.cho_solve(factor, natural.first)
        covariance = jax.scipy.linalg.cho_solve(factor, identity)
        return Moments(mean, _symmetric(covariance) + jnp.outer(mean, mean))

    def natural(self, mean: Moments) -> Moments:
        """(V⁻¹m, −½V⁻¹)."""
        return self.from_moments(mean.first, _symmetric(mean.second) - jnp.outer(mean.first, mean.first))

    def is_natural(self, natural: Moments) -> Bool[Array, ""]:
        """Whether the precision −2·second is positive definite."""
        return _positive_definite(-2 * natural.second) & trees.all_finite(natural)

    def is_mean(self, mean: Moments) -> Bool[Array, ""]:
        """Whether the covariance second − first·firstᵀ is positive definite."""
        return _positive_definite(mean.second - jnp.outer(mean.first, mean.first))


def _symmetric(matrix: Float[Array, "d d"]) -> Float[Array, "d d"]:
    return (matrix + matrix.T) / 2


def _positive_definite(matrix: Float[Array, "d d"]) -> Bool[Array, ""]:
    return jnp.all(jnp.isfinite(jnp.linalg.cholesky(_symmetric(matrix))))

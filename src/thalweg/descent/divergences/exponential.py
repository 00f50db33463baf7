"""Exponential families, and divergences between their members.

A family is q(z) ∝ exp(⟨λ, s(z)⟩ − A(λ)) with natural parameters λ and mean parameters μ = ∇A(λ). The Fisher matrix
F = ∇²A(λ) is never formed: it is the Jacobian of λ ↦ μ, and F⁻¹ that of μ ↦ λ, so both are applied by one
Jacobian-vector product.

To the divergences x holds natural parameters λ throughout. Which step is closed depends on the coordinates in which f
is made linear:

=================== ===================== ============== ==============================
divergence          D(x ‖ c)              gradient in    step with h = 0
=================== ===================== ============== ==============================
``KLToCentre``      KL[q_x ‖ q_c]         mean μ         λ⁺ = λ − β ∇_μ f
``KLFromCentre``    KL[q_c ‖ q_x]         natural λ      μ⁺ = μ − β ∇_λ f
``NaturalGradient`` ½(λ−λ_c)ᵀF(λ−λ_c)     natural λ      λ⁺ = λ − β F⁻¹∇_λ f
=================== ===================== ============== ==============================

An oracle must return its gradient in those coordinates; ``family.inverse_fisher`` turns ∇_λ f into ∇_μ f.
"""

from typing import ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PyTree, Scalar

from thalweg import trees
from thalweg.arguments import instance
from thalweg.descent.divergences.base import Divergence, closed_form, halve_until
from thalweg.descent.terms import Term, Zero

__all__ = ["BernoulliFamily", "CategoricalFamily", "ExponentialFamily", "GaussianFamily", "Moments", "PoissonFamily"]
__all__ += ["KLFromCentre", "KLToCentre", "KLToPrior", "NaturalGradient"]


class ExponentialFamily(eqx.Module):
    """An exponential family in its minimal form, with both maps between natural and mean parameters.

    Examples
    --------
    >>> import numpy as np
    >>> family = BernoulliFamily()
    >>> family.kl(np.zeros(1), np.zeros(1))
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
    >>> import numpy as np
    >>> BernoulliFamily().mean(np.zeros(2))
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
    >>> import jax, numpy as np
    >>> jax.jit(CategoricalFamily().mean)(np.zeros(3))
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
    >>> import numpy as np
    >>> PoissonFamily().mean(np.zeros(2))
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
    >>> import numpy as np
    >>> Moments(np.zeros(2), np.eye(2)).second.shape
    (2, 2)
    """

    first: Float[Array, " d"]
    second: Float[Array, "d d"]


class GaussianFamily(ExponentialFamily):
    """A Gaussian N(m, V) with full covariance; parameters are :class:`Moments`.

    Examples
    --------
    >>> import numpy as np
    >>> family = GaussianFamily()
    >>> natural = family.from_moments(np.array([1.0, 2.0]), np.eye(2))
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
        # The same map leads from (V⁻¹m, V⁻¹) to (m, −½V).
        mean, half = self.from_moments(natural.first, -2 * _symmetric(natural.second))
        return Moments(mean, jnp.outer(mean, mean) - 2 * half)

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


class _BetweenMembers(Divergence):
    family: ExponentialFamily

    def __check_init__(self) -> None:
        instance(f"family of {type(self).__name__}", self.family, ExponentialFamily)

    def check(self, x: PyTree[Array]) -> None:
        """Refuse natural parameters that name no member of the family."""
        try:
            natural = self.family.is_natural(x)
        except AttributeError as error:
            raise TypeError(
                f"x0 must be the natural parameters of {type(self.family).__name__} (for a Gaussian: Moments), "
                f"found {type(x).__name__}"
            ) from error
        if not isinstance(natural, jax.core.Tracer) and not bool(natural):
            raise ValueError(
                f"x0 must be natural parameters of {type(self.family).__name__}; the ones given name no "
                f"distribution (for a Gaussian: −2·second must be positive definite)"
            )

    def admissible(self, centre: PyTree[Array], gradient: PyTree[Array], size: Scalar, term: Term) -> Scalar:
        """Halve ``size`` until λ⁺ names a member of the family."""
        return halve_until(lambda s: self.family.is_natural(self.step(centre, gradient, s, term)), size)


class KLToCentre(_BetweenMembers):
    """D(x ‖ c) = KL[q_x ‖ q_c], for f linear in the mean parameters: gradients are ∇_μ f.

    With h = 0 its step is the natural-gradient step exactly; with h = :class:`KLToPrior` it is the
    conjugate-computation step λ⁺ = rλ + (1−r)(λ_p − ∇_μ f), r = 1/(1+β).

    Examples
    --------
    >>> import numpy as np
    >>> KLToCentre(BernoulliFamily()).step(np.zeros(1), np.ones(1), 0.5, Zero())
    Array([-0.5], dtype=float...)
    """

    def value(self, x: PyTree[Array], y: PyTree[Array]) -> Scalar:
        """KL[q_x ‖ q_y]."""
        return self.family.kl(x, y)

    def displacement(self, x: PyTree[Array], y: PyTree[Array]) -> PyTree[Array]:
        """μ(x) − μ(y)."""
        return trees.subtract(self.family.mean(x), self.family.mean(y))

    def residual(self, centre: PyTree[Array], x: PyTree[Array], size: Scalar) -> PyTree[Array]:
        """(λ_c − λ_x) / size, which is ∇_μ f when h = 0."""
        return trees.scale(1 / size, trees.subtract(centre, x))


class KLToPrior(Term):
    """h(x) = KL[q_x ‖ q_prior]. It has no prox: it is simple only together with :class:`KLToCentre`.

    Parameters
    ----------
    family
        The exponential family.
    prior
        Natural parameters of the prior.

    Examples
    --------
    >>> import numpy as np
    >>> KLToPrior(PoissonFamily(), np.zeros(1)).value(np.zeros(1))
    Array(0., dtype=float...)
    """

    proximable: ClassVar[bool] = False

    family: ExponentialFamily
    prior: PyTree[Array]

    def value(self, x: PyTree[Array]) -> Scalar:
        """KL[q_x ‖ q_prior]."""
        return self.family.kl(x, self.prior)

    def check(self, x: PyTree[Array]) -> None:
        """Refuse a prior whose tree or shapes differ from those of ``x``."""
        own, given = (jax.tree.map(jnp.shape, tree) for tree in (self.prior, x))
        if own != given:
            raise ValueError(f"prior of KLToPrior has shapes {own}, x0 has {given}")


@closed_form(KLToCentre, Zero)
def _natural_gradient_step(divergence, term, centre, gradient, size):
    return trees.add_scaled(centre, -size, gradient)


def _same_family(divergence: KLToCentre, term: KLToPrior) -> bool:
    return type(divergence.family) is type(term.family)


@closed_form(KLToCentre, KLToPrior, when=_same_family, note="KLToPrior of the same family")
def _conjugate_step(divergence, term, centre, gradient, size):
    keep = 1 / (1 + size)
    return trees.add_scaled(trees.scale(keep, centre), 1 - keep, trees.subtract(term.prior, gradient))


class KLFromCentre(_BetweenMembers):
    """D(x ‖ c) = KL[q_c ‖ q_x] = D_A(x ‖ c): a mirror step, for f linear in the natural parameters.

    μ⁺ = μ_c − β ∇_λ f, then the inverse of ∇A. A μ⁺ outside the domain means that there is no minimiser: the
    step is halved until there is one.

    Examples
    --------
    >>> import numpy as np
    >>> KLFromCentre(PoissonFamily()).value(np.zeros(1), np.zeros(1))
    Array(0., dtype=float...)
    """

    def value(self, x: PyTree[Array], y: PyTree[Array]) -> Scalar:
        """KL[q_y ‖ q_x]."""
        return self.family.kl(y, x)

    def residual(self, centre: PyTree[Array], x: PyTree[Array], size: Scalar) -> PyTree[Array]:
        """(μ_c − μ_x) / size, which is ∇_λ f when h = 0."""
        return trees.scale(1 / size, trees.subtract(self.family.mean(centre), self.family.mean(x)))

    def admissible(self, centre: PyTree[Array], gradient: PyTree[Array], size: Scalar, term: Term) -> Scalar:
        """Halve ``size`` until μ⁺ is inside the domain of mean parameters."""
        mean = self.family.mean(centre)
        return halve_until(lambda s: self.family.is_mean(trees.add_scaled(mean, -s, gradient)), size)


@closed_form(KLFromCentre, Zero)
def _mean_mirror_step(divergence, term, centre, gradient, size):
    family = divergence.family
    return family.natural(trees.add_scaled(family.mean(centre), -size, gradient))


class NaturalGradient(_BetweenMembers):
    """D(x ‖ c) = ½(λ_x − λ_c)ᵀF(λ_c)(λ_x − λ_c): the quadratic *model* of the symmetric KL at c.

    The symmetric KL here is the mean of the two directions, ½KL[q_x‖q_c] + ½KL[q_c‖q_x] (their sum would halve
    the step). It has no step in closed form itself; its model's step is λ⁺ = λ − β F⁻¹∇_λ f.

    Examples
    --------
    >>> import numpy as np
    >>> NaturalGradient(PoissonFamily()).step(np.zeros(1), np.ones(1), 0.5, Zero())
    Array([-0.5], dtype=float...)
    """

    def value(self, x: PyTree[Array], y: PyTree[Array]) -> Scalar:
        """½(λ_x − λ_y)ᵀF(λ_y)(λ_x − λ_y)."""
        difference = trees.subtract(x, y)
        return trees.inner(difference, self.family.fisher(y, difference)) / 2

    def residual(self, centre: PyTree[Array], x: PyTree[Array], size: Scalar) -> PyTree[Array]:
        """F(λ_c)(λ_c − λ_x) / size."""
        return trees.scale(1 / size, self.family.fisher(centre, trees.subtract(centre, x)))


@closed_form(NaturalGradient, Zero)
def _fisher_step(divergence, term, centre, gradient, size):
    return trees.add_scaled(centre, -size, divergence.family.inverse_fisher(centre, gradient))

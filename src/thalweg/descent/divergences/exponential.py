"""Divergences between members of an exponential family; x holds natural parameters λ throughout.

Which step is closed depends on the coordinates in which f is made linear:

=================== ===================== ============== ==============================
divergence          D(x ‖ c)              gradient in    step with h = 0
=================== ===================== ============== ==============================
``KLToCentre``      KL[q_x ‖ q_c]         mean μ         λ⁺ = λ − β ∇_μ f
``KLFromCentre``    KL[q_c ‖ q_x]         natural λ      μ⁺ = μ − β ∇_λ f
``NaturalGradient`` ½(λ−λ_c)ᵀF(λ−λ_c)     natural λ      λ⁺ = λ − β F⁻¹∇_λ f
=================== ===================== ============== ==============================

An oracle must return its gradient in those coordinates; ``family.inverse_fisher`` turns ∇_λ f into ∇_μ f.
"""

from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree, Scalar

from thalweg import trees
from thalweg.arguments import instance
from thalweg.descent.divergences.base import Divergence, closed_form, halve_until
from thalweg.descent.divergences.families import ExponentialFamily
from thalweg.descent.terms import Term, Zero

__all__ = ["KLFromCentre", "KLToCentre", "KLToPrior", "NaturalGradient"]


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
    >>> import jax.numpy as jnp
    >>> from thalweg.descent import BernoulliFamily
    >>> KLToCentre(BernoulliFamily()).step(jnp.zeros(1), jnp.ones(1), 0.5, Zero())
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
    >>> import jax.numpy as jnp
    >>> from thalweg.descent import PoissonFamily
    >>> KLToPrior(PoissonFamily(), jnp.zeros(1)).value(jnp.zeros(1))
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
        if jax.tree.map(jnp.shape, self.prior) != jax.tree.map(jnp.shape, x):
            raise ValueError(
                f"prior of KLToPrior has shapes {jax.tree.map(jnp.shape, self.prior)}, "
                f"x0 has {jax.tree.map(jnp.shape, x)}"
            )


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
    >>> import jax.numpy as jnp
    >>> from thalweg.descent import PoissonFamily
    >>> KLFromCentre(PoissonFamily()).value(jnp.zeros(1), jnp.zeros(1))
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
    >>> import jax.numpy as jnp
    >>> from thalweg.descent import PoissonFamily
    >>> NaturalGradient(PoissonFamily()).step(jnp.zeros(1), jnp.ones(1), 0.5, Zero())
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

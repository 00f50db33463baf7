"""The KL divergence between Gaussians as D, the KL to a prior as h, and their steps in closed form.

The steps are those of Khan et al. (2016), "Faster stochastic variational inference using proximal-gradient methods".
With h = KL to the prior N(μ, Σ), r = 1/(1+β), α = ∇_m f and Γ = 2∇_V f, both steps have

    V⁺⁻¹ = r V⁻¹ + (1−r)(Σ⁻¹ + Γ)

and differ in the coordinates in which f is made linear, by O(β²):

==================================  ====================================================================  ===========
``GaussianKL()``                    m⁺ = m − (1−r) V⁺ (Σ⁻¹(m − μ) + α): the natural-gradient step           paper (83)
``GaussianKL("moments")``           m⁺ = [(1−r)Σ⁻¹ + rV⁻¹]⁻¹ [(1−r)(Σ⁻¹μ − α) + rV⁻¹m]                    paper (82)
==================================  ====================================================================  ===========

With h = 0, and the prior a part of f, the same divergences are mirror descent and natural gradient descent. Exchange
one argument of :func:`thalweg.minimize` for another and one method becomes the other.
"""

from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree, Scalar

from thalweg.arguments import one_of
from thalweg.descent.divergences import Divergence, closed_form
from thalweg.descent.divergences.base import halve_until
from thalweg.descent.terms import Term, Zero
from thalweg.gaussian.posteriors import Diagonal, Full, Implicit, factorise_sites, solve, symmetric, symmetric_kl
from thalweg.linalg import namespace

__all__ = ["GaussianKL", "KLToNormal", "KLToProcess"]

Posterior = Full | Diagonal | Implicit


class GaussianKL(Divergence):
    """D(x ‖ c) = KL[q_x ‖ q_c] between Gaussians: points are :class:`Full`, :class:`Diagonal` or :class:`Implicit`.

    Parameters
    ----------
    coordinates
        Those in which f is linear in the model: "mean", the mean parameters (m, V + mmᵀ), which makes the step the
        natural-gradient step, or "moments", (m, V).
    guard
        What :class:`Implicit` does with a site that a non-concave log-likelihood or noise would make negative: "clip"
        takes 0, "absolute" its absolute value, as the code of the paper does. Either way V stays a covariance. A
        :class:`Full` or :class:`Diagonal` shortens the step instead.

    Examples
    --------
    >>> from thalweg.gaussian import Diagonal, GaussianKL
    >>> x, centre = (Diagonal.from_moments(np.array([m]), np.ones(1)) for m in (1.0, 0.0))
    >>> float(GaussianKL().value(x, centre))
    0.5
    """

    coordinates: str = eqx.field(static=True)
    guard: str = eqx.field(static=True)

    def __init__(self, coordinates: str = "mean", guard: str = "clip") -> None:
        self.coordinates = one_of("coordinates of GaussianKL", coordinates, ("mean", "moments"))
        self.guard = one_of("guard of GaussianKL", guard, ("clip", "absolute"))

    def check(self, x: PyTree[Array]) -> None:
        """Refuse what is no posterior, or no distribution."""
        if not isinstance(x, Posterior):
            raise TypeError(
                f"x0 must be a Gaussian for divergence=GaussianKL: gaussian.Full, Diagonal or Implicit, found "
                f"{type(x).__name__}"
            )
        traced = any(isinstance(leaf, jax.core.Tracer) for leaf in x)
        # In NumPy: one look is not worth compiling a program for.
        if not traced and not jax.tree.map(np.asarray, x).proper:
            raise ValueError("x0 must be a Gaussian with a positive definite covariance; the one given has none")

    def value(self, x: Any, y: Any) -> Scalar:
        """KL[q_x ‖ q_y]."""
        return x.kl(y)

    def displacement(self, x: Any, y: Any) -> PyTree[Array]:
        """x − y in the coordinates of the gradient (α, Γ/2) at y: Δm and ΔV, plus ΔmΔmᵀ if f is linear in V + mmᵀ."""
        shift = x.mean - y.mean
        mean = self.coordinates == "mean"
        rest = jax.tree.map(jnp.zeros_like, y)
        if isinstance(y, Full):
            spread = x.covariance - y.covariance + (jnp.outer(shift, shift) if mean else 0)
            return rest._replace(mean=shift, covariance=spread)
        return rest._replace(mean=shift, variance=x.variance - y.variance + (shift**2 if mean else 0))

    def residual_norm(self, centre: Any, x: Any, size: Scalar) -> Scalar:
        """The length of the natural gradient of f + h, √(KL[c‖x] + KL[x‖c]) / ρ with ρ = β/(1+β).

        With h = KL to a prior the step moves by ρ times the natural gradient, so that this measures how far from
        optimal the point is whatever β; dividing by β would let a long step pass for a short distance. About half its
        square is what is left to gain, in nats.
        """
        xp = namespace(x.mean)
        return xp.sqrt(xp.maximum(symmetric_kl(x, centre), 0)) * (1 + 1 / size)

    def admissible(self, centre: Any, gradient: Any, size: Scalar, term: Term) -> Scalar:
        """Halve ``size`` until V⁺ is a covariance; sites are guarded instead."""
        if isinstance(centre, Implicit):
            return size
        return halve_until(lambda s: self.step(centre, gradient, s, term).proper, size)


class KLToNormal(Term):
    """h(x) = KL[q_x ‖ N(μ, Σ)], for :class:`Full` or :class:`Diagonal` posteriors and a prior of the same kind.

    It has no prox: it is simple only together with :class:`GaussianKL`.

    Examples
    --------
    >>> from thalweg.gaussian import Diagonal, KLToNormal
    >>> prior = Diagonal.from_moments(np.zeros(1), np.ones(1))
    >>> float(KLToNormal(prior).value(prior))
    0.0
    """

    prior: Full | Diagonal

    proximable: ClassVar[bool] = False

    def value(self, x: Any) -> Scalar:
        """KL[q_x ‖ prior]."""
        return x.kl(self.prior)

    def check(self, x: PyTree[Array]) -> None:
        """Refuse a posterior of another kind or dimension than the prior's."""
        if type(x) is not type(self.prior) or x.mean.shape != self.prior.mean.shape:
            raise ValueError(
                f"x0 must be a {type(self.prior).__name__} of {self.prior.mean.shape[0]} dimensions, as the prior of "
                f"KLToNormal is; found {type(x).__name__}"
            )


class KLToProcess(Term):
    """h(x) = KL[q_x ‖ N(0, K)], for :class:`Implicit` posteriors; K is an array of the term, never inverted.

    Examples
    --------
    >>> from thalweg.gaussian import Implicit, KLToProcess
    >>> float(KLToProcess(np.eye(2)).value(Implicit.prior(np.eye(2))))
    0.0
    """

    covariance: Float[Array, "n n"]

    proximable: ClassVar[bool] = False
    factorises: ClassVar[bool] = True

    def value(self, x: Any) -> Scalar:
        """½(log|B| − γ̃·v + m·a)."""
        return x.kl_to_prior()

    def check(self, x: PyTree[Array]) -> None:
        """Refuse a posterior that is not over the rows of K."""
        if not isinstance(x, Implicit) or x.mean.shape != self.covariance.shape[:1]:
            raise ValueError(
                f"x0 must be an Implicit posterior over the {self.covariance.shape[0]} rows of KLToProcess; start from "
                f"Implicit.prior(covariance); found {type(x).__name__}"
            )


@closed_form(GaussianKL, KLToProcess)
def _process_step(divergence, term, centre, gradient, size):
    """Steps (83) and (82) without K⁻¹: a⁺ = a − (1−r)(q − s ⊙ B⁻¹(s ⊙ Kq)), q = a + α."""
    xp = namespace(centre.mean)
    keep = 1 / (1 + size)
    move = 1 - keep
    sites = keep * centre.sites + move * 2 * gradient.variance
    sites = xp.maximum(sites, 0) if divergence.guard == "clip" else xp.abs(sites)
    factor = factorise_sites(term.covariance, sites)
    within = sites if divergence.coordinates == "mean" else keep * centre.sites
    root = xp.sqrt(within)
    inner = factor if divergence.coordinates == "mean" else factorise_sites(term.covariance, within)
    dual = centre.weights + gradient.mean
    weights = centre.weights - move * (dual - root * inner.solve(root * (term.covariance @ dual)))
    return Implicit.from_sites(term.covariance, weights, sites, factor)


@closed_form(GaussianKL, KLToNormal)
def _normal_step(divergence, term, centre, gradient, size):
    keep = 1 / (1 + size)
    return _step(divergence, centre, gradient, keep, 1 - keep, term.prior)


@closed_form(GaussianKL, Zero)
def _free_step(divergence, term, centre, gradient, size):
    return _step(divergence, centre, gradient, 1.0, size, None)


def _step(divergence: GaussianKL, centre: Any, gradient: Any, keep: Any, move: Any, prior: Any) -> Any:
    """V⁺⁻¹ = keep·V⁻¹ + move·(Σ⁻¹ + Γ) and the mean that goes with it; without a prior Σ⁻¹ is 0 and ``keep`` 1."""
    full = isinstance(centre, Full)
    if not full and not isinstance(centre, Diagonal):
        raise TypeError(f"{type(centre).__name__} steps with term=KLToProcess(covariance) only")
    times = (lambda matrix, vector: matrix @ vector) if full else (lambda matrix, vector: matrix * vector)
    curvature = 2 * symmetric(gradient.covariance) if full else 2 * gradient.variance
    prior_precision = 0.0 * centre.precision if prior is None else prior.precision
    prior_mean = centre.mean if prior is None else prior.mean
    slope = gradient.mean + times(prior_precision, centre.mean - prior_mean)
    precision = keep * centre.precision + move * (prior_precision + curvature)
    moved = type(centre).from_precision(centre.mean, precision)
    if divergence.coordinates == "mean":
        covariance = moved.covariance if full else moved.variance
        return moved._replace(mean=centre.mean - move * times(covariance, slope))
    within = keep * centre.precision + move * prior_precision
    return moved._replace(mean=centre.mean - move * (solve(within, slope) if full else slope / within))

"""Gaussian variational families: what a step moves, with what the likelihood sees of it already worked out.

A point holds the mean and the (co)variance, in which f is linear in the model of the iteration, beside the natural
parameters that the step adds up. They are two descriptions of one distribution, kept together so that a step
factorises once and everything else is cheap: the gradient of f with respect to a point has the entries α = ∂f/∂m and
Γ/2 = ∂f/∂V, and zeros elsewhere, which is what ``jax.grad`` of a function of mean and covariance returns.

=================  =============================  ===================================================================
:class:`Full`      V any                          weights of a linear model, topics of a document
:class:`Diagonal`  V diagonal                     the same, many of them
:class:`Implicit`  V⁻¹ = K⁻¹ + diag(γ̃)            a Gaussian process at its n inputs: O(n) numbers, V is never stored
=================  =============================  ===================================================================

Arrays are of NumPy, where nothing is compiled, or of JAX.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key, Scalar

from thalweg.codec import storable
from thalweg.linalg import Factor, cholesky, namespace
from thalweg.linalg.arrays import replaced

__all__ = ["Diagonal", "Full", "Implicit", "Marginals"]


class Marginals(NamedTuple):
    """The means and variances of single latent numbers, all that a likelihood of single targets sees.

    Examples
    --------
    >>> Implicit.prior(np.eye(2)).marginals()
    Marginals(mean=array([0., 0.]), variance=array([1., 1.]))
    """

    mean: Float[Array, " n"]
    variance: Float[Array, " n"]


def symmetric(matrix: Float[Array, "d d"]) -> Float[Array, "d d"]:
    """½(A + Aᵀ): rounding makes sums and products of symmetric matrices asymmetric."""
    return (matrix + matrix.T) / 2


@storable
class Full(NamedTuple):
    """N(mean, covariance), with its precision.

    Examples
    --------
    >>> import numpy as np
    >>> q = Full.from_moments(np.zeros(2), 2.0 * np.eye(2))
    >>> p = Full.from_moments(np.zeros(2), np.eye(2))
    >>> float(q.kl(p).round(4))
    0.3069
    """

    mean: Float[Array, " d"]
    covariance: Float[Array, "d d"]
    precision: Float[Array, "d d"]

    @classmethod
    def from_moments(cls, mean: Float[Array, " d"], covariance: Float[Array, "d d"]) -> "Full":
        """N(mean, covariance)."""
        return cls(mean, covariance, inverse(covariance))

    @classmethod
    def from_precision(cls, mean: Float[Array, " d"], precision: Float[Array, "d d"]) -> "Full":
        """N(mean, precision⁻¹)."""
        return cls(mean, inverse(precision), precision)

    def kl(self, other: "Full") -> Scalar:
        """KL[self ‖ other]."""
        shift = self.mean - other.mean
        trace = (other.precision * self.covariance).sum()
        ratio = _factor(self.precision).log_determinant() - _factor(other.precision).log_determinant()
        return (trace + shift @ (other.precision @ shift) - len(shift) + ratio) / 2

    def inner(self, target: "Full", x: "Full", y: "Full") -> Scalar:
        """⟨target − self, y − x⟩, the product that makes the symmetric KL a square to first order."""
        spread = ((target.precision - self.precision) * (y.covariance - x.covariance)).sum()
        return (target.mean - self.mean) @ (self.precision @ (y.mean - x.mean)) - spread / 2

    def natural(self) -> tuple[Array, Array]:
        """The natural parameters V⁻¹m and V⁻¹."""
        return self.precision @ self.mean, self.precision

    def from_natural(self, linear: Float[Array, " d"], precision: Float[Array, "d d"], _: Any = None) -> "Full":
        """The posterior with these natural parameters."""
        moved = Full.from_precision(self.mean, precision)
        return moved._replace(mean=moved.covariance @ linear)

    def marginals(self, design: Float[Array, "n d"]) -> Marginals:
        """Of Xz for the rows of a design X."""
        return Marginals(design @ self.mean, ((design @ self.covariance) * design).sum(axis=1))

    def pull_back(self, design: Float[Array, "n d"], gradient: Marginals) -> "Full":
        """The gradient in a point of this family, given that in its marginals under a design."""
        covariance = (design.T * gradient.variance[None]) @ design
        return Full(design.T @ gradient.mean, covariance, namespace(design).zeros_like(covariance))

    def sample(self, key: Key[Array, ""], count: int) -> Float[Array, "count d"]:
        """Draw ``count`` vectors."""
        normals = jax.random.normal(key, (count, self.mean.shape[0]), self.mean.dtype)
        return self.mean[None] + normals @ jnp.linalg.cholesky(self.covariance).T

    @property
    def proper(self) -> Array:
        """Whether covariance and precision are positive definite: the inverse of what is not is NaN."""
        return (abs(self.covariance) < jnp.inf).all() & (abs(self.precision) < jnp.inf).all()


class Diagonal(NamedTuple):
    """N(mean, diag(variance)), with the precisions 1/variance.

    Examples
    --------
    >>> q = Diagonal.from_moments(np.zeros(2), np.array([1.0, 4.0]))
    >>> q.marginals(np.array([[1.0, 1.0]])).variance
    array([5.])
    """

    mean: Float[Array, " d"]
    variance: Float[Array, " d"]
    precision: Float[Array, " d"]

    @classmethod
    def from_moments(cls, mean: Float[Array, " d"], variance: Float[Array, " d"]) -> "Diagonal":
        """N(mean, diag(variance))."""
        return cls(mean, variance, 1 / variance)

    @classmethod
    def from_precision(cls, mean: Float[Array, " d"], precision: Float[Array, " d"]) -> "Diagonal":
        """N(mean, diag(1/precision))."""
        return cls(mean, 1 / precision, precision)

    def kl(self, other: "Diagonal") -> Scalar:
        """KL[self ‖ other]."""
        shift, ratio = self.mean - other.mean, other.precision * self.variance
        return (ratio + other.precision * shift**2 - 1 - namespace(ratio).log(ratio)).sum() / 2

    def inner(self, target: "Diagonal", x: "Diagonal", y: "Diagonal") -> Scalar:
        """⟨target − self, y − x⟩, the product that makes the symmetric KL a square to first order."""
        spread = (target.precision - self.precision) * (y.variance - x.variance)
        return (self.precision * (target.mean - self.mean) * (y.mean - x.mean) - spread / 2).sum()

    def marginals(self, design: Float[Array, "n d"]) -> Marginals:
        """Of Xz for the rows of a design X."""
        return Marginals(design @ self.mean, design**2 @ self.variance)

    def sample(self, key: Key[Array, ""], count: int) -> Float[Array, "count d"]:
        """Draw ``count`` vectors."""
        normals = jax.random.normal(key, (count, self.mean.shape[0]), self.mean.dtype)
        return self.mean[None] + jnp.sqrt(self.variance)[None] * normals

    @property
    def proper(self) -> Array:
        """Whether every precision is positive."""
        return ((self.precision > 0) & (abs(self.variance) < jnp.inf)).all()


class Implicit(NamedTuple):
    """A Gaussian process at its n inputs: m = Ka and V⁻¹ = K⁻¹ + diag(γ̃), K the prior covariance.

    ``weights`` a and ``sites`` γ̃ are the natural parameters (a = K⁻¹m, so that predictions need no solve); ``mean``
    and ``variance`` are m and diag(V), ``log_determinant`` is log|B|, B = I + diag(√γ̃) K diag(√γ̃).

    Examples
    --------
    >>> q = Implicit.from_sites(np.eye(2), weights=np.array([1.0, 0.0]), sites=np.array([3.0, 0.0]))
    >>> q.variance
    array([0.25, 1.  ])
    """

    mean: Float[Array, " n"]
    variance: Float[Array, " n"]
    weights: Float[Array, " n"]
    sites: Float[Array, " n"]
    log_determinant: Float[Array, ""]

    @classmethod
    def prior(cls, covariance: Float[Array, "n n"]) -> "Implicit":
        """The prior itself, N(0, K): no sites."""
        zeros = namespace(covariance).zeros(len(covariance), covariance.dtype)
        return cls(zeros, covariance.diagonal(), zeros, zeros, zeros.sum())

    @classmethod
    def from_sites(
        cls,
        covariance: Float[Array, "n n"],
        weights: Float[Array, " n"],
        sites: Float[Array, " n"],
        factor: Factor | None = None,
    ) -> "Implicit":
        """The posterior with m = K·weights and V⁻¹ = K⁻¹ + diag(sites), by one factor of B, if it is not known."""
        factor = factor or factorise_sites(covariance, sites)
        least = np.finfo(covariance.dtype).eps * covariance.diagonal()
        # Where the sites leave next to nothing of the prior, rounding could leave less.
        variance = namespace(covariance).maximum(_variances(covariance, sites, factor), least)
        return cls(covariance @ weights, variance, weights, sites, factor.log_determinant())

    def kl(self, other: "Implicit") -> Scalar:
        """KL[self ‖ other] of two posteriors with the same K, which it does not need.

        With V⁻¹ = K⁻¹ + Γ̃: tr(V_y⁻¹V_x) = n + (γ̃_y − γ̃_x)·v_x, and K cancels in |V_y|/|V_x| = |B_x|/|B_y|.
        """
        shift = self.mean - other.mean
        trace = ((other.sites - self.sites) * self.variance).sum()
        distance = shift @ (self.weights - other.weights) + (other.sites * shift**2).sum()
        return (trace + distance + self.log_determinant - other.log_determinant) / 2

    def inner(self, target: "Implicit", x: "Implicit", y: "Implicit") -> Scalar:
        """⟨target − self, y − x⟩, the product that makes the symmetric KL a square to first order."""
        dual = y.weights - x.weights + self.sites * (y.mean - x.mean)
        spread = (target.sites - self.sites) * (y.variance - x.variance)
        return ((target.mean - self.mean) * dual - spread / 2).sum()

    def kl_to_prior(self) -> Scalar:
        """KL[self ‖ N(0, K)] = ½(log|B| − γ̃·v + m·a)."""
        return (self.log_determinant + (self.mean * self.weights - self.sites * self.variance).sum()) / 2

    def marginals(self, indices: Int[Array, " b"] | None = None) -> Marginals:
        """Of all inputs, or of those with the given indices."""
        if indices is None:
            return Marginals(self.mean, self.variance)
        return Marginals(self.mean[indices], self.variance[indices])

    def natural(self) -> tuple[Array, Array]:
        """The natural parameters V⁻¹m = a + γ̃⊙m and γ̃, less those of the prior."""
        return self.weights + self.sites * self.mean, self.sites

    def from_natural(self, linear: Float[Array, " n"], sites: Float[Array, " n"], term: Any) -> "Implicit":
        """The posterior with these natural parameters; ``term`` has the prior's covariance."""
        factor, root = factorise_sites(term.covariance, sites), namespace(sites).sqrt(sites)
        weights = linear - root * factor.solve(root * (term.covariance @ linear))
        return Implicit.from_sites(term.covariance, weights, sites, factor)

    def pull_back(self, design: None, gradient: Marginals) -> "Implicit":
        """The gradient in a point of this family, whose latent numbers are its own: there is no design."""
        return Implicit(*gradient, 0 * self.weights, 0 * self.sites, 0 * self.log_determinant)

    def sample(self, key: Key[Array, ""], count: int, covariance: Float[Array, "n n"]) -> Float[Array, "count n"]:
        """Draw ``count`` vectors of latent values; ``covariance`` is K."""
        root = namespace(self.sites).sqrt(self.sites)
        spread = factorise_sites(covariance, self.sites).half_solve(root[:, None] * covariance)
        # V is singular where inputs repeat, and has no Cholesky factor then.
        values, vectors = jnp.linalg.eigh(symmetric(covariance - spread.T @ spread))
        normals = jax.random.normal(key, (count, self.mean.shape[0]), self.mean.dtype)
        return self.mean[None] + (normals * jnp.sqrt(jnp.maximum(values, 0))[None]) @ vectors.T

    @property
    def proper(self) -> Array:
        """Whether V is a covariance."""
        return ((self.sites >= 0) & (self.variance > 0)).all() & (abs(self.log_determinant) < jnp.inf)


def symmetric_kl(x: Any, y: Any) -> Scalar:
    """KL[x ‖ y] + KL[y ‖ x], in which the determinants cancel."""
    return (x.inner(y, x, y) + y.inner(x, y, x)) / 2


def _variances(covariance: Any, sites: Any, factor: Factor) -> Any:
    """diag(V) of V = K − K·√γ̃·B⁻¹·√γ̃·K, on the host by (1 − B⁻¹_ii)/γ̃ᵢ, which takes a third of the time.

    But for sites that say next to nothing, where that difference has no digits.
    """
    diagonal, on_host = covariance.diagonal(), namespace(covariance) is np
    idle = np.flatnonzero(sites * diagonal < np.cbrt(np.finfo(diagonal.dtype).eps)) if on_host else slice(None)
    spread = factor.half_solve(namespace(sites).sqrt(sites)[:, None] * covariance[:, idle])
    of_idle = diagonal[idle] - (spread**2).sum(axis=0)
    if not on_host:
        return of_idle
    return replaced((1 - factor.inverse_diagonal()) / np.where(sites > 0, sites, 1), idle, of_idle)


def factorise_sites(covariance: Float[Array, "n n"], sites: Float[Array, " n"]) -> Factor:
    """Factorise B = I + diag(√γ̃) K diag(√γ̃), whose eigenvalues are at least 1 whatever K."""
    root = namespace(sites).sqrt(sites)
    return _factor(root[:, None] * covariance * root[None], 1.0)


def inverse(matrix: Float[Array, "d d"]) -> Float[Array, "d d"]:
    """The inverse of a positive definite matrix; NaN for one that is not."""
    return _factor(symmetric(matrix)).inverse()


def solve(matrix: Float[Array, "d d"], right: Float[Array, " d"]) -> Float[Array, " d"]:
    """The inverse of a positive definite matrix times a vector."""
    return _factor(matrix).solve(right)


def _factor(matrix: Float[Array, "d d"], added: float = 0.0) -> Factor:
    """Factorise a precision as it is, or return NaN: one with a diagonal raised would be that of another posterior."""
    return Factor(cholesky(matrix, added), 0.0)

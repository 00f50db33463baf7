"""Stationary kernels, and their two forms: functions of the Euclidean distance, and products over features."""

import math
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy.special import gammaln

from thalweg import arguments
from thalweg.kernels import distances, profiles
from thalweg.kernels.base import Kernel
from thalweg.kernels.draws import KINDS, Block

__all__ = ["Stationary"]

# A draw of the mixing variable below this, which float32 can make 0, would be an infinite frequency.
_LEAST_MIXING = 1e-14


class Stationary(Kernel):
    """A kernel k(x, y) = variance · ρ((x − y) / lengthscale) with ρ(0) = 1.

    By Bochner's theorem k(x, y) = variance · E cos(ωᵀ(x − y)) for frequencies ω of a law that the kernel knows.
    A subclass defines :meth:`correlation`, and for random features :meth:`standard_log_density` and
    :meth:`standard_frequencies`.

    Parameters
    ----------
    lengthscale
        A positive number, or one for each feature.
    variance
        A positive number, k(x, x).

    Examples
    --------
    >>> from thalweg.kernels import Matern32
    >>> isinstance(Matern32(lengthscale=[1.0, 2.0]), Stationary)
    True
    """

    lengthscale: Float[Array, "*features"]
    variance: Float[Array, ""]
    kinds: ClassVar[tuple[str, ...]] = KINDS

    def __init__(self, lengthscale: Any = 1.0, variance: Any = 1.0) -> None:
        name = type(self).__name__
        self.lengthscale = positive(f"lengthscale of {name}", lengthscale)
        self.variance = arguments.number(f"variance of {name}", variance, above=0)

    def correlation(self, x: Float[Array, "n d"], y: Float[Array, "m d"] | None) -> Float[Array, "n m"]:
        """ρ((x_i − y_j) / lengthscale) for rows of one dtype; no ``y`` means ``x`` again."""
        raise NotImplementedError(f"{type(self).__name__} must define correlation(x, y)")

    def standard_log_density(self, omega: Float[Array, "n d"]) -> Float[Array, " n"]:
        """The log-density of the frequencies of lengthscale 1."""
        raise NotImplementedError(f"{type(self).__name__} must define standard_log_density(omega)")

    def standard_frequencies(self, block: Block, dimension: int) -> Float[Array, "count dimension"]:
        """Frequencies of lengthscale 1 in float32, one per row of a block."""
        raise NotImplementedError(f"{type(self).__name__} must define standard_frequencies(...)")

    def matrix(self, x: Float[Array, "n d"], y: Float[Array, "m d"] | None) -> Float[Array, "n m"]:
        """The variance times the correlation."""
        return self.variance.astype(x.dtype) * self.correlation(x, y)

    def draw(self, block: Block, dimension: int) -> Float[Array, "count dimension"]:
        """Frequencies of lengthscale 1, divided by the lengthscales."""
        standard = self.standard_frequencies(block, dimension).astype(self.lengthscale.dtype)
        return standard / jnp.broadcast_to(self.lengthscale, standard.shape)

    def spectral_density(self, omega: Float[Array, "n d"]) -> Float[Array, " n"]:
        """The probability density of the frequencies at the rows of ``omega``: k(x, y) = variance · E cos(ωᵀ(x − y)).

        Examples
        --------
        >>> from thalweg.kernels import Laplacian
        >>> Laplacian(lengthscale=2.0).spectral_density(np.zeros((1, 1))).round(4)  # 2/π
        Array([0.6366], dtype=float...)
        """
        omega = self.rows("omega", omega)
        lengthscale = jnp.broadcast_to(self.lengthscale.astype(omega.dtype), omega.shape[1:])
        return jnp.exp(self.standard_log_density(omega * lengthscale[None, :]) + jnp.sum(jnp.log(lengthscale)))


def positive(name: str, value: Any) -> Array:
    """A positive number, or a list of them, one per feature, as an array."""
    if isinstance(value, list | tuple | np.ndarray):
        # To the check of arguments a list would be a tree of numbers; JAX takes no foreign order of bytes.
        try:
            value = np.asarray(value)
            value = value.astype(value.dtype.newbyteorder("="), copy=False)
        except ValueError:
            raise ValueError(f"{name} must be a number above 0, or one for each feature, found {value!r}") from None
    return arguments.numbers(name, value, above=0, ndim=1)


class Radial(Stationary):
    """A kernel of the distance r = ‖(x − y) / lengthscale‖ alone: Matérn's of an order, or its limit, the Gaussian.

    Its frequencies have a multivariate t law with 2·order + 1 degrees of freedom, z·√(degrees/χ²) for a normal z; those
    of the Gaussian are normal.
    """

    order: ClassVar[int | None] = None
    """How often its functions are differentiable; None without end."""

    @property
    def degrees(self) -> int | None:
        """The degrees of freedom of its frequencies."""
        return None if self.order is None else 2 * self.order + 1

    def profile(self, squared: Any) -> Any:
        """ρ as a function of r², for arrays of JAX or of NumPy."""
        return profiles.profile(self.order, squared)

    def profile_slope(self, squared: Any) -> Any:
        """The derivative of :meth:`profile` in r²; where r = 0 and it is infinite, it is taken as 0."""
        return profiles.profile_slope(self.order, squared)

    def correlation(self, x: Float[Array, "n d"], y: Float[Array, "m d"] | None) -> Float[Array, "n m"]:
        """ρ at the distances between the rows."""
        return self.profile(distances.squared_distances(x, y, self.lengthscale.astype(x.dtype)))

    def standard_log_density(self, omega: Float[Array, "n d"]) -> Float[Array, " n"]:
        """The log-density of the normal or t law."""
        dimension = omega.shape[1]
        squares = jnp.sum(omega**2, axis=1)
        if self.degrees is None:
            return -squares / 2 - dimension / 2 * math.log(2 * math.pi)
        q = self.degrees
        constant = float(gammaln((q + dimension) / 2) - gammaln(q / 2)) - dimension / 2 * math.log(q * math.pi)
        return constant - (q + dimension) / 2 * jnp.log1p(squares / q)

    def standard_frequencies(self, block: Block, dimension: int) -> Float[Array, "count dimension"]:
        """z·√(degrees/χ²), with the χ² as a sum of squares, so that all comes from normal numbers."""
        degrees = self.degrees or 0
        numbers, directions = block.split()
        normal, mixing = jnp.split(numbers.normals(dimension + degrees), [dimension], axis=1)
        if block.kind == "orthogonal":
            lengths = jnp.linalg.norm(normal, axis=1, keepdims=True)
            normal = lengths * directions.orthogonal_directions(dimension)
        if self.degrees is None:
            return normal
        return normal * jnp.sqrt(degrees / jnp.maximum(jnp.sum(mixing**2, axis=1, keepdims=True), _LEAST_MIXING))


class Separable(Stationary):
    """A product over features, ρ = exp(−Σ_k term((x_k − y_k) / lengthscale_k)); a subclass defines :meth:`term`.

    Its frequencies are independent between features, with the density exp(:meth:`log_marginal`) and the inverse
    distribution function :meth:`quantile`.
    """

    kinds: ClassVar[tuple[str, ...]] = ("random", "quasi")
    """No orthogonal ones, which would not be independent between features."""

    def term(self, difference: Array) -> Array:
        """−log ρ in one feature."""
        raise NotImplementedError(f"{type(self).__name__} must define term(difference)")

    def log_marginal(self, omega: Array) -> Array:
        """The log-density of one feature's frequencies."""
        raise NotImplementedError(f"{type(self).__name__} must define log_marginal(omega)")

    def quantile(self, probability: Array) -> Array:
        """The frequency below which lies a probability."""
        raise NotImplementedError(f"{type(self).__name__} must define quantile(probability)")

    def correlation(self, x: Float[Array, "n d"], y: Float[Array, "m d"] | None) -> Float[Array, "n m"]:
        """ρ at the differences between the rows."""
        return jnp.exp(-distances.sum_over_features(self.term, x, y, self.lengthscale.astype(x.dtype)))

    def standard_log_density(self, omega: Float[Array, "n d"]) -> Float[Array, " n"]:
        """The sum over features."""
        return jnp.sum(self.log_marginal(omega), axis=1)

    def standard_frequencies(self, block: Block, dimension: int) -> Float[Array, "count dimension"]:
        """Quantiles of uniform numbers."""
        return self.quantile(block.uniforms(dimension))

"""The likelihoods that come with the library."""

import math
from functools import partial
from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln
from jaxtyping import Array
from scipy.special import digamma

from thalweg.arguments import flag, number
from thalweg.codec import storable
from thalweg.gaussian.likelihood import Likelihood, Prediction, Reals, check_targets
from thalweg.gaussian.special import Expected, expected_softplus, log_normal_cdf, normal_cdf
from thalweg.linalg.arrays import namespace
from thalweg.linalg.arrays import special as special_functions

__all__ = ["BernoulliLogit", "BernoulliProbit", "GaussianNoise", "NegativeBinomial", "Poisson", "StudentT"]

STIRLING_COUNT = 1e4
"""Counts from which Stirling's series is as good as its rounding, and a log-gamma function loses digits."""


class _Bernoulli(Likelihood):
    """Labels 0 and 1, with a symmetric link."""

    log_concave: ClassVar[bool] = True
    labels: ClassVar[bool] = True

    def check(self, y: Any) -> None:
        """Refuse labels other than 0 and 1."""
        wanted = "labels 0 or 1 (labels −1 and 1 become so by (y + 1) / 2)"
        check_targets(self, y, wanted, lambda y: (y == 0) | (y == 1))


@storable
class BernoulliLogit(_Bernoulli):
    """Labels 0 and 1 with p(1|z) = σ(z) = 1/(1 + e⁻ᶻ): logistic regression.

    Examples
    --------
    >>> import numpy as np
    >>> BernoulliLogit().predict(np.array([0.0]), np.array([1.0])).mean.round(4)
    array([0.5])
    >>> BernoulliLogit().check([1, -1])
    Traceback (most recent call last):
        ...
    ValueError: BernoulliLogit: y must be labels 0 or 1 (labels −1 and 1 become so by (y + 1) / 2), found -1 ...
    """

    def log_prob(self, y: Reals, z: Reals) -> Reals:
        """−log(1 + e⁻ᶻ) for y = 1, −log(1 + eᶻ) for y = 0."""
        return -_softplus((1 - 2 * y) * z)

    def bend(self, y: Reals) -> tuple[float, float]:
        """At 0; the poles of σ are at ±iπ."""
        return 0.0, math.pi

    def expected(self, y: Reals, m: Reals, v: Reals) -> Expected:
        """In closed form, by writing σ as a mixture of normal cdfs; see :func:`expected_softplus`."""
        sign = 1 - 2 * y
        value, first, second = expected_softplus(sign * m, v)[0]
        return Expected(-value, -sign * first, -second)

    def predict(self, m: Reals, v: Reals) -> Prediction:
        """E σ(z), and the variance of a label with this mean."""
        return _of_label(expected_softplus(m, v)[0].first)


@storable
class BernoulliProbit(_Bernoulli):
    """Labels 0 and 1 with p(1|z) = Φ(z), the normal cdf.

    Examples
    --------
    >>> import numpy as np
    >>> BernoulliProbit().predict(np.array(2.0), np.array(3.0)).mean.round(4)  # Φ(1)
    Array(0.8413, dtype=float...)
    """

    def log_prob(self, y: Reals, z: Reals) -> Reals:
        """log Φ(z) for y = 1, log Φ(−z) for y = 0."""
        return log_normal_cdf((2 * y - 1) * z)

    def bend(self, y: Reals) -> tuple[float, float]:
        """At 0; the zeros of Φ nearest to it are at 1.9 ± 2.8i."""
        return 0.0, 2.0

    def log_predictive(self, y: Reals, m: Reals, v: Reals) -> Reals:
        """log Φ(±m/√(1 + v))."""
        return log_normal_cdf((2 * y - 1) * m / jnp.sqrt(1 + v))

    def predict(self, m: Reals, v: Reals) -> Prediction:
        """Φ(m/√(1 + v)), and the variance of a label with this mean."""
        return _of_label(normal_cdf(m / jnp.sqrt(1 + v)))


def _of_label(probability: Reals) -> Prediction:
    return Prediction(probability, probability * (1 - probability))


class _Counts(Likelihood):
    """Counts 0, 1, 2, … with a mean of eᶻ."""

    log_concave: ClassVar[bool] = True
    dispersion: ClassVar[Any] = 0.0
    whole: bool = eqx.field(static=True, default=True)

    def bend(self, y: Reals) -> tuple[Reals, Reals]:
        """At the most likely z, log y, with the width of the likelihood there; at 0 for y = 0."""
        count = jnp.maximum(y, 1)
        return jnp.log(count), 1 / jnp.sqrt(count)

    def check(self, y: Any) -> None:
        """Refuse what is negative, and what is not whole unless rates are meant."""
        allowed = lambda y: (y >= 0) & np.isfinite(y) & ((not self.whole) | (y == np.floor(y)))
        check_targets(self, y, f"{'whole' if self.whole else 'finite'} numbers of at least 0", allowed)

    def predict(self, m: Reals, v: Reals) -> Prediction:
        """exp(m + v/2), and E(eᶻ + dispersion·e²ᶻ), the variance of counts, plus that of their rate eᶻ."""
        xp = namespace(m)
        rate, square = xp.exp(m + v / 2), xp.exp(2 * (m + v))
        dispersion = xp.asarray(self.dispersion, rate.dtype)
        return Prediction(rate, rate + (dispersion - xp.expm1(-v)) * square)


@storable
class Poisson(_Counts):
    """Counts with the Poisson distribution of mean eᶻ (the log link).

    E eᶻ = exp(m + v/2) is infinite in floating point where m + v/2 exceeds 709 (88 in float32), and so are then the
    expectations.

    Parameters
    ----------
    whole
        Whether to insist on whole numbers; rates, counts divided by an exposure that is their weight, are not whole.

    Examples
    --------
    >>> import numpy as np
    >>> Poisson().predict(np.array([0.0]), np.array([2.0])).mean.round(4)  # e
    array([2.7183])
    >>> Poisson().check(np.array([2.0, 0.5]))
    Traceback (most recent call last):
        ...
    ValueError: Poisson: y must be whole numbers of at least 0, found 0.5 at index 1 (1 of 2 wrong)
    """

    def log_prob(self, y: Reals, z: Reals) -> Reals:
        """y·z − eᶻ − log y!."""
        return y * z - namespace(z).exp(z) - _log_factorial(y, z)

    def expected(self, y: Reals, m: Reals, v: Reals) -> Expected:
        """In closed form, from E eᶻ = exp(m + v/2)."""
        xp = namespace(m)
        rate = xp.exp(m + v / 2)
        # With m counted from log y, large counts do not leave the rounding errors of y·m.
        near = xp.maximum(xp.asarray(y, m.dtype), 1)
        shift = m - xp.log(near)
        highest = near * (xp.log(near) - 1) - _log_factorial(y, m)
        shifted = near * (shift - xp.expm1(shift + v / 2)) + highest
        return Expected(xp.where(y < 1, y * m - rate - _log_factorial(y, m), shifted), y - rate, -rate)


@storable
class NegativeBinomial(_Counts):
    """Counts of mean μ = eᶻ and variance μ + dispersion·μ² (NB2: the size r of other texts is 1/dispersion).

    As the dispersion goes to 0 this becomes the Poisson distribution, and rounding errors grow to 1e-15/dispersion.

    Parameters
    ----------
    dispersion
        A positive number.
    whole
        As in :class:`Poisson`.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> NegativeBinomial(0.5).predict(jnp.array(0.0), jnp.array(0.0))
    Prediction(mean=Array(1., dtype=float...), variance=Array(1.5, dtype=float...))
    """

    dispersion: Array  # type: ignore[misc]

    def __init__(self, dispersion: Any, whole: bool = True) -> None:
        self.dispersion = number("dispersion of NegativeBinomial", dispersion, above=0)
        self.whole = flag("whole of NegativeBinomial", whole)

    def log_prob(self, y: Reals, z: Reals) -> Reals:
        """−y·log(1 + e^−ζ) − r·log(1 + e^ζ) + log Γ(y + r) − log Γ(r) − log y!, with ζ = z − log r."""
        size, shifted = self._size_and_shifted(z)
        return -y * _softplus(-shifted) - size * _softplus(shifted) + self._constant(y, z)

    def expected(self, y: Reals, m: Reals, v: Reals) -> Expected:
        """In closed form, by writing σ as a mixture of normal cdfs; see :func:`expected_softplus`."""
        size, shifted = self._size_and_shifted(m)
        # A small dispersion multiplies the errors by a large r: take the mixture to full precision.
        up, down = expected_softplus(shifted, v, terms=32)
        # A large y is only multiplied by what is small there: y·ζ less the same would leave its rounding errors.
        value = -y * down.value - size * up.value + self._constant(y, m)
        return Expected(value, y * down.first - size * up.first, -(y + size) * up.second)

    def slope_in_log_dispersion(self, y: Reals, m: Reals, v: Reals) -> Reals:
        """The derivative of E log p(y|z) under N(m, v) in log dispersion, for NumPy arrays."""
        size, shifted = self._size_and_shifted(m)
        up, down = expected_softplus(shifted, v, terms=32)
        return y * down.first + size * (up.value - up.first - digamma(y + size) + digamma(size))

    def _size_and_shifted(self, z: Reals) -> tuple[Reals, Reals]:
        dispersion = self.dispersion.astype(z.dtype)
        return 1 / dispersion, z + namespace(z).log(dispersion)

    def _constant(self, y: Reals, z: Reals) -> Reals:
        """Use Stirling's series where the rounding of large factorials would hide what they differ by."""
        xp = namespace(z)
        log_gamma = special_functions(xp).gammaln
        size, count = 1 / self.dispersion.astype(z.dtype), xp.asarray(y, z.dtype)
        low, high, more = count + 1, count + size, size - 1
        far = (low - 0.5) * xp.log1p(more / low) + more * (xp.log(high) - 1) + (1 / high - 1 / low) / 12
        return xp.where(count > STIRLING_COUNT, far, log_gamma(high) - log_gamma(low)) - log_gamma(size)


def _softplus(z: Reals) -> Reals:
    return namespace(z).logaddexp(z, 0.0)


def _log_factorial(y: Reals, z: Reals) -> Reals:
    xp = namespace(z)
    return special_functions(xp).gammaln(xp.asarray(y, z.dtype) + 1)


@storable
class GaussianNoise(Likelihood):
    """Real targets y = z + noise, the noise being N(0, variance).

    Parameters
    ----------
    variance
        A positive number.

    Examples
    --------
    >>> import numpy as np
    >>> GaussianNoise(0.5).predict(np.array(1.0), np.array(2.0))
    Prediction(mean=array(1.), variance=Array(2.5, dtype=float...))
    """

    log_concave: ClassVar[bool] = True

    variance: Any = eqx.field(converter=partial(number, "variance of GaussianNoise", above=0))

    def log_prob(self, y: Reals, z: Reals) -> Reals:
        """log N(y; z, variance)."""
        return _log_normal(y - z, self.variance.astype(z.dtype))

    def bend(self, y: Reals) -> tuple[Reals, Reals]:
        """At y, as wide as the noise."""
        return y, jnp.sqrt(self.variance)

    def expected(self, y: Reals, m: Reals, v: Reals) -> Expected:
        """In closed form: log p is quadratic."""
        variance = self.variance.astype(m.dtype)
        value = _log_normal(y - m, variance) - v / (2 * variance)
        return Expected(value, (y - m) / variance, namespace(m).broadcast_to(-1 / variance, value.shape))

    def log_predictive(self, y: Reals, m: Reals, v: Reals) -> Reals:
        """log N(y; m, v + variance)."""
        return _log_normal(y - m, v + self.variance.astype(m.dtype))

    def predict(self, m: Reals, v: Reals) -> Prediction:
        """The mean m and the variance v + variance."""
        return Prediction(m, v + self.variance.astype(m.dtype))


def _log_normal(x: Reals, variance: Reals) -> Reals:
    return -0.5 * (x * x / variance + namespace(x).log(2 * math.pi * variance))


@storable
class StudentT(Likelihood):
    """Real targets y = z + scale·t, with t from Student's distribution: outliers pull little. Not log-concave.

    Parameters
    ----------
    degrees
        The degrees of freedom, a positive number.
    scale
        A positive number.

    Examples
    --------
    >>> import numpy as np
    >>> StudentT(4.0, 0.5).predict(np.array(1.0), np.array(2.0))
    Prediction(mean=Array(1., dtype=float...), variance=Array(2.5, dtype=float...))
    """

    degrees: Any = eqx.field(converter=partial(number, "degrees of StudentT", above=0))
    scale: Any = eqx.field(converter=partial(number, "scale of StudentT", above=0))

    def log_prob(self, y: Reals, z: Reals) -> Reals:
        """The log-density of Student's distribution at (y − z)/scale, less log scale."""
        degrees, scale = self.degrees.astype(z.dtype), self.scale.astype(z.dtype)
        half = (degrees + 1) / 2
        constant = gammaln(half) - gammaln(degrees / 2) - 0.5 * jnp.log(math.pi * degrees) - jnp.log(scale)
        return constant - half * jnp.log1p(jnp.square((y - z) / scale) / degrees)

    def bend(self, y: Reals) -> tuple[Reals, Reals]:
        """At y; the singularities are √degrees scales away, and for many degrees the bump is one scale wide."""
        return y, self.scale * jnp.sqrt(jnp.minimum(self.degrees, 64))

    def predict(self, m: Reals, v: Reals) -> Prediction:
        """The mean exists for more than one degree of freedom, and is NaN otherwise; the variance for more than two."""
        degrees, scale = self.degrees.astype(m.dtype), self.scale.astype(m.dtype)
        noise = jnp.where(degrees > 2, degrees * jnp.square(scale) / jnp.maximum(degrees - 2, 0), jnp.inf)
        exists = lambda moment: jnp.where(degrees > 1, moment, jnp.nan)
        return Prediction(exists(m), exists(v + noise))

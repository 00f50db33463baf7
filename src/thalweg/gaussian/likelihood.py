"""The contract of a likelihood p(y|z): one target y given one latent number z, elementwise over arrays.

A likelihood of one's own needs ``log_prob`` alone: derivatives, expectations and predictive densities follow from it,
by a quadrature that is accurate even where the Gaussian of z is far wider than the bend of log p. Gauss–Hermite nodes
spread with the Gaussian: with a standard deviation of 300 they step over a bend of width 1. Here they are dense at the
bend. With its location p and width w, z = p + w·sinh t gives everything at the distance |z − p| > w the same size in t;
the integrand is analytic in t and vanishes at both ends, so that the trapezoidal rule converges geometrically.
"""

from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp
from jax.scipy.stats import norm
from jaxtyping import Array, Float, Scalar

from thalweg.gaussian.special import Expected, normal_pdf
from thalweg.trees import as_host_arrays

__all__ = ["Likelihood", "Prediction"]

Reals = Float[Array, "..."]

CHUNK_NUMBERS = 2**17
"""Numbers that are computed at a time on the host: a megabyte, as the cache of a core holds. Ten times as many take
twice as long."""

REACH = 8.0
"""Standard deviations at which a Gaussian is cut off: 1e-15 of its mass is beyond."""


class Prediction(NamedTuple):
    """The mean and the variance of a target (for labels 0 and 1 the mean is the probability of a 1).

    Examples
    --------
    >>> from thalweg.gaussian import GaussianNoise
    >>> GaussianNoise(1.0).predict(np.array(2.0), np.array(3.0))
    Prediction(mean=array(2.), variance=Array(4., dtype=float...))
    """

    mean: Reals
    variance: Reals


class Likelihood(eqx.Module):
    """Base class of likelihoods; a subclass must define :meth:`log_prob`, twice differentiable in z.

    It may override what it knows better: :attr:`log_concave`, :meth:`bend`, :meth:`check`, :meth:`predict`, and
    :meth:`expected` or :meth:`log_predictive` where they have closed forms. Parameters are shared by all elements.

    Examples
    --------
    A target that is an angle, by the von Mises distribution up to a constant:

    >>> import jax.numpy as jnp
    >>> class Angle(Likelihood):
    ...     def log_prob(self, y, z):
    ...         return jnp.cos(y - z)
    >>> expected = Angle().expected(jnp.array(0.5), jnp.array(0.5), jnp.array(2.0))
    >>> bool(abs(expected.value - jnp.exp(-1.0)) < 1e-6)
    True
    """

    log_concave: ClassVar[bool] = False
    """Whether log p is concave in z for every y, so that E[(log p)″] ≤ 0."""
    labels: ClassVar[bool] = False
    """Whether targets are the labels 0 and 1, so that the mean of a target is a probability."""

    def log_prob(self, y: Reals, z: Reals) -> Reals:
        """log p(y|z)."""
        raise NotImplementedError(f"{type(self).__name__} must define log_prob(y, z)")

    def bend(self, y: Reals) -> tuple[Reals | float, Reals | float]:
        """The location in z where log p(y|·) bends most, and the width of the bend: quadrature is dense there.

        The width is best no larger than the distance from the location to the nearest singularity of log p in the
        complex plane; a smaller one costs little accuracy. More bends of that width are resolved if they are no
        further than about ten widths away.
        """
        return 0.0, 1.0

    def check(self, y: Any) -> None:
        """Raise ``ValueError`` if a target is outside the support; targets that are traced are not looked at."""
        check_targets(self, y, "finite numbers", np.isfinite)

    def derivatives(self, y: Reals, z: Reals) -> tuple[Reals, Reals, Reals]:
        """log p(y|z) and its first and second derivative in z."""
        ones = jnp.ones_like(z)
        with_derivative = lambda z: jax.jvp(lambda z: self.log_prob(y, z), (z,), (ones,))
        (value, first), (_, second) = jax.jvp(with_derivative, (z,), (ones,))
        return value, first, second

    def expected(self, y: Reals, m: Reals, v: Reals) -> Expected:
        """E log p(y|z) under N(m, v) and its derivatives; by quadrature unless there is a closed form."""
        return _each(self._expected_by_quadrature, y, m, v)

    def log_predictive(self, y: Reals, m: Reals, v: Reals) -> Reals:
        """log E p(y|z) under N(m, v), a target's log-density; by quadrature unless there is a closed form."""
        return _each(self._log_predictive_by_quadrature, y, m, v)

    def predict(self, m: Reals, v: Reals) -> Prediction:
        """The mean and the variance of a target whose z is N(m, v)."""
        raise NotImplementedError(f"{type(self).__name__} must define predict(m, v) to be used for predictions")

    def _expected_by_quadrature(self, y: Scalar, m: Scalar, v: Scalar) -> Expected:
        z, x, dx = graded_nodes(m, v, *self._bend(y, m), count=192)
        weights = normal_pdf(x) * dx
        # They sum to one but for truncation and rounding; after this what is constant in z is exact.
        weights /= jnp.sum(weights)
        return Expected(*(jnp.sum(weights * part) for part in self.derivatives(y, z)))

    def _log_predictive_by_quadrature(self, y: Scalar, m: Scalar, v: Scalar) -> Scalar:
        location, width = self._bend(y, m)
        # p(y|z) moves the mass of the integrand from m towards the bend, but nowhere that is less likely under N(m, v)
        # by more than log p can grow on the way.
        growth = jnp.maximum(self.log_prob(y, location) - self.log_prob(y, m), 0)
        shift = jnp.minimum(jnp.sqrt(2 * v * growth), jnp.abs(location - m) + REACH * width)
        left, right = jnp.where(location < m, shift, 0), jnp.where(location > m, shift, 0)
        z, x, dx = graded_nodes(m, v, location, width, count=400, beyond=(left, right))
        return logsumexp(self.log_prob(y, z) + norm.logpdf(x) + jnp.log(dx))

    def _bend(self, y: Scalar, m: Scalar) -> tuple[Scalar, Scalar]:
        location, width = self.bend(y)
        return jnp.asarray(location, m.dtype), jnp.asarray(width, m.dtype)


def graded_nodes(
    m: Scalar,
    v: Scalar,
    location: Scalar,
    width: Scalar,
    count: int,
    beyond: tuple[Scalar | float, Scalar | float] = (0.0, 0.0),
) -> tuple[Reals, Reals, Reals]:
    """Return nodes from m − 8√v to m + 8√v, dense at a bend: Σ g(z)·φ(x)·dx is E g(z) under N(m, v).

    They are the nodes z, their distances x from m in standard deviations, and the step dx that each stands for.
    ``beyond`` extends the range to the left and to the right.

    Examples
    --------
    >>> nodes = jax.jit(graded_nodes, static_argnames="count")(1.0, 1e4, 0.0, 1.0, count=192)
    >>> z, x, dx = map(np.asarray, nodes)
    >>> round(float(np.sum(z**2 * normal_pdf(x) * dx)))
    10001
    """
    distance = m - location
    # Below this a Gaussian is a point to the arithmetic: the floor makes v = 0 work.
    deviation = jnp.sqrt(jnp.maximum(v, jnp.finfo(m.dtype).eps * jnp.hypot(distance, width) ** 2))
    left, right = (REACH * deviation + extra for extra in beyond)
    centre = jnp.arcsinh(distance / width)
    start = jnp.arcsinh((distance - left) / width) - centre
    stop = jnp.arcsinh((distance + right) / width) - centre
    # With t measured from where z = m, both z − m and z − p come without cancellation, however far the bend is from m.
    t = start + (stop - start) * jnp.linspace(0, 1, count, dtype=m.dtype)
    growth = jnp.expm1(jnp.abs(t) / 2)
    twice_sinh = jnp.sign(t) * (growth + growth / (1 + growth))
    middle = jnp.exp(centre + t / 2)
    offset = twice_sinh * width * 0.5 * (middle + 1 / middle)
    derivative = jnp.sqrt(width**2 + (distance + offset) ** 2)
    return m + offset, offset / deviation, derivative * ((stop - start) / (count - 1) / deviation)


@eqx.filter_jit
def _each(function: Callable[[Scalar, Scalar, Scalar], Any], y: Reals, m: Reals, v: Reals) -> Any:
    """Apply a function of scalars to every element, in batches so that the nodes of all never fill the memory."""
    y, m, v = aligned(y, m, v)
    flat = tuple(array.reshape(-1) for array in (y, m, v))
    results = jax.lax.map(lambda scalars: function(*scalars), flat, batch_size=256)
    return jax.tree.map(lambda part: part.reshape(m.shape), results)


def mean_targets(likelihood: Likelihood, mean: np.ndarray, variance: np.ndarray) -> np.ndarray:
    """The mean of targets whose latent values are N(mean, variance), as a NumPy array."""
    return _on_host(lambda *chunk: (as_host_arrays(likelihood).predict(*chunk).mean,), mean, variance)[0]


def expected_on_host(likelihood: Likelihood, y: Any, m: Any, v: Any) -> Any:
    """E log p(y|z) and its derivatives as NumPy arrays."""
    # By its class: Equinox takes 50 µs to bind a method.
    return Expected(*_on_host(lambda *chunk: type(likelihood).expected(likelihood, *chunk), y, m, v))


def _on_host(function: Callable[..., tuple], *arrays: np.ndarray) -> list[Any]:
    """Apply an elementwise function chunk by chunk, so that what it computes in between stays in the cache."""
    arrays = np.broadcast_arrays(*arrays)
    flat = [array.reshape(-1) for array in arrays]
    rows = CHUNK_NUMBERS // 32  # of a mixture of as many terms
    chunks = [slice(first, first + rows) for first in range(0, flat[0].size, rows)] or [slice(0)]
    # An infinite expectation is a result, as it is on a device: steps are shortened until it is finite.
    with np.errstate(over="ignore", invalid="ignore"):
        parts = [function(*(array[chunk] for array in flat)) for chunk in chunks]
    return [np.concatenate(part).reshape(arrays[0].shape) for part in zip(*parts, strict=True)]


def aligned(y: Any, m: Any, v: Any) -> tuple[Reals, Reals, Reals]:
    """Broadcast targets, means and variances to one shape, in the floating dtype of the means and variances."""
    dtype = jnp.result_type(m, v, 0.0)
    y, m, v = jnp.broadcast_arrays(*(jnp.asarray(array, dtype) for array in (y, m, v)))
    return y, m, v


def check_targets(likelihood: Likelihood, y: Any, wanted: str, allowed: Callable[[np.ndarray], np.ndarray]) -> None:
    """Raise ``ValueError`` naming the first target that is not allowed."""
    if isinstance(y, jax.core.Tracer):
        return
    found, owner = np.asarray(y), type(likelihood).__name__
    if found.dtype.kind not in "biuf":
        raise ValueError(f"{owner}: y must be {wanted}, found an array of dtype {found.dtype}")
    wrong = ~allowed(found)
    if wrong.any():
        where = np.unravel_index(np.argmax(wrong), wrong.shape)
        place = f" at index {', '.join(str(index) for index in where)}" if where else ""
        raise ValueError(
            f"{owner}: y must be {wanted}, found {found[where]}{place} ({wrong.sum()} of {wrong.size} wrong)"
        )

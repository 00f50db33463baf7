"""The contract of a likelihood p(y|z): one target y given one latent number z, elementwise over arrays.

A likelihood of one's own needs ``log_prob`` alone: derivatives, expectations and predictive densities follow from it.
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

from thalweg.gaussian.quadrature import REACH, graded_nodes
from thalweg.gaussian.special import normal_pdf

Reals = Float[Array, "..."]


class Expected(NamedTuple):
    """E log p(y|z) under N(m, v), and the expectations of the first and second derivative of log p in z.

    By Bonnet and Price the derivative of ``value`` in m is ``first``, and in v it is ``second``/2.

    Examples
    --------
    >>> from thalweg.gaussian import GaussianNoise
    >>> expected = GaussianNoise(1.0).expected(jnp.array(2.0), jnp.array(0.0), jnp.array(1.0))
    >>> float(expected.first), float(expected.second)
    (2.0, -1.0)
    """

    value: Reals
    first: Reals
    second: Reals


class Prediction(NamedTuple):
    """The mean and the variance of a target (for labels 0 and 1 the mean is the probability of a 1).

    Examples
    --------
    >>> from thalweg.gaussian import GaussianNoise
    >>> GaussianNoise(1.0).predict(jnp.array(2.0), jnp.array(3.0))
    Prediction(mean=Array(2., dtype=float...), variance=Array(4., dtype=float...))
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
        """The place in z where log p(y|·) bends most, and the width of the bend: quadrature is dense there.

        The width is best no larger than the distance from the place to the nearest singularity of log p in the
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
        with_slope = lambda z: jax.jvp(lambda z: self.log_prob(y, z), (z,), (ones,))
        (value, first), (_, second) = jax.jvp(with_slope, (z,), (ones,))
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
        place, width = self._bend(y, m)
        # p(y|z) pulls the mass of the integrand from m towards the bend: to no place that is less likely under N(m, v)
        # by more than log p can rise on the way.
        rise = jnp.maximum(self.log_prob(y, place) - self.log_prob(y, m), 0)
        pull = jnp.minimum(jnp.sqrt(2 * v * rise), jnp.abs(place - m) + REACH * width)
        left, right = jnp.where(place < m, pull, 0), jnp.where(place > m, pull, 0)
        z, x, dx = graded_nodes(m, v, place, width, count=400, beyond=(left, right))
        return logsumexp(self.log_prob(y, z) + norm.logpdf(x) + jnp.log(dx))

    def _bend(self, y: Scalar, m: Scalar) -> tuple[Scalar, Scalar]:
        place, width = self.bend(y)
        return jnp.asarray(place, m.dtype), jnp.asarray(width, m.dtype)


@eqx.filter_jit
def _each(function: Callable[[Scalar, Scalar, Scalar], Any], y: Reals, m: Reals, v: Reals) -> Any:
    """Apply a function of scalars to every element, in batches so that the nodes of all never fill the memory."""
    y, m, v = aligned(y, m, v)
    flat = tuple(array.reshape(-1) for array in (y, m, v))
    results = jax.lax.map(lambda scalars: function(*scalars), flat, batch_size=256)
    return jax.tree.map(lambda part: part.reshape(m.shape), results)


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

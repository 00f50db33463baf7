"""Kernels without random features: linear functions, periodic ones, and noise."""

import math
from functools import partial
from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from thalweg.arguments import number
from thalweg.codec import storable
from thalweg.kernels import distances
from thalweg.kernels.base import Kernel
from thalweg.kernels.forms import positive

__all__ = ["Linear", "Periodic", "White"]


@storable
class Linear(Kernel):
    """k(x, y) = Σ_k variance_k · x_k · y_k: linear functions through the origin. Add a number for an intercept.

    Parameters
    ----------
    variance
        That of the slopes: a positive number, or one for each feature.

    Examples
    --------
    >>> (Linear(2.0) + 10.0)(jnp.array([[1.0], [3.0]]))
    Array([[12., 16.],
           [16., 28.]], dtype=float...)
    """

    variance: Float[Array, "*features"] = eqx.field(default=1.0, converter=partial(positive, "variance of Linear"))
    stationary: ClassVar[bool] = False

    def matrix(self, x: Float[Array, "n d"], y: Float[Array, "m d"] | None) -> Float[Array, "n m"]:
        """The inner products."""
        scaled = lambda rows: rows * jnp.broadcast_to(jnp.sqrt(self.variance.astype(x.dtype)), rows.shape)
        left = scaled(x)
        return jnp.matmul(left, left.T if y is None else scaled(y).T, precision="highest")

    def diagonal(self, x: Float[Array, "n d"]) -> Float[Array, " n"]:
        """The squared lengths."""
        x = self.rows("x", x)
        return jnp.sum(jnp.broadcast_to(self.variance.astype(x.dtype), x.shape) * x**2, axis=1)


@storable
class Periodic(Kernel):
    """k(x, y) = variance · exp(−2·Σ_k sin²(π·(x_k − y_k)/period_k) / lengthscale_k²): functions that repeat.

    Parameters
    ----------
    period, lengthscale
        Positive numbers, or one for each feature; lengthscales are in radians.
    variance
        A positive number, k(x, x).

    Examples
    --------
    >>> Periodic(period=2.0)(jnp.array([[0.0], [1.0], [2.0]])).round(3)
    Array([[1.   , 0.135, 1.   ],
           [0.135, 1.   , 0.135],
           [1.   , 0.135, 1.   ]], dtype=float...)
    """

    period: Float[Array, "*features"] = eqx.field(default=1.0, converter=partial(positive, "period of Periodic"))
    lengthscale: Float[Array, "*features"] = eqx.field(
        default=1.0, converter=partial(positive, "lengthscale of Periodic")
    )
    variance: Float[Array, ""] = eqx.field(default=1.0, converter=partial(number, "variance of Periodic", above=0))

    def matrix(self, x: Float[Array, "n d"], y: Float[Array, "m d"] | None) -> Float[Array, "n m"]:
        """The Gaussian kernel of points on circles, whose distance is 2·sin(π·difference/period)."""
        around = lambda rows: 2 * math.pi * rows / jnp.broadcast_to(self.period.astype(x.dtype), rows.shape)
        circles = lambda rows: jnp.concatenate([jnp.cos(around(rows)), jnp.sin(around(rows))], axis=1)
        lengths = jnp.tile(jnp.broadcast_to(self.lengthscale.astype(x.dtype), x.shape[1:]), 2)
        squares = distances.squared_distances(circles(x), None if y is None else circles(y), lengths)
        return self.variance.astype(x.dtype) * jnp.exp(-squares / 2)


@storable
class White(Kernel):
    """Noise: variance where a row meets itself, in ``kernel(x)`` and ``diagonal``, and 0 in ``kernel(x, y)``.

    An operator that makes its matrix strip by strip does not see it: there noise is a shift.

    Examples
    --------
    >>> White(0.5)(jnp.zeros((2, 1)))
    Array([[0.5, 0. ],
           [0. , 0.5]], dtype=float...)
    """

    variance: Float[Array, ""] = eqx.field(default=1.0, converter=partial(number, "variance of White", above=0))
    stationary: ClassVar[bool] = False
    """Equal points of different rows do not share it."""

    def matrix(self, x: Float[Array, "n d"], y: Float[Array, "m d"] | None) -> Float[Array, "n m"]:
        """The variance times the identity, or 0."""
        if y is not None:
            return jnp.zeros((len(x), len(y)), x.dtype)
        return self.variance.astype(x.dtype) * jnp.eye(len(x), dtype=x.dtype)

"""The kernels: functions of the distance (Gaussian, Matérn), and products over features (Laplacian, Cauchy).

Parameters are those of :class:`~thalweg.kernels.Stationary`, a lengthscale and a variance.
"""

import math
from typing import ClassVar

import jax.numpy as jnp
from jaxtyping import Array

from thalweg.codec import storable
from thalweg.kernels.forms import Radial, Separable

__all__ = ["Cauchy", "Gaussian", "Laplacian", "Matern12", "Matern32", "Matern52"]


@storable
class Gaussian(Radial):
    """k(x, y) = variance · exp(−r²/2), r = ‖(x − y) / lengthscale‖.

    Parameters
    ----------
    lengthscale
        A positive number, or one for each feature.
    variance
        A positive number, k(x, x).

    Examples
    --------
    >>> import numpy as np
    >>> kernel = Gaussian(lengthscale=2.0)
    >>> kernel
    Gaussian(lengthscale=2, variance=1)
    >>> x = np.array([[0.0], [2.0]])
    >>> kernel(x).round(3)
    Array([[1.   , 0.607],
           [0.607, 1.   ]], dtype=float...)
    """

    order: ClassVar[int | None] = None


@storable
class Matern12(Radial):
    """k(x, y) = variance · exp(−r), r = ‖(x − y) / lengthscale‖: continuous functions without a derivative.

    Examples
    --------
    >>> import numpy as np
    >>> Matern12(lengthscale=2.0)(np.zeros((1, 1)), np.full((1, 1), 2.0)).round(3)
    Array([[0.368]], dtype=float...)
    """

    order: ClassVar[int | None] = 0


@storable
class Matern32(Radial):
    """k(x, y) = variance · (1 + √3·r)·exp(−√3·r), r = ‖(x − y) / lengthscale‖: functions with one derivative.

    Examples
    --------
    >>> import numpy as np
    >>> Matern32(lengthscale=2.0)(np.zeros((1, 1)), np.full((1, 1), 2.0)).round(3)
    Array([[0.483]], dtype=float...)
    """

    order: ClassVar[int | None] = 1


@storable
class Matern52(Radial):
    """k(x, y) = variance · (1 + √5·r + 5r²/3)·exp(−√5·r), r = ‖(x − y) / lengthscale‖: functions with two derivatives.

    Examples
    --------
    >>> import numpy as np
    >>> Matern52(lengthscale=2.0)(np.zeros((1, 1)), np.full((1, 1), 2.0)).round(3)
    Array([[0.524]], dtype=float...)
    """

    order: ClassVar[int | None] = 2


@storable
class Laplacian(Separable):
    """k(x, y) = variance · exp(−Σ_k |x_k − y_k| / lengthscale_k), of the distance in the L1 norm.

    The kernel exp(−r) of the Euclidean distance is :class:`Matern12`.

    Examples
    --------
    >>> import numpy as np
    >>> Laplacian(lengthscale=2.0)(np.zeros((1, 1)), np.full((1, 1), 2.0)).round(3)
    Array([[0.368]], dtype=float...)
    """

    def term(self, difference: Array) -> Array:
        """|difference|, with the slope 0 at 0; that of jnp.abs is 1 there."""
        return difference * jnp.sign(difference)

    def log_marginal(self, omega: Array) -> Array:
        """log 1/(π(1 + ω²)), the Cauchy law."""
        return -jnp.log1p(omega**2) - math.log(math.pi)

    def quantile(self, probability: Array) -> Array:
        """tan(π(p − ½))."""
        return jnp.tan(math.pi * (probability - 0.5))


@storable
class Cauchy(Separable):
    """k(x, y) = variance · Π_k 1 / (1 + (x_k − y_k)² / lengthscale_k²).

    It is the product over features, as in Rahimi and Recht (2007), whose frequencies are independent Laplace variables,
    and not 1 / (1 + r²): the two agree for one feature.

    Examples
    --------
    >>> import numpy as np
    >>> Cauchy(lengthscale=2.0)(np.zeros((1, 1)), np.full((1, 1), 2.0)).round(3)
    Array([[0.5]], dtype=float...)
    """

    def term(self, difference: Array) -> Array:
        """log(1 + difference²)."""
        return jnp.log(1 + difference**2)

    def log_marginal(self, omega: Array) -> Array:
        """log ½·exp(−|ω|), the Laplace law."""
        return -jnp.abs(omega) - math.log(2)

    def quantile(self, probability: Array) -> Array:
        """log 2p below the median, and the same with the other sign above it."""
        tail = jnp.minimum(probability, 1 - probability)
        return jnp.sign(probability - 0.5) * -jnp.log(2 * tail)

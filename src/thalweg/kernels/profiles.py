"""Correlations as functions of the squared distance, and their derivatives, for arrays of JAX or of NumPy.

With s = (2p + 1)·r² the Matérn correlation of order p is

    M₀ = exp(−√s),    M₁ = (1 + √s)·exp(−√s),    M₂ = (1 + √s + s/3)·exp(−√s),

and dM₁/ds = −M₀/2, dM₂/ds = −M₁/6. The limit p → ∞, which has no order here, is the Gaussian exp(−r²/2).
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from thalweg.linalg.arrays import namespace

FARTHEST = 70.0
"""exp(−70) is nothing beside 1, but not so small that arithmetic on the host with it becomes slow."""


def profile(order: int | None, squared: Any) -> Any:
    """Return the correlation at squared distances in units of the lengthscale.

    Examples
    --------
    >>> profile(None, np.array([0.0, 2.0])).round(4), profile(0, np.array([4.0])).round(4)
    (array([1.    , 0.3679]), array([0.1353]))
    """
    if order is None:
        return jnp.exp(-squared / 2) if namespace(squared) is jnp else np.exp(np.maximum(squared * -0.5, -FARTHEST))
    return _matern(order, (2 * order + 1) * squared)


def profile_slope(order: int | None, squared: Any) -> Any:
    """Return the derivative of :func:`profile` in the squared distance; that of M₀ at 0 is taken as 0.

    Examples
    --------
    >>> profile_slope(1, np.zeros(1)), profile_slope(None, np.zeros(1))
    (array([-1.5]), array([-0.5]))
    """
    if order is None:
        return -profile(None, squared) / 2
    return (2 * order + 1) * _matern_slope(order, (2 * order + 1) * squared)


def _matern_slope(order: int, s: Any) -> Any:
    """dM/ds."""
    if order:
        return _matern(order - 1, s) / (-2.0 if order == 1 else -6.0)
    xp = namespace(s)
    root = xp.sqrt(xp.where(s > 0, s, 1))
    return xp.where(s > 0, -xp.exp(-root) / (2 * root), 0)


def _matern(order: int, s: Any) -> Any:
    if namespace(s) is jnp:
        return _matern_on_device(order, s)
    root = np.minimum(np.sqrt(s), FARTHEST)
    decay = np.exp(-root)
    if order == 0:
        return decay
    root += 1
    if order == 2:
        root += np.minimum(s, FARTHEST**2) / 3
    root *= decay
    return root


# √s has no derivative at 0, but these functions have one, or it is taken as 0: it is written down.
@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _matern_on_device(order: int, s: jax.Array) -> jax.Array:
    root = jnp.sqrt(s)
    return (1.0, 1 + root, 1 + root + s / 3)[order] * jnp.exp(-root)


_matern_on_device.defjvp(
    lambda order, s, tangent: (_matern_on_device(order, *s), _matern_slope(order, *s) * tangent[0])
)

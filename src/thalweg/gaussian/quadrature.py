"""Integrals against a one-dimensional Gaussian, accurate even where it is far wider than what it averages.

Gauss–Hermite nodes spread with the Gaussian: with a standard deviation of 300 they step over the unit-wide bend of a
log-likelihood. Here they are dense at the bend. With its place p and width w, z = p + w·sinh t gives everything at the
distance |z − p| > w the same size in t; the integrand is analytic in t and vanishes at both ends, so that the
trapezoidal rule converges geometrically.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Scalar

REACH = 8.0
"""Standard deviations at which a Gaussian is cut off: 1e-15 of its mass is beyond."""


class Nodes(NamedTuple):
    """Nodes z of a rule, their distances x from m in standard deviations, and the step dx that each stands for."""

    z: Float[Array, " nodes"]
    x: Float[Array, " nodes"]
    dx: Float[Array, " nodes"]


def graded_nodes(
    m: Scalar,
    v: Scalar,
    place: Scalar,
    width: Scalar,
    count: int,
    beyond: tuple[Scalar | float, Scalar | float] = (0.0, 0.0),
) -> Nodes:
    """Nodes from m − 8√v to m + 8√v, dense at a bend: Σ g(z)·φ(x)·dx is E g(z) under N(m, v).

    ``beyond`` extends the range to the left and to the right.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from thalweg.gaussian.special import normal_pdf
    >>> z, x, dx = graded_nodes(jnp.array(1.0), jnp.array(1e4), jnp.array(0.0), jnp.array(1.0), count=192)
    >>> round(float(jnp.sum(z**2 * normal_pdf(x) * dx)))
    10001
    """
    away = m - place
    nearest = jnp.hypot(away, width)
    # Below this a Gaussian is a point to the arithmetic: the floor makes v = 0 work.
    deviation = jnp.sqrt(jnp.maximum(v, jnp.finfo(m.dtype).eps * nearest**2))
    left, right = (REACH * deviation + extra for extra in beyond)
    centre = jnp.arcsinh(away / width)
    start = jnp.arcsinh((away - left) / width) - centre
    stop = jnp.arcsinh((away + right) / width) - centre
    # With t measured from where z = m, both z − m and z − p come without cancellation, however far the bend is from m.
    t = start + (stop - start) * jnp.linspace(0, 1, count, dtype=m.dtype)
    growth = jnp.expm1(jnp.abs(t) / 2)
    twice_sinh = jnp.sign(t) * (growth + growth / (1 + growth))
    middle = jnp.exp(centre + t / 2)
    offset = twice_sinh * width * 0.5 * (middle + 1 / middle)
    slope = jnp.sqrt(width**2 + (away + offset) ** 2)
    return Nodes(m + offset, offset / deviation, slope * ((stop - start) / (count - 1) / deviation))

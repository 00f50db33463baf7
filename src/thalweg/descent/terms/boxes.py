"""Sets that bound each coordinate on its own: box, non-negative orthant, L∞ ball."""

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from thalweg.arguments import number, numbers
from thalweg.descent.terms import _arrays
from thalweg.descent.terms.indicator import Indicator


class Box(Indicator):
    """The set lower_i ≤ x_i ≤ upper_i; the projection clips.

    Parameters
    ----------
    lower, upper
        Numbers, arrays that broadcast to each leaf of x, or trees of such (prefixes of x's tree). Infinite
        bounds are allowed.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> Box(-1.0, jnp.inf).prox(jnp.array([-3.0, 5.0]), 1.0)
    Array([-1.,  5.], dtype=float...)
    """

    separable: ClassVar[bool] = True
    fitting: ClassVar[tuple[str, ...]] = ("lower", "upper")

    lower: PyTree[Array]
    upper: PyTree[Array]

    def __init__(self, lower: PyTree, upper: PyTree) -> None:
        self.lower = numbers("lower of Box", lower, finite=False)
        self.upper = numbers("upper of Box", upper, finite=False)
        check_order("Box", self.lower, self.upper)

    def project(self, x: PyTree[Array]) -> PyTree[Array]:
        """Clip."""
        return jax.tree.map(jnp.clip, x, _arrays.spread(self.lower, x), _arrays.spread(self.upper, x))


class NonNegative(Indicator):
    """The set x_i ≥ 0; the projection is max(x_i, 0).

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> NonNegative().prox(jnp.array([-1.0, 2.0]), 1.0)
    Array([0., 2.], dtype=float...)
    """

    separable: ClassVar[bool] = True

    def project(self, x: PyTree[Array]) -> PyTree[Array]:
        """max(x, 0)."""
        return jax.tree.map(lambda leaf: jnp.maximum(leaf, 0), x)


class LInfBall(Indicator):
    """The set |x_i| ≤ radius for every coordinate of every leaf; the projection clips.

    Parameters
    ----------
    radius
        A positive number.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> LInfBall(1.0).prox(jnp.array([3.0, 0.5]), 1.0)
    Array([1. , 0.5], dtype=float...)
    """

    separable: ClassVar[bool] = True

    radius: Array

    def __init__(self, radius: Any = 1.0) -> None:
        self.radius = number("radius of LInfBall", radius, above=0)

    def project(self, x: PyTree[Array]) -> PyTree[Array]:
        """Clip to ±radius."""
        return jax.tree.map(lambda leaf, r: jnp.clip(leaf, -r, r), x, _arrays.spread(self.radius, x))


def check_order(owner: str, lower: PyTree[Array], upper: PyTree[Array]) -> None:
    """Raise ``ValueError`` if a concrete lower bound exceeds its upper bound or if no number lies between."""
    if any(_arrays.is_traced(leaf) for leaf in jax.tree.leaves((lower, upper))):
        return
    # Either may be a prefix of the other, as both are of x.
    whole = lower if len(jax.tree.leaves(lower)) > len(jax.tree.leaves(upper)) else upper
    spread = lambda part: jax.tree.map(lambda one, below: jax.tree.map(lambda _: one, below), part, whole)
    try:
        lows, highs = jax.tree.leaves(spread(lower)), jax.tree.leaves(spread(upper))
    except (ValueError, TypeError, KeyError):
        raise ValueError(
            f"lower and upper of {owner} must be trees of one structure, found {jax.tree.structure(lower)} "
            f"and {jax.tree.structure(upper)}"
        ) from None
    for low, high in zip(lows, highs, strict=True):
        low, high = np.asarray(low), np.asarray(high)
        try:
            wrong = (low > high) | (low == np.inf) | (high == -np.inf)
        except ValueError:
            raise ValueError(
                f"lower and upper of {owner} must have matching shapes, found {low.shape} and {high.shape}"
            ) from None
        if wrong.any():
            low, high = (np.broadcast_to(bound, wrong.shape)[wrong][0] for bound in (low, high))
            raise ValueError(f"lower of {owner} must be ≤ upper, found lower = {low:g} and upper = {high:g}")

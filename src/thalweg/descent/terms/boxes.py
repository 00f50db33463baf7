"""Sets that bound each coordinate on its own: box, non-negative orthant, L∞ ball; and terms within them."""

from functools import partial
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree, Scalar

from thalweg.arguments import instance, number, numbers
from thalweg.descent.terms.base import Indicator, Term, Wrapper, is_traced

__all__ = ["Bounds", "Box", "LInfBall", "NonNegative", "Within"]


class Bounds(Indicator):
    """A set of one interval for each coordinate; ``h + bounds`` is h :class:`Within` it.

    Examples
    --------
    >>> isinstance(NonNegative(), Bounds)
    True
    """

    separable: ClassVar[bool] = True

    def __add__(self, term: Any) -> "Within":
        return Within(term, self) if isinstance(term, Term) else NotImplemented

    __radd__ = __add__


class Within(Wrapper):
    """h where each coordinate is within its bounds, infinity elsewhere; also written ``h + Box(lower, upper)``.

    The prox of h, then the projection: of a convex function of one variable the least value in an interval is where it
    is least, or at the end that is nearest to there.

    Parameters
    ----------
    term
        h, convex and a sum over coordinates.
    bounds
        A Box, NonNegative or LInfBall.

    Examples
    --------
    >>> import numpy as np
    >>> from thalweg.descent.terms import L1
    >>> (L1(1.0) + NonNegative()).prox(np.array([3.0, 0.5, -2.0]), 1.0)
    Array([2., 0., 0.], dtype=float...)
    """

    bounds: Bounds = eqx.field(converter=partial(instance, "bounds of Within", kind=Bounds))

    def __check_init__(self) -> None:
        super().__check_init__()
        if not (self.convex and self.separable and self.proximable):
            raise ValueError(
                f"a term within {type(self.bounds).__name__} must be convex, a sum over coordinates and have a prox, "
                f"as L1 or SquaredL2, found {type(self.term).__name__}: the prox of both has no closed form"
            )

    def check(self, x: PyTree[Array]) -> None:
        """Refuse what the term or the bounds refuse."""
        super().check(x)
        self.bounds.check(x)

    def value(self, x: PyTree[Array]) -> Scalar:
        """h(x), or infinity."""
        return self.term.value(x) + self.bounds.value(x)

    def prox(self, x: PyTree[Array], step: Any) -> PyTree[Array]:
        """Clip prox_h(x, step)."""
        return self.bounds.project(self.term.prox(x, step))


class Box(Bounds):
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

    fitting: ClassVar[tuple[str, ...]] = ("lower", "upper")

    lower: PyTree[Array] = eqx.field(converter=partial(numbers, "lower of Box", finite=False))
    upper: PyTree[Array] = eqx.field(converter=partial(numbers, "upper of Box", finite=False))

    def __check_init__(self) -> None:
        check_order("Box", self.lower, self.upper)

    def project_leaf(self, leaf: Array, lower: Array, upper: Array) -> Array:
        """Clip."""
        return jnp.clip(leaf, lower, upper)


class NonNegative(Bounds):
    """The set x_i ≥ 0; the projection is max(x_i, 0).

    Examples
    --------
    >>> import numpy as np
    >>> NonNegative().prox(np.array([-1.0, 2.0]), 1.0)
    Array([0., 2.], dtype=float...)
    """

    def project_leaf(self, leaf: Array) -> Array:
        """max(x, 0)."""
        return jnp.maximum(leaf, 0)


class LInfBall(Bounds):
    """The set |x_i| ≤ radius for every coordinate of every leaf; the projection clips.

    Parameters
    ----------
    radius
        A positive number.

    Examples
    --------
    >>> import numpy as np
    >>> LInfBall(1.0).prox(np.array([3.0, 0.5]), 1.0)
    Array([1. , 0.5], dtype=float...)
    """

    fitting: ClassVar[tuple[str, ...]] = ("radius",)

    radius: Any = eqx.field(default=1.0, converter=partial(number, "radius of LInfBall", above=0))

    def project_leaf(self, leaf: Array, radius: Array) -> Array:
        """Clip to ±radius."""
        return jnp.clip(leaf, -radius, radius)


def check_order(owner: str, lower: PyTree[Array], upper: PyTree[Array]) -> None:
    """Raise ``ValueError`` if a concrete lower bound exceeds its upper bound or if no number lies between."""
    if any(is_traced(leaf) for leaf in jax.tree.leaves((lower, upper))):
        return
    # Either may be a prefix of the other, as both are of x.
    whole = lower if len(jax.tree.leaves(lower)) > len(jax.tree.leaves(upper)) else upper
    try:
        lows, highs = (jax.tree.leaves(jax.tree.broadcast(part, whole)) for part in (lower, upper))
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

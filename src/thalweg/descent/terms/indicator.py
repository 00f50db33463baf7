"""The base of all indicators: 0 on a set, infinity off it, with the projection as prox."""

from functools import reduce
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree, Scalar

from thalweg import trees
from thalweg.descent.terms import _arrays
from thalweg.descent.terms.base import Term


def feasible(
    x: PyTree[Array], projection: PyTree[Array], *, coupled: bool, scale: Any = 0.0, together: bool = False
) -> Array:
    """Whether ``x`` is its own projection up to rounding error.

    The tolerance is 8·eps of each leaf's dtype, relative to the largest entry of the leaf, its projection and
    ``scale``; it grows with the square root of the number of coordinates where these are ``coupled``. Leaves
    are judged ``together`` if the set joins them: the rounding error of the largest then reaches all.
    """
    pairs = list(zip(jax.tree.leaves(x), jax.tree.leaves(projection), strict=True))
    sizes = [jnp.maximum(_arrays.largest(leaf), _arrays.largest(image)) for leaf, image in pairs]
    counts = [leaf.size for leaf, _ in pairs]
    if together:
        sizes, counts = [reduce(jnp.maximum, sizes)] * len(pairs), [sum(counts)] * len(pairs)

    def near(leaf: Array, image: Array, size: Array, count: int) -> Array:
        tolerance = 8 * float(jnp.finfo(leaf.dtype).eps) * (count**0.5 if coupled else 1.0)
        return jnp.all(jnp.abs(leaf - image) <= tolerance * jnp.maximum(size, jnp.asarray(scale, size.dtype)))

    verdicts = [near(*pair, size, count) for pair, size, count in zip(pairs, sizes, counts, strict=True)]
    return reduce(jnp.logical_and, verdicts)


class Indicator(Term):
    """h(x) = 0 if x is in a set, else infinity. A subclass defines :meth:`project`.

    Examples
    --------
    >>> from thalweg.descent.terms import NonNegative
    >>> isinstance(NonNegative(), Indicator)
    True
    """

    indicator: ClassVar[bool] = True

    # Whether the set joins the leaves of a tree (a ball) or holds for each leaf on its own (a box).
    _together: ClassVar[bool] = False

    def project(self, x: PyTree[Array]) -> PyTree[Array]:
        """Return the point of the set nearest to ``x``."""
        raise NotImplementedError(f"{type(self).__name__} must define project(x)")

    def prox(self, x: PyTree[Array], step: Any) -> PyTree[Array]:
        """Project ``x`` on the set, whatever the step."""
        _arrays.check_prox(x, step)
        if not self.separable:
            _arrays.scalar_step(type(self).__name__, step, x)
        return self.project(x)

    def value(self, x: PyTree[Array]) -> Scalar:
        """0 if ``x`` is its own projection up to rounding error, else infinity."""
        inside = feasible(x, self.project(x), coupled=not self.separable, together=self._together)
        return jnp.where(inside, 0.0, jnp.inf).astype(trees.dtype(x))

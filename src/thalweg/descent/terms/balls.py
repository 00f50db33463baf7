"""The simplex and the L1 and L2 balls."""

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from thalweg import trees
from thalweg.arguments import number
from thalweg.descent.terms import _arrays
from thalweg.descent.terms.indicator import Indicator


@jax.jit
def project_simplex(x: Array, total: Array) -> Array:
    """Project the last axis on {p ≥ 0, Σp = total} by sorting.

    The projection is max(x − τ, 0) for the one τ that makes the sum right. Only differences to the largest
    entry matter, and only down to ``total`` below it: everything is therefore computed in [−total, 0], where
    the huge entries of a badly scaled x cannot drown ``total``.
    """
    given = x.dtype
    # In float32 at least: a long sum of half-precision numbers would stand still.
    x, total = x.astype(trees.single(given)), total.astype(trees.single(given))
    below = jnp.maximum(x - jnp.max(x, axis=-1, keepdims=True), -total)
    descending = jnp.sort(below, axis=-1, descending=True)
    ranks = jnp.broadcast_to(jnp.arange(1, x.shape[-1] + 1, dtype=x.dtype), x.shape)
    thresholds = (jnp.cumsum(descending, axis=-1) - total) / ranks
    # The threshold that uses the k largest entries is right for the last k whose entry is above it.
    above = jnp.sum(descending > thresholds, axis=-1, keepdims=True)
    threshold = jnp.take_along_axis(thresholds, jnp.maximum(above, 1) - 1, axis=-1)
    inside = jnp.maximum(below - threshold, 0)
    # Rounding leaves the sum off by about n·eps: rescaling makes the point feasible again.
    return (inside * (total / jnp.sum(inside, axis=-1, keepdims=True))).astype(given)


class Simplex(Indicator):
    """The set x ≥ 0, Σx = total, over the last axis of each leaf; leading axes hold independent rows.

    A vector is thus one simplex, an (n, k) matrix n of them. The projection is max(x − τ, 0), with τ found by
    sorting.

    Parameters
    ----------
    total
        A positive number.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> Simplex().prox(jnp.array([1.0, 0.5, -1.0]), 1.0)
    Array([0.75, 0.25, 0.  ], dtype=float...)
    """

    total: Array

    def __init__(self, total: Any = 1.0) -> None:
        self.total = number("total of Simplex", total, above=0)

    def project(self, x: PyTree[Array]) -> PyTree[Array]:
        """max(x − τ, 0) along the last axis."""
        return jax.tree.map(project_simplex, x, _arrays.spread(self.total, x))

    def check(self, x: PyTree[Array]) -> None:
        """Refuse a leaf without a last axis to sum over."""
        for path, leaf in jax.tree_util.tree_leaves_with_path(x):
            if jnp.ndim(leaf) == 0 or jnp.shape(leaf)[-1] == 0:
                raise ValueError(
                    f"Simplex: x{trees.path_name(path)} must have a last axis of at least one entry, "
                    f"found the shape {jnp.shape(leaf)}"
                )


class _Ball(Indicator):
    _together: ClassVar[bool] = True

    radius: Array

    def __init__(self, radius: Any = 1.0) -> None:
        self.radius = number(f"radius of {type(self).__name__}", radius, above=0)


class L1Ball(_Ball):
    """The set Σ|x_i| ≤ radius, over all coordinates of all leaves.

    The projection of a point outside is the soft threshold sign(x)·max(|x| − τ, 0) that makes the sum right.

    Parameters
    ----------
    radius
        A positive number.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> L1Ball(1.0).prox(jnp.array([1.0, -0.5]), 1.0)
    Array([ 0.75, -0.25], dtype=float...)
    """

    def project(self, x: PyTree[Array]) -> PyTree[Array]:
        """Soft-threshold what is outside."""
        flat = _arrays.flatten(x)
        radius = self.radius.astype(flat.dtype)
        size = jnp.abs(flat)
        outside = jnp.sign(flat) * project_simplex(size, radius)
        return _arrays.unflatten(
            jnp.where(
                jnp.sum(size, dtype=trees.single(size.dtype)) <= radius.astype(trees.single(size.dtype)), flat, outside
            ),
            x,
        )


class L2Ball(_Ball):
    """The set ‖x‖₂ ≤ radius, over all coordinates of all leaves; the projection is min(1, radius/‖x‖)·x.

    Parameters
    ----------
    radius
        A positive number.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> L2Ball(1.0).prox(jnp.array([3.0, 4.0]), 1.0).round(3)
    Array([0.6, 0.8], dtype=float...)
    """

    def project(self, x: PyTree[Array]) -> PyTree[Array]:
        """Shorten what is outside."""
        length = _arrays.norm(x)
        radius = self.radius.astype(length.dtype)
        # Direction first: radius/‖x‖ alone would underflow for a huge x.
        longest = jnp.maximum(length, radius)
        shorten = lambda leaf: (leaf / longest.astype(leaf.dtype)) * radius.astype(leaf.dtype)
        return jax.tree.map(lambda leaf: jnp.where(length <= radius, leaf, shorten(leaf)), x)

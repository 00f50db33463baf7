"""Sets that join coordinates: the simplex, the L1 and L2 balls, the half-space and the affine set."""

from functools import partial
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from thalweg import trees
from thalweg.arguments import number, numbers
from thalweg.descent.terms.base import Indicator, flatten, is_traced, spread

__all__ = ["Affine", "HalfSpace", "L1Ball", "L2Ball", "Simplex"]


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
    >>> import numpy as np
    >>> Simplex().prox(np.array([1.0, 0.5, -1.0]), 1.0)
    Array([0.75, 0.25, 0.  ], dtype=float...)
    """

    fitting: ClassVar[tuple[str, ...]] = ("total",)
    axes: ClassVar[int] = 1

    total: Any = eqx.field(default=1.0, converter=partial(number, "total of Simplex", above=0))

    def project_leaf(self, leaf: Array, total: Array) -> Array:
        """max(x − τ, 0) along the last axis."""
        return project_simplex(leaf, total)


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
    >>> import numpy as np
    >>> L1Ball(1.0).prox(np.array([1.0, -0.5]), 1.0)
    Array([ 0.75, -0.25], dtype=float...)
    """

    def project(self, x: PyTree[Array]) -> PyTree[Array]:
        """Soft-threshold what is outside."""
        flat, unflatten = flatten(x)
        wide, radius, size = trees.single(flat.dtype), self.radius.astype(flat.dtype), jnp.abs(flat)
        inside = jnp.sum(size, dtype=wide) <= radius.astype(wide)
        return unflatten(jnp.where(inside, flat, jnp.sign(flat) * project_simplex(size, radius)))


class L2Ball(_Ball):
    """The set ‖x‖₂ ≤ radius, over all coordinates of all leaves; the projection is min(1, radius/‖x‖)·x.

    Parameters
    ----------
    radius
        A positive number.

    Examples
    --------
    >>> import numpy as np
    >>> L2Ball(1.0).prox(np.array([3.0, 4.0]), 1.0).round(3)
    Array([0.6, 0.8], dtype=float...)
    """

    def project(self, x: PyTree[Array]) -> PyTree[Array]:
        """Shorten what is outside."""
        length = trees.norm(x)
        radius = self.radius.astype(length.dtype)
        # Direction first: radius/‖x‖ alone would underflow for a huge x.
        longest = jnp.maximum(length, radius)
        shorten = lambda leaf: (leaf / longest.astype(leaf.dtype)) * radius.astype(leaf.dtype)
        return jax.tree.map(lambda leaf: jnp.where(length <= radius, leaf, shorten(leaf)), x)


PROJECTION_PASSES = 4
"""Each pass of a projection removes the rounding error that the last one made on a far point: four bring a point that
is 1e12 away, as far as a search goes, to float32's rounding. Twice as many would cost twice as much and change
nothing."""


class HalfSpace(Indicator):
    """The set ⟨normal, x⟩ ≤ bound.

    The projection is x − max(0, ⟨normal, x⟩ − bound)·normal / ‖normal‖².

    Parameters
    ----------
    normal
        An array or a tree like x (or a prefix whose arrays broadcast to x's leaves), not zero.
    bound
        A number.

    Examples
    --------
    >>> import numpy as np
    >>> HalfSpace(np.array([1.0, 1.0]), 1.0).prox(np.array([3.0, 0.0]), 1.0).round(3)
    Array([ 2., -1.], dtype=float...)
    """

    fitting: ClassVar[tuple[str, ...]] = ("normal",)

    normal: PyTree[Array] = eqx.field(converter=partial(numbers, "normal of HalfSpace"))
    bound: Any = eqx.field(converter=partial(number, "bound of HalfSpace"))
    _together: ClassVar[bool] = True

    def __check_init__(self) -> None:
        if not any(is_traced(leaf) or np.any(np.asarray(leaf)) for leaf in jax.tree.leaves(self.normal)):
            raise ValueError("normal of HalfSpace must not be zero, found only zeros")

    def project(self, x: PyTree[Array]) -> PyTree[Array]:
        """Move back along the normal what is outside."""
        parts = spread(self.normal, x)
        normal = jax.tree.map(lambda part, leaf: jnp.broadcast_to(part, leaf.shape), parts, x)
        length = trees.norm(normal).astype(trees.dtype(x))
        unit = jax.tree.map(lambda leaf: leaf / length.astype(leaf.dtype), normal)
        bound = self.bound.astype(length.dtype) / length
        outside = trees.inner(unit, x) > bound
        for _ in range(PROJECTION_PASSES):
            x = trees.add_scaled(x, jnp.where(outside, bound - trees.inner(unit, x), 0), unit)
        return x


class Affine(Indicator):
    """The set {x : matrix·x = rhs}, x's leaves laid end to end (in the order of ``jax.tree.leaves``).

    The projection is x − V(Vᵀx − c), with V an orthonormal basis of the rows and c the coordinates in it of
    the smallest solution: both from one singular value decomposition, in float64 on the host, at
    construction. A rank-deficient matrix is allowed; then rhs must be consistent.

    Parameters
    ----------
    matrix
        An (m, n) array, n the number of coordinates of x. It must be concrete.
    rhs
        m numbers. Where they are traced, their consistency is not checked.

    Examples
    --------
    >>> import numpy as np
    >>> Affine([[1.0, 1.0]], [1.0]).prox(np.array([3.0, 0.0]), 1.0).round(3)
    Array([ 2., -1.], dtype=float...)
    """

    basis: Array
    coordinates: Array
    _together: ClassVar[bool] = True

    def __init__(self, matrix: Any, rhs: Any) -> None:
        if is_traced(matrix):
            raise TypeError("matrix of Affine must be concrete, found a traced array; make the term outside of jit")
        given = np.asarray(matrix)
        numbers("matrix of Affine", given)
        matrix = given.astype(np.float64)
        if matrix.ndim != 2 or 0 in matrix.shape:
            raise ValueError(f"matrix of Affine must be a matrix of shape (m, n), found the shape {matrix.shape}")
        rhs = rhs if is_traced(rhs) else np.asarray(rhs, dtype=np.float64)
        if rhs.shape != matrix.shape[:1]:
            raise ValueError(f"rhs of Affine must have the shape {matrix.shape[:1]}, found {rhs.shape}")
        left, sizes, right = np.linalg.svd(matrix, full_matrices=False)
        # Rows that are dependent in float32 are so only to float32's rounding error.
        kind = given.dtype if jnp.issubdtype(given.dtype, jnp.floating) else np.float64
        rank = int(np.sum(sizes > max(matrix.shape) * float(jnp.finfo(kind).eps) * sizes[0]))
        left, sizes = left[:, :rank], sizes[:rank]
        self.basis = jnp.asarray(right[:rank], dtype=float)
        if is_traced(rhs):
            self.coordinates = jnp.asarray(left.T / sizes[:, None], dtype=rhs.dtype) @ rhs
            return
        numbers("rhs of Affine", rhs)
        residual = np.linalg.norm(rhs - left @ (left.T @ rhs))
        if residual > 1e-6 * np.linalg.norm(rhs):
            raise ValueError(
                f"rhs of Affine must be consistent with matrix (rank {rank} of {matrix.shape[0]} rows), found "
                f"one at the distance {residual:.3g} from its range: no x solves the equations"
            )
        self.coordinates = jnp.asarray((left.T @ rhs) / sizes, dtype=float)

    def project(self, x: PyTree[Array]) -> PyTree[Array]:
        """Remove what the equations do not allow."""
        flat, unflatten = flatten(x)
        basis, target = self.basis.astype(flat.dtype), self.coordinates.astype(flat.dtype)
        for _ in range(PROJECTION_PASSES):
            excess = jnp.matmul(basis, flat, precision="highest") - target
            flat = flat - jnp.matmul(excess, basis, precision="highest")
        return unflatten(flat)

    def check(self, x: PyTree[Array]) -> None:
        """Refuse a matrix whose number of columns is not the number of coordinates of ``x``."""
        size = sum(jnp.size(leaf) for leaf in jax.tree.leaves(x))
        if size != self.basis.shape[-1]:
            raise ValueError(
                f"matrix of Affine must have one column for each of the {size} coordinates of x, "
                f"found {self.basis.shape[-1]} columns"
            )

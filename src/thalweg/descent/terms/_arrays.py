"""What all terms share: parameters and steps that suit a leaf, and sums that do not overflow.

Parameters are stored as floating arrays and cast to each leaf's dtype where they are used: a float32 leaf
stays float32 even if the parameter was made in float64.
"""

import math
from functools import reduce
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree, Scalar

from thalweg import trees
from thalweg.arguments import numbers


def is_traced(value: Any) -> bool:
    """Whether the value is known only when compiled code runs, so that it cannot be checked now."""
    return isinstance(value, jax.core.Tracer)


def spread(value: PyTree, x: PyTree[Array]) -> PyTree[Array]:
    """Give every leaf of ``x`` its part of ``value`` (a pytree prefix of ``x``), in the leaf's dtype."""
    check_point(x)
    cast = lambda part, leaf: jnp.asarray(part).astype(leaf.dtype)
    return jax.tree.map(lambda part, below: jax.tree.map(lambda leaf: cast(part, leaf), below), value, x)


def fit(owner: str, name: str, value: PyTree, x: PyTree[Array]) -> None:
    """Raise ``ValueError`` unless ``value`` is a prefix of ``x`` whose arrays broadcast to its leaves."""
    try:
        parts = jax.tree.map(lambda part, below: jax.tree.map(lambda _: part, below), value, x)
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(
            f"{name} of {owner} must be one array or a tree like x, with the structure "
            f"{jax.tree.structure(x)}; found the structure "
            f"{jax.tree.structure(value)} (a list is a tree: pass numbers as one jnp.asarray([...]))"
        ) from error
    for (path, leaf), part in zip(jax.tree_util.tree_leaves_with_path(x), jax.tree.leaves(parts), strict=True):
        shape, target = jnp.shape(part), jnp.shape(leaf)
        try:
            fits = np.broadcast_shapes(shape, target) == target
        except ValueError:
            fits = False
        if not fits:
            raise ValueError(
                f"{name} of {owner} must broadcast to the shape {target} of x{trees.path_name(path)}, "
                f"found the shape {shape}"
            )


def check_point(x: PyTree[Array]) -> None:
    """Refuse points that are not made of arrays of real numbers."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(x):
        kind = getattr(leaf, "dtype", None)
        if kind is None or not jnp.issubdtype(kind, jnp.floating):
            found = type(leaf).__name__ if kind is None else f"the dtype {kind}"
            raise TypeError(f"x{trees.path_name(path)} must be an array of real floating numbers, found {found}")


def check_prox(x: PyTree[Array], step: Any) -> None:
    """Refuse points that are not real, and steps that are negative, NaN or no numbers; what is traced goes unseen."""
    check_point(x)
    for part in jax.tree.leaves(step):
        if not is_traced(part):
            numbers("step", part, least=0, finite=False)


def steps(step: Any, x: PyTree[Array]) -> PyTree[Array]:
    """Give every leaf of ``x`` its step, in its dtype and finite, so that 0 · step is 0 and never NaN."""
    check_prox(x, step)

    def finite(part: Any, dtype: Any) -> Array:
        part = jnp.asarray(part)
        part = part if jnp.issubdtype(part.dtype, jnp.floating) else part.astype(float)
        limit = min(float(jnp.finfo(part.dtype).max), float(jnp.finfo(dtype).max))
        return jnp.minimum(part, limit).astype(dtype)

    broadcast = lambda part, below: jax.tree.map(lambda leaf: finite(part, leaf.dtype), below)
    return jax.tree.map(broadcast, step, x)


def scalar_step(owner: str, step: Any, x: PyTree[Array]) -> Array:
    """Return the step of a term that is not separable, a scalar, in the widest dtype of ``x``."""
    check_prox(x, step)
    if not jax.tree_util.all_leaves([step]) or jnp.ndim(step):
        raise ValueError(f"{owner} is not separable: step must be a scalar, found {jax.tree.map(jnp.shape, step)}")
    return steps(step, jnp.zeros((), trees.dtype(x)))


def sum_leaves(terms: PyTree[Array]) -> Scalar:
    """The sum of all entries of all leaves."""
    return trees.total(jax.tree.map(jnp.sum, terms))


def largest(x: PyTree[Array]) -> Scalar:
    """max |x_i| over all leaves; 0 for an empty tree."""
    kind = trees.dtype(x)
    return reduce(jnp.maximum, [jnp.max(jnp.abs(leaf), initial=0).astype(kind) for leaf in jax.tree.leaves(x)])


def norm(x: PyTree[Array]) -> Scalar:
    """The Euclidean norm of all leaves, scaled so that squares neither overflow nor vanish."""
    top = largest(x)
    safe = jnp.where(top > 0, top, 1)
    # In float32 at least: a long sum of half-precision numbers would stand still.
    squares = jax.tree.map(
        lambda leaf: jnp.square((leaf / safe.astype(leaf.dtype)).astype(trees.single(leaf.dtype))), x
    )
    return top * root(sum_leaves(squares)).astype(top.dtype)


def root(square: Array) -> Array:
    """√square, with the derivative 0 at 0."""
    positive = square > 0
    return jnp.where(positive, jnp.sqrt(jnp.where(positive, square, 1)), 0)


def shrinkage(length: Array, threshold: Array) -> Array:
    """max(0, 1 − threshold/length), with 0 at length 0: the factor of a block soft-threshold."""
    longer = length > threshold
    return jnp.where(longer, 1 - threshold / jnp.where(longer, length, 1), 0)


def flatten(x: PyTree[Array]) -> Array:
    """All leaves as one vector in their widest dtype, in the order of ``jax.tree.leaves``."""
    kind = trees.dtype(x)
    return jnp.concatenate([jnp.ravel(leaf).astype(kind) for leaf in jax.tree.leaves(x)])


def unflatten(vector: Array, like: PyTree[Array]) -> PyTree[Array]:
    """The inverse of :func:`flatten`, in the dtypes of ``like``."""
    leaves, structure = jax.tree.flatten(like)
    ends = np.cumsum([math.prod(leaf.shape) for leaf in leaves])[:-1]
    parts = jnp.split(vector, ends)
    shaped = [part.reshape(leaf.shape).astype(leaf.dtype) for part, leaf in zip(parts, leaves, strict=True)]
    return jax.tree.unflatten(structure, shaped)


def multiplied(step: Any, factor: Array, x: PyTree[Array]) -> Any:
    """The step, a scalar or a tree, times the factor."""
    return jax.tree.map(lambda part: jnp.asarray(part, trees.dtype(x)) * factor.astype(trees.dtype(x)), step)

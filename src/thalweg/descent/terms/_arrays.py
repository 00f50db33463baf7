"""What all terms share: parameters and steps that suit a leaf.

Parameters are stored as floating arrays and cast to each leaf's dtype where they are used: a float32 leaf
stays float32 even if the parameter was made in float64.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, PyTree

from thalweg import trees


def is_traced(value: Any) -> bool:
    """Whether the value is known only when compiled code runs, so that it cannot be checked now."""
    return isinstance(value, jax.core.Tracer)


def spread(value: PyTree, x: PyTree[Array]) -> PyTree[Array]:
    """Give every leaf of ``x`` its part of ``value`` (a pytree prefix of ``x``), in the leaf's dtype."""
    check_point(x)
    return jax.tree.map(lambda part, leaf: jnp.asarray(part).astype(leaf.dtype), jax.tree.broadcast(value, x), x)


def check_fit(owner: str, name: str, value: PyTree, x: PyTree[Array]) -> None:
    """Raise ``ValueError`` unless ``value`` is a prefix of ``x`` whose arrays broadcast to its leaves."""
    try:
        parts = jax.tree.leaves(jax.tree.broadcast(value, x))
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(
            f"{name} of {owner} must be one array or a tree like x, with the structure "
            f"{jax.tree.structure(x)}; found the structure "
            f"{jax.tree.structure(value)} (a list is a tree: pass numbers as one jnp.asarray([...]))"
        ) from error
    for (path, leaf), part in zip(jax.tree_util.tree_leaves_with_path(x), parts, strict=True):
        shape, target = jnp.shape(part), jnp.shape(leaf)
        if len(shape) > len(target) or any(a not in (1, b) for a, b in zip(shape[::-1], target[::-1], strict=False)):
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


def steps(step: Any, x: PyTree[Array]) -> PyTree[Array]:
    """Give every leaf of ``x`` its step, in its dtype and finite, so that 0 · step is 0 and never NaN."""

    def finite(part: Any, leaf: Array) -> Array:
        part = jnp.asarray(part)
        part = part if jnp.issubdtype(part.dtype, jnp.floating) else part.astype(float)
        limit = min(float(jnp.finfo(kind).max) for kind in (part.dtype, leaf.dtype))
        return jnp.minimum(part, limit).astype(leaf.dtype)

    return jax.tree.map(finite, jax.tree.broadcast(step, x), x)


def shrinkage(length: Array, threshold: Array) -> Array:
    """max(0, 1 − threshold/length), with 0 at length 0: the factor of a block soft-threshold."""
    longer = length > threshold
    return jnp.where(longer, 1 - threshold / jnp.where(longer, length, 1), 0)


def flatten(x: PyTree[Array]) -> tuple[Array, Callable[[Array], PyTree[Array]]]:
    """All leaves as one vector in their widest dtype, and the function that puts it back."""
    with jax.numpy_dtype_promotion("standard"):
        return ravel_pytree(x)

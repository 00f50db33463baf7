"""Arithmetic on pytrees of arrays."""

import operator
from functools import cache, reduce
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree, Scalar

from thalweg.linalg.arrays import namespace


class Part(eqx.Module):
    """A module that is compared by identity, so that JAX takes its methods: by its arrays it would have no hash.

    Examples
    --------
    >>> from thalweg import L1
    >>> jax.jit(L1(0.5).value)(np.array([1.0, -2.0])).item()
    1.5
    """

    __hash__ = object.__hash__
    __eq__ = object.__eq__


def add(a: PyTree[Array], b: PyTree[Array]) -> PyTree[Array]:
    """Return a + b, leaf by leaf."""
    return jax.tree.map(operator.add, a, b)


def subtract(a: PyTree[Array], b: PyTree[Array]) -> PyTree[Array]:
    """Return a − b, leaf by leaf."""
    return jax.tree.map(operator.sub, a, b)


def scale(factor: Any, a: PyTree[Array]) -> PyTree[Array]:
    """Return factor · a; the factor is cast to each leaf's dtype, so that no leaf is promoted."""
    return jax.tree.map(lambda leaf: jnp.asarray(factor, leaf.dtype) * leaf, a)


def add_scaled(a: PyTree[Array], factor: Any, b: PyTree[Array]) -> PyTree[Array]:
    """Return a + factor · b, in the dtype of ``a``."""
    return jax.tree.map(lambda u, v: u + jnp.asarray(factor, u.dtype) * v.astype(u.dtype), a, b)


def inner(a: PyTree[Array], b: PyTree[Array]) -> Scalar:
    """Return ⟨a, b⟩, summed over all leaves."""
    a, b = joined(a, b)
    return total(jax.tree.map(lambda u, v: jnp.sum(u * v), a, b))


MAX_SEPARATE_LEAVES = 16
"""Trees of more leaves are summed as one vector, which compiles faster; for fewer concatenating costs
more than it saves. Twice as many would compile trees of 30 leaves more slowly."""


def joined(*parts: PyTree[Array]) -> tuple[PyTree[Array], ...]:
    """Return trees with many leaves of one dtype as vectors: one sum compiles faster than many."""
    leaves = [jax.tree.leaves(tree) for tree in parts]
    if len(leaves[0]) <= MAX_SEPARATE_LEAVES or len({leaf.dtype for tree in leaves for leaf in tree}) > 1:
        return parts
    return tuple(jnp.concatenate([jnp.ravel(leaf) for leaf in tree]) for tree in leaves)


def total(a: PyTree[Array]) -> Scalar:
    """Return the sum of leaves that are scalars, in the widest of their dtypes."""
    return reduce(operator.add, [leaf.astype(dtype(a)) for leaf in jax.tree.leaves(a)])


def same_structure(a: PyTree, b: PyTree) -> bool:
    """Return whether two trees differ in their leaves at most."""
    return bool(jax.tree.structure(a) == jax.tree.structure(b))  # type: ignore[operator]


def is_leaf(a: PyTree) -> bool:
    """Return whether a tree is a single leaf."""
    return bool(jax.tree_util.all_leaves([a]))


def norm(a: PyTree[Array]) -> Scalar:
    """Return the Euclidean norm of all leaves, in float32 at least, with the derivative 0 at 0.

    Squares neither underflow nor overflow.
    """
    wide = jax.tree.map(lambda leaf: leaf.astype(single(leaf.dtype)), joined(a))
    square, limits = inner(wide, wide), jnp.finfo(dtype(wide))
    in_range = (square > limits.tiny / limits.eps) & (square < jnp.inf)
    # A second pass over all numbers takes as long as a step of some methods.
    return jax.lax.cond(in_range, lambda leaves: root(square), _scaled_norm, wide)


def root(square: Array) -> Array:
    """Return √square, with the derivative 0 at 0."""
    positive = square != 0
    return jnp.where(positive, jnp.sqrt(jnp.where(positive, square, 1)), 0)


def largest(a: PyTree[Array]) -> Scalar:
    """Return the largest absolute value in all leaves, in the widest of their dtypes; 0 if they are empty."""
    kind = dtype(a)
    return reduce(jnp.maximum, [jnp.max(jnp.abs(leaf), initial=0).astype(kind) for leaf in jax.tree.leaves(a)])


def _scaled_norm(wide: PyTree[Array]) -> Scalar:
    """Return the norm of leaves far from 1, or of zeros, scaled by a power of two first, which costs no digits."""
    kind, top = dtype(wide), largest(wide)
    power = 4.0 ** (5 * jnp.finfo(kind).maxexp // 16)
    unit = jnp.where(top > 1, power, jnp.where(top > 0, 1 / power, 1)).astype(kind)
    wide = scale(1 / unit, wide)
    return root(inner(wide, wide)) * unit


def where(condition: Any, a: PyTree[Array], b: PyTree[Array]) -> PyTree[Array]:
    """Return ``a`` if the scalar condition holds, else ``b``."""
    return jax.tree.map(lambda u, v: namespace(condition).where(condition, u, v), a, b)


def all_finite(a: PyTree[Array]) -> Scalar:
    """Return whether no leaf holds NaN or infinity."""
    finite: dict[tuple, Array] = {}
    # Leaves of one shape share one test.
    for leaf in jax.tree.leaves(joined(a)):
        shape, here = jnp.shape(leaf), jnp.isfinite(leaf)
        finite[shape] = finite[shape] & here if shape in finite else here
    return reduce(jnp.logical_and, map(jnp.all, finite.values()))


def dtype(a: PyTree[Array]) -> np.dtype:
    """Return the widest floating dtype among the leaves, in which scalars about the tree are computed."""
    return _joint(*jax.tree.leaves(a))


@cache
def single(kind: Any) -> np.dtype:
    """Return a dtype, or float32 if that is wider: half precision is too coarse for sums and records."""
    return _joint(jnp.dtype(kind), jnp.dtype(jnp.float32))


def _joint(*kinds: Any) -> np.dtype:
    # Promotion is allowed here, so that it works where a user has switched it off.
    with jax.numpy_dtype_promotion("standard"):
        return jnp.result_type(*kinds)


def scalar(value: Any, dtype: Any = float) -> Scalar:
    """Return a number as an array, by default of JAX's default float; ``jnp.asarray`` would compile a program."""
    return jax.device_put(np.asarray(value, jnp.result_type(dtype)))


def strongly_typed(a: PyTree) -> PyTree:
    """Strip weak types, which would make a compiled loop compile again when its output is fed back to it."""

    def leaf(value: Any) -> Any:
        if isinstance(value, np.ndarray | np.generic):
            return value
        array = jnp.asarray(value)
        # Random keys have no weak type to strip.
        return jax.lax.convert_element_type(array, array.dtype) if getattr(array, "weak_type", False) else array

    return jax.tree.map(leaf, a)


def call(part: eqx.Module, method: str, *args: Any) -> Any:
    """Call a method of a module without binding it, for which Equinox takes 50 µs."""
    return getattr(type(part), method)(part, *args)


def near_the_origin(*points: Any) -> tuple[Any, ...]:
    """Subtract the mean of the first from NumPy arrays in float64, before a cast to float32 loses digits.

    Other arrays are returned as they are.

    Examples
    --------
    >>> with jax.enable_x64(False):
    ...     near_the_origin(np.array([[1e9], [1e9 + 2]]), None)
    (array([[-1.],
           [ 1.]]), None)
    """
    first = points[0]
    is_wide = lambda array: array is None or (isinstance(array, np.ndarray) and array.dtype == np.float64)
    if jnp.result_type(float) == jnp.float64 or not all(map(is_wide, points)) or first.ndim != 2 or not len(first):
        return points
    with np.errstate(all="ignore"):
        origin = first[0] + np.mean(first - first[0], axis=0)
    if not np.all(np.isfinite(origin)) or any(p is not None and p.shape[1:] != origin.shape for p in points):
        return points
    return tuple(None if p is None else p - origin for p in points)


def flattened(tree: Any) -> np.ndarray:
    """Return all numbers of a tree in a row, in float64 on the host."""
    return np.concatenate([np.ravel(np.asarray(leaf, np.float64)) for leaf in jax.tree.leaves(tree)])


def unflattened(values: np.ndarray, like: Any) -> Any:
    """Return a tree of the numbers in a row."""
    leaves, structure = jax.tree.flatten(like)
    ends = np.cumsum([np.size(leaf) for leaf in leaves])
    parts = [values[end - np.size(leaf) : end].reshape(np.shape(leaf)) for end, leaf in zip(ends, leaves, strict=True)]
    return jax.tree.unflatten(structure, parts)


def as_device_arrays(tree: Any) -> Any:
    """Return a tree with its numbers as arrays of JAX in float64."""
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float64), tree)


def as_host_arrays(tree: Any) -> Any:
    """Return a tree with its numbers as arrays of NumPy in float64."""
    return jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), tree)

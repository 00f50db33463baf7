"""What all terms share: checked parameters, steps that suit a leaf, and sums that do not overflow.

Parameters are stored as floating arrays and cast to each leaf's dtype where they are used: a float32 leaf
stays float32 even if the parameter was made in float64.
"""

import math
import operator
from functools import reduce
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree, Scalar

from thalweg import trees


def is_traced(value: Any) -> bool:
    """Whether the value is known only when compiled code runs, so that it cannot be checked now."""
    return isinstance(value, jax.core.Tracer)


def parameter(
    owner: str,
    name: str,
    value: PyTree,
    *,
    minimum: float | None = None,
    strict: bool = False,
    finite: bool = True,
) -> PyTree[Array]:
    """Return ``value`` as a pytree of floating arrays, after checking the leaves that are concrete.

    ``minimum`` is the least value allowed, or excluded if ``strict``. The errors name the term, the argument
    and what was found.
    """

    def convert(leaf: Any) -> Array:
        if isinstance(leaf, bool | str | bytes) or leaf is None:
            raise TypeError(f"{owner}: {name} must be a number or an array, found {leaf!r}")
        if not is_traced(leaf):
            try:
                host = np.asarray(leaf)
            except (TypeError, ValueError):
                host = np.asarray(None)
            if host.dtype.kind not in "iuf" and not jnp.issubdtype(host.dtype, jnp.floating):
                raise TypeError(f"{owner}: {name} must be a number or an array, found {leaf!r}")
            _check_range(owner, name, host.astype(np.float64), minimum, strict, finite)
        array = jnp.asarray(leaf)
        # Python numbers are weakly typed: give every parameter a definite floating dtype.
        definite = jnp.issubdtype(array.dtype, jnp.floating) and not array.weak_type
        return array if definite else array.astype(float)

    leaves = jax.tree.leaves(value, is_leaf=lambda leaf: leaf is None)
    if not leaves:
        raise TypeError(f"{owner}: {name} must be a number or an array, found {value!r}")
    return jax.tree.map(convert, value, is_leaf=lambda leaf: leaf is None)


def scalar(owner: str, name: str, value: Any, **limits: Any) -> Array:
    """Return ``value`` as a floating scalar; like :func:`parameter`, but arrays and trees are refused."""
    array = parameter(owner, name, value, **limits)
    if not isinstance(array, jax.Array) or array.ndim:
        found = f"an array of shape {array.shape}" if isinstance(array, jax.Array) else repr(value)
        raise TypeError(f"{owner}: {name} must be a single number, found {found}")
    return array


def _check_range(owner: str, name: str, host: np.ndarray, minimum: float | None, strict: bool, finite: bool) -> None:
    if np.isnan(host).any():
        raise ValueError(f"{owner}: {name} must not be NaN, found {_show(host)}")
    if finite and np.isinf(host).any():
        raise ValueError(f"{owner}: {name} must be finite, found {_show(host)}")
    if minimum is not None and (host <= minimum if strict else host < minimum).any():
        sign = ">" if strict else "≥"
        raise ValueError(f"{owner}: {name} must be {sign} {minimum:g}, found {_show(host)}")


def _show(host: np.ndarray) -> str:
    return f"{host.item()!r}" if host.ndim == 0 else np.array2string(host, threshold=8)


def spread(value: PyTree, x: PyTree[Array]) -> PyTree[Array]:
    """Give every leaf of ``x`` its part of ``value`` (a pytree prefix of ``x``), in the leaf's dtype."""
    cast = lambda part, leaf: jnp.asarray(part).astype(leaf.dtype)
    return jax.tree.map(lambda part, below: jax.tree.map(lambda leaf: cast(part, leaf), below), value, x)


def fit(owner: str, name: str, value: PyTree, x: PyTree[Array]) -> None:
    """Raise ``ValueError`` unless ``value`` is a prefix of ``x`` whose arrays broadcast to its leaves."""
    try:
        parts = jax.tree.map(lambda part, below: jax.tree.map(lambda _: part, below), value, x)
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(
            f"{owner}: {name} must be one array or a tree like x, with the structure "
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
                f"{owner}: {name} must broadcast to the shape {target} of x{trees.path_name(path)}, "
                f"found the shape {shape}"
            )


def steps(step: Any, x: PyTree[Array]) -> PyTree[Array]:
    """Give every leaf of ``x`` its step, in its dtype and finite, so that 0 · step is 0 and never NaN."""

    def finite(part: Any, dtype: Any) -> Array:
        part = jnp.asarray(part)
        part = part if jnp.issubdtype(part.dtype, jnp.floating) else part.astype(float)
        limit = min(float(jnp.finfo(part.dtype).max), float(jnp.finfo(dtype).max))
        return jnp.minimum(part, limit).astype(dtype)

    broadcast = lambda part, below: jax.tree.map(lambda leaf: finite(part, leaf.dtype), below)
    return jax.tree.map(broadcast, step, x)


def scalar_step(owner: str, step: Any, x: PyTree[Array]) -> Array:
    """Return the step of a term that is not separable, a scalar, in the widest dtype of ``x``."""
    if not jax.tree_util.all_leaves([step]) or jnp.ndim(step):
        raise ValueError(f"{owner} is not separable: step must be a scalar, found {jax.tree.map(jnp.shape, step)}")
    return steps(step, jnp.zeros((), trees.dtype(x)))


def sum_leaves(terms: PyTree[Array]) -> Scalar:
    """The sum of all entries of all leaves."""
    return reduce(operator.add, [jnp.sum(leaf) for leaf in jax.tree.leaves(terms)])


def largest(x: PyTree[Array]) -> Scalar:
    """max |x_i| over all leaves; 0 for an empty tree."""
    return reduce(jnp.maximum, [jnp.max(jnp.abs(leaf), initial=0) for leaf in jax.tree.leaves(x)])


def norm(x: PyTree[Array]) -> Scalar:
    """The Euclidean norm of all leaves, scaled so that squares neither overflow nor vanish."""
    top = largest(x)
    safe = jnp.where(top > 0, top, 1)
    squares = jax.tree.map(lambda leaf: jnp.square(leaf / safe.astype(leaf.dtype)), x)
    return top * jnp.sqrt(sum_leaves(squares))


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

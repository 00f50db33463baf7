"""Checks of arguments, in one wording: the name, what it must be, what was found.

Every check returns the argument in the form in which it is used, so that nothing is checked twice, and raises
``TypeError`` for a thing of the wrong kind, ``ValueError`` for one that is out of range. A parameter of a part is named
with its owner: ``"weight of L1"``.
"""

from collections.abc import Iterable
from functools import reduce
from typing import Any, TypedDict, TypeVar, Unpack

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key, PyTree

from thalweg import trees

T = TypeVar("T")


class Limits(TypedDict, total=False):
    """Of numbers; what is left out is no limit."""

    above: float
    least: float
    below: float
    most: float


def number(name: str, value: Any, *, finite: bool = True, dtype: Any = float, **limits: Unpack[Limits]) -> Array:
    """Return ``value`` as a scalar array, of JAX's default float unless told, or say what it must be.

    An array of floating numbers keeps its precision. Under ``jit`` or ``vmap`` the value is not known, and is taken as
    it is.

    Examples
    --------
    >>> number("step", 0.5, above=0)
    Array(0.5, dtype=float...)
    >>> number("momentum", 1.5, least=0, below=1)
    Traceback (most recent call last):
        ...
    ValueError: momentum must be a finite number of at least 0 below 1, found 1.5
    >>> with jax.enable_x64(False):
    ...     number("step", 1e-300, above=0)
    Traceback (most recent call last):
        ...
    ValueError: step must be a finite number above 0 in float32, found 1e-300
    """
    wanted = _wanted(finite, **limits)
    if isinstance(value, jax.core.Tracer):
        if value.ndim:
            raise ValueError(f"{name} must be {wanted}, found an array of shape {value.shape}")
        return value.astype(jnp.result_type(dtype))
    found = _real(name, value, wanted)
    if found.ndim:
        raise ValueError(f"{name} must be {wanted}, found {value!r}")
    _refuse_outside(name, value, found, _rounded(found), finite, **limits)
    dtype = jnp.result_type(dtype)
    floating = jnp.issubdtype(dtype, jnp.floating)
    if floating and isinstance(value, jax.Array | np.ndarray) and jnp.issubdtype(value.dtype, jnp.floating):
        strong = isinstance(value, jax.Array) and not value.weak_type
        return jnp.asarray(value) if strong else jax.device_put(np.asarray(value))
    # A count too large for its dtype stands for "never".
    return trees.scalar(found if floating else min(found, np.iinfo(dtype).max), dtype)


def real(name: str, value: Any, **limits: Unpack[Limits]) -> float:
    """Return ``value`` as a number of the host, with all its digits whatever JAX's precision, or say what it must be.

    Examples
    --------
    >>> real("time", 0.1), real("time", np.float32(0.5))
    (0.1, 0.5)
    >>> real("level", 2.0, above=0, below=1)
    Traceback (most recent call last):
        ...
    ValueError: level must be a finite number above 0 below 1, found 2.0
    """
    wanted = _wanted(True, **limits)
    found = _real(name, value, wanted)
    if found.ndim or not _inside(found, True, **limits):
        raise ValueError(f"{name} must be {wanted}, found {value!r}")
    return float(found)


def numbers(
    name: str, value: PyTree, *, finite: bool = True, ndim: int | None = None, **limits: Unpack[Limits]
) -> PyTree[Float[Array, "..."]]:
    """Return a number, an array or a pytree of them as floating arrays, or say what they must be.

    Arrays keep their precision; Python's numbers get JAX's default. ``ndim`` is the most axes allowed.

    Examples
    --------
    >>> numbers("weight of L1", [1.0, 2.0], least=0)
    [Array(1., dtype=float...), Array(2., dtype=float...)]
    >>> numbers("lengthscale", np.array([1.0, -2.0]), above=0)
    Traceback (most recent call last):
        ...
    ValueError: lengthscale must hold finite numbers above 0, found -2 at index 1
    """
    wanted = _wanted(finite, **limits)

    def leaf(part: Any) -> Array:
        array: Array = part
        if not isinstance(part, jax.core.Tracer):
            host = _real(name, part, wanted)
            typed = isinstance(part, np.ndarray | np.generic | jax.Array) and not getattr(part, "weak_type", False)
            kept = host if typed else _rounded(host)
            _refuse_outside(name, part, host, kept, finite, **limits)
            # Not by jnp.asarray, which compiles a program to copy a number.
            array = part if isinstance(part, jax.Array) else jax.device_put(kept)
        if ndim is not None and (array.ndim > ndim or array.size == 0):
            raise ValueError(f"{name} must have at most {ndim} axes and an entry, found shape {array.shape}")
        # Python's numbers are weakly typed: every parameter gets a definite floating dtype.
        definite = jnp.issubdtype(array.dtype, jnp.floating) and not getattr(array, "weak_type", False)
        return array if definite else array.astype(jnp.result_type(float))

    leaves, structure = jax.tree.flatten(value, is_leaf=lambda node: node is None)
    if not leaves:
        raise TypeError(f"{name} must be {wanted} or an array of them, found {value!r}")
    return jax.tree.unflatten(structure, map(leaf, leaves))


def whole(name: str, value: Any, *, least: int = 1, most: int | None = None) -> int:
    """Return ``value`` as an int, or say what it must be.

    Examples
    --------
    >>> whole("steps", 0)
    Traceback (most recent call last):
        ...
    ValueError: steps must be a whole number of at least 1, found 0
    """
    wanted = f"a whole number of at least {least}" if most is None else f"a whole number from {least} to {most}"
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | np.integer):
        raise TypeError(f"{name} must be {wanted}, found {value!r}")
    if value < least or (most is not None and value > most):
        raise ValueError(f"{name} must be {wanted}, found {value}")
    return int(value)


def flag(name: str, value: Any) -> bool:
    """Return ``value`` as a bool, or say that it is none.

    Examples
    --------
    >>> flag("learn", "no")
    Traceback (most recent call last):
        ...
    TypeError: learn must be True or False, found 'no'
    """
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"{name} must be True or False, found {value!r}")
    return bool(value)


def one_of(name: str, value: Any, known: Iterable[str]) -> str:
    """Return ``value`` if it is one of the words known, or list them.

    Examples
    --------
    >>> one_of("law", "best", ("optimal", "theorem3"))
    Traceback (most recent call last):
        ...
    ValueError: law must be one of 'optimal', 'theorem3', found 'best'
    """
    known = tuple(known)
    if not isinstance(value, str) or value not in known:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, known))}, found {value!r}")
    return value


def instance(name: str, value: Any, kind: type[T], example: str = "") -> T:
    """Return ``value`` if it is of a class, or say what would be; ``example`` shows one.

    Examples
    --------
    >>> instance("rate", "fast", float, "0.5")
    Traceback (most recent call last):
        ...
    TypeError: rate must be a float such as 0.5, found 'fast'
    """
    if isinstance(value, kind):
        return value
    article = "an" if kind.__name__[0] in "AEIOU" else "a"
    such = f" such as {example}" if example else ""
    is_class = isinstance(value, type)
    found = f"the class {value.__name__}; call it first: {value.__name__}(...)" if is_class else repr(value)
    raise TypeError(f"{name} must be {article} {kind.__name__}{such}, found {found}")


def function(name: str, value: Any) -> Any:
    """Return ``value`` if it can be called, or say that it cannot.

    Examples
    --------
    >>> function("callback", 3)
    Traceback (most recent call last):
        ...
    TypeError: callback must be callable, found 3
    """
    if not callable(value):
        raise TypeError(f"{name} must be callable, found {value!r}")
    return value


def random_key(name: str, value: Any) -> Key[Array, ""]:
    """Return ``value`` if it is one random key of JAX, traced or not, or say how to make one.

    Examples
    --------
    >>> random_key("key", 0)
    Traceback (most recent call last):
        ...
    TypeError: key must be one JAX random key such as jax.random.key(0), found 0
    """
    if isinstance(value, jax.Array):
        typed = jnp.issubdtype(value.dtype, jax.dtypes.prng_key) and value.ndim == 0
        if typed or (value.dtype == jnp.uint32 and value.ndim == 1 and value.shape == jax.random.PRNGKey(0).shape):
            return value
    raise TypeError(f"{name} must be one JAX random key such as jax.random.key(0), found {value!r}")


_COMPARISONS = {"above": np.greater, "least": np.greater_equal, "below": np.less, "most": np.less_equal}
_WORDS = {"above": "above", "least": "of at least", "below": "below", "most": "of at most"}


def _wanted(finite: bool, **limits: Any) -> str:
    bounds = (f" {words} {limits[name]:g}" for name, words in _WORDS.items() if np.isfinite(limits.get(name, np.inf)))
    return ("a finite number" if finite else "a number") + "".join(bounds)


def _real(name: str, value: Any, wanted: str) -> np.ndarray:
    """The value as float64, refused if it is not made of real numbers."""
    try:
        if value is None or isinstance(value, bool | str | bytes):
            raise TypeError
        host = np.asarray(value)
        if host.dtype.kind not in "iuf" and not jnp.issubdtype(host.dtype, jnp.floating):
            raise TypeError
        return host.astype(np.float64)
    except (TypeError, ValueError):
        raise TypeError(f"{name} must be {wanted}, found {value!r}") from None


def _rounded(host: np.ndarray) -> np.ndarray:
    """In JAX's default precision."""
    with np.errstate(over="ignore"):
        return host.astype(jnp.result_type(float))


def _refuse_outside(name: str, value: Any, found: np.ndarray, kept: np.ndarray, finite: bool, **limits: Any) -> None:
    """Refuse numbers out of range, as they are kept: one too small for float32 has become 0."""
    outside, wanted = ~_inside(kept, finite, **limits), _wanted(finite, **limits)
    if not outside.any():
        return
    if not found.ndim:
        lost = f" in {kept.dtype}" if _inside(found, finite, **limits) else ""
        raise ValueError(f"{name} must be {wanted}{lost}, found {value!r}")
    index = tuple(int(i) for i in np.argwhere(outside)[0])
    place = index[0] if len(index) == 1 else index
    wanted = wanted.removeprefix("a ").replace("number", "numbers")
    raise ValueError(f"{name} must hold {wanted}, found {found[index]:g} at index {place}")


def _inside(kept: np.ndarray, finite: bool, **limits: Any) -> np.ndarray:
    checks = [_COMPARISONS[name](kept, limit) for name, limit in limits.items()]
    return reduce(np.logical_and, checks, np.isfinite(kept) if finite else ~np.isnan(kept))

"""What the parts of a run hold and what their functions capture.

As a fingerprint, so that a checkpoint is not taken up by a different run; and as a key, so that nothing that was
compiled for a function serves it after what it captures has changed.
"""

import dataclasses
import functools
import hashlib
import inspect
import types
import weakref
from collections.abc import Iterable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from thalweg.descent.iteration import Descent

_DEPTH = 3
"""How far functions are followed into the functions they use."""


def describe(descent: Descent, key: Any, start: PyTree) -> dict[str, str]:
    """Name the parts of a run, each with its fingerprint."""
    parts = {name: describe_part(getattr(descent, name)) for name in Descent.__dataclass_fields__}
    return parts | {"key": fingerprint(key), "x0": fingerprint(start)}


def describe_part(part: eqx.Module) -> str:
    """Name one part, with its fingerprint."""
    return f"{type(part).__name__} {fingerprint(part)}"


def fingerprint(tree: PyTree) -> str:
    """Digest what a tree holds: arrays by their bytes, functions by their text and by what they capture.

    A function counts by its qualified name, its source text where that can be found, its defaults, the variables it
    encloses, and those globals it names that are numbers, arrays or functions, followed a few levels. Nothing of it
    depends on the version of Python. Objects of other kinds than these, strings, containers and modules of Equinox
    count by their type alone.

    Examples
    --------
    >>> scale = 2.0
    >>> before = fingerprint(lambda x: scale * x)
    >>> scale = 3.0
    >>> fingerprint(lambda x: scale * x) == before
    False
    """
    digest = hashlib.sha256()
    _absorb(digest, tree, _DEPTH, {})
    return digest.hexdigest()[:12]


def _absorb(digest: Any, value: Any, depth: int, seen: dict[int, Any]) -> None:
    digest.update(type(value).__qualname__.encode())
    if isinstance(value, bool | int | float | complex | str | bytes | np.generic):
        digest.update(repr(value).encode())
    elif isinstance(value, jax.Array | np.ndarray):
        if jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
            value = jax.random.key_data(value)
        array = np.ascontiguousarray(value)
        digest.update(f"{array.dtype}{array.shape}".encode() + array.tobytes())
    elif id(value) not in seen:
        # Kept, so that nothing else gets its number meanwhile.
        seen[id(value)] = value
        follow = isinstance(value, types.FunctionType)
        for part in _parts(value) if depth or not follow else []:
            _absorb(digest, part, depth - follow, seen)


def _parts(value: Any) -> Iterable[Any]:
    """What a container, a function or a module is made of."""
    if isinstance(value, types.FunctionType):
        around = [*_enclosed(value), *_named(value)]
        return [value.__qualname__, _source(value), value.__defaults__, value.__kwdefaults__, *around]
    if isinstance(value, types.MethodType):
        return [value.__func__, value.__self__]
    if isinstance(value, functools.partial):
        return [value.func, value.args, value.keywords]
    if isinstance(value, dict):
        return [part for entry in value.items() for part in entry]
    if isinstance(value, set | frozenset):
        return sorted(value, key=repr)
    if isinstance(value, tuple | list):
        return value
    if isinstance(value, eqx.Module):
        return [getattr(value, entry.name) for entry in dataclasses.fields(value)]
    return [value.__wrapped__] if hasattr(value, "__wrapped__") else []


class Same:
    """An object by its identity; it is kept, so that nothing else gets its number meanwhile."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __hash__(self) -> int:
        return id(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and self.value is other.value


_LIBRARIES = {"jax", "jaxlib", "numpy", "scipy", "optax", "equinox", "lineax", "thalweg", "functools", "builtins"}
"""Whose functions name no globals that a user changes."""


def captured(tree: PyTree) -> tuple:
    """What the functions in a tree capture, in a form that can be hashed and is equal as long as nothing has changed.

    The variables they enclose, their defaults, the globals they name, the attributes of callables and of the objects
    of methods, and the code of the functions among them. Arrays of JAX cannot change, and count by identity; those of
    NumPy by their bytes. The tree's own arrays do not count: they are arguments of what is compiled.

    Examples
    --------
    >>> import numpy as np
    >>> b = np.zeros(3)
    >>> f = lambda x, b=b: x - b
    >>> before = captured(f)
    >>> b[0] = 1.0
    >>> captured(f) == before
    False
    """
    found: list[Any] = []
    _capture(tree, False, found, set())
    return tuple(found)


def _capture(value: Any, inside: bool, found: list[Any], seen: set[int]) -> None:
    """``inside`` a function everything counts, outside its arrays and numbers do not."""
    if isinstance(value, bool | int | float | complex | str | bytes | np.generic | type(None)):
        if inside:
            found.append((type(value), repr(value)))
    elif isinstance(value, np.ndarray):
        if inside:
            digest = hashlib.sha1(np.ascontiguousarray(value).view(np.uint8).data, usedforsecurity=False).digest()
            found.append((value.dtype.str, value.shape, digest))
            _forget_if_changed(value, digest)
    elif isinstance(value, jax.Array | type | types.ModuleType | types.BuiltinFunctionType):
        if inside:
            found.append(Same(value))
    elif id(value) not in seen:
        seen.add(id(value))
        function = isinstance(value, types.FunctionType)
        # A module is known by its class and its fields, callable or not: its arrays are arguments.
        opaque = callable(value) and not isinstance(value, eqx.Module)
        found.append(value.__code__ if function else Same(value) if opaque else type(value))
        for part in _captures(value):
            _capture(part, inside or opaque, found, seen)


_held: dict[int, tuple[weakref.ref, bytes]] = {}
"""What arrays of NumPy held when they were last seen, as long as they live."""


def _forget_if_changed(array: np.ndarray, digest: bytes) -> None:
    """JAX keeps by identity what an array held when first compiled in: where that has changed, it forgets all."""
    number = id(array)
    before = _held.get(number)
    if before is None:
        _held[number] = weakref.ref(array, lambda _: _held.pop(number, None)), digest
    elif before[1] != digest:
        _held[number] = before[0], digest
        jax.clear_caches()


def _captures(value: Any) -> Iterable[Any]:
    """Where a change could hide."""
    if isinstance(value, types.FunctionType):
        named = [] if (value.__module__ or "").split(".")[0] in _LIBRARIES else _all_named(value)
        return [value.__defaults__, value.__kwdefaults__, *_enclosed(value), *named]
    if isinstance(value, eqx.Module):
        return [getattr(value, entry.name, None) for entry in dataclasses.fields(value)]
    parts = list(_parts(value))
    if not parts and (type(value).__module__ or "").split(".")[0] not in _LIBRARIES:
        parts = [vars(type(value)).get("__call__"), *getattr(value, "__dict__", {}).values()]
    return parts


def _enclosed(function: types.FunctionType) -> list[Any]:
    """The variables that a function encloses and that have a value."""
    cells = [cell for cell in function.__closure__ or () if cell != types.CellType()]
    return [cell.cell_contents for cell in cells]


def _all_named(function: types.FunctionType) -> list[Any]:
    return [function.__globals__[name] for name in sorted(_names(function)) if name in function.__globals__]


def _source(function: types.FunctionType) -> tuple:
    """The text of a function, and where in it the function ends: a line may hold several lambdas."""
    try:
        lines, _ = inspect.getsourcelines(function)
    except (OSError, TypeError):
        return ()
    code = function.__code__
    ends = [(line or 0, column or 0) for _, line, _, column in code.co_positions()]
    line, column = max(ends, default=(code.co_firstlineno, 0))
    return "".join(lines), line - code.co_firstlineno, column


def _named(function: types.FunctionType) -> list[Any]:
    """The globals that a function names, if they can be followed."""
    found = [(name, function.__globals__.get(name)) for name in sorted(_names(function))]
    counts = (bool, int, float, complex, np.generic, np.ndarray, jax.Array, types.FunctionType, functools.partial)
    return [entry for entry in found if isinstance(entry[1], counts) or hasattr(entry[1], "__wrapped__")]


def _names(function: types.FunctionType) -> set[str]:
    """The names that a function uses, itself or within functions that it makes."""
    codes, names = [function.__code__], set[str]()
    while codes:
        code = codes.pop()
        names.update(code.co_names)
        codes += [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
    return names

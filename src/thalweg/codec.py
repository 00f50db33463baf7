"""Trees described in JSON, their arrays kept apart: how :mod:`thalweg.files` writes a tree down.

A node of the description is a scalar, an array by its name, a random key, a container, or an object of a class that
was declared :func:`storable`. What is read is not trusted: anything that :func:`encode` would not have written is a
:class:`~thalweg.errors.FileFormatError`, and an object is made by its constructor, from what its constructor takes.
"""

import dataclasses
import math
import re
from collections.abc import Iterator
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from thalweg.errors import FileFormatError

# What every release of safetensors stores as NumPy arrays; any other dtype is stored as its bytes.
_NATIVE = {"bool"} | {f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)}
_NATIVE |= {"float16", "float32", "float64"}
_DTYPE_NAME = re.compile(r"(bool|u?int|b?float|complex|datetime|timedelta)\w*(\[\w+\])?|<U\d+|\|S\d+")
_MAX_DEPTH = 100  # far from Python's limit of recursion

Arrays = dict[str, np.ndarray]
Path = tuple[str, ...]  # from the root, as in ("['w']", "[0]", ".field")
C = TypeVar("C", bound=type)

_STORABLE: dict[str, type] = {}


def storable(cls: C) -> C:
    """Declare, as a decorator, that files may hold objects of a class: a dataclass, a module or a named tuple.

    Its constructor takes its fields by their names, and so refuses what it always refuses; a class whose constructor
    takes something else defines ``stored(self)``, which returns those arguments.

    Examples
    --------
    >>> from typing import NamedTuple
    >>> @storable
    ... class Pair(NamedTuple):
    ...     left: int
    ...     right: int
    >>> decode(encode(Pair(1, 2), (), {}), (), {})
    Pair(left=1, right=2)
    """
    known = _STORABLE.get(cls.__name__, cls)
    if (known.__module__, known.__qualname__) != (cls.__module__, cls.__qualname__):
        raise ValueError(f"two storable classes are called {cls.__name__}")
    _STORABLE[cls.__name__] = cls
    return cls


def _stored(node: Any) -> dict[str, Any]:
    """The arguments that an object of a storable class is made from."""
    if hasattr(node, "stored"):
        return node.stored()
    names = [entry.name for entry in dataclasses.fields(node)] if dataclasses.is_dataclass(node) else node._fields
    return {name: getattr(node, name) for name in names}


def is_key(leaf: Any) -> bool:
    """Whether an array holds random keys of JAX."""
    return jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def spec(leaf: Any) -> str:
    """Describe a leaf as ``float64[5]``, a scalar by its type."""
    if hasattr(leaf, "dtype") and hasattr(leaf, "shape"):
        return f"{leaf.dtype.name}{list(leaf.shape)}".replace(" ", "")
    return type(leaf).__name__


def _label(path: Path) -> str:
    """Name the leaf at a path as a user would; the root is called ``tree``."""
    return "".join(path).lstrip(".") or "tree"


def encode(node: Any, path: Path, arrays: Arrays) -> Any:
    """Describe a tree in JSON; its arrays go into ``arrays`` under the names of their leaves."""
    if node is None or type(node) in (bool, int, float, str):
        return node if type(node) is not float or math.isfinite(node) else {"float": str(node)}
    if isinstance(node, jax.Array | np.ndarray | np.generic):
        return _encode_array(node, path, arrays)
    if len(path) > _MAX_DEPTH:
        raise ValueError(f"tree: nested more than {_MAX_DEPTH} levels deep, or contains itself")
    if isinstance(node, type) and _STORABLE.get(node.__name__) is node:
        return {"class": node.__name__}
    if _STORABLE.get(type(node).__name__) is type(node):
        return _encode_object(node, path, arrays)
    children = [[name, encode(child, place, arrays)] for name, place, child in _opened(node, path)]
    if type(node) in (list, tuple):
        return {type(node).__name__: [child for _, child in children]}
    return {"dict": children}


def _encode_object(node: Any, path: Path, arrays: Arrays) -> dict:
    parts = _stored(node)
    return {
        "object": type(node).__name__,
        "from": [[name, encode(part, (*path, f".{name}"), arrays)] for name, part in parts.items()],
        # Those that were arrays of JAX and not of NumPy.
        "jax": [name for name, part in parts.items() if isinstance(part, jax.Array) and not is_key(part)],
    }


def _encode_array(node: Any, path: Path, arrays: Arrays) -> dict:
    if isinstance(node, jax.Array) and is_key(node):
        words = _encode_array(jax.random.key_data(node), path, arrays)
        return {"key": str(jax.random.key_impl(node)), "data": words}
    array, name = np.asarray(node), _label(path)
    if array.dtype == object and array.ndim == 1 and {*map(type, array)} <= {str}:
        return {"words": array.tolist()}
    if array.dtype.hasobject or array.dtype.names:
        raise TypeError(f"{name}: cannot store arrays of dtype {array.dtype}")
    array = np.array(array, dtype=array.dtype.newbyteorder("<"), order="C")
    dtype = array.dtype.str if array.dtype.kind in "US" else array.dtype.name
    arrays[name] = array if dtype in _NATIVE else np.frombuffer(array.tobytes(), np.uint8)
    return {"array": name, "dtype": dtype, "shape": list(array.shape)}


def _opened(node: Any, path: Path) -> Iterator[tuple[str | int, Path, Any]]:
    """Open one level of a pytree: name, path and node of each child."""
    root = iter([True])  # the first node JAX asks about; all it asks about afterwards are its children
    try:
        pairs, _ = jax.tree_util.tree_flatten_with_path(node, is_leaf=lambda _: not next(root, False))
    except ValueError:
        if not isinstance(node, dict):
            raise
        # JAX sorts the keys of a dict
        raise TypeError(f"{_label(path)}: keys must be all str or all int, found {list(node)}") from None
    if any(not entries for entries, _ in pairs):
        raise TypeError(f"{_label(path)}: cannot store {type(node).__name__}")
    for (entry,), child in pairs:
        name = key_name(entry)
        if type(name) not in (str, int):
            raise TypeError(f"{_label(path)}: keys must be all str or all int, found {name!r}")
        yield name, (*path, str(entry)), child


def key_name(entry: Any) -> Any:
    """The name in an entry of JAX's key paths: of a field, a key of a dict, or a place in a list."""
    return next(getattr(entry, field) for field in ("name", "key", "idx") if hasattr(entry, field))


def decode(node: Any, path: Path, arrays: Arrays) -> Any:
    """Build what the description says; each array is taken out of ``arrays``.

    Dicts stand in for pytree nodes whose classes are not storable: a dict of their fields.
    """
    if node is None or type(node) in (bool, int, float, str):
        return node
    if len(path) > _MAX_DEPTH:
        raise FileFormatError("nested too deeply to be one of ours")
    match node:
        case {"float": "nan" | "inf" | "-inf" as text, **rest} if not rest:
            return float(text)
        case {"array": str(name), "dtype": str(dtype), "shape": list(shape)}:
            return _decode_array(name, dtype, shape, path, arrays)
        case {"key": str(implementation), "data": {"array": _} as data}:
            words = decode(data, path, arrays)
            try:
                return jax.random.wrap_key_data(words, impl=implementation)
            except (TypeError, ValueError) as error:
                raise FileFormatError(f"{_label(path)}: not a random key ({error})") from None
        case {"words": list(words), **rest} if not rest and {*map(type, words)} <= {str}:
            return np.array(words, dtype=object)
        case {"list": list(items), **rest} | {"tuple": list(items), **rest} if not rest:
            children = [decode(child, (*path, f"[{i}]"), arrays) for i, child in enumerate(items)]
            return children if "list" in node else tuple(children)
        case {"dict": list(items), **rest} if not rest:
            return _decode_named(items, path, arrays)
        case {"class": str(name), **rest} if not rest:
            return _known(name, path)
        case {"object": str(name), "from": list(items), "jax": list(on_device), **rest} if not rest:
            return _decode_object(_known(name, path), _decode_named(items, path, arrays), on_device, path)
    raise FileFormatError(f"{_label(path)}: neither a leaf nor a container")


def _decode_named(items: list, path: Path, arrays: Arrays) -> dict:
    children: dict[Any, Any] = {}
    for item in items:
        if not (isinstance(item, list) and len(item) == 2 and type(item[0]) in (str, int)):
            raise FileFormatError(f"{_label(path)}: has a child without a name")
        if item[0] in children:
            raise FileFormatError(f"{_label(path)}: has two children of one name")
        children[item[0]] = decode(item[1], (*path, f"[{item[0]!r}]"), arrays)
    return children


def _known(name: str, path: Path) -> type:
    if name not in _STORABLE:
        raise FileFormatError(f"{_label(path)}: an object of the unknown class {name[:80]!r}")
    return _STORABLE[name]


def _decode_object(cls: type, parts: dict, on_device: list, path: Path) -> Any:
    try:
        made = cls(**{name: jnp.asarray(part) if name in on_device else part for name, part in parts.items()})
        if hasattr(made, "check_stored"):
            made.check_stored()
        return made
    except Exception as error:  # whatever the constructor says of what it was given
        raise FileFormatError(f"{_label(path)}: not a {cls.__name__} ({error})") from error


def _decode_array(name: str, dtype: str, shape: list, path: Path, arrays: Arrays) -> np.ndarray:
    if name not in arrays:
        raise FileFormatError(f"{_label(path)}: its array {name[:80]!r} is not in the file")
    stored = arrays.pop(name)
    try:
        if not _DTYPE_NAME.fullmatch(dtype):
            raise TypeError(f"dtype {dtype[:40]!r}")
        kept = np.dtype(dtype).newbyteorder("<")
        if dtype in _NATIVE and (stored.dtype, list(stored.shape)) != (kept, shape):
            raise TypeError(f"{spec(stored)} stored as {dtype}{shape}")
        array = np.ndarray(shape, kept, buffer=bytearray(stored.tobytes()))  # writable, as bytes are not
        if array.nbytes != stored.nbytes:
            raise TypeError(f"{stored.nbytes} bytes stored for {spec(array)}")
        return array
    except (TypeError, ValueError, OverflowError) as error:
        raise FileFormatError(f"{_label(path)}: not a valid array ({error})") from None

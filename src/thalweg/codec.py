"""Pytrees described in JSON, their arrays kept apart: how :mod:`thalweg.files` writes a tree down.

A node of the description is a scalar, an array by its name, a random key, or a container: ``dict``, ``list``,
``tuple``, or ``record`` (any other pytree node, by the names of its fields). What is read is not trusted:
anything that :func:`encode` would not have written is a :class:`~thalweg.errors.FileFormatError`.
"""

import math
import re
from typing import Any

import jax
import numpy as np

from thalweg.errors import FileFormatError

# What every release of safetensors stores as NumPy arrays; any other dtype is stored as its bytes.
_NATIVE = {"bool"} | {f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)}
_NATIVE |= {"float16", "float32", "float64"}
_DTYPE_NAME = re.compile(r"(bool|u?int|b?float|complex|datetime|timedelta)\w*(\[\w+\])?|<U\d+|\|S\d+")
_NAMED = ("dict", "record")  # containers whose children have names
_MAX_DEPTH = 100  # far from Python's limit of recursion
_PLAIN: dict[type, str] = {dict: "dict", list: "list", tuple: "tuple"}

Arrays = dict[str, np.ndarray]
Path = tuple[str, ...]  # from the root, as in ("['w']", "[0]", ".field")
Child = tuple[str | int, Path, Any]  # name, path, node


def _is_key(leaf: Any) -> bool:
    return jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _spec(leaf: Any) -> str:
    """Describe a leaf as ``float64[5]``, a scalar by its type."""
    if hasattr(leaf, "dtype") and hasattr(leaf, "shape"):
        return f"{leaf.dtype.name}{list(leaf.shape)}".replace(" ", "")
    return type(leaf).__name__


def _label(path: Path) -> str:
    """Name the leaf at a path as a user would; the root is called ``tree``."""
    return "".join(path).lstrip(".") or "tree"


def encode(node: Any, path: Path, arrays: Arrays) -> Any:
    """Describe a tree in JSON; its arrays go into ``arrays`` under the names of their leaves."""
    if node is None or type(node) in (bool, int, str):
        return node
    if type(node) is float:
        return node if math.isfinite(node) else {"float": str(node)}
    if isinstance(node, jax.Array) and _is_key(node):
        return {
            "key": str(jax.random.key_impl(node)),
            "data": encode(jax.random.key_data(node), path, arrays),
        }
    if isinstance(node, (jax.Array, np.ndarray, np.generic)):
        return _encode_array(np.asarray(node), _label(path), arrays)
    if len(path) > _MAX_DEPTH:
        raise ValueError(f"tree: nested more than {_MAX_DEPTH} levels deep, or contains itself")
    container, children, _ = _flatten(node, path)
    if container is None:
        raise TypeError(f"{_label(path)}: cannot store {type(node).__name__}")
    encoded = [(name, encode(child, place, arrays)) for name, place, child in children]
    return {container: encoded if container in _NAMED else [child for _, child in encoded]}


def _encode_array(array: np.ndarray, name: str, arrays: Arrays) -> dict:
    if array.dtype.hasobject or array.dtype.names:
        raise TypeError(f"{name}: cannot store arrays of dtype {array.dtype}")
    array = np.array(array, dtype=array.dtype.newbyteorder("<"), order="C")
    dtype = array.dtype.str if array.dtype.kind in "US" else array.dtype.name
    arrays[name] = array if dtype in _NATIVE else np.frombuffer(array.tobytes(), np.uint8)
    return {"array": name, "dtype": dtype, "shape": list(array.shape)}


def _flatten(node: Any, path: Path) -> tuple[str | None, list[Child], Any]:
    """Open one level of a pytree: the kind of container (None: a leaf), its children, its JAX structure."""
    root = iter([True])  # the first node JAX asks about; all it asks about afterwards are its children
    try:
        pairs, structure = jax.tree_util.tree_flatten_with_path(node, is_leaf=lambda _: not next(root, False))
    except ValueError:
        if not isinstance(node, dict):
            raise
        # JAX sorts the keys of a dict
        raise TypeError(f"{_label(path)}: keys must be all str or all int, found {list(node)}") from None
    if any(not entries for entries, _ in pairs):
        return None, [], structure
    container = _PLAIN.get(type(node), "record")
    children = []
    for (entry,), child in pairs:
        name = next(getattr(entry, field) for field in ("name", "key", "idx") if hasattr(entry, field))
        if type(name) not in (str, int):
            raise TypeError(f"{_label(path)}: keys must be all str or all int, found {name!r}")
        children.append((name, (*path, str(entry)), child))
    return container, children, structure


def _parse(node: Any, path: Path) -> tuple[str, list[Child]]:
    """Do for a node of a file what :func:`_flatten` does for one in memory, trusting nothing."""
    if len(path) > _MAX_DEPTH:
        raise FileFormatError("nested too deeply to be one of ours")
    container, items = next(iter(node.items())) if isinstance(node, dict) and len(node) == 1 else (None, None)
    if container in ("list", "tuple") and isinstance(items, list):
        return container, [(i, (*path, f"[{i}]"), child) for i, child in enumerate(items)]
    if container not in _NAMED or not isinstance(items, list):
        raise FileFormatError(f"{_label(path)}: neither a leaf nor a container")
    children: dict[Any, tuple] = {}
    for item in items:
        if not (isinstance(item, list) and len(item) == 2 and type(item[0]) in (str, int)):
            raise FileFormatError(f"{_label(path)}: has a child without a name")
        entry = f".{item[0]}" if container == "record" else f"[{item[0]!r}]"
        children[item[0]] = (item[0], (*path, entry), item[1])
    if len(children) < len(items):
        raise FileFormatError(f"{_label(path)}: has two children of one name")
    return container, list(children.values())


def decode(node: Any, path: Path, arrays: Arrays) -> Any:
    """Build plain containers from the description; each array is taken out of ``arrays``."""
    if node is None or type(node) in (bool, int, float, str):
        return node
    match node:
        case {"float": "nan" | "inf" | "-inf" as text}:
            return float(text)
        case {"array": str(name), "dtype": str(dtype), "shape": list(shape)}:
            return _decode_array(name, dtype, shape, path, arrays)
        case {"key": str(implementation), "data": {"array": _} as data}:
            words = decode(data, path, arrays)
            try:
                return jax.random.wrap_key_data(words, impl=implementation)
            except (TypeError, ValueError) as error:
                raise FileFormatError(f"{_label(path)}: not a random key ({error})") from None
    container, children = _parse(node, path)
    decoded = {name: decode(child, place, arrays) for name, place, child in children}
    if container in _NAMED:
        return decoded
    return list(decoded.values()) if container == "list" else tuple(decoded.values())


def _decode_array(name: str, dtype: str, shape: list, path: Path, arrays: Arrays) -> np.ndarray:
    if name not in arrays:
        raise FileFormatError(f"{_label(path)}: its array {name[:80]!r} is not in the file")
    stored = arrays.pop(name)
    try:
        if not _DTYPE_NAME.fullmatch(dtype):
            raise TypeError(f"dtype {dtype[:40]!r}")
        kept = np.dtype(dtype).newbyteorder("<")
        if dtype in _NATIVE and (stored.dtype, list(stored.shape)) != (kept, shape):
            raise TypeError(f"{_spec(stored)} stored as {dtype}{shape}")
        array = np.ndarray(shape, kept, buffer=bytearray(stored.tobytes()))  # writable, as bytes are not
        if array.nbytes != stored.nbytes:
            raise TypeError(f"{stored.nbytes} bytes stored for {_spec(array)}")
        return array
    except (TypeError, ValueError, OverflowError) as error:
        raise FileFormatError(f"{_label(path)}: not a valid array ({error})") from None


def fill(like: Any, node: Any, path: Path, arrays: Arrays) -> Any:
    """Put the leaves of the description into the structure of ``like``, checking each."""
    expected, wanted, structure = _flatten(like, path)
    if expected is None or like is None:
        leaf = decode(node, path, arrays)
        if _spec(leaf) != _spec(like):
            raise FileFormatError(f"{_label(path)}: {_spec(leaf)} in the file, {_spec(like)} expected")
        return leaf
    found, children = _parse(node, path)
    names, wanted_names = [name for name, *_ in children], [name for name, *_ in wanted]
    if found != expected or set(names) != set(wanted_names):
        raise FileFormatError(f"{_label(path)}: {found} of {names} in the file, {expected} of {wanted_names} expected")
    by_name = {name: child for name, _, child in children}
    filled = [fill(child, by_name[name], place, arrays) for name, place, child in wanted]
    return jax.tree.unflatten(structure, filled)

"""One pytree of arrays and its JSON metadata in one safe file.

The file is a `safetensors <https://github.com/huggingface/safetensors>`_ file: a JSON header and raw arrays,
nothing that could run. The header names the format, its version and the kind of content, and describes the
tree; a SHA-256 digest over the content tells a damaged file from a good one. Writing is atomic: whoever reads
``path``, also after a crash in mid-write, finds the old content or the new, never a mixture.
"""

import hashlib
import json
import os
import re
import uuid
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
import safetensors.numpy
from safetensors import SafetensorError

from thalweg import codec
from thalweg.codec import storable
from thalweg.errors import FileFormatError

FORMAT = "thalweg"
VERSION = 2


def save(path: str | os.PathLike, tree: Any, metadata: dict | None = None, *, kind: str) -> None:
    """Write a pytree and its metadata to ``path``, atomically.

    Parameters
    ----------
    path
        Where to write; an older file there is replaced once the new one is safely on the disk.
    tree
        Dicts (keys all str or all int), lists, tuples, None, int, float, bool, str, NumPy and JAX arrays (of
        any dtype but objects and structures), JAX random keys, objects and classes declared :func:`storable`, and
        any other pytree node registered with JAX (named tuples, Equinox modules).
    metadata
        A dict that JSON can express.
    kind
        What the file is, e.g. ``"checkpoint"``; :func:`load` can insist on it.

    Examples
    --------
    >>> import tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> path = f"{folder.name}/run.thalweg"
    >>> save(path, {"steps": 7, "w": np.arange(3.0)}, {"note": "mine"}, kind="checkpoint")
    >>> load(path, kind="checkpoint")
    ({'steps': 7, 'w': array([0., 1., 2.])}, {'note': 'mine'})
    >>> folder.cleanup()
    """
    if not isinstance(metadata, dict | None):
        raise TypeError(f"metadata must be a dict, found {type(metadata).__name__}")
    arrays: codec.Arrays = {}
    described = codec.encode(tree, (), arrays)
    content = json.dumps({"kind": kind, "metadata": metadata or {}, "tree": described})
    header = {"format": FORMAT, "version": str(VERSION), "content": content, "sha256": _digest(content, arrays)}
    write_atomically(path, safetensors.numpy.save(arrays, header))


def load(path: str | os.PathLike, *, kind: str | None = None, like: Any = None) -> tuple[Any, dict]:
    """Read what :func:`save` wrote; return the tree and the metadata.

    Arrays come back as NumPy arrays of their dtype, whatever JAX's x64 setting, random keys as JAX keys.

    Parameters
    ----------
    path
        The file.
    kind
        The kind the file must be of; None accepts any.
    like
        A pytree of the expected structure, shapes and dtypes (:class:`jax.ShapeDtypeStruct` will do for an
        array). The leaves are put back into it. Without it, named tuples and modules that are not
        :func:`storable` come back as dicts of their fields.

    Raises
    ------
    FileFormatError
        The file is damaged, foreign, newer than this release, of another kind, or does not match ``like``.
    """
    tree, metadata, found = read(path)
    if kind is not None and found != kind:
        raise FileFormatError(f"{path}: holds a {found!r}, expected a {kind!r}")
    try:
        return tree if like is None else _filled(like, tree), metadata
    except FileFormatError as error:
        raise FileFormatError(f"{path}: {error}") from None


def read(path: str | os.PathLike) -> tuple[Any, dict, str]:
    """Read what :func:`save` wrote; return the tree, the metadata and the kind."""
    try:
        data = Path(path).read_bytes()
    except IsADirectoryError:
        raise FileFormatError(f"{path}: is a folder, not a file") from None
    try:
        content, arrays = _open(data)
        tree = codec.decode(content["tree"], (), arrays)
        if arrays:
            raise FileFormatError(f"holds arrays that its tree does not name: {sorted(arrays)[:3]}")
    except FileFormatError as error:
        raise FileFormatError(f"{path}: {error}") from None
    return tree, content["metadata"], content["kind"]


def _filled(like: Any, tree: Any) -> Any:
    """Put the leaves of ``tree`` into the structure of ``like``, checking each."""
    (found, _), (expected, structure) = _named(tree), _named(like)
    leaves = []
    for name, leaf in expected.items():
        if name not in found:
            raise FileFormatError(f"{name}: expected, and not in the file")
        leaves.append(found.pop(name))
        if codec.spec(leaves[-1]) != codec.spec(leaf):
            raise FileFormatError(f"{name}: {codec.spec(leaves[-1])} in the file, {codec.spec(leaf)} expected")
    if found:
        raise FileFormatError(f"{next(iter(found))}: in the file, and not expected")
    return jax.tree.unflatten(structure, leaves)


def _named(tree: Any) -> tuple[dict[str, Any], Any]:
    """Return the leaves of a tree by name, such as ``state.x``, and its structure."""
    pairs, structure = jax.tree_util.tree_flatten_with_path(tree, is_leaf=lambda node: node is None)
    name = partial(jax.tree_util.keystr, simple=True, separator=".")
    return {name(path) or "tree": leaf for path, leaf in pairs}, structure


def write_atomically(path: str | os.PathLike, data: bytes) -> None:
    """Put ``data`` at ``path``; a reader, also after a crash, finds the old content or the new, whole."""
    target = Path(os.path.realpath(path))
    if not target.parent.is_dir():
        raise FileNotFoundError(f"{path}: the folder {target.parent} does not exist")
    if target.is_dir():
        raise IsADirectoryError(f"{path}: is a folder; name a file in it")
    temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex}.tmp")
    try:
        with open(temporary, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if hasattr(os, "O_DIRECTORY"):  # elsewhere (Windows) a folder cannot be synchronised
        folder = os.open(target.parent, os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _digest(content: str, arrays: codec.Arrays) -> str:
    """Cover content and arrays; names, shapes and dtypes are part of the content."""
    digest = hashlib.sha256(content.encode())
    for name in sorted(arrays):
        digest.update(arrays[name].reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def _open(data: bytes) -> tuple[dict, codec.Arrays]:
    """Return content and arrays of a file that is whole and ours; all else is a FileFormatError."""
    if not data:
        raise FileFormatError("is empty")
    try:
        # The library checks lengths, offsets and the size of the header before anything is allocated.
        arrays = safetensors.numpy.load(data)
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")]).get("__metadata__", {})
    except (SafetensorError, KeyError, ValueError, RecursionError) as error:
        raise FileFormatError(f"damaged, or no safetensors file at all ({error})") from None
    if header.get("format") != FORMAT:
        raise FileFormatError("a safetensors file, but not one that Thalweg wrote")
    version = header.get("version", "")
    if not re.fullmatch(r"[1-9][0-9]{0,8}", version):
        raise FileFormatError(f"names no version of the format (found {version[:40]!r})")
    if int(version) > VERSION:
        raise FileFormatError(
            f"written in version {version} of the format, this release reads up to {VERSION}; upgrade thalweg"
        )
    if header.get("sha256") != _digest(header.get("content", ""), arrays):
        raise FileFormatError("damaged: its content does not match its checksum")
    try:
        content = json.loads(header["content"])
    except (ValueError, RecursionError) as error:
        raise FileFormatError(f"its description is not JSON that can be read ({error})") from None
    types = {"kind": str, "metadata": dict}
    if not (isinstance(content, dict) and content.keys() == {"kind", "metadata", "tree"}):
        raise FileFormatError("its description lacks kind, metadata or tree")
    for name, expected in types.items():
        if not isinstance(content[name], expected):
            raise FileFormatError(f"{name}: {type(content[name]).__name__} found, {expected.__name__} expected")
    return content, arrays


__all__ = ["load", "read", "save", "storable", "write_atomically"]

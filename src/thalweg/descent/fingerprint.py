"""Fingerprints of the parts of a run, so that a checkpoint is not taken up by a different one."""

import dataclasses
import functools
import hashlib
import types
from collections.abc import Iterable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from thalweg.descent.iteration import Descent
from thalweg.descent.stopping import StoppingRule

_DEPTH = 3
"""How far functions are followed into the functions they use."""


def describe(descent: Descent, key: Any, start: PyTree) -> dict[str, str]:
    """Name the parts of a run, each with its fingerprint."""
    parts = {}
    for name in ("oracle", "term", "divergence", "step", "momentum", "average"):
        part = getattr(descent, name)
        parts[name] = f"{type(part).__name__} {fingerprint(part)}"
    return parts | {"key": fingerprint(key), "x0": fingerprint(start)}


def describe_rule(rule: StoppingRule) -> str:
    """Name the stopping rule: a run that ended by it is taken up again under another."""
    return f"{type(rule).__name__} {fingerprint(rule)}"


def fingerprint(tree: PyTree) -> str:
    """Digest what a tree holds: arrays by their bytes, functions by their code and what it refers to.

    Objects of other kinds than arrays, numbers, strings, containers, modules of Equinox and functions count by their
    type alone.
    """
    digest, seen = hashlib.sha256(), dict[int, Any]()
    for leaf in [*jax.tree.leaves(tree), *_static_fields(tree)]:
        _absorb(digest, leaf, _DEPTH, seen)
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
        used = [value.__globals__.get(name) for name in value.__code__.co_names]
        enclosed = [cell.cell_contents for cell in value.__closure__ or ()]
        return [value.__code__, value.__defaults__, value.__kwdefaults__, *enclosed, *used]
    if isinstance(value, types.CodeType):
        return [value.co_code, *value.co_names, *value.co_consts]
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


def _static_fields(tree: Any) -> list[Any]:
    """The fields of modules that are no leaves: functions, names, sizes."""
    found: list[Any] = []
    if isinstance(tree, eqx.Module):
        for entry in dataclasses.fields(tree):
            value = getattr(tree, entry.name)
            found += [value] if entry.metadata.get("static") else _static_fields(value)
    elif isinstance(tree, tuple | list):
        for value in tree:
            found += _static_fields(value)
    return found

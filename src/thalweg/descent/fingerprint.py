"""Fingerprints of the parts of a run, so that a checkpoint is not taken up by a different one."""

import dataclasses
import hashlib
import types
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
    """Digest all that a tree holds: arrays by their bytes, functions by their code and what it refers to."""
    digest = hashlib.sha256()
    for leaf in [*jax.tree.leaves(tree), *_static_fields(tree)]:
        _absorb(digest, leaf, _DEPTH)
    return digest.hexdigest()[:12]


def _absorb(digest: Any, value: Any, depth: int) -> None:
    if isinstance(value, jax.Array | np.ndarray):
        if jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
            value = jax.random.key_data(value)
        array = np.ascontiguousarray(value)
        digest.update(f"{array.dtype}{array.shape}".encode() + array.tobytes())
    elif isinstance(value, types.FunctionType):
        code = value.__code__
        digest.update(code.co_code)
        enclosed = [cell.cell_contents for cell in value.__closure__ or ()]
        constants = [constant for constant in code.co_consts if isinstance(constant, int | float | str)]
        used = [value.__globals__.get(name) for name in code.co_names]
        for referred in [*enclosed, *constants, *used] if depth else []:
            _absorb(digest, referred, depth - 1)
    elif isinstance(value, bool | int | float | str):
        digest.update(repr(value).encode())
    else:
        digest.update(type(value).__qualname__.encode())


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

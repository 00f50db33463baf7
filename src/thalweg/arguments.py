"""Checks of numeric arguments, in one wording: the name, what it must be, what was found."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from thalweg import trees


def number(
    name: str,
    value: Any,
    *,
    above: float = -np.inf,
    least: float = -np.inf,
    below: float = np.inf,
    most: float = np.inf,
    finite: bool = True,
    dtype: Any = float,
) -> Array:
    """Return ``value`` as a scalar array, of JAX's default float unless told, or say what it must be.

    Under ``jit`` or ``vmap`` the value is not known, and is taken as it is.

    Examples
    --------
    >>> number("step", 0.5, above=0)
    Array(0.5, dtype=float...)
    >>> number("momentum", 1.5, least=0, below=1)
    Traceback (most recent call last):
        ...
    ValueError: momentum must be a finite number of at least 0 below 1, found 1.5
    """
    if isinstance(value, jax.core.Tracer):
        return value.astype(jnp.result_type(dtype))
    limits = {"above": above, "of at least": least, "below": below, "of at most": most}
    wanted = "a finite number" if finite else "a number"
    wanted += "".join(f" {words} {limit:g}" for words, limit in limits.items() if np.isfinite(limit))
    try:
        if isinstance(value, bool | str | bytes):
            raise TypeError
        found = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        raise TypeError(f"{name} must be {wanted}, found {value!r}") from None
    # Checked as it is kept: a number too small for float32 has become 0.
    kept = found.astype(jnp.result_type(float))
    inside = kept.ndim == 0 and least <= kept <= most
    inside = inside and (above < kept < below or (not finite and np.isinf(kept)))
    if not inside:
        raise ValueError(f"{name} must be {wanted}, found {value!r}")
    dtype = jnp.result_type(dtype)
    if isinstance(value, jax.Array) and value.dtype == dtype:
        return value
    # A count too large for its dtype stands for "never".
    return trees.scalar(min(found, np.iinfo(dtype).max) if dtype.kind == "i" else found, dtype)


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
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"{name} must be {wanted}, found {value!r}")
    if value < least or (most is not None and value > most):
        raise ValueError(f"{name} must be {wanted}, found {value}")
    return int(value)

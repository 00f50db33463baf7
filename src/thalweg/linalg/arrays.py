"""One function for host and device: which array library an array belongs to, and loops that either can run."""

from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import jax.scipy.special
import numpy as np
import scipy.special

__all__ = ["namespace"]

State = TypeVar("State")

AnyArray = jax.Array | np.ndarray
"""An array of JAX or of NumPy."""


def namespace(*arrays: Any) -> Any:
    """``numpy`` if all are its own arrays, where nothing is compiled; ``jax.numpy`` for all others.

    Examples
    --------
    >>> namespace(np.ones(2)) is np, namespace(jnp.ones(2)) is jnp, namespace(np.ones(2), jnp.ones(2)) is jnp
    (True, True, True)
    """
    return np if all(isinstance(array, np.ndarray | np.generic) for array in arrays) else jnp


def special(xp: Any) -> Any:
    """``scipy.special`` or its twin in JAX."""
    return scipy.special if xp is np else jax.scipy.special


def while_loop(condition: Callable[[State], Any], step: Callable[[State], State], state: State, xp: Any) -> State:
    """``jax.lax.while_loop``, or the same loop on the host.

    Examples
    --------
    >>> while_loop(lambda n: n < 100, lambda n: 2 * n, 3, np)
    192
    """
    if xp is not np:
        return jax.lax.while_loop(condition, step, state)
    while condition(state):
        state = step(state)
    return state


def matmul(a: Any, b: Any) -> Any:
    """a b at full precision: a GPU would use TF32 otherwise."""
    return a @ b if isinstance(a, np.ndarray) else jnp.matmul(a, b, precision="highest")


def replaced(array: Any, index: Any, value: Any) -> Any:
    """Return a copy of an array with a part replaced.

    Examples
    --------
    >>> replaced(np.zeros(2), 1, 3.0)
    array([0., 3.])
    """
    if not isinstance(array, np.ndarray):
        return array.at[index].set(value)
    array = array.copy()
    array[index] = value
    return array


def ratio(a: Any, b: Any) -> Any:
    """a/b where b is positive, and 0 elsewhere."""
    xp = namespace(b)
    return xp.where(b > 0, a / xp.where(b > 0, b, 1), 0)


def scaled_norm(vector: Any) -> Any:
    """Return ‖v‖ of numbers whose squares may be too large or too small.

    Examples
    --------
    >>> round(float(scaled_norm(np.array([6e200, 8e200]))) / 1e201, 9)
    1.0
    """
    xp = namespace(vector)
    largest = xp.max(xp.abs(vector))
    scale = xp.where((largest > 0) & xp.isfinite(largest), largest, 1)
    return scale * xp.sqrt(xp.sum((vector / scale) ** 2))

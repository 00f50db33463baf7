"""The functions f that sums have by name, as objects that compare equal when they are the same function."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def reciprocal(x: Any) -> Any:
    """1/x."""
    return 1.0 / x


def entropy_density(x: Any) -> Any:
    """−x log x, and 0 at 0."""
    return jnp.where(x == 0, 0.0, -x * jnp.log(jnp.where(x == 0, 1.0, x)))


@dataclass(frozen=True)
class Exponential:
    """exp(t x), t = ``time``."""

    time: float

    def __call__(self, x: Any) -> Any:
        """Return exp(t x)."""
        return jnp.exp(self.time * x)


@dataclass(frozen=True)
class Power:
    """x/unit to a power; a whole exponent allows negative numbers."""

    exponent: float
    unit: Any = 1.0

    def __call__(self, x: Any) -> Any:
        """Return the power of x/unit."""
        return (x / self.unit) ** (int(self.exponent) if float(self.exponent).is_integer() else self.exponent)


NAMED: dict[str, Callable[[Any], Any]] = {"log": jnp.log, "inverse": reciprocal}


def named(f: Any) -> Callable[[Any], Any]:
    """Return the function, also by its name, ``"log"`` or ``"inverse"``, and check it."""
    function = NAMED.get(f) if isinstance(f, str) else f
    if isinstance(f, np.ufunc):
        function = getattr(jnp, f.__name__, None)
    if not callable(function):
        raise TypeError(f"f must be a function written in jax.numpy, 'log' or 'inverse', found {f!r}")
    if function not in NAMED.values():
        _check_elementwise(f, function)
    return function


def _check_elementwise(f: Any, function: Callable[[Any], Any]) -> None:
    three = jax.ShapeDtypeStruct((3,), np.float64)
    with jax.enable_x64(True):
        try:
            each = jax.eval_shape(jax.vmap(function), three)
        except Exception as error:
            raise TypeError(
                f"f must be an elementwise function of one array, written in jax.numpy; {f!r} raised "
                f"{type(error).__name__} when JAX traced it"
            ) from error
        try:
            together = jax.eval_shape(function, three)
        except Exception:
            together = each  # a function of one number, such as lax.cond makes, is elementwise too
    if getattr(each, "shape", None) != (3,) or not jnp.issubdtype(each.dtype, jnp.number):
        raise TypeError(f"f must return one real number for every number, found {each} for three from {f!r}")
    if jnp.issubdtype(each.dtype, jnp.complexfloating):
        raise TypeError(f"f must return real numbers, found {each.dtype} from {f!r}")
    if together.shape == () and not together.weak_type:
        raise TypeError(f"f must be elementwise: {f!r} made one number of three")

"""The functions f that sums have by name, as objects that compare equal when they are the same function."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp


def reciprocal(x: Any) -> Any:
    """1/x."""
    return 1.0 / x


def entropy_density(x: Any) -> Any:
    """−x log x."""
    return -x * jnp.log(x)


@dataclass(frozen=True)
class Exponential:
    """exp(t x), t = ``time``."""

    time: float

    def __call__(self, x: Any) -> Any:
        """exp(t x)."""
        return jnp.exp(self.time * x)


@dataclass(frozen=True)
class Power:
    """x to an exponent; a whole one is taken as such, so that negative numbers have powers too."""

    exponent: float

    def __call__(self, x: Any) -> Any:
        """The power of x."""
        return x ** (int(self.exponent) if float(self.exponent).is_integer() else self.exponent)


NAMED: dict[str, Callable[[Any], Any]] = {"log": jnp.log, "inverse": reciprocal}


def named(f: Any) -> Callable[[Any], Any]:
    """The function, also of a name: ``"log"`` or ``"inverse"``.

    Examples
    --------
    >>> named("log") is jnp.log
    True
    """
    function = NAMED.get(f) if isinstance(f, str) else f
    if not callable(function):
        raise TypeError(f"f must be a function written in jax.numpy, 'log' or 'inverse', found {f!r}")
    return function

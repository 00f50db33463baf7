"""Loops over tiles of rows, on the host and within a compiled program: what is made of a tile need not exist at once.

On a device all tiles have one size: the last one begins early enough to be whole, and knows which of its rows are new.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

__all__ = ["Tile", "fold_tiles"]

Carry = TypeVar("Carry")


class Tile(NamedTuple):
    """Some consecutive rows.

    Examples
    --------
    >>> Tile(1, 2, np.ones(2, bool)).take(np.arange(5))
    array([1, 2])
    """

    begin: Any
    size: int
    new: Any
    """Which of the rows are in no tile before."""

    def take(self, array: Any) -> Any:
        """Return the rows of an array."""
        if isinstance(array, np.ndarray):
            return array[self.begin : self.begin + self.size]
        return jax.lax.dynamic_slice_in_dim(array, self.begin, self.size)

    def put(self, array: Any, rows: Any) -> Any:
        """Return the array with its rows replaced, in place on the host."""
        if isinstance(array, np.ndarray):
            array[self.begin : self.begin + self.size] = rows
            return array
        return jax.lax.dynamic_update_slice_in_dim(array, rows, self.begin, 0)


def fold_tiles(step: Callable[[Carry, Tile], Carry], carry: Carry, rows: int, size: int, xp: Any) -> Carry:
    """Return what ``carry = step(carry, tile)`` leaves after all tiles of some rows.

    Examples
    --------
    >>> add = lambda total, tile: total + xp.sum(xp.where(tile.new, tile.take(xp.arange(10.0)), 0))
    >>> for xp in (np, jnp):
    ...     print(float(fold_tiles(add, xp.zeros(()), 10, 4, xp)))
    45.0
    45.0
    """
    size = min(size, rows)
    if xp is np:
        for begin in range(0, rows, size):
            count = min(size, rows - begin)
            carry = step(carry, Tile(begin, count, np.ones(count, bool)))
        return carry
    if size == rows:
        return step(carry, Tile(0, size, jnp.ones(size, bool)))

    def body(index: Any, carry: Carry) -> Carry:
        begin = jnp.minimum(index * size, rows - size)
        return step(carry, Tile(begin, size, begin + jnp.arange(size) >= index * size))

    return jax.lax.fori_loop(0, -(-rows // size), body, carry)

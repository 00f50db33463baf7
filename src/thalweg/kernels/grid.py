"""Regular grids in up to three dimensions, and local cubic interpolation from their nodes to points.

The value at a point is a weighted sum over the four nearest nodes of each dimension (Keys' cubic convolution, 1981): it
is exact for quadratic functions, and its error falls as the third power of the spacing. In the outermost cells, where
a node is missing, the quadratic through the three nearest ones stands for it, which keeps the rate.
"""

from itertools import product
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from thalweg import arguments
from thalweg.codec import storable

__all__ = ["Grid", "Interpolation", "stencil_product"]

_MOST_DIMENSIONS = 3
_TAPS = 4
"""Nodes of each dimension that a point is interpolated from."""

_OFFSETS = range(1 - _TAPS, _TAPS)
"""How far apart, in nodes, two of them may be."""


@storable
class Grid(eqx.Module):
    """The nodes origin + spacing·i of a regular grid, 0 ≤ i < shape in each dimension.

    Parameters
    ----------
    origin, spacing
        The first node and the distance between nodes, a number for each dimension.
    shape
        The number of nodes in each dimension, four at least.

    Examples
    --------
    >>> grid = Grid(origin=[0.0], spacing=[0.5], shape=(5,))
    >>> grid.size, grid.contains(np.array([[1.9], [2.1]]))
    (5, array([ True, False]))
    """

    origin: np.ndarray
    spacing: np.ndarray
    shape: tuple[int, ...] = eqx.field(static=True)

    def __init__(self, origin: Any, spacing: Any, shape: Any) -> None:
        self.shape = tuple(arguments.whole("shape of Grid", nodes, least=_TAPS) for nodes in shape)
        self.origin, self.spacing = (np.asarray(array, np.float64) for array in (origin, spacing))
        if not 1 <= len(self.shape) <= _MOST_DIMENSIONS:
            raise ValueError(f"shape of Grid must have 1 to {_MOST_DIMENSIONS} dimensions, found {len(self.shape)}")
        if self.origin.shape != (len(self.shape),) or self.spacing.shape != (len(self.shape),):
            raise ValueError(f"origin and spacing of Grid must be a number for each of {len(self.shape)} dimensions")
        if not (np.all(np.isfinite(self.origin)) and np.all(self.spacing > 0) and np.all(np.isfinite(self.spacing))):
            raise ValueError(f"spacing of Grid must be positive and origin finite, found {self.spacing}, {self.origin}")

    @property
    def size(self) -> int:
        """The number of nodes."""
        return int(np.prod(self.shape))

    @property
    def last(self) -> np.ndarray:
        """The last node."""
        return self.origin + self.spacing * (np.array(self.shape) - 1)

    def contains(self, points: np.ndarray) -> np.ndarray:
        """Which points lie between the first and the last node of every dimension."""
        return np.all((points >= self.origin) & (points <= self.last), axis=1)

    def offsets(self) -> np.ndarray:
        """The differences between each node and the first, a row each."""
        axes = [np.arange(nodes) * step for nodes, step in zip(self.shape, self.spacing, strict=True)]
        return np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, len(self.shape))

    def interpolation(self, points: np.ndarray) -> "Interpolation":
        """The matrix W of the cubic interpolation from the nodes to points inside the grid.

        Examples
        --------
        >>> grid = Grid([0.0], [0.5], (9,))
        >>> W = grid.interpolation(np.array([[0.1], [1.3]]))
        >>> found = jax.jit(Interpolation.mv)(W, grid.offsets() ** 2)
        >>> np.asarray(found)[:, 0].round(6)  # exact for quadratics, in the outermost cells too
        array([0.01, 1.69]...)
        """
        points = np.asarray(points, np.float64)
        if points.ndim != 2 or points.shape[1] != len(self.shape):
            raise ValueError(f"points must have {len(self.shape)} columns, as the grid has, found {points.shape}")
        if not np.all(self.contains(points)):
            raise ValueError("points must lie between the first and the last node of the grid in every dimension")
        first = np.zeros((len(points), len(self.shape)), np.int32)
        weights = np.ones((len(points), 1))
        for axis, nodes in enumerate(self.shape):
            place = (points[:, axis] - self.origin[axis]) / self.spacing[axis]
            first[:, axis], taps = _cubic(place, nodes)
            weights = (weights[:, :, None] * taps[:, None]).reshape(len(points), -1)
        return Interpolation(jax.device_put(first), jax.device_put(weights), self.shape)  # compiles nothing


def _cubic(place: np.ndarray, nodes: int) -> tuple[np.ndarray, np.ndarray]:
    """The first of four nodes and their weights, for points counted in nodes from the first one."""
    cell = np.clip(np.floor(place).astype(np.int32), 0, nodes - 2)
    t = place - cell
    before, left = (-t + 2 * t**2 - t**3) / 2, (2 - 5 * t**2 + 3 * t**3) / 2
    right, after = (t + 4 * t**2 - 3 * t**3) / 2, (t**3 - t**2) / 2
    inner = np.stack([before, left, right, after], axis=1)
    zero = np.zeros_like(t)
    # A node that is missing is 3f₀ − 3f₁ + f₂ of the next three.
    low = np.stack([left + 3 * before, right - 3 * before, after + before, zero], axis=1)
    high = np.stack([zero, before + after, left - 3 * after, right + 3 * after], axis=1)
    at_low, at_high = cell == 0, cell == nodes - 2
    weights = np.where(at_low[:, None], low, np.where(at_high[:, None], high, inner))
    return np.clip(cell - 1, 0, nodes - _TAPS), weights


class Interpolation(eqx.Module):
    """W, the sparse matrix that takes values at the nodes of a grid to values at points: 4^d entries in a row.

    Made by :meth:`Grid.interpolation`. Blocks have one vector per column, nodes in the order of the flattened grid.

    Examples
    --------
    >>> W = Grid([0.0], [1.0], (5,)).interpolation(np.array([[2.0]]))
    >>> product, transposed = jax.jit(lambda W, v, u: (W.mv(v), W.rmv(u)))(W, np.arange(5.0)[:, None], np.ones((1, 1)))
    >>> product, np.asarray(transposed)[:, 0]
    (Array([[2.]], dtype=float...), array([0., 0., 1., 0., 0.]...))
    """

    first: Int[Array, "n d"]
    """The first of the four nodes of each dimension."""
    weights: Float[Array, "n taps"]
    nodes: tuple[int, ...] = eqx.field(static=True)

    @property
    def shape(self) -> tuple[int, int]:
        """(points, nodes)."""
        return len(self.first), int(np.prod(self.nodes))

    @property
    def indices(self) -> Int[Array, "n taps"]:
        """The nodes of each row, in the flattened grid."""
        strides = jnp.asarray([int(np.prod(self.nodes[axis + 1 :])) for axis in range(len(self.nodes))], jnp.int32)
        taps = np.array(list(product(range(_TAPS), repeat=len(self.nodes))), np.int32)
        return (self.first @ strides)[:, None] + (jnp.asarray(taps) @ strides)[None]

    def mv(self, block: Float[Array, "nodes m"]) -> Float[Array, "n m"]:
        """W times a block, tap by tap: no array has taps times rows times columns."""
        indices, weights = self.indices, self.weights.astype(block.dtype)
        add = lambda tap, total: total + weights[:, tap][:, None] * block[indices[:, tap]]
        return jax.lax.fori_loop(0, weights.shape[1], add, jnp.zeros((len(weights), block.shape[1]), block.dtype))

    def rmv(self, block: Float[Array, "n m"]) -> Float[Array, "nodes m"]:
        """Wᵀ times a block."""
        indices, weights = self.indices, self.weights.astype(block.dtype)
        add = lambda tap, total: total.at[indices[:, tap]].add(weights[:, tap][:, None] * block)
        return jax.lax.fori_loop(0, weights.shape[1], add, jnp.zeros((self.shape[1], block.shape[1]), block.dtype))

    def norm_bound(self) -> Float[Array, ""]:
        """A bound of ‖W‖², the largest sum of absolute values of a row times that of a column."""
        sizes = eqx.tree_at(lambda w: w.weights, self, jnp.abs(self.weights))
        ones = jnp.ones((self.shape[0], 1), self.weights.dtype)
        return jnp.max(jnp.sum(sizes.weights, axis=1)) * jnp.max(sizes.rmv(ones))

    def gram(self, scales: Float[Array, " n"]) -> Float[Array, " stencil *nodes"]:
        """Wᵀ diag(scales) W as a stencil: entry [o, i] couples node i with the o-th of its 7^d neighbours.

        :func:`stencil_product` multiplies by it, at a cost that does not depend on the number of points.

        Examples
        --------
        >>> W = Grid([0.0], [1.0], (5,)).interpolation(np.array([[2.0], [1.0]]))
        >>> np.asarray(jax.jit(Interpolation.gram)(W, np.array([3.0, 4.0])))[3]
        array([0., 4., 3., 0., 0.]...)
        """
        dimensions = len(self.nodes)
        taps = np.array(list(product(range(_TAPS), repeat=dimensions)))
        one, other = (pairs.ravel() for pairs in np.indices((len(taps), len(taps))))
        # The number of an offset, of which each dimension has as many.
        row = np.ravel_multi_index((taps[other] - taps[one] - _OFFSETS.start).T, (len(_OFFSETS),) * dimensions)
        indices, weights = self.indices, self.weights

        def add(stencil: Array, pair: tuple[Array, ...]) -> tuple[Array, None]:
            row, one, other = pair
            return stencil.at[row, indices[:, one]].add(scales * weights[:, one] * weights[:, other]), None

        empty = jnp.zeros((len(_OFFSETS) ** dimensions, self.shape[1]), weights.dtype)
        stencil, _ = jax.lax.scan(add, empty, tuple(map(jnp.asarray, (row, one, other))))
        return stencil.reshape(-1, *self.nodes)


def stencil_product(stencil: Float[Array, " stencil *nodes"], block: Float[Array, " m *nodes"]) -> Array:
    """The product of a stencil of :meth:`Interpolation.gram` with a block of fields, one in each leading entry.

    Examples
    --------
    >>> W = Grid([0.0], [1.0], (5,)).interpolation(np.array([[1.5]]))
    >>> by_stencil = lambda W, field: stencil_product(W.gram(np.ones(1)), field[None])[0]
    >>> by_products = lambda W, field: W.rmv(W.mv(field[:, None]))[:, 0]
    >>> both = jax.jit(lambda W, field: (by_stencil(W, field), by_products(W, field)))
    >>> np.allclose(*both(W, np.arange(5.0)))
    True
    """
    dimensions = block.ndim - 1
    reach = _TAPS - 1
    padded = jnp.pad(block, [(0, 0)] + [(reach, reach)] * dimensions)
    total = jnp.zeros_like(block)
    for row, offset in enumerate(product(_OFFSETS, repeat=dimensions)):
        part = tuple(slice(reach + o, reach + o + n) for o, n in zip(offset, block.shape[1:], strict=True))
        total = total + stencil[row][None] * padded[(slice(None), *part)]
    return total

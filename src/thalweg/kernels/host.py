"""Kernel matrices on the host, by NumPy in tiles: nothing is compiled."""

from typing import Any

import numpy as np

from thalweg.kernels.base import Kernel, Sum
from thalweg.kernels.forms import Radial
from thalweg.linalg.tiles import Tiles

CANCELLED = 1e-5
"""Squared distances in float32 may be off by this much, in squared lengthscales, before float64 is used: entries of the
matrix are then off by less than what a factor in float32 rounds anyway."""


def summands(kernel: Kernel) -> tuple[Kernel, ...]:
    """Return what a kernel is the sum of, if all of it has a NumPy implementation; else nothing.

    Examples
    --------
    >>> from thalweg.kernels import Gaussian, Matern32
    >>> len(summands(Gaussian() + Matern32() + Gaussian())), summands(Gaussian() * Gaussian())
    (3, ())
    """
    if type(kernel) is Sum:
        left, right = summands(kernel.k1), summands(kernel.k2)
        return left + right if left and right else ()
    return (kernel,) if isinstance(kernel, Radial) else ()


def kernel_tiles(kernel: Kernel, x: np.ndarray, y: np.ndarray | None = None, *, stored: bool = False) -> Tiles:
    """Return the matrix k(x_i, y_j) in tiles, in the dtype of ``x``; without ``y`` that of ``x`` with itself.

    Examples
    --------
    >>> from thalweg.kernels import Gaussian
    >>> kernel_tiles(Gaussian(), np.zeros((2, 1)), np.zeros((3, 1))).apply(np.ones((3, 1)))
    array([[3.],
           [3.]])
    """
    other, symmetric = (x, True) if y is None else (y, False)
    dtype, shape = x.dtype, (len(x), len(other))
    if not isinstance(kernel, Radial):
        compiled: Any = kernel
        entries = lambda rows, columns: np.asarray(compiled(x[rows], other[columns]), dtype)
        return Tiles(entries, shape, dtype, symmetric=symmetric, stored=stored)
    centre, length = np.median(other[:2048], axis=0), np.asarray(kernel.lengthscale, np.float64)
    left, right = ((rows.astype(np.float64) - centre) / length for rows in (x, other))
    squares = [np.sum(rows**2, axis=1)[:, None] for rows in (left, right)]
    # ‖x‖² + ‖y‖² − 2xᵀy as one product of extended rows.
    left = np.hstack([left, squares[0], np.ones_like(squares[0])])
    right = np.hstack([-2 * right, np.ones_like(squares[1]), squares[1]])
    cancelled = np.finfo(np.float32).eps * sum(float(np.max(part, initial=0.0)) for part in squares)
    if dtype == np.float32 and cancelled <= CANCELLED:
        left, right = left.astype(dtype), right.astype(dtype)
    profile, variance = kernel.profile, dtype.type(kernel.variance)

    def tile(rows: slice, columns: slice) -> np.ndarray:
        squared = (left[rows] @ right[columns].T).astype(dtype, copy=False)
        values = variance * profile(np.maximum(squared, 0, out=squared))
        if symmetric and rows.start < columns.stop and columns.start < rows.stop:
            same = np.arange(max(rows.start, columns.start), min(rows.stop, columns.stop))
            values[same - rows.start, same - columns.start] = variance
        return values

    return Tiles(tile, shape, dtype, symmetric=symmetric, stored=stored)

"""Products with a kernel's matrix that is never whole: tiles in the processor's cache, made by NumPy on all cores."""

import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from thalweg.kernels import Kernel
from thalweg.kernels.profiles import value_and_rise
from thalweg.machines.rows import same
from thalweg.threads import enough_threads

# Rows and columns of a tile.
_ROWS, _COLUMNS = 256, 2048
# Of so few features distances are found in float64, in which nothing is lost where rows are near one another.
_FEW_FEATURES = 4
# Of more rows than this so many are compared first: if this part of them, or more, are equal to others, all are.
_LOOKED_AT, _COPIED = 4096, 0.1


def product(kernel: Kernel, x: np.ndarray, y: np.ndarray, weights: np.ndarray | None = None) -> np.ndarray:
    """The matrix of a kernel that is written out, times weights if there are any: of many equal rows once.

    Examples
    --------
    >>> from thalweg.kernels import Gaussian
    >>> product(Gaussian(), np.zeros((2, 1)), np.zeros((3, 1)), np.ones((3, 1)))
    array([[3.],
           [3.]])
    """
    if weights is not None and len(x) > _LOOKED_AT and len(same(x[:_LOOKED_AT])[0]) <= (1 - _COPIED) * _LOOKED_AT:
        first, place = same(x)
        return _product(kernel, x[first], y, weights)[place]
    return _product(kernel, x, y, weights)


def _product(kernel: Kernel, x: np.ndarray, y: np.ndarray, weights: np.ndarray | None) -> np.ndarray:
    fine = np.float64 if x.shape[1] <= _FEW_FEATURES else x.dtype
    middle, length = np.median(y[:_COLUMNS], axis=0), np.asarray(kernel.lengthscale, fine)

    def extended(rows: np.ndarray, factor: float, first: bool) -> np.ndarray:
        """What makes ‖x‖² + ‖y‖² − 2xᵀy one product."""
        rows = ((rows - middle) / length).astype(fine, copy=False)
        squares = np.sum(rows**2, axis=1)[:, None]
        return np.hstack([factor * rows, *((squares, np.ones_like(squares))[:: 1 if first else -1])])

    left = extended(x, 1.0, first=True)
    found = np.zeros((len(x), len(y) if weights is None else weights.shape[1]), x.dtype)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    with enough_threads(1), ThreadPoolExecutor(cores) as pool:
        for j in range(0, len(y), _COLUMNS):
            columns = slice(j, j + _COLUMNS)
            right = extended(y[columns], -2.0, first=False).T

            def some(i: int, columns: slice = columns, right: np.ndarray = right) -> None:
                rows = slice(i, i + _ROWS)
                tile = (left[rows] @ right).astype(x.dtype, copy=False)
                tile = value_and_rise(kernel, tile, rise=False)[0]
                if weights is None:
                    found[rows, columns] = tile
                else:
                    found[rows] += tile @ weights[columns]

            list(pool.map(some, range(0, len(x), _ROWS)))
    return found

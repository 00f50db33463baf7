"""Products with a kernel's matrix that is never whole: tiles in the processor's cache, made by NumPy on all cores."""

import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from thalweg.kernels import Kernel
from thalweg.kernels.profiles import value_and_rise
from thalweg.threads import enough_threads

# Rows and columns of a tile.
_ROWS, _COLUMNS = 256, 2048
# Of so few features distances are found in float64, in which nothing is lost where rows are near one another.
_FEW_FEATURES = 4


def product(kernel: Kernel, x: np.ndarray, y: np.ndarray, weights: np.ndarray | None = None) -> np.ndarray:
    """The matrix of a kernel that is written out, times weights if there are any.

    Examples
    --------
    >>> from thalweg.kernels import Gaussian
    >>> product(Gaussian(), np.zeros((2, 1)), np.zeros((3, 1)), np.ones((3, 1)))
    array([[3.],
           [3.]])
    """
    fine = np.float64 if x.shape[1] <= _FEW_FEATURES else x.dtype
    middle, length = np.median(y[:_COLUMNS], axis=0), np.asarray(kernel.lengthscale, fine)
    left, right = (((part - middle) / length).astype(fine, copy=False) for part in (x, y))
    squares = [np.sum(part**2, axis=1)[:, None] for part in (left, right)]
    # ‖x‖² + ‖y‖² − 2xᵀy as one product.
    left = np.hstack([left, squares[0], np.ones_like(squares[0])])
    right = np.hstack([-2 * right, np.ones_like(squares[1]), squares[1]])

    def some(begin: int) -> np.ndarray:
        parts = []
        for j in range(0, len(y), _COLUMNS):
            tile = (left[begin : begin + _ROWS] @ right[j : j + _COLUMNS].T).astype(x.dtype, copy=False)
            tile = value_and_rise(kernel, np.maximum(tile, 0, out=tile), rise=False)[0]
            parts.append(tile if weights is None else tile @ weights[j : j + _COLUMNS])
        return np.hstack(parts) if weights is None else np.sum(parts, axis=0)

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    with enough_threads(1), ThreadPoolExecutor(cores) as pool:
        return np.concatenate(list(pool.map(some, range(0, len(x), _ROWS))))

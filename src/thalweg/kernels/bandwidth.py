"""A lengthscale from the data: the median distance between points."""

from typing import Any

import jax
import numpy as np
import scipy.sparse
from jaxtyping import Array, Key

from thalweg import arguments


def median_distance(x: Any, key: Key[Array, ""], sample: int = 2000) -> float:
    """Return the median Euclidean distance between points that differ, over a sample of pairs.

    It is the usual lengthscale to start from; for classification a half or a third of it is often better.

    Parameters
    ----------
    x
        Points, one per row: an array (a memory map is not read as a whole) or a SciPy sparse matrix.
    key
        A random key that chooses the pairs.
    sample
        The number of pairs. If there are no more than that in all, each is taken once.

    Examples
    --------
    >>> median_distance(np.array([[0.0], [1.0], [5.0]]), jax.random.key(0))
    4.0
    """
    sample = arguments.whole("sample", sample)
    key = arguments.random_key("key", key)
    x = x.tocsr() if scipy.sparse.issparse(x) else x if isinstance(x, np.ndarray) else np.asarray(x)
    if x.ndim != 2 or x.shape[0] < 2 or x.shape[1] == 0:
        raise ValueError(f"x must be a matrix with at least two points, one per row, found shape {x.shape}")
    if x.dtype.kind not in "biuf":
        raise TypeError(f"x must hold real numbers, found {x.dtype}")
    first, second = _pairs(x.shape[0], key, sample)
    difference = x[first].astype(np.float64) - x[second].astype(np.float64)
    with np.errstate(invalid="ignore"):
        # Squares of very large or small numbers are none.
        unit = abs(difference).max() or 1.0
        difference = difference / unit
        squares = difference.multiply(difference) if scipy.sparse.issparse(x) else difference**2
        distances = unit * np.sqrt(np.asarray(squares.sum(axis=1)).ravel())
    if not np.isfinite(distances).all():
        raise ValueError("x must be finite, found NaN or infinity among its rows")
    apart = distances[distances > 0]
    if not len(apart):
        raise ValueError(f"x must have points that differ, found {len(distances)} pairs of equal rows and no other")
    return float(np.median(apart))


def _pairs(rows: int, key: Key[Array, ""], sample: int) -> tuple[np.ndarray, np.ndarray]:
    """Return all pairs of rows, or as many random ones as the sample has."""
    if rows * (rows - 1) // 2 <= sample:
        return np.triu_indices(rows, 1)
    key_first, key_gap = jax.random.split(key)
    first = np.asarray(jax.random.randint(key_first, (sample,), 0, rows))
    gap = np.asarray(jax.random.randint(key_gap, (sample,), 1, rows))
    # In int64: the sum may be too large for 32 bits.
    return first, (first.astype(np.int64) + gap) % rows

"""A lengthscale from the data: the median distance between points."""

from typing import Any

import jax
import numpy as np
import scipy.sparse
from jaxtyping import Array, Key

from thalweg import arguments

__all__ = ["median_distance"]


def median_distance(x: Any, key: Key[Array, ""] | np.random.Generator, sample: int = 2000) -> float:
    """Return the median Euclidean distance between points that differ, over a sample of pairs.

    It is the usual lengthscale to start from; for classification a half or a third of it is often better.

    Parameters
    ----------
    x
        Points, one per row: an array (a memory map is not read as a whole) or a SciPy sparse matrix.
    key
        A random key, or a generator of NumPy, that chooses the pairs.
    sample
        The number of pairs. If there are no more than that in all, each is taken once.

    Examples
    --------
    >>> median_distance(np.array([[0.0], [1.0], [5.0]]), jax.random.key(0))
    4.0
    """
    sample = arguments.whole("sample", sample)
    x = x.tocsr() if scipy.sparse.issparse(x) else x if isinstance(x, np.ndarray) else np.asarray(x)
    if x.ndim != 2 or x.shape[0] < 2 or x.shape[1] == 0:
        raise ValueError(f"x must be a matrix with at least two points, one per row, found shape {x.shape}")
    if x.dtype.kind not in "biuf":
        raise TypeError(f"x must hold real numbers, found {x.dtype}")
    if not isinstance(key, np.random.Generator):  # on the host, where nothing is compiled
        key = np.random.default_rng(np.asarray(jax.random.key_data(arguments.random_key("key", key))))
    first, second = some_pairs(x.shape[0], key, sample)
    difference = x[first].astype(np.float64) - x[second].astype(np.float64)
    with np.errstate(invalid="ignore"):
        # Squares of very large or small numbers are none.
        unit = abs(difference).max() or 1.0
        difference /= unit
        if scipy.sparse.issparse(x):
            squares = np.asarray(difference.multiply(difference).sum(axis=1)).ravel()
        else:
            squares = np.einsum("ij,ij->i", difference, difference)
        distances = unit * np.sqrt(squares)
    if not np.isfinite(distances).all():
        raise ValueError("x must be finite, found NaN or infinity among its rows")
    apart = distances[distances > 0]
    if not len(apart):
        raise ValueError(f"x must have points that differ, found {len(distances)} pairs of equal rows and no other")
    return float(np.median(apart))


def some_pairs(rows: int, draws: np.random.Generator, sample: int) -> tuple[np.ndarray, np.ndarray]:
    """Return all pairs of rows, or as many random ones as the sample has.

    Examples
    --------
    >>> some_pairs(3, np.random.default_rng(0), 10)
    (array([0, 0, 1]), array([1, 2, 2]))
    """
    if rows * (rows - 1) // 2 <= sample:
        return np.triu_indices(rows, 1)
    first, gap = draws.integers(0, rows, sample), draws.integers(1, rows, sample)
    return first, (first + gap) % rows

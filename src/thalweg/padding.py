"""Sizes of arrays: padded, so that data sets of about one size share a compiled program, and bounded by memory."""

from typing import Any

import numpy as np

MAX_TEMPORARY_NUMBERS = 2**22
"""Numbers of a temporary array, 16 MiB in float32: twice as many would take twice the memory and no less time."""


def padded_size(size: int, grain: int) -> int:
    """Return the next of a few sizes: a multiple of ``grain``, or of a power of two, at most an eighth larger.

    Examples
    --------
    >>> [padded_size(size, 64) for size in (1, 64, 65, 1000, 1025, 10_000)]
    [64, 64, 128, 1024, 1152, 10240]
    """
    grain = max(grain, 2 ** (int(size).bit_length() - 4))
    return -(-size // grain) * grain


def padded(array: Any, size: int, axis: int = 0) -> np.ndarray:
    """Return the array with zeros at the end of an axis, up to ``size``.

    Examples
    --------
    >>> padded([1.0, 2.0], 4)
    array([1., 2., 0., 0.])
    """
    array = np.asarray(array)
    shape = list(array.shape)
    shape[axis] = size
    longer = np.zeros(shape, array.dtype)  # np.pad takes ten times as long for a small array
    longer[(slice(None),) * (axis % array.ndim) + (slice(array.shape[axis]),)] = array
    return longer

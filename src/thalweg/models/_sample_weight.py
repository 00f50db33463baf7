"""The weights of rows."""

from typing import Any

import numpy as np
from sklearn.utils.validation import _check_sample_weight


def row_weights(sample_weight: Any, X: Any) -> np.ndarray:
    """A weight for every row of ``X``: ones for None; refused if negative, or if nothing is left.

    Examples
    --------
    >>> row_weights([1.0, -2.0], np.zeros((2, 1)))
    Traceback (most recent call last):
        ...
    ValueError: sample_weight must be non-negative and not all 0, found a minimum of -2
    """
    weights = _check_sample_weight(sample_weight, X, dtype=np.float64)
    if not (np.all(weights >= 0) and np.any(weights > 0)):
        raise ValueError(f"sample_weight must be non-negative and not all 0, found a minimum of {weights.min():g}")
    return weights

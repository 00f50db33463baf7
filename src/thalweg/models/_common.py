"""What all estimators share: the weights of rows, and work that is undone if it fails."""

from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
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


@contextmanager
def unharmed(model: Any, changing: tuple[str, ...] = ()) -> Iterator[None]:
    """Leave the model as it was where what is done in this scope fails or is interrupted.

    What the attributes named in ``changing`` hold is changed in place, and so is copied; arrays never are.
    """
    before = {name: copy(value) if name in changing else value for name, value in vars(model).items()}
    try:
        yield
    except BaseException:
        vars(model).clear()
        vars(model).update(before)
        raise

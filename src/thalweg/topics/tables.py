"""Tables of counts and of topics as they are given, checked and in one form."""

from typing import Any

import numpy as np
from jaxtyping import Float
from scipy.sparse import csr_array, issparse


def numbers(name: str, values: Any) -> Float[np.ndarray, "..."]:
    """An array of floating-point numbers, or an error that names what holds none.

    >>> numbers("counts", ["a"])
    Traceback (most recent call last):
        ...
    TypeError: counts must hold numbers, found <U1 of shape (1,)
    """
    found = np.asarray(values)
    if found.dtype.kind not in "biuf":
        raise TypeError(f"{name} must hold numbers, found {found.dtype} of shape {found.shape}")
    return found.astype(float)


def whole_counts(counts: Any) -> csr_array:
    """Documents by words as whole numbers in compressed sparse rows, a copy, or an error that says what is wrong.

    >>> whole_counts([[0, 2.0], [1, 0]]).toarray()
    array([[0, 2],
           [1, 0]])
    """
    table = csr_array(counts if issparse(counts) else np.atleast_2d(numbers("counts", counts)))
    with np.errstate(invalid="ignore"):
        whole = table.data.astype(np.int64)
    bad = (whole != table.data) | (whole < 0)
    if bad.any():
        raise ValueError(f"counts must be whole numbers of at least 0, found {table.data[bad][0]}")
    found = csr_array((whole, table.indices.copy(), table.indptr.copy()), shape=table.shape)
    found.sum_duplicates()  # sorts in place
    found.eliminate_zeros()
    return found


def distributions(components: Any) -> Float[np.ndarray, "k v"]:
    """Topics by words as probabilities, or an error that says what is wrong.

    >>> distributions([[1, 3], [2, 2]])
    array([[0.25, 0.75],
           [0.5 , 0.5 ]])
    """
    topics = numbers("components", components)
    if (
        topics.ndim != 2
        or not topics.size
        or not (np.isfinite(topics) & (topics >= 0)).all()
        or not (topics.sum(axis=1) > 0).all()
    ):
        raise ValueError("components must hold one row of probabilities for each topic, none of them empty")
    return topics / topics.sum(axis=1, keepdims=True)

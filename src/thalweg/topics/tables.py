"""Check the tables that users pass (counts, topics, proportions, vocabularies) and bring each into one form."""

from collections.abc import Mapping, Set
from typing import Any

import numpy as np
from jaxtyping import Float
from scipy.sparse import csr_array, issparse


def as_numbers(name: str, values: Any) -> Float[np.ndarray, "..."]:
    """Return an array of floating-point numbers, or raise an error that names the argument.

    >>> as_numbers("counts", ["a"])
    Traceback (most recent call last):
        ...
    TypeError: counts must hold numbers, found <U1 of shape (1,)
    """
    array = np.asarray(values)
    if array.dtype.kind not in "biuf":
        raise TypeError(f"{name} must hold numbers, found {array.dtype} of shape {array.shape}")
    return array.astype(float)


def as_counts(counts: Any) -> csr_array:
    """Return a copy of documents by words as whole numbers in compressed sparse rows.

    >>> as_counts([[0, 2.0], [1, 0]]).toarray()
    array([[0, 2],
           [1, 0]])
    """
    table = csr_array(counts if issparse(counts) else np.atleast_2d(as_numbers("counts", counts)))
    with np.errstate(invalid="ignore"):
        whole = table.data.astype(np.int64)
    bad = (whole != table.data) | (whole < 0)
    if bad.any():
        raise ValueError(f"counts must be whole numbers of at least 0, found {table.data[bad][0]}")
    copy = csr_array((whole, table.indices.copy(), table.indptr.copy()), shape=table.shape)
    copy.sum_duplicates()  # sorts in place
    copy.eliminate_zeros()
    return copy


def as_topics(components: Any) -> Float[np.ndarray, "k v"]:
    """Return topics by words with rows that sum to one.

    >>> as_topics([[1, 3], [2, 2]])
    array([[0.25, 0.75],
           [0.5 , 0.5 ]])
    """
    topics = as_numbers("components", components)
    valid = topics.ndim == 2 and topics.size and (np.isfinite(topics) & (topics >= 0)).all()
    if not valid or not (topics.sum(axis=1) > 0).all():
        raise ValueError("components must hold one row of probabilities for each topic, none of them empty")
    return topics / topics.sum(axis=1, keepdims=True)


def as_proportions(proportions: Any) -> Float[np.ndarray, "n k"]:
    """Return documents by topics."""
    table = np.asarray(proportions, float)
    if table.ndim != 2 or not table.size or not np.isfinite(table).all() or (table < 0).any():
        raise ValueError(f"proportions must hold one row of shares for each document, found shape {table.shape}")
    return table


def as_frequency(frequency: Any, size: int) -> Float[np.ndarray, " v"]:
    """Return how often each word occurs, as shares of one."""
    counts = np.asarray(frequency, float).ravel()
    if len(counts) != size or not np.isfinite(counts).all() or (counts < 0).any() or counts.sum() <= 0:
        raise ValueError(
            f"frequency must hold a count for each of the {size} words, finite and some above 0, found {len(counts)} "
            f"numbers from {counts.min(initial=np.inf):g} to {counts.max(initial=-np.inf):g}"
        )
    return counts / counts.sum()


def as_vocabulary(vocabulary: Any, size: int) -> list[str]:
    """Return the words in the order of the columns.

    >>> as_vocabulary(np.array(["rain", "wind"]), 2)
    ['rain', 'wind']
    >>> as_vocabulary({"wind": 1, "rain": 0}, 2)  # as a CountVectorizer's vocabulary_
    ['rain', 'wind']
    """
    if isinstance(vocabulary, Mapping):
        if sorted(map(str, vocabulary.values())) != sorted(map(str, range(size))):
            raise ValueError(f"vocabulary as a mapping must give each word its column, each of 0 to {size - 1} once")
        vocabulary = sorted(vocabulary, key=lambda word: int(vocabulary[word]))
    if isinstance(vocabulary, str | Set) or not np.iterable(vocabulary):
        raise TypeError(f"vocabulary must list words in the order of columns, found {type(vocabulary).__name__}")
    words = [str(word) for word in vocabulary]
    if len(words) != size:
        raise ValueError(
            f"vocabulary must have a word for each of the {size} columns of components, found {len(words)}"
        )
    return words

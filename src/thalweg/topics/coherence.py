"""How well the words of a topic hang together, and how much they are its own.

All take the words of each topic as columns of the table of counts, best first: see :func:`top_indices`.
"""

from typing import Any

import numpy as np
from jaxtyping import Float, Int
from scipy.sparse import csr_array

from thalweg.topics.tables import distributions, whole_counts


def u_mass(top: Any, counts: Any, *, smoothing: float = 1.0) -> Float[np.ndarray, " k"]:
    """Mimno et al.'s coherence: Σ_{m>l} log (D(w_m, w_l) + 1) / D(w_l) over the pairs of a topic's words, best first.

    D counts the documents in which words occur, or occur together. 0 or a little above it is best. A pair whose better
    word occurs in no document is left out. Gensim's ``u_mass`` is the mean over pairs, with ``smoothing`` 1e-12 times
    the number of documents.

    Parameters
    ----------
    top
        Columns of each topic's words, best first, one topic a row; two words or more.
    counts
        Documents by words: those of the training corpus, or of another.
    smoothing
        In place of 1.

    Examples
    --------
    >>> u_mass([[0, 1], [0, 2]], [[1, 1, 0], [2, 1, 0], [0, 0, 3]]).round(3)    # log 3/2 and log 1/2
    array([ 0.405, -0.693])
    """
    words, present = _occurrences(top, counts)
    found = np.zeros(len(words))
    for topic, columns in enumerate(words):
        together = _together(present, columns)
        alone = np.diag(together)
        # The better word, which comes first, is the one that is given.
        better, worse = np.triu_indices(len(columns), 1)
        kept = alone[better] > 0
        ratio = (together[better, worse] + smoothing)[kept] / alone[better][kept]
        found[topic] = np.log(ratio).sum() if kept.any() else np.nan
    return found


def npmi(top: Any, counts: Any) -> Float[np.ndarray, " k"]:
    """Coherence by normalised pointwise mutual information: its mean over the pairs of a topic's words.

    NPMI = log(p(w, v) / p(w)p(v)) / −log p(w, v), with p the share of documents in which words occur, or occur
    together (Bouma 2009; Lau et al. 2014). It is 1 for words that occur only together, about 0 for words that have
    nothing to do with each other, and −1 for words that never meet.

    Parameters
    ----------
    top
        Columns of each topic's words, one topic a row; two words or more.
    counts
        Documents by words: those of the training corpus, or of another.

    Examples
    --------
    >>> npmi([[0, 1], [0, 2]], [[1, 1, 0], [2, 1, 0], [0, 0, 3]])
    array([ 1., -1.])
    """
    words, present = _occurrences(top, counts)
    found = np.zeros(len(words))
    for topic, columns in enumerate(words):
        together = _together(present, columns) / present.shape[0]
        alone = np.diag(together)
        first, second = np.triu_indices(len(columns), 1)
        both, apart = together[first, second], alone[first] * alone[second]
        values = np.where(both >= 1, 1.0, -1.0)
        met = (both > 0) & (both < 1)
        values[met] = np.log(both[met] / apart[met]) / -np.log(both[met])
        found[topic] = values.mean()
    return found


def exclusivity(components: Any, top: Any) -> Float[np.ndarray, " k"]:
    """How much a topic's words are its own: the mean over them of p(w | k) / Σⱼ p(w | j), from 1/K or less to 1.

    Parameters
    ----------
    components
        p(word | topic), one topic a row.
    top
        Columns of each topic's words, one topic a row.

    Examples
    --------
    >>> exclusivity([[0.6, 0.4, 0.0], [0.2, 0.0, 0.8]], [[0, 1], [2, 0]])
    array([0.875, 0.625])
    """
    topics, words = distributions(components), _words(top, np.shape(components)[-1])
    if len(words) != len(topics):
        raise ValueError(f"top must have a row for each of the {len(topics)} topics, found {len(words)}")
    total = topics.sum(axis=0)
    share = np.divide(topics, total, out=np.zeros_like(topics), where=total > 0)
    return np.take_along_axis(share, words, axis=1).mean(axis=1)


def _words(top: Any, size: int) -> Int[np.ndarray, "k n"]:
    words = np.asarray(top)
    if words.ndim != 2 or not np.issubdtype(words.dtype, np.integer) or not words.size:
        raise ValueError(f"top must hold one row of columns for each topic, found {words.dtype} of shape {words.shape}")
    if words.min() < 0 or words.max() >= size:
        raise ValueError(f"top must hold columns from 0 to {size - 1}, found {words.min()} to {words.max()}")
    return words


def _occurrences(top: Any, counts: Any) -> tuple[np.ndarray, csr_array]:
    """The words, and whether each occurs in a document."""
    table = whole_counts(counts)
    words = _words(top, table.shape[1])
    if words.shape[1] < 2:
        raise ValueError(f"top must hold two words or more of each topic, found {words.shape[1]}")
    if not table.shape[0]:
        raise ValueError("counts must have a document, found none")
    return words, (table != 0).astype(np.int64)


def _together(present: csr_array, columns: np.ndarray) -> np.ndarray:
    """In how many documents words occur together; on the diagonal, at all."""
    some = present[:, columns]
    return (some.T @ some).toarray()

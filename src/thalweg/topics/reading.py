"""Read topics: the words and documents of a topic, which topics go together, and how coherent their words are.

Coherence and exclusivity take the words of each topic as columns of the counts, best first: see :func:`top_indices`.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int
from scipy.stats import norm, rankdata

from thalweg.arguments import one_of, real, whole
from thalweg.linalg.arrays import ratio
from thalweg.topics.tables import as_counts, as_frequency, as_proportions, as_topics, as_vocabulary

__all__ = ["exclusivity", "npmi", "top_documents", "top_indices", "top_words", "u_mass", "word_scores"]
__all__ += ["Graph", "correlation_graph", "topic_correlations"]

ORDERS = ("probability", "frex", "lift")


def word_scores(
    components: Any, by: str = "probability", *, frequency: Any = None, weight: float = 0.5
) -> Float[np.ndarray, "k v"]:
    """Score how well each word stands for each topic.

    Parameters
    ----------
    components
        p(word | topic), one topic a row.
    by
        ``"probability"`` is p(w | k). ``"lift"`` is p(w | k) / p(w), which favours rare words. ``"frex"`` asks for
        words that are both frequent and exclusive: the harmonic mean of two ranks within the topic, that of p(w | k)
        and that of p(w | k) / Σⱼ p(w | j), each as a share of the vocabulary (Bischof and Airoldi 2012, eq. 2).
    frequency
        How often each word occurs in the corpus, for lift; without it p(w) is the mean of the topics.
    weight
        Of exclusivity in FREX, from 0 to 1.

    Examples
    --------
    >>> topics = [[0.7, 0.2, 0.1], [0.7, 0.1, 0.2]]
    >>> word_scores(topics, "frex").round(2)
    array([[0.8 , 0.8 , 0.33],
           [0.8 , 0.33, 0.8 ]])
    >>> word_scores(topics, "lift").round(2)
    array([[1.  , 1.33, 0.67],
           [1.  , 0.67, 1.33]])
    """
    topics = as_topics(components)
    if one_of("by", by, ORDERS) == "probability":
        return topics
    if by == "lift":
        return ratio(topics, topics.mean(axis=0) if frequency is None else as_frequency(frequency, topics.shape[1]))
    weight = real("weight", weight, least=0, most=1)
    exclusive, frequent = (rankdata(each, axis=1) / topics.shape[1] for each in (_exclusivities(topics), topics))
    return 1 / (weight / exclusive + (1 - weight) / frequent)


def _exclusivities(topics: np.ndarray) -> np.ndarray:
    """p(w | k) / Σⱼ p(w | j), and 0 for a word that never occurs."""
    return ratio(topics, topics.sum(axis=0))


def top_indices(
    components: Any, n: int = 10, by: str = "probability", *, frequency: Any = None, weight: float = 0.5
) -> Int[np.ndarray, "k n"]:
    """Return the columns of the n words that stand best for each topic, best first; see :func:`word_scores`.

    Examples
    --------
    >>> top_indices([[0.1, 0.6, 0.3], [0.5, 0.2, 0.3]], 2)
    array([[1, 2],
           [0, 2]])
    """
    scores = word_scores(components, by, frequency=frequency, weight=weight)
    return np.argsort(-scores, axis=1, kind="stable")[:, : whole("n", n)]


def top_words(
    components: Any,
    vocabulary: Any,
    n: int = 10,
    by: str = "probability",
    *,
    frequency: Any = None,
    weight: float = 0.5,
) -> list[list[str]]:
    """Return the n words that stand best for each topic, best first; see :func:`word_scores` for what best means.

    Examples
    --------
    >>> top_words([[0.1, 0.6, 0.3], [0.5, 0.2, 0.3]], ["court", "rain", "wind"], 2)
    [['rain', 'wind'], ['court', 'wind']]
    """
    words = as_vocabulary(vocabulary, np.shape(components)[-1])
    return [[words[i] for i in row] for row in top_indices(components, n, by, frequency=frequency, weight=weight)]


def top_documents(proportions: Any, topic: int, n: int = 10) -> Int[np.ndarray, " n"]:
    """Return the rows of the n documents with the largest share of a topic, the largest first.

    Examples
    --------
    >>> top_documents([[0.2, 0.8], [0.9, 0.1], [0.5, 0.5]], topic=0, n=2)
    array([1, 2])
    """
    table = as_proportions(proportions)
    topic = whole("topic", topic, least=0, most=table.shape[1] - 1)
    return np.argsort(-table[:, topic], kind="stable")[: whole("n", n)]


def topic_correlations(proportions: Any = None, *, covariance: Any = None) -> Float[np.ndarray, "k k"]:
    """Return which topics go together: correlations over documents, or those of a logistic-normal prior.

    Parameters
    ----------
    proportions
        Documents by topics: the correlations of its columns. A topic that is the same in all documents has none (0).
    covariance
        Of the prior of z, K × K, instead. Adding one number to all of z leaves the proportions as they are, so it is
        the correlation of z less its mean over topics (the centred log-ratio of θ) that says something about them.

    Examples
    --------
    >>> topic_correlations([[0.5, 0.4, 0.1], [0.3, 0.2, 0.5], [0.2, 0.1, 0.7]]).round(2)
    array([[ 1.,  1., -1.],
           [ 1.,  1., -1.],
           [-1., -1.,  1.]])
    >>> topic_correlations(covariance=np.eye(3) + 5.0).round(2)
    array([[ 1. , -0.5, -0.5],
           [-0.5,  1. , -0.5],
           [-0.5, -0.5,  1. ]])
    """
    if (proportions is None) == (covariance is None):
        raise ValueError("give either proportions or covariance")
    if covariance is None:
        return _column_correlations(as_proportions(proportions))
    matrix = np.asarray(covariance, float)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or not np.isfinite(matrix).all():
        raise ValueError(f"covariance must be a square matrix of finite numbers, found shape {matrix.shape}")
    size = np.abs(matrix).max(initial=0)
    if not np.allclose(matrix, matrix.T, atol=1e-6 * size) or np.linalg.eigvalsh(matrix)[0] < -1e-6 * size:
        raise ValueError("covariance must be symmetric and have no negative eigenvalue, found a matrix that is not so")
    return _as_correlations(matrix - matrix.mean(axis=0) - matrix.mean(axis=1)[:, None] + matrix.mean())


def _column_correlations(table: np.ndarray) -> np.ndarray:
    centred = table - table.mean(axis=0)
    return _as_correlations(centred.T @ centred)


def _as_correlations(covariance: np.ndarray) -> np.ndarray:
    """Scale a covariance to correlations; those of a constant are 0."""
    scale = np.sqrt(np.maximum(np.diag(covariance), 0))
    product = np.outer(scale, scale)
    varies = product > 1e-12 * max(product.max(), 1e-300)
    correlations = np.divide(covariance, product, out=np.zeros_like(covariance), where=varies)
    np.fill_diagonal(correlations, 1.0)
    return np.clip(correlations, -1, 1)


class Graph(NamedTuple):
    """Edges between topics, the strongest first, and their correlations.

    >>> Graph(np.array([[0, 2]]), np.array([0.4])).edges
    array([[0, 2]])
    """

    edges: Int[np.ndarray, "e 2"]
    correlations: Float[np.ndarray, " e"]


def correlation_graph(
    proportions: Any, method: str = "threshold", *, threshold: float = 0.05, level: float = 0.05
) -> Graph:
    """Return the graph of topics that occur together more than by chance.

    Parameters
    ----------
    proportions
        Documents by topics.
    method
        ``"threshold"``: an edge where the correlation over documents is above ``threshold``. ``"neighbours"``: an edge
        where two topics are positively correlated and each helps to predict the other once all others are known: it has
        a weight in the other's lasso regression, with Meinshausen and Bühlmann's penalty at ``level`` (2006, eq. 9).
        Shares sum to one, which alone makes topics predict each other; this uses centred log-ratios, log θ less its
        mean over topics, which suffer less from it.
    threshold, level
        As above.

    Examples
    --------
    >>> graph = correlation_graph([[0.5, 0.4, 0.1], [0.3, 0.2, 0.5], [0.2, 0.1, 0.7]])
    >>> graph.edges, graph.correlations.round(2)
    (array([[0, 1]]), array([1.]))
    """
    one_of("method", method, ("threshold", "neighbours"))
    table = as_proportions(proportions)
    if method == "threshold":
        correlations = _column_correlations(table)
        joined = correlations > real("threshold", threshold, least=-1, most=1)
    else:
        logs = np.log(np.maximum(table, np.finfo(float).eps))
        table = logs - logs.mean(axis=1, keepdims=True)
        correlations = _column_correlations(table)
        chosen = _lasso_neighbours(table, real("level", level, above=0, below=1))
        joined = chosen & chosen.T & (correlations > 0)
    first, second = np.nonzero(np.triu(joined, 1))
    strengths = correlations[first, second]
    order = np.argsort(-strengths, kind="stable")
    return Graph(np.stack([first, second], axis=1)[order], strengths[order])


def _lasso_neighbours(table: np.ndarray, level: float) -> np.ndarray:
    """Whether the column has a weight in the row's regression on all other topics, all of them standardised."""
    from sklearn.linear_model import Lasso

    n, k = table.shape
    deviations = table.std(axis=0)
    scaled = (table - table.mean(axis=0)) / np.where(deviations > 0, deviations, 1.0)
    penalty = norm.isf(level / (2 * k**2)) / np.sqrt(n)
    chosen = np.zeros((k, k), bool)
    for topic in np.flatnonzero(deviations > 0):
        others = np.arange(k) != topic
        fitted = Lasso(alpha=penalty, max_iter=10_000).fit(scaled[:, others], scaled[:, topic])
        chosen[topic, others] = np.asarray(fitted.coef_) != 0
    return chosen


def u_mass(top: Any, counts: Any, *, smoothing: float = 1.0) -> Float[np.ndarray, " k"]:
    """Return Mimno et al.'s coherence: Σ_{m>l} log (D(w_m, w_l) + 1) / D(w_l) over a topic's words, best first.

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

    def coherence(both: np.ndarray, better: np.ndarray, worse: np.ndarray, documents: int) -> float:
        known = better > 0
        ratio = (both + smoothing)[known] / better[known]
        return float(np.log(ratio).sum()) if known.any() else np.nan

    return _over_pairs(coherence, top, counts)


def npmi(top: Any, counts: Any) -> Float[np.ndarray, " k"]:
    """Return the normalised pointwise mutual information of a topic's words, its mean over their pairs.

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

    def coherence(both: np.ndarray, first: np.ndarray, second: np.ndarray, documents: int) -> float:
        values = np.where(both >= documents, 1.0, -1.0)
        met = (both > 0) & (both < documents)
        share, expected = both[met] / documents, first[met] * second[met] / documents**2
        values[met] = np.log(share / expected) / -np.log(share)
        return float(values.mean())

    return _over_pairs(coherence, top, counts)


def exclusivity(components: Any, top: Any) -> Float[np.ndarray, " k"]:
    """Return how much a topic's words are its own: the mean of p(w | k) / Σⱼ p(w | j), from 1/K or less to 1.

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
    topics, columns = as_topics(components), _as_columns(top, np.shape(components)[-1])
    if len(columns) != len(topics):
        raise ValueError(f"top must have a row for each of the {len(topics)} topics, found {len(columns)}")
    return np.take_along_axis(_exclusivities(topics), columns, axis=1).mean(axis=1)


def _over_pairs(coherence: Callable[..., float], top: Any, counts: Any) -> Float[np.ndarray, " k"]:
    """``coherence(documents with both, with the better, with the worse, all)`` of the pairs of each topic's words."""
    table = as_counts(counts)
    columns = _as_columns(top, table.shape[1])
    if columns.shape[1] < 2:
        raise ValueError(f"top must hold two words or more of each topic, found {columns.shape[1]}")
    if not table.shape[0]:
        raise ValueError("counts must have a document, found none")
    occurs = (table != 0).astype(np.int64)
    better, worse = np.triu_indices(columns.shape[1], 1)
    values = []
    for words in columns:
        together = (occurs[:, words].T @ occurs[:, words]).toarray()
        alone = np.diag(together)
        values.append(coherence(together[better, worse], alone[better], alone[worse], table.shape[0]))
    return np.array(values)


def _as_columns(top: Any, size: int) -> Int[np.ndarray, "k n"]:
    columns = np.asarray(top)
    if columns.ndim != 2 or not np.issubdtype(columns.dtype, np.integer) or not columns.size:
        raise ValueError(
            f"top must hold one row of columns for each topic, found {columns.dtype} of shape {columns.shape}"
        )
    if columns.min() < 0 or columns.max() >= size:
        raise ValueError(f"top must hold columns from 0 to {size - 1}, found {columns.min()} to {columns.max()}")
    return columns

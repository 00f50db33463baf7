"""What readers of topics look at: the words of a topic, its documents, and which topics go together."""

from collections.abc import Mapping, Set
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int
from scipy.stats import norm, rankdata

from thalweg.arguments import one_of, real, whole
from thalweg.topics.tables import distributions

_LEAST_SHARE = 1e-6
ORDERS = ("probability", "frex", "lift")


def word_scores(
    components: Any, by: str = "probability", *, frequency: Any = None, weight: float = 0.5
) -> Float[np.ndarray, "k v"]:
    """How well each word stands for each topic.

    Parameters
    ----------
    components
        p(word | topic), one topic a row.
    by
        ``"probability"`` is p(w | k). ``"lift"`` is p(w | k) / p(w), which brings up rare words. ``"frex"`` asks for
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
    topics = distributions(components)
    if one_of("by", by, ORDERS) == "probability":
        return topics
    if by == "lift":
        overall = topics.mean(axis=0) if frequency is None else _frequency(frequency, topics.shape[1])
        # A word that never occurs has no lift: it would be infinite.
        return np.divide(topics, overall, out=np.zeros_like(topics), where=overall > 0)
    weight = real("weight", weight, least=0, most=1)
    total = topics.sum(axis=0)
    exclusive = np.divide(topics, total, out=np.zeros_like(topics), where=total > 0)
    ranks = [rankdata(each, axis=1) / topics.shape[1] for each in (exclusive, topics)]
    return 1 / (weight / ranks[0] + (1 - weight) / ranks[1])


def top_indices(
    components: Any, n: int = 10, by: str = "probability", *, frequency: Any = None, weight: float = 0.5
) -> Int[np.ndarray, "k n"]:
    """The columns of the n words that stand best for each topic, best first; see :func:`word_scores`.

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
    """The n words that stand best for each topic, best first; see :func:`word_scores` for what best means.

    Examples
    --------
    >>> top_words([[0.1, 0.6, 0.3], [0.5, 0.2, 0.3]], ["court", "rain", "wind"], 2)
    [['rain', 'wind'], ['court', 'wind']]
    """
    words = as_vocabulary(vocabulary, np.shape(components)[-1])
    return [[words[i] for i in row] for row in top_indices(components, n, by, frequency=frequency, weight=weight)]


def top_documents(proportions: Any, topic: int, n: int = 10) -> Int[np.ndarray, " n"]:
    """The rows of the n documents with most of a topic, most first.

    Examples
    --------
    >>> top_documents([[0.2, 0.8], [0.9, 0.1], [0.5, 0.5]], topic=0, n=2)
    array([1, 2])
    """
    table = as_proportions(proportions)
    topic = whole("topic", topic, least=0, most=table.shape[1] - 1)
    return np.argsort(-table[:, topic], kind="stable")[: whole("n", n)]


def topic_correlations(proportions: Any = None, *, covariance: Any = None) -> Float[np.ndarray, "k k"]:
    """Which topics go together: correlations over documents, or those of a logistic-normal prior.

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
        return _correlations(as_proportions(proportions))
    spread = np.asarray(covariance, float)
    if spread.ndim != 2 or spread.shape[0] != spread.shape[1] or not np.isfinite(spread).all():
        raise ValueError(f"covariance must be a square matrix of finite numbers, found shape {spread.shape}")
    size = np.abs(spread).max(initial=0)
    if not np.allclose(spread, spread.T, atol=1e-6 * size) or np.linalg.eigvalsh(spread)[0] < -1e-6 * size:
        raise ValueError("covariance must be symmetric and have no negative eigenvalue, found a matrix that is not so")
    return _scaled(spread - spread.mean(axis=0) - spread.mean(axis=1)[:, None] + spread.mean())


def _correlations(table: np.ndarray) -> np.ndarray:
    """Of the columns."""
    away = table - table.mean(axis=0)
    return _scaled(away.T @ away)


def _scaled(spread: np.ndarray) -> np.ndarray:
    """A covariance as correlations; those with what does not vary are 0."""
    scale = np.sqrt(np.maximum(np.diag(spread), 0))
    product = np.outer(scale, scale)
    found = np.divide(spread, product, out=np.zeros_like(spread), where=product > 1e-12 * max(product.max(), 1e-300))
    np.fill_diagonal(found, 1.0)
    return np.clip(found, -1, 1)


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
    """The graph of topics that occur together more than by chance.

    Parameters
    ----------
    proportions
        Documents by topics.
    method
        ``"threshold"``: an edge where the correlation over documents is above ``threshold``. ``"neighbours"``: an edge
        where two topics are positively correlated and each helps to predict the other once all others are known: it has
        a weight in the other's lasso regression, with Meinshausen and Bühlmann's penalty at ``level`` (2006, eq. 9).
        Shares sum to one, which alone makes topics predict each other; centred log-ratios, log θ less its mean over
        topics, suffer less from it, and are what this looks at.
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
        correlations = topic_correlations(table)
        joined = correlations > real("threshold", threshold, least=-1, most=1)
    else:
        logs = np.log(np.maximum(table, _LEAST_SHARE))
        table = logs - logs.mean(axis=1, keepdims=True)
        correlations = _correlations(table)
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
    spread = table.std(axis=0)
    scaled = (table - table.mean(axis=0)) / np.where(spread > 0, spread, 1.0)
    penalty = norm.isf(level / (2 * k**2)) / np.sqrt(n)
    chosen = np.zeros((k, k), bool)
    for topic in np.flatnonzero(spread > 0):
        others = np.arange(k) != topic
        fitted = Lasso(alpha=penalty, max_iter=10_000).fit(scaled[:, others], scaled[:, topic])
        chosen[topic, others] = np.asarray(fitted.coef_) != 0
    return chosen


def as_vocabulary(vocabulary: Any, size: int) -> list[str]:
    """The words in the order of the columns, or an error that says how many there should be.

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


def as_proportions(proportions: Any) -> Float[np.ndarray, "n k"]:
    """Documents by topics, or an error that says what is wrong."""
    table = np.asarray(proportions, float)
    if table.ndim != 2 or not table.size or not np.isfinite(table).all() or (table < 0).any():
        raise ValueError(f"proportions must hold one row of shares for each document, found shape {table.shape}")
    return table


def _frequency(frequency: Any, size: int) -> np.ndarray:
    counts = np.asarray(frequency, float).ravel()
    if len(counts) != size or not np.isfinite(counts).all() or (counts < 0).any() or counts.sum() <= 0:
        raise ValueError(
            f"frequency must hold a count for each of the {size} words, finite and some above 0, found {len(counts)} "
            f"numbers from {counts.min(initial=np.inf):g} to {counts.max(initial=-np.inf):g}"
        )
    return counts / counts.sum()

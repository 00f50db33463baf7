"""Where topics lie on a page: a map of which are alike, and a ring on which neighbours go together."""

from typing import Any

import numpy as np
from jaxtyping import Float, Int
from scipy.cluster.hierarchy import average, leaves_list, optimal_leaf_ordering
from scipy.spatial.distance import squareform
from scipy.special import xlogy

from thalweg.topics.tables import distributions

_CLEAR = 0.85
"""Of the sum of two radii: how near the middles of two discs may be."""
_PUSHES = 300
_CALM = 0.7


def topic_distances(components: Any) -> Float[np.ndarray, "k k"]:
    """Jensen–Shannon distances between topics: the square root of their divergence in bits, from 0 to 1.

    Examples
    --------
    >>> topic_distances([[1, 0, 0], [1, 0, 0], [0, 1, 1]])
    array([[0., 0., 1.],
           [0., 0., 1.],
           [1., 1., 0.]])
    """
    topics = distributions(components)
    found = np.zeros((len(topics), len(topics)))
    for first, one in enumerate(topics):
        middle = (one + topics) / 2
        entropy = lambda p: -xlogy(p, p).sum(axis=-1)
        divergence = entropy(middle) - (entropy(one) + entropy(topics)) / 2
        found[first] = np.sqrt(np.maximum(divergence, 0) / np.log(2))
    np.fill_diagonal(found, 0.0)
    return np.round((found + found.T) / 2, 12)


def topic_map(components: Any) -> Float[np.ndarray, "k 2"]:
    """Points in the plane, one a topic, whose distances are about the Jensen–Shannon distances: classical scaling.

    Examples
    --------
    >>> points = topic_map([[1, 0, 0], [1, 0, 0], [0, 1, 1]])
    >>> np.linalg.norm(points - points[0], axis=1).round(6)
    array([0., 0., 1.])
    """
    squares = topic_distances(components) ** 2
    centred = squares - squares.mean(axis=0) - squares.mean(axis=1)[:, None] + squares.mean()
    values, vectors = np.linalg.eigh(-centred / 2)
    best = np.argsort(-values)[:2]
    points = vectors[:, best] * np.sqrt(np.maximum(values[best], 0))
    # The sign of an eigenvector is arbitrary; the same topics should lie in the same place on any machine.
    points *= np.where(points[np.argmax(np.abs(points), axis=0), range(points.shape[1])] < 0, -1.0, 1.0)
    return np.pad(points, ((0, 0), (0, 2 - points.shape[1])))


def without_hiding(
    places: Float[np.ndarray, "k 2"], radii: Float[np.ndarray, " k"], size: tuple[float, float]
) -> Float[np.ndarray, "k 2"]:
    """Discs moved apart, as little as that takes, until none covers another's middle, and kept on the page.

    Examples
    --------
    >>> without_hiding(np.array([[50.0, 50.0], [51.0, 50.0]]), np.array([10.0, 10.0]), (100, 100)).round()
    array([[42., 50.],
           [59., 50.]])
    """
    places = places.astype(float)
    enough = _CLEAR * (radii[:, None] + radii[None])
    np.fill_diagonal(enough, 0.0)
    # Discs in the same place must go somewhere.
    angles = 2.4 * np.arange(len(places))
    places += 1e-3 * np.stack([np.cos(angles), np.sin(angles)], axis=1)
    for _ in range(_PUSHES):
        away = places[:, None] - places[None]
        gaps = np.linalg.norm(away, axis=2)
        short = np.maximum(enough - gaps, 0)
        if short.max(initial=0) < 0.5:
            break
        places += 0.5 * np.sum(short[:, :, None] * away / np.maximum(gaps, 1e-9)[:, :, None], axis=1) * _CALM
        places = np.clip(places, radii[:, None] + 2, np.array(size) - radii[:, None] - 2)
    return places


def ring_order(correlations: Any) -> Int[np.ndarray, " k"]:
    """An order of topics in which those that go together are near: the leaves of a tree of clusters.

    Examples
    --------
    >>> ring_order([[1.0, 0.0, 0.9], [0.0, 1.0, 0.1], [0.9, 0.1, 1.0]])
    array([0, 2, 1])
    """
    table = np.asarray(correlations, float)
    if len(table) < 3:
        return np.arange(len(table))
    apart = squareform(1 - (table + table.T) / 2, checks=False)
    found = leaves_list(optimal_leaf_ordering(average(apart), apart)).astype(int)
    return found if found[0] <= found[-1] else found[::-1]

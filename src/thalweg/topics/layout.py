"""Place topics on a page: a map on which similar topics are near, and a ring on which neighbours go together."""

from typing import Any

import numpy as np
from jaxtyping import Float, Int
from scipy.cluster.hierarchy import average, leaves_list, optimal_leaf_ordering
from scipy.spatial.distance import pdist, squareform

from thalweg.topics.tables import as_topics


def topic_distances(components: Any) -> Float[np.ndarray, "k k"]:
    """Return Jensen–Shannon distances between topics: the square root of their divergence in bits, from 0 to 1.

    Examples
    --------
    >>> topic_distances([[1, 0, 0], [1, 0, 0], [0, 1, 1]])
    array([[0., 0., 1.],
           [0., 0., 1.],
           [1., 1., 0.]])
    """
    distances = squareform(pdist(as_topics(components), "jensenshannon")) / np.sqrt(np.log(2))
    return np.nan_to_num(np.round(distances, 12))  # rounding may make the divergence of equal topics negative


def topic_map(components: Any) -> Float[np.ndarray, "k 2"]:
    """Return points in the plane whose distances approximate the Jensen–Shannon distances: classical scaling.

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
    # The sign of an eigenvector is arbitrary, and the map should be the same on every machine.
    points *= np.where(points[np.argmax(np.abs(points), axis=0), range(points.shape[1])] < 0, -1.0, 1.0)
    return np.pad(points, ((0, 0), (0, 2 - points.shape[1])))


def separate_discs(
    centres: Float[np.ndarray, "k 2"], radii: Float[np.ndarray, " k"], size: tuple[float, float]
) -> Float[np.ndarray, "k 2"]:
    """Move discs apart until none overlaps another, as far as the page has room, and keep them on it.

    Examples
    --------
    >>> separate_discs(np.array([[50.0, 50.0], [51.0, 50.0]]), np.array([10.0, 10.0]), (100, 100)).round()
    array([[41., 50.],
           [60., 50.]])
    """
    gaps = radii[:, None] + radii[None]
    np.fill_diagonal(gaps, 0.0)
    # Discs with one centre are pushed in directions of their own.
    angles = np.arange(len(centres))
    centres = centres + 1e-3 * np.stack([np.cos(angles), np.sin(angles)], axis=1)
    before = np.inf
    while True:
        away = centres[:, None] - centres[None]
        distances = np.linalg.norm(away, axis=2)
        overlap = np.maximum(gaps - distances, 0)
        # Half a pixel is nothing; discs that the page has no room for overlap no less after another push.
        if overlap.max(initial=0) < 0.5 or not overlap.sum() < before:
            return centres
        before = overlap.sum()
        centres = centres + np.sum((overlap / np.maximum(distances, 1e-9))[:, :, None] * away, axis=1) / 3
        centres = np.clip(centres, radii[:, None] + 2, np.array(size) - radii[:, None] - 2)


def ring_order(correlations: Any) -> Int[np.ndarray, " k"]:
    """Return an order in which correlated topics are near: the leaves of a tree of clusters.

    Examples
    --------
    >>> ring_order([[1.0, 0.0, 0.9], [0.0, 1.0, 0.1], [0.9, 0.1, 1.0]])
    array([0, 2, 1])
    """
    table = np.asarray(correlations, float)
    if len(table) < 3:
        return np.arange(len(table))
    distances = squareform(1 - (table + table.T) / 2, checks=False)
    order = leaves_list(optimal_leaf_ordering(average(distances), distances)).astype(int)
    return order if order[0] <= order[-1] else order[::-1]

"""How well the first recommendations meet what was held out."""

import numpy as np

from thalweg.completion.completed import Completed

_ROWS = 512
"""Rows whose scores for all columns are looked at at a time."""


def ranking(
    model: Completed, rows: np.ndarray, columns: np.ndarray, gains: np.ndarray, k: int, exclude_seen: bool
) -> dict[str, float]:
    """Mean NDCG@k and recall@k over the rows that have a held-out cell with a positive gain; see ``ranked``.

    Examples
    --------
    >>> from thalweg.completion import Options, Ratings, FactorSettings, complete
    >>> row, column = np.divmod(np.arange(36), 6)
    >>> ratings = Ratings(row, column, np.sin(row) * np.cos(column), None, (6, 6))
    >>> none = np.zeros((6, 0))
    >>> model = complete(ratings, none, none, Options(FactorSettings(rank=1, max_iter=9))).model
    >>> found = ranking(model, row, column, np.ones(36), 3, exclude_seen=False)
    >>> found["recall"]
    1.0
    """
    if np.any(gains < 0):
        raise ValueError(
            f"y must hold gains of at least 0, found {gains.min():g}: NDCG is a share of what can be gained"
        )
    seen = model.seen.matrix
    order = np.argsort(rows, kind="stable")
    rows, columns, gains = rows[order], columns[order], gains[order]
    which, compact = np.unique(rows, return_inverse=True)
    gained, recall, counted = 0.0, 0.0, 0
    for start in range(0, len(which), _ROWS):
        some = which[start : start + _ROWS]
        scores = model.scores(some)
        if exclude_seen:
            scores[seen[some].nonzero()] = -1e30
        here = (compact >= start) & (compact < start + len(some))
        relevant = np.zeros_like(scores)
        np.maximum.at(relevant, (compact[here] - start, columns[here]), gains[here])
        asked = relevant.max(axis=1) > 0
        if asked.any():
            found = ranked(relevant[asked], scores[asked], k)
            gained, recall, counted = gained + found[0], recall + found[1], counted + int(asked.sum())
    if not counted:
        raise ValueError("X must hold a cell of a row and a column that were seen, found none")
    return {"ndcg": gained / counted, "recall": recall / counted}


def ranked(relevant: np.ndarray, scores: np.ndarray, k: int) -> tuple[float, float]:
    """Sums over rows of NDCG@k, as scikit-learn defines it, and of recall@k.

    Examples
    --------
    >>> ranked(np.array([[1.0, 0.0, 1.0]]), np.array([[3.0, 2.0, 1.0]]), 2)
    (0.613..., 0.5)
    """
    first = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    hits = np.sum(np.take_along_axis(relevant, first, axis=1) > 0, axis=1)
    return float(np.sum(ndcg(relevant, scores, k))), float(np.sum(hits / np.minimum(np.sum(relevant > 0, axis=1), k)))


def ndcg(relevant: np.ndarray, scores: np.ndarray, k: int) -> np.ndarray:
    """NDCG@k of each row, as :func:`sklearn.metrics.ndcg_score` has its mean; ties as they come.

    Examples
    --------
    >>> ndcg(np.array([[1.0, 0.0, 1.0]]), np.array([[3.0, 2.0, 1.0]]), 2).round(3)
    array([0.613])
    """
    discount = 1 / np.log2(np.arange(min(k, scores.shape[1])) + 2)
    first = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    best = -np.sort(-relevant, axis=1)[:, :k]
    return (np.take_along_axis(relevant, first, axis=1) @ discount) / (best @ discount)

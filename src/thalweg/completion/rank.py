"""How well recommendations rank held-out cells, and how many factors a set of ratings supports.

Where there are fewer ratings than numbers to learn, many factors fit them at once, noise and all, and are then switched
off all together: a local maximum of the bound at which nothing is learned. So numbers of factors race, from none to
the most.
"""

from dataclasses import replace
from typing import Any

import numpy as np

from thalweg.completion.completed import Recommender
from thalweg.completion.factors import FactorSettings, FactorState
from thalweg.completion.ratings import Ratings
from thalweg.padding import MAX_TEMPORARY_NUMBERS
from thalweg.runs import raising_interrupts
from thalweg.selection import Entry, race

__all__ = ["ranking"]

MAX_RACED_RATINGS = 100_000
"""Above this a race would take minutes, and even a few ratings a row show which factors are of use."""

RACE_SWEEPS = 25
"""Sweeps after which candidates are compared. With half as many, candidates with useful factors can still be behind
those with none, but for how they rank counts. With few ratings that happens after as many, too: they have more."""

RACE_RATIO = 3
"""The ratio of two numbers of factors that race. Twice as large, the best may lie between two candidates."""

MAX_STARTS, RESTARTED_RATINGS = 4, 20_000
"""Random starts of the best number of factors, and the ratings they have in all. Of 300 ratings every other start ends
with its factors switched off (RMSE of six tables: 0.89 with one start, 0.84 with four); of many ratings all end alike.
"""

RACE_HELD_OUT = 0.2
"""With implicit feedback, the share of counts that is held out. With twice the share, what is left supports fewer
factors."""


def supported_rank(ratings: Ratings, rank: int) -> int:
    """Return the most factors that can be told apart: as many as rows and columns have ratings to learn them from.

    More are switched off, all together, and take their time at every sweep.

    Examples
    --------
    >>> row, column = np.divmod(np.arange(36), 6)
    >>> supported_rank(Ratings(row, column, np.ones(36), None, (6, 6)), 30)
    3
    """
    most = min(rank, *ratings.shape)
    if len(ratings.values) > MAX_RACED_RATINGS:
        return most
    return min(most, -(-len(ratings.values) // sum(ratings.shape)))


def choose_start(
    ratings: Ratings, row_features: np.ndarray, column_features: np.ndarray, settings: FactorSettings
) -> FactorState:
    """Return where to start, with the best number of factors if there are fewer ratings than numbers to learn.

    Ratings are scored by the bound for each of them: where a validation set would be needed most, it would take the
    ratings that show a factor. Counts have no bound, and are scored by NDCG on a validation set.
    """
    features = row_features, column_features

    def begin(ratings: Ratings, directions: int | None, further: int = 0) -> FactorState:
        start = replace(settings, directions=directions, seed=settings.seed + further)
        return FactorState.initial(ratings, *features, start)

    if len(ratings.values) > MAX_RACED_RATINGS or settings.directions is not None:
        return begin(ratings, settings.directions)
    if len(ratings.values) > settings.rank * sum(ratings.shape):
        return begin(ratings, settings.rank)
    candidates = [(settings.rank, 0)]
    while candidates[-1][0]:
        candidates.append((candidates[-1][0] // RACE_RATIO, 0))
    implicit = settings.background > 0
    starts = 1 if implicit else int(np.clip(RESTARTED_RATINGS // len(ratings.values), 1, MAX_STARTS))
    rng = np.random.default_rng(settings.seed)
    train, held_out = ratings.split(RACE_HELD_OUT, rng) if implicit else (ratings, ratings)
    states: dict[tuple[int, int], FactorState] = {}

    def losses(candidate: tuple[int, int], sweeps: int) -> np.ndarray:
        state = begin(train, *candidate)
        while len(state.bounds) < min(sweeps, settings.max_iter) and not state.converged:
            state = state.swept()
        states[candidate] = state
        return _ranking_losses(state, train, held_out) if implicit else -np.array([state.bounds[-1]])

    def propose(best: Entry[tuple[int, int]], sweeps: int) -> list[tuple[int, int]]:
        return [(max(best.candidate[0], 1), further) for further in range(1, starts)]

    with raising_interrupts():
        # One after the other: two programs of batched factorisations at once can deadlock XLA's pool of threads.
        sweeps = RACE_SWEEPS // 2 if implicit else RACE_SWEEPS * starts
        options: Any = {"standard_errors": 1.0, "level_errors": 1.0, "parallel": lambda rung: False}
        result = race(candidates, losses, [sweeps], propose=propose, **options)
    # The one-standard-error rule: fewer factors unless more are better by more than chance.
    fewest = min(entry.candidate for entry in (result.best, *result.level))
    return begin(ratings, *fewest) if implicit else states[fewest]


def _ranking_losses(state: FactorState, train: Ratings, held_out: Ratings) -> np.ndarray:
    """Return 1 − NDCG of the rows, as many as memory holds, that have a held-out cell without a count in training."""
    rows, columns = (np.asarray(side.posteriors.means)[: side.count] for side in (state.rows, state.columns))
    asked = np.unique(held_out.rows)[: max(MAX_TEMPORARY_NUMBERS // len(columns), 1)]
    seen, relevant = (part.cells()[asked].toarray() > 0 for part in (train, held_out))
    scores = np.where(seen, -np.inf, (rows[asked] @ columns.T).astype(np.float64))
    counted = np.any(relevant & ~seen, axis=1)
    if not counted.any():
        return np.ones(1)
    return 1 - ndcg(relevant[counted].astype(float), scores[counted], scores.shape[1])


def ranking(
    model: Recommender, rows: np.ndarray, columns: np.ndarray, gains: np.ndarray, k: int, exclude_seen: bool
) -> dict[str, float]:
    """Return mean NDCG@k and recall@k over the rows that have a held-out cell with a positive gain.

    Recall is the share of these cells that are among the first k, or of k if they are more than that.

    Examples
    --------
    >>> from thalweg.completion import Options, complete
    >>> row, column = np.divmod(np.arange(36), 6)
    >>> ratings = Ratings(row, column, np.sin(row) * np.cos(column), None, (6, 6))
    >>> none = np.zeros((6, 0))
    >>> model = complete(ratings, none, none, Options(FactorSettings(rank=1, max_iter=9))).model
    >>> ranking(model, row, column, np.ones(36), 3, exclude_seen=False)["recall"]
    1.0
    """
    if np.any(gains < 0):
        raise ValueError(
            f"y must hold gains of at least 0, found {gains.min():g}: NDCG is a share of what can be gained"
        )
    rated = model.rated
    asked, position = np.unique(rows, return_inverse=True)
    metrics = []
    at_once = max(MAX_TEMPORARY_NUMBERS // rated.shape[1], 1)
    for start in range(0, len(asked), at_once):
        chunk = asked[start : start + at_once]
        scores = model.scores(chunk)
        if exclude_seen:
            scores[rated[chunk].nonzero()] = -np.inf
        within = (position >= start) & (position < start + len(chunk))
        relevant = np.zeros_like(scores)
        np.maximum.at(relevant, (position[within] - start, columns[within]), gains[within])
        counted = relevant.max(axis=1) > 0
        relevant, scores = relevant[counted], scores[counted]
        metrics.append(np.stack([ndcg(relevant, scores, k), recall(relevant, scores, k)]))
    if not sum(part.size for part in metrics):
        raise ValueError("X must hold a cell of a row and a column that were seen, found none")
    return dict(zip(("ndcg", "recall"), np.hstack(metrics).mean(axis=1).tolist(), strict=True))


def _first(scores: np.ndarray, k: int) -> np.ndarray:
    return np.argsort(-scores, axis=1, kind="stable")[:, :k]


def ndcg(relevant: np.ndarray, scores: np.ndarray, k: int) -> np.ndarray:
    """Return NDCG@k of each row, as :func:`sklearn.metrics.ndcg_score` has its mean; ties keep their order.

    Examples
    --------
    >>> ndcg(np.array([[1.0, 0.0, 1.0]]), np.array([[3.0, 2.0, 1.0]]), 2).round(3)
    array([0.613])
    """
    discount = 1 / np.log2(np.arange(min(k, scores.shape[1])) + 2)
    ideal = -np.sort(-relevant, axis=1)[:, :k]
    return (np.take_along_axis(relevant, _first(scores, k), axis=1) @ discount) / (ideal @ discount)


def recall(relevant: np.ndarray, scores: np.ndarray, k: int) -> np.ndarray:
    """Return recall@k of each row.

    Examples
    --------
    >>> recall(np.array([[1.0, 0.0, 1.0]]), np.array([[3.0, 2.0, 1.0]]), 2)
    array([0.5])
    """
    hits = np.sum(np.take_along_axis(relevant, _first(scores, k), axis=1) > 0, axis=1)
    return hits / np.minimum(np.sum(relevant > 0, axis=1), k)

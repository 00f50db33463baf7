"""How many factors to start with where ratings are few: by the bound or, of implicit feedback, by cells set aside."""

from dataclasses import replace

import numpy as np

from thalweg.completion.factors import SMALL, FactorSettings, Fit, Ratings, fit
from thalweg.completion.ranking import ndcg
from thalweg.completion.seen import cells
from thalweg.descent import Status

_STARTS, _TRIAL = (3, 10), 12
"""Factors to start with where ratings are few, and sweeps until the bound tells which is best."""

_ASIDE, _ASKED, _FIRST, _WORTH, _EACH = 0.2, 1000, 10, 0.5, 20
"""Of few counts, how many factors they bear: the share set aside, the most rows asked, the ranks looked at, the gain of
more factors in standard errors that is worth them, and the counts a row and column beyond which they are not few."""


def likeliest_start(
    ratings: Ratings, row_features: np.ndarray, column_features: np.ndarray, settings: FactorSettings
) -> FactorSettings:
    """The settings with as many factors at the start as the bound likes best after a few sweeps.

    Many factors fit few ratings at once, noise and all, and are then switched off all together: a maximum of the bound
    at which nothing is learned. Where each number has enough ratings that does not happen, and nothing is tried.
    """
    if not few(ratings, settings, settings.rank):
        return settings
    best = (-np.inf, settings.rank)
    for directions in tried_directions(settings):
        found = tried(ratings, row_features, column_features, settings, directions)
        if found.bounds[-1] <= best[0]:
            break
        best = (found.bounds[-1], directions)
    return replace(settings, directions=best[1])


def few(ratings: Ratings, settings: FactorSettings, each: int) -> bool:
    """Whether ratings are fewer than some a row and column, and the number of factors to start with is not given.

    Examples
    --------
    >>> one = Ratings(np.array([0]), np.array([0]), np.array([3.0]), None, (1, 1))
    >>> few(one, FactorSettings(), 3), few(one, FactorSettings(directions=2), 3)
    (True, False)
    """
    return len(ratings.values) <= min(SMALL, each * sum(ratings.shape)) and settings.directions is None


def tried_directions(settings: FactorSettings, none: bool = False) -> list[int]:
    """Numbers of factors to start with, fewest first; 0 among them if asked for."""
    return [0] * none + [count for count in _STARTS if count < settings.rank] + [settings.rank]


def tried(
    ratings: Ratings, row_features: np.ndarray, column_features: np.ndarray, settings: FactorSettings, directions: int
) -> Fit:
    """A fit with so many factors at the start, for the few sweeps until it is seen what they are worth."""
    on_trial = replace(settings, directions=directions, max_iter=min(settings.max_iter, _TRIAL))
    found = fit(ratings, row_features, column_features, on_trial)
    if found.status is Status.INTERRUPTED:
        raise KeyboardInterrupt  # nothing of the fit itself has begun
    return found


def best_ranking_start(
    counts: Ratings, row_features: np.ndarray, column_features: np.ndarray, settings: FactorSettings
) -> FactorSettings:
    """The settings with as many factors at the start as rank cells set aside best; none may, and popularity is left.

    Where cells are few, factors fit who happened to do what. Where there are more, nothing is tried.
    """
    if not few(counts, settings, max(_EACH, settings.rank)):
        return settings
    rng = np.random.default_rng(settings.seed)
    aside = rng.random(len(counts.values)) < _ASIDE
    train, held = counts.part(~aside), counts.part(aside)
    asked = rng.permutation(np.unique(held.rows))[:_ASKED]
    done, wanted = cells(train)[asked].toarray() > 0, cells(held)[asked].toarray()
    some = np.sum(wanted * ~done, axis=1) > 0
    if not some.any():
        return replace(settings, directions=0)
    best, gained = 0, np.zeros(0)
    for directions in tried_directions(settings, none=True):
        found = tried(train, row_features, column_features, settings, directions)
        rows, columns = (np.asarray(side.posteriors.means)[: side.count] for side in (found.rows, found.columns))
        scores = np.where(done, -1e30, (rows[asked] @ columns.T).astype(np.float64))
        now = ndcg(wanted[some], scores[some], _FIRST)
        more = now - gained if directions else now
        if not directions or np.mean(more) > _WORTH * np.std(more) / np.sqrt(len(more)):
            best, gained = directions, now
    return replace(settings, directions=best)

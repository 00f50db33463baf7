"""New ratings for a completed matrix: the posteriors so far are the prior, and the updates are those of the fit."""

from dataclasses import replace

import numpy as np
from scipy.sparse import csr_matrix

from thalweg.completion.completed import Completed, SideVectors, prior_vectors
from thalweg.completion.posteriors import SideEvidence, VectorPosteriors, update_posteriors
from thalweg.completion.ratings import GRAIN, RatingBlocks, Ratings
from thalweg.padding import padded, padded_size
from thalweg.threads import enough_threads

__all__ = ["added", "extended", "vectors_of"]

ROUNDS = 3
"""How often rows and columns are updated in turn. With one, new rows do not know of new columns; six change little."""


def vectors_of(model: Completed, ratings: Ratings, side: np.ndarray) -> VectorPosteriors:
    """Return the posteriors of new rows, with indices from 0, given their ratings alone; columns stay as they are.

    Examples
    --------
    >>> from thalweg.completion import Options, FactorSettings, complete
    >>> row, column = np.divmod(np.arange(36), 6)
    >>> ratings = Ratings(row, column, np.sin(row) * np.cos(column), None, (6, 6))
    >>> none = np.zeros((6, 0))
    >>> model = complete(ratings, none, none, Options(FactorSettings(rank=1, max_iter=9))).model
    >>> new = Ratings(np.zeros(3, int), np.arange(3), np.array([0.5, 0.3, -0.2]), None, (1, 6))
    >>> vectors_of(model, new, np.zeros((1, 0))).means.shape
    (1, 3)
    """
    known = model.rows.count
    rows = _with_rows(model.rows, side, ratings.cells())
    ratings = model.units.standardise(ratings._replace(rows=known + ratings.rows, shape=(rows.count, ratings.shape[1])))
    new = np.arange(known, rows.count)
    rows = _updated(rows, model.columns, ratings, replace(model, ratings=ratings), new)
    return VectorPosteriors(rows.means[new], rows.covariances[new])


def extended(model: Completed, ratings: Ratings, row_side: np.ndarray, column_side: np.ndarray) -> Completed:
    """Return the model with new rows and columns, at their prior, and the cells rated now among those rated.

    ``row_side`` and ``column_side`` hold the side information of the new ones, a line each.

    Examples
    --------
    >>> from thalweg.completion import Options, FactorSettings, complete
    >>> row, column = np.divmod(np.arange(36), 6)
    >>> ratings = Ratings(row, column, np.sin(row) * np.cos(column), None, (6, 6))
    >>> none = np.zeros((6, 0))
    >>> model = complete(ratings, none, none, Options(FactorSettings(rank=1, max_iter=9))).model
    >>> more = Ratings(np.array([6]), np.array([0]), np.array([0.5]), None, (7, 6))
    >>> extended(model, more, np.zeros((1, 0)), np.zeros((0, 0))).rows.count
    7
    """
    cells, before = ratings.cells(), model.ratings.shape
    rows = _with_rows(model.rows, row_side, cells[before[0] :])
    columns = _with_rows(model.columns, column_side, cells.T.tocsr()[before[1] :])
    longer = replace(
        model,
        rows=rows,
        columns=columns,
        ratings=model.ratings.joined(ratings),
        low=min(model.low, float(ratings.values.min(initial=np.inf))),
        high=max(model.high, float(ratings.values.max(initial=-np.inf))),
    )
    if not model.units.confidence:
        return longer
    # To a new row, all cells say "0" at first.
    none = ratings.part(np.zeros(0, int))
    return replace(
        longer,
        rows=_updated(rows, columns, none, longer, np.arange(before[0], rows.count)),
        columns=_updated(columns, rows, none.transposed, longer, np.arange(before[1], columns.count)),
    )


def added(model: Completed, ratings: Ratings) -> Completed:
    """Return the model after ratings of rows and columns it knows: q ∝ (posterior so far) × exp E log p(ratings).

    Examples
    --------
    >>> from thalweg.completion import Options, FactorSettings, complete
    >>> row, column = np.divmod(np.arange(36), 6)
    >>> ratings = Ratings(row, column, np.sin(row) * np.cos(column), None, (6, 6))
    >>> none = np.zeros((6, 0))
    >>> model = complete(ratings, none, none, Options(FactorSettings(rank=1, max_iter=9))).model
    >>> new = Ratings(np.array([2]), np.array([3]), np.array([9.0]), None, (6, 6))
    >>> before, after = (one.raw(np.array([2]), np.array([3]))[0][0] for one in (model, added(model, new)))
    >>> bool(after > before)
    True
    """
    ratings = model.units.standardise(ratings)
    rows, columns = model.rows, model.columns
    for _ in range(ROUNDS):
        rows = _updated(model.rows, columns, ratings, model)
        columns = _updated(model.columns, rows, ratings.transposed, model)
    return replace(model, rows=rows, columns=columns)


def _with_rows(old: SideVectors, information: np.ndarray, cells: csr_matrix) -> SideVectors:
    """Return a side with further rows, at their prior, that have this side information and these rated cells."""
    new = prior_vectors(old.prior, old.feature_map(information, cells), old.layout)
    pairs = zip((old.means, old.covariances), new, strict=True)
    means, covariances = (np.vstack([before[:-1], part, before[-1:]]) for before, part in pairs)
    return replace(
        old,
        means=means,
        covariances=covariances,
        noise_scales=old.noise_scales.extended(len(information)),
        information=np.vstack([old.information, information]),
        selection=np.pad(old.selection, (0, len(information))),
    )


@enough_threads(1)
def _updated(
    old: SideVectors, other: SideVectors, ratings: Ratings, model: Completed, new_rows: np.ndarray | None = None
) -> SideVectors:
    """Return a side after ratings of some of its rows; of new ones, after what cells without ratings say too."""
    layout, chosen = old.layout, np.unique(ratings.rows) if new_rows is None else new_rows
    if not len(chosen):
        return old
    ratings = ratings._replace(rows=np.searchsorted(chosen, ratings.rows), shape=(len(chosen), other.count))
    counts = (model.ratings.transposed if layout.columns else model.ratings).counts
    # Padded, so that a few more rows compile nothing.
    size, columns = padded_size(len(chosen), GRAIN), padded_size(len(other.means), GRAIN)
    single = lambda numbers, size: padded(numbers, size).astype(np.float32)
    scales, posteriors = single(other.noise_scales.means, columns), (padded(part, columns) for part in other.posteriors)
    background = scales * float(new_rows is not None and model.units.confidence > 0)
    evidence = SideEvidence(RatingBlocks.of(ratings), VectorPosteriors(*posteriors), scales, background)
    prior_means = single(old.means[chosen][:, np.array(layout.free)], size)
    precisions = np.tile(np.eye(len(layout.free), dtype=np.float32), (size, 1, 1))
    precisions[: len(chosen)] = np.linalg.inv(layout.free_entries(old.covariances[chosen].astype(np.float64)))
    noise = single(model.noise * old.weights(counts[chosen]) * old.noise_scales.means[chosen], size)
    new, misfit, _ = update_posteriors(evidence, noise, prior_means, precisions, layout)
    means, covariances = old.means.copy(), old.covariances.copy()
    means[chosen], covariances[chosen] = (np.asarray(part)[: len(chosen)] for part in new)
    shape, rate = old.noise_scales.shape.copy(), old.noise_scales.rate.copy()
    shape[chosen] += ratings.counts / 2
    rate[chosen] += model.noise * np.maximum(np.asarray(misfit, float)[: len(chosen)], 0.0) / 2
    noise_scales = replace(old.noise_scales, shape=shape, rate=rate)
    return replace(old, means=means, covariances=covariances, noise_scales=noise_scales)

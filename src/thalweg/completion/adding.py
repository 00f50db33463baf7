"""New ratings for a completed matrix: posteriors so far are the prior, and the steps are those of the fit."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
from scipy.sparse import csr_matrix

from thalweg.completion.completed import Completed, Vectors, unknown
from thalweg.completion.entries import Entries
from thalweg.completion.factors import Ratings, Told, stepped
from thalweg.completion.posteriors import Found, Posteriors, Prior, Shape, packing
from thalweg.completion.priors import Unevenness
from thalweg.completion.seen import Seen, cells
from thalweg.padding import padded, padded_size

_ROUNDS = 3
"""How often rows and columns take turns."""


def vectors_of(model: Completed, ratings: Ratings, side: np.ndarray) -> Posteriors:
    """The posteriors of new rows, numbered from 0, given their ratings alone; columns stay as they are.

    Examples
    --------
    >>> from thalweg.completion import Options, FactorSettings, complete
    >>> row, column = np.divmod(np.arange(36), 6)
    >>> ratings = Ratings(row, column, np.sin(row) * np.cos(column), None, (6, 6))
    >>> none = np.zeros((6, 0))
    >>> model = complete(ratings, none, none, Options(FactorSettings(rank=1, max_iter=9))).model
    >>> one = Ratings(np.zeros(3, int), np.arange(3), np.array([0.5, 0.3, -0.2]), None, (1, 6))
    >>> vectors_of(model, one, np.zeros((1, 0))).means.shape
    (1, 3)
    """
    shape, count = Shape(model.rank, False), ratings.shape[0]
    features = model.rows.describer.features(side, cells(ratings))
    size = padded_size(count, 64)
    prior = Prior(
        _device(model.rows.expectation.expected(features), size),
        jnp.asarray(model.rows.expectation.precision.astype(np.float32)),
    )
    told = _told(_in_units(model, ratings), model.columns, background=model.confidence > 0)
    weights = model.rows.tempered(np.bincount(ratings.rows, minlength=count))
    noise = _device(model.noise * weights, size)
    found, _ = stepped(told, noise, prior, _device(np.zeros(0), size), shape)
    return Posteriors(*(np.asarray(part)[:count] for part in found.posteriors))  # type: ignore[arg-type]


def extended(model: Completed, ratings: Ratings, row_side: np.ndarray, column_side: np.ndarray) -> Completed:
    """With rows and columns that were not there before, at their prior, and the cells rated now among those seen.

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
    now = cells(ratings)
    turned = now.T.tocsr()
    fresh = slice(model.rows.count, ratings.shape[0]), slice(model.columns.count, ratings.shape[1])
    old = model.seen.matrix
    old.resize(ratings.shape)
    rows = _longer(model.rows, row_side, now[fresh[0]], Shape(model.rank, False))
    columns = _longer(model.columns, column_side, turned[fresh[1]], Shape(model.rank, True))
    longer = replace(
        model,
        rows=rows,
        columns=columns,
        known=model.known + len(ratings.values),
        seen=Seen.where((old + now).tocsr()),
        low=min(model.low, float(ratings.values.min(initial=np.inf))),
        high=max(model.high, float(ratings.values.max(initial=-np.inf))),
        row_choice=np.pad(model.row_choice, (0, ratings.shape[0] - model.rows.count)),
        column_choice=np.pad(model.column_choice, (0, ratings.shape[1] - model.columns.count)),
    )
    if not model.confidence:
        return longer
    # To a new row, cells say "0" at first.
    return replace(
        longer,
        rows=_stepped(rows, columns, _none(fresh[0], columns), longer, Shape(model.rank, False), fresh[0]),
        columns=_stepped(columns, rows, _none(fresh[1], rows), longer, Shape(model.rank, True), fresh[1]),
    )


def added(model: Completed, ratings: Ratings) -> Completed:
    """With ratings of rows and columns it knows: q ∝ (posterior so far) × exp E log p(ratings), each side in turn.

    Examples
    --------
    >>> from thalweg.completion import Options, FactorSettings, complete
    >>> row, column = np.divmod(np.arange(36), 6)
    >>> ratings = Ratings(row, column, np.sin(row) * np.cos(column), None, (6, 6))
    >>> none = np.zeros((6, 0))
    >>> model = complete(ratings, none, none, Options(FactorSettings(rank=1, max_iter=9))).model
    >>> again = Ratings(np.array([2]), np.array([3]), np.array([9.0]), None, (6, 6))
    >>> before, after = (one.raw(np.array([2]), np.array([3]))[0][0] for one in (model, added(model, again)))
    >>> bool(after > before)
    True
    """
    if not len(ratings.values):
        return model
    ratings = _in_units(model, ratings)
    before = model.rows, model.columns
    rows, columns = before
    for _ in range(_ROUNDS):
        rows = _stepped(before[0], columns, ratings, model, Shape(model.rank, False))
        columns = _stepped(before[1], rows, ratings.turned, model, Shape(model.rank, True))
    return replace(model, rows=rows, columns=columns)


def _in_units(model: Completed, ratings: Ratings) -> Ratings:
    """In the units of the fit; see ``fitting`` for what a count says."""
    if model.confidence:
        extra = model.confidence * ratings.values
        return ratings._replace(values=(1 + extra) / extra / model.scale, weights=extra)
    weights = None if ratings.weights is None else ratings.weights / model.usual_weight
    return ratings._replace(values=(ratings.values - model.centre) / model.scale, weights=weights)


def _none(fresh: slice, other: Vectors) -> Ratings:
    nothing: np.ndarray = np.zeros(0, int)
    return Ratings(nothing, nothing, np.zeros(0), None, (fresh.stop, other.count))


def _device(numbers: np.ndarray, size: int) -> jnp.ndarray:
    return jnp.asarray(padded(numbers, size).astype(np.float32))


def _told(ratings: Ratings, other: Vectors, background: bool = False) -> Told:
    posteriors = other.posteriors
    scales = _device(other.unevenness.means, len(posteriors.means))
    return Told(Entries.of(*ratings[:4], ratings.shape[0]), posteriors, scales, float(background) * scales)


def _longer(old: Vectors, side: np.ndarray, rated: csr_matrix, shape: Shape) -> Vectors:
    if not len(side):
        return old
    features = old.describer.features(side, rated)
    new = unknown(old.expectation, features, shape)
    half = np.full(len(side), old.unevenness.degrees / 2 if not old.unevenness.certain else 1.0)
    uneven = old.unevenness
    return replace(
        old,
        means=np.vstack([old.means[:-1], new.means, old.means[-1:]]),
        covariances=np.vstack([old.covariances[:-1], new.covariances, old.covariances[-1:]]),
        unevenness=replace(
            uneven, shape=np.concatenate([uneven.shape, half]), rate=np.concatenate([uneven.rate, half])
        ),
    )


def _stepped(
    old: Vectors, other: Vectors, ratings: Ratings, model: Completed, shape: Shape, fresh: slice | None = None
) -> Vectors:
    """After ratings of some rows; or, to fresh rows, after what cells without any say."""
    numbers = np.unique(ratings.rows) if fresh is None else np.arange(fresh.start, fresh.stop)
    if not len(numbers):
        return old
    some = ratings._replace(rows=np.searchsorted(numbers, ratings.rows), shape=(len(numbers), ratings.shape[1]))
    size = padded_size(len(numbers), 64)
    cells_of = model.seen.by_column if shape.columns else model.seen.by_row
    precision = _device(model.noise * old.tempered(cells_of[numbers]) * old.unevenness.means[numbers], size)
    prior = _prior(old, numbers, size, shape)
    told = _told(some, other, background=fresh is not None)
    found, _ = stepped(told, precision, prior, _device(np.zeros(0), size), shape)
    means, covariances = old.means.copy(), old.covariances.copy()
    means[numbers] = np.asarray(found.posteriors.means)[: len(numbers)]
    covariances[numbers] = np.asarray(found.posteriors.covariances)[: len(numbers)]
    uneven = _more_uneven(old.unevenness, numbers, some, found, model.noise)
    return replace(old, means=means, covariances=covariances, unevenness=uneven)


def _prior(old: Vectors, numbers: np.ndarray, size: int, shape: Shape) -> Prior:
    """Posteriors of some rows as a prior, in float64 while covariances are turned into precisions."""
    _, _, place, _ = packing(shape.width)
    free = np.array(shape.free)
    covariances = old.covariances[numbers].astype(np.float64)[:, place[free[:, None], free[None]]]
    precision = np.broadcast_to(np.eye(len(free)), (size, len(free), len(free))).copy()
    precision[: len(numbers)] = np.linalg.inv(covariances)
    return Prior(_device(old.means[numbers][:, free], size), jnp.asarray(precision.astype(np.float32)))


def _more_uneven(old: Unevenness, numbers: np.ndarray, ratings: Ratings, found: Found, noise: float) -> Unevenness:
    if old.certain:
        return old
    shape, rate = old.shape.copy(), old.rate.copy()
    shape[numbers] += np.bincount(ratings.rows, minlength=len(numbers)) / 2
    rate[numbers] += noise * np.maximum(np.asarray(found.misfit, np.float64)[: len(numbers)], 0.0) / 2
    return replace(old, shape=shape, rate=rate)

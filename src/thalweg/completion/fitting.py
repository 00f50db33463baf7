"""Ratings and what is known of their rows and columns in, a completed matrix out."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import csr_matrix

from thalweg.completion import factors
from thalweg.completion.completed import Completed, Vectors, unknown
from thalweg.completion.factors import FactorSettings, Ratings, Side
from thalweg.completion.features import Describer, presence
from thalweg.completion.posteriors import Shape
from thalweg.completion.seen import Seen, cells
from thalweg.completion.starting import best_ranking_start, likeliest_start
from thalweg.descent import Status

_PATIENCE, _OF_FEW = 2, 10
"""Sweeps without a better held-out error after which a fit ends, and those of few ratings, where errors may rise for
several sweeps before a direction is found."""

_DOUBT = 5.0
"""Ratings of average authors that are added to those of a column before what choosing it says is believed."""

_COMPONENTS = 100
"""Singular vectors of who rated what."""

_TEMPERING, _FAINTNESS = 0.5, 0.3
"""Of implicit feedback: what busy rows say less by, and the precision of the noise over one that a cell of each kind
would call for. Chosen by NDCG@10 on a tenth of the training cells of MovieLens 1M."""


@dataclass(frozen=True)
class Options:
    """How to complete a matrix.

    Examples
    --------
    >>> Options(presence=False).held_out
    0.0
    """

    settings: FactorSettings = field(default_factory=FactorSettings)
    """How to fit the factors."""
    presence: bool = True
    """Whether which columns a row has rated tells of it, whatever the ratings."""
    low: float = -np.inf
    """The least rating there is."""
    high: float = np.inf
    """The largest."""
    implicit: bool = False
    """Whether ratings are counts of what was done, and a cell without one means that it was not."""
    confidence: float = 2.0
    """How much more a count of 1 weighs than none, if implicit."""
    held_out: float = 0.0
    """The share of ratings on which errors are watched, to stop when they rise."""


class LearnedFactors(NamedTuple):
    """The completed matrix, and how it came about.

    Examples
    --------
    >>> LearnedFactors._fields
    ('model', 'fit', 'history', 'status')
    """

    model: Completed
    fit: factors.Fit
    history: dict[str, np.ndarray]
    status: Status


def complete(
    ratings: Ratings,
    row_side: np.ndarray,
    column_side: np.ndarray,
    options: Options,
    show: Callable[[str], Any] | None = None,
    start: Completed | None = None,
) -> LearnedFactors:
    """Find the posteriors of factors and biases, their priors and the noise.

    Parameters
    ----------
    ratings
        What is known; values in any units.
    row_side, column_side
        Side information, a line for each row or column, NaN where there is none.
    options
        How to go about it.
    show
        Called with a line after each sweep.
    start
        An earlier result to start from, of the same rows and columns; not if its rank or features are others.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> row, column = rng.integers(0, 20, (2, 200))
    >>> values = 3 + np.sin(row) * np.cos(column)
    >>> none = np.zeros((20, 0))
    >>> options = Options(FactorSettings(rank=2, max_iter=20))
    >>> found = complete(Ratings(row, column, values, None, (20, 20)), none, none, options)
    >>> bool(np.std(found.model.predict(row, column)[0] - values) < 0.2)
    True
    """
    centre, scale, kept, settings = _units(ratings, options)
    settings = replace(settings, rank=min(settings.rank, *ratings.shape))
    rng = np.random.default_rng(settings.seed)
    aside = rng.random(len(kept.values)) < options.held_out
    train, watched = kept.part(~aside), kept.part(aside)
    describers = _describers(train, row_side, column_side, options)
    rated = cells(train)
    described = describers[0].features(row_side, rated), describers[1].features(column_side, rated.T.tocsr())
    history: dict[str, list[float]] = {"bound": [], "noise": [], "held_out_rmse": []}
    best: list[tuple[float, Completed]] = []
    idle = [0]

    def packed(rows: Side, columns: Side, noise: float) -> Completed:
        pair = (_vectors(rows, describers[0]), _vectors(columns, describers[1]))
        blank = describers[0].features(row_side), describers[1].features(column_side)
        by_row, by_column = _choices(rated, *pair, *blank)
        says = 0.0 if options.implicit else 1.0  # where there is nothing, that says something already
        return Completed(
            *pair,
            noise=noise,
            centre=centre,
            scale=scale,
            low=options.low,
            high=options.high,
            seen=Seen.of(ratings),
            row_choice=says * by_row,
            column_choice=says * by_column,
            known=len(ratings.values),
            spread=_spread(ratings),
            usual_weight=_usual_weight(ratings),
            confidence=options.confidence if options.implicit else 0.0,
        )

    def watch(sweep: int, rows: Side, columns: Side, noise: float, bound: float, settled: bool) -> bool:
        history["bound"].append(bound)
        history["noise"].append(scale / np.sqrt(noise))
        line = f"sweep {sweep + 1}: bound {bound:.6g}, noise {history['noise'][-1]:.4g}"
        if options.held_out and len(watched.values):
            model = packed(rows, columns, noise)
            mean = model.predict(watched.rows, watched.columns)[0]
            error = float(np.sqrt(np.mean((mean - centre - scale * watched.values) ** 2)))
            history["held_out_rmse"].append(error)
            line += f", held-out RMSE {error:.4f}"
            # Errors rise for a while where more begins to be learned; what was best before knows little of the noise.
            if not settled or not best or error < best[0][0]:
                best[:] = [(error, model)]
                idle[0] = 0
            else:
                idle[0] += 1
        if show is not None:
            show(line)
        return idle[0] >= (_OF_FEW if rows.small else _PATIENCE)

    if start is not None and not start.fits(settings.rank, *(part.shape for part in described)):
        start = None
    if start is None:
        choose = best_ranking_start if options.implicit else likeliest_start
        settings = choose(train, *described, settings)
    found = factors.fit(train, *described, settings, watch, None if start is None else _starter(start))
    model = best[0][1] if best else packed(found.rows, found.columns, found.noise)
    recorded = {name: np.array(values) for name, values in history.items() if values}
    return LearnedFactors(model, found, recorded, found.status)


def _starter(model: Completed) -> Callable[[Side, Side], float]:
    def put(rows: Side, columns: Side) -> float:
        for side, old in ((rows, model.rows), (columns, model.columns)):
            side.take(old.means[:-1], old.covariances[:-1], old.expectation, old.unevenness)
        return model.noise

    return put


def _units(ratings: Ratings, options: Options) -> tuple[float, float, Ratings, FactorSettings]:
    """Centre and scale of the ratings, the ratings in these units, and the settings that suit their kind."""
    if options.implicit:
        # A count of c says "1" with weight 1 + confidence · c, and every cell says "0" with weight 1; what every cell
        # says is the background, so that a cell with a count says "(1 + k c)/(k c)" with weight k c beside it.
        extra = options.confidence * ratings.values
        density = min(len(ratings.values) / (ratings.shape[0] * ratings.shape[1]), 0.5)
        scale = float(np.sqrt(density * (1 - density)))
        kept = ratings._replace(values=(1 + extra) / extra / scale, weights=extra)
        settings = replace(options.settings, noise=_FAINTNESS, tempering=_TEMPERING)
        return 0.0, scale, kept, replace(settings, background=1.0, uneven=False, learn_noise=False)
    # A weight is relative to the usual one, so that intervals are those of a rating of usual weight.
    weights = None if ratings.weights is None else ratings.weights / _usual_weight(ratings)
    centre = float(np.average(ratings.values, weights=weights))
    spread = float(np.sqrt(np.average((ratings.values - centre) ** 2, weights=weights)))
    scale = spread if spread > 1e-9 * max(abs(centre), 1e-300) else max(abs(centre), 1.0) * 1e-3
    kept = ratings._replace(values=(ratings.values - centre) / scale, weights=weights)
    return centre, scale, kept, options.settings


def _usual_weight(ratings: Ratings) -> float:
    return 1.0 if ratings.weights is None else float(np.mean(ratings.weights))


def _spread(ratings: Ratings) -> float:
    """The standard deviation of ratings, or their size where that is all that is known."""
    found = float(np.std(ratings.values, ddof=1)) if len(ratings.values) > 1 else 0.0
    return found or max(float(np.abs(ratings.values).max(initial=0.0)), 1.0)


def _describers(train: Ratings, rows: np.ndarray, columns: np.ndarray, options: Options) -> tuple[Describer, Describer]:
    components = min(_COMPONENTS, min(train.shape) // 4, len(train.values) // (4 * options.settings.rank + 4))
    if options.implicit or not options.presence or components < 1:
        return Describer.of(rows), Describer.of(columns)
    rated = cells(train)
    for_rows, for_columns = presence(rated, components, options.settings.seed)
    return Describer.of(rows, for_rows, rated), Describer.of(columns, for_columns, rated.T.tocsr())


def _choices(
    rated: csr_matrix, rows: Vectors, columns: Vectors, row_blank: np.ndarray, column_blank: np.ndarray
) -> list[np.ndarray]:
    """For rows and for columns, the mean over their ratings of f − f of a like one without ratings, shrunk."""
    found = []
    for side, other, blank, cells_of in (
        (rows, columns, column_blank, rated),
        (columns, rows, row_blank, rated.T.tocsr()),
    ):
        expected = unknown(other.expectation, blank, Shape(rows.means.shape[1] - 2, other is columns)).means
        beyond = cells_of @ (other.means[:-1] - expected) / (np.diff(cells_of.indptr) + _DOUBT)[:, None]
        found.append(np.sum(beyond * side.means[:-1], axis=1).astype(np.float64))
    return found


def _vectors(side: Side, describer: Describer) -> Vectors:
    """Posteriors, at the prior where there are no ratings, and that of a row about which nothing is known."""
    nobody = np.concatenate([[1.0], np.zeros(side.features.shape[1] - 1)])[None]
    free = np.flatnonzero(~side.seen)
    blank = unknown(side.expectation, np.vstack([side.features[free], nobody]), side.shape)
    means = np.vstack([np.asarray(side.posteriors.means)[: side.count], blank.means[-1:]])
    covariances = np.vstack([np.asarray(side.posteriors.covariances)[: side.count], blank.covariances[-1:]])
    means[free], covariances[free] = blank.means[:-1], blank.covariances[:-1]
    tempering = side.settings.tempering, side.usual
    return Vectors(means, covariances, side.expectation, side.unevenness, describer, *tempering)

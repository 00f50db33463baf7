"""Ratings and side information in, a completed matrix out."""

from dataclasses import dataclass, field, replace

import numpy as np
from scipy.sparse import csr_matrix

from thalweg.completion.completed import (
    SHRINKAGE_RATINGS,
    Completed,
    CompletionResult,
    RatingUnits,
    SideVectors,
    prior_vectors,
)
from thalweg.completion.factors import FactorSettings, FactorState, Side
from thalweg.completion.posteriors import VectorPosteriors
from thalweg.completion.priors import FeatureMap, presence_bases
from thalweg.completion.rank import choose_start, supported_rank
from thalweg.completion.ratings import Ratings
from thalweg.descent import Status
from thalweg.runs import Run

__all__ = ["Options", "complete"]

PATIENCE = 5
"""Sweeps, or rounds of steps, without a better validation error after which a fit ends: errors may rise for some before
a factor is found. Doubled, a fit takes as many more sweeps."""

MAX_PRESENCE_FEATURES = 100
"""Singular vectors of the rated cells that are features. Twice as many double the time of a sweep's regression."""

COUNT_TEMPERING, COUNT_PRECISION = 0.5, 0.3
"""With implicit feedback, the power of the number of counts by which those of a row are divided, and the precision of
the noise over that of a cell. Both were chosen by NDCG@10 on a tenth of the training cells of MovieLens 1M. Without the
first, busy rows decide; with twice the second, factors fit who happened to do what."""


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
    """Whether which columns a row has rated is a feature of it, whatever the ratings."""
    low: float = -np.inf
    """The least rating there is."""
    high: float = np.inf
    """The largest."""
    implicit: bool = False
    """Whether ratings are counts of what was done, and a cell without one means that it was not."""
    confidence: float = 2.0
    """How much more a count of 1 weighs than none, if implicit."""
    held_out: float = 0.0
    """The share of ratings that is a validation set, whose error ends the fit when it rises."""


def complete(
    ratings: Ratings,
    row_side: np.ndarray,
    column_side: np.ndarray,
    options: Options,
    verbose: bool = False,
    start: Completed | None = None,
) -> CompletionResult:
    """Find the posteriors of factors and biases, their priors and the noise.

    Parameters
    ----------
    ratings
        The ratings; values in any units.
    row_side, column_side
        Side information, a line for each row or column, NaN where there is none.
    options
        How to go about it.
    verbose
        Whether to show a progress bar, and a line for each sweep.
    start
        An earlier result to start from, of the same rows and columns; ignored if its rank or features are others.

    Examples
    --------
    >>> row, column = np.divmod(np.arange(36), 6)
    >>> values = 3 + np.sin(row) * np.cos(column)
    >>> none = np.zeros((6, 0))
    >>> options = Options(FactorSettings(rank=1, max_iter=9))
    >>> result = complete(Ratings(row, column, values, None, (6, 6)), none, none, options)
    >>> bool(np.std(result.model.predict(row, column)[0] - values) < 0.2)
    True
    """
    units = RatingUnits.of(ratings, options.confidence * options.implicit)
    settings = options.settings
    if options.implicit:
        settings = replace(settings, noise=COUNT_PRECISION, tempering=COUNT_TEMPERING, learn_noise=False)
        settings = replace(settings, background=1.0, uneven=False)
    train, validation = units.standardise(ratings).split(options.held_out, np.random.default_rng(settings.seed))
    settings = replace(settings, rank=supported_rank(train, settings.rank))
    rated = train.cells()
    maps = _feature_maps(rated, row_side, column_side, options)
    features = maps[0](row_side, rated), maps[1](column_side, rated.T.tocsr())

    def pack(state: FactorState) -> Completed:
        rows, columns = map(_side_vectors, state[:2], maps, (row_side, column_side))
        if not options.implicit:  # a count says by being there what selection would add
            rows, columns = _with_selection(rows, columns, rated), _with_selection(columns, rows, rated.T.tocsr())
        limits = options.low, options.high
        return Completed(rows, columns, state.noise, units, *limits, ratings, len(ratings.values))

    def validation_error(state: FactorState) -> float:
        mean, _ = pack(state).predict(validation.rows, validation.columns)
        return float(np.sqrt(np.mean((mean - units.centre - units.scale * validation.values) ** 2)))

    status, lowest, idle = Status.STEPS_SPENT, np.inf, 0
    with Run("sweeps over ratings", total=settings.max_iter, bar=verbose) as run:
        state = best = _initial_state(train, features, settings, start)
        for sweep in range(settings.max_iter):
            state = state.swept()
            record = {"bound": state.bounds[-1], "noise": units.scale / np.sqrt(state.noise)}
            error = 0.0
            if len(validation.values):
                error = record["held_out_rmse"] = validation_error(state)
            # A model that is better before all is learned knows little of the noise.
            if not state.settled or error <= lowest:
                best, lowest, idle = state, error, 0
            else:
                idle += 1
            run.keep(best, **record)
            run.advance()
            run.say(", ".join([f"sweep {sweep + 1}", *(f"{name} {value:.6g}" for name, value in record.items())]))
            if idle >= PATIENCE or state.converged:
                status = Status.CONVERGED if state.converged else Status.STOPPED_BY_CALLBACK
                break
    history = {name: np.array([record[name] for record in run.records]) for name in run.records[0]}
    return CompletionResult(pack(run.kept), history, Status.INTERRUPTED if run.interrupted else status)


def _initial_state(
    train: Ratings, features: tuple[np.ndarray, np.ndarray], settings: FactorSettings, start: Completed | None
) -> FactorState:
    """Return the state of an earlier result if it fits, else the best that a race finds."""
    if start is None or not start.has_shape(settings.rank, *(part.shape for part in features)):
        return choose_start(train, *features, settings)
    state = FactorState.initial(train, *features, settings)
    return FactorState(_resumed(state.rows, start.rows), _resumed(state.columns, start.columns), start.noise)


def _resumed(side: Side, old: SideVectors) -> Side:
    """Return a side with the posteriors, the prior and the noise of an earlier result."""
    posteriors = VectorPosteriors(side.padded(old.means[:-1]), side.padded(old.covariances[:-1]))
    return replace(side, posteriors=posteriors, prior=old.prior, noise_scales=old.noise_scales)


def _feature_maps(
    rated: csr_matrix, rows: np.ndarray, columns: np.ndarray, options: Options
) -> tuple[FeatureMap, FeatureMap]:
    # At least four rows, and four ratings for each coefficient, to a feature.
    most = min(min(rated.shape) // 4, rated.nnz // (4 * options.settings.rank + 4), MAX_PRESENCE_FEATURES)
    if options.implicit or not options.presence or most < 1:
        return FeatureMap.of(rows), FeatureMap.of(columns)
    for_rows, for_columns = presence_bases(rated, most, options.settings.seed)
    return FeatureMap.of(rows, for_rows, rated), FeatureMap.of(columns, for_columns, rated.T.tocsr())


def _with_selection(side: SideVectors, other: SideVectors, cells: csr_matrix) -> SideVectors:
    """Return a side with the shrunken means over its ratings of f − f of a like cell without ratings."""
    expected = prior_vectors(other.prior, other.feature_map(other.information), other.layout).means
    excess = cells @ (other.means[:-1] - expected) / (np.diff(cells.indptr) + SHRINKAGE_RATINGS)[:, None]
    return replace(side, selection=np.sum(excess * side.means[:-1], axis=1).astype(np.float64))


def _side_vectors(side: Side, feature_map: FeatureMap, information: np.ndarray) -> SideVectors:
    """Return the posteriors of a side, at the prior where there are no ratings, and that of a row never seen."""
    average = np.eye(1, side.features.shape[1])
    unrated = np.flatnonzero(~side.observed)
    prior = prior_vectors(side.prior, np.vstack([side.features[unrated], average]), side.layout)
    pairs = zip(side.posteriors, prior, strict=True)
    means, covariances = (np.vstack([np.asarray(own)[: side.count], new[-1:]]) for own, new in pairs)
    means[unrated], covariances[unrated] = prior.means[:-1], prior.covariances[:-1]
    learned = side.prior, side.noise_scales, feature_map, information, np.zeros(side.count)
    return SideVectors(side.layout, means, covariances, *learned, side.settings.tempering, side.usual_weight)

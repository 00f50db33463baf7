"""Calibration by rows that a machine has not learned from: probabilities by their labels, intervals by residuals.

Probabilities come from a scaling of f that minimises the log-loss of held-out labels, nearly: priors keep it near the
default where rows are few, and no label is taken for certain. Intervals come from held-out residuals by conformal
prediction (Lei et al., 2018): split where a set of rows is held out, the jackknife where each row is.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import minimize
from scipy.special import log_softmax, softmax

from thalweg.arguments import number
from thalweg.codec import storable
from thalweg.machines.losses import Loss
from thalweg.rows import Table, random_order
from thalweg.threads import enough_threads

FOLDS, MAX_FOLDED_ROWS, MAX_HELD_ROWS = 5, 1000, 2048
"""Where rows cannot be left out one by one, up to so many are held out in five folds; of more, a fifth is held out
once, of at most so many: their mean loss is known to a few per cent, and the scale of residuals to 2 %."""

MIN_ROWS = 10
"""With fewer distinct rows errors tell nothing: none are held out, and no kernel is searched for."""

SHIFT_PRIOR = 0.2
"""Prior standard deviation of the shift of the squared loss, whose f has its intercept; it is 1 for shifts of other
losses, and for the logarithms of sharpness and bend."""

DEFAULT_BEND = 0.5
"""Bend of margins before anything is seen."""

LEAST_PROBABILITY, LEAST_CLASS_SHARE = 0.01, 0.1
"""Probabilities of the squared loss may be negative: they are at least this, or this share of a rare class's."""


class HeldOut(NamedTuple):
    """Rows that a machine has not learned from, and f there."""

    table: Table
    values: np.ndarray


def held_out_sets(table: Table, seed: int) -> list[np.ndarray]:
    """Return sets of rows to hold out in turn: five folds of few rows, a fifth of more, nothing of hardly any.

    Copies are held out together.

    Examples
    --------
    >>> table = lambda n: Table(np.arange(n)[:, None], np.zeros((n, 1)), np.ones(n))
    >>> [[len(fold) for fold in held_out_sets(table(n), seed=0)] for n in (5, 100, 2000, 50_000)]
    [[], [20, 20, 20, 20, 20], [400], [2048]]
    """
    if len(table) > MAX_FOLDED_ROWS:
        return [np.sort(table.shuffled([seed, 4])[: min(len(table) // FOLDS, MAX_HELD_ROWS)])]
    every = np.arange(len(table))
    first, group = (every, every) if table.copies is None else table.copies
    if len(first) < MIN_ROWS:
        return []
    # By content: the order of the rows, and whether some are given twice, changes nothing.
    sorted_rows = np.lexsort(table.features(first, np.float64).T)
    groups = np.array_split(sorted_rows[random_order(len(first), [seed, 4])], FOLDS)
    folds = [np.flatnonzero(np.isin(group, fold)) for fold in groups]
    return [fold for fold in folds if 0 < len(fold) < len(table)]


def hold_out(table: Table, seed: int, predict_without: Callable[[np.ndarray], np.ndarray]) -> HeldOut | None:
    """Return held-out predictions; ``predict_without(rows)`` gives f at rows of a machine that has not seen them."""
    return combine(table, [(held, predict_without(held)) for held in held_out_sets(table, seed)])


def last_predictions(table: Table, predictions: list[tuple[np.ndarray, Any]]) -> HeldOut | None:
    """Return the last rows of a pass, with f before it had learned from them; None where little was learned before."""
    found: list[tuple[np.ndarray, np.ndarray]] = []
    count = 0
    for rows, values in reversed(predictions):
        if count >= MAX_HELD_ROWS:
            break
        found.append((rows, np.asarray(values)[: len(rows)]))
        count += len(rows)
    return combine(table, found) if len(predictions) > 2 * len(found) else None


def combine(table: Table, found: list[tuple[np.ndarray, np.ndarray]]) -> HeldOut | None:
    """Return the rows and values of several sets as one; None where there are none."""
    if not found:
        return None
    held, values = (np.concatenate(part) for part in zip(*found, strict=True))
    return HeldOut(table.subset(held), values)


@storable
@dataclass(frozen=True)
class Calibration:
    """The map from f to log-odds of probabilities.

    Parameters
    ----------
    sharpness
        Factor of f less its intercept; its inverse is called temperature.
    bend
        Factor of log((1 + f)/2): the least-squares fit of labels −1 and 1 has p = (1 + f)/2, whose log-odds are not
        linear in f.
    shift
        Added to each output. With one output and no bend this is Platt's scaling.

    Examples
    --------
    >>> even = Calibration(sharpness=2.0, bend=0.0, shift=np.array([-1.0]))
    >>> even.logits(np.array([[0.5]]), intercept=np.zeros(1))
    array([[0.]])
    """

    sharpness: float
    bend: float
    shift: np.ndarray

    def check_stored(self) -> None:
        """Refuse numbers that a fit would not leave behind, as a file could hold them."""
        number("sharpness", self.sharpness, above=0)
        number("bend", self.bend, least=0)
        if self.shift.ndim != 1 or not np.all(np.isfinite(self.shift)):
            raise ValueError("shift must be a row of finite numbers")

    def logits(self, values: np.ndarray, intercept: np.ndarray) -> np.ndarray:
        """Return log-odds, or logits of a softmax, where f has these values and this intercept."""
        straight = self.sharpness * (values - intercept) + self.shift
        if not self.bend:
            return intercept + straight
        base = _margin_logits(np.asarray(intercept)[None], intercept)
        return base + straight + self.bend * (_margin_logits(values, intercept) - base)


def _margin_logits(values: np.ndarray, intercept: np.ndarray) -> np.ndarray:
    """log p where f = 2p − 1; for one output its log-odds."""
    share = np.clip((1 - np.abs(intercept)) / 2, np.finfo(np.float32).eps, 1)
    least = np.minimum(LEAST_PROBABILITY, LEAST_CLASS_SHARE * share)
    log = lambda p: np.log(np.maximum(p, least))
    p = (1 + values) / 2
    return log(p) - log(1 - p) if values.shape[1] == 1 else log(p)


def default_calibration(loss: Loss, outputs: int) -> Calibration:
    """Return the calibration of a loss before anything is seen.

    Examples
    --------
    >>> from thalweg.machines import LogisticLoss
    >>> default_calibration(LogisticLoss(), 1).logits(np.array([[2.0]]), np.array([0.5]))  # f holds log-odds
    array([[2.]])
    """
    return Calibration(1.0, 0.0 if loss.probabilistic else DEFAULT_BEND, np.zeros(outputs))


def fit_calibration(held_out: HeldOut, intercept: np.ndarray, loss: Loss) -> Calibration:
    """Return the calibration with the least log-loss, with a prior around the :func:`default_calibration`.

    Parameters
    ----------
    held_out
        Labels, and values of f that have not seen them.
    intercept
        That of f.
    loss
        The loss that f minimises: log-odds have no bend.

    Examples
    --------
    >>> from scipy.special import expit
    >>> rng = np.random.default_rng(0)
    >>> f = rng.normal(size=(2000, 1)) * 3
    >>> y = (rng.uniform(size=2000) < expit(f[:, 0] / 2)).astype(int)
    >>> table = Table(f, y, np.ones(2000), codes=np.array([[0.0], [1.0]]))
    >>> from thalweg.machines import LogisticLoss
    >>> found = fit_calibration(HeldOut(table, f), np.zeros(1), LogisticLoss())
    >>> bool(0.4 < found.sharpness < 0.6), found.bend, bool(abs(found.shift[0]) < 0.2)
    (True, 0.0, True)
    """
    outputs, margins = held_out.values.shape[1], not loss.probabilistic
    labels = max(outputs, 2)  # one output is the logit of the second of two, beside 0
    # Beside the prior a row counts for one on average, whatever unit weights are in, and with its copies.
    table, copies = held_out.table, held_out.table.copies
    distinct = len(table) if copies is None else len(copies.first)
    weights = table.weights[:, None] * (distinct / np.sum(table.weights))
    labelled = table.targets[:, None] == np.arange(labels)
    # Rows that are all told apart are no proof that the next one will be: one more of them, half right (Laplace).
    truth = np.where(labelled, 1 - 1 / (distinct + 2), 1 / (distinct + 2) / (labels - 1))
    parts, base = [held_out.values - intercept], intercept
    if margins:
        base = _margin_logits(intercept[None], intercept)
        parts.append(DEFAULT_BEND * (_margin_logits(held_out.values, intercept) - base))
    spread = np.array([1.0] * len(parts) + [SHIFT_PRIOR if loss.quadratic else 1.0] * outputs)

    def cost(x: np.ndarray) -> tuple[float, np.ndarray]:
        scaled = [np.exp(log_ratio) * part for log_ratio, part in zip(x, parts, strict=False)]
        logits = base + sum(scaled) + x[len(parts) :]
        logits = np.hstack([0 * logits, logits])[:, -labels:]
        logs, errors = truth * log_softmax(logits, axis=1), weights * (softmax(logits, axis=1) - truth)
        errors = errors[:, -outputs:]
        gradient = [*(np.sum(errors * part) for part in scaled), *np.sum(errors, axis=0)]
        return float(np.sum((x / spread) ** 2) / 2 - np.sum(weights * logs)), np.array(gradient) + x / spread**2

    with enough_threads(len(spread)):
        x = minimize(cost, np.zeros(len(spread)), jac=True, method="L-BFGS-B").x
    bend = DEFAULT_BEND * float(np.exp(x[1])) if margins else 0.0
    return Calibration(float(np.exp(x[0])), bend, x[len(parts) :])


def sorted_residuals(held_out: HeldOut) -> np.ndarray:
    """Return y − f in ascending order for each output; a row of twice the weight of another is there twice as often.

    Of unequal weights there are as many as rows of equal weight would hold the same information (Kish, 1965).

    Examples
    --------
    >>> table = Table(np.zeros((2, 1)), np.array([[1.0], [5.0]]), np.ones(2))
    >>> sorted_residuals(HeldOut(table, np.array([[0.0], [7.0]])))
    array([[-2.],
           [ 1.]])
    """
    table = held_out.table
    residuals, weights = table.targets_of(slice(None)) - held_out.values, table.weights
    order = np.argsort(residuals, axis=0)
    ascending = np.take_along_axis(residuals, order, axis=0)
    if np.all(weights == weights[0]):
        return ascending
    shares = np.cumsum(weights[order], axis=0) / np.sum(weights)
    count = round(np.sum(weights) ** 2 / np.sum(weights**2))
    levels = (np.arange(count) + 0.5) / count
    indices = np.stack([np.searchsorted(column, levels) for column in shares.T], axis=1)
    return np.take_along_axis(ascending, np.minimum(indices, len(ascending) - 1), axis=0)


def conformal_offsets(residuals: np.ndarray, level: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the offsets of f between which a new target lies with this probability: split conformal prediction.

    Of m residuals they are the k-th from either end, k = ⌊(m + 1)·(1 − level)/2⌋: with exchangeable rows a new target
    is between them with at least that probability, whatever f is.

    Examples
    --------
    >>> low, high = conformal_offsets(np.arange(1.0, 100.0)[:, None], level=0.9)
    >>> float(low[0]), float(high[0])
    (5.0, 95.0)
    """
    k = int((len(residuals) + 1) * (1 - level) / 2 + 1e-9)
    if k < 1:
        raise ValueError(
            f"level must be at most {1 - 2 / (len(residuals) + 1):.3g} where {len(residuals)} rows were held out for "
            f"calibration, found {level:g}"
        )
    return residuals[k - 1], residuals[-k]

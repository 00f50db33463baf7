"""What rows that a machine has not learned from say of it: how sharp its probabilities may be, how far it is off."""

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import minimize
from scipy.special import expit, log_expit, log_softmax, softmax

from thalweg.arguments import number
from thalweg.codec import storable
from thalweg.machines.learners import Foreseen, Learner
from thalweg.machines.losses import LogisticLoss, Loss, SoftmaxLoss
from thalweg.machines.rows import Rows, same
from thalweg.threads import enough_threads

# Up to so many rows are left out in turn, in folds; of more a part is left out once, of at most so many rows.
_FEW, _FOLDS, _MOST = 1000, 5, 2000
# With fewer rows that differ nothing is left out.
_FEWEST = 10
# So many of the last rows foreseen tell enough.
_ENOUGH = 2000
# Before anything is seen the standard deviation of the logarithm of the sharpness and of the bend, its reach, that of
# shifts, also where f has its level already and where it has log-odds, and what is expected of the bend.
_PRIOR, _REACH, _SHIFTS, _LEVELLED, _LOG_ODDS, _USUAL_BEND = 1.0, 4.0, 2.0, 0.2, 1.0, 0.5
# Squares say probabilities of 0 and less; they count as this, or as this part of the share of a rare class.
_LEAST, _OF_SHARE = 0.01, 0.1


class Aside(NamedTuple):
    """Values of f at rows that it has not learned from."""

    rows: Rows
    values: np.ndarray


_DIGITS = 4
"""Of a feature, by which rows are told apart."""


def folds(rows: Rows, seed: int) -> list[np.ndarray]:
    """Which rows to leave out: five folds of few, a fifth of more, nothing of hardly any.

    Examples
    --------
    >>> rows = lambda n: Rows(np.arange(n)[:, None], np.zeros((n, 1)), np.ones(n))
    >>> [[len(fold) for fold in folds(rows(n), seed=0)] for n in (5, 100, 2000, 50_000)]
    [[], [20, 20, 20, 20, 20], [400], [2000]]
    """
    if len(rows) <= _FEW:
        # Rows that are the same are left out together: a row given twice counts as one of weight two. Those that differ
        # by what a copy may lose are the same. Where rows meet by chance, new ones will too.
        every = np.arange(len(rows))
        x = rows.features(every, np.float64)
        digits, powers = np.frexp(x)
        alike = np.ldexp(np.round(digits, _DIGITS), powers)
        place = np.ravel(np.unique(alike, axis=0, return_inverse=True)[1])
        place = every if rows.meet(every, same(x)[1]) else place
        if np.max(place) + 1 < _FEWEST:
            return []
        order = np.random.default_rng([seed, 4]).permutation(np.max(place) + 1)
        found = [np.flatnonzero(np.isin(place, fold)) for fold in np.array_split(order, _FOLDS)]
        return [fold for fold in found if 0 < len(fold) < len(rows)]
    order = rows.shuffled([seed, 4])
    return [np.sort(order[: min(len(rows) // _FOLDS, _MOST)])]


def set_aside(learner: Learner, rows: Rows, seed: int, learn: Callable[[Any, Rows], None]) -> Aside | None:
    """What machines that learn as another did, but not from some rows, say of those.

    Parameters
    ----------
    learner
        Knows nothing yet; copies of it learn.
    rows, seed
        Examples, and which to leave out.
    learn
        Makes a learner learn from rows, where those of weight 0 are none.
    """
    found = []
    for held in folds(rows, seed):
        weights = rows.weights.copy()
        weights[held] = 0
        pupil = copy(learner)
        learn(pupil, replace(rows, weights=weights))
        found.append((held, pupil.predict(rows.subset(held).x, *rows.frame)))
    return _aside(rows, found)


def left_out(rows: Rows, seed: int, without: Callable[[np.ndarray], np.ndarray]) -> Aside | None:
    """The same where ``without`` tells what would be said of rows if they were left out."""
    return _aside(rows, [(held, without(held)) for held in folds(rows, seed)])


def last(rows: Rows, foreseen: Foreseen) -> Aside | None:
    """The last rows learned from, and what was said of them before; None where little was learned before them."""
    found: list[tuple[np.ndarray, np.ndarray]] = []
    count = 0
    for part, values in reversed(foreseen):
        if count >= _ENOUGH:
            break
        found.append((part, np.asarray(values).reshape(-1, rows.outputs)[: len(part)]))
        count += len(part)
    return _aside(rows, found) if len(foreseen) > 2 * len(found) else None


def _aside(rows: Rows, found: list[tuple[np.ndarray, np.ndarray]]) -> Aside | None:
    if not found:
        return None
    held, values = (np.concatenate(part) for part in zip(*found, strict=True))
    return Aside(rows.subset(held), values)


@storable
@dataclass(frozen=True)
class Calibration:
    """How values of f become log-odds of probabilities.

    Parameters
    ----------
    sharpness
        Of f, but for its intercept; its inverse is called temperature.
    bend
        Of the logarithm of (1 + f)/2: that is what squares of −1 and 1 say of probabilities, and straight log-odds
        would bend it.
    shift
        What is added for each output: of one, without a bend, this is Platt's scaling.

    Examples
    --------
    >>> even = Calibration(sharpness=2.0, bend=0.0, shift=np.array([-1.0]))
    >>> even.logits(np.array([[0.5]]), level=np.zeros(1))
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

    def logits(self, values: np.ndarray, level: np.ndarray) -> np.ndarray:
        """What has probabilities as its sigmoid or softmax, where f has these values and this intercept."""
        return self.unshifted(values, level) + self.shift

    def unshifted(self, values: np.ndarray, level: np.ndarray) -> np.ndarray:
        """The same before the shift, by which rows are told apart no better."""
        straight = self.sharpness * (values - level)
        if not self.bend:
            return level + straight
        base = _said(np.asarray(level)[None], level)
        return base + straight + self.bend * (_said(values, level) - base)


def _said(values: np.ndarray, level: np.ndarray) -> np.ndarray:
    """log p where f = 2p − 1, of one output its log-odds."""
    least = np.minimum(_LEAST, _OF_SHARE * np.clip((1 - np.abs(level)) / 2, 1e-6, 1))
    log = lambda p: np.log(np.maximum(p, least))
    p = (1 + values) / 2
    return log(p) - log(1 - p) if values.shape[1] == 1 else log(p)


def usual(loss: Loss, outputs: int) -> Calibration:
    """What is expected of a machine with a loss before anything is seen.

    Examples
    --------
    >>> from thalweg.machines import LogisticLoss
    >>> usual(LogisticLoss(), 1).logits(np.array([[2.0]]), np.array([0.5]))  # these are log-odds as they are
    array([[2.]])
    """
    return Calibration(1.0, _USUAL_BEND if _margins(loss) else 0.0, np.zeros(outputs))


def _margins(loss: Loss) -> bool:
    """Whether f has margins of about 1; otherwise log-odds."""
    return not isinstance(loss, LogisticLoss | SoftmaxLoss)


def calibrated(aside: Aside, level: np.ndarray, loss: Loss) -> Calibration:
    """The calibration with the least log-loss, nearly: with hardly any rows it stays near the :func:`usual` one.

    Parameters
    ----------
    aside
        Labels, and values of f that have not seen them.
    level
        The intercept of f.
    loss
        What f has learned by: log-odds have no bend.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> f = rng.normal(size=(2000, 1)) * 3
    >>> y = (rng.uniform(size=2000) < expit(f[:, 0] / 2)).astype(int)
    >>> rows = Rows(f, y, np.ones(2000), table=np.array([[0.0], [1.0]]))
    >>> from thalweg.machines import LogisticLoss
    >>> found = calibrated(Aside(rows, f), np.zeros(1), LogisticLoss())
    >>> bool(0.4 < found.sharpness < 0.6), found.bend, bool(abs(found.shift[0]) < 0.2)
    (True, 0.0, True)
    """
    outputs, margins = aside.values.shape[1], _margins(loss)
    truth = aside.rows.targets[:, None] == (np.arange(outputs) if outputs > 1 else 1)
    # Beside the prior a row counts for one at least, whatever weights are counted in.
    weights = aside.rows.weights[:, None] / min(float(np.mean(aside.rows.weights)), 1.0)
    parts, base = [aside.values - level], level
    if margins:
        base = _said(level[None], level)
        parts.append(_USUAL_BEND * (_said(aside.values, level) - base))
    shifts = _LEVELLED if loss.quadratic else _SHIFTS if margins else _LOG_ODDS
    spread = np.array([_PRIOR] * len(parts) + [shifts] * outputs)

    def cost(x: np.ndarray) -> tuple[float, np.ndarray]:
        scaled = [np.exp(log_ratio) * part for log_ratio, part in zip(x, parts, strict=False)]
        logits = base + sum(scaled) + x[len(parts) :]
        if outputs == 1:
            logs, p = log_expit(np.where(truth, logits, -logits)), expit(logits)
        else:
            logs, p = np.where(truth, log_softmax(logits, axis=1), 0), softmax(logits, axis=1)
        slopes = weights * (p - truth)
        slope = [*(np.sum(slopes * part) for part in scaled), *np.sum(slopes, axis=0)]
        return float(np.sum((x / spread) ** 2) / 2 - np.sum(weights * logs)), np.array(slope) + x / spread**2

    bounds = [(-_REACH, _REACH)] * len(parts) + [(None, None)] * (len(spread) - len(parts))
    with enough_threads(len(spread)):
        x = minimize(cost, np.zeros(len(spread)), jac=True, method="L-BFGS-B", bounds=bounds).x
    bend = _USUAL_BEND * float(np.exp(x[1])) if margins else 0.0
    return Calibration(float(np.exp(x[0])), bend, x[len(parts) :])


def residuals(aside: Aside) -> np.ndarray:
    """y − f, sorted for each output, where a row of twice the weight of another is there twice as often.

    Of unequal weights there are as many as rows of equal weight would tell as much (Kish, 1965).

    Examples
    --------
    >>> rows = Rows(np.zeros((2, 1)), np.array([[1.0], [5.0]]), np.ones(2))
    >>> residuals(Aside(rows, np.array([[0.0], [7.0]])))
    array([[-2.],
           [ 1.]])
    """
    off, weights = aside.rows.targets_of(slice(None)) - aside.values, aside.rows.weights
    order = np.argsort(off, axis=0)
    found = np.take_along_axis(off, order, axis=0)
    if np.all(weights == weights[0]):
        return found
    shares = np.cumsum(weights[order], axis=0) / np.sum(weights)
    count = round(np.sum(weights) ** 2 / np.sum(weights**2))
    middles = (np.arange(count) + 0.5) / count
    places = np.stack([np.searchsorted(column, middles) for column in shares.T], axis=1)
    return np.take_along_axis(found, np.minimum(places, len(found) - 1), axis=0)


def reach(residuals: np.ndarray, level: float) -> tuple[np.ndarray, np.ndarray]:
    """Between which offsets of f a new target lies with this probability, for each output: split conformal prediction.

    Of m residuals the k-th from either end, k = ⌊(m + 1)·(1 − level)/2⌋: with exchangeable rows a new one is between
    them with at least that probability, whatever f is (Lei et al., 2018).

    Examples
    --------
    >>> low, high = reach(np.arange(1.0, 100.0)[:, None], level=0.9)
    >>> float(low[0]), float(high[0])
    (5.0, 95.0)
    """
    k = int((len(residuals) + 1) * (1 - level) / 2 + 1e-9)
    if k < 1:
        raise ValueError(
            f"level must be at most {1 - 2 / (len(residuals) + 1):.3g} where {len(residuals)} rows were left out to "
            f"judge by, found {level:g}"
        )
    return residuals[k - 1], residuals[-k]

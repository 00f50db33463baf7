"""The choice of a kernel and a ridge: one race over families, scales of the features, lengthscales and ridges.

A candidate is kernel ridge regression with a family of kernels, a metric (a scale for each feature, or a linear map), a
multiple of the median distance as its lengthscale, and a ridge. It learns from more and more of the rows, rung by rung,
and is scored by the squared loss of rows left out one by one, in closed form. Targets of labels are their codes.

The race starts from the Matérn-3/2 kernel with one common scale and with each feature's own. On each rung the best
candidate is refined by metrics from its gradients (:mod:`~thalweg.machines.metric`): the learned one, one halfway to
the plain scales, and the one of what learns halfway. Where none of them gains, it proposes the other families. Each
rung begins anew with metrics of the starts and of single features, which few rows cannot have trapped. More rows decide
among those that the last rung cannot tell apart.

For another loss ridge and lengthscale are then moved to where that loss, of rows left out, is lowest. A rival of the
squared loss is tried so on the first rung, and is taken where it gives labels of rows left out more probability.
"""

from collections.abc import Sequence
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import brentq, minimize_scalar
from scipy.special import log_softmax
from sklearn.metrics.pairwise import euclidean_distances

from thalweg.kernels import Kernel, Matern32
from thalweg.kernels.forms import Radial
from thalweg.kernels.host import kernel_tiles
from thalweg.kernels.profiles import profile
from thalweg.linalg import factorise, leave_one_out
from thalweg.machines.losses import Loss
from thalweg.machines.metric import Metric, explained_alone, gradient_outer_product, learned_metrics, normalised
from thalweg.machines.newton import COARSE_TOL, LEAST_ITERATED_RIDGE, Newton, dense_matrix, drowns_in_float32
from thalweg.machines.settings import Settings
from thalweg.rows import FeatureFrame, Table
from thalweg.rows.scale import standard_scales
from thalweg.selection import Entry, RaceResult, is_better, race
from thalweg.threads import enough_threads

FIRST_RUNG, RUNG_FACTOR, MAX_RUNG_ROWS = 500, 4, 4096
"""Rows of the first rung, the factor to the next one, and the most: twice as many take eight times as long. Half of
them choose worse for tables of 40,000 rows (mnist: 2.3 % of errors instead of 2.0 %)."""

SEARCH_ROWS = FIRST_RUNG * RUNG_FACTOR
"""Rows of the largest rung on which all proposals are made; larger ones propose metrics alone. With twice as many the
search takes four times as long and chooses alike."""

STANDARD_ERRORS = 0.5
"""Better means by so many standard errors of the paired difference; with 0 noise moves ridges to their ends, with 1
small real gains are missed."""

LEAST_GAIN = 0.002
"""The share of the loss that a move or a round must gain: with a hundredth the metric of a hard table stays unfinished
(covtype: 21.6 % of errors instead of 16.8 %)."""

MAX_METRIC_FEATURES = 1000
"""Features up to which a metric is learned: gradients take a product of so many columns for each output."""

START_RIDGE, LEAST_RIDGE = 1e-2, 1e-12
"""The ridge at which the race starts, in units of a row's weight, and the least that float64 can tell from none."""

RIVAL_STANDARD_ERRORS = 2.0
"""By how many of them a loss of probabilities must be better than squares, which take half of the time or less. With
one, digits were learned with it (usps_3v5: 3.1 % of errors instead of 2.5 %)."""

KEPT_METRICS = 6
"""Metrics whose distances are kept: as many as are compared at a time."""


class Candidate(NamedTuple):
    """Kernel ridge regression."""

    family: Any
    """A class of kernels, or a kernel that was given."""
    metric: Metric
    multiplier: float
    """Of the median distance between rows, which makes the lengthscale."""
    ridge: float
    """In units of a row's weight."""

    def __hash__(self) -> int:
        # A kernel that was given holds arrays, which have no hash: it is the same object or another one.
        return hash((object.__hash__(self.family), *self[1:]))

    def moved(self, multiplier_by: float = 1.0, ridge_by: float = 1.0, least_ridge: float = 0.0) -> "Candidate | None":
        """Return it with another multiplier or ridge; None where the ridge would be too small."""
        ridge = self.ridge * ridge_by
        return self._replace(multiplier=self.multiplier * multiplier_by, ridge=ridge) if ridge >= least_ridge else None


class Rung:
    """Rows that candidates learn from and are scored on: each row is left out in turn, in closed form.

    Parameters
    ----------
    x, y, weights
        Framed features, targets less the intercept, and weights of mean 1.

    All is computed by NumPy: no device would win back the time to compile, and the choice is the same without one.
    """

    def __init__(self, x: np.ndarray, y: np.ndarray, weights: np.ndarray) -> None:
        self.x, self.y, self.weights = x, y, weights
        self._distances: dict[tuple[Metric, type], tuple[np.ndarray, float]] = {}
        self._weights: dict[Candidate, np.ndarray] = {}

    def kernel(self, candidate: Candidate) -> Kernel:
        """Return the kernel of a candidate."""
        family, lengthscale = candidate.family, candidate.multiplier * self.distances(candidate)[1]
        return family if isinstance(family, Kernel) else family(lengthscale=lengthscale)

    def distances(self, candidate: Candidate) -> tuple[np.ndarray, float]:
        """Return squared distances among the rows, in the precision that the ridge takes, and the median distance."""
        metric, dtype = candidate.metric, float if drowns_in_float32(candidate.ridge, len(self.x)) else np.float32
        if (metric, dtype) not in self._distances:
            x = metric.apply(self.x)
            squares = euclidean_distances(x, squared=True)
            some = squares[:FIRST_RUNG, :FIRST_RUNG]  # all pairs of so many rows know the median to 2 %
            between = some[np.tril_indices(len(some), -1)]
            median = float(np.sqrt(np.median(between[between > 0]))) if np.any(between > 0) else 1.0
            self._distances[metric, dtype] = squares.astype(dtype), median
            if len(self._distances) > KEPT_METRICS:
                self._distances.pop(next(iter(self._distances)))
        return self._distances[metric, dtype]

    def matrix(self, candidate: Candidate) -> np.ndarray:
        """Return the kernel matrix among the rows."""
        kernel, (squares, median) = self.kernel(candidate), self.distances(candidate)
        if not isinstance(kernel, Radial) or isinstance(candidate.family, Kernel):
            return kernel_tiles(kernel, candidate.metric.apply(self.x).astype(squares.dtype)).to_dense()
        return type(kernel).profile(kernel, squares / squares.dtype.type((candidate.multiplier * median) ** 2))

    def score(self, candidate: Candidate, new: "Rung | None" = None) -> np.ndarray:
        """Return the squared loss of each row left out, or of new ones, times what the metric gains by chance."""
        rows = self if new is None else new
        with enough_threads(len(self.x) // 2):
            found = self.leave_one_out(candidate) if new is None else self._predict(candidate, new.x)
        return rows.weights * np.sum((found - rows.y) ** 2, axis=1) * candidate.metric.chance(len(self.x))

    def _predict(self, candidate: Candidate, new: np.ndarray) -> np.ndarray:
        weights = self._weights[candidate]
        rows, new = (candidate.metric.apply(part).astype(weights.dtype) for part in (self.x, new))
        return kernel_tiles(self.kernel(candidate), new, rows).apply(weights)

    def leave_one_out(self, candidate: Candidate) -> np.ndarray:
        """Return what f is at each row without that row, from the factor of A = K + ridge/w and the weights A⁻¹y."""
        matrix = self.matrix(candidate)
        factor = factorise(matrix, candidate.ridge / self.weights)
        self._weights[candidate] = weights = factor.solve(self.y.astype(matrix.dtype))
        return leave_one_out(self.y, weights, factor.inverse_diagonal()[:, None], 0)

    def gradient_outer_product(self, candidate: Candidate, full: bool) -> np.ndarray | None:
        """Return that of a candidate in framed features, or its diagonal."""
        squares, median = self.distances(candidate)
        square = squares.dtype.type((candidate.multiplier * median) ** 2)
        if candidate not in self._weights:
            self.leave_one_out(candidate)
        slope = candidate.family().profile_slope(squares / square) / square
        return gradient_outer_product(slope, self._weights[candidate], self.x, candidate.metric, full)


class Selection(NamedTuple):
    """A kernel, a ridge, a frame of the features, and the squared loss that the machine with them had in the race."""

    kernel: Kernel
    alpha: float
    frame: FeatureFrame
    loss: float = np.inf
    rival: Loss | None = None
    """The loss that rivals the squared one, if it won."""
    chosen: int = 0
    """How many numbers the rows have chosen."""


class _Search:
    """Starts, axes and proposals of the race."""

    def __init__(self, settings: Settings, scales: np.ndarray, units: np.ndarray, mean_weight: float) -> None:
        self.settings, self.scales, dimension = settings, scales, len(scales)
        given = isinstance(settings.kernel, Kernel)
        self.moves_multiplier = not given and settings.bandwidth == "auto"
        self.moves_ridge = settings.alpha == "auto"
        radial = all(isinstance(family, type) and issubclass(family, Radial) for family in settings.families)
        self.learns = settings.metric != "none" and radial and 1 < dimension <= MAX_METRIC_FEATURES
        multiplier = settings.plain_bandwidth if settings.bandwidth == "auto" else float(settings.bandwidth)
        ridge = START_RIDGE if self.moves_ridge else float(settings.alpha) / mean_weight
        family = Matern32 if settings.kernel is None else settings.kernel
        plain = [Metric(None)] if given else [Metric(normalised(by, scales)) for by in (units, 1 / scales)][:dimension]
        self.starts = [Candidate(family, metric, multiplier, ridge) for metric in plain]

    def axes(self, factors: Sequence[tuple[float, float]], least_ridge: float = LEAST_RIDGE) -> list[Any]:
        """Moves of the multiplier and of the ridge by factors, both ways."""
        either_way = lambda name, factor: tuple(
            partial(Candidate.moved, **{name: by}, least_ridge=least_ridge) for by in (factor, 1 / factor)
        )
        found: list[Any] = []
        for multiplier_factor, ridge_factor in factors:
            # The ridge first: with too small a one a short lengthscale, with which f is constant, would look best.
            found += [either_way("ridge_by", ridge_factor)] if self.moves_ridge else []
            found += [either_way("multiplier_by", multiplier_factor)] if self.moves_multiplier else []
        return found

    def metrics(self, rung: Rung, candidate: Candidate) -> list[Metric]:
        """A metric by the gradients of a candidate, and one halfway between it and the plain scales."""
        if not self.learns:
            return []
        with enough_threads(len(rung.x) // 2):
            product = rung.gradient_outer_product(candidate, full=self.settings.metric == "full")
            return [] if product is None else learned_metrics(product, self.scales)

    def refine(self, best: Entry[Candidate], rung: Rung) -> list[Candidate]:
        """The best candidate with metrics of its gradients."""
        candidate = best.candidate
        metrics = self.metrics(rung, candidate)
        if len(metrics) > 1 and len(rung.x) <= SEARCH_ROWS:
            metrics += self.metrics(rung, candidate._replace(metric=metrics[1]))[:1]
        return [candidate._replace(metric=metric) for metric in metrics]

    def propose(self, best: Entry[Candidate], rung: Rung) -> list[Candidate]:
        """The best candidate with other families."""
        if len(rung.x) > SEARCH_ROWS:
            return []
        candidate = best.candidate
        others = [family for family in self.settings.families if family is not candidate.family]
        return [self._of_family(candidate, family) for family in others]

    def fresh(self, rung: Rung) -> list[Candidate]:
        """The starts with metrics of their gradients on these rows, and with one of what features explain alone."""
        starts = self.starts if len(rung.x) <= SEARCH_ROWS else []
        found = [start._replace(metric=metric) for start in starts for metric in self.metrics(rung, start)]
        if found and np.any(alone := explained_alone(rung.x, rung.y, rung.weights) / self.scales**2):
            metrics = learned_metrics(np.diag(alone) if self.settings.metric == "full" else alone, self.scales)
            found += [self.starts[-1]._replace(metric=metric) for metric in metrics]
        return found

    def _of_family(self, candidate: Candidate, family: type[Radial]) -> Candidate:
        """A candidate with another kernel that falls to one half at the same distance."""
        if not self.moves_multiplier:
            return candidate._replace(family=family)
        times = _half_distance(candidate.family) / _half_distance(family)
        return candidate._replace(family=family, multiplier=candidate.multiplier * times)


@cache
def _half_distance(family: type[Radial]) -> float:
    """The distance, in lengthscales, at which the correlation is one half."""
    return brentq(lambda r: float(profile(family.order, np.array(r**2))) - 0.5, 0.0, 2.0)


COARSE, FINE = (2.0, 10.0), (2.0**0.5, 10.0**0.5)
"""Factors by which the multiplier and the ridge move: far, then near."""

CHOSEN_NUMBERS = 3
"""A family, a lengthscale and a ridge."""


def choose_kernel(table: Table, settings: Settings, seed: int) -> Selection:
    """Return a kernel, a ridge and a frame: those given, or the best of a race.

    ``table`` is centred; its frame becomes that of the selection, with the metric.
    """
    given = isinstance(settings.kernel, Kernel)
    if given and settings.alpha != "auto":
        return Selection(settings.kernel, float(settings.alpha), table.frame)
    mean_weight = _mean_weight(table)
    rungs, beside = make_rungs(table, seed)
    units = np.ones(table.dimension) if table.frame.metric is None else 1 / table.frame.metric
    search = _Search(settings, standard_scales(rungs[-1].x), units / np.max(units), mean_weight)
    result = _race(search, rungs, beside, _least_miss(table))
    best, last, tunes = result.best.candidate, rungs[-1], search.moves_ridge and not result.interrupted
    loss = result.best.loss / best.metric.chance(len(last.x))
    rival = settings.rival if tunes else None
    if rival is not None:
        rungs = [Rung(rung.x, rung.y / 2, rung.weights) for rung in rungs]  # codes of 0 and 1 instead of −1 and 1
        table = table.of_shares()
        rival = rival if _wins(search, best, rungs[0], table, rival) else None
    own = settings.loss if rival is None else rival
    if tunes and not own.quadratic:
        # There is a system for each output: more of them are compared on fewer rows.
        fitting = [rung for rung in rungs if len(rung.x) * table.outputs <= SEARCH_ROWS]
        best = _for_loss(search, best, (fitting or rungs[:1])[-1], table, own)
    factors = best.metric.factors
    frame = table.frame if factors is None else table.frame.with_metric((factors.T / units).T)
    # The ridge alone, or a family, a lengthscale and the scales that were learned too.
    chosen = 1 if given else CHOSEN_NUMBERS + best.metric.learned
    found = last.kernel(best), float(best.ridge * mean_weight), frame
    return Selection(*found, loss if own.quadratic else np.inf, rival, chosen)


def _wins(search: _Search, best: Candidate, rung: Rung, table: Table, rival: Loss) -> bool:
    """Whether a loss of probabilities predicts labels of rows left out better than squares, which are calibrated."""
    shift = _squared_intercept(table)
    both, labels = (rung.y + shift, rung.leave_one_out(best) + shift), max(table.outputs, 2)
    codes, shares = (np.hstack([1 - one, one])[:, -labels:] for one in both)  # one output is that of the second label
    logs = np.log(np.clip(shares, 1 / len(shares), 1.0))  # so many rows know no smaller probability

    def losses(sharpness: float) -> np.ndarray:
        return -rung.weights * np.sum(codes * log_softmax(np.exp(sharpness) * logs, axis=1), axis=1)

    sharpness = minimize_scalar(lambda sharpness: np.mean(losses(sharpness)), bounds=(-2, 2), method="bounded").x
    tuned = _for_loss(search, best, rung, table, rival)
    found = Entry(tuned, _losses_left_out(rival, shift, _intercept(table, rival), tuned, rung))
    return is_better(found, Entry(best, losses(sharpness)), RIVAL_STANDARD_ERRORS)


def _race(search: _Search, rungs: list[Rung], beside: Rung | None, enough: float) -> RaceResult[Candidate]:
    starts = search.starts
    if search.settings.metric in ("diagonal", "full"):  # asked for, a learned metric need not win
        learned = [start._replace(metric=metric) for start in starts for metric in search.metrics(rungs[0], start)]
        starts = learned or starts
    return race(
        starts,
        lambda candidate, rung: rung.score(candidate),
        rungs,
        axes=lambda rung: search.axes((COARSE, FINE) if rung is rungs[0] else (FINE,)),
        fresh=search.fresh,
        refine=search.refine,
        propose=search.propose,
        least_gain=LEAST_GAIN,
        standard_errors=STANDARD_ERRORS,
        enough=enough,
        further=None if beside is None else lambda candidate: rungs[-1].score(candidate, beside),
    )


def make_rungs(table: Table, seed: int) -> tuple[list[Rung], Rung | None]:
    """Return the rungs of the race, subsets of one order of the rows: a third of them at the most, or twice the first.

    A score on all rows would take as long as the final solution. Rows beside the last rung, if any, come after them.
    """
    order, intercept = table.shuffled([seed, 1]), _squared_intercept(table)
    top = min(len(table), max(len(table) // 3, 2 * FIRST_RUNG), MAX_RUNG_ROWS)
    sizes = [FIRST_RUNG]
    while sizes[-1] < top:
        sizes.append(min(sizes[-1] * RUNG_FACTOR, top))

    def rung(chosen: np.ndarray) -> Rung:
        rows = table.subset(chosen) if table.copies is None else table.merged(chosen, float)
        targets = np.asarray(rows.targets_of(slice(None)), float) - intercept
        return Rung(rows.features(slice(None), float), targets, rows.weights / _mean_weight(table))

    beside = order[top:]
    if table.copies is not None:  # copies of the last row may follow it
        beside = beside[table.copies.group[beside] != table.copies.group[order[top - 1]]]
    return [rung(order[:size]) for size in sizes], rung(beside[:MAX_RUNG_ROWS]) if len(beside) else None


def _mean_weight(table: Table) -> float:
    """The mean weight of a row, where copies are one: a table given twice has the same choice."""
    return float(np.sum(table.weights)) / (len(table) if table.copies is None else len(table.copies.first))


def _least_miss(table: Table) -> float:
    """The least loss of a row whose label is missed: halfway to another code. Where all rows have less, none is."""
    if table.codes is None:
        return -np.inf
    halfway = float(np.sum((table.codes[0] - table.codes[1]) ** 2)) / 4
    return halfway * float(np.min(table.weights)) / _mean_weight(table)


def _squared_intercept(table: Table) -> np.ndarray:
    """The mean target of all rows."""
    if table.codes is not None:
        counts = table.counts
        assert counts is not None
        return counts @ table.codes / np.sum(counts)
    return np.average(table.targets, axis=0, weights=table.weights)


def _for_loss(search: _Search, best: Candidate, rung: Rung, table: Table, loss: Loss) -> Candidate:
    """The candidate with the multiplier and the ridge that suit another loss than the squared one."""
    shift = _squared_intercept(table)
    if loss.probabilistic:
        p = np.clip(rung.leave_one_out(best) + shift, 0, 1)
        best = best._replace(ridge=max(best.ridge * float(np.mean(p * (1 - p))), LEAST_ITERATED_RIDGE))
    if loss.smooth:
        score = partial(_losses_left_out, loss, shift, _intercept(table, loss))
        axes = lambda _: search.axes((FINE,), LEAST_ITERATED_RIDGE)
        best = race([best], score, [rung], axes=axes, standard_errors=STANDARD_ERRORS).best.candidate
    return best


def _intercept(table: Table, loss: Loss) -> np.ndarray:
    counts = table.counts
    return np.zeros(table.outputs) if table.codes is None or counts is None else loss.intercept(table.codes, counts)


def _losses_left_out(
    loss: Loss, shift: np.ndarray, intercept: np.ndarray, candidate: Candidate, rung: Rung
) -> np.ndarray:
    """The loss of each row, left out, by a machine that was fitted with the loss."""
    y = rung.y + shift
    newton = Newton(dense_matrix(rung.matrix(candidate)), y, rung.weights, loss, candidate.ridge, intercept)
    newton.solve(COARSE_TOL)
    return rung.weights * np.asarray(loss.value(newton.leave_one_out(), y))

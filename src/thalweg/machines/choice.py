"""A family of kernels, units, a lengthscale and a ridge: by leaving out rows in turn, and by trial on a slice."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, cast

import numpy as np

from thalweg.kernels import Kernel
from thalweg.machines.folds import Found, Sample, left_out, sample
from thalweg.machines.learners import Learner, in_precision, start
from thalweg.machines.losses import HuberLoss, LogisticLoss, QuantileLoss, SoftmaxLoss
from thalweg.machines.methods import Settings
from thalweg.machines.metric import learned_unit
from thalweg.machines.rows import Rows

ENOUGH_ROWS = 2000
"""With fewer rows than this no slice is held out."""

_PLAIN_ALPHA = 0.01
# A smaller ridge of the logistic losses gains little and takes many rounds.
_LEAST_LOGISTIC = 0.003
# Units of their own must lower the errors by this part.
_WORTH = 0.01
# Learned units and another family must lower the loss on the slice by this part where the rows are four times those of
# a trial, and by as much more each time they double: a gain on few rows shrinks with more of them (on MNIST one of 13 %
# on 4,472 rows became a loss on 60,000).
_WORTH_ON_SLICE = 0.06
# So many rows left out are enough to choose units by.
_FEW = 160
# Multipliers that are tried when each row is left out in turn.
_MULTIPLIERS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
# Up to how many times that of the smoothest.
_ROUGHER = 4.0
# The directions that the search on a slice tries in turn, as factors of the multiplier and of the ridge; it goes on in
# a direction as long as that helps. A narrower kernel often needs a larger ridge.
_COARSELY = ((0.5, 1.0), (0.5, 10.0), (2.0, 1.0), (1.0, 10.0), (1.0, 0.1))
_FINELY = ((0.5**0.5, 1.0), (2**0.5, 1.0))
# Whatever begins with a loss of no more than so many times the least is searched from.
_NEAR = 1.3
_LIMITS = (1 / 32, 16.0), (1e-3, 100.0)
# Families that begin on the slice.
_FAMILIES_TRIED = 2
# All trials together may cost about this part of what learning costs, the product of rows and features; one of a
# quarter of few rows costs less than that.
_PART_OF_COST, _TRIALS = 0.05, 9
_FEWEST_TRIAL_ROWS, _MOST_TRIAL_ROWS, _SLICE_ROWS = 4096, 16_384, 2048
# A trial need not be solved to more than this.
_TRIAL_TOL = 0.01


def choose(rows: Rows, settings: Settings, seed: int, dtype: Any) -> tuple[Kernel, float]:
    """Return a kernel and a ridge: those given, or the best on rows left out.

    Where no kernel is given the family is chosen too. The lengthscale is a multiple of the median distance between
    rows, for features in one unit, each in its own, or in units that were learned. Some hundred rows left out in turn
    say which; with many rows a held-out slice says whether the units learned are worth it, with the best family or the
    second, and a search goes on there, since the best lengthscale falls with the number of rows.
    """
    given, loss = isinstance(settings.kernel, Kernel), settings.loss
    search_kernel, search_alpha = not given and settings.bandwidth == "auto", settings.alpha == "auto"
    times = settings.plain_bandwidth if search_kernel else 1.0 if given else float(settings.bandwidth)
    many = len(rows) >= ENOUGH_ROWS
    alpha = float(settings.alpha) if not search_alpha else _PLAIN_ALPHA * (10 if many and loss.curvature >= 1 else 1)
    if given and not search_alpha:
        return in_precision(settings.kernel, dtype), alpha
    seen = sample(rows, seed)
    if isinstance(loss, HuberLoss | QuantileLoss):  # What is compared are squares, which outliers would decide.
        seen = seen.without_outliers()
    several = _MULTIPLIERS if search_kernel else (times,)
    by_slice = many and (search_kernel or search_alpha) and not (loss.by_squares and len(rows) <= settings.block_size)
    if given:
        plain, learned = [(1.0, _compared(seen, 1.0, settings.families, several))], list[_InUnit]()
    else:
        plain, learned = _units(seen, settings, several, by_slice)

    def starts(unit: Any, ranked: _Ranked) -> list[Choice]:
        base = 1.0 if given else seen.in_unit(unit).median()
        start = Choice(settings.families[0], unit * base, times, alpha)
        return [_started(start, found, family, loss, search_alpha) for found, family in ranked] or [start]

    in_plain, in_learned = ([starts(*one) for one in several] for several in (plain, learned))
    if not by_slice:
        found = (in_plain + in_learned)[-1][0]
        return in_precision(found.kernel, dtype), found.alpha
    trials = _Trials(rows, settings, seed, dtype)
    costs: dict[tuple, float] = {}

    def cost(choice: Choice) -> float:
        place = (id(choice.family), id(choice.base), f"{choice.times:.6g}", f"{choice.alpha:.6g}")
        if place not in costs:
            costs[place] = trials.loss(in_precision(choice.kernel, dtype), choice.alpha)
        return costs[place]

    try:
        worth = _WORTH_ON_SLICE * max(1.0, np.log2(len(rows) / len(trials.order)) - 1)
        best = min(in_plain or in_learned, key=lambda ranked: cost(ranked[0]))
        firsts = [ranked[0] for ranked in in_plain or in_learned]
        others = [one for ranked in in_learned for one in ranked[:_FAMILIES_TRIED]] or best[1:_FAMILIES_TRIED]
        near = _NEAR * min(map(cost, firsts + others))
        # Where each begins is by some hundred rows, which may know little of a rare class.
        search = lambda one: _searched(cost, one, search_kernel, search_alpha, _COARSELY) if cost(one) <= near else one
        found, other = (min(map(search, ones), key=cost) for ones in (firsts, others or firsts))
        found = other if cost(other) < (1 - worth) * cost(found) else found
        found = _searched(cost, found, search_kernel, search_alpha, _FINELY)
    except KeyboardInterrupt:
        if trials.best is None:
            raise
        raise Interrupted(trials.best) from None
    return in_precision(found.kernel, dtype), found.alpha


class Choice(NamedTuple):
    """A family of kernels or a kernel, a lengthscale and a multiple of it, and a ridge."""

    family: Any
    base: Any
    times: float
    alpha: float

    @property
    def kernel(self) -> Kernel:
        """The kernel of the family, or the kernel that was given."""
        return _kernel(self.family, self.times * self.base)


_Ranked = list[tuple[Found, Any]]
"""What was found with each family, the best first."""

_InUnit = tuple[Any, _Ranked]
"""Units of the features, and how families do in them."""


def _units(
    seen: Sample, settings: Settings, several: Sequence[float], by_slice: bool
) -> tuple[list[_InUnit], list[_InUnit]]:
    """Plain units, and those learned if they are worth it; of several plain ones the best, unless a slice is to say."""
    plain = list(seen.units())
    if len(plain) > 1 and not by_slice:
        pair = [_compared(seen.in_unit(unit, _FEW), 1.0, settings.families[:1], several) for unit in plain]
        errors = [ranked[0][0].errors for ranked in pair if ranked]
        plain = plain[1:] if errors[1:] < [(1 - _WORTH) * errors[0]] else plain[:1]
    compared = [(unit, _compared(seen, unit, settings.families, several)) for unit in plain]
    unit, best = min(compared, key=lambda pair: pair[1][0][0].errors) if compared[0][1] else compared[0]
    if best and settings.metric != "none":
        family = best[0][1]
        learned = learned_unit(
            seen, unit, several, lambda times, base: _kernel(family, times * base), always=settings.metric != "auto"
        )
        if learned is not None:
            in_learned = [(learned, _compared(seen, learned, settings.families, several))]
            return (compared if settings.metric == "auto" else []), in_learned
    return compared, []


def _compared(seen: Sample, unit: Any, families: Sequence[Any], several: Sequence[float]) -> _Ranked:
    """What each family leaves on rows left out, the best first; nothing where they are too few."""
    seen = seen.in_unit(unit)
    median = seen.median()
    ranked: _Ranked = []
    for family in families:
        # A rougher kernel wants a longer lengthscale.
        tried = [t for t in several if 1 <= t / ranked[0][0].times <= _ROUGHER] if ranked else several
        near = ranked[0][0].times if ranked else 1.0
        found = left_out(seen, tried, partial(_multiple, family, median), near)
        if found is None:
            return []
        ranked.append((found, family))
    return sorted(ranked, key=lambda pair: pair[0].errors)


def _multiple(family: Any, median: float, times: float) -> Kernel:
    return _kernel(family, times * median)


def _kernel(family: Any, lengthscale: Any) -> Kernel:
    """A kernel of the family, or the kernel that was given."""
    return family if isinstance(family, Kernel) else family(lengthscale=lengthscale)


def _started(plain: Choice, found: Found, family: Any, loss: Any, search_alpha: bool) -> Choice:
    """Where a search begins: what was found by squares, if the loss is one they speak for."""
    if not loss.by_squares:
        return plain._replace(family=family)
    alpha = plain.alpha
    if search_alpha:
        logistic = isinstance(loss, LogisticLoss | SoftmaxLoss)
        alpha = max(found.ridge * found.curvature, _LEAST_LOGISTIC) if logistic else found.ridge
    return Choice(family, plain.base, found.times, alpha)


class Interrupted(KeyboardInterrupt):
    """The search was interrupted; ``trial`` is the best there was."""

    def __init__(self, trial: "Trial") -> None:
        super().__init__()
        self.trial = trial


class Trial(NamedTuple):
    """What was learned with a ridge from some rows, and the loss on others."""

    loss: float
    learner: Learner
    alpha: float
    rows: int


class _Trials:
    """Learns from some rows with a kernel and a ridge, judges that on a held-out slice, and keeps the best."""

    def __init__(self, rows: Rows, settings: Settings, seed: int, dtype: Any) -> None:
        order = np.random.default_rng([seed, 1]).permutation(len(rows))
        self.held = rows.subset(np.sort(order[: min(_SLICE_ROWS, len(rows) // 4)]))
        self.order = order[len(self.held) :][: _trial_rows(len(rows), settings)]
        self.rows, self.best = rows, cast(Trial | None, None)
        if settings.method.visits:
            settings = replace(settings, method=replace(settings.method, tol=max(settings.method.tol, _TRIAL_TOL)))
        # More than one block: with room for all rows, so that the program which learns from them is compiled once.
        room = len(self.order) if len(self.order) <= settings.block_size else len(rows)
        self.start = lambda kernel: start(settings, kernel, rows.x.shape[1], rows.outputs, room, seed, dtype)
        counts = rows.counts
        self.level = None if rows.table is None or counts is None else settings.loss.level(rows.table, counts)

    def loss(self, kernel: Kernel, alpha: float) -> float:
        learner = self.start(kernel)
        if self.level is not None:
            learner = learner.at_level(self.level, alpha)
        for _ in learner.learn(self.rows, self.order, alpha, len(self.order)):
            pass
        found, _ = learner.judged(self.held)
        if not np.isfinite(found):
            return np.inf
        if self.best is None or found < self.best.loss:
            self.best = Trial(found, learner, alpha, len(self.order))
        return found


def _searched(
    cost: Callable[[Choice], float],
    best: Choice,
    search_kernel: bool,
    search_alpha: bool,
    directions: Sequence[tuple[float, float]],
) -> Choice:
    """Go from one multiplier and ridge to a better pair."""
    for narrower, stronger in directions:
        if (narrower != 1 and not search_kernel) or (stronger != 1 and not search_alpha):
            continue
        while True:
            following = best._replace(times=best.times * narrower, alpha=best.alpha * stronger)
            inside = all(low <= x <= high for x, (low, high) in zip(following[2:], _LIMITS, strict=True))
            if not inside or not cost(following) < cost(best):
                break
            best = following
    return best


def _trial_rows(rows: int, settings: Settings) -> int:
    """Rows m of a trial, whose cost is about m²/2."""
    features = settings.max_features
    cost = rows * min(rows, features) / (2 if rows <= features else 1)
    share = int((2 * _PART_OF_COST * cost / _TRIALS) ** 0.5)
    return min(max(share, min(rows // 4, _FEWEST_TRIAL_ROWS)), _MOST_TRIAL_ROWS)

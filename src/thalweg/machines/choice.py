"""A family of kernels, units, a lengthscale and a ridge: by leaving out rows in turn, and by trial on a slice."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from thalweg.kernels import Kernel
from thalweg.kernels.profiles import written_out
from thalweg.machines.dense import MOST
from thalweg.machines.folds import COARSELY, FINALLY, FINELY, Found, Sample, left_out, refined, sample, two_at_once
from thalweg.machines.learners import LandmarkLearner, in_precision
from thalweg.machines.losses import LogisticLoss, SoftmaxLoss
from thalweg.machines.methods import Settings
from thalweg.machines.metric import MOST_FEATURES, SURE, learned_map, learned_unit, overshot, units_by_slopes
from thalweg.machines.rows import Rows
from thalweg.machines.trials import Choice, Interrupted, Trial, Trials, kernel_of, wide_rows

ENOUGH_ROWS = 2000
"""With fewer rows than this no slice is held out."""

_PLAIN_ALPHA = 0.01
# A smaller ridge of the logistic losses gains little and takes many rounds.
_LEAST_LOGISTIC = 0.003
# Units of their own must lower the errors by this part.
_WORTH = 0.01
# Learned units must lower the loss on the slice by the first part. A gain on few rows may shrink
# with more of them: by as much each time they double as from the smaller trials to the larger ones, or, where there is
# but one size of trials, by the second part (on MNIST a gain of 11 % on 2,048 rows and 6 % on 4,472 is none on 60,000).
_WORTH_ON_SLICE, _SHRINKAGE = 0.015, 0.045
# Units come to the slice where they lower the errors of the rows learned from by so many standard errors.
_LIKELY = 1.0
# So many rows left out are enough to choose units by.
_FEW = 160
# Multipliers that are tried when each row is left out in turn.
_MULTIPLIERS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
# Up to how many times that of the smoothest.
_ROUGHER = 4.0
# The directions that the search on a slice tries in turn, as factors of the multiplier and of the ridge; it goes on in
# a direction as long as that helps. A narrower kernel often needs a larger ridge.
_COARSELY = ((0.5, 1.0), (0.5, 10.0), (2.0, 1.0), (1.0, 10.0), (1.0, 0.1))
# Whatever begins with a loss of no more than so many times the least is searched from.
_NEAR = 1.3
_LIMITS = (1 / 32, 16.0), (1e-3, 100.0)
# A step of the search must lower the loss by this part: less is chance, and each takes another trial.
_TELLING = 0.002
# A rougher kernel wants a longer lengthscale.
_LONGER = 2**0.5
# Families that begin on the slice.
_FAMILIES_TRIED = 2
# Units are learned so often from the machines that are tried last, unless they lose by more than this factor.
_ROUNDS, _NOT_FAR = 3, 1.05
# Where those are of squares, from so many rows, at most half of them, and so often, as long as the loss on the slice
# falls by the last part.
_WIDE_ROWS, _WIDE_ROUNDS, _WORTH_A_ROUND = 16_384, 5, 0.01
# What gains this part there is not asked to beat others at their best.
_CLEAR = 0.08
# Directions of the search there: with more rows the best lengthscale and ridge fall.
_WIDELY, _LASTLY = ((0.5**0.5, 1.0), (2**0.5, 1.0), (1.0, 0.1**0.5)), ((0.5**0.5, 1.0), (1.0, 0.1))


def choose(rows: Rows, settings: Settings, seed: int, dtype: Any) -> tuple[Kernel, float, Trial | None]:
    """Return a kernel and a ridge: those given, or the best on rows left out; and the best machine tried, if one was.

    Where no kernel is given the family is chosen too. The lengthscale is a multiple of the median distance between
    rows, for features in one unit, each in its own, or in units that were learned. Some hundred rows left out in turn
    say which; with many rows a held-out slice says whether the units learned are worth it, with the best family or the
    second, and a search goes on there, since the best lengthscale falls with the number of rows.
    """
    given, loss = isinstance(settings.kernel, Kernel), settings.loss
    search_kernel, search_alpha = not given and settings.bandwidth == "auto", settings.alpha == "auto"
    times = settings.plain_bandwidth if search_kernel else 1.0 if given else float(settings.bandwidth)
    many = len(rows) >= ENOUGH_ROWS
    if given and not search_alpha:
        return in_precision(settings.kernel, dtype), float(settings.alpha), None
    seen = sample(rows, seed)
    plainly = _PLAIN_ALPHA * (10 if many and loss.curvature >= 1 else 1)
    alpha = seen.usual * plainly if search_alpha else float(settings.alpha)
    if loss.robust:  # What is compared are squares, which outliers would decide.
        seen = seen.without_outliers()
    several = _MULTIPLIERS if search_kernel else (times,)
    by_slice = many and (search_kernel or search_alpha) and not (loss.by_squares and len(rows) <= settings.block_size)
    if given:
        plain = [(1.0, _compared(seen, 1.0, settings.families, several))]
    else:
        plain = _in_plain_units(seen, settings, several, by_slice, rows.map is not None)

    def starts(unit: Any, ranked: _Ranked) -> list[Choice]:
        base = 1.0 if given else seen.in_unit(unit).median()
        start = Choice(settings.families[0], unit * base, times, alpha)
        return [_started(start, found, family, loss, search_alpha, seen.usual) for found, family in ranked] or [start]

    def learned() -> list[_InUnit]:
        return [] if given else _in_learned_units(seen, plain, settings, several, by_slice)

    if not by_slice:
        unit, ranked = (plain + learned())[-1]
        if ranked and search_kernel and search_alpha:
            there = seen.in_unit(unit, FINALLY)
            base, first, rest = there.median(), ranked[:_FAMILIES_TRIED], there.to_leave_out()
            again = two_at_once(lambda pair: refined(rest, pair[0], kernel_of(pair[1], base), several), first)
            ranked = sorted(zip(again, (family for _, family in first), strict=True), key=lambda pair: pair[0].errors)
        found = starts(unit, ranked)[0]
        return in_precision(found.kernel, dtype), found.alpha, None
    search = partial(_searched, search_kernel=search_kernel, search_alpha=search_alpha, usual=seen.usual)
    in_plain = [starts(*one) for one in plain]
    learn: Callable[[], list[list[Choice]]] = lambda: [starts(*one) for one in learned()]
    if settings.metric == "diagonal":
        in_plain, learn = learn() or in_plain, list

    def relearned(tried: Trial, further: bool = False) -> list[Choice]:
        """In units by the slopes of the machine that was tried, and in softer ones; or in one that goes further."""
        learner, kernel = tried.learner(), tried.choice.kernel
        learns = settings.metric in ("auto", "diagonal") and search_kernel and 1 < rows.dimension <= MOST_FEATURES
        if not (learns and isinstance(learner, LandmarkLearner) and written_out(kernel)):
            return []
        units = units_by_slopes(seen, kernel, *learner.landmarks())
        if further and units:
            units = [overshot(seen, tried.choice.base, units[0])]
        return [tried.choice._replace(base=unit * seen.in_unit(unit).median()) for unit in units]

    found, tried = _on_slice(rows, settings, seed, dtype, in_plain, learn, relearned, search)
    return in_precision(found.kernel, dtype), found.alpha, tried


def _on_slice(
    rows: Rows,
    settings: Settings,
    seed: int,
    dtype: Any,
    in_plain: list[list[Choice]],
    learn: Callable[[], list[list[Choice]]],
    relearned: Callable[..., list[Choice]],
    search: Callable[..., Choice],
) -> tuple[Choice, Trial | None]:
    """The best choice on a held-out slice, of those in plain units and in learned ones, and the best machine tried."""
    trials, wide = Trials(rows, settings, seed, dtype), 0
    final = trials
    try:
        cost, firsts = trials.loss, [ranked[0] for ranked in in_plain]
        trials.prepare(firsts)
        best = min(in_plain, key=lambda ranked: cost(ranked[0]))
        if len(rows) > MOST and trials.best is not None and trials.best.easy:
            return best[0], trials.best
        others = [one for ranked in learn() for one in ranked[:_FAMILIES_TRIED]] or best[1:_FAMILIES_TRIED]
        trials.prepare(others)
        near = _NEAR * min(map(cost, firsts + others))
        # Where each begins is by some hundred rows, which may know little of a rare class.
        coarsely = lambda one: search(trials, one, directions=_COARSELY) if cost(one) <= near else one
        searched = trials.several(coarsely, firsts + (others or firsts))
        found, other = (min(ones, key=cost) for ones in (searched[: len(firsts)], searched[len(firsts) :]))
        if trials.at_once:
            wide = wide_rows(rows, settings, dtype, trials.best)
            final = Trials(rows, settings, seed, dtype, final=True, wide=wide)
        # The ridge too where trials are soon made.
        finely = _WIDELY if wide else FINELY if final.at_once else FINELY[:2]
        refine = lambda one: search(final, one, directions=finely)
        final.prepare([found, other])
        before, promising = _gained(trials, found, other), _gained(final, found, other) > 0
        # Each at its best: with more rows the better lengthscale is another.
        if wide and _gained(final, found, other) > _CLEAR:
            other = refine(other)
        else:
            found, *others = final.several(refine, [found, other] if promising else [found])
            other = others[0] if others else other
        more, apart = np.log2(len(rows) / len(final.order)), np.log2(len(final.order) / len(trials.order))

        def lasts(other: Choice, before: float) -> bool:
            gain = _gained(final, found, other)
            if other.base is found.base:  # another family, which takes nothing from the rows
                return gain > 0
            shrinks = max(before - gain, 0) / apart if apart else _SHRINKAGE
            return gain - shrinks * more > _WORTH_ON_SLICE

        found = other if lasts(other, before) else found
        if wide or final.on_host:
            found = _of_like_family(final, found, settings.families, refine)
        # More rows tell more of the features than those that units were learned from before.
        before_rounds = found
        learned = settings.metric == "diagonal" or all(found.base is not one.base for one in firsts)
        if wide and learned:
            final = Trials(rows, settings, seed, dtype, final=True, wide=min(len(rows) // 2, _WIDE_ROWS))
            found = _relearned(final, min(firsts, key=cost), found, relearned)
        for _ in range(0 if wide else _ROUNDS):
            if final.best is None or final.best.choice.base is not found.base:
                break
            units = relearned(final.trial(found))
            trials.prepare(units)
            if min(map(cost, units), default=np.inf) > _NOT_FAR * cost(found):
                break
            # What hardly counts in some units hardly shows in slopes: where it counts for more it does.
            units += relearned(final.trial(units[-1]))
            trials.prepare(units)
            other = min(units, key=cost)
            before = _gained(trials, found, other)
            if before <= 0 or not lasts(other, before):
                break
            found = other
        if found is not before_rounds:
            found = search(final, found, directions=_LASTLY if wide else finely[:2])
    except KeyboardInterrupt:
        tried = final.best or trials.best
        if tried is None:
            raise
        raise Interrupted(tried) from None
    tried = final.best
    if tried is not None:  # without the matrices of the trials
        learner = tried.learner()
        tried = tried._replace(learner=lambda: learner)
    return found, tried


def _of_like_family(
    trials: Trials, found: Choice, families: Sequence[Any], refine: Callable[[Choice], Choice]
) -> Choice:
    """With the next rougher family, or the next smoother one, as long as that helps: some hundred rows ranked them."""
    for step in (1, -1):
        best, place = found, families.index(found.family) + step
        while place in range(len(families)):
            other = best._replace(family=families[place], times=best.times * _LONGER**step)
            if _gained(trials, best, other) <= _TELLING:
                break
            best, place = other, place + step
        if best is not found:
            return refine(best)
    return found


def _relearned(trials: Trials, plain: Choice, found: Choice, relearned: Callable[..., list[Choice]]) -> Choice:
    """In units learned again, from machines of many rows, if they are better.

    They begin with plain ones: what hardly counts in those learned from few rows hardly shows in slopes.
    """
    rounds, tried = list[Choice](), trials.trial(found._replace(base=plain.base))
    while len(rounds) < _WIDE_ROUNDS:
        units, before = relearned(tried, further=bool(rounds))[:1], tried.loss
        if not units:
            break
        tried = trials.trial(units[0])
        rounds += units
        if tried.loss > (1 - _WORTH_A_ROUND) * before:
            break
    return min([found, *rounds], key=trials.loss)


def mapped(rows: Rows, settings: Settings, seed: int) -> Rows:
    """The rows with a map of their features, if one is to be learned and they are enough."""
    if settings.metric != "full":
        return rows
    family = settings.families[0]
    seen = sample(rows, seed)
    return replace(rows, map=learned_map(seen, _MULTIPLIERS, partial(kernel_of, family)))


_Ranked = list[tuple[Found, Any]]
"""What was found with each family, the best first."""

_InUnit = tuple[Any, _Ranked]
"""Units of the features, and how families do in them."""


def _in_plain_units(
    seen: Sample, settings: Settings, several: Sequence[float], by_slice: bool, turned: bool
) -> list[_InUnit]:
    """Units that are not learned; of several the best, unless a slice is to say."""
    plain = [1.0] if turned else list(seen.units())
    if len(plain) > 1 and not by_slice:
        pair = [_compared(seen.in_unit(unit, _FEW), 1.0, settings.families[:1], several) for unit in plain]
        errors = [ranked[0][0].errors for ranked in pair if ranked]
        plain = plain[1:] if errors[1:] < [(1 - _WORTH) * errors[0]] else plain[:1]
    return [(unit, _compared(seen, unit, settings.families, several)) for unit in plain]


def _in_learned_units(
    seen: Sample, plain: list[_InUnit], settings: Settings, several: Sequence[float], by_slice: bool
) -> list[_InUnit]:
    """Units that are learned, if they are to be and are worth it."""
    if settings.metric in ("none", "full") or not plain[0][1]:
        return []
    unit, best = min(plain, key=lambda pair: pair[1][0][0].errors)
    sure = -np.inf if settings.metric == "diagonal" else _LIKELY if by_slice else SURE
    learned = learned_unit(seen, unit, several, partial(kernel_of, best[0][1]), sure=sure)
    return [(one, _compared(seen, one, settings.families, several)) for one in (learned if by_slice else learned[:1])]


def _compared(seen: Sample, unit: Any, families: Sequence[Any], several: Sequence[float]) -> _Ranked:
    """What each family leaves on rows left out, the best first; nothing where they are too few."""
    seen = seen.in_unit(unit)
    median, rows = seen.median(), seen.to_leave_out()
    smoothest, *rougher = families
    first = left_out(rows, kernel_of(smoothest, median), several)
    if first is None:
        return []
    # A rougher kernel wants a longer lengthscale.
    tried = first.times, min(_ROUGHER * first.times, several[-1])
    others = two_at_once(lambda one: refined(rows, first, kernel_of(one, median), tried, COARSELY), rougher)
    return sorted(zip([first, *others], families, strict=True), key=lambda pair: pair[0].errors)


def _started(plain: Choice, found: Found, family: Any, loss: Any, search_alpha: bool, usual: float) -> Choice:
    """Where a search begins: what was found by squares, if the loss is one they speak for."""
    if not loss.by_squares:
        return plain._replace(family=family)
    alpha = plain.alpha
    if search_alpha:
        logistic = isinstance(loss, LogisticLoss | SoftmaxLoss)
        alpha = usual * (max(found.ridge * found.curvature, _LEAST_LOGISTIC) if logistic else found.ridge)
    return Choice(family, plain.base, found.times, alpha)


def _gained(trials: Trials, found: Choice, other: Choice) -> float:
    """The part of the loss on the slice that another choice spares."""
    return 1 - trials.loss(other) / max(trials.loss(found), np.finfo(float).tiny)


def _searched(
    trials: Trials,
    best: Choice,
    search_kernel: bool,
    search_alpha: bool,
    directions: Sequence[tuple[float, float]],
    usual: float,
) -> Choice:
    """Go from one multiplier and ridge to a better pair; ridges are counted in the ``usual`` weight of a row."""
    cost = trials.loss
    wanted = [(n, s) for n, s in directions if (search_kernel or n == 1) and (search_alpha or s == 1)]

    def ahead(narrower: float, stronger: float) -> list[Choice]:
        following = best._replace(times=best.times * narrower, alpha=best.alpha * stronger)
        pair = following.times, following.alpha / usual
        inside = all(low <= x <= high for x, (low, high) in zip(pair, _LIMITS, strict=True))
        return [following] if inside else []

    for place, direction in enumerate(wanted):
        if place % 2 == 0:
            trials.prepare([one for both in wanted[place : place + 2] for one in ahead(*both)])
        while (following := ahead(*direction)) and cost(following[0]) < (1 - _TELLING) * cost(best):
            best = following[0]
    return best

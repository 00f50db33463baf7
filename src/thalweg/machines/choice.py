"""A family of kernels, units, a lengthscale and a ridge: by leaving out rows in turn, and by trial on a slice."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from thalweg.kernels import Kernel
from thalweg.kernels.profiles import written_out
from thalweg.machines.candidates import Choice, kernel_of
from thalweg.machines.device import soon_tried
from thalweg.machines.folds import COARSELY, FINALLY, Found, Sample, left_out, refined, sample, two_at_once
from thalweg.machines.learners import in_precision
from thalweg.machines.losses import LogisticLoss, SoftmaxLoss
from thalweg.machines.methods import Settings
from thalweg.machines.metric import MOST_FEATURES, SURE, learned_map, learned_unit, overshot, units_by_slopes
from thalweg.machines.rows import Rows
from thalweg.machines.slices import FAMILIES_TRIED, SliceSearch, searched
from thalweg.machines.trials import Trial

ENOUGH_ROWS = 2000
"""With fewer rows than this no slice is held out."""

_PLAIN_ALPHA = 0.01
# A smaller ridge of the logistic losses gains little and takes many rounds.
_LEAST_LOGISTIC = 0.003
# Units of their own must lower the errors by this part.
_WORTH = 0.01
# Units come to the slice where they lower the errors of the rows learned from by so many standard errors.
_LIKELY = 1.0
# So many rows left out are enough to choose units by.
_FEW = 160
# Multipliers that are tried when each row is left out in turn.
_MULTIPLIERS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
# Up to how many times that of the smoothest.
_ROUGHER = 4.0


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
    by_trials_alone = by_slice and soon_tried(len(rows), settings)
    plain: list[_InUnit]
    if by_trials_alone:
        plain = [(unit, []) for unit in ([1.0] if given or rows.map is not None else seen.units())]
    elif given:
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
            base, first, rest = there.median(), ranked[:FAMILIES_TRIED], there.to_leave_out()
            again = two_at_once(lambda pair: refined(rest, pair[0], kernel_of(pair[1], base), several), first)
            ranked = sorted(zip(again, (family for _, family in first), strict=True), key=lambda pair: pair[0].errors)
        found = starts(unit, ranked)[0]
        return in_precision(found.kernel, dtype), found.alpha, None
    search = partial(searched, search_kernel=search_kernel, search_alpha=search_alpha, usual=seen.usual)
    in_plain = [starts(*one) for one in plain]
    learn: Callable[[], list[list[Choice]]] = lambda: [starts(*one) for one in learned()]
    if settings.metric == "diagonal":
        in_plain, learn = learn() or in_plain, list

    def relearned(tried: Trial, further: bool = False) -> Iterator[Choice]:
        """In units by the slopes of the machine that was tried, and in softer ones; or in one that goes further."""
        learns = settings.metric in ("auto", "diagonal") and search_kernel and 1 < rows.dimension <= MOST_FEATURES
        landmarks, kernel = tried.landmarks() if learns else None, tried.choice.kernel
        if landmarks is None or not written_out(kernel):
            return
        units = units_by_slopes(seen, kernel, *landmarks)
        if further and units:
            units = [overshot(seen, tried.choice.base, units[0])]
        for unit in units:
            yield tried.choice._replace(base=unit * seen.in_unit(unit).median())

    def translated(choice: Choice, curvature: float) -> Choice:
        """What was found by squares for the loss."""
        found = Found(0.0, choice.times, choice.alpha / seen.usual, curvature)
        return _started(choice, found, choice.family, loss, search_alpha, seen.usual)

    slices = SliceSearch(rows, settings, seed, dtype, search, relearned)
    if by_trials_alone:
        found, tried = slices.best_by_trials_alone([ranked[0] for ranked in in_plain], translated)
    else:
        found, tried = slices.best(in_plain, learn)
    return in_precision(found.kernel, dtype), found.alpha, tried


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
    return _in_units(seen, plain, settings.families, several)


def _in_learned_units(
    seen: Sample, plain: list[_InUnit], settings: Settings, several: Sequence[float], by_slice: bool
) -> list[_InUnit]:
    """Units that are learned, if they are to be and are worth it."""
    if settings.metric in ("none", "full") or not plain[0][1]:
        return []
    unit, best = min(plain, key=lambda pair: pair[1][0][0].errors)
    sure = -np.inf if settings.metric == "diagonal" else _LIKELY if by_slice else SURE
    learned = learned_unit(seen, unit, several, partial(kernel_of, best[0][1]), sure=sure)
    return _in_units(seen, learned if by_slice else learned[:1], settings.families, several)


def _in_units(seen: Sample, units: Sequence[Any], families: Sequence[Any], several: Sequence[float]) -> list[_InUnit]:
    ranked = two_at_once(lambda unit: _compared(seen, unit, families, several), units)
    return list(zip(units, ranked, strict=True))


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

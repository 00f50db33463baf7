"""A kernel and a ridge by trial on a held-out slice: from machines of some rows to those of more."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from thalweg.machines.candidates import Choice
from thalweg.machines.dense import MOST
from thalweg.machines.device import by_squares
from thalweg.machines.folds import FINELY
from thalweg.machines.methods import Settings
from thalweg.machines.rows import Rows
from thalweg.machines.trials import Interrupted, InTurn, Trial, Trials, wide_rows

FAMILIES_TRIED = 2
"""Families that begin on the slice."""

# Learned units must lower the loss on the slice by the first part. A gain on few rows may shrink with more of them: by
# as much each time they double as from the smaller trials to the larger ones, or, where there is but one size of
# trials, by the second part (on MNIST a gain of 11 % on 2,048 rows and 6 % on 4,472 is none on 60,000).
_WORTH_ON_SLICE, _SHRINKAGE = 0.015, 0.045
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
# Families are tried further that lose no more than this part where they begin, and units that refining may yet help so
# much.
_LIKE, _REFINED = 0.03, 0.05
# Units are learned so often from the machines that are tried last, unless they lose by more than this factor.
_ROUNDS, _NOT_FAR = 3, 1.05
# Where those are of squares, from so many rows, at most half of them, and so often, as long as the loss on the slice
# falls by the last part.
_WIDE_ROWS, _WIDE_ROUNDS, _WORTH_A_ROUND = 16_384, 5, 0.01
# What gains this part there is not asked to beat others at their best.
_CLEAR = 0.08
# Directions of the search there: with more rows the best lengthscale and ridge fall.
_WIDELY, _LASTLY = ((0.5**0.5, 1.0), (2**0.5, 1.0), (1.0, 0.1**0.5)), ((0.5**0.5, 1.0), (1.0, 0.1))
# Where a slice misses fewer labels than this, as many slices as the second number are held out in turn.
_TOO_FEW, _SLICES = 10, 4


class SliceSearch:
    """Goes from choices that some hundred rows made to a better one.

    Parameters
    ----------
    rows, settings, seed, dtype
        As in ``choose``.
    search
        Goes from a choice to a better one on some trials.
    relearned
        Choices in units by the slopes of a machine that was tried.
    """

    def __init__(
        self,
        rows: Rows,
        settings: Settings,
        seed: int,
        dtype: Any,
        search: Callable[..., Choice],
        relearned: Callable[..., Iterator[Choice]],
    ) -> None:
        self.rows, self.settings, self.search, self.relearned = rows, settings, search, relearned
        self.seed, self.dtype, self._order = seed, dtype, rows.shuffled([seed, 1])
        self._made = list[Trials]()

    def best(
        self, in_plain: list[list[Choice]], learn: Callable[[], list[list[Choice]]]
    ) -> tuple[Choice, Trial | None]:
        """The best choice, of those in plain units and in learned ones, and the best machine tried."""
        return self._ended(lambda: self._from_some_rows_to_more(in_plain, learn))

    def best_by_trials_alone(
        self, in_plain: list[Choice], translated: Callable[[Choice, float], Choice]
    ) -> tuple[Choice, Trial | None]:
        """The same, with families and learned units found by trials of squares, where a device soon makes them.

        ``translated`` gives what a choice that was found by squares is for the loss, where their mean of p(1 − p) is
        this.
        """
        return self._ended(lambda: self._by_trials_alone(in_plain, translated))

    def _ended(self, search: Callable[[], tuple[Choice, Trial | None]]) -> tuple[Choice, Trial | None]:
        try:
            found, tried = search()
        except KeyboardInterrupt:
            with_loss = [trials for trials in self._made if trials.settings.loss == self.settings.loss]
            so_far = next((trials.best for trials in reversed(with_loss) if trials.best is not None), None)
            if so_far is None:
                raise
            raise Interrupted(so_far) from None
        finally:
            for trials in self._made:
                trials.forget()
        if tried is not None:  # without the matrices of the trials
            learner = tried.learner()
            tried = tried._replace(learner=lambda: learner)
        return found, tried

    def _by_trials_alone(
        self, in_plain: list[Choice], translated: Callable[[Choice, float], Choice]
    ) -> tuple[Choice, Trial | None]:
        trials = self._trials(by_squares(self.settings))
        cost, coarsely = trials.loss, lambda one: self.search(trials, one, directions=_COARSELY)
        trials.prepare(in_plain)
        near = _NEAR * min(map(cost, in_plain))
        plain = min((coarsely(one) for one in in_plain if cost(one) <= near), key=cost)
        plain = of_any_family(trials, plain, self.settings, coarsely)
        learned = relearned_in_rounds(trials, plain, plain, self.relearned)
        if learned is not plain:
            learned = of_any_family(trials, coarsely(learned), self.settings, coarsely)
        found, other = (translated(one, trials.curvature(one)) for one in (plain, learned))
        return self._with_more_rows(trials, in_plain, found, other, alone=True)

    def _from_some_rows_to_more(
        self, in_plain: list[list[Choice]], learn: Callable[[], list[list[Choice]]]
    ) -> tuple[Choice, Trial | None]:
        trials = self._trials(self.settings)
        cost, firsts = trials.loss, [ranked[0] for ranked in in_plain]
        trials.prepare(firsts)
        best = min(in_plain, key=lambda ranked: cost(ranked[0]))
        if len(self.rows) > MOST and trials.best is not None and trials.best.easy:
            return best[0], trials.best
        others = [one for ranked in learn() for one in ranked[:FAMILIES_TRIED]] or best[1:FAMILIES_TRIED]
        found, other = self._coarsely(trials, firsts, others)
        return self._with_more_rows(trials, firsts, found, other)

    def _with_more_rows(
        self, trials: Trials, firsts: list[Choice], found: Choice, other: Choice, alone: bool = False
    ) -> tuple[Choice, Trial | None]:
        """One of two choices, at its best with more rows; the first ones have plain units."""
        final, wide = trials, 0
        if trials.at_once:
            wide = wide_rows(self.rows, self.settings, self.dtype, trials.best)
            final = self._trials(self.settings, final=True, wide=wide)
        # The ridge too where trials are soon made.
        finely = _WIDELY if wide else FINELY if final.at_once else FINELY[:2]
        few = self._misses_too_few(final, found)
        refine = lambda one: one if few else self.search(final, one, directions=finely)
        found = self._better_of(trials, final, found, other, refine, bool(wide))
        if wide or (final.on_host and not few):
            found = of_like_family(final, found, self.settings, refine)
        # More rows tell more of the features than those that units were learned from before.
        before, learned = found, all(found.base is not one.base for one in firsts)
        if wide and (learned or self.settings.metric == "diagonal"):
            final = self._trials(self.settings, final=True, wide=min(len(self.rows) // 2, _WIDE_ROWS))
            found = relearned_in_rounds(final, min(firsts, key=trials.loss), found, self.relearned)
        elif not wide and (learned or not alone):
            found = self._in_rounds(trials, final, found)
        if found is not before:
            found = self.search(final, found, directions=_LASTLY if wide else finely[:2])
        return self._by_slices_in_turn(final, found) if few else found, final.best

    def _trials(self, settings: Settings, **more: Any) -> Trials:
        self._made.append(Trials(self.rows, self._order, settings, self.seed, self.dtype, **more))
        return self._made[-1]

    def _coarsely(self, trials: Trials, firsts: list[Choice], others: list[Choice]) -> tuple[Choice, Choice]:
        """The best in plain units and the best of the others."""
        cost = trials.loss
        trials.prepare(others)
        near = _NEAR * min(map(cost, firsts + others))
        # Where each begins is by some hundred rows, which may know little of a rare class.
        coarsely = lambda one: self.search(trials, one, directions=_COARSELY) if cost(one) <= near else one
        searched = trials.several(coarsely, firsts + (others or firsts))
        found, other = (min(ones, key=cost) for ones in (searched[: len(firsts)], searched[len(firsts) :]))
        return found, other

    def _better_of(
        self,
        trials: Trials,
        final: Trials,
        found: Choice,
        other: Choice,
        refine: Callable[[Choice], Choice],
        wide: bool,
    ) -> Choice:
        """One of two choices, each at its best: with more rows the better lengthscale is another."""
        final.prepare([found, other])
        before, gained = gain(trials, found, other), gain(final, found, other)
        hopeless = other.base is not found.base and gained < self._worth(trials, final, before, gained) - _REFINED
        if hopeless and not trials.on_host:
            return refine(found)
        if wide and gained > _CLEAR:
            other = refine(other)
        else:
            found, *others = final.several(refine, [found, other] if gained > 0 else [found])
            other = others[0] if others else other
        return other if self._lasts(trials, final, found, other, before) else found

    def _lasts(self, trials: Trials, final: Trials, found: Choice, other: Choice, before: float) -> bool:
        """Whether another choice is likely to gain with all rows what it does with some."""
        gained = gain(final, found, other)
        if other.base is found.base:  # another family, which takes nothing from the rows
            return gained > 0
        return gained > self._worth(trials, final, before, gained)

    def _worth(self, trials: Trials, final: Trials, before: float, gained: float) -> float:
        """What other units must gain in the final trials to gain something with all rows."""
        more, apart = np.log2(len(self.rows) / len(final.order)), np.log2(len(final.order) / len(trials.order))
        alike = trials.settings.loss == final.settings.loss
        return _WORTH_ON_SLICE + more * (max(before - gained, 0) / apart if apart and alike else _SHRINKAGE)

    def _in_rounds(self, trials: Trials, final: Trials, found: Choice) -> Choice:
        """In units learned from the machines that were tried last, as long as that helps."""
        for _ in range(_ROUNDS):
            if final.best is None or final.best.choice.base is not found.base:
                break
            units = list(self.relearned(final.trial(found)))
            trials.prepare(units)
            if min(map(trials.loss, units), default=np.inf) > _NOT_FAR * trials.loss(found):
                break
            # What hardly counts in some units hardly shows in slopes: where it counts for more it does.
            units += self.relearned(final.trial(units[-1]))
            trials.prepare(units)
            other = min(units, key=trials.loss)
            before = gain(trials, found, other)
            if before <= 0 or not self._lasts(trials, final, found, other, before):
                break
            found = other
        return found

    def _misses_too_few(self, final: Trials, found: Choice) -> bool:
        """Whether a slice misses too few labels to tell choices apart that are alike."""
        labels = self.rows.table is not None
        return labels and final.on_host and final.trial(found).misses * len(final.held) < _TOO_FEW

    def _by_slices_in_turn(self, final: Trials, found: Choice) -> Choice:
        """With slices held out in turn, each row in one of them."""
        in_turn = InTurn([final, *(self._trials(self.settings, final=True, turn=turn) for turn in range(1, _SLICES))])
        found = of_like_family(in_turn, found, self.settings, lambda one: one)
        return self.search(in_turn, found, directions=FINELY)


def of_like_family(
    trials: Trials | InTurn, found: Choice, settings: Settings, refine: Callable[[Choice], Choice]
) -> Choice:
    """With the next rougher family, or the next smoother one, as long as that helps: some hundred rows ranked them."""
    families, longer = settings.families, _LONGER if settings.bandwidth == "auto" else 1.0
    for step in (1, -1):
        best, place = found, families.index(found.family) + step
        while place in range(len(families)):
            other = best._replace(family=families[place], times=best.times * longer**step)
            if gain(trials, best, other) <= _TELLING:
                break
            best, place = other, place + step
        if best is not found:
            return refine(best)
    return found


def of_any_family(trials: Trials, found: Choice, settings: Settings, refine: Callable[[Choice], Choice]) -> Choice:
    """With the best family, each at its best, but for those far behind."""
    place, longer = settings.families.index(found.family), _LONGER if settings.bandwidth == "auto" else 1.0
    alike = [
        found._replace(family=family, times=found.times * longer ** (number - place))
        for number, family in enumerate(settings.families)
        if number != place
    ]
    trials.prepare(alike)
    return min([found, *(refine(one) for one in alike if gain(trials, found, one) > -_LIKE)], key=trials.loss)


def relearned_in_rounds(
    trials: Trials, plain: Choice, found: Choice, relearned: Callable[..., Iterator[Choice]]
) -> Choice:
    """In units learned again, from machines of many rows, if they are better.

    They begin with plain ones: what hardly counts in those learned from few rows hardly shows in slopes.
    """
    rounds, tried = list[Choice](), trials.trial(found._replace(base=plain.base))
    while len(rounds) < _WIDE_ROUNDS:
        unit, before = next(relearned(tried, further=bool(rounds)), None), tried.loss
        if unit is None:
            break
        tried = trials.trial(unit)
        rounds.append(unit)
        if tried.loss > (1 - _WORTH_A_ROUND) * before:
            break
    return min([found, *rounds], key=trials.loss)


def gain(trials: Trials | InTurn, found: Choice, other: Choice) -> float:
    """The part of the loss on the slice that another choice spares."""
    return 1 - trials.loss(other) / max(trials.loss(found), np.finfo(float).tiny)


def searched(
    trials: Trials | InTurn,
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

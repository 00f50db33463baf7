"""One race for every search: all candidates on a small subset, survivors on larger ones, refinements on the way.

A *candidate* is any hashable description of a model: a family of kernels with its lengthscales and ridge, a rank, a
start. A *rung* is a subset that candidates are scored on, from the smallest to the largest. ``score(candidate, rung)``
fits the candidate and returns a loss for each validation row, the same rows for all candidates of a rung, so that two
of them are compared by the paired difference. A candidate that cannot be fitted (it raises ``LinAlgError`` or
``FloatingPointError``, or its losses are not finite) has lost.
"""

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from thalweg.runs import Run
from thalweg.threads import in_threads

Candidate = TypeVar("Candidate", bound=Hashable)
Rung = TypeVar("Rung")

Axis = tuple[Callable[[Any], Any], ...]
"""Moves that lead from a candidate to its neighbours along one axis, in either direction; None where there is none."""


class Entry(NamedTuple, Generic[Candidate]):
    """A candidate and its losses, one for each validation row of a rung.

    Examples
    --------
    >>> Entry("ridge", np.array([1.0, 3.0])).loss
    2.0
    """

    candidate: Candidate
    losses: np.ndarray

    @property
    def loss(self) -> float:
        """The mean loss."""
        return float(np.mean(self.losses))


class RaceResult(NamedTuple, Generic[Candidate]):
    """The winner, and the others that were level with it on the last rung.

    Examples
    --------
    >>> result = race([3.0, 1.0], lambda candidate, rung: np.full(rung, candidate), [4])
    >>> result.best.candidate, len(result.level)
    (1.0, 0)
    """

    best: Entry[Candidate]
    level: tuple[Entry[Candidate], ...]
    interrupted: bool


def is_better(new: Entry, old: Entry, standard_errors: float = 0.0, least: float = 0.0) -> bool:
    """Whether a candidate is better by more than chance: the paired difference exceeds so many standard errors.

    ``least`` is the share of the old loss that must be gained in any case.

    Examples
    --------
    >>> old = Entry("old", np.array([1.0, 2.0, 3.0, 4.0]))
    >>> shifted, turned = Entry("shifted", old.losses - 0.1), Entry("turned", old.losses[::-1] - 0.1)
    >>> is_better(shifted, old, 2.0), is_better(turned, old, 2.0)
    (True, False)
    """
    gains = old.losses - new.losses
    if not np.isfinite(new.loss):
        return False
    if not np.isfinite(old.loss):
        return True
    error = np.std(gains) / np.sqrt(max(len(gains) - 1, 1))
    return float(np.mean(gains)) > max(standard_errors * float(error), least * abs(old.loss))


class _Scores(Generic[Candidate, Rung]):
    """Scores of one rung, each found once; several are found beside each other, one to a core."""

    def __init__(self, score: Callable[[Candidate, Rung], np.ndarray], rung: Rung, parallel: bool) -> None:
        self.score, self.rung, self.parallel = score, rung, parallel
        self.known: dict[Candidate, Entry[Candidate]] = {}

    def __call__(self, candidates: Iterable[Candidate | None]) -> list[Entry[Candidate]]:
        wanted = list(dict.fromkeys(candidate for candidate in candidates if candidate is not None))
        new = [candidate for candidate in wanted if candidate not in self.known]
        entries = (in_threads if self.parallel else map)(self._entry, new)
        self.known.update(zip(new, entries, strict=True))
        return [self.known[candidate] for candidate in wanted]

    def _entry(self, candidate: Candidate) -> Entry[Candidate]:
        try:
            losses = np.asarray(self.score(candidate, self.rung), float)
        except (np.linalg.LinAlgError, FloatingPointError):
            losses = np.array([np.inf])
        return Entry(candidate, np.where(np.isfinite(losses), losses, np.inf))

    def best(self, candidates: Iterable[Candidate | None]) -> Entry[Candidate] | None:
        return min(self(candidates), key=lambda entry: entry.loss, default=None)


def line_search(
    entry: Entry[Candidate],
    axes: Sequence[Axis],
    scores: Callable[[Iterable[Candidate | None]], list[Entry[Candidate]]],
    better: Callable[[Entry, Entry], bool] = is_better,
) -> Entry[Candidate]:
    """Go along each axis in turn as far as that is better; both directions of an axis are scored at once.

    Examples
    --------
    >>> scores = lambda some: [Entry(x, np.array([(x - 5.0) ** 2])) for x in some]
    >>> line_search(Entry(0, np.array([25.0])), [(lambda x: x + 1, lambda x: x - 1)], scores).candidate
    5
    """
    for axis in axes:
        moves = list(axis)
        while moves:
            tried = [(move, move(entry.candidate)) for move in moves]
            found = {new.candidate: new for new in scores(candidate for _, candidate in tried)}
            gains = [
                (found[candidate].loss, move)
                for move, candidate in tried
                if candidate is not None and better(found[candidate], entry)
            ]
            if not gains:
                break
            _, move = min(gains, key=lambda pair: pair[0])
            entry = found[move(entry.candidate)]
            moves = [move]
    return entry


def race(
    candidates: Sequence[Candidate],
    score: Callable[[Candidate, Rung], np.ndarray],
    rungs: Sequence[Rung],
    *,
    fresh: Callable[[Rung], Sequence[Candidate]] = lambda rung: (),
    axes: Callable[[Rung], Sequence[Axis]] = lambda rung: (),
    refine: Callable[[Entry[Candidate], Rung], Sequence[Candidate]] = lambda best, rung: (),
    propose: Callable[[Entry[Candidate], Rung], Sequence[Candidate]] = lambda best, rung: (),
    least_gain: float = 0.01,
    standard_errors: float = 0.0,
    level_errors: float = 2.0,
    survivors: int = 1,
    kind: Callable[[Candidate], Hashable] | None = None,
    enough: float = -np.inf,
    further: Callable[[Candidate], np.ndarray] | None = None,
    parallel: Callable[[Rung], bool] = lambda rung: True,
) -> RaceResult[Candidate]:
    """Return the best candidate after all rungs.

    On each rung every survivor is scored and moved along the axes to its best neighbour. Then come rounds, as long as
    one gains ``least_gain`` of the loss: the best is compared with refinements of it, which are like it; where none of
    them gains, with others, which are moved first; where nothing does, it is moved again itself. *Better* means by more
    than ``standard_errors`` of the paired difference. Those than which the best is not better by ``level_errors`` are
    level with it, and go on beside it, ``survivors`` in all at most.

    Parameters
    ----------
    candidates
        Where the race starts.
    score
        ``score(candidate, rung)``, the losses of validation rows.
    rungs
        Subsets, from the smallest to the largest.
    fresh
        ``fresh(rung)``, candidates of which the best begins on a rung, beside those that go on.
    axes
        ``axes(rung)``, the axes of a line search from each candidate.
    refine, propose
        ``refine(best, rung)`` and ``propose(best, rung)``, further candidates: like the best one, and others.
    least_gain
        The share of the loss that a move must gain, and a round for another one to follow.
    standard_errors
        By how many of them a candidate must be better.
    level_errors
        By how many of them the best is better than those that it leaves behind.
    survivors
        How many go on to the next rung.
    kind
        ``kind(candidate)``; of each kind only the best goes on. By default each candidate is a kind of its own.
    enough
        The sum of losses at which nothing is left to gain on a rung.
    further
        ``further(candidate)``, losses of more validation rows: with them the best of those level on the last rung is
        chosen, since of many that are level some lead by luck.
    parallel
        ``parallel(rung)``, whether candidates are scored beside each other, on as many cores as there are.

    Examples
    --------
    >>> target = lambda x, rows: (x - np.linspace(2, 4, rows)) ** 2
    >>> race([0, 8], target, [5, 50], axes=lambda rung: [(lambda x: x + 1, lambda x: x - 1)]).best.candidate
    3
    """
    level: list[Entry[Candidate]] = []
    with Run("search") as run:
        going = list(candidates)
        for rung in rungs:
            scores = _Scores(score, rung, parallel(rung))
            best = _raced(going, scores, rung, fresh, axes, refine, propose, least_gain, standard_errors, enough, run)
            level = _level(best, scores, level_errors, kind or (lambda candidate: candidate))
            going = [entry.candidate for entry in level[:survivors]]
        if further is not None:
            run.keep(min(level, key=lambda entry: np.mean(np.append(entry.losses, further(entry.candidate)))))
    return RaceResult(run.kept, tuple(one for one in level if one is not run.kept), run.interrupted)


def _raced(
    going: Sequence[Candidate],
    scores: _Scores[Candidate, Rung],
    rung: Rung,
    fresh: Callable[[Rung], Sequence[Candidate]],
    axes: Callable[[Rung], Sequence[Axis]],
    refine: Callable[[Entry[Candidate], Rung], Sequence[Candidate]],
    propose: Callable[[Entry[Candidate], Rung], Sequence[Candidate]],
    least_gain: float,
    standard_errors: float,
    enough: float,
    run: Run,
) -> Entry[Candidate]:
    """The best candidate of one rung."""

    def gains(new: Entry[Candidate], old: Entry[Candidate]) -> bool:
        return is_better(new, old, standard_errors, least_gain)

    def ended(entry: Entry[Candidate]) -> bool:
        return float(np.sum(entry.losses)) <= enough

    def moved(entry: Entry[Candidate]) -> Entry[Candidate]:
        return entry if ended(entry) else line_search(entry, axes(rung), scores, gains)

    def better_of(old: Entry[Candidate], new: Entry[Candidate] | None) -> Entry[Candidate]:
        return old if new is None or not is_better(new, old, standard_errors) else new

    beside = scores.best(fresh(rung))
    best = min(map(moved, [*scores(going), *([] if beside is None else [beside])]), key=lambda entry: entry.loss)
    run.keep(best)
    while not ended(best):
        before, best = best, better_of(best, scores.best(refine(best, rung)))
        if not gains(best, before) and (challenger := scores.best(propose(best, rung))) is not None:
            best = better_of(best, moved(challenger))
        best = best if gains(best, before) else moved(best)
        run.keep(best)
        if not gains(best, before):
            break
    return best


def _level(
    best: Entry[Candidate],
    scores: _Scores[Candidate, Rung],
    standard_errors: float,
    kind: Callable[[Candidate], Hashable],
) -> list[Entry[Candidate]]:
    near = [one for one in scores.known.values() if not is_better(best, one, standard_errors)]
    # The best of a kind comes last, and replaces those before it.
    kinds = {kind(one.candidate): one for one in sorted(near, key=lambda entry: -entry.loss)}
    kinds.pop(kind(best.candidate), None)
    return [best, *sorted(kinds.values(), key=lambda entry: entry.loss)]

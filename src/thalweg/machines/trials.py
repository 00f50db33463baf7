"""Trials: machines that learn from some rows with a kernel and a ridge, and are judged on a held-out slice."""

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import replace
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from thalweg.kernels import Kernel
from thalweg.kernels.profiles import written_out
from thalweg.machines.candidates import Choice, Matrices
from thalweg.machines.dense import MOST, Dense
from thalweg.machines.device import Squares, squares_on_device
from thalweg.machines.expansion import evaluated
from thalweg.machines.folds import middle_half, two_at_once
from thalweg.machines.kept import FEW_MISSES, Kept, keeps
from thalweg.machines.kept import MOST as MOST_KEPT
from thalweg.machines.learners import LandmarkLearner, Learner, in_precision, start
from thalweg.machines.methods import Settings
from thalweg.machines.rows import Rows, same

# Where no more labels are missed, what one choice gains on another is nothing beside chance; of those that are missed
# without learning, no more than the second part.
_HARDLY_ANY, _OF_MISSED = 0.004, 0.05

# All trials together may cost about this part of what learning costs, the product of rows and features; one of a
# quarter of few rows costs less than that.
_PART_OF_COST, _TRIALS = 0.05, 9
_FEWEST_ROWS, _MOST_ROWS, _SLICE_ROWS = 4096, 8192, 2048
# On a CPU a search begins on the host, with a quarter of the rows, at most the first number; trials of no more rows
# than the second are solved there anyway.
_FIRST_ROWS, _HOST_ROWS = 2048, 4096
# Final trials of many rows that will be solved for are of a quarter of them, but no more than this. They will not be if
# some thousand miss fewer labels than the second part: then a pass over all is likely to miss few.
_WIDE_ROWS, _MISSED = 6144, 4 * FEW_MISSES
# A trial need not be solved to more than this, or in more steps. Conjugate gradients end where so many rows held out
# say that they lower the loss by less than the last part.
_TOL, _MOST_STEPS, _FEW_HELD, _LOWER = 0.01, 50, 512, 0.01
# Where many rows were copies, so few that are left make one block: two take a few steps more, and end less exactly.
_ONE_BLOCK = 3072


def _place(choice: Choice) -> tuple[Any, ...]:
    """The same for choices that are."""
    return id(choice.family), id(choice.base), f"{choice.times:.6g}", f"{choice.alpha:.6g}"


class Interrupted(KeyboardInterrupt):
    """The search was interrupted; ``trial`` is the best there was."""

    def __init__(self, trial: "Trial") -> None:
        super().__init__()
        self.trial = trial


_Landmarks = tuple[np.ndarray, np.ndarray, np.ndarray] | None
_Tried = tuple[float, float, Callable[[], Learner], Callable[[], _Landmarks]]


class Trial(NamedTuple):
    """What was learned from some rows with a choice, and the loss on others."""

    loss: float
    learner: Callable[[], Learner]
    landmarks: Callable[[], _Landmarks]
    """The rows that are landmarks, what each adds to f, and their weights; None where there are none."""
    choice: Choice
    rows: int
    frame: dict[str, Any]
    """The offset and the map of the rows."""
    misses: float
    """The part of labels that was missed, or how far numbers were off."""
    easy: bool
    """Whether hardly any label was missed."""


def hardly_any(rows: Rows) -> float:
    """A part of labels that is hardly worth more search; below 0 where targets are numbers.

    Examples
    --------
    >>> rows = lambda few: Rows(np.zeros((100, 1)), 1 * (np.arange(100) < few), np.ones(100), table=np.eye(2))
    >>> round(hardly_any(rows(50)), 4), round(hardly_any(rows(1)), 4)
    (0.004, 0.0005)
    """
    if rows.counts is None:
        return -1.0
    return min(_HARDLY_ANY, float(_OF_MISSED * (1 - np.max(rows.counts) / np.sum(rows.counts))))


class Trials:
    """Learns from some rows with a kernel and a ridge, judges that on a held-out slice, and keeps the best.

    Parameters
    ----------
    rows, settings, seed, dtype
        As in ``choose``.
    order
        Of the rows: the first are held out.
    final
        Whether it is to be of as many rows as may be: a search that was on fewer of them ends here.
    wide
        Rows of final ones that are solved by conjugate gradients; 0 if they are not to be.
    turn
        Which slice is held out, of those that have no row in common.
    """

    def __init__(
        self,
        rows: Rows,
        order: np.ndarray,
        settings: Settings,
        seed: int,
        dtype: Any,
        final: bool = False,
        wide: int = 0,
        turn: int = 0,
    ) -> None:
        some = min(_SLICE_ROWS, len(rows) // 4)
        order = np.roll(order, -turn * some)
        self.held = rows.subset(np.sort(order[:some]))
        if settings.loss.robust:  # Beside the losses of outliers those of the others would be nothing.
            self.held = replace(self.held, targets=np.clip(self.held.targets, *middle_half(self.held.targets)))
        count = trial_rows(len(rows), settings)
        plain, device = settings.method.visits and settings.loss.smooth, squares_on_device(settings)
        soon = device or jax.default_backend() == "cpu"
        # The final ones are learned as the machine will be: what is solved at once gains more by units of its own.
        few = count <= _HOST_ROWS and (soon or len(rows) <= MOST)
        self.at_once = plain and (few or (soon and not final))
        self.on_host = self.at_once and not device
        if wide:
            self.at_once, self.on_host, count = device, False, wide
        elif self.at_once:
            count = _HOST_ROWS if final else min(count, len(rows) // 4, _FIRST_ROWS)
        self.order = order[len(self.held) :][:count]
        if self.at_once or wide:  # All of them are landmarks, however few the machine will have.
            settings = replace(settings, max_features=max(settings.max_features, len(self.order)))
        self.rows, self.dtype, self.best = rows, dtype, cast(Trial | None, None)
        if settings.method.visits:
            settings = replace(settings, method=replace(settings.method, tol=max(settings.method.tol, _TOL)))
        self.settings, self.frame = settings, {"offset": rows.offset, "map": rows.map, "far": rows.far}
        # More than one block: with room for all rows, so that a program which learns from them is compiled once.
        compiled = jax.default_backend() != "cpu" or not settings.loss.quadratic
        room = len(rows) if compiled and len(self.order) > settings.block_size else len(self.order)
        self.start = lambda kernel: start(settings, kernel, rows.dimension, rows.outputs, room, seed, dtype)
        counts = rows.counts
        if rows.table is None or counts is None:
            self.level = np.zeros(rows.outputs)
        else:
            self.level = settings.loss.level(rows.table, counts)
        self._take_rows(dtype, bool(wide))
        self._tried = self._solved if self.at_once else self._by_gradients if wide else self._learned

        self._known, self._begun_with = dict[tuple, Trial](), dict[tuple, tuple[Array, Array, Array]]()
        self._apart, self._begun, self._hardly_any = False, cast(Learner | None, None), hardly_any(rows)

    def forget(self) -> None:
        """Let go of all that was tried but the best: it refers to itself, and would stay until garbage is collected."""
        self._known.clear()
        if self.on_host:
            self.matrices.forget()

    def loss(self, choice: Choice) -> float:
        """The mean loss on the slice."""
        return self.trial(choice).loss

    def trial(self, choice: Choice) -> Trial:
        """What is learned with a choice, once; the best is kept."""
        place = _place(choice)
        if place not in self._known:
            loss, misses, learner, landmarks = self._tried(choice)
            loss, easy = loss if np.isfinite(loss) else np.inf, misses <= self._hardly_any
            self._known[place] = Trial(loss, learner, landmarks, choice, len(self.order), self.frame, misses, easy)
        found = self._known[place]
        if np.isfinite(found.loss) and (self.best is None or found.loss < self.best.loss):
            self.best = found
        return found

    def curvature(self, choice: Choice) -> float:
        """The mean of p(1 − p) on the slice, where squares on a device say p."""
        p = np.clip(self.level + np.asarray(self._squares(choice)[1]), 0, 1)
        return float(np.mean(p * (1 - p)))

    def several(self, act: Callable[[Choice], Choice], choices: Sequence[Choice]) -> list[Choice]:
        """Act on choices, two at a time where trials are on the host, which has them use one core each."""
        if not self.on_host or len(choices) < 2:
            return list(map(act, choices))
        self._apart = True
        try:
            return two_at_once(act, choices)
        finally:
            self._apart = False

    def prepare(self, choices: Sequence[Choice]) -> None:
        """Find what will be asked for, two at a time, unless all cores have their work; a device goes on by itself."""
        if self.on_host and not self._apart:
            two_at_once(self.loss, choices)
        elif self.at_once and not self.on_host:
            for choice in choices:
                self._squares(choice)

    def _take_rows(self, dtype: Any, wide: bool) -> None:
        """Make rows dense, once for all trials; to squares on the host those that are the same are one."""
        rows, on_device = self.rows, self.at_once and not self.on_host
        dtype = float if self.at_once else np.float32 if wide else dtype
        self.new, self._place = self.held.features(slice(None), dtype), cast(Any, slice(None))
        if self.settings.loss.quadratic and not on_device and (self.at_once or wide):
            self.near = rows.merged(self.order, dtype)
            first, self._place = same(self.new)
            self.new = self.new[first]
        else:
            x = rows.features(self.order, dtype)
            self.near = replace(rows.subset(self.order), x=x, offset=None, map=None, far=None)
        if self.on_host:
            self.matrices = Matrices(self.near.x, self.new)
        elif self.at_once:
            above = lambda rows: (rows.targets_of(slice(None)) - self.level, rows.weights)
            self.device = Squares(self.settings.families, self.near.x, self.new, above(self.near), above(self.held))

    def _solved(self, choice: Choice) -> _Tried:
        """Of all landmarks at once."""
        if not self.on_host:
            weights, values, mean = self._squares(choice)
            return float(mean), self.held.misses(self.level + np.asarray(values)), *self._made(choice, weights)
        loss, tol, level = self.settings.loss, self.settings.method.tol, self.level
        targets = np.asarray(self.near.targets_of(slice(None)), float)
        among, between = self.matrices.of(choice)
        dense = Dense(among, targets, self.near.weights, loss, choice.alpha, level, tol)
        for _ in range(_MOST_STEPS):
            dense.step()
            if dense.done:
                break
        values = between @ dense.weights.astype(between.dtype)
        return self._found(choice, dense.weights, level + values[self._place])

    def _squares(self, choice: Choice) -> tuple[Array, Array, Array]:
        place = _place(choice)
        if place not in self._begun_with:
            self._begun_with[place] = self.device.solve(*choice)
        return self._begun_with[place]

    def _by_gradients(self, choice: Choice) -> _Tried:
        """Squares of all landmarks, with half of the kernel matrix in memory."""
        level, near = self.level, self.near
        size = len(near) if len(near) <= _ONE_BLOCK else None
        machine = Kept(choice.kernel, near.x, near.targets - level, choice.alpha / near.weights, self.new, size)
        for _ in machine.meet():
            pass
        truth = np.asarray(self.held.targets_of(slice(0, _FEW_HELD)), float) - level
        some, place = np.unique(self._place[:_FEW_HELD], return_inverse=True)
        for _ in machine.steps(lambda: float(np.mean((machine.values(some)[place] - truth) ** 2)), _LOWER):
            pass
        return self._found(choice, machine.weights, level + machine.values()[self._place])

    def _found(self, choice: Choice, weights: np.ndarray, values: np.ndarray) -> _Tried:
        """The mean loss of values on the slice, the part of labels missed, and what makes a learner of weights."""
        loss: Any = self.settings.loss
        losses = np.asarray(loss.value(values, np.asarray(self.held.targets_of(slice(None)), float)))
        mean = float(np.average(losses, weights=self.held.weights))
        return mean, self.held.misses(values), *self._made(choice, weights)

    def _made(self, choice: Choice, weights: Any) -> tuple[Callable[[], Learner], Callable[[], _Landmarks]]:
        near = self.near

        def learner() -> Learner:
            made = self._level(choice)
            assert isinstance(made, LandmarkLearner)
            made.place(near, np.arange(len(near)))
            made.take(np.asarray(weights))
            return made

        return learner, lambda: (near.x.astype(self.dtype), np.asarray(weights), near.weights)

    def _learned(self, choice: Choice) -> _Tried:
        learner = self._level(choice)
        for _ in learner.learn(self.near, np.arange(len(self.order)), choice.alpha, len(self.order)):
            pass
        found = None
        if jax.default_backend() != "cpu":  # where the program for it is soon made, and used again
            found = np.asarray(evaluated(learner.machine.coordinates, learner.expansion, jnp.asarray(self.new)))
        landmarks = learner.landmarks if isinstance(learner, LandmarkLearner) else lambda: None
        return *learner.judged(self.held, found), lambda: learner, landmarks

    def _level(self, choice: Choice) -> Learner:
        kernel = in_precision(choice.kernel, self.dtype)
        if isinstance(self._begun, LandmarkLearner):
            return self._begun.with_kernel(kernel)
        self._begun = self.start(kernel).at_level(self.level, choice.alpha)
        return copy(self._begun)


class InTurn:
    """Trials with slices that are held out in turn: where one holds too few misses, chance would choose."""

    def __init__(self, several: Sequence[Trials]) -> None:
        self.several = several

    def loss(self, choice: Choice) -> float:
        """The mean loss on all slices."""
        return float(np.mean(two_at_once(lambda trials: trials.loss(choice), self.several)))

    def prepare(self, choices: Sequence[Choice]) -> None:
        """Do nothing: what is asked for has work for all cores."""


def wide_rows(rows: Rows, settings: Settings, dtype: Any, tried: Trial | None) -> int:
    """Rows of final trials by conjugate gradients, by which the machine will be solved for; 0 where it will not be."""
    kernels = [settings.kernel] if isinstance(settings.kernel, Kernel) else [family() for family in settings.families]
    if len(rows) <= MOST or not (keeps(len(rows), settings, dtype) and all(map(written_out, kernels))):
        return 0
    hard = len(rows) <= MOST_KEPT or rows.table is None or tried is None or tried.misses > _MISSED
    return min(max(len(rows) // 4, _HOST_ROWS), _WIDE_ROWS) if hard else 0


def trial_rows(rows: int, settings: Settings) -> int:
    """Rows m of a trial, whose cost is about m²/2.

    Examples
    --------
    >>> from thalweg.machines import SquaredLoss
    >>> [trial_rows(rows, Settings(loss=SquaredLoss())) for rows in (4000, 60_000, 1_000_000)]
    [1000, 4472, 8192]
    """
    features = settings.max_features
    cost = rows * min(rows, features) / (2 if rows <= features else 1)
    share = int((2 * _PART_OF_COST * cost / _TRIALS) ** 0.5)
    return min(max(share, min(rows // 4, _FEWEST_ROWS)), _MOST_ROWS)

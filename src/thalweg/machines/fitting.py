"""The one entry to kernel machines: rows and settings in, a fitted machine out.

:func:`fit` makes passes over rows, :func:`learn` sees each once. Both choose a kernel and a ridge at the start, or go
on from a machine that was fitted before, which they leave as it is.
"""

import time
import warnings
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from rich.progress import Progress

from thalweg.arguments import number, whole
from thalweg.codec import storable
from thalweg.kernels import Kernel
from thalweg.machines.choice import ENOUGH_ROWS, Interrupted, Trial, choose
from thalweg.machines.folds import FEWEST
from thalweg.machines.learners import LandmarkLearner, Learner, in_precision, start
from thalweg.machines.methods import Settings
from thalweg.machines.rows import Rows
from thalweg.threads import enough_threads

# Passes over the data where none are given: a pass over many rows is worth several over few.
_PASSES, _FEW_ROWS = 10, 20_000
# Newton steps, at most.
_MOST_STEPS = 100
# Held out to stop early, at most.
_MOST_HELD_OUT = 5000
# A pass that lowers the held-out loss by less, twice in a row, is the last one.
_IMPROVEMENT = 0.01
# The intercept of a stream changes when it is so far from that of all labels seen, a factor of three in the odds:
# seldom, since all landmarks are then visited again.
_OTHER_LEVEL = float(np.log(3))
_TOO_LARGE = "X or y leads to values beyond the range of numbers: look for features or targets of extreme size"


@storable
@dataclass(frozen=True)
class Fitted:
    """A machine that has learned something: arrays, numbers and words.

    Parameters
    ----------
    learner
        The function, and what it goes on learning with.
    alpha
        The ridge.
    rows
        The number of rows that it was made for; None means a stream.
    seen
        The weight of the rows in the sum of losses.
    passes
        How many were made.
    history
        A line for each pass or batch: rows, seconds, features, and the loss and score on rows held out; for each step
        of a solution the objective, the part of it that a further step would gain (``left``), and products with the
        kernel matrix.
    offset
        What is subtracted from features, in float64, before they are cast to the precision of the machine; kernels
        do not see it, but rounding would.
    counts
        The weight of each label seen, if targets are labels; the intercept of f comes from it.

    Examples
    --------
    >>> from thalweg.machines import Rows, Settings, SquaredLoss
    >>> x = np.arange(4.0)[:, None]
    >>> fitted = fit(Rows(x, np.sin(x), np.ones(4)), Settings(loss=SquaredLoss()), seed=0)
    >>> fitted.features, fitted.passes, fitted.double
    (4, 1, True)
    """

    learner: Learner
    alpha: float
    rows: int | None
    seen: float = 0.0
    passes: int = 0
    history: tuple[dict[str, float], ...] = ()
    offset: np.ndarray | None = None
    counts: np.ndarray | None = None

    def check_stored(self) -> None:
        """Refuse numbers that a fit would not leave behind, as a file could hold them."""
        number("alpha", self.alpha, above=0)
        number("seen", self.seen, least=0)
        whole("passes", self.passes, least=0)
        whole("seed", self.learner.seed, least=0, most=2**31 - 1)
        if self.offset is not None and (self.offset.ndim != 1 or not np.all(np.isfinite(self.offset))):
            raise ValueError("offset must be a row of finite numbers")
        if self.counts is not None and not (np.all(np.isfinite(self.counts)) and np.all(self.counts >= 0)):
            raise ValueError("counts must be non-negative")

    @property
    def kernel(self) -> Kernel:
        """The kernel in use."""
        return self.learner.machine.coordinates.kernel

    @property
    def features(self) -> int:
        """The number of features in use."""
        return self.learner.features

    @property
    def double(self) -> bool:
        """Whether it works in float64."""
        return self.learner.dtype == np.float64

    def mapped(self, convert: Callable[[Any], Any]) -> Self:
        """Return the same machine with its arrays, but not random keys, converted."""
        return replace(self, learner=self.learner.mapped(convert))

    def in_units(self, factor: np.ndarray, shift: np.ndarray) -> Self:
        """Return a machine for targets that are ``factor`` times what they were and ``shift`` more, for each output."""
        with jax.enable_x64(self.double):
            return replace(self, learner=self.learner.in_units(factor, shift, self.alpha))

    def predict(self, x: Any) -> np.ndarray:
        """f at the rows of an array, a memory map or a sparse matrix (CSR), a column for each output."""
        with jax.enable_x64(self.double):
            return self.learner.predict(x, self.offset)


def fit(rows: Rows, settings: Settings, seed: int, onto: Fitted | None = None) -> Fitted:
    """Make passes over rows until there are as many as wanted, or a held-out slice says that they no longer help.

    Where all rows can be landmarks and no passes are asked for, up to 20,000 rows are solved for at once, to the
    optimum of a smooth loss. One block of rows is solved in float64, more of them in float32. An interrupt (Ctrl-C)
    ends the search or the passes with a warning, and what was learned is returned.

    Parameters
    ----------
    rows
        Examples.
    settings
        The loss, the kernel, the method and how much of all.
    seed
        Seeds the order of the rows, the features and the slices held out.
    onto
        What to go on from.

    Examples
    --------
    >>> from thalweg.kernels import Gaussian
    >>> from thalweg.machines import SquaredLoss
    >>> x = np.linspace(0, 3, 20)[:, None]
    >>> rows = Rows(x, np.sin(x), np.ones(20))
    >>> fitted = fit(rows, Settings(loss=SquaredLoss(), kernel=Gaussian(1.0), alpha=1e-6), seed=0)
    >>> bool(abs(fitted.predict(x) - np.sin(x)).max() < 1e-3)
    True
    """
    double = settings.method.double or len(rows) <= settings.block_size if onto is None else onto.double
    with jax.enable_x64(double), enough_threads(len(rows)):
        try:
            begun = _begun(rows, settings, len(rows), seed, np.float64 if double else np.float32, onto)
        except Interrupted as stopped:
            return _best_trial(stopped.trial, rows, len(rows))
        rows = replace(rows, offset=begun.offset)
        return (_solved if _solves(begun, rows, settings) else _passed_over)(begun, rows, settings, seed)


def learn(rows: Rows, settings: Settings, seed: int, onto: Fitted | None = None) -> Fitted:
    """Learn from rows of a stream, each seen once, in float32 unless ``onto`` is in float64; arguments as in ``fit``.

    Examples
    --------
    >>> from thalweg.kernels import Gaussian
    >>> from thalweg.machines import Auto, SquaredLoss
    >>> x = np.linspace(0, 3, 20)[:, None]
    >>> settings = Settings(loss=SquaredLoss(), kernel=Gaussian(1.0), alpha=0.1, method=Auto(block_size=32))
    >>> first = learn(Rows(x[::2], np.sin(x[::2]), np.ones(10)), settings, seed=0)
    >>> second = learn(Rows(x[1::2], np.sin(x[1::2]), np.ones(10)), settings, seed=0, onto=first)
    >>> first.features, second.features
    (10, 20)
    """
    if onto is None and len(rows) < FEWEST and not isinstance(settings.kernel, Kernel):
        warnings.warn(
            f"the first batch of a stream chooses the kernel and the ridge for all that follows, and has {len(rows)} "
            f"rows: with fewer than {FEWEST} they are a guess. Begin with more, or give a kernel",
            stacklevel=5,
        )
    with jax.enable_x64(onto is not None and onto.double):
        try:
            begun = _begun(rows, settings, None, seed, np.float32, onto)
        except Interrupted as stopped:
            return _best_trial(stopped.trial, rows, None)
        rows = replace(rows, offset=begun.offset)
        began = time.perf_counter()
        learner, seen = copy(begun.learner), begun.seen + float(np.sum(rows.weights))
        for _ in learner.learn(rows, np.arange(len(rows)), begun.alpha, seen):
            pass
        if not _finite(learner):
            raise ValueError(f"{_TOO_LARGE}. The model is as it was before")
        line = _line(learner, begun.passes, len(rows), began, None)
        return replace(begun, learner=learner, seen=seen, history=(*begun.history, line))


def default_passes(rows: int, settings: Settings) -> int:
    """One pass where landmarks see many rows, or where there is one block of them, which one visit solves; else ten.

    Examples
    --------
    >>> from thalweg.machines import SquaredLoss
    >>> [default_passes(rows, Settings(loss=SquaredLoss())) for rows in (100, 10_000, 100_000)]
    [1, 10, 1]
    """
    one_block = rows <= min(settings.block_size, settings.max_features)
    return 1 if settings.method.visits and (rows > _FEW_ROWS or one_block) else _PASSES


def _begun(rows: Rows, settings: Settings, total: int | None, seed: int, dtype: Any, onto: Fitted | None) -> Fitted:
    """What was fitted before, if it fits the settings; else choose a kernel and a ridge, and start with f = 0."""
    if onto is None:
        rows = replace(rows, offset=rows.middle())
        kernel, alpha = choose(rows, settings, seed, dtype)
        learner = start(settings, kernel, rows.x.shape[1], rows.outputs, total, seed, dtype)
        return _levelled(Fitted(learner, alpha, total, offset=rows.offset, counts=rows.counts), rows, settings, 0.0)
    known = onto.learner.machine.loss
    if in_precision(settings.loss, onto.learner.dtype) != known:
        raise ValueError(
            f"loss and its parameters must stay what the model has learned with ({type(known).__name__}), "
            f"found {settings.loss}: set them back, or fit anew"
        )
    if onto.counts is None or rows.counts is None:
        return onto
    return _levelled(replace(onto, counts=onto.counts + rows.counts), rows, settings, _OTHER_LEVEL)


def _best_trial(trial: Trial, rows: Rows, total: int | None) -> Fitted:
    """What a search that was interrupted leaves behind, with a warning."""
    warnings.warn(
        f"interrupted in the search for a lengthscale and a ridge: the model is the best tried, which has learned from "
        f"{trial.rows} of {len(rows)} rows",
        stacklevel=5,
    )
    return Fitted(trial.learner, trial.alpha, total, float(trial.rows), offset=rows.middle(), counts=rows.counts)


def _levelled(fitted: Fitted, rows: Rows, settings: Settings, tolerance: float) -> Fitted:
    """Give f the intercept of the labels seen, unless that it has is as near as the tolerance."""
    if fitted.counts is None:
        return fitted
    assert rows.table is not None
    level = settings.loss.level(rows.table, fitted.counts)
    if np.max(np.abs(level - np.asarray(fitted.learner.expansion.intercept))) <= tolerance:
        return fitted
    return replace(fitted, learner=fitted.learner.at_level(level, fitted.alpha))


def _solves(begun: Fitted, rows: Rows, settings: Settings) -> bool:
    """Whether all are solved for at once: where all rows are landmarks, in several blocks, and no passes are asked."""
    unasked = settings.passes is None and settings.method.early_stopping in ("auto", False)
    several = settings.block_size < len(rows) <= min(_FEW_ROWS, settings.max_features)
    return settings.method.visits and settings.loss.smooth and unasked and several and not begun.learner.features


def _solved(begun: Fitted, rows: Rows, settings: Settings, seed: int) -> Fitted:
    """Newton steps until the next would lower the objective by less than the tolerance."""
    learner, history = copy(begun.learner), list[dict[str, float]]()
    assert isinstance(learner, LandmarkLearner)
    learner.place(rows, np.random.default_rng([seed, 2]).permutation(len(rows)))
    total = float(np.sum(rows.weights))
    try:
        with Progress(disable=not settings.progress) as bar:
            if settings.progress:
                bar.console.print(f"{begun.kernel}, alpha {begun.alpha:.3g}", markup=False)
            task = bar.add_task("solving", total=None)
            newton = learner.newton(begun.alpha, settings.method.tol)
            while not newton.done and len(history) < _MOST_STEPS:
                began = time.perf_counter()
                step = newton.step()
                line = {"objective": step.objective, "left": step.left, "products": step.products}
                history.append(_line(learner, begun.passes + len(history) + 1, len(rows), began, None) | line)
                bar.update(task, advance=1, description=f"step {len(history)}, objective {step.objective:.6g}")
                learner.take(newton)
        if not _finite(learner):
            raise ValueError(_TOO_LARGE)
    except KeyboardInterrupt:
        if not history:  # There is nothing to keep.
            raise
        warnings.warn(
            f"interrupted in step {len(history) + 1}: the model keeps what it has learned so far", stacklevel=5
        )
    made = begun.passes + len(history)
    return replace(begun, learner=learner, seen=total, passes=made, history=(*begun.history, *history))


def _passed_over(begun: Fitted, rows: Rows, settings: Settings, seed: int) -> Fitted:
    passes = settings.passes or default_passes(len(rows), settings)
    order = np.random.default_rng([seed, 2]).permutation(len(rows))
    held, count = None, _held_out(len(rows), passes, settings)
    if count:
        held, order = rows.subset(np.sort(order[:count])), order[count:]
    total = float(np.sum(rows.weights))
    learner, history = copy(begun.learner), list[dict[str, float]]()
    best, best_loss, stale = learner.expansion, np.inf, 0
    try:
        with Progress(disable=not settings.progress) as bar:
            if settings.progress:
                bar.console.print(f"{begun.kernel}, alpha {begun.alpha:.3g}", markup=False)
            task = bar.add_task("rows", total=passes * len(order))
            while len(history) < passes and stale < 2:
                began = time.perf_counter()
                bar.update(task, description=f"pass {len(history) + 1} of {passes}")
                learn_from = learner.again if history else learner.learn
                for done in learn_from(rows, order, begun.alpha, total):
                    bar.update(task, advance=done)
                history.append(_line(learner, begun.passes + len(history) + 1, len(order), began, held))
                if held is not None:
                    loss = history[-1]["held_out_loss"]
                    stale = 0 if loss < best_loss * (1 - _IMPROVEMENT) else stale + 1
                    if loss < best_loss:
                        best, best_loss = learner.expansion, loss
        if held is not None:
            learner.expansion = best
        if not _finite(learner):
            raise ValueError(_TOO_LARGE)
    except KeyboardInterrupt:
        if not learner.features:  # There is nothing to keep.
            raise
        number = begun.passes + len(history) + 1
        warnings.warn(
            f"interrupted in pass {number} of {passes}: the model keeps what it has learned so far", stacklevel=5
        )
    made = begun.passes + len(history)
    return replace(begun, learner=learner, seen=total, passes=made, history=(*begun.history, *history))


def _held_out(rows: int, passes: int, settings: Settings) -> int:
    """The number of rows held out."""
    wanted = settings.method.early_stopping
    if wanted == "auto":
        wanted = passes > 1 and rows >= ENOUGH_ROWS
    return min(int(settings.method.validation_fraction * rows), _MOST_HELD_OUT) if wanted else 0


def _line(learner: Learner, passes: int, rows: int, began: float, held: Rows | None) -> dict[str, float]:
    """A line of the history."""
    jax.block_until_ready(learner.expansion)
    seconds = time.perf_counter() - began
    line = {"pass": passes, "rows": rows, "seconds": seconds, "features": learner.features}
    if held is not None:
        line["held_out_loss"], line["held_out_score"] = learner.judged(held)
    return line


def _finite(learner: Learner) -> bool:
    return bool(jnp.isfinite(jnp.sum(learner.expansion.weights)))

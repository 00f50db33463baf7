"""Ways to a fitted machine that are shorter than passes over blocks, where a kernel and a ridge are chosen.

All landmarks at once (``dense``), squares with half of the kernel matrix in memory (``kept``), and few landmarks for
what hardly misses anything (``few``).
"""

import time
import warnings
from collections.abc import Iterator
from copy import copy
from dataclasses import replace

import jax
import numpy as np
from rich.progress import Progress
from scipy.linalg import LinAlgError

from thalweg.kernels.profiles import written_out
from thalweg.machines import kept
from thalweg.machines.calibration import Aside, calibrated, left_out, residuals
from thalweg.machines.dense import MOST
from thalweg.machines.few import LANDMARKS, Few, telling
from thalweg.machines.fitted import Fitted
from thalweg.machines.folds import middle_half
from thalweg.machines.kept_on_device import KeptOnDevice
from thalweg.machines.learners import LandmarkLearner, Learner
from thalweg.machines.losses import QuantileLoss
from thalweg.machines.methods import Settings
from thalweg.machines.rows import Rows
from thalweg.machines.trials import hardly_any

MOST_HELD_OUT = 1024
"""Rows held out to judge by, at most."""

TOO_LARGE = "X or y leads to values beyond the range of numbers: look for features or targets of extreme size"
"""What to say where numbers are not finite."""

# Newton steps, at most.
_MOST_STEPS = 100
# To what part of the objective machines are solved that only tell of rows left out.
_COARSE = 1e-3
# Rounding may take f so far from what the weights make it, beside the targets, and losses up to so many times what they
# are before anything is learned.
_LOST, _WORSE = 0.1, 10.0
# Conjugate gradients end where they lower the loss on a slice by less than this part.
_LOWER = 3e-3
# A smaller ridge is this part of the one before, must lower the loss on the slice by the second part, and is not below
# the third one in units of a row's weight.
_SMALLER, _WORTH_A_RIDGE, _LEAST_RIDGE = 0.1, 2e-3, 1e-3
# Rows that landmarks are drawn from, where they are few.
_DRAWN_FROM = 20_000
# Standard errors that the part of rows below a quantile may be off.
_BY_CHANCE = 1.0
# Widths of the middle half of targets that a robust loss looks at.
_REACH = 30.0


def bounded(rows: Rows, settings: Settings) -> Rows:
    """The rows with targets of a robust loss within reach: beside what is lost at 10⁶ nothing else would count.

    The optimum is the same, since beyond some residual the gradient is.
    """
    if not settings.loss.robust:
        return rows
    return replace(rows, targets=np.clip(rows.targets, *middle_half(rows.targets, _REACH)))


def solved_soon(begun: Fitted, rows: Rows, settings: Settings, seed: int, easy: bool) -> Fitted | None:
    """What has learned from all rows by a way that is open to them; None where passes must be made.

    Parameters
    ----------
    begun
        Has a kernel and a ridge.
    rows, settings, seed
        As in ``fit``.
    easy
        Whether hardly any label was missed in the choice.
    """
    if settings.passes is not None or not settings.method.visits or begun.learner.features:
        return None
    stopping, all_landmarks = settings.method.early_stopping, len(rows) <= settings.max_features
    if len(rows) <= MOST and all_landmarks and settings.loss.smooth and stopping in ("auto", False):
        return _solved(begun, rows, settings, seed)
    if not (settings.loss.quadratic and written_out(begun.kernel)):
        return None
    found = _by_few(begun, rows, settings, seed) if easy else None
    keeps = found is None and kept.keeps(len(rows), settings, begun.learner.dtype)
    return _kept(begun, rows, settings, seed) if keeps else found


def _solved(begun: Fitted, rows: Rows, settings: Settings, seed: int) -> Fitted:
    """Newton steps until the next would lower the objective by less than the tolerance."""
    learner, history = copy(begun.learner), list[dict[str, float]]()
    assert isinstance(learner, LandmarkLearner)
    order = np.random.default_rng([seed, 2]).permutation(len(rows))
    learner.place(bounded(rows, settings), order)
    total = float(np.sum(rows.weights))
    try:
        with Progress(disable=not settings.progress) as bar:
            if settings.progress:
                bar.console.print(f"{begun.kernel}, alpha {begun.alpha:.3g}", markup=False)
            task = bar.add_task("solving", total=None)
            newton = learner.dense(begun.alpha, settings.method.tol)
            while not newton.done and len(history) < _MOST_STEPS:
                began = time.perf_counter()
                step = newton.step()
                told = {"objective": step.objective, "left": step.left, "products": step.products}
                history.append(line(learner, begun.passes + len(history) + 1, len(rows), began) | told)
                bar.update(task, advance=1, description=f"step {len(history)}, objective {step.objective:.6g}")
                learner.take(newton.weights)
        if not finite(learner):
            raise ValueError(TOO_LARGE)
        if settings.alpha != "auto" and newton.lost() > _LOST:
            raise LinAlgError
        aside = left_out(rows, seed, lambda held: newton.without(np.argsort(order)[held], _COARSE))
        begun = judged(begun, aside, settings)
    except LinAlgError:
        raise ValueError(_lost_to_rounding(begun, rows)) from None
    except KeyboardInterrupt:
        if not history:  # There is nothing to keep.
            raise
        history[-1]["interrupted"] = True
        warnings.warn(
            f"interrupted in step {len(history) + 1}: the model keeps what it has learned so far", stacklevel=5
        )
    made = begun.passes + len(history)
    return replace(begun, learner=learner, seen=total, passes=made, history=(*begun.history, *history))


def _by_few(begun: Fitted, rows: Rows, settings: Settings, seed: int) -> Fitted | None:
    """All rows by the squares of few landmarks, if what they miss on a slice is hardly anything, or half of that."""
    kernel, learner, began = begun.kernel, copy(begun.learner), time.perf_counter()
    if min(settings.max_features, settings.block_size) < LANDMARKS:
        return None
    assert isinstance(learner, LandmarkLearner)
    level = np.asarray(learner.expansion.intercept, float)
    held, rest = np.split(rows.shuffled([seed, 2]), [min(len(rows) // 10, MOST_HELD_OUT)])
    some = rows.merged(rest[:_DRAWN_FROM], np.float32)
    chosen = telling(kernel, some, level, begun.alpha, LANDMARKS, seed)
    few = Few(kernel, some.x[chosen], level)
    learner.place(some, chosen)
    few.add(some, np.arange(len(some)))
    few.add(rows, rest[_DRAWN_FROM:])
    learner.take(few.weights(begun.alpha))
    aside = Aside(rows.subset(held), learner.predict(rows.subset(held).x, *rows.frame))
    if not aside.rows.misses(aside.values) <= hardly_any(rows) / 2:
        return None
    few.add(rows, held)
    learner.take(few.weights(begun.alpha))
    told = line(learner, 1, len(rows), began)
    total = float(np.sum(rows.weights))
    return judged(replace(begun, learner=learner, seen=total, passes=1, history=(told,)), aside, settings)


def _kept(begun: Fitted, rows: Rows, settings: Settings, seed: int) -> Fitted:
    """A pass over blocks of rows, and conjugate gradients from there until one gains hardly anything.

    Where the ridge is to be chosen, smaller ones follow as long as a slice says that they help.
    """
    learner, history = copy(begun.learner), list[dict[str, float]]()
    assert isinstance(learner, LandmarkLearner)
    held, rest = np.split(rows.shuffled([seed, 2]), [min(len(rows) // 10, MOST_HELD_OUT)])
    some, new = rows.merged(rest, np.float32), rows.features(held, np.float32)
    aside, total, enough = Aside(rows.subset(held), np.empty(0)), float(np.sum(rows.weights)), False
    level, every = np.asarray(learner.expansion.intercept, float), np.arange(len(some))
    by_gradients = kept.Kept if jax.default_backend() == "cpu" else KeptOnDevice
    machine: kept.Kept | KeptOnDevice = by_gradients(
        begun.kernel, some.x, some.targets - level, begun.alpha / some.weights, new
    )
    least = _LEAST_RIDGE * total / len(rows) if settings.alpha == "auto" else np.inf
    solved: np.ndarray | None = None  # to which an interrupt, or a smaller ridge that does not help, goes back
    began, alpha = time.perf_counter(), begun.alpha

    def noted(values: np.ndarray) -> dict[str, float]:
        nonlocal aside, began
        aside = aside._replace(values=values)
        loss, score = learner.judged(aside.rows, values)
        history.append(line(learner, len(history) + 1, len(rest), began))
        history[-1] |= {"held_out_loss": loss, "held_out_score": score, "alpha": alpha}
        began = time.perf_counter()
        return history[-1]

    def told() -> float:
        bar.update(task, description=f"pass {len(history) + 1}")
        learner.take(machine.weights)
        return noted(level + machine.values())["held_out_loss"]

    def solve() -> float:
        """The loss on the slice in the end."""
        if not machine.met:
            go_on(machine.meet())
        *_, loss = machine.steps(told, _LOWER)
        return loss

    def go_on(blocks: Iterator[int]) -> None:
        for done in blocks:
            bar.update(task, advance=done)

    try:
        with Progress(disable=not settings.progress) as bar:
            if settings.progress:
                bar.console.print(f"{begun.kernel}, alpha {begun.alpha:.3g}", markup=False)
            task = bar.add_task("pass 1", total=len(some))
            if len(rows) > kept.MOST:  # first without the matrix, which may be enough
                go_on(learner.learn(some, every, begun.alpha, total))
                score = noted(learner.predict(aside.rows.x, *rows.frame))["held_out_score"]
                enough = rows.table is not None and score <= kept.FEW_MISSES
                machine.begin(learner.landmarks()[1])
            else:
                learner.place(some, every)
                go_on(machine.meet())
                told()
            loss = np.inf if enough else solve()
            while not enough and (alpha := _SMALLER * begun.alpha) >= least:
                solved, known = machine.weights, aside
                machine.change(alpha / some.weights)
                lower = solve()
                enough = not lower < (1 - _WORTH_A_RIDGE) * loss
                if enough:
                    learner.take(solved)
                    aside = known
                else:
                    begun, loss = replace(begun, alpha=alpha), lower
        if not finite(learner):
            raise ValueError(TOO_LARGE)
        begun = judged(begun, aside, settings)
    except KeyboardInterrupt:
        if solved is not None or np.any(machine.weights):
            learner.take(machine.weights if solved is None else solved)
        elif not np.any(learner.expansion.weights):  # There is nothing to keep.
            raise
        warnings.warn(
            f"interrupted in pass {len(history) + 1}: the model keeps what it has learned so far", stacklevel=6
        )
    return replace(begun, learner=learner, seen=total, passes=len(history), history=tuple(history))


def judged(fitted: Fitted, aside: Aside | None, settings: Settings) -> Fitted:
    """Tell from rows set aside how sharp probabilities may be, or how far numbers are off."""
    if aside is None or not np.all(np.isfinite(aside.values)):
        return fitted
    if aside.rows.table is None:
        return replace(fitted, residuals=residuals(aside))
    level = np.asarray(fitted.learner.expansion.intercept, np.float64)
    return replace(fitted, calibration=calibrated(aside, level, settings.loss))


def check_solved(fitted: Fitted, rows: Rows, settings: Settings) -> None:
    """Refuse a ridge that was given where rows learned from fare far worse than without anything learned.

    The minimiser has no larger losses there than f = 0, so rounding has lost it.
    """
    if settings.alpha == "auto" or settings.passes is not None or not settings.method.visits:
        return
    some = rows.subset(np.arange(0, len(rows), -(-len(rows) // MOST_HELD_OUT)))
    level = np.broadcast_to(np.asarray(fitted.learner.expansion.intercept), (len(some), rows.outputs))
    loss, nothing = fitted.learner.judged(some)[0], fitted.learner.judged(some, level)[0]
    if 0 < _WORSE * nothing < loss:
        raise ValueError(_lost_to_rounding(fitted, rows))


def _lost_to_rounding(fitted: Fitted, rows: Rows) -> str:
    return (
        f"alpha must be larger with {fitted.kernel} and {len(rows)} rows, found {fitted.alpha:g}, which is lost to "
        f"rounding in {np.dtype(fitted.learner.dtype).name}"
    )


def at_quantile(fitted: Fitted, settings: Settings) -> Fitted:
    """Move f, where it is to be a quantile, until as many rows left out are below it as should be.

    By a ridge that squares have chosen f follows few rows too closely to be one for others (200 rows of a function with
    noise: 29 % of others were below the 10 % quantile). What chance may explain, and a ridge that is given, are left
    alone.
    """
    loss, above = settings.loss, fitted.residuals
    if not isinstance(loss, QuantileLoss) or settings.alpha != "auto" or above is None:
        return fitted
    q = float(loss.q)
    off = np.abs(np.mean(above <= 0, axis=0) - q) > _BY_CHANCE * np.sqrt(q * (1 - q) / len(above))
    shift = np.where(off, np.quantile(above, q, axis=0), 0.0)
    learner, now = copy(fitted.learner), fitted.learner.expansion
    learner.expansion = now._replace(intercept=now.intercept + shift.astype(learner.dtype))
    return replace(fitted, learner=learner, residuals=above - shift)


def line(learner: Learner, passes: int, rows: int, began: float) -> dict[str, float]:
    """A line of the history."""
    jax.block_until_ready(learner.expansion)
    seconds = time.perf_counter() - began
    return {"pass": passes, "rows": rows, "seconds": seconds, "features": learner.features}


def finite(learner: Learner) -> bool:
    """Whether all weights are."""
    return bool(np.isfinite(np.sum(np.asarray(learner.expansion.weights))))

"""The one entry to kernel machines: rows and settings in, a fitted machine out.

:func:`fit` makes passes over rows, :func:`learn` sees each once. Both choose a kernel and a ridge at the start, or go
on from a machine that was fitted before, which they leave as it is.
"""

import time
import warnings
from copy import copy
from dataclasses import replace
from typing import Any

import jax
import numpy as np
from rich.progress import Progress

from thalweg.kernels import Kernel
from thalweg.machines.calibration import Aside, last, set_aside
from thalweg.machines.choice import ENOUGH_ROWS, choose, mapped
from thalweg.machines.fitted import Fitted
from thalweg.machines.folds import FEWEST
from thalweg.machines.kept import FEW_MISSES
from thalweg.machines.learners import Foreseen, LandmarkLearner, Learner, in_precision, start
from thalweg.machines.methods import Settings
from thalweg.machines.rows import Rows
from thalweg.machines.solving import (
    MOST_HELD_OUT,
    TOO_LARGE,
    at_quantile,
    bounded,
    check_solved,
    finite,
    judged,
    line,
    solved_soon,
)
from thalweg.machines.trials import Interrupted, Trial
from thalweg.machines.visits import Examples
from thalweg.threads import enough_threads

# Passes over the data where none are given: a pass over many rows is worth several over few.
_PASSES, _FEW_ROWS = 10, 20_000
# To what gradient of a row machines are solved that only tell of rows left out.
_COARSE = 1e-2
# A pass that lowers the held-out loss by less is the last one, if it is one of steps the second such in a row.
_IMPROVEMENT = 0.02
# A further pass over many rows must be on its way to lower it by the first part, and is broken off where it is not when
# it has made the second part of its way.
_WORTH_A_PASS, _ASKED_AT = 0.1, 1 / 16
# The intercept of a stream changes when it is so far from that of all labels seen, a factor of three in the odds:
# seldom, since all landmarks are then visited again.
_OTHER_LEVEL = float(np.log(3))


def fit(rows: Rows, settings: Settings, seed: int, onto: Fitted | None = None) -> Fitted:
    """Make passes over rows until there are as many as wanted, or a held-out slice says that they no longer help.

    Where all rows can be landmarks and no passes are asked for, up to 8,192 rows are solved for at once, to the optimum
    of a smooth loss; for squares nearly to it up to 20,480, and to more where half of their kernel matrix, or on a GPU
    the whole of it, takes no more than a quarter of the memory. One block of rows is solved in float64, more of them in
    float32. An interrupt (Ctrl-C) ends the search or the passes with a warning, and what was learned is returned.

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
    with jax.enable_x64(double), enough_threads(len(rows) // 2):  # most of it is done on half of them, or fewer
        tried = None
        try:
            dtype = np.float64 if double else np.float32
            begun, tried = _begun(bounded(rows, settings), settings, len(rows), seed, dtype, onto)
            rows = rows.framed(*begun.frame)
            easy = tried is not None and tried.easy
            found = solved_soon(begun, rows, settings, seed, easy)
            found = found or _passed_over(begun, rows, settings, seed)
            check_solved(found, bounded(rows, settings), settings)
            return at_quantile(found, settings)
        except KeyboardInterrupt as stopped:
            tried = stopped.trial if isinstance(stopped, Interrupted) else tried
            if tried is None:
                raise
            return _best_trial(tried, rows, len(rows))


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
            begun, _ = _begun(rows, settings, None, seed, np.float32, onto)
        except Interrupted as stopped:
            return _best_trial(stopped.trial, rows, None)
        rows = rows.framed(*begun.frame)
        began = time.perf_counter()
        learner, seen = copy(_for_stream(begun.learner, settings)), begun.seen + float(np.sum(rows.weights))
        for _ in learner.learn(rows, np.arange(len(rows)), begun.alpha, seen):
            pass
        if not finite(learner):
            raise ValueError(f"{TOO_LARGE}. The model is as it was before")
        told = line(learner, begun.passes, len(rows), began)
        # What rows left out have said is of a machine that knew less.
        return replace(begun, learner=learner, seen=seen, history=(*begun.history, told), residuals=None)


def default_passes(rows: int, settings: Settings) -> int:
    """One pass where landmarks see many rows, or where there is one block of them, which one visit solves; else ten.

    Squares of rows that are all landmarks are passed over further where a slice says that it helps.

    Examples
    --------
    >>> from thalweg.machines import SquaredLoss
    >>> [default_passes(rows, Settings(loss=SquaredLoss())) for rows in (100, 10_000, 50_000, 100_000)]
    [1, 10, 10, 1]
    """
    one_block = rows <= min(settings.block_size, settings.max_features)
    goes_on = settings.loss.quadratic and settings.method.early_stopping in ("auto", True)
    many = rows > (settings.max_features if goes_on else _FEW_ROWS)
    return 1 if settings.method.visits and (many or one_block) else _PASSES


def _begun(
    rows: Rows, settings: Settings, total: int | None, seed: int, dtype: Any, onto: Fitted | None
) -> tuple[Fitted, Trial | None]:
    """What was fitted before, if it fits the settings; else choose a kernel and a ridge, and start with f = 0.

    Also the best machine tried in that choice.
    """
    if onto is None:
        if isinstance(settings.kernel, Kernel):
            settings.kernel.check_dimension("X", rows.dimension)
        rows = rows.framed(rows.middle())
        if settings.bandwidth == "auto" and not isinstance(settings.kernel, Kernel):  # what is given is as it is
            rows = replace(rows, far=rows.reach())
        rows = mapped(rows, settings, seed)
        kernel, alpha, tried = choose(rows, settings, seed, dtype)
        learner = start(settings, kernel, rows.dimension, rows.outputs, total, seed, dtype)
        fitted = Fitted(learner, alpha, total, offset=rows.offset, counts=rows.counts, map=rows.map, far=rows.far)
        return _levelled(fitted, rows, settings, 0.0), tried
    _check_alike(settings, onto)
    if onto.counts is None or rows.counts is None:
        return onto, None
    return _levelled(replace(onto, counts=onto.counts + rows.counts), rows, settings, _OTHER_LEVEL), None


def _check_alike(settings: Settings, onto: Fitted) -> None:
    """Refuse another loss, kernel or ridge than what was learned with; what was left to a search has been found."""
    loss, kernel, dtype = settings.loss, settings.kernel, onto.learner.dtype
    known = onto.learner.machine.loss
    if in_precision(loss, dtype) != known:
        raise ValueError(
            f"loss and its parameters must stay what the model has learned with ({type(known).__name__}), "
            f"found {loss}: set them back, or fit anew"
        )
    given = isinstance(kernel, Kernel)
    if in_precision(kernel, dtype) != onto.kernel if given else kernel and not isinstance(onto.kernel, kernel):
        found = kernel if given else kernel.__name__
        raise ValueError(
            f"kernel must stay what the model has learned with ({onto.kernel}), found {found}: set it back, or fit anew"
        )
    if settings.alpha != "auto" and not np.isclose(settings.alpha, onto.alpha, rtol=1e-5, atol=0):
        raise ValueError(
            f"alpha must stay what the model has learned with ({onto.alpha:g}), found {settings.alpha:g}: set it back, "
            "or fit anew"
        )


def _for_stream(learner: Learner, settings: Settings) -> Learner:
    """The same machine with a block as long as a stream has: rows that follow are solved for with those before.

    In short blocks, one after another, they would each be fitted to what the others leave.
    """
    now = learner.expansion
    if not isinstance(learner, LandmarkLearner) or int(now.used) != 1:
        return learner
    _, kept, dimension = now.blocks.shape
    outputs = now.weights.shape[2]
    fresh = start(settings, learner.machine.coordinates.kernel, dimension, outputs, None, learner.seed, learner.dtype)
    assert isinstance(fresh, LandmarkLearner)
    if fresh.expansion.blocks.shape[1] <= kept:
        return learner
    put = lambda array, onto: onto.at[:1, :kept].set(array[:1])
    expansion = now._replace(
        weights=put(now.weights, fresh.expansion.weights),
        blocks=put(now.blocks, fresh.expansion.blocks),
        drift=now.drift[:1],
    )
    examples = Examples(*map(put, learner.examples, fresh.examples))
    return replace(fresh, expansion=expansion, examples=examples, filled=learner.filled, taken=learner.taken)


def _best_trial(trial: Trial, rows: Rows, total: int | None) -> Fitted:
    """What a search that was interrupted leaves behind, with a warning."""
    warnings.warn(
        f"interrupted in the search for a lengthscale and a ridge, or soon after: the model is the best tried, which "
        f"has learned from {trial.rows} of {len(rows)} rows",
        stacklevel=5,
    )
    return Fitted(trial.learner(), trial.choice.alpha, total, float(trial.rows), counts=rows.counts, **trial.frame)


def _levelled(fitted: Fitted, rows: Rows, settings: Settings, tolerance: float) -> Fitted:
    """Give f the intercept of the labels seen, unless that it has is as near as the tolerance."""
    if fitted.counts is None:
        return fitted
    assert rows.table is not None
    level = settings.loss.level(rows.table, fitted.counts)
    if np.max(np.abs(level - np.asarray(fitted.learner.expansion.intercept))) <= tolerance:
        return fitted
    return replace(fitted, learner=fitted.learner.at_level(level, fitted.alpha))


def _passed_over(begun: Fitted, rows: Rows, settings: Settings, seed: int) -> Fitted:
    passes = settings.passes or default_passes(len(rows), settings)
    order = np.random.default_rng([seed, 2]).permutation(len(rows))
    told, rows = rows, bounded(rows, settings)
    held, count = None, _held_out(len(rows), passes, settings)
    if count:
        chosen = np.sort(rows.shuffled([seed, 2])[:count])
        held, order = rows.subset(chosen), order[~np.isin(order, chosen)]
    many = held is not None and settings.method.visits and len(rows) > _FEW_ROWS
    total = float(np.sum(rows.weights))
    learner, history, foreseen = copy(begun.learner), list[dict[str, float]](), Foreseen()
    best, best_loss, stale, gain, aside = learner.expansion, np.inf, 0, 0.0, None
    try:
        with Progress(disable=not settings.progress) as bar:
            if settings.progress:
                bar.console.print(f"{begun.kernel}, alpha {begun.alpha:.3g}", markup=False)
            task = bar.add_task("rows", total=passes * len(order))
            # A visit does not lose what was learned before; a step by a batch may.
            while len(history) < passes and stale < (1 if settings.method.visits else 2):
                began = time.perf_counter()
                bar.update(task, description=f"pass {len(history) + 1} of {passes}")
                passing = (
                    learner.again(rows, order, begun.alpha, total)
                    if history
                    else learner.learn(rows, order, begun.alpha, total, foreseen)
                )
                passed, asked, helps = 0, not (many and history), True
                for done in passing:
                    bar.update(task, advance=done)
                    passed += done
                    if not asked and held is not None and passed >= _ASKED_AT * len(order):
                        asked, way = True, passed / len(order)
                        helps = 1 - learner.judged(held)[0] / best_loss >= _WORTH_A_PASS * way
                        if not helps:
                            break
                history.append(line(learner, begun.passes + len(history) + 1, passed, began))
                if held is not None:
                    values = learner.predict(held.x, *held.frame)
                    loss, score = learner.judged(held, values)
                    history[-1] |= {"held_out_loss": loss, "held_out_score": score}
                    before, gain = gain, 1 - loss / best_loss
                    # The next gain of visits is told by the last two; after the first there is often a tenth of it.
                    slower = min(gain / before, 0.5) if 0 < before < 1 else 0.15
                    following = gain * slower if settings.method.visits and gain < 1 else gain
                    further = helps and (rows.table is None or score > FEW_MISSES)
                    stale = 0 if (further if many else following > _IMPROVEMENT) else stale + 1
                    if loss < best_loss:
                        best, best_loss, aside = learner.expansion, loss, Aside(told.subset(chosen), values)
        if held is not None:
            learner.expansion = best
        if not finite(learner):
            raise ValueError(TOO_LARGE)

        def learn(pupil: Any, rows: Rows) -> None:
            pupil.tol = max(pupil.tol, _COARSE)
            for _ in pupil.learn(bounded(rows, settings), order, begun.alpha, total):
                pass

        if held is None and settings.method.visits and len(rows) <= settings.block_size and not begun.learner.features:
            aside = set_aside(begun.learner, told, seed, learn)
        elif held is None:
            aside = last(told, foreseen)
        begun = judged(begun, aside, settings)
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
    return min(int(settings.method.validation_fraction * rows), MOST_HELD_OUT) if wanted else 0

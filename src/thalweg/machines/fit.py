"""The one entry to kernel machines: a table and settings in, a fitted machine out.

:func:`fit` learns from all rows, :func:`learn` from a stream, each row seen once. Both choose a kernel and a ridge at
the start, or go on from a machine that was fitted before, which they leave as it is. There are two ways to the weights
of landmarks, and :func:`solves_at_once` decides between them: Newton steps on the stored kernel matrix, and block
updates.
"""

import os
import warnings
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from sklearn.exceptions import ConvergenceWarning

from thalweg.kernels import Kernel, Matern32
from thalweg.kernels.host import kernel_tiles
from thalweg.machines.calibration import MAX_HELD_ROWS, MIN_ROWS, HeldOut, hold_out, last_predictions
from thalweg.machines.landmarks import STREAM_ROUNDS, LandmarkLearner, runs_on_host
from thalweg.machines.learner import MIN_GAIN, FittedMachine, Learner, Predictions
from thalweg.machines.losses import QuantileLoss
from thalweg.machines.newton import (
    COARSE_TOL,
    LEAST_ITERATED_RIDGE,
    MAX_FACTORISED_ROWS,
    Newton,
    drowns_in_float32,
    kernel_matrix,
)
from thalweg.machines.search import FIRST_RUNG
from thalweg.machines.settings import Settings
from thalweg.machines.start import clip_targets, initial_model, with_stream_blocks, without_outliers
from thalweg.rows import Duplicates, Table
from thalweg.runs import Run

__all__ = ["fit", "learn"]

MATRIX_SHARE_OF_MEMORY = 0.25
"""The share of the memory that a stored kernel matrix may take, on the host or on a device."""

MAX_PASSES, MIN_PASS_GAIN = 10, 0.02
"""Passes over blocks, at most. Stop after a pass that improves the validation loss by a smaller share; stochastic steps
need two such passes."""

PATIENCE = 3
"""Iterations of a large least-squares problem end where so many lower the validation loss by less than ``MIN_GAIN``."""

RIDGE_FACTOR = 0.1
"""With all rows the best ridge is smaller than with some of them: the next one to try is this multiple."""

_MEMORY_LIMITS = "/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"


def fit(table: Table, settings: Settings, seed: int, initial: FittedMachine | None = None) -> FittedMachine:
    """Learn from all rows.

    Ctrl-C ends the search or the solver with a warning, and what was reached is returned.

    Parameters
    ----------
    table
        Examples.
    settings
        The loss, the kernel, the method and its options.
    seed
        Seeds the order of the rows, the features and the validation sets.
    initial
        A machine to go on from.

    Examples
    --------
    >>> from thalweg.kernels import Gaussian
    >>> from thalweg.machines import SquaredLoss
    >>> x = np.linspace(0, 3, 20)[:, None]
    >>> table = Table(x, np.sin(x), np.ones(20))
    >>> fitted = fit(table, Settings(loss=SquaredLoss(), kernel=Gaussian(1.0), alpha=1e-6), seed=0)
    >>> bool(abs(fitted.predict(x) - np.sin(x)).max() < 1e-3)
    True
    """
    with Run("kernel machine", bar=settings.progress) as run:
        settings = settings if _rivals(settings, table) else replace(settings, rival=None)
        clipped = clip_targets(table, settings)
        model = initial_model(without_outliers(table, clipped), settings, len(table), seed, initial)
        if type(model.learner.machine.loss) is type(settings.rival):
            settings, table = replace(settings, loss=settings.rival), table.of_shares()
            clipped = table
        run.say(f"{model.kernel}, alpha {model.alpha:.3g}")
        if run.interrupted:  # in the search
            order = table.shuffled([seed, 1])[:FIRST_RUNG]
            table, clipped = table.subset(order), clipped.subset(order)
        table, clipped = table.with_frame(model.frame), clipped.with_frame(model.frame)
        at_once = solves_at_once(len(table), settings, model.kernel, model.learner.dtype) and not model.features
        with jax.enable_x64(model.double):
            model = (_fit_at_once if at_once else _fit_by_passes)(model, table, clipped, settings, seed)
        if isinstance(settings.loss, QuantileLoss) and settings.alpha == "auto":
            model = model.at_quantile(float(settings.loss.q))
        run.keep(model)
    if not run.kept.learner.is_finite():
        raise ValueError("X or y leads to values beyond the range of numbers: look for entries of extreme size")
    return run.kept


def learn(table: Table, settings: Settings, seed: int, initial: FittedMachine | None = None) -> FittedMachine:
    """Learn from rows of a stream, each seen once, in float32 unless ``initial`` is in float64.

    Arguments are those of :func:`fit`.

    Examples
    --------
    >>> from thalweg.kernels import Gaussian
    >>> from thalweg.machines import Auto, SquaredLoss
    >>> x = np.linspace(0, 3, 20)[:, None]
    >>> settings = Settings(loss=SquaredLoss(), kernel=Gaussian(1.0), alpha=0.1, method=Auto(block_size=32))
    >>> first = learn(Table(x[::2], np.sin(x[::2]), np.ones(10)), settings, seed=0)
    >>> second = learn(Table(x[1::2], np.sin(x[1::2]), np.ones(10)), settings, seed=0, initial=first)
    >>> first.features, second.features
    (10, 20)
    """
    if initial is None and len(table) < MIN_ROWS and not isinstance(settings.kernel, Kernel):
        warnings.warn(
            f"the first batch of a stream chooses the kernel and the ridge for all that follows, and has {len(table)} "
            f"rows: with fewer than {MIN_ROWS} they are a guess. Begin with more, or give a kernel",
            stacklevel=5,
        )
    with jax.enable_x64(initial is not None and initial.double), Run("stream") as run:
        model = initial_model(table, settings, None, seed, initial)
        table = table.with_frame(model.frame)
        learner, seen = copy(with_stream_blocks(model.learner, settings)), model.seen + float(np.sum(table.weights))
        for _ in learner.learn(table, np.arange(len(table)), model.alpha, seen):
            pass
        if not learner.is_finite():
            raise ValueError(
                "X or y leads to values beyond the range of numbers: look for entries of extreme size. The model is as "
                "it was before"
            )
        run.record(**_progress(learner, model.passes, len(table)))
        # Held-out rows are of a machine that knew less.
        history = (*model.history, *run.records)
        run.keep(replace(model, learner=learner, seen=seen, history=history, residuals=None))
    return run.kept


def solves_at_once(rows: int, settings: Settings, kernel: Kernel, dtype: Any) -> bool:
    """Whether all rows are solved for by Newton steps on their stored kernel matrix, rather than by block updates.

    The loss must be smooth, all rows must be landmarks, no passes may be asked for, and half of the matrix on the host,
    or all of it on a device, must take no more than a quarter of the memory.

    Examples
    --------
    >>> from thalweg.kernels import Gaussian
    >>> from thalweg.machines import HingeLoss, SquaredLoss
    >>> few, many = 1000, 100_000_000
    >>> solves_at_once(few, Settings(loss=SquaredLoss()), Gaussian(), np.float32)
    True
    >>> solves_at_once(few, Settings(loss=HingeLoss()), Gaussian(), np.float32)
    False
    >>> solves_at_once(many, Settings(loss=SquaredLoss(), max_features=many), Gaussian(), np.float32)
    False
    """
    method = settings.method
    asks_for_passes = settings.passes is not None or method.early_stopping is True
    if not (method.updates_blocks and settings.loss.smooth) or asks_for_passes or rows > settings.max_features:
        return False
    on_host = runs_on_host(kernel)
    stored = np.dtype(dtype).itemsize * float(rows) ** 2 / (2 if on_host else 1)
    return rows <= settings.block_size or stored <= MATRIX_SHARE_OF_MEMORY * _memory(on_host)


def _rivals(settings: Settings, table: Table) -> bool:
    """Whether the rival loss may be taken: Newton steps solve for it, with a system for each of several outputs."""
    if settings.rival is None or (table.outputs > 1 and len(table) * table.outputs > MAX_FACTORISED_ROWS):
        return False
    kernel = settings.kernel if isinstance(settings.kernel, Kernel) else Matern32()  # type: ignore[call-arg]
    return solves_at_once(len(table), replace(settings, loss=settings.rival), kernel, np.float32)


def _memory(on_host: bool) -> float:
    """Bytes of memory of the host or of a device, infinite where the system does not say."""
    if not on_host and jax.default_backend() != "cpu":
        return float((jax.local_devices()[0].memory_stats() or {}).get("bytes_limit", np.inf))
    try:
        memory = float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (AttributeError, OSError, ValueError):
        return np.inf
    limits = [path.read_text().strip() for path in map(Path, _MEMORY_LIMITS) if path.is_file()]
    return min([memory, *(float(limit) for limit in limits if limit.isdigit())])


def _fit_at_once(model: FittedMachine, table: Table, clipped: Table, settings: Settings, seed: int) -> FittedMachine:
    """Newton steps to the optimum; a least-squares problem of many rows stops where a validation set says so."""
    learner = copy(model.learner)
    assert isinstance(learner, LandmarkLearner)
    held_out: HeldOut | None = None
    with Run("Newton steps") as run:
        if len(table) > MAX_FACTORISED_ROWS:
            model, held_out = _watched(model, learner, clipped, settings, seed, run)
        else:
            order = np.random.default_rng([seed, 2]).permutation(len(table))
            learner.place(clipped, order)
            matrix = kernel_matrix(model.kernel, clipped.features(order, learner.dtype), runs_on_host(model.kernel))
            targets, intercept = clipped.targets_of(order), np.asarray(learner.expansion.intercept, float)
            newton = Newton(matrix, targets, clipped.weights[order], settings.loss, model.alpha, intercept, seed)
            newton.solve(settings.method.tol, run)
            if newton.gap > settings.method.tol:
                _warn_of_optimum(f"a further step would lower the objective by {newton.gap:.1g} of it")
            held_out = _left_out(newton, table, order)
    learner.take(np.asarray(run.kept))
    history = [_progress(learner, k + 1, len(table)) | record for k, record in enumerate(run.records)]
    model = replace(model, learner=learner, history=(*model.history, *history))
    model = replace(model, seen=float(np.sum(table.weights)), passes=model.passes + len(history))
    return model if run.interrupted else model.calibrated(held_out)


def _left_out(newton: Newton, table: Table, order: np.ndarray) -> HeldOut | None:
    """Predictions of rows left out one by one. Those of ``newton`` are the rows of the table in some order."""
    position, copies = np.argsort(order), table.copies
    if (len(table) if copies is None else len(copies.first)) < MIN_ROWS:
        return None
    placed = None if copies is None else Duplicates(position[copies.first], copies.group[order])
    return HeldOut(table, newton.leave_one_out(placed)[position])


def _warn_of_optimum(reason: str) -> None:
    text = f"the optimum was not reached: {reason}. A larger alpha makes the problem easier"
    warnings.warn(text, ConvergenceWarning, stacklevel=8)


def _watched(
    model: FittedMachine, learner: LandmarkLearner, table: Table, settings: Settings, seed: int, run: Run
) -> tuple[FittedMachine, HeldOut]:
    """Iterations that end by a validation set; smaller ridges, each from the last solution, as long as they help."""
    held, rest = np.split(table.shuffled([seed, 2]), [min(len(table) // 10, MAX_HELD_ROWS)])
    validation, loss = table.subset(held), settings.loss
    if loss.quadratic or loss.probabilistic:  # linear in y, or up to a constant: copies are one row
        rows = table.merged(rest, np.float32)
    else:
        rows = Table(table.features(rest, np.float32), table.targets_of(rest), table.weights[rest], scale=table.scale)
    learner.place(rows, np.arange(len(rows)))
    intercept = np.asarray(learner.expansion.intercept, float)
    least = LEAST_ITERATED_RIDGE * float(np.mean(table.weights)) if settings.alpha == "auto" else np.inf
    # A row that stands for many has so much less of a ridge: what rounding moves is all of them together.
    usual = float(np.sqrt(np.mean(np.square(rows.weights))))
    double = drowns_in_float32(min(model.alpha, least) / usual, len(rows))
    rows = replace(rows, x=rows.x.astype(float if double else learner.dtype))
    across = kernel_tiles(model.kernel, validation.features(slice(None), rows.x.dtype), rows.x).to_dense()
    losses: list[float] = []

    def values(weights: Any) -> np.ndarray:
        return across @ np.asarray(weights, across.dtype) + intercept

    def watch(weights: Any) -> bool:
        """Record an iteration; true where the last ones no longer help."""
        now, error = learner.score(validation, values(weights))
        losses.append(now)
        run.record(left=0.0, held_out_loss=now, held_out_score=error, alpha=alpha)
        run.advance(note=f"validation loss {now:.4g}")
        before, last = losses[:-PATIENCE], losses[-PATIENCE:]
        return bool(before) and min(last) > (1 - MIN_GAIN) * min(before) and now <= most

    # The loss is half of a square. More rows than the search had cannot double it, but iterations that stand still can.
    best, alpha, most = np.inf, model.alpha, model.search_loss
    weights: Any = None
    with jax.enable_x64(double or model.double):
        matrix = kernel_matrix(model.kernel, rows.x, runs_on_host(model.kernel))
        while weights is None or alpha >= least:
            newton = Newton(matrix, rows.targets, rows.weights, loss, alpha, intercept, seed)
            if weights is not None:
                newton.start(weights)
            losses.clear()
            newton.solve(settings.method.tol, None, watch)
            found = learner.score(validation, values(newton.weights))[0]
            if not found < (1 - MIN_GAIN) * best and weights is not None:
                break
            best, weights, model = min(found, best), newton.weights, replace(model, alpha=alpha)
            run.keep(weights)
            alpha = RIDGE_FACTOR * alpha
    if best > most:
        _warn_of_optimum(f"new rows have {2 * best / most:.1g} times the loss that fewer rows led to in the search")
    return model, HeldOut(validation, values(weights))


def _fit_by_passes(model: FittedMachine, table: Table, clipped: Table, settings: Settings, seed: int) -> FittedMachine:
    """Passes over blocks, or of stochastic steps, until the validation loss no longer falls."""
    method, rows = settings.method, len(table)
    lone = method.updates_blocks and rows <= min(settings.block_size, settings.max_features)
    passes = settings.passes or _default_passes(rows, settings)
    held = _validation_rows(clipped, passes, settings, seed)
    order = np.random.default_rng([seed, 2]).permutation(rows)
    order, total = order[~np.isin(order, held)], float(np.sum(clipped.weights))
    learner, before, best = copy(model.learner), Predictions(), _BestPass()
    # Further rounds of a lone block with kinks are made with looks at Ctrl-C.
    block = learner if lone and isinstance(learner, LandmarkLearner) and not settings.loss.quadratic else None
    if block is not None:
        block.max_rounds = STREAM_ROUNDS
    held_out: HeldOut | None
    with Run("passes", total=passes * len(order)) as run:
        lone = lone and not run.hurries
        while len(run.records) < passes and best.stale < (1 if method.updates_blocks else 2):
            rows_done = (
                learner.again(clipped, order, model.alpha, total)
                if run.records
                else learner.learn(clipped, order, model.alpha, total, before)
            )
            for done in rows_done:
                run.keep(copy(learner))
                run.advance(done)
            if block is not None and lone:
                block.solve_lone_block(model.alpha, run)
            record = _progress(learner, model.passes + len(run.records) + 1, len(order))
            if len(held):
                best, scores = best.or_this(learner, clipped.subset(held))
                record |= scores
            run.keep(copy(learner), **record)
        if best.values is not None:
            learner.expansion, held_out = best.expansion, HeldOut(table.subset(held), best.values)
        elif lone and not model.learner.features:
            held_out = _refit_without(model, table, clipped, seed, order, total)
        else:
            held_out = last_predictions(table, before)
        run.keep(learner)
    made = model.passes + len(run.records)
    model = replace(model, learner=run.kept, seen=total, passes=made, history=(*model.history, *run.records))
    return model if run.interrupted else model.calibrated(held_out)


class _BestPass(NamedTuple):
    """The pass with the lowest validation loss so far, and how many since then have gained too little."""

    loss: float = np.inf
    expansion: Any = None
    values: np.ndarray | None = None
    stale: int = 0

    def or_this(self, learner: Learner, validation: Table) -> tuple["_BestPass", dict[str, float]]:
        """Return the better of it and a learner's last pass, and the scores of that."""
        values = learner.predict(validation.x, validation.frame)
        loss, error = learner.score(validation, values)
        stale = 0 if loss < (1 - MIN_PASS_GAIN) * self.loss else self.stale + 1
        best = _BestPass(loss, learner.expansion, values, stale) if loss < self.loss else self._replace(stale=stale)
        return best, {"held_out_loss": loss, "held_out_score": error}


def _default_passes(rows: int, settings: Settings) -> int:
    """One pass where blocks of a smooth loss are too many for the memory, or there is one block; else up to ten.

    Examples
    --------
    >>> from thalweg.machines import HingeLoss, SquaredLoss
    >>> [_default_passes(rows, Settings(loss=HingeLoss())) for rows in (100, 10_000, 100_000)]
    [1, 10, 1]
    >>> _default_passes(10**6, Settings(loss=SquaredLoss()))
    1
    """
    once = settings.loss.smooth or rows <= settings.block_size or rows > settings.max_features
    return 1 if settings.method.updates_blocks and once else MAX_PASSES


def _validation_rows(table: Table, passes: int, settings: Settings, seed: int) -> np.ndarray:
    """Rows of the validation set of passes, in ascending order; none where they end by their number alone."""
    stops = settings.method.early_stopping
    if stops == "auto":
        stops = passes > 1 and len(table) > settings.block_size
    count = min(int(settings.method.validation_fraction * len(table)), MAX_HELD_ROWS) if stops else 0
    return np.sort(table.shuffled([seed, 2])[:count])


def _refit_without(
    model: FittedMachine, table: Table, clipped: Table, seed: int, order: np.ndarray, total: float
) -> HeldOut | None:
    """Held-out predictions of machines with one block that learn again, without some rows."""

    def predict_without(held: np.ndarray) -> np.ndarray:
        weights = clipped.weights.copy()
        weights[held] = 0
        learner = copy(model.learner)
        if isinstance(learner, LandmarkLearner):
            learner.tol = max(learner.tol, COARSE_TOL)
        for _ in learner.learn(replace(clipped, weights=weights), order, model.alpha, total):
            pass
        return learner.predict(table.subset(held).x, table.frame)

    return hold_out(table, seed, predict_without)


def _progress(learner: Learner, number: int, rows: int) -> dict[str, Any]:
    """The record of a pass."""
    jax.block_until_ready(learner.expansion)
    return {"pass": number, "rows": rows, "features": learner.features}

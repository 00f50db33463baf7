"""Where a fit starts: the machine of an earlier fit, or f = 0 with the kernel and the ridge of the search."""

from dataclasses import replace
from typing import Any

import jax
import numpy as np

from thalweg.kernels import Kernel, RandomFeatures
from thalweg.machines.expansion import ROW_GRAIN, Coordinates, Frequencies, Points, empty
from thalweg.machines.functional_gradient import ValidatedStep
from thalweg.machines.landmarks import LONE_BLOCK_ROUNDS, STREAM_ROUNDS, Examples, LandmarkLearner, runs_on_host
from thalweg.machines.learner import FittedMachine, Learner
from thalweg.machines.newton import drowns_in_float32
from thalweg.machines.search import choose_kernel
from thalweg.machines.settings import Settings
from thalweg.padding import padded_size
from thalweg.rows import Table

ROWS_PER_FEATURE, FREQUENCIES_PER_ROW = 4, 4
"""Rows of a batch for each feature of a block, since fewer would fit the batch alone; frequencies for each row."""

FREQUENCY_BLOCKS = 64
"""Blocks of frequencies that there is room for at the start: more room compiles the program again."""

STORED_FREQUENCIES = 2**18
"""Frequencies of a pass, times features, that are stored unasked: to make those of each step again takes far longer."""

MIN_FREQUENCIES = 32
"""Frequencies of a block at least."""

OUTLIER_WIDTHS = 3.0
"""Targets of a robust loss are clipped at so many widths of their middle half on either side of it: beyond some
residual its gradient is constant, and the squared loss of the search would see nothing else."""

INTERCEPT_SHIFT = float(np.log(3))
"""The intercept of a stream follows the labels seen when their log-odds have moved by so much, a factor of three in the
odds: then all landmarks are solved for again."""


def initial_model(
    table: Table, settings: Settings, total: int | None, seed: int, initial: FittedMachine | None
) -> FittedMachine:
    """What was fitted before, if it agrees with the settings; else f = 0 with a kernel and a ridge of the search."""
    if initial is None:
        given = isinstance(settings.kernel, Kernel)
        if given:
            settings.kernel.check_dimension("X", table.dimension)
        frame = table.fit_frame()
        # A kernel that was given, or a lengthscale, is for features as they are.
        table = table.with_frame(replace(frame, spread=None) if given or settings.bandwidth != "auto" else frame)
        searched = table if given else table.in_binary_scales()
        kernel, alpha, frame, loss, rival, chosen = choose_kernel(searched, settings, seed)
        if rival is not None:
            settings, table = replace(settings, loss=rival), table.of_shares()
        double = needs_double(total, settings, alpha / float(np.mean(table.weights)))
        dtype = np.float64 if double else np.float32
        with jax.enable_x64(double):
            learner = start_learner(settings, kernel, table.dimension, table.outputs, total, seed, dtype)
        model = FittedMachine(learner, alpha, total, frame=frame, counts=table.counts, search_loss=loss)
        model = replace(model, bandwidth=settings.bandwidth, metric=settings.metric, chosen=chosen)
        return _with_intercept(model, table, settings, 0.0)
    _check_agreement(settings, initial)
    if initial.counts is None or table.counts is None:
        return initial
    return _with_intercept(replace(initial, counts=initial.counts + table.counts), table, settings, INTERCEPT_SHIFT)


def needs_double(rows: int | None, settings: Settings, ridge: float) -> bool:
    """Whether a machine works in float64: for one block of rows, where it costs little, or a ridge beside rounding.

    Examples
    --------
    >>> from thalweg.machines import SquaredLoss
    >>> settings = Settings(loss=SquaredLoss())
    >>> [needs_double(rows, settings, ridge) for rows, ridge in ((100, 0.1), (5000, 0.1), (5000, 1e-7), (None, 1e-7))]
    [True, False, True, False]
    """
    if rows is None:
        return False
    return settings.method.double or rows <= settings.block_size or drowns_in_float32(ridge, rows)


def _with_intercept(model: FittedMachine, table: Table, settings: Settings, tolerance: float) -> FittedMachine:
    """Give f the intercept of the labels seen, unless its own is as near as the tolerance."""
    if model.counts is None:
        return model
    assert table.codes is not None
    intercept = settings.loss.intercept(table.codes, model.counts)
    if np.max(np.abs(intercept - np.asarray(model.learner.expansion.intercept))) <= tolerance:
        return model
    return replace(model, learner=model.learner.with_intercept(intercept, model.alpha))


def _check_agreement(settings: Settings, initial: FittedMachine) -> None:
    """Refuse another loss, kernel, ridge, bandwidth or metric than the model has; what is "auto" agrees with all."""
    dtype, known = initial.learner.dtype, initial.learner.machine.loss
    kernel, alpha, given = settings.kernel, settings.alpha, isinstance(settings.kernel, Kernel)
    same_kernel = (
        in_precision(kernel, dtype) == initial.kernel if given else isinstance(initial.kernel, kernel or Kernel)
    )
    same_alpha = alpha == "auto" or np.isclose(alpha, initial.alpha, rtol=1e-5, atol=0)
    for name, agrees, before, found in (
        ("loss", in_precision(settings.loss, dtype) == known, type(known).__name__, settings.loss),
        ("kernel", same_kernel, initial.kernel, kernel if given else getattr(kernel, "__name__", kernel)),
        ("alpha", same_alpha, f"{initial.alpha:g}", alpha),
        ("bandwidth", settings.bandwidth in ("auto", initial.bandwidth), initial.bandwidth, settings.bandwidth),
        ("metric", settings.metric in ("auto", initial.metric), initial.metric, settings.metric),
    ):
        if not agrees:
            raise ValueError(
                f"{name} must stay what the model has learned with ({before}), found {found}: set it back, or fit anew"
            )


def with_stream_blocks(learner: Learner, settings: Settings) -> Learner:
    """The same machine with a block as long as a stream has: rows of short blocks would be fitted block by block."""
    now = learner.expansion
    if not isinstance(learner, LandmarkLearner) or int(now.used) != 1:
        return learner
    _, rows, dimension = now.blocks.shape
    outputs = now.weights.shape[2]
    fresh = start_learner(settings, learner.kernel, dimension, outputs, None, learner.seed, learner.dtype)
    assert isinstance(fresh, LandmarkLearner)
    more = fresh.expansion.blocks.shape[1] - rows
    if more <= 0:
        return learner
    pad = lambda array: np.pad(np.asarray(array)[:1], [(0, 0), (0, more)] + [(0, 0)] * (array.ndim - 2))
    expansion = now._replace(weights=pad(now.weights), blocks=pad(now.blocks), drift=np.asarray(now.drift)[:1])
    examples = Examples(*map(pad, learner.examples))
    return replace(fresh, expansion=expansion, examples=examples, filled=learner.filled, absorbed=learner.absorbed)


def start_learner(
    settings: Settings, kernel: Kernel, dimension: int, outputs: int, rows: int | None, seed: int, dtype: Any
) -> Learner:
    """Return a learner of f = 0 for so many rows; None means a stream without an end."""
    method, loss, kernel = settings.method, in_precision(settings.loss, dtype), in_precision(kernel, dtype)
    kernel.check_dimension("X", dimension)
    coordinates = _coordinates(settings, kernel, dimension, rows, seed)
    limit = max(settings.max_features // coordinates.width, 1)
    machine = method.machine(coordinates, loss, limit)
    batch_size = _batch_size(settings, coordinates, machine.step)
    if not method.updates_blocks:
        capacity = min(FREQUENCY_BLOCKS, machine.rule.limit or FREQUENCY_BLOCKS)
        return Learner(machine, empty(coordinates, dimension, outputs, capacity, dtype), batch_size, seed)
    size = coordinates.stored_rows
    capacity = 1 if rows is None else min(-(-rows // size), limit)
    examples = Examples(*(np.zeros((capacity, size, *more), dtype) for more in ((outputs,), ())))
    rounds = LONE_BLOCK_ROUNDS if rows is not None and rows <= size else STREAM_ROUNDS
    expansion = empty(coordinates, dimension, outputs, capacity, dtype)
    return LandmarkLearner(machine, expansion, batch_size, seed, examples, method.tol, rounds)


def _coordinates(settings: Settings, kernel: Kernel, dimension: int, rows: int | None, seed: int) -> Coordinates:
    """Landmarks or random features, in blocks of a size that the settings allow."""
    method = settings.method

    def of_size(size: int) -> Coordinates:
        if method.features == "landmarks":
            return Points(kernel, size)
        features = RandomFeatures(kernel, jax.random.key(seed), dimension, size, method.features)
        steps = np.inf if rows is None else rows / (method.batch_size or ROWS_PER_FEATURE * features.width)
        return Frequencies(features, method.keep_frequencies or steps * size * dimension <= STORED_FREQUENCIES)

    size = _block_size(settings, kernel, rows)
    coordinates = of_size(size)
    if method.capped and coordinates.width > settings.max_features:
        return of_size(max(size * settings.max_features // coordinates.width, 1))
    return coordinates


def _batch_size(settings: Settings, coordinates: Coordinates, step: Any) -> int:
    method = settings.method
    size = method.batch_size or ROWS_PER_FEATURE * coordinates.width
    if method.features == "landmarks" and not method.updates_blocks and size < coordinates.stored_rows:
        raise ValueError(
            f"batch_size must be at least block_size={coordinates.stored_rows} with features='landmarks', which are "
            f"rows of the batch; found {size}"
        )
    # One row proposes a step, another validates it.
    return max(size, 2) if isinstance(step, ValidatedStep) else size


def _block_size(settings: Settings, kernel: Kernel, rows: int | None) -> int:
    """Landmarks in a block, evenly many in each; or frequencies, about as many as there are rows."""
    method, size = settings.method, settings.block_size
    if rows is None:
        return size
    if method.updates_blocks:
        even = -(-rows // -(-rows // size))
        return even if runs_on_host(kernel) else min(size, padded_size(even, ROW_GRAIN))
    given = rows if method.features == "landmarks" else method.batch_size or rows
    few = min(rows, FREQUENCIES_PER_ROW * given)
    return min(size, max(MIN_FREQUENCIES, 1 << (few - 1).bit_length()))


def in_precision(parts: Any, dtype: Any) -> Any:
    """Return a kernel or a loss in the precision of the machine: made outside its scope it may hold another."""
    return jax.tree.map(lambda leaf: jax.device_put(np.asarray(leaf, dtype)), parts)


def clip_targets(table: Table, settings: Settings) -> Table:
    """Return the table with targets of a robust loss within some widths of their middle half."""
    if not settings.loss.robust:
        return table
    low, high = np.quantile(table.targets, [0.25, 0.75], axis=0)
    reach = np.where(high > low, OUTLIER_WIDTHS * (high - low), np.inf)
    return replace(table, targets=np.clip(table.targets, low - reach, high + reach))


def without_outliers(table: Table, clipped: Table) -> Table:
    """Return the rows whose targets were left as they are: the search by squares would see the others above all."""
    inside = np.all(np.asarray(table.targets == clipped.targets).reshape(len(table), -1), axis=1)
    return clipped if np.all(inside) else clipped.subset(np.flatnonzero(inside))

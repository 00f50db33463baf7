"""The stopping rule of noisy runs: progress that no longer shows."""

from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, PyTree, Scalar

from thalweg import trees
from thalweg.arguments import number
from thalweg.descent.result import Status
from thalweg.descent.stopping import Code, Record, StoppingRule, number_of, when
from thalweg.linalg import namespace

__all__ = ["Plateau"]


class PlateauWindow(NamedTuple):
    """Running mean and squared deviations of the criterion over the window being filled."""

    start: Int[Array, ""]
    records: Int[Array, ""]
    weight: Scalar
    mean: Scalar
    squares: Scalar


class PlateauState(NamedTuple):
    """The window being filled, and the best mean so far."""

    valued: Int[Array, ""]  # 1 once a value was seen; until then the residual is the criterion
    step: Int[Array, ""]  # of the last record
    window: PlateauWindow
    length: Int[Array, ""]  # of the window, in steps
    best: Scalar
    best_variance: Scalar
    idle: Int[Array, ""]  # windows in a row without improvement


MIN_WINDOW_RECORDS = 4
"""Records that a window holds at least: fewer do not show how large the noise is. Twice as many would lengthen the
first windows of runs with few records."""


class Plateau(StoppingRule):
    """Noise is reached: the averaged criterion does not improve beyond its own standard error.

    Steps are averaged over windows, each a quarter longer than the last. When ``patience`` windows in a row fail
    to lower the best mean by more than ``errors`` standard errors of the difference, noise hides whatever progress
    is left. The criterion is the value, or ‖G_k‖ for an oracle that has no value.

    Parameters
    ----------
    window
        Steps in the first window; it lasts longer where records are further apart than a quarter of it.
    patience
        Windows without improvement before stopping.
    errors
        How many standard errors count as an improvement.

    Examples
    --------
    >>> from thalweg.descent import Seconds
    >>> (Plateau() | Seconds(60)).first.window
    Array(100, dtype=int32)
    """

    window: Any = eqx.field(default=100, converter=partial(number, "window of Plateau", least=2, dtype=jnp.int32))
    patience: Any = eqx.field(default=2, converter=partial(number, "patience of Plateau", least=1, dtype=jnp.int32))
    errors: Any = eqx.field(default=1.0, converter=partial(number, "errors of Plateau", least=0))

    def init(self) -> PyTree:
        """An empty first window."""
        zero, none = number_of(0), number_of(0, jnp.int32)
        window = PlateauWindow(none, none, zero, zero, zero)
        return PlateauState(none, none, window, self.window, number_of(np.inf), zero, none)

    def update(self, state: PyTree, record: Record) -> tuple[PyTree, Code]:
        """Fill the window; at its end compare its mean with the best."""
        xp, step = namespace(record.value), record.step
        has_value, empty = xp.isfinite(record.value), trees.call(self, "init")
        # The first value ends a prelude of residuals: means of the two cannot be compared.
        fresh = empty._replace(step=state.step, window=empty.window._replace(start=state.step))
        state = trees.where(has_value & (state.valued == 0), fresh, state)
        valued, window = xp.where(has_value, 1, state.valued), state.window
        criterion = xp.where(valued == 1, record.value, record.residual).astype(window.mean.dtype)
        counts = xp.isfinite(criterion)
        criterion = xp.where(counts, criterion, 0)

        # A value is the mean over the steps since the last record, a residual that of one step.
        share = xp.where(valued == 1, step - state.step, 1).astype(window.mean.dtype)
        records, weight = window.records + 1, window.weight + share
        delta = criterion - window.mean
        mean = window.mean + delta * share / weight
        squares = window.squares + share * delta * (criterion - mean)
        full = (step - window.start >= state.length) & (records >= MIN_WINDOW_RECORDS)
        variance = squares / xp.maximum(records - 1, 1).astype(weight.dtype) / weight
        noise = self.errors.astype(weight.dtype) * xp.sqrt(variance + state.best_variance)
        filled = PlateauWindow(window.start, records, weight, mean, squares)
        improves, better = mean < state.best - noise, full & (mean < state.best)
        following = PlateauState(
            valued,
            step,
            trees.where(full, empty.window._replace(start=step), filled),
            xp.where(full, state.length + xp.maximum(state.length // 4, 1), state.length),
            xp.where(better, mean, state.best),
            xp.where(better, variance, state.best_variance),
            xp.where(full, xp.where(improves, 0, state.idle + 1), state.idle),
        )
        # A record without the criterion leaves all but the step as it was.
        state = trees.where(counts, following, state._replace(step=step))
        return state, when(state.idle >= self.patience, Status.PLATEAU)

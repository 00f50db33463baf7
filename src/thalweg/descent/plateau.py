"""The stopping rule of noisy runs: progress that no longer shows."""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, PyTree, Scalar

from thalweg import trees
from thalweg.arguments import number
from thalweg.descent.result import Status
from thalweg.descent.stopping import Code, Record, StoppingRule, number_of, when

__all__ = ["Plateau"]


class Windows(NamedTuple):
    """Running mean and squared deviations of the window being filled; best mean and its error so far."""

    valued: Int[Array, ""]  # 1 once a value was seen; until then the residual is the criterion
    looked: Int[Array, ""]  # the step of the last record
    begun: Int[Array, ""]  # the step at which the window began
    length: Int[Array, ""]
    records: Int[Array, ""]
    weight: Scalar
    mean: Scalar
    squares: Scalar
    best: Scalar
    best_variance: Scalar
    idle: Int[Array, ""]


_RECORDS = 4
"""Records that a window holds at least: fewer do not tell how large the noise is."""


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

    window: Array
    patience: Array
    errors: Array

    def __init__(self, window: int = 100, patience: int = 2, errors: float = 1.0) -> None:
        self.window = number("window of Plateau", window, least=2, dtype=jnp.int32)
        self.patience = number("patience of Plateau", patience, least=1, dtype=jnp.int32)
        self.errors = number("errors of Plateau", errors, least=0)

    def init(self) -> PyTree:
        """An empty first window."""
        zero, none = number_of(0), number_of(0, jnp.int32)
        return Windows(none, none, none, self.window, none, zero, zero, zero, number_of(np.inf), zero, none)

    def update(self, state: PyTree, record: Record) -> tuple[PyTree, Code]:
        """Fill the window; at its end compare its mean with the best."""
        xp, step = trees.numpy_of(record.value), record.step
        has_value = xp.isfinite(record.value)
        # The first value ends a prelude of residuals: means of the two cannot be compared.
        begins = has_value & (state.valued == 0)
        fresh = self.init()._replace(looked=state.looked, begun=state.looked)
        state = trees.where(begins, fresh, state)
        valued = xp.where(has_value, 1, state.valued)
        criterion = xp.where(valued == 1, record.value, record.residual).astype(state.mean.dtype)
        counts = xp.isfinite(criterion)
        criterion = xp.where(counts, criterion, 0)

        # A value is the mean over the steps since the last record, a residual that of one step.
        share = xp.where(valued == 1, step - state.looked, 1).astype(state.mean.dtype)
        records, weight = state.records + 1, state.weight + share
        delta = criterion - state.mean
        mean = state.mean + delta * share / weight
        squares = state.squares + share * delta * (criterion - mean)
        full = (step - state.begun >= state.length) & (records >= _RECORDS)
        variance = squares / xp.maximum(records - 1, 1).astype(weight.dtype) / weight
        noise = self.errors.astype(weight.dtype) * xp.sqrt(variance + state.best_variance)
        idle = xp.where(full, xp.where(mean < state.best - noise, 0, state.idle + 1), state.idle)
        better = full & (mean < state.best)
        following = Windows(
            valued,
            step,
            xp.where(full, step, state.begun),
            xp.where(full, state.length + xp.maximum(state.length // 4, 1), state.length),
            xp.where(full, 0, records),
            xp.where(full, 0, weight),
            xp.where(full, 0, mean),
            xp.where(full, 0, squares),
            xp.where(better, mean, state.best),
            xp.where(better, variance, state.best_variance),
            idle,
        )
        # A record without the criterion leaves all but the step as it was.
        state = trees.where(counts, following, state._replace(looked=step))
        return state, when(state.idle >= self.patience, Status.PLATEAU)

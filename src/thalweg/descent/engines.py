"""What the two engines of :func:`~thalweg.descent.minimize` share.

An engine takes a run from where it stands (:class:`Progress`) a chunk further. The compiled one
(:mod:`~thalweg.descent.chunks`) runs many steps in one program, the host one (:mod:`~thalweg.descent.host`) one step
after the other. Iterates, records and verdicts are the same.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Key, PyTree

from thalweg import trees
from thalweg.descent.iteration import Descent, Info, State
from thalweg.descent.result import History, Status
from thalweg.descent.stopping import RECORD_SPACING, StoppingRule
from thalweg.linalg import namespace

LOOK_DIVISOR = 32
"""With no stride given, looks of the stopping rule lie 1 + steps/32 apart: a few hundred whatever the length of the
run, and at most 3 % of the steps come after it could have stopped. Twice as many looks would halve both."""


@dataclass
class Progress:
    """Where a run stands between two chunks."""

    state: State
    rule_state: PyTree
    history: History
    work: float = 0.0
    seconds: float = 0.0
    status: Status = Status.RUNNING

    @cached_property
    def steps(self) -> int:
        """Steps taken."""
        return int(self.state.steps)

    @cached_property
    def recorded(self) -> int:
        """The step of the last record; 0 if there is none."""
        last = self.history.last["step"]
        return 0 if np.isnan(last) else int(last)


@dataclass(frozen=True)
class RunPlan:
    """What an engine is to run, and how far."""

    descent: Descent
    rule: StoppingRule
    key: Key[Array, ""]
    last_step: int
    """No step is taken after this one."""
    stride: int
    """Steps between two records; 0 for a stride that grows with the run."""
    record_by_record: bool
    """Whether a chunk ends with its first record, because somebody looks at each."""
    compiler_options: Mapping[str, Any] | None = None


class Chunk(NamedTuple):
    """What an engine returns; a state that is not finite is replaced by the last one that was."""

    state: State
    rule_state: PyTree
    status: Status
    steps: np.ndarray
    """The steps that were recorded."""
    numbers: np.ndarray
    """For each of them value, residual, size, and the work since the start of the chunk."""
    taken: int
    """Steps taken in this chunk."""
    work: float
    """Work done in this chunk."""


def steps_to_look(steps: Any, stride: Any, last_step: Any) -> Any:
    """Return how many steps lie between a look after ``steps`` steps and the next one."""
    xp = namespace(steps)
    return xp.minimum(xp.where(stride > 0, stride, 1 + steps // LOOK_DIVISOR), last_step - steps)


def is_record_due(steps: Any, looked: Any, recorded: Any, stride: Any, last_step: Any) -> Any:
    """Return whether a look after ``steps`` steps is recorded, given the steps of the last look and record."""
    xp = namespace(steps)
    spacing = xp.where(stride > 0, stride, xp.maximum(1 + looked // LOOK_DIVISOR, RECORD_SPACING))
    return (recorded == 0) | (steps >= recorded + spacing) | (steps == last_step)


def take_step(descent: Descent, state: State, key: Key[Array, ""]) -> tuple[State, Info]:
    """Take one step, with the oracle's outer loop and the step's own key."""
    period = descent.oracle.period
    if period is not None:
        due = (state.steps > 0) & (state.steps % period == 0)
        state = jax.lax.cond(due, lambda state: descent.renew(state), lambda state: state, state)
    if not descent.oracle.deterministic:
        key = jax.random.fold_in(key, state.steps)
    return descent.update(state, key)


def record_dtype(state: State) -> np.dtype:
    """Return the dtype in which values and residuals are recorded."""
    return trees.single(trees.dtype(state.x))

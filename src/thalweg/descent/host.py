"""The host engine: a Python loop over one compiled step, for few expensive steps.

The compiled engine puts steps, records and stopping rule into one loop, which is right for many cheap steps. Where a
step factorises a matrix, and a few dozen of them are enough, that program takes longer to compile than to run, and
between two milliseconds of LAPACK a visit to the host costs nothing. The stopping rule, arithmetic of a few numbers, is
evaluated in NumPy here, by the code that the compiled engine traces.
"""

import time
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Key

from thalweg import trees
from thalweg.descent.engines import Chunk, Progress, RunPlan, is_record_due, record_dtype, steps_to_look, take_step
from thalweg.descent.iteration import Descent, Info, State
from thalweg.descent.programs import compiled
from thalweg.descent.result import Status
from thalweg.descent.stopping import Record, StoppingRule


def _step(descent: Descent, state: State, key: Key[Array, ""]) -> tuple[State, Info, Array]:
    """Take one step, and say whether it is finite."""
    state, info = take_step(descent, state, key)
    return state, info, trees.all_finite(state.x)


def _number(value: Any, kind: Any = None) -> Any:
    """Return a number of NumPy, which the types take for one of JAX."""
    return np.asarray(value, kind)


class HostEngine:
    """Runs a method step by step; a chunk is what lies between two looks of the stopping rule."""

    def __init__(self, plan: RunPlan, start: Progress) -> None:
        self.plan = plan
        self._step = compiled(_step, plan.descent, options=plan.compiler_options)
        # Numbers of NumPy, whose arithmetic needs no compiling.
        self._rule: StoppingRule = jax.tree.map(_number, plan.rule)
        self._kind = record_dtype(start.state)

    # What overflows shows in the status, as in compiled code, and not in a warning.
    @np.errstate(all="ignore")
    def run(self, progress: Progress) -> Chunk:
        """Take the steps up to the next look, and look."""
        plan, state, first, began = self.plan, progress.state, progress.steps, time.perf_counter()
        exact, kind = plan.descent.oracle.deterministic, self._kind
        until = first + int(steps_to_look(np.int32(first), plan.stride, plan.last_step))
        total = work = 0.0
        for step in range(first + 1, until + 1):
            following, info, valid = self._step(state, plan.key)
            work += float(info.work)
            if not valid:
                none = np.zeros((0, 4))
                return Chunk(state, progress.rule_state, Status.DIVERGED, none[:, 0], none, step - first, work)
            state, total = following, total + float(info.value)
        value = float(info.value) if exact else total / (until - first)
        record = Record(
            step=_number(until, np.int32),
            value=_number(progress.history.last["value"] if exact else value, kind),
            residual=_number(info.residual, kind),
            size=_number(info.size, kind),
            work=_number(progress.work + work),
            seconds=_number(progress.seconds + time.perf_counter() - began),
            valued=_number(progress.recorded if exact else until, np.int32),
        )
        rule_state, code = trees.call(self._rule, "update", jax.tree.map(_number, progress.rule_state), record)
        status, recorded = Status(int(code)), progress.recorded
        due = not exact or status or is_record_due(record.step, first, recorded, plan.stride, plan.last_step)
        numbers = np.array([[value, info.residual, info.size, work]] if due else np.zeros((0, 4)), np.float64)
        return Chunk(state, rule_state, status, np.full(len(numbers), until), numbers, until - first, work)

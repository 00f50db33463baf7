"""The host engine: a Python loop over one compiled step, for few expensive steps.

The compiled engine puts steps, search, records and stopping rule into one loop, which is right for many cheap steps.
Where a step factorises a matrix, and a few dozen of them are enough, that program takes longer to compile than to run,
and between two milliseconds of LAPACK a visit to the host costs nothing. What is arithmetic of a few numbers, the
stopping rule and the decisions of a search, is done in NumPy here, by the code that the compiled engine traces.

A step that searches for its size is compiled as one *attempt*: it goes to where a size leads and takes value and
gradient there together, so that the step after it begins with what the last attempt has evaluated.
"""

import time
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key, PyTree, Scalar

from thalweg import trees
from thalweg.descent.engines import Chunk, Progress, RunPlan, is_record_due, record_dtype, steps_to_look, take_step
from thalweg.descent.iteration import Descent, Info, State
from thalweg.descent.momentum import NoMomentum
from thalweg.descent.programs import compiled
from thalweg.descent.result import Status
from thalweg.descent.searches import Measured, SearchedStep
from thalweg.descent.steps import Taken
from thalweg.descent.stopping import Record, StoppingRule
from thalweg.oracles.base import Out


def _step(descent: Descent, state: State, key: Key[Array, ""]) -> tuple[State, Info, Array]:
    """Take one step, and say whether it is finite."""
    state, info = take_step(descent, state, key)
    return state, info, trees.all_finite(state.x)


class Attempt(NamedTuple):
    """Where an attempt led: what the next step begins with, and the numbers that decide how the search goes on."""

    x: PyTree[Array]
    average: PyTree
    out: Out
    size: Scalar
    objective: Scalar
    residual: Scalar
    finite: Array
    measured: Measured


def _attempt(descent: Descent, state: State, out: Out, size: Scalar, admit: Array) -> Attempt:
    """Take a step of some size from the iterate, where the oracle returned ``out``; ``admit`` if it may be shortened.

    A step of size 0 stays where it is, by which the start is evaluated by what is compiled for all steps.
    """
    rule: Any = descent.step
    move = descent.move(state, state.x, state.x, out)
    size = jnp.where(admit, move.admit(size), size)
    x = trees.where(size > 0, move.reach(size), state.x)
    here = descent.oracle.full(x)
    value = here.value.astype(size.dtype)
    gradient = jax.tree.map(lambda g, leaf: g.astype(leaf.dtype), here.gradient, x)
    return Attempt(
        x=x,
        average=descent.average.update(x, state.average),
        out=Out(gradient, value, here.work.astype(size.dtype)),
        size=size,
        objective=value + descent.term.value(x).astype(size.dtype),
        residual=rule.residual_norm(move, Taken(x, size, (), (), value)),
        finite=trees.all_finite(x),
        measured=rule.measure(move, size, x, value),
    )


def _number(value: Any, kind: Any = None) -> Any:
    """Return a number of NumPy, which the types take for one of JAX."""
    return np.asarray(value, kind)


class HostEngine:
    """Runs a method step by step; a chunk is what lies between two looks of the stopping rule."""

    def __init__(self, plan: RunPlan, start: Progress) -> None:
        self.plan = plan
        descent = plan.descent
        # Without momentum the next gradient is wanted where the search ends.
        by_attempts = (
            isinstance(descent.step, SearchedStep)
            and type(descent.step).take is SearchedStep.take
            and descent.tests_iterate
            and isinstance(descent.momentum, NoMomentum)
            and descent.oracle.full is not None
            and not jax.tree.leaves(start.state.oracle)
        )
        self._program = compiled(_attempt if by_attempts else _step, descent, options=plan.compiler_options)
        self._take = self._search if by_attempts else self._step
        # Numbers of NumPy, whose arithmetic needs no compiling.
        self._rule: StoppingRule = jax.tree.map(_number, plan.rule)
        self._rule_of_size: Any = jax.tree.map(_number, descent.step) if by_attempts else None
        self._kind = record_dtype(start.state)
        self._evaluated: tuple[State, Out, Any] | None = None

    # What overflows shows in the status, as in compiled code, and not in a warning.
    @np.errstate(all="ignore")
    def run(self, progress: Progress) -> Chunk:
        """Take the steps up to the next look, and look."""
        plan, state, first, began = self.plan, progress.state, progress.steps, time.perf_counter()
        exact, kind = plan.descent.oracle.deterministic, self._kind
        until = first + int(steps_to_look(np.int32(first), plan.stride, plan.last_step))
        total = work = 0.0
        for step in range(first + 1, until + 1):
            following, info, valid = self._take(state)
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

    def _step(self, state: State) -> tuple[State, Info, bool]:
        following, info, valid = self._program(state, self.plan.key)
        return following, Info(*map(_number, info)), bool(valid)

    def _search(self, state: State) -> tuple[State, Info, bool]:
        """Search for the size of a step, attempt by attempt."""
        if self._evaluated is None or self._evaluated[0] is not state:
            self._evaluated = state, *self._evaluate(state)
        _, out, objective = self._evaluated
        steps, size, largest, value = map(_number, (state.steps, *state.step, out.value))
        level = objective if self._rule_of_size.compares_objective else value
        first, largest = steps == 0, np.maximum(largest, abs(value))
        search = trees.call(self._rule_of_size, "begin", size)
        while not search.over:
            attempt = self._program(state, out, search.size, search.tried == 0)
            search = search._replace(size=_number(attempt.size))
            measured = Measured(*map(_number, attempt.measured))
            search = trees.call(self._rule_of_size, "decide", search, measured, level, largest, first)
        carried = trees.call(self._rule_of_size, "carry", search, largest, first, False)
        following = State(
            attempt.x, _number(steps + 1), state.oracle, tuple(map(_number, carried)), state.momentum, attempt.average
        )
        objective = _number(attempt.objective)
        self._evaluated = following, attempt.out, objective
        info = Info(objective, _number(attempt.residual), search.last, _number(out.work) * (1 + search.tried))
        return following, info, bool(attempt.finite) and bool(search.passes)

    def _evaluate(self, state: State) -> tuple[Out, Any]:
        """Return what the oracle returns where a run begins, and f + h there."""
        zero = _number(0, state.step[0].dtype)
        blank = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), state.x)
        attempt = self._program(state, Out(blank, zero, zero), zero, np.zeros((), bool))
        return attempt.out, _number(attempt.objective)

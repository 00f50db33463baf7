"""The host engine: a Python loop over one compiled step, for few dear steps.

The compiled engine puts steps, search, records and stopping rule into one loop, which is right for many cheap steps.
Where a step factorises a matrix, and a few dozen of them are enough, that program takes longer to compile than to run,
and between two milliseconds of LAPACK a visit to the host costs nothing. What is arithmetic of a few numbers, the
stopping rule and the decisions of a search, is done in NumPy here, by the code that the compiled engine traces.

A step that searches for its size is compiled as one *attempt*: it goes to where a size leads and takes value and
gradient there together, so that the step after it begins with what the last attempt has found.
"""

import time
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key, PyTree, Scalar

from thalweg import trees
from thalweg.descent.engines import (
    APART,
    GROWTH,
    Chunk,
    Course,
    Progress,
    book_dtype,
    captures_of,
    join,
    one_step,
    split,
)
from thalweg.descent.iteration import Descent, Info, State
from thalweg.descent.momentum import NoMomentum
from thalweg.descent.result import Status
from thalweg.descent.searches import (
    SearchedStep,
    after_start,
    first_trial,
    is_far,
    is_short,
    next_size,
    next_trial,
    with_slack,
)
from thalweg.descent.steps import Taken
from thalweg.descent.stopping import Record, StoppingRule
from thalweg.oracles.base import Out


class Reached(NamedTuple):
    """Where an attempt led: what the next step begins with, and the numbers by which it is judged."""

    x: PyTree[Array]
    average: PyTree
    out: Out
    size: Scalar
    merit: Scalar
    objective: Scalar
    residual: Scalar
    finite: Array
    far: Array


def _step(rest: tuple, arrays: tuple, state: State, key: Key[Array, ""]) -> tuple[State, Info, Array]:
    """Take one step; tell if it is finite."""
    state, info = one_step(join(rest, arrays), state, key)
    return state, info, trees.all_finite(state.x)


def _attempt(rest: tuple, arrays: tuple, state: State, out: Out, size: Scalar, admit: Array) -> Reached:
    """Take a step of some size from a point of which ``out`` tells; ``admit`` says if the size may be shortened.

    A step of size 0 stays where it is, by which the start is evaluated by what is compiled for all steps.
    """
    descent: Descent = join(rest, arrays)
    search: Any = descent.step
    move = descent.move(state, state.x, state.x, out)
    size = jnp.where(admit, move.admit(size), size)
    x = trees.where(size > 0, move.reach(size), state.x)
    found = descent.oracle.full(x)
    value = found.value.astype(size.dtype)
    taken = Taken(x, size, (), (), value)
    return Reached(
        x=x,
        average=descent.average.update(x, state.average),
        out=Out(
            jax.tree.map(lambda g, leaf: g.astype(leaf.dtype), found.gradient, x), value, found.work.astype(size.dtype)
        ),
        size=size,
        merit=search.merit(move, size, x, value),
        objective=value + descent.term.value(x).astype(size.dtype),
        residual=search.residual_norm(move, taken),
        finite=trees.all_finite(x),
        far=is_far(trees.norm(move.out.gradient), size),
    )


def _number(value: Any, kind: Any = None) -> Any:
    """A number of NumPy, which the types take for one of JAX."""
    return np.asarray(value, kind)


@lru_cache(maxsize=32)
def _compiled(program: Callable[..., Any], rest: tuple, options: tuple, captures: tuple) -> Callable[..., Any]:
    """One compiled function per method and what its functions capture; only the last few are kept."""
    return jax.jit(partial(program, rest), compiler_options=dict(options))


class HostEngine:
    """Runs a method step by step; a chunk is what lies between two looks of the stopping rule."""

    def __init__(self, plan: Course, start: Progress) -> None:
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
        arrays, rest = split(descent)
        self._program = partial(
            _compiled(_attempt if by_attempts else _step, rest, plan.options, captures_of(descent, rest)), arrays
        )
        self._take = self._searched if by_attempts else self._stepped
        # Numbers of NumPy, whose arithmetic needs no compiling.
        self._rule: StoppingRule = jax.tree.map(_number, plan.rule)
        self._kind = book_dtype(start.state)
        self._known: tuple[State, Out, Any] | None = None
        if by_attempts:
            search: Any = descent.step
            factors = search.shrink, search.growth(False)
            self._shrink, self._grow = (_number(factor, start.state.step[0].dtype) for factor in factors)

    # What overflows is told by the status, as in compiled code, and not by a warning.
    @np.errstate(all="ignore")
    def run(self, progress: Progress) -> Chunk:
        """Take the steps up to the next look, and look."""
        plan, state, row = self.plan, progress.state, progress.history.last
        exact, kind = plan.descent.oracle.deterministic, self._kind
        first, begun = progress.steps, time.perf_counter()
        growing = 1 + first // GROWTH
        until = min(first + (plan.stride or growing), plan.last_step)
        total = work = 0.0
        for step in range(first + 1, until + 1):
            following, info, finite = self._take(state)
            work += float(info.work)
            if not finite:
                return Chunk(state, progress.rule_state, Status.DIVERGED, *_NO_ROWS, step - first, work)
            state, total = following, total + float(info.value)
        value = total / (until - first)
        seconds = progress.seconds + time.perf_counter() - begun
        record = Record(
            step=_number(until, np.int32),
            value=_number(row["value"] if exact else value, kind),
            residual=_number(info.residual, kind),
            size=_number(info.size, kind),
            work=_number(progress.work + work),
            seconds=_number(seconds),
            valued=_number(np.nan_to_num(row["step"]) if exact else until, np.int32),
        )
        rule_state = jax.tree.map(_number, progress.rule_state)
        rule_state, code = trees.call(self._rule, "update", rule_state, record)
        status = Status(int(code))
        apart = plan.stride or max(growing, APART)
        due = not exact or np.isnan(row["step"]) or until >= row["step"] + apart or status or until == plan.last_step
        numbers = [[float(info.value) if exact else value, info.residual, info.size, work]]
        rows = (np.array([until]), np.array(numbers, np.float64)) if due else _NO_ROWS
        return Chunk(state, rule_state, status, *rows, until - first, work)

    def _stepped(self, state: State) -> tuple[State, Info, bool]:
        following, info, finite = self._program(state, self.plan.key)
        return following, Info(*map(_number, info)), bool(finite)

    def _searched(self, state: State) -> tuple[State, Info, bool]:
        """Search for the size of a step, attempt by attempt."""
        search: Any = self.plan.descent.step
        steps, size, largest = map(_number, (state.steps, *state.step))
        if self._known is None or self._known[0] is not state:
            self._known = state, *self._at_rest(state)
        _, out, objective = self._known
        value = _number(out.value)
        level = objective if search.compares_objective else value
        allowed, largest = with_slack(level, value, largest)
        length = trees.norm_on_host(state.x) if steps == 0 else 0.0  # later steps do not ask
        trial = first_trial(size)
        while not trial.over:
            reached = self._program(state, out, trial.size, trial.tried == 0)
            size, merit, objective, residual, finite, far = map(_number, reached[3:])
            told = trees.call(search, "tells", merit, _number(reached.out.value), allowed - level)
            expand = (steps == 0) & search.expands
            short = is_short(size * residual, _number(length), state.x)
            trial = next_trial(trial._replace(size=size), merit <= allowed, told, short, far, self._shrink, expand)
        carried = _number(next_size(trial, self._grow)), _number(after_start(largest, steps))
        following = State(reached.x, _number(steps + 1), state.oracle, carried, state.momentum, reached.average)
        self._known = following, reached.out, objective
        work = _number(out.work) * (1 + trial.tried)
        return following, Info(objective, residual, size, work), bool(finite & trial.passes)

    def _at_rest(self, state: State) -> tuple[Out, Any]:
        """Value and gradient where a run begins."""
        zero, no = _number(0, state.step[0].dtype), _number(False)
        blank = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), state.x)
        reached = self._program(state, Out(blank, zero, zero), zero, no)
        return reached.out, _number(reached.objective)


_NO_ROWS = np.zeros(0, int), np.zeros((0, 4))

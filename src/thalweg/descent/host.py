"""The host engine: a Python loop over one compiled step, for few dear steps.

The compiled engine puts steps, search, records and stopping rule into one loop, which is right for many cheap steps.
Where a step factorises a matrix, and a few dozen of them are enough, that program takes longer to compile than to run,
and between two milliseconds of LAPACK a visit to the host costs nothing.

A step that searches for its size is compiled as one *attempt*: it goes to where a size leads and takes value and
gradient there together, so that the step after it begins with what the last attempt has found. Whether an attempt is
accepted, and what is tried next, is what :class:`~thalweg.descent.searches.Search` says in either engine.
"""

import time
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Int, Key, PyTree

from thalweg import trees
from thalweg.descent.engines import APART, GROWTH, Chunk, Plan, Progress, book_dtype, join, look, one_step, split
from thalweg.descent.iteration import Descent, Info, State
from thalweg.descent.momentum import NoMomentum
from thalweg.descent.result import Status
from thalweg.descent.searches import Candidate, Search, Trial
from thalweg.descent.stopping import StoppingRule
from thalweg.oracles.base import Out


class Before(NamedTuple):
    """What the rule is told beside the step; numbers of the host."""

    work: Any
    seconds: Any
    value: Any
    """For an exact oracle the value of the last record, else the sum of the estimates since."""
    steps: Any
    """Steps since the last look, this one included."""


class Step(NamedTuple):
    """One step, and what the rule says of it."""

    state: State
    info: Info
    rule_state: PyTree
    code: Int[Array, ""]


def _judged(
    method: tuple[Descent, StoppingRule], rule_state: PyTree, state: State, info: Info, before: Before
) -> Step:
    descent, rule = method
    value = before.value.astype(book_dtype(state))
    if not descent.oracle.deterministic:
        value = (value + info.value.astype(value.dtype)) / before.steps.astype(value.dtype)
    work = before.work + info.work.astype(before.work.dtype)
    return Step(state, info, *look(rule, rule_state, state, info, value, work, before.seconds))


def _stepped(
    rest: tuple, arrays: tuple, state: State, rule_state: PyTree, before: Before, key: Key[Array, ""]
) -> Step:
    method = join(rest, arrays)
    return _judged(method, rule_state, *one_step(method[0], state, key), before)


def _attempted(
    rest: tuple, arrays: tuple, state: State, rule_state: PyTree, before: Before, out: Out, trial: Trial
) -> tuple[Trial, Step]:
    """Try one size from ``state.x``, of which ``out`` tells; the step is the one taken if the search is over."""
    method = join(rest, arrays)
    descent: Descent = method[0]
    move = descent.move(state, state.x, state.x, out)
    reach = move.reach

    def evaluate(x: PyTree[Array]) -> Out:
        found = descent.oracle.full(x)
        gradient = jax.tree.map(lambda g, leaf: g.astype(leaf.dtype), found.gradient, x)
        return Out(gradient, found.value, found.work.astype(trial.size.dtype))

    # A step of size 0 stays where it is: the start is evaluated by what is compiled for all steps.
    move = move._replace(reach=lambda size: trees.where(size > 0, reach(size), state.x), evaluate=evaluate)
    size = jax.lax.cond(trial.tried == 0, move.admit, lambda size: size, trial.size)
    search: Search = descent.step
    allowed, largest = search.allowance(move, state.step)
    trial = search.attempt(move, allowed, trial._replace(size=size))
    return trial, _judged(method, rule_state, *descent.arrive(state, move, search.taken(trial, largest), ()), before)


@lru_cache(maxsize=32)
def _compiled(program: Callable[..., Any], rest: tuple, options: tuple) -> Callable[..., Any]:
    """One compiled function per method; only the last few are kept, with the data their functions close over."""
    return jax.jit(partial(program, rest), compiler_options=dict(options))


class HostEngine:
    """Runs a method step by step; a chunk is what lies between two looks of the stopping rule."""

    def __init__(self, plan: Plan, start: Progress) -> None:
        self.plan = plan
        descent = plan.descent
        by_attempts = (
            isinstance(descent.step, Search)
            and isinstance(descent.momentum, NoMomentum)
            and descent.oracle.full is not None
            and not jax.tree.leaves(start.state.oracle)
        )
        arrays, rest = split((descent, plan.rule))
        self._program = partial(_compiled(_attempted if by_attempts else _stepped, rest, plan.options), arrays)
        self._step = self._by_attempts if by_attempts else self._at_once
        self._known: tuple[State, Out] | None = None

    def run(self, progress: Progress) -> Chunk:
        """Take the steps up to the next look."""
        plan, state, row = self.plan, progress.state, progress.history.last
        exact = plan.descent.oracle.deterministic
        first = progress.steps
        growing = 1 + first // GROWTH
        until = min(first + (plan.stride or growing), plan.last_step)
        value = row["value"] if exact else 0.0
        work, status, begun = 0.0, Status.RUNNING, time.perf_counter()
        for count in range(1, until - first + 1):
            seconds = progress.seconds + time.perf_counter() - begun
            before = Before(*(np.float64(n) for n in (progress.work + work, seconds, value, count)))
            step = self._step(state, progress.rule_state, before)
            info, code = jax.device_get((step.info, step.code))
            work += float(info.work)
            status = Status(int(code))
            if status is Status.DIVERGED:
                return Chunk(state, step.rule_state, status, *_no_rows, count, work)
            state = step.state
            if not exact:
                value += float(info.value)
        mean = float(info.value) if exact else value / count
        apart = plan.stride or max(growing, APART)
        due = not exact or np.isnan(row["step"]) or until >= row["step"] + apart or status or until == plan.last_step
        numbers = np.array([[mean, info.residual, info.size, work]], np.float64)
        rows = (np.array([until]), numbers) if due else _no_rows
        return Chunk(state, step.rule_state, status, *rows, count, work)

    def _at_once(self, state: State, rule_state: PyTree, before: Before) -> Step:
        return self._program(state, rule_state, before, self.plan.key)

    def _by_attempts(self, state: State, rule_state: PyTree, before: Before) -> Step:
        attempt = partial(self._program, state, rule_state, before)
        if self._known is None or self._known[0] is not state:
            zero = np.zeros((), state.step[0].dtype)
            blank = Out(jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), state.x), zero, zero)
            at_rest, _ = attempt(blank, _nothing_tried(state, blank, zero))
            self._known = state, at_rest.best.out
        out = self._known[1]
        trial = _nothing_tried(state, out, state.step[0])
        while not trial.over:
            trial, step = attempt(out, trial)
        self._known = step.state, trial.best.out
        return step


_no_rows = np.zeros(0, int), np.zeros((0, 4))


def _nothing_tried(state: State, out: Out, size: Array) -> Trial:
    """Where a search begins; made of arrays that are there, so that nothing is compiled for it."""
    no = np.zeros((), bool)
    return Trial(size, np.zeros((), trees.single(size.dtype)), Candidate(size, state.x, out), no, no, no)

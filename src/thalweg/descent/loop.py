"""The loop around the iteration: chunks, history, stopping, progress, callbacks, checkpoints."""

import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key, PyTree

from thalweg import trees
from thalweg.arguments import whole
from thalweg.descent.averaging import Averaging
from thalweg.descent.checkpoint import Checkpoint, Keeper, Progress, as_checkpoint
from thalweg.descent.chunks import CAPACITY, Before, Bounds, Chunk, Runner
from thalweg.descent.display import Bar
from thalweg.descent.divergences import Divergence
from thalweg.descent.fingerprint import describe, describe_rule
from thalweg.descent.iteration import Descent, call
from thalweg.descent.momentum import Momentum
from thalweg.descent.result import History, Result, Status
from thalweg.descent.stopping import Stagnation, Steps, StoppingRule, Tolerance
from thalweg.descent.terms import Term
from thalweg.errors import IncompatiblePartsError

_MOST_STEPS = 2**31 - 1
"""Steps are counted in int32."""

_CHUNK_SECONDS = 0.5
"""A chunk is about this long: short enough for a progress bar and Ctrl-C, long enough to cost nothing."""


@dataclass(frozen=True)
class Snapshot:
    """What a callback is shown."""

    step: int
    x: PyTree[Array]
    """The solution so far: the average if one was asked for, else the iterate."""
    value: float
    residual: float
    size: float
    work: float
    seconds: float


def minimize(
    oracle: Any,
    x0: PyTree | Result,
    *,
    term: Term | None = None,
    divergence: Divergence | None = None,
    step: Any = None,
    momentum: Momentum | None = None,
    average: Averaging | None = None,
    steps: int = 10_000,
    key: Key[Array, ""] | None = None,
    tol: float | StoppingRule | None = None,
    stride: int | None = None,
    callback: Callable[[Snapshot], bool | None] | None = None,
    progress: bool = False,
    checkpoint: Any = None,
    compiler_options: Mapping[str, Any] | None = None,
) -> Result:
    """Minimise f + h by the iteration x⁺ = argmin ⟨ĝ, x⟩ + h(x) + D(x ‖ x_k)/β_k.

    Parameters
    ----------
    oracle
        ĝ: an oracle, or a plain function x -> scalar whose exact gradient is taken.
    x0
        Where to start, any pytree of arrays; or a :class:`Result` to go on from.
    term, divergence, step, momentum, average
        The parts, as in :class:`Descent`. With none of them given, an exact oracle is minimised by gradient
        descent with backtracking.
    steps
        The most steps to take (in this call).
    key
        Randomness of a stochastic oracle, e.g. ``jax.random.key(0)``. The same key gives the same run.
    tol
        When to stop: a number, relative to the largest ‖G_k‖ seen; a rule, e.g. ``Plateau() | Seconds(60)``; or
        None, which for an exact oracle follows the dtype and for a stochastic one runs all ``steps``.
    stride
        Steps between two records, at which the stopping rule looks. By default records are about ten steps apart at
        first, then ever further, a few hundred in all, and the rule looks more often, at every step at first.
    callback
        Called with a :class:`Snapshot` after each record; a true return value stops the run.
    progress
        Show a progress bar with rate and estimated time left.
    checkpoint
        A path, or a :class:`Checkpoint`: write the state there now and then, and go on from it if it exists.
    compiler_options
        Passed on to ``jax.jit``. A short run on a CPU can gain from ``thalweg.compiling.quick_options()``, with which
        compiling takes a fraction of its time.

    Returns
    -------
    Result
        Never raises for want of convergence: look at ``result.status`` and ``result.message``.

    Examples
    --------
    The lasso, by FISTA:

    >>> import jax.numpy as jnp
    >>> from thalweg.descent import FISTA, L1, minimize
    >>> A, b = jnp.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]), jnp.array([1.0, 0.0, 0.0])
    >>> result = minimize(
    ...     lambda x: 0.5 * jnp.sum((A @ x - b) ** 2), jnp.zeros(2), term=L1(0.1), momentum=FISTA())
    >>> result.status
    <Status.CONVERGED: 1>
    """
    descent = Descent(oracle, term=term, divergence=divergence, step=step, momentum=momentum, average=average)
    if callback is not None and not callable(callback):
        raise TypeError(f"callback must be a function of a Snapshot, found {callback!r}")
    steps = whole("steps", steps, most=_MOST_STEPS)
    stride = 0 if stride is None else whole("stride", stride, most=_MOST_STEPS)
    rule = _as_rule(tol, descent)
    key = _as_key(key, descent)
    if isinstance(x0, Result):
        start = _resumed(x0, descent, rule)
    else:
        state, rule_state = trees.strongly_typed((call(descent, "init", x0), call(rule, "init")))
        start = Progress(state, rule_state, History())
    keeper = None
    last_step = whole("steps, with those already taken,", start.steps + steps, most=_MOST_STEPS)
    if (kept := as_checkpoint(checkpoint)) is not None:
        keeper = Keeper(kept, describe(descent, key, start.state.x), describe_rule(rule))
        start = keeper.find_or_write(start)
    runner = Runner((descent, rule), start.state, stride, last_step - start.steps, compiler_options)
    run = _Run(descent, runner, key, start, last_step, stride, callback, keeper)
    with Bar(last_step, run.progress.steps) if progress else nullcontext() as bar:
        status = run.until_stopped(bar)
    return run.result(status)


class _Run:
    """One call of :func:`minimize`: the host's side, between chunks."""

    def __init__(
        self,
        descent: Descent,
        runner: Runner,
        key: Key[Array, ""],
        start: Progress,
        last_step: int,
        stride: int,
        callback: Callable[[Snapshot], bool | None] | None,
        keeper: Keeper | None,
    ) -> None:
        self.descent, self.runner, self.key = descent, runner, key
        self.progress = start
        self.last_step, self.stride = last_step, stride
        self.callback, self.keeper = callback, keeper
        # The first chunk of a method that was never run is one record; it holds the compilation.
        self.chunk_steps = 1 if self.runner.pace is None else self._wanted(self.runner.pace)
        self.note = ""
        self.before = start.seconds
        self.started = time.perf_counter()

    def until_stopped(self, bar: Bar | None) -> Status:
        """Run chunk after chunk; return why it ended."""
        status = self.progress.status
        try:
            while status is Status.RUNNING and self.progress.steps < self.last_step:
                status = self._chunk()
                if bar is not None:
                    bar.show(self.progress.steps, self.progress.history)
                if status is Status.DIVERGED:
                    break
                if self.callback is not None and self.callback(self._snapshot()) and status is Status.RUNNING:
                    status = Status.STOPPED_BY_CALLBACK
                if self.keeper is not None:
                    self.keeper.write_if_due(self.progress)
        except KeyboardInterrupt:
            status = Status.INTERRUPTED
        status = Status.STEPS_SPENT if status is Status.RUNNING else status
        if self.keeper is not None:
            # What ended for want of anything to gain is not taken up again; all else goes on.
            self.progress.status = status if status.success else Status.RUNNING
            self.keeper.write(self.progress)
        return status

    def _chunk(self) -> Status:
        last = self.progress
        begun = time.perf_counter()
        # With a callback a chunk ends at the next record; else after the wanted time.
        until = self.last_step if self.callback else min(last.steps + self.chunk_steps, self.last_step)
        bounds = Bounds(until, 1 if self.callback else CAPACITY, self.last_step, self.stride)
        row = last.history.last
        before = Before(last.work, last.seconds, 0 if np.isnan(row["step"]) else int(row["step"]), row["value"])
        chunk = self.runner.run(last.state, last.rule_state, self.key, bounds, before)
        status = Status(int(chunk.code))
        ended = time.perf_counter()
        seconds = self.before + ended - self.started
        state = chunk.state
        if status is Status.DIVERGED:
            state = self.runner.last_finite(last.state, self.key, chunk.state.steps)
            self.note = f"Step {int(state.steps) + 1} was the first to be NaN or infinite. "
        if int(chunk.filled):
            rows = self._rows(chunk, seconds)
            finite = rows["step"] <= int(state.steps)
            last.history.append({name: column[finite] for name, column in rows.items()})
        self.progress = Progress(state, chunk.rule_state, last.history, last.work + float(chunk.work), seconds)
        self._adapt(self.progress.steps - last.steps, ended - begun)
        return status

    def _rows(self, chunk: Chunk, seconds: float) -> dict[str, np.ndarray]:
        count = int(chunk.filled)
        steps = np.asarray(chunk.rows.steps)[:count]
        numbers = np.asarray(chunk.rows.numbers)[:count].astype(np.float64).T
        begun, first = self.progress.seconds, self.progress.steps
        columns = dict(zip(("value", "residual", "size", "work"), numbers, strict=True))
        columns["step"] = steps
        columns["work"] = self.progress.work + columns["work"]
        # Time is known at the ends of a chunk; within it steps are taken to be equally long.
        share = (steps - first) / (int(chunk.state.steps) - first)
        columns["seconds"] = begun + share * (seconds - begun)
        return columns

    def _adapt(self, steps: int, seconds: float) -> None:
        """Choose how many steps make a chunk of the wanted length."""
        pace = max(steps, 1) / max(seconds, 1e-9)
        first = self.runner.pace is None and self.chunk_steps == 1
        self.chunk_steps = min(self._wanted(pace), 1000 * max(steps, 1))
        if not first:
            self.runner.pace = pace

    @staticmethod
    def _wanted(pace: float) -> int:
        return max(int(pace * _CHUNK_SECONDS), 1)

    def _snapshot(self) -> Snapshot:
        row = self.progress.history.last
        row.pop("step")
        return Snapshot(self.progress.steps, self.descent.solution(self.progress.state), **row)

    def result(self, status: Status) -> Result:
        """Gather what the run has to show."""
        progress = self.progress
        return Result(
            x=call(self.descent, "solution", progress.state),
            status=status,
            message=f"{status.name} after {progress.steps} steps. {self.note}{status.advice}",
            steps=progress.steps,
            work=progress.work,
            seconds=progress.seconds,
            history=progress.history,
            state=progress.state,
            rule_state=progress.rule_state,
        )


def _as_rule(tol: Any, descent: Descent) -> StoppingRule:
    oracle = descent.oracle
    if isinstance(tol, StoppingRule):
        return tol
    if tol is None:
        # Stochastic oracles have no tolerance that fits all; they run their steps.
        return Tolerance() | Stagnation() if oracle.deterministic else Steps(np.inf)
    if isinstance(tol, (int, float, np.floating)) and not isinstance(tol, bool):
        if not oracle.vanishing_noise:
            raise IncompatiblePartsError(
                f"tol={tol!r} is compared with ‖G_k‖, which the noise of oracle={type(oracle).__name__} keeps from "
                f"vanishing. Pass tol=Plateau(), or a budget: Work(…), Seconds(…)."
            )
        if not 0 <= tol < np.inf:
            raise ValueError(f"tol must be at least 0 and finite, found {tol!r}")
        # One noisy residual can be small by luck; ten in a row are not.
        return Tolerance(tol) | Stagnation() if oracle.deterministic else Tolerance(tol, in_a_row=10)
    raise TypeError(f"tol must be None, a number or a StoppingRule, found {tol!r}")


@cache
def _unused_key() -> Key[Array, ""]:
    """What an exact oracle is handed in place of randomness."""
    return jax.random.wrap_key_data(jax.device_put(np.zeros(2, np.uint32)), impl="threefry2x32")


def _as_key(key: Any, descent: Descent) -> Key[Array, ""]:
    if key is None:
        if not descent.oracle.deterministic:
            raise ValueError(
                f"key must be given: oracle={type(descent.oracle).__name__} is random. "
                f"Pass key=jax.random.key(0), or another seed."
            )
        return _unused_key()
    if isinstance(key, jax.Array):
        typed = jnp.issubdtype(key.dtype, jax.dtypes.prng_key) and key.ndim == 0
        if typed or (key.dtype == jnp.uint32 and key.shape == jax.random.PRNGKey(0).shape):
            return key
    raise TypeError(f"key must be one JAX random key such as jax.random.key(0), found {key!r}")


def _resumed(result: Result, descent: Descent, rule: StoppingRule) -> Progress:
    """Where a run stands that goes on from a result, after checking that its state is one of this method."""
    fresh = descent.init(result.state.x)
    shapes = lambda tree: [jnp.shape(leaf) for leaf in jax.tree.leaves(tree)]
    if not trees.same_structure(fresh, result.state) or shapes(fresh) != shapes(result.state):
        raise ValueError(
            "x0 is the Result of a run with another oracle, step, momentum or average, whose state this run cannot "
            "take up; pass x0=result.x to start afresh from its solution"
        )
    rule_state = trees.strongly_typed(rule.init())
    if trees.same_structure(rule_state, result.rule_state):
        rule_state = result.rule_state
    return Progress(result.state, rule_state, History(result.history), result.work, result.seconds)


__all__ = ["Checkpoint", "Snapshot", "minimize"]

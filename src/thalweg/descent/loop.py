"""The loop around the iteration: chunks, history, stopping, progress, callbacks, checkpoints."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key, PyTree

from thalweg import trees
from thalweg.arguments import flag, number, one_of, random_key, whole
from thalweg.descent.averaging import Averaging
from thalweg.descent.checkpoint import CheckpointWriter, as_checkpoint
from thalweg.descent.divergences import Divergence
from thalweg.descent.engines import CompiledEngine, HostEngine, Progress, RunPlan
from thalweg.descent.iteration import Descent
from thalweg.descent.momentum import Momentum
from thalweg.descent.programs import refuse_traced
from thalweg.descent.result import History, Result, Status
from thalweg.descent.stopping import Stagnation, Steps, StoppingRule, Tolerance
from thalweg.descent.terms import Term
from thalweg.descent.verdict import Verdict, objective_of
from thalweg.errors import IncompatiblePartsError
from thalweg.runs import Run

__all__ = ["Snapshot", "minimize"]

_MAX_STEPS = int(np.iinfo(np.int32).max)
"""Steps are counted in int32."""

MIN_HOST_SIDE = 200
"""The side of a matrix from which factorising it takes longer than a visit to the host, a tenth of a millisecond. At
twice the side it takes eight times as long, so that more runs would wait for the larger program to compile."""


@dataclass(frozen=True)
class Snapshot:
    """What a callback is shown.

    Examples
    --------
    >>> Snapshot(step=1, x=0.0, value=2.0, residual=0.1, size=0.5, work=1.0, seconds=0.0).value
    2.0
    """

    step: int
    x: PyTree[Array]
    """The solution so far: the average if one was asked for, else the iterate."""
    value: float
    residual: float
    size: float
    work: float
    seconds: float


@jax.transfer_guard("allow")  # what a run moves between host and device is no accident
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
    engine: str | None = None,
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
        When to stop: a number, ``Tolerance(tol)``: what is left to gain is small against what the run has gained
        lately; a rule, e.g. ``Plateau() | Seconds(60)``; or None, which for an exact oracle follows the dtype and for a
        stochastic one runs all ``steps``.
    stride
        Steps between two records, at which the stopping rule looks. By default records are about ten steps apart at
        first, then ever further, a few hundred in all, and the rule looks more often, at every step at first.
    callback
        Called with a :class:`Snapshot` after each record; a true return value stops the run.
    progress
        Show a progress bar with rate and estimated time left.
    checkpoint
        A path, or a :class:`Checkpoint`: write the state there now and then, and go on from it if it exists.
    engine
        ``"compiled"``: many steps in one program, for cheap ones. ``"host"``: a program per step, driven from Python,
        for a few expensive ones, since it compiles faster. The iterates and the records are the same. None takes the
        host for an exact oracle whose steps factorise large matrices (``term.factorises`` or
        ``divergence.factorises``).
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
    refuse_traced((descent, key, x0, tol))
    if callback is not None and not callable(callback):
        raise TypeError(f"callback must be a function of a Snapshot, found {callback!r}")
    progress = flag("progress", progress)
    if not isinstance(compiler_options, Mapping | None):
        raise TypeError(f"compiler_options must be a mapping or None, found {compiler_options!r}")
    steps = whole("steps", steps, most=_MAX_STEPS)
    stride = 0 if stride is None else whole("stride", stride, most=_MAX_STEPS)
    rule = _as_rule(tol, descent)
    key = _as_key(key, descent)
    if isinstance(x0, Result):
        start = _resumed(x0, descent, rule)
    else:
        state, rule_state = trees.strongly_typed((trees.call(descent, "init", x0), trees.call(rule, "init")))
        start = Progress(state, rule_state, History())
    last_step = whole("steps, with those already taken,", start.steps + steps, most=_MAX_STEPS)
    writer = None
    if (file := as_checkpoint(checkpoint)) is not None:
        writer = CheckpointWriter(file, descent, rule, key, start.state.x)
        start = writer.find_or_write(start)
    began = time.perf_counter() - start.seconds
    plan = RunPlan(descent, rule, key, last_step, stride, callback is not None, compiler_options, began)
    reached, status, note = _run(plan, _engine(engine, plan, start), start, callback, writer, bar=progress)
    if writer is not None:
        # What ended for want of anything to gain is not taken up again; all else goes on.
        ended = status.success or status is Status.STAGNATED
        reached.status = status if ended else Status.RUNNING
        writer.write(reached)
    verdict = Verdict(plan, reached, start.state.x, status, note)
    verdict.check()
    return Result(
        x=verdict.x,
        status=verdict.status,
        message=f"{verdict.status.name} after {reached.steps} steps. {verdict.note}{verdict.status.advice}",
        steps=reached.steps,
        work=reached.work,
        seconds=reached.seconds,
        history=reached.history,
        state=reached.state,
        rule_state=reached.rule_state,
        objective=objective_of(descent),
    )


def _run(
    plan: RunPlan,
    engine: CompiledEngine | HostEngine,
    start: Progress,
    callback: Callable[[Snapshot], bool | None] | None,
    writer: CheckpointWriter | None,
    bar: bool,
) -> tuple[Progress, Status, str]:
    """Run chunk after chunk; return where the run has come to, why it ended, and what there is to say of its end."""
    progress, status, note = start, start.status, ""
    with Run("descent", total=plan.last_step, bar=bar, warns=False) as run:
        run.advance(start.steps)
        run.keep(progress)
        while status is Status.RUNNING and progress.steps < plan.last_step and not run.interrupted:
            first, progress = progress.steps, engine.run(progress)
            run.keep(progress)
            status, last, rate = progress.status, progress.history.last, (progress.steps - start.steps) / run.seconds
            summary = f"{rate:,.0f} steps/s  value {last['value']:.6g}  ‖G‖ {last['residual']:.2e}"
            run.advance(progress.steps - first, summary)
            if status is Status.DIVERGED:
                note = f"Step {progress.steps + 1} was the first to be NaN or infinite. "
            elif callback is not None and progress.recorded == progress.steps:
                shown: dict[str, Any] = {**last, "step": progress.steps, "x": plan.descent.solution(progress.state)}
                if callback(Snapshot(**shown)) and status is Status.RUNNING:
                    status = Status.STOPPED_BY_CALLBACK
            if writer is not None and status is Status.RUNNING:
                writer.write_if_due(progress)
    if run.interrupted:
        return progress, Status.INTERRUPTED, note
    return progress, Status.STEPS_SPENT if status is Status.RUNNING else status, note


def _engine(name: str | None, plan: RunPlan, start: Progress) -> CompiledEngine | HostEngine:
    """The engine that was asked for, or the one that suits the cost of a step."""
    if name is None:
        side = max(max(leaf.shape, default=0) for leaf in jax.tree.leaves(start.state.x))
        slow = plan.descent.oracle.deterministic and plan.descent.factorises and side >= MIN_HOST_SIDE
        name = "host" if slow else "compiled"
    return ENGINES[one_of("engine", name, ENGINES)](plan, start)


ENGINES: dict[str, Any] = {"compiled": CompiledEngine, "host": HostEngine}


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
        number("tol", tol, least=0)
        # One noisy residual can be small by luck; ten in a row are not.
        return Tolerance(tol) | Stagnation() if oracle.deterministic else Tolerance(tol, in_a_row=10)
    raise TypeError(f"tol must be None, a number or a StoppingRule, found {tol!r}")


@cache
def _unused_key() -> Key[Array, ""]:
    """What an exact oracle is handed in place of randomness."""
    return jax.random.wrap_key_data(jax.device_put(np.zeros(2, np.uint32)), impl="threefry2x32")


def _as_key(key: Any, descent: Descent) -> Key[Array, ""]:
    if key is not None:
        return random_key("key", key)
    if descent.oracle.deterministic:
        return _unused_key()
    raise ValueError(
        f"key must be given: oracle={type(descent.oracle).__name__} is random. "
        f"Pass key=jax.random.key(0), or another seed."
    )


def _resumed(result: Result, descent: Descent, rule: StoppingRule) -> Progress:
    """Where a run stands that goes on from a result, after checking that its state is one of this method."""
    fresh = jax.eval_shape(lambda x: trees.call(descent, "init", x), result.state.x)
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

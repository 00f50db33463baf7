"""Stopping rules: they look at records, and combine with ``|`` and ``&``.

The compiled engine traces a rule into its loop, with records of JAX's arrays; the host engine hands it records of
numbers of NumPy. The rules here do their arithmetic in whichever it is; one written in ``jax.numpy`` serves both too.
"""

from functools import partial
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, PyTree, Scalar

from thalweg import trees
from thalweg.arguments import number
from thalweg.descent.result import Status
from thalweg.linalg import namespace

__all__ = ["AllOf", "AnyOf", "Record", "Seconds", "Stagnation", "Steps", "StoppingRule", "Tolerance", "Work"]

RECORD_SPACING = 10
"""Steps at least between two records of an exact oracle, where no stride is given: a record evaluates the objective,
which costs about half a step, 5 % of a short run. Rules ask of as many steps that they show something. Twice as many
would save half of that, and end runs later."""

Code = Int[Array, ""]


class Record(NamedTuple):
    """What a rule looks at. For an exact oracle ``value`` is that of the last record, at the step ``valued``.

    Examples
    --------
    >>> Record(step=1, value=2.0, residual=0.5, size=0.1, work=1.0, seconds=0.0).residual
    0.5
    """

    step: Int[Array, ""]
    value: Scalar
    residual: Scalar
    size: Scalar
    work: Scalar
    seconds: Scalar
    valued: Int[Array, ""] | None = None  # None for the step itself


class StoppingRule(trees.Part):
    """Turns a stream of records into a :class:`~thalweg.descent.Status`; 0 means go on.

    Examples
    --------
    >>> rule = Tolerance(1e-6) | Steps(100) & Work(1e9)
    >>> type(rule).__name__, type(rule.second).__name__
    ('AnyOf', 'AllOf')
    """

    def init(self) -> PyTree:
        """Return the state before any record."""
        return ()

    def update(self, state: PyTree, record: Record) -> tuple[PyTree, Code]:
        """Take in one record; return the state and the status, as an integer."""
        raise NotImplementedError(f"{type(self).__name__} must define update(state, record)")

    def __or__(self, other: "StoppingRule") -> "StoppingRule":
        return AnyOf(self, other) if isinstance(other, StoppingRule) else NotImplemented

    def __and__(self, other: "StoppingRule") -> "StoppingRule":
        return AllOf(self, other) if isinstance(other, StoppingRule) else NotImplemented


class _RulePair(StoppingRule):
    first: StoppingRule
    second: StoppingRule

    def init(self) -> PyTree:
        """The states of both."""
        return self.first.init(), self.second.init()

    def update(self, state: PyTree, record: Record) -> tuple[PyTree, Code]:
        """Show both rules the record."""
        first, a = trees.call(self.first, "update", state[0], record)
        second, b = trees.call(self.second, "update", state[1], record)
        return (first, second), trees.call(self, "joined", a, b)


class AnyOf(_RulePair):
    """Stop when either rule does: ``first | second``.

    Examples
    --------
    >>> AnyOf(Steps(10), Seconds(60)).second
    Seconds(limit=...)
    """

    def joined(self, a: Code, b: Code) -> Code:
        """The first status that is not 0."""
        return trees.where(a != 0, a, b)


class AllOf(_RulePair):
    """Stop when both rules do at the same record: ``first & second``.

    Examples
    --------
    >>> AllOf(Tolerance(1e-3), Steps(10)).second
    Steps(limit=...)
    """

    def joined(self, a: Code, b: Code) -> Code:
        """The first rule's status if both have one."""
        return trees.where(b != 0, a, b)


def rules_within(rule: StoppingRule) -> list[StoppingRule]:
    """Return a rule, or those that it combines."""
    return [*rules_within(rule.first), *rules_within(rule.second)] if isinstance(rule, _RulePair) else [rule]


def when(condition: Array, status: Status) -> Code:
    """The status if the condition holds, else 0."""
    return condition.astype(jnp.int32) * int(status)


def number_of(value: Any, dtype: Any = float) -> Any:
    """Return a number as an array of NumPy, by default of JAX's default float."""
    return np.asarray(value, jnp.result_type(dtype))


class ToleranceState(NamedTuple):
    """What :class:`Tolerance` remembers: the decreases promised lately, and since when little is left."""

    step: Int[Array, ""]  # of the last look
    block_end: Int[Array, ""]  # the step with which the newest block ends
    blocks: tuple  # promised decreases summed over the four blocks of the second half of the run, the newest first
    total: Scalar  # their sum over the whole run
    in_a_row: Int[Array, ""]  # looks in a row that found little left
    slow_in_a_row: Int[Array, ""]  # looks in a row that found little left against the objective
    stretch_start: Int[Array, ""]  # the step at which a stretch began that has to show that promises go on falling
    stretch_sum: Scalar  # the decreases promised in that stretch
    falls: Int[Array, ""]  # stretches in a row that have shown it
    valued: Int[Array, ""]  # the step of the last value that was compared with
    longest: Scalar  # the longest size seen, forgotten as the square of the run's length
    largest: Scalar  # the largest residual seen
    highest: Scalar  # the largest value seen


SLOW_STEPS = 10_000
"""Steps at least over which what is left is counted against the objective with a coarse tolerance: flat directions gain
slowly. Twice as many would end fewer slow runs of float32."""

COARSE_RTOL = 1e-6
"""Above this rtol, such as that of float32, steep directions can hide flat ones for longer, and more is asked for. It
lies between the defaults of float32 and float64, 3.5e-4 and 1.5e-8; twice as much changes neither."""


class Tolerance(StoppingRule):
    """Converged: what is left to gain is small against what the second half of the run has gained.

    A step promises to lower the objective by about p = β‖G_k‖², and as many again as were taken, k, by kp; β is here
    the longest size of the run's recent past, since sizes that shrink promise little wherever they are. That is little
    in either of two cases. It is below ``rtol`` times the sum of the promises since step k/2, and in two further
    stretches, of a sixth of the run each (three in float32), p goes on falling: on the floor of a narrow valley, into
    which a far start leads, it does not. Or √k times it (in float32 over 10,000 steps at least, and a quarter) is,
    three looks in a row, below rtol^1.5 times the objective and times the sum of all promises, for methods whose gains
    become ever slower. Where a method converges linearly the objective is then within about rtol² of its optimum,
    relative to its decrease; else within rtol^1.5.

    Parameters
    ----------
    rtol
        None follows the dtype: the square root of its rounding unit, 1.5e-8 in float64, 3.5e-4 in float32.
    atol
        Absolute tolerance: ‖G_k‖ ≤ atol is converged without more ado, as is kp far below the objective's rounding, and
        an objective that is 0 up to the square of the rounding unit times what it was.
    in_a_row
        Looks that must agree. One will do for exact gradients; a noisy one can be small by luck.

    Examples
    --------
    >>> Tolerance(atol=1e-6).rtol is None
    True
    """

    rtol: Array | None
    atol: Array
    in_a_row: Array

    def __init__(self, rtol: Any = None, atol: Any = 0.0, in_a_row: int = 1) -> None:
        self.rtol = None if rtol is None else number("rtol of Tolerance", rtol, least=0)
        self.atol = number("atol of Tolerance", atol, least=0)
        self.in_a_row = number("in_a_row of Tolerance", in_a_row, least=1, dtype=jnp.int32)

    def rtol_for(self, eps: float) -> float:
        """Return rtol in a dtype whose rounding unit is ``eps``."""
        return eps**0.5 if self.rtol is None else float(self.rtol)

    def init(self) -> PyTree:
        """Nothing seen yet."""
        none, zero = number_of(0, jnp.int32), number_of(0)
        return ToleranceState(none, none, (zero,) * 4, zero, none, none, none, zero, none, none, zero, zero, zero)

    def update(self, state: PyTree, record: Record) -> tuple[PyTree, Code]:
        """Add what the steps since the last look have promised; compare it with what is left."""
        xp, kind, step = namespace(record.residual), state.total.dtype, record.step
        eps, limits, steps = float(jnp.finfo(record.residual.dtype).eps), jnp.finfo(kind), step.astype(kind)
        rtol = number_of(self.rtol_for(eps), kind) if self.rtol is None else self.rtol.astype(kind)
        coarse = rtol > COARSE_RTOL
        residual, size = record.residual.astype(kind), record.size.astype(kind)
        # A size that is not known is taken to be constant, and cancels.
        size = xp.where(xp.isfinite(size), size, 1)
        # Multiplied in this order: the square of a residual in small units is 0.
        promise = (size * residual) * residual
        # Promises that overflow, or that a step of size 0 leaves undefined, are unknown; so are those that underflow,
        # as long as nothing was gained against which they are small.
        lost = (promise < limits.tiny) & (residual > 0) & (state.total < limits.tiny / limits.eps)
        known = (residual >= 0) & xp.isfinite(promise) & ~lost
        gained = xp.where(known, promise * (step - state.step).astype(kind), 0)
        newest, *older = state.blocks
        begins_block = step > state.block_end
        blocks = trees.where(begins_block, (gained, newest, *older[:2]), (newest + gained, *older))
        block_end, total = xp.where(begins_block, step + step // 4, state.block_end), state.total + gained

        # Sizes that shrink promise ever less wherever they are: what is left is what longer ones would have gained.
        longest = xp.maximum(size, state.longest * (state.step / step).astype(kind) ** 2)
        left = (longest * residual) * residual * steps
        # A value is that of an earlier step, when it may have been far larger: only new ones are compared with.
        valued = step if record.valued is None else record.valued.astype(step.dtype)
        fresh = valued >= state.valued + RECORD_SPACING
        value = xp.where(xp.isfinite(record.value), abs(record.value), 0).astype(kind)
        highest = xp.maximum(state.highest, value)
        # An objective that has come to 0, as seen from where it was: its own rounding goes to 0 with it.
        nothing = xp.where(coarse, 4, 1000) * eps**2 * highest
        vanished = xp.isfinite(record.value) & (value <= nothing) & (left <= 100 * nothing)
        # Steps too short to change the residual do not show how near the optimum is.
        largest = xp.maximum(state.largest, xp.where(known, residual, 0))
        moved = residual < (1 - 100 * eps) * largest
        vanished = vanished | (left <= xp.minimum(rtol, 100 * eps) * eps * value)
        near = (residual <= self.atol.astype(kind)) | (moved & fresh & vanished)
        # Promises that do not fall from one part of the second half to the next but one are those of a valley's floor.
        falling = (older[2] > 0) & (older[0] <= older[2])
        ahead = left * xp.where(coarse, xp.maximum(4 * SLOW_STEPS / steps, 4), 1)
        share = xp.maximum(rtol * xp.sqrt(rtol), xp.where(rtol < eps, 0, eps)) * xp.minimum(total, value)
        slow = falling & (ahead * xp.sqrt(steps) <= share)
        little = known & (near | slow | (left <= rtol * sum(blocks)))
        count = lambda before, more, goes_on: (before + more) * (known & goes_on).astype(before.dtype)
        in_a_row = count(state.in_a_row, 1, little)
        slow_in_a_row = count(state.slow_in_a_row, fresh.astype(state.slow_in_a_row.dtype), slow)
        # Then two stretches have to show that the promises go on falling, and do not just lie lower.
        stretch_sum, begins = state.stretch_sum + gained, in_a_row <= 1
        ends = step >= state.stretch_start + xp.maximum(state.stretch_start // 6, RECORD_SPACING)
        length = (step - state.stretch_start).astype(kind)
        flat = promise * length > xp.clip(rtol ** (1 / 6), 1 / 16, 1 / 4) * stretch_sum
        falls = xp.where(begins | (ends & flat), 0, state.falls + ends.astype(state.falls.dtype))
        shown = near | (falls >= xp.where(coarse, 3, 2)) | (slow_in_a_row >= xp.maximum(self.in_a_row, 3))
        converged = (in_a_row >= self.in_a_row) & shown
        stretch_start = xp.where(begins | ends, step, state.stretch_start)
        stretch_sum = xp.where(begins | ends, 0, stretch_sum)
        valued = xp.where(fresh, valued, state.valued)
        counts = step, block_end, blocks, total, in_a_row, slow_in_a_row
        stretch = stretch_start, stretch_sum, falls
        state = ToleranceState(*counts, *stretch, valued, longest, largest, highest)
        return state, when(converged, Status.CONVERGED)


class StagnationState(NamedTuple):
    """The largest residual and the range of the value in the window, and the largest residual of the one before."""

    end: Int[Array, ""]
    looks: Int[Array, ""]
    residual: Scalar
    highest: Scalar
    lowest: Scalar
    before: Scalar


class Stagnation(StoppingRule):
    """Stagnated: over a third of the run the largest ‖G_k‖ no longer falls, and all that steps promise is rounding.

    That is what rounding error looks like when it is reached, so a float32 run against a tolerance that float32
    cannot reach ends by itself. Three things must come together: the largest ‖G_k‖ of a window is no smaller than that
    of the window before (its envelope, since momentum makes ‖G_k‖ ripple); the value is flat to rounding; and the
    decrease that a step of this size and residual promises, β‖G_k‖², is below the rounding of the value. Needs the
    value; for exact oracles, since noise looks the same.

    Parameters
    ----------
    patience
        Steps in the first windows; later ones are half as long as the run so far.

    Examples
    --------
    >>> Stagnation(patience=100).patience
    Array(100, dtype=int32)
    """

    patience: Any = eqx.field(default=50, converter=partial(number, "patience of Stagnation", least=1, dtype=jnp.int32))

    def init(self) -> PyTree:
        """Nothing seen yet."""
        nothing = (number_of(value) for value in (0, -np.inf, np.inf, np.inf))
        return StagnationState(self.patience, number_of(0, jnp.int32), *nothing)

    def update(self, state: PyTree, record: Record) -> tuple[PyTree, Code]:
        """Widen the envelope; at the end of a window compare it with the one before."""
        xp = namespace(record.value)
        looks = state.looks + 1
        eps = float(jnp.finfo(record.value.dtype).eps)
        value, last, size = (n.astype(state.before.dtype) for n in (record.value, record.residual, record.size))
        residual = xp.maximum(state.residual, last)
        highest, lowest = xp.fmax(state.highest, value), xp.fmin(state.lowest, value)
        rounding = 100 * eps * abs(value)
        flat = highest - lowest <= rounding
        spent = ~((size * last) * last > rounding)
        level = (residual > 0.9 * state.before) & (residual < 10 * state.before)
        over = (record.step >= state.end) & (looks >= 3)
        following = record.step + xp.maximum(self.patience, record.step // 2)
        # The next window begins with this value, so that a slow fall from window to window is seen as one.
        fresh = StagnationState(following, xp.zeros_like(looks), xp.zeros_like(residual), value, value, residual)
        widened = StagnationState(state.end, looks, residual, highest, lowest, state.before)
        state = trees.where(over, fresh, widened)
        known = xp.isfinite(value)
        return state, when(over & level & flat & spent & known, Status.STAGNATED)


class _Budget(StoppingRule):
    limit: Any
    _spent: ClassVar[tuple[str, Status]]
    """The column of the record that counts, and the status when it is spent."""

    def __init__(self, limit: Any) -> None:
        self.limit = number(f"limit of {type(self).__name__}", limit, least=0, finite=False)

    def update(self, state: PyTree, record: Record) -> tuple[PyTree, Code]:
        """Compare what was spent with the limit."""
        column, status = self._spent
        return state, when(getattr(record, column).astype(self.limit.dtype) >= self.limit, status)


class Steps(_Budget):
    """Stop after so many steps.

    Examples
    --------
    >>> Steps(100)
    Steps(limit=...)
    """

    _spent = "step", Status.STEPS_SPENT


class Work(_Budget):
    """Stop after so much work, in the oracle's own units.

    Examples
    --------
    >>> Work(1e6) | Seconds(60)
    AnyOf(...)
    """

    _spent = "work", Status.WORK_SPENT


class Seconds(_Budget):
    """Stop after so many seconds of wall time; looked at between chunks.

    Examples
    --------
    >>> Seconds(60)
    Seconds(limit=...)
    """

    _spent = "seconds", Status.SECONDS_SPENT

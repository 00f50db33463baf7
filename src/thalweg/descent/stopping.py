"""Stopping rules: they look at records, run inside the compiled chunk, and combine with ``|`` and ``&``."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, PyTree, Scalar

from thalweg.arguments import number
from thalweg.descent.result import Status

Code = Int[Array, ""]


class Record(NamedTuple):
    """What a rule looks at. For an exact oracle ``value`` is that of the last record of the history."""

    step: Int[Array, ""]
    value: Scalar
    residual: Scalar
    size: Scalar
    work: Scalar
    seconds: Scalar


class StoppingRule(eqx.Module):
    """Turns a stream of records into a :class:`~thalweg.descent.Status`; 0 means go on.

    Examples
    --------
    >>> Tolerance(1e-6) | Steps(100) & Work(1e9)
    AnyOf(first=Tolerance(...), second=AllOf(first=Steps(...), second=Work(...)))
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


class _Pair(StoppingRule):
    first: StoppingRule
    second: StoppingRule

    def init(self) -> PyTree:
        """The states of both."""
        return self.first.init(), self.second.init()

    def _both(self, state: PyTree, record: Record) -> tuple[PyTree, Code, Code]:
        first, a = self.first.update(state[0], record)
        second, b = self.second.update(state[1], record)
        return (first, second), a, b


class AnyOf(_Pair):
    """Stop when either rule says so: ``first | second``."""

    def update(self, state: PyTree, record: Record) -> tuple[PyTree, Code]:
        """The first status that is not 0."""
        state, a, b = self._both(state, record)
        return state, jnp.where(a != 0, a, b)


class AllOf(_Pair):
    """Stop when both rules say so at the same record: ``first & second``."""

    def update(self, state: PyTree, record: Record) -> tuple[PyTree, Code]:
        """The first rule's status if both have one."""
        state, a, b = self._both(state, record)
        return state, jnp.where(b != 0, a, 0)


def _when(condition: Array, status: Status) -> Code:
    return jnp.where(condition, int(status), 0).astype(jnp.int32)


class Tolerance(StoppingRule):
    """Converged: ‖G_k‖ ≤ atol + rtol · (the largest ‖G_j‖ so far).

    ``rtol=None`` follows the dtype: the square root of its rounding unit, 1.5e-8 in float64, 3.5e-4 in float32.
    """

    rtol: Array | None
    atol: Array

    def __init__(self, rtol: Any = None, atol: Any = 0.0) -> None:
        self.rtol = None if rtol is None else number("rtol of Tolerance", rtol, least=0)
        self.atol = number("atol of Tolerance", atol, least=0)

    def init(self) -> PyTree:
        """The largest residual so far."""
        return jnp.zeros(())

    def update(self, state: PyTree, record: Record) -> tuple[PyTree, Code]:
        """Compare."""
        largest = jnp.maximum(state, record.residual).astype(state.dtype)
        rtol = jnp.finfo(record.residual.dtype).eps ** 0.5 if self.rtol is None else self.rtol
        small = record.residual <= self.atol + rtol * largest
        # A norm that overflows is as large as the largest so far, but nothing has converged.
        return largest, _when(small & jnp.isfinite(record.residual), Status.CONVERGED)


class Envelope(NamedTuple):
    """The largest residual and the range of the value in the window, and the largest residual of the one before."""

    end: Int[Array, ""]
    residual: Scalar
    highest: Scalar
    lowest: Scalar
    before: Scalar


class Stagnation(StoppingRule):
    """Stagnated: over a third of the run the largest ‖G_k‖ no longer falls and the value is flat to rounding.

    That is what rounding error looks like when it is reached, so a float32 run against a tolerance that float32
    cannot reach ends by itself. The largest ‖G_k‖ of a window is compared with that of the window before: momentum
    makes ‖G_k‖ ripple, but its envelope falls as long as there is progress. For exact oracles: noise looks the same.

    Parameters
    ----------
    patience
        Steps in the first windows; later ones are half as long as the run so far.
    """

    patience: Array

    def __init__(self, patience: int = 50) -> None:
        self.patience = number("patience of Stagnation", patience, least=1)

    def init(self) -> PyTree:
        """Nothing seen yet."""
        nothing = jnp.array(0.0), jnp.array(-jnp.inf), jnp.array(jnp.inf), jnp.array(jnp.inf)
        return Envelope(self.patience.astype(jnp.int32), *nothing)

    def update(self, state: PyTree, record: Record) -> tuple[PyTree, Code]:
        """Widen the envelope; at the end of a window compare it with the one before."""
        residual = jnp.maximum(state.residual, record.residual)
        highest = jnp.fmax(state.highest, record.value)
        lowest = jnp.fmin(state.lowest, record.value)
        rounding = 100 * jnp.finfo(record.value.dtype).eps * jnp.abs(record.value)
        flat = jnp.isnan(record.value) | (highest - lowest <= rounding)
        # A run that diverges does not improve either, but it leaves the level of the window before.
        level = (residual > 0.9 * state.before) & (residual < 10 * state.before)
        over = record.step >= state.end
        following = record.step + jnp.maximum(self.patience.astype(jnp.int32), record.step // 2)
        fresh = self.init()._replace(end=following, before=residual)
        widened = Envelope(state.end, residual, highest, lowest, state.before)
        # A loop wants the dtypes it was given, whatever the precision of the record.
        state = jax.tree.map(
            lambda a, b, old: jnp.where(over, a, b).astype(jnp.asarray(old).dtype), fresh, widened, state
        )
        return state, _when(over & level & flat, Status.STAGNATED)


class Windows(NamedTuple):
    """Running mean and squared deviations of the window being filled; best mean and its error so far."""

    filled: Int[Array, ""]
    mean: Scalar
    squares: Scalar
    length: Int[Array, ""]
    best: Scalar
    best_variance: Scalar
    idle: Int[Array, ""]


class Plateau(StoppingRule):
    """Noise is reached: the averaged criterion does not improve beyond its own standard error.

    Records are averaged over windows, each a quarter longer than the last. When ``patience`` windows in a row fail
    to lower the best mean by more than ``errors`` standard errors of the difference, noise hides whatever progress
    is left. The criterion is the value, or ‖G_k‖ for an oracle that has no value.

    Parameters
    ----------
    window
        Records in the first window.
    patience
        Windows without improvement before stopping.
    errors
        How many standard errors count as an improvement.
    """

    window: Array
    patience: Array
    errors: Array

    def __init__(self, window: int = 20, patience: int = 2, errors: float = 1.0) -> None:
        self.window = number("window of Plateau", window, least=2)
        self.patience = number("patience of Plateau", patience, least=1)
        self.errors = number("errors of Plateau", errors, least=0)

    def init(self) -> PyTree:
        """An empty first window."""
        zero, none = jnp.zeros(()), jnp.zeros((), jnp.int32)
        length = self.window.astype(jnp.int32)
        return Windows(none, zero, zero, length, jnp.array(jnp.inf), zero, none)

    def update(self, state: PyTree, record: Record) -> tuple[PyTree, Code]:
        """Fill the window; at its end compare its mean with the best."""
        criterion = jnp.where(jnp.isnan(record.value), record.residual, record.value)
        count = state.filled + 1
        delta = criterion - state.mean
        mean = state.mean + delta / count
        squares = state.squares + delta * (criterion - mean)
        full = count >= state.length
        variance = squares / jnp.maximum(count - 1, 1) / count
        noise = self.errors * jnp.sqrt(variance + state.best_variance)
        improved = mean < state.best - noise
        idle = jnp.where(full, jnp.where(improved, 0, state.idle + 1), state.idle)
        better = full & (mean < state.best)
        filled = Windows(
            jnp.where(full, 0, count),
            jnp.where(full, 0, mean),
            jnp.where(full, 0, squares),
            jnp.where(full, state.length + state.length // 4, state.length),
            jnp.where(better, mean, state.best),
            jnp.where(better, variance, state.best_variance),
            idle,
        )
        state = jax.tree.map(lambda new, old: new.astype(old.dtype), filled, state)
        return state, _when(idle >= self.patience, Status.PLATEAU)


class _Budget(StoppingRule):
    limit: Any

    def __init__(self, limit: Any) -> None:
        self.limit = number(f"limit of {type(self).__name__}", limit, least=0, finite=False)


class Steps(_Budget):
    """Stop after so many steps."""

    def update(self, state: PyTree, record: Record) -> tuple[PyTree, Code]:
        """Compare."""
        return state, _when(record.step >= self.limit, Status.STEPS_SPENT)


class Work(_Budget):
    """Stop after so much work, in the oracle's own units."""

    def update(self, state: PyTree, record: Record) -> tuple[PyTree, Code]:
        """Compare."""
        return state, _when(record.work >= self.limit, Status.WORK_SPENT)


class Seconds(_Budget):
    """Stop after so many seconds of wall time; looked at between chunks."""

    def update(self, state: PyTree, record: Record) -> tuple[PyTree, Code]:
        """Compare."""
        return state, _when(record.seconds >= self.limit, Status.SECONDS_SPENT)

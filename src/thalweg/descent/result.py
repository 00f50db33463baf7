"""What a run returns: the solution, why it stopped and what to do about it, the history, and the state."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Array, PyTree

from thalweg.codec import storable
from thalweg.outcomes import Outcome

__all__ = ["History", "Result", "Status"]


@storable
class Status(Outcome):
    """Why a run stopped; ``status.advice`` says what to do next, ``status.success`` if nothing.

    Examples
    --------
    >>> Status.CONVERGED.success, Status.WORK_SPENT.advice
    (True, 'The budget of work is spent. Pass the result as x0 to go on.')
    """

    RUNNING = 0, "The run has not stopped."
    CONVERGED = 1, "The tolerance was met: as far as the run shows, nothing worth it is left to gain."
    STAGNATED = (
        2,
        "Neither ‖G_k‖ nor the objective improves any more: rounding error is reached. For more, use float64 "
        "(JAX_ENABLE_X64=1), scale the problem, leave out of the objective what is constant, or take a longer step.",
    )
    PLATEAU = (
        3,
        "The averaged objective no longer improves beyond its own standard error: noise is reached. For more, use a "
        "smaller or decreasing step, larger batches, averaging, or a variance-reduced oracle (SVRG).",
    )
    STEPS_SPENT = (
        4,
        "The budget of steps is spent before a stopping rule was met. Pass the result as x0 to go on, or look at "
        "result.history: if ‖G_k‖ still falls, raise steps; if not, change the step size.",
    )
    WORK_SPENT = 5, "The budget of work is spent. Pass the result as x0 to go on."
    SECONDS_SPENT = 6, "The budget of seconds is spent. Pass the result as x0 to go on."
    STOPPED_BY_CALLBACK = 7, "The callback asked to stop. Pass the result as x0 to go on."
    INTERRUPTED = 8, "Interrupted from the keyboard; nothing is lost. Pass the result as x0 to go on."
    DIVERGED = (
        9,
        "The iterates or the objective grew without bound or became NaN. Use a smaller step (for exact gradients "
        "step=Backtracking() finds one), and check that the objective is finite around x0. result.x is finite.",
    )

    @property
    def success(self) -> bool:
        """Whether the run ended because there was nothing more to gain."""
        return self in (Status.CONVERGED, Status.PLATEAU)


@storable
class History(Mapping):
    """Columns of equal length, one row per record: step, value, residual, size, work, seconds.

    A mapping from column name to NumPy array, so that ``pandas.DataFrame(dict(history))`` is a data frame.
    ``value`` is the objective at the recorded iterate for an exact oracle, the mean of the oracle's estimates
    since the last record for a stochastic one, NaN where the oracle has none. ``residual`` is ‖G_k‖.

    Examples
    --------
    >>> import numpy as np
    >>> history = History({name: np.arange(3.0) for name in History.names})
    >>> history["residual"][-1], len(history)
    (np.float64(2.0), 6)
    >>> print(history.table(rows=2))
          step      value   residual       size       work    seconds
             0          0          0          0          0          0
             2          2          2          2          2          2
    """

    names = ("step", "value", "residual", "size", "work", "seconds")

    def __init__(self, columns: Mapping[str, Any] | None = None) -> None:
        self._blocks: list[dict[str, np.ndarray]] = []
        self.append(columns or {name: [] for name in self.names})

    def __getitem__(self, name: str) -> np.ndarray:
        if len(self._blocks) > 1:
            self._blocks = [{key: np.concatenate([block[key] for block in self._blocks]) for key in self.names}]
        return self._blocks[0][name]

    def stored(self) -> dict[str, Any]:
        """What a file keeps of it."""
        return {"columns": dict(self)}

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)

    def append(self, columns: Mapping[str, Any]) -> None:
        """Add rows; they are joined to the others when somebody looks, so that a long run costs no copying."""
        self._blocks.append({name: np.asarray(columns[name], dtype=np.float64) for name in self.names})

    @property
    def last(self) -> dict[str, float]:
        """The last row; of an empty history all NaN."""
        newest = self._blocks[-1]
        return {name: float(newest[name][-1]) if newest[name].size else np.nan for name in self.names}

    def table(self, rows: int = 10) -> str:
        """Return ``rows`` rows, evenly spaced, as text."""
        count = self["step"].size
        chosen = np.unique(np.linspace(0, count - 1, min(rows, count)).round().astype(int))
        lines = ["".join(f"{name:>11}" for name in self.names)[1:]]
        lines += ["".join(f"{self[name][i]:>11.5g}" for name in self.names)[1:] for i in chosen]
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"History of {self['step'].size} records\n{self.table()}"


@dataclass(frozen=True)
class Result:
    """The outcome of :func:`~thalweg.descent.minimize`. Pass it as ``x0`` to go on from where it stopped.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from thalweg.descent import minimize
    >>> result = minimize(lambda x: jnp.sum(x**2), jnp.ones(1), step=0.5, steps=3)
    >>> result.steps, result.success, result.fun
    (2, True, 0.0)
    """

    x: PyTree[Array]
    """The solution: the average if one was asked for, else the last iterate."""
    status: Status
    """Why the run stopped."""
    message: str
    """The status in words, with figures and advice."""
    steps: int
    """Steps taken in all."""
    work: float
    """Work done in all, in the oracle's own units."""
    seconds: float
    """Time spent in all, compilation included."""
    history: History = field(repr=False)
    """One row per record."""
    state: PyTree = field(repr=False)
    """The state to resume from."""
    rule_state: PyTree = field(repr=False)
    """What the stopping rule remembers."""
    objective: Callable[[PyTree[Array]], float] = field(repr=False, compare=False)
    """f + h, which :attr:`fun` evaluates."""

    def __getstate__(self) -> dict[str, Any]:
        # A function cannot be pickled; what it finds can.
        return vars(self) | {"fun": self.fun, "objective": None}

    @property
    def success(self) -> bool:
        """Whether the run ended because there was nothing more to gain."""
        return self.status.success

    @cached_property
    def fun(self) -> float:
        """The objective f + h at ``x``, evaluated when it is asked for; NaN if the oracle cannot evaluate f."""
        return self.objective(self.x)

"""One context for a long fit: what it has reached, its records, its progress bar, and what Ctrl-C does to it.

A fit opens a :class:`Run`, and says after each step what there is to keep:

    with Run("Newton steps", bar=verbose) as run:
        while not converged:
            weights = step(weights)
            run.keep(weights, objective=objective(weights))
    weights = run.kept

Ctrl-C ends the scope. Where something was kept, the interrupt ends there: ``run.interrupted`` is true, and a warning
says that the fit keeps what it has reached. Where nothing was kept it is raised as usual. Runs nest: an interrupt in an
inner one is known to the outer ones, the outermost one warns, and all of them share one bar.
"""

import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import TracebackType
from typing import Any

_current: ContextVar["Run | None"] = ContextVar("current", default=None)
_raises: ContextVar[bool] = ContextVar("raises", default=False)


@contextmanager
def raising_interrupts(raises: bool = True) -> Iterator[None]:
    """Let Ctrl-C through, whatever the runs in this scope have kept: it is meant for more than one fit.

    Examples
    --------
    >>> with raising_interrupts(), Run("steps") as run:
    ...     run.keep(1.0)  # from here on an interrupt would else end the run quietly
    """
    token = _raises.set(raises)
    try:
        yield
    finally:
        _raises.reset(token)


class Run:
    """The scope of a long computation.

    Parameters
    ----------
    title
        What is done, for the bar and the warning.
    total
        Of how many units of work the bar counts; None where that is not known.
    bar
        Whether to show a progress bar. A run within one that shows it does, too.
    warn
        Whether to warn of an interrupt if this is the outermost run; False where the caller does.

    Examples
    --------
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     with Run("steps") as run:
    ...         run.keep(0.5, objective=2.0)
    ...         raise KeyboardInterrupt
    >>> run.kept, run.interrupted, run.records[0]["objective"]
    (0.5, True, 2.0)
    >>> str(caught[0].message)
    'interrupted (steps): the result is what was reached so far'
    """

    def __init__(self, title: str, *, total: float | None = None, bar: bool = False, warn: bool = True) -> None:
        self.title, self.total, self.warn = title, total, warn
        self.kept: Any = None
        self.records: list[dict[str, Any]] = []
        self.interrupted = False
        self._has_kept, self._bar = False, bar
        self._display: Any = None
        self._task: Any = None

    def __enter__(self) -> "Run":
        self._outer = _current.get()
        self._token = _current.set(self)
        self.began = self._last_record = time.perf_counter()
        if self._outer is not None and self._outer._display is not None:
            self._display = self._outer._display
        elif self._bar:
            self._display = _progress()
            self._display.start()
        if self._display is not None:
            self._task = self._display.add_task(self.title, total=self.total, note="")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        _current.reset(self._token)
        if self._display is not None:
            self._display.update(self._task, visible=self._outer is None)
            if self._outer is None or self._outer._display is None:
                self._display.stop()
        swallowed = isinstance(error, KeyboardInterrupt) and self._has_kept and not _raises.get()
        if swallowed:
            run: Run | None = self
            while run is not None:
                run.interrupted, run = True, run._outer
        if self.interrupted and self._outer is None and self.warn and (swallowed or error is None):
            warnings.warn(f"interrupted ({self.title}): the result is what was reached so far", stacklevel=3)
        return swallowed

    @property
    def seconds(self) -> float:
        """Wall-clock seconds since the run began."""
        return time.perf_counter() - self.began

    def keep(self, state: Any, **record: Any) -> None:
        """Make ``state`` the result so far, and add a record to the history if there is anything to record."""
        self.kept, self._has_kept = state, True
        if record:
            self.record(**record)

    def record(self, **entries: Any) -> None:
        """Add a record to the history, with the seconds since the one before."""
        now = time.perf_counter()
        self.records.append({**entries, "seconds": now - self._last_record})
        self._last_record = now

    def advance(self, work: float = 1, note: str | None = None) -> None:
        """Move the bar by some work; ``note`` stands behind it."""
        if self._display is not None:
            self._display.update(self._task, advance=work, **({} if note is None else {"note": note}))

    def say(self, text: str) -> None:
        """Print a line above the bar, if there is one."""
        if self._display is not None:
            self._display.console.print(text, markup=False)


def _progress() -> Any:
    # Imported here, since most runs show no bar.
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )

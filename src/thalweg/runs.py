"""One context for a long fit: what it has reached, its records, its progress bar, and what Ctrl-C does to it.

A fit opens a :class:`Run`, and says after each step what there is to keep:

    with Run("Newton steps", bar=verbose) as run:
        while not converged:
            weights = step(weights)
            run.keep(weights, objective=objective(weights))
    weights = run.kept

Ctrl-C ends the scope. Where something was kept, the interrupt ends there: ``run.interrupted`` is true, and a warning
says that the fit keeps what it has reached. Where nothing was kept it is raised as usual. Runs nest: an interrupt in an
inner one is known to the outer ones, the outermost one warns, and all of them share one bar. A run that does not know
its total has no line on the bar of its own until it advances: the runs within it take their turns on one line.
"""

import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

_current: ContextVar["Run | None"] = ContextVar("current", default=None)
_raises: ContextVar[bool] = ContextVar("raises", default=False)


@contextmanager
def raising_interrupts(raises: bool = True) -> Iterator[None]:
    """Let Ctrl-C through, whatever the runs in this scope have kept: it is meant for more than one fit.

    ``raises=False`` changes nothing, within such a scope either.

    Examples
    --------
    >>> with raising_interrupts(), Run("steps") as run:
    ...     run.keep(1.0)  # from here on an interrupt would else end the run quietly
    """
    token = _raises.set(raises or _raises.get())
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
    warns
        Whether an interrupt that ends here is warned of. A function that returns a status has no need to.

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

    def __init__(self, title: str, *, total: float | None = None, bar: bool = False, warns: bool = True) -> None:
        self.title, self.total, self.warns = title, total, warns
        self.kept: Any = None
        self.records: list[dict[str, Any]] = []
        self.interrupted = False
        self._has_kept, self._bar, self._warning_due = False, bar, False
        self._display: Any = None
        self._line: Any = None
        self._turns = 0

    def __enter__(self) -> "Run":
        self._outer = _current.get()
        self._token = _current.set(self)
        self.began = self._last_record = time.perf_counter()
        self._display = None if self._outer is None else self._outer._display
        self._owns_display = self._display is None and self._bar
        if self._owns_display:
            self._display = _progress()
        if self.total is not None:
            self._show()
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> bool:
        _current.reset(self._token)
        if self._line is not None:
            if self._outer is not None and self._line != self._outer._line and not self._owns_display:
                self._display.update(self._line, visible=False)
            if self._owns_display:
                self._display.stop()
        swallowed = isinstance(error, KeyboardInterrupt) and self._has_kept and not _raises.get()
        if swallowed:
            run: Run | None = self
            while run is not None:
                run.interrupted, run._warning_due = True, run._warning_due or self.warns
                run = run._outer
        if self._warning_due and self._outer is None and (swallowed or error is None):
            warnings.warn(f"interrupted ({self.title}): the result is what was reached so far", stacklevel=3)
        return swallowed

    @property
    def hurries(self) -> bool:
        """Whether a run around it was interrupted: what is still to be done should take no time."""
        return self._outer is not None and self._outer.interrupted

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
            self._show()
            self._display.update(self._line, advance=work, **({} if note is None else {"note": note}))

    def say(self, text: str) -> None:
        """Print a line above the bar, if there is one."""
        if self._display is not None:
            self._display.console.print(text, markup=False)

    def _show(self) -> None:
        """Begin this run's line on the bar, or its turn on the line of the run around it."""
        if self._display is None or self._line is not None:
            return
        self._display.start()
        outer = self._outer
        if self._owns_display or outer is None or outer.total is not None:
            self._line = self._display.add_task(self.title, total=self.total, note="")
            return
        outer._show()
        outer._turns += 1
        title = self.title if outer._turns == 1 else f"{self.title} {outer._turns}"
        self._line = outer._line
        self._display.reset(self._line, description=title, total=self.total, note="")


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

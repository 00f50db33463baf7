"""The progress bar of a run, or of several that belong together."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import TracebackType
from typing import Any

from thalweg.descent.result import History

_shared: ContextVar[list["Bar"] | None] = ContextVar("shared", default=None)


@contextmanager
def one_bar() -> Iterator[None]:
    """Let all runs in this scope that show a bar show one, after another: of a search, say, and its restarts."""
    if _shared.get() is not None:
        yield
        return
    bars: list[Bar] = []
    token = _shared.set(bars)
    try:
        yield
    finally:
        _shared.reset(token)
        for bar in bars[-1:]:
            bar.stop()


class Bar:
    """Steps done, rate, time left, and the last objective and residual; removed from the screen at no cost."""

    def __init__(self, last_step: int, first_step: int) -> None:
        self._first, self._runs = first_step, 1
        shared = _shared.get()
        if shared:
            self._bar: Any = shared[-1]._bar
            self._runs = len(shared) + 1
            self._bar.reset(self._bar.task_ids[0], total=last_step, completed=first_step, rate="", note="")
        else:
            self._bar = _columns()
            self._bar.add_task("descent", total=last_step, completed=first_step, rate="", note="")
        if shared is not None:
            shared.append(self)

    def __enter__(self) -> "Bar":
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if _shared.get() is None:
            self.stop()

    def stop(self) -> None:
        """Leave the screen as it is."""
        self._bar.stop()

    def show(self, step: int, history: History) -> None:
        """Show the step reached and the last record."""
        value, residual = history.last["value"], history.last["residual"]
        elapsed = self._bar.tasks[0].elapsed or 0.0
        rate = f"{(step - self._first) / elapsed:,.0f} steps/s" if elapsed else ""
        run = f"run {self._runs}  " if self._runs > 1 else ""
        note = f"{run}value {value:.6g}  ‖G‖ {residual:.2e}"
        self._bar.update(self._bar.task_ids[0], completed=step, rate=rate, note=note)


def _columns() -> Any:
    # Here, since most runs show no bar.
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    return Progress(
        TextColumn("descent"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )

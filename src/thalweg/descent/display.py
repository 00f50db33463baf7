"""The progress bar of a run."""

from types import TracebackType

from thalweg.descent.result import History


class Bar:
    """Steps done, rate, time left, and the last objective and residual; removed from the screen at no cost."""

    def __init__(self, last_step: int, first_step: int) -> None:
        # Here, since most runs show no bar.
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self._first = first_step
        self._bar = Progress(
            TextColumn("descent"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
        )
        self._task = self._bar.add_task("descent", total=last_step, completed=first_step, rate="", note="")

    def __enter__(self) -> "Bar":
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def show(self, step: int, history: History) -> None:
        """Show the step reached and the last record."""
        value, residual = history.last["value"], history.last["residual"]
        elapsed = self._bar.tasks[0].elapsed or 0.0
        rate = f"{(step - self._first) / elapsed:,.0f} steps/s" if elapsed else ""
        note = f"value {value:.6g}  ‖G‖ {residual:.2e}"
        self._bar.update(self._task, completed=step, rate=rate, note=note)

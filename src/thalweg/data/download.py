"""Downloads, with a progress bar and a checksum."""

from pathlib import Path

from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from thalweg.data.catalogue import Raw
from thalweg.extras import extra

with extra("data"):
    import pooch


def retrieve(raw: Raw, folder: Path) -> Path:
    """Download one file into a folder and return its path; a file with another checksum is a ``ValueError``."""
    columns = (TextColumn(raw.name), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    pooch.get_logger().setLevel("WARNING")
    with Progress(*columns) as progress:
        downloader = pooch.HTTPDownloader(progressbar=_Bar(progress), chunk_size=2**16)
        return Path(
            pooch.retrieve(raw.url, known_hash=raw.checksum, fname=raw.name, path=folder, downloader=downloader)
        )


class _Bar:
    """What pooch expects of a progress bar, on rich's."""

    def __init__(self, progress: Progress) -> None:
        self.progress = progress
        self.task = progress.add_task("download", total=None)

    @property
    def total(self) -> float | None:
        return self.progress.tasks[self.task].total

    @total.setter
    def total(self, total: int) -> None:
        self.progress.update(self.task, total=total or None)

    def update(self, amount: int) -> None:
        self.progress.update(self.task, advance=amount)

    def reset(self) -> None:
        self.progress.update(self.task, completed=0)

    def close(self) -> None:
        self.progress.stop()

"""Finding, verifying, downloading and reading data sets."""

import difflib
import hashlib
import io
import os
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import platformdirs

from thalweg.data.catalogue import CATALOGUE, Arrays, CatalogueEntry, Raw
from thalweg.errors import DataNotFoundError, FileFormatError
from thalweg.extras import extra
from thalweg.files import write_atomically

Fetch = Callable[[Raw, Path], Path]  # download a file into a folder, verify it, return its path


@dataclass(frozen=True, repr=False, eq=False)
class Dataset(Mapping):
    """Arrays by name, as attributes and as items, and where they come from.

    Examples
    --------
    >>> iris = Dataset("iris", {"X": np.ones((150, 4)), "y": np.zeros(150)}, description="flowers")
    >>> iris.X is iris["X"]
    True
    >>> iris
    Dataset('iris': X float64[150, 4], y float64[150])
    """

    name: str
    arrays: Mapping[str, np.ndarray]
    description: str = ""
    licence: str = ""
    source: str = ""

    # Two sets are equal if they are the same: a mapping would compare arrays for their truth.
    __eq__ = object.__eq__
    __hash__ = object.__hash__

    def __getitem__(self, name: str) -> np.ndarray:
        return self.arrays[name]

    def __getattr__(self, name: str) -> Any:
        if "arrays" not in self.__dict__:  # copy and pickle ask before there is anything
            raise AttributeError(name)
        if name not in self.arrays:
            raise AttributeError(f"the data set {self.name!r} has no array {name!r}; it has {', '.join(self)}")
        return self.arrays[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.arrays)

    def __len__(self) -> int:
        return len(self.arrays)

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self.arrays]

    def __repr__(self) -> str:
        arrays = ", ".join(f"{name} {a.dtype}{list(a.shape)}" for name, a in self.arrays.items())
        return f"Dataset({self.name!r}: {arrays})"


def load(name: str) -> Dataset:
    """Load a data set by name, downloading it where it is not at hand.

    Raises
    ------
    DataNotFoundError
        The name is unknown, the download failed, or the set has no public home; the message says what to do.
    FileFormatError
        A file does not have the checksum or the content it should have.
    MissingPackageError
        The set must be downloaded, and the packages of the extra ``data`` are not installed.

    Examples
    --------
    >>> load("sonnar")
    Traceback (most recent call last):
        ...
    thalweg.errors.DataNotFoundError: name: no data set is called 'sonnar'; did you mean 'sonar' or 'sound' or ...
    """
    return obtain(_entry(name), folders(), download)


def names() -> list[str]:
    """Return the names that :func:`load` knows.

    >>> names()[:3]
    ['a9a', 'ap', 'chicago_assault']
    """
    return sorted(CATALOGUE)


def describe(name: str) -> str:
    """Say in a few lines what a data set is, which arrays it has, and where it is.

    >>> print(describe("w8a"))
    w8a: Web pages in 300 binary keywords, training part.
      arrays   X uint8[49749, 300], y int8[49749]
      source   LIBSVM collection; J. Platt 1998
      licence  no explicit licence
      ...
    """
    entry, path = _entry(name), locate(name)
    arrays = ", ".join(f"{array} {dtype}{list(shape)}" for array, (shape, dtype) in entry.shapes.items())
    elsewhere = "not here; load() downloads it" if entry.files else "not here; " + _by_hand(entry, folders()[0])
    lines = {"arrays": arrays, "source": entry.source, "licence": entry.licence, "where": path or elsewhere}
    return "\n".join([f"{name}: {entry.description}", *(f"  {key:<8} {text}" for key, text in lines.items())])


def locate(name: str) -> Path | None:
    """Return the file of a data set, or None if it is in none of the :func:`folders`.

    >>> path = locate("sonar")
    >>> path is None or path.name == "sonar.npz"
    True
    """
    return _find(_entry(name), folders())


def folders() -> list[Path]:
    """Return where data sets are looked for: ``$THALWEG_DATA`` if set, then the user's cache folder.

    Downloads go to the last, the cache.

    >>> folders()[-1].name
    'data'
    """
    given = os.environ.get("THALWEG_DATA")
    cache = Path(platformdirs.user_cache_dir("thalweg")) / "data"
    return [Path(given).expanduser(), cache] if given else [cache]


def obtain(entry: CatalogueEntry, where: list[Path], fetch: Fetch) -> Dataset:
    """Read the set from the first folder that has it, else download it into the last."""
    path = _find(entry, where)
    description = entry.description
    if path is None:
        if not entry.files:
            raise DataNotFoundError(f"{entry.name}: has no public home; {_by_hand(entry, where[0])}")
        path = _download(entry, where, fetch)
    data = path.read_bytes()
    if _verify(entry, path, data) == "download" and entry.note:
        description += f" This copy was downloaded: {entry.note}."
    return Dataset(entry.name, _read(path, data), description, entry.licence, entry.source)


def download(raw: Raw, folder: Path) -> Path:
    """Download one file with a progress bar; a file with another checksum is a ``ValueError``."""
    # What a download needs is loaded for a download only.
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    with extra("data"):
        import pooch
    columns = (TextColumn(raw.name), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    pooch.get_logger().setLevel("WARNING")
    with Progress(*columns) as progress:
        downloader = pooch.HTTPDownloader(progressbar=_Bar(progress), chunk_size=2**16)
        path = pooch.retrieve(raw.url, known_hash=raw.checksum, fname=raw.name, path=folder, downloader=downloader)
        return Path(path)


class _Bar:
    """What pooch expects of a progress bar, on rich's."""

    total = 0

    def __init__(self, progress: Any) -> None:
        self.progress, self.task = progress, progress.add_task("download", total=None)

    def update(self, amount: int) -> None:
        self.progress.update(self.task, advance=amount, total=self.total or None)

    def reset(self) -> None:
        self.progress.update(self.task, completed=0)

    def close(self) -> None:
        self.progress.stop()


def _entry(name: str) -> CatalogueEntry:
    if name in CATALOGUE:
        return CATALOGUE[name]
    close = difflib.get_close_matches(str(name), CATALOGUE, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(map(repr, close))}?" if close else "thalweg.data.list() gives the names"
    raise DataNotFoundError(f"name: no data set is called {name!r}; {hint}")


def _find(entry: CatalogueEntry, where: list[Path]) -> Path | None:
    return next((folder / entry.file for folder in where if (folder / entry.file).is_file()), None)


def _by_hand(entry: CatalogueEntry, folder: Path) -> str:
    return f"put the file {folder / entry.file} in place (sha256 {entry.sha256}; it comes from: {entry.source})"


def _recorded(path: Path) -> Path:
    """Where the checksum of a converted download is kept."""
    return path.with_name(path.name + ".sha256")


def _verify(entry: CatalogueEntry, path: Path, data: bytes) -> str:
    """Return whether the file is the reference ``file`` or a converted ``download``; else raise."""
    found = hashlib.sha256(data).hexdigest()
    if found == entry.sha256:
        return "file"
    record = _recorded(path)
    if record.is_file():
        expected = record.read_text(encoding="ascii", errors="replace").strip()
        if found == expected:
            return "download"
        remedy = "delete it, and load() will download it again"
    else:
        expected, remedy = entry.sha256, "replace it by an undamaged copy, or delete it"
    raise FileFormatError(f"{path}: wrong checksum (sha256): expected {expected}, found {found}; {remedy}")


def _download(entry: CatalogueEntry, where: list[Path], fetch: Fetch) -> Path:
    """Fetch the published files, convert and check them, and keep the arrays with a checksum of their own."""
    assert entry.convert is not None
    with tempfile.TemporaryDirectory() as scratch:
        paths = []
        for raw in entry.files:
            try:
                paths.append(fetch(raw, Path(scratch)))
            except OSError as error:  # those of requests too
                advice = f"try again, or {_by_hand(entry, where[0])}"
                message = f"{entry.name}: the download of {raw.url} failed ({error}); {advice}"
                raise DataNotFoundError(message) from error
            except ValueError as error:  # pooch's answer to a wrong checksum
                raise FileFormatError(f"{entry.name}: {raw.url} is not the file we know ({error})") from error
        try:
            arrays = entry.convert(paths)
        except (ValueError, LookupError, OSError, EOFError, zipfile.BadZipFile) as error:
            urls = ", ".join(raw.url for raw in entry.files)
            raise FileFormatError(f"{entry.name}: {urls} is not in the format we know ({error})") from error
    entry.check_converted(arrays)
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]
    path = where[-1] / entry.file
    path.parent.mkdir(parents=True, exist_ok=True)
    # The checksum first: alone it does no harm, while a file without it would be refused.
    write_atomically(_recorded(path), hashlib.sha256(buffer.getvalue()).hexdigest().encode())
    write_atomically(path, buffer.getvalue())
    return path


def _read(path: Path, data: bytes) -> Arrays:
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as archive:
            return dict(archive)
    except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise FileFormatError(f"{path}: not an npz file of plain arrays ({error})") from None

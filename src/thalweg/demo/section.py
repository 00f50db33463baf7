"""What an experiment leaves behind: a folder of plots, tables and numbers, which is also a section of the report.

An experiment talks to its :class:`Run`; the run writes each file at once and, at the end, an ``index.json`` that
lists them in order. The report is made from such folders alone, so there is no other kind of section.
"""

import csv
import io
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from thalweg.errors import FileFormatError
from thalweg.experiments import plots

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_INDEX = "index.json"


@dataclass(frozen=True)
class Section:
    """The output of one experiment; ``items`` holds notes, tables, figures and numbers in order."""

    folder: Path
    name: str
    title: str
    paper: str
    quick: bool
    seed: int
    seconds: float
    version: str
    items: list[dict[str, Any]]

    @classmethod
    def read(cls, folder: Path) -> "Section":
        """Read a folder that an experiment left behind."""
        text = (folder / _INDEX).read_text(encoding="utf-8")
        try:
            return cls(folder=folder, **json.loads(text))
        except (ValueError, TypeError) as error:
            raise FileFormatError(f"{folder / _INDEX}: not the index of an experiment ({error})") from None

    def write(self) -> None:
        """Write the index into the folder."""
        index = {key: value for key, value in vars(self).items() if key != "folder"}
        (self.folder / _INDEX).write_text(json.dumps(index, indent=1) + "\n", encoding="utf-8")


@dataclass
class Run:
    """What an experiment is given: its size, its seed, and where to put what it finds.

    ``quick`` asks for a size that takes seconds; otherwise the size is that of the paper.
    """

    folder: Path
    quick: bool
    seed: int
    items: list[dict[str, Any]] = field(default_factory=list)

    def note(self, text: str) -> None:
        """Add prose; an empty line begins a new paragraph."""
        self.items.append({"kind": "note", "text": text})

    def figure(self, name: str, figure: "Figure", caption: str) -> None:
        """Add a plot; writes ``name.png`` and ``name.svg``."""
        self._add("figure", name, caption=caption)
        plots.save(figure, self.folder / name)

    def table(self, name: str, columns: Mapping[str, Sequence[Any]], caption: str) -> None:
        """Add a table of named columns; writes ``name.csv`` (all digits) and ``name.txt`` (for reading)."""
        values = {header: [_plain(value) for value in column] for header, column in columns.items()}
        lengths = {header: len(column) for header, column in values.items()}
        if len(set(lengths.values())) != 1:
            raise ValueError(f"columns must be of one length, found {lengths}")
        rows = list(zip(*values.values(), strict=True))
        shown = [[_shown(value) for value in row] for row in rows]
        numeric = [all(isinstance(value, int | float) for value in column) for column in values.values()]
        self._add("table", name, caption=caption, header=list(values), rows=shown, numeric=numeric)
        buffer = io.StringIO()
        csv.writer(buffer, lineterminator="\n").writerows([list(values), *rows])
        self._write(f"{name}.csv", buffer.getvalue())
        self._write(f"{name}.txt", f"{caption}\n\n{_aligned([list(values), *shown], numeric)}")

    def numbers(self, name: str, values: Mapping[str, Any]) -> None:
        """Add raw numbers (scalars, sequences, arrays, nested dicts of them); writes ``name.json``."""
        self._add("numbers", name)
        self._write(f"{name}.json", json.dumps(_jsonable(values), indent=1, allow_nan=False) + "\n")

    def _add(self, kind: str, name: str, **facts: Any) -> None:
        check_name(name)
        if any(item["kind"] == kind and item["name"] == name for item in self.items):
            raise ValueError(f"name: this run has a {kind} called {name!r} already")
        self.items.append({"kind": kind, "name": name, **facts})

    def _write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text, encoding="utf-8")


def check_name(name: str) -> None:
    """Raise unless the name is fit for a file on any system."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]*", name):
        raise ValueError(f"name must consist of letters, digits, - and _, found {name!r}")


def _plain(value: Any) -> Any:
    """Turn NumPy and JAX scalars into Python's."""
    return value.item() if hasattr(value, "item") else value


def _shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _aligned(rows: list[list[str]], numeric: list[bool]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, numeric, strict=True)
        ).rstrip()
        for row in rows
    ]
    return "\n".join([lines[0], "  ".join("-" * width for width in widths), *lines[1:]]) + "\n"


def _jsonable(value: Any) -> Any:
    """JSON has no NaN and no infinity: they become the strings that ``float`` understands."""
    if isinstance(value, Mapping):
        return {str(key): _jsonable(item) for key, item in value.items()}
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, str | int | None):
        return value
    if isinstance(value, list | tuple):
        return [_jsonable(item) for item in value]
    return _jsonable(np.asarray(value).tolist())

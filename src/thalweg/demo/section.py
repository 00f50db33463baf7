"""Experiments and what they leave behind: a folder of plots, tables and numbers, which is a section of the report.

An :class:`Experiment` is one figure or table. Its function is given a :class:`Section`, which writes each file at once;
in the end an ``index.json`` lists them in order.
"""

import csv
import io
import json
import math
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from thalweg import __version__
from thalweg.demo import plots

__all__ = ["Experiment", "Section", "experiment"]

_INDEX = "index.json"


@dataclass
class Section:
    """The output of one experiment: notes, tables, figures and numbers, in order.

    Parameters
    ----------
    folder
        Where its files go.
    quick
        Whether the size is one that takes seconds; otherwise it is that of the paper.
    seed
        Seeds all that is random.
    name, title, paper
        Those of the experiment.
    seconds, version
        How long it took, and with which version of the library.
    items
        What was written, in order.

    Examples
    --------
    >>> import tempfile
    >>> section = Section(Path(tempfile.mkdtemp()), quick=True, seed=0)
    >>> section.table("errors", {"step": [1, 2], "error": [0.5, 0.25]}, "Error by step.")
    >>> print((section.folder / "errors.csv").read_text())
    step,error
    1,0.5
    2,0.25
    <BLANKLINE>
    """

    folder: Path
    quick: bool
    seed: int
    name: str = ""
    title: str = ""
    paper: str = ""
    seconds: float = 0.0
    version: str = __version__
    items: list[dict[str, Any]] = field(default_factory=list)

    def write_index(self) -> None:
        """Write ``index.json``: all but the folder."""
        index = {key: value for key, value in vars(self).items() if key != "folder"}
        self._write(_INDEX, json.dumps(index, indent=1) + "\n")

    def note(self, text: str) -> None:
        """Add prose; an empty line begins a new paragraph."""
        self.items.append({"kind": "note", "text": text})

    @contextmanager
    def figure(self, name: str, caption: str, *, columns: int = 1, height: float = 3.4) -> Iterator[Any]:
        """Add a plot, drawn on the axes that the ``with`` statement gets; writes ``name.png`` and ``name.svg``."""
        self._add("figure", name, caption=caption)
        fig, axes = plots.figure(columns, height=height)
        yield axes
        plots.save(fig, self.folder / name)

    def table(self, name: str, columns: Mapping[str, Sequence[Any]], caption: str) -> None:
        """Add a table of named columns; writes ``name.csv`` (all digits) and ``name.txt`` (for reading)."""
        as_python = lambda value: value.item() if hasattr(value, "item") else value
        values = {header: list(map(as_python, column)) for header, column in columns.items()}
        lengths = {header: len(column) for header, column in values.items()}
        if len(set(lengths.values())) != 1:
            raise ValueError(f"columns must be of one length, found {lengths}")
        rows = list(zip(*values.values(), strict=True))
        texts = [[f"{value:.4g}" if isinstance(value, float) else str(value) for value in row] for row in rows]
        numeric = [all(isinstance(value, int | float) for value in column) for column in values.values()]
        self._add("table", name, caption=caption, header=list(values), rows=texts, numeric=numeric)
        buffer = io.StringIO()
        csv.writer(buffer, lineterminator="\n").writerows([list(values), *rows])
        self._write(f"{name}.csv", buffer.getvalue())
        self._write(f"{name}.txt", f"{caption}\n\n{_align([list(values), *texts], numeric)}")

    def numbers(self, name: str, values: Mapping[str, Any]) -> None:
        """Add raw numbers (scalars, sequences, arrays, nested dicts of them); writes ``name.json``."""
        self._add("numbers", name)
        self._write(f"{name}.json", json.dumps(_as_json(values), indent=1, allow_nan=False) + "\n")

    def _add(self, kind: str, name: str, **facts: Any) -> None:
        _check_name(name)
        if any(item["kind"] == kind and item["name"] == name for item in self.items):
            raise ValueError(f"name: this section has a {kind} called {name!r} already")
        self.items.append({"kind": kind, "name": name, **facts})

    def _write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text, encoding="utf-8")


@dataclass(frozen=True)
class Experiment:
    """One figure or table: its name, its heading, where it is from, and the function that makes it.

    Examples
    --------
    >>> import tempfile
    >>> halving = Experiment("halving", "Halving", "Figure 1", lambda section: section.note("Each step halves it."))
    >>> halving.run(Path(tempfile.mkdtemp()), quick=True, seed=0).items
    [{'kind': 'note', 'text': 'Each step halves it.'}]
    """

    name: str
    title: str
    paper: str
    function: Callable[[Section], None]

    def __post_init__(self) -> None:
        _check_name(self.name)

    def run(self, folder: Path, *, quick: bool, seed: int) -> Section:
        """Run the experiment in the shared plot style; its output goes into ``folder``, which is made if need be."""
        folder.mkdir(parents=True, exist_ok=True)
        section = Section(folder, quick, seed, self.name, self.title, self.paper)
        start = time.perf_counter()
        with plots.style():
            self.function(section)
        section.seconds = time.perf_counter() - start
        section.write_index()
        return section


def experiment(name: str, *, title: str, paper: str) -> Callable[[Callable[[Section], None]], Experiment]:
    """Make an :class:`Experiment` of the decorated ``function(section)``.

    Parameters
    ----------
    name
        The name of its folder; letters, digits, ``-`` and ``_``.
    title
        The heading of its section.
    paper
        The figure or table it reproduces, as a reader would cite it.

    Examples
    --------
    >>> @experiment("halving", title="Halving", paper="Figure 1")
    ... def halving(section):
    ...     section.note("Each step halves the error.")
    >>> halving.title
    'Halving'
    """
    return lambda function: Experiment(name, title, paper, function)


def _check_name(name: str) -> None:
    """Raise unless the name is fit for a file on any system."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]*", name):
        raise ValueError(f"name must consist of letters, digits, - and _, found {name!r}")


def _align(rows: list[list[str]], numeric: list[bool]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    form = "  ".join(f"{{:{'>' if right else '<'}{width}}}" for width, right in zip(widths, numeric, strict=True))
    lines = [form.format(*row).rstrip() for row in rows]
    return "\n".join([lines[0], "  ".join("-" * width for width in widths), *lines[1:]]) + "\n"


def _as_json(value: Any) -> Any:
    """Return what JSON can hold: it has no NaN and no infinity, which become the strings that ``float`` understands."""
    value = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(value, Mapping):
        return {str(key): _as_json(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_as_json(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value

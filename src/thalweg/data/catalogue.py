"""The data sets we know, before they are read: facts are in ``catalogue.toml`` and ``uci.csv``, beside this file."""

import csv
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from thalweg.errors import FileFormatError

Arrays = dict[str, np.ndarray]
Shapes = dict[str, tuple[tuple[int, ...], str]]

# Pinned to a commit, so that its files cannot change.
_UCI_REGRESSION = (
    "https://raw.githubusercontent.com/treforevans/uci_datasets/f0737523712fe66a1640e4b980b927e8490b58eb/uci_datasets"
)


@dataclass(frozen=True)
class Raw:
    """A file at a public home, and its checksum (``"sha256:…"`` or ``"md5:…"``) where it is known."""

    url: str
    checksum: str | None = None

    @property
    def name(self) -> str:
        """The file's own name, which tells readers how it is compressed."""
        return self.url.rsplit("/", 1)[1]


@dataclass(frozen=True)
class CatalogueEntry:
    """A data set: ``file`` is its place in the data folder, ``labels`` how often each label occurs.

    ``files`` are at its public home, if it has one, and ``convert`` makes our arrays of them. ``without`` names arrays
    of the reference file that the home does not have, such as a published split; ``note`` says what else differs.
    """

    name: str
    file: str
    sha256: str
    shapes: Shapes
    description: str
    source: str
    licence: str
    files: Sequence[Raw] = ()
    convert: Callable[[Sequence[Path]], Arrays] | None = None
    without: Sequence[str] = ()
    note: str = ""
    labels: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    def check_converted(self, arrays: Arrays) -> None:
        """Raise if arrays made from a download are not those of the reference file, as far as can be told."""
        expected = {name: spec for name, spec in self.shapes.items() if name not in self.without}
        found = {name: (a.shape, a.dtype.name) for name, a in arrays.items()}
        for name in expected.keys() | found.keys():
            if found.get(name) != expected.get(name):
                found_here, wanted = found.get(name), expected.get(name)
                raise FileFormatError(f"{self.name}: the download gives {name} {found_here}, expected {wanted}")
        for name, counts in self.labels.items():
            values, occurrences = np.unique(arrays[name], return_counts=True)
            if (given := dict(zip(map(str, values.tolist()), occurrences.tolist(), strict=True))) != dict(counts):
                raise FileFormatError(f"{self.name}: the download has labels {name} = {given}, expected {dict(counts)}")


def shapes(texts: Sequence[str]) -> Shapes:
    """Read array names, dtypes and shapes.

    >>> shapes(["X float32[208, 60]", "y int8[208]"])
    {'X': ((208, 60), 'float32'), 'y': ((208,), 'int8')}
    """
    found: Shapes = {}
    for text in texts:
        name, spec = text.split(" ", 1)
        dtype, sides = spec.rstrip("]").split("[")
        found[name] = tuple(map(int, sides.split(","))), dtype
    return found


def _convert(converter: str, *arguments: Any, **options: Any) -> Arrays:
    """Call a converter by name; what converters need (SciPy, scikit-learn) is loaded for a download only."""
    return getattr(import_module("thalweg.data.converters"), converter)(*arguments, **options)


def _entry(
    name: str, file: str, *, arrays: Any, convert: str = "", options: Any = None, files: Any = (), **facts: Any
) -> CatalogueEntry:
    """Return the entry of a data set from what ``catalogue.toml`` says of it."""
    raw, converter = [Raw(**each) for each in files], partial(_convert, convert, **(options or {}))
    return CatalogueEntry(name, file, shapes=shapes(arrays), files=raw, convert=converter, **facts)


def _uci_facts(row: dict[str, str]) -> dict[str, Any]:
    """Return what a row of ``uci.csv`` says in the form of ``catalogue.toml``."""
    name, n, d = row["name"], row["n"], row["d"]
    leak = " exp(y) is linear in the last two features: drop them." if name == "bike" else ""
    published = {"data": row["data_sha256"], "test_mask": row["mask_sha256"]}
    return {
        "sha256": row["sha256"],
        "arrays": [f"X float32[{n}, {d}]", f"y float32[{n}]", f"test_mask bool[{n}, 10]"],
        "description": f"Regression, {n} rows, {d} features, centred but not scaled; "
        f"column k of test_mask is the test part of fold k of ten.{leak}",
        "source": "GitHub treforevans/uci_datasets; from UCI, DELVE and L. Torgo's collection",
        "licence": "collection MIT; data of UCI CC BY 4.0",
        "convert": "regression_with_masks",
        "files": [
            {"url": f"{_UCI_REGRESSION}/{name}/{part}.csv.gz", "checksum": f"sha256:{checksum}"}
            for part, checksum in published.items()
        ],
    }


def _read() -> dict[str, CatalogueEntry]:
    here = files("thalweg.data")
    facts = tomllib.loads(here.joinpath("catalogue.toml").read_text(encoding="utf-8"))
    rows = csv.DictReader(here.joinpath("uci.csv").read_text(encoding="utf-8").splitlines())
    uci = {row["name"]: _uci_facts(row) for row in rows}
    entries = {name: _entry(name, f"{name}.npz", **of_name) for name, of_name in facts.items()}
    return entries | {f"uci/{name}": _entry(f"uci/{name}", f"uci_regression/{name}.npz", **uci[name]) for name in uci}


CATALOGUE = _read()

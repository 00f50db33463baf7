"""What is known of a data set before it is read: its file, its arrays, its home."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from thalweg.errors import FileFormatError

Arrays = dict[str, np.ndarray]
Shapes = dict[str, tuple[tuple[int, ...], str]]


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
class Home:
    """Where a set is published, and how its files become our arrays.

    ``without`` names arrays of the reference file that the home does not have, such as a published split.
    ``note`` says what else differs.
    """

    files: Sequence[Raw]
    convert: Callable[[Sequence[Path]], Arrays]
    without: Sequence[str] = ()
    note: str = ""


@dataclass(frozen=True)
class CatalogueEntry:
    """A data set: ``file`` is its place in the data folder, ``labels`` how often each label occurs."""

    name: str
    file: str
    sha256: str
    shapes: Shapes
    description: str
    source: str
    licence: str
    home: Home | None = None
    labels: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    def check_converted(self, arrays: Arrays) -> None:
        """Raise if arrays made from a download are not those of the reference file, as far as can be told."""
        without = self.home.without if self.home else ()
        expected = {name: spec for name, spec in self.shapes.items() if name not in without}
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

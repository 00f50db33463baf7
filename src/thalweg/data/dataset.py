"""What :func:`thalweg.data.load` returns."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np


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

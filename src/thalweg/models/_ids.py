"""Ids of rows and columns: whole numbers, other numbers, words or dates, and the order they are numbered in."""

from dataclasses import dataclass
from datetime import date
from typing import Any

import numpy as np
from scipy.sparse import issparse

from thalweg.codec import storable
from thalweg.models._common import unmasked

_EXACT = 2**53
"""From here on floating-point numbers leave out whole ones."""

_LONG = {np.dtype(np.int64), np.dtype(np.uint64)}
"""Kinds of whole numbers that no kind holds both of."""


@storable
@dataclass(frozen=True)
class Names:
    """Ids in the order in which they are numbered.

    Examples
    --------
    >>> names = Names.of(np.array(["b", "a", "b"]), np.array(["c"]))
    >>> names.ids.tolist(), names.numbers(np.array(["c", "x"])).tolist()
    (['a', 'b', 'c'], [2, -1])
    >>> names.with_more(np.array(["A"])).numbers(np.array(["A", "c"])).tolist()
    [3, 2]
    """

    ids: np.ndarray

    @staticmethod
    def of(*parts: np.ndarray) -> "Names":
        """All ids of some arrays, sorted."""
        return Names(np.unique(joined(*parts)))

    def same(self, other: "Names") -> bool:
        """Whether both have the same ids in the same order."""
        return np.array_equal(self.ids, other.ids)

    def with_more(self, *parts: np.ndarray) -> "Names":
        """With those of some arrays that are new at the end."""
        new = np.unique(joined(*parts))
        new = new[self.numbers(new) < 0]
        return Names(joined(self.ids, new)) if len(new) else self

    def numbers(self, ids: Any) -> np.ndarray:
        """The number of each id, −1 for those that are not known."""
        ids = plain("ids", ids)
        if not len(self.ids) or not len(ids):
            return np.full(len(ids), -1)
        if np.issubdtype(ids.dtype, np.str_) != np.issubdtype(self.ids.dtype, np.str_):
            wanted = "words" if np.issubdtype(self.ids.dtype, np.str_) else "numbers"
            raise TypeError(f"ids must be {wanted} as in fit, found {ids[0].item()!r}")
        ids, foreign = _as_those(self.ids, ids)
        order = np.argsort(self.ids, kind="stable")
        place = np.minimum(np.searchsorted(self.ids, ids, sorter=order), len(order) - 1)
        found = order[place]
        return np.where((self.ids[found] == ids) & ~foreign, found, -1)


def joined(*parts: np.ndarray) -> np.ndarray:
    """All ids one after another, of one kind."""
    some = [part for part in parts if len(part)] or [parts[0]]
    if len({np.issubdtype(part.dtype, np.str_) for part in some}) > 1:
        raise TypeError("ids must be all numbers or all words, found both")
    if {part.dtype for part in some} >= _LONG:  # NumPy would make floating-point numbers of them.
        return _whole("ids", np.concatenate([part.astype(object) for part in some]))
    return np.concatenate(some)


def _as_those(known: np.ndarray, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Whole numbers as numbers of the same kind as those known, and which of them cannot be so."""
    if {known.dtype, ids.dtype} != _LONG:
        return ids, np.zeros(len(ids), bool)
    return ids.astype(known.dtype), (ids < 0) | (ids > np.iinfo(np.int64).max)


def _whole(name: str, numbers: Any) -> np.ndarray:
    """Whole numbers of 64 bits, with a sign if they need none of the bits for it."""
    low, high = (min(numbers), max(numbers)) if len(numbers) else (0, 0)
    if low < -(2**63) or high >= (2**64 if low >= 0 else 2**63):
        raise ValueError(f"{name} must be whole numbers of 64 bits, found {low} to {high}: give longer ones as words")
    return np.array(numbers, np.int64 if high < 2**63 else np.uint64)


def _numbers(name: str, ids: np.ndarray) -> np.ndarray:
    """An array of objects that are numbers as an array of numbers, whole ones exactly."""
    given = [float(one) if isinstance(one, float | np.floating) else int(one) for one in ids]
    if all(isinstance(one, int) or one.is_integer() for one in given):
        return _whole(name, [int(one) for one in given])
    return np.array(given)


def _in_one_unit(name: str, times: np.ndarray) -> np.ndarray:
    """Dates or spans of time in microseconds: as words, those of another unit would be others."""
    if np.any(np.isnat(times)):
        raise ValueError(f"{name} must not be missing, found NaT")
    found = times.astype(f"{times.dtype.kind}8[us]")
    if np.any(found != times):
        raise ValueError(f"{name} must hold dates of whole microseconds, found {times[found != times][0]}: give words")
    return found


def plain(name: str, ids: Any) -> np.ndarray:
    """Ids as an array of numbers or of words.

    Examples
    --------
    >>> plain("X", [2**63 + 1, 5]).tolist()    # NumPy alone makes both floating-point numbers
    [9223372036854775809, 5]
    """
    listed, ids = ids, np.asarray(ids)
    if ids.dtype.kind in "fU" and isinstance(listed, list | tuple):
        ids = np.array(listed, object)  # whole numbers beside others, or numbers beside words, as they are
    if np.issubdtype(ids.dtype, np.object_):
        if all(isinstance(one, str) for one in ids):
            ids = ids.astype(str)
        elif all(isinstance(one, int | float | np.integer | np.floating) and not isinstance(one, bool) for one in ids):
            ids = _numbers(name, ids)
        elif all(isinstance(one, date | np.datetime64) and getattr(one, "tzinfo", None) is None for one in ids):
            ids = np.array([np.datetime64("NaT" if one != one else one, "us") for one in ids])
        else:
            odd = next(one for one in ids if not isinstance(one, str))
            raise TypeError(f"{name} must be all numbers or all words, found {odd!r}")
    if np.issubdtype(ids.dtype, np.bool_):
        ids = ids.astype(np.int64)
    if ids.dtype.kind in "mM":
        ids = _in_one_unit(name, ids)
    if ids.dtype.kind in "SmM":
        ids = ids.astype(str)
    if np.issubdtype(ids.dtype, np.complexfloating):
        raise ValueError(f"Complex data not supported: {name} must be numbers or words, found dtype {ids.dtype}")
    if ids.dtype.kind not in "iufU":
        raise TypeError(f"{name} must be numbers or words, found dtype {ids.dtype}")
    if np.issubdtype(ids.dtype, np.floating):
        if not np.all(np.isfinite(ids)):
            raise ValueError(f"{name} must not be missing, found {ids[~np.isfinite(ids)][0]}")
        if np.any(np.abs(ids) >= _EXACT):
            raise ValueError(
                f"{name} must not be floating-point numbers of 2**53 or more, which cannot tell all ids apart, found "
                f"{ids[np.abs(ids) >= _EXACT][0]}: give whole numbers, each column in an array of its own or in a "
                "DataFrame, or words"
            )
        if np.all(ids == np.round(ids)):
            ids = ids.astype(np.int64)
    return ids


def pairs(X: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Ids of rows and columns, and the values that a sparse matrix has stored."""
    if issparse(X):
        cells = X.tocsr().tocoo()  # what is stored twice is summed, as SciPy does
        return cells.row.astype(np.int64), cells.col.astype(np.int64), cells.data
    unmasked("X", X)
    if hasattr(X, "iloc"):
        if X.shape[1] != 2:
            raise ValueError(f"X must have two columns, ids of rows and of columns, found {X.shape[1]}")
        return plain("X", X.iloc[:, 0].to_numpy()), plain("X", X.iloc[:, 1].to_numpy()), None
    if hasattr(X, "__array__"):
        X = np.asarray(X)
    if not isinstance(X, np.ndarray):
        X = list(X)
        if X and all(isinstance(pair, tuple | list) and len(pair) == 2 for pair in X):
            # Each column by itself: words beside numbers would make words of the numbers.
            rows, columns = ([pair[side] for pair in X] for side in (0, 1))
            if not any(isinstance(one, tuple | list) for one in (rows[0], columns[0])):
                return plain("X", rows), plain("X", columns), None
        try:
            X = np.array(X)
        except ValueError:
            raise ValueError(f"X must be pairs of ids, of a row and of a column, found {X[0]!r} first") from None
    if X.ndim != 2 or X.shape[1] != 2:
        raise ValueError(f"X must have shape (n, 2), ids of rows and of columns, found shape {X.shape}")
    return plain("X", X[:, 0]), plain("X", X[:, 1]), None


def singles(X: Any) -> np.ndarray:
    """Ids of rows, one each."""
    shape = np.shape(X)
    if len(shape) == 2 and shape[1] == 1:
        X, shape = np.asarray(X)[:, 0], shape[:1]
    if len(shape) != 1:
        raise ValueError(f"X must hold ids of rows, one each, where y is None, found shape {shape}: pairs come with y")
    return plain("X", X)

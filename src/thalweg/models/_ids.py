"""Ids of rows and columns: whole numbers, other numbers, words or dates, and the index of each."""

from dataclasses import dataclass
from datetime import date
from typing import Any

import numpy as np
from scipy.sparse import issparse

from thalweg.codec import storable
from thalweg.models._inputs import unmasked

_LONG = {np.dtype(np.int64), np.dtype(np.uint64)}
"""Dtypes of whole numbers that no dtype holds both of."""


@storable
@dataclass(frozen=True)
class IdIndex:
    """Ids in the order of their indices.

    Examples
    --------
    >>> index = IdIndex.of(np.array(["b", "a", "b"]), np.array(["c"]))
    >>> index.ids.tolist(), index.indices(np.array(["c", "x"])).tolist()
    (['a', 'b', 'c'], [2, -1])
    >>> index.extended(np.array(["A"])).indices(np.array(["A", "c"])).tolist()
    [3, 2]
    """

    ids: np.ndarray

    @staticmethod
    def of(*parts: np.ndarray) -> "IdIndex":
        """Index all ids of some arrays, sorted."""
        return IdIndex(np.unique(_joined(*parts)))

    def extended(self, *parts: np.ndarray) -> "IdIndex":
        """Return the index with new ids of some arrays at its end."""
        new = np.unique(_joined(*parts))
        new = new[self.indices(new) < 0]
        return IdIndex(_joined(self.ids, new)) if len(new) else self

    def indices(self, ids: Any) -> np.ndarray:
        """Return the index of each id, −1 for those that are not known."""
        ids = as_ids("ids", ids)
        if not len(self.ids) or not len(ids):
            return np.full(len(ids), -1)
        if np.issubdtype(ids.dtype, np.str_) != np.issubdtype(self.ids.dtype, np.str_):
            wanted = "words" if np.issubdtype(self.ids.dtype, np.str_) else "numbers"
            raise TypeError(f"ids must be {wanted} as in fit, found {ids[0].item()!r}")
        foreign = np.zeros(len(ids), bool)
        if {self.ids.dtype, ids.dtype} == _LONG:
            foreign, ids = (ids < 0) | (ids > np.iinfo(np.int64).max), ids.astype(self.ids.dtype)
        order = np.argsort(self.ids, kind="stable")
        nearest = order[np.minimum(np.searchsorted(self.ids, ids, sorter=order), len(order) - 1)]
        return np.where((self.ids[nearest] == ids) & ~foreign, nearest, -1)


def _joined(*parts: np.ndarray) -> np.ndarray:
    """Return all ids one after another, of one dtype."""
    filled = [part for part in parts if len(part)] or [parts[0]]
    if len({np.issubdtype(part.dtype, np.str_) for part in filled}) > 1:
        raise TypeError("ids must be all numbers or all words, found both")
    if {part.dtype for part in filled} >= _LONG:  # NumPy would make floating-point numbers of them.
        return _from_integers("ids", np.concatenate([part.astype(object) for part in filled]))
    return np.concatenate(filled)


def _from_integers(name: str, numbers: Any) -> np.ndarray:
    """Return whole numbers of 64 bits, signed if they can be."""
    low, high = (min(numbers), max(numbers)) if len(numbers) else (0, 0)
    if low < -(2**63) or high >= (2**64 if low >= 0 else 2**63):
        raise ValueError(f"{name} must be whole numbers of 64 bits, found {low} to {high}: give longer ones as words")
    return np.array(numbers, np.int64 if high < 2**63 else np.uint64)


def _from_objects(name: str, ids: np.ndarray) -> np.ndarray:
    """Return words, numbers or dates that were an array of objects, whole numbers exactly."""
    if all(isinstance(one, str) for one in ids):
        return ids.astype(str)
    if all(map(_is_number, ids)):
        numbers = [float(one) if isinstance(one, float | np.floating) else int(one) for one in ids]
        if all(float(one).is_integer() for one in numbers if isinstance(one, float)):
            return _from_integers(name, [int(one) for one in numbers])
        return np.array(numbers)
    if all(map(_is_date, ids)):
        return np.array([np.datetime64("NaT" if one != one else one, "us") for one in ids])
    odd = next(one for one in ids if not isinstance(one, str))
    raise TypeError(f"{name} must be all numbers or all words, found {odd!r}")


def _is_number(one: Any) -> bool:
    return isinstance(one, int | float | np.integer | np.floating) and not isinstance(one, bool)


def _is_date(one: Any) -> bool:
    """Whether it is a date, or a time without a zone."""
    return isinstance(one, date | np.datetime64) and getattr(one, "tzinfo", None) is None


def _from_times(name: str, times: np.ndarray) -> np.ndarray:
    """Return dates or spans of time as words, in microseconds: those of another unit would be other words."""
    if np.any(np.isnat(times)):
        raise ValueError(f"{name} must not be missing, found NaT")
    rounded = times.astype(f"{times.dtype.kind}8[us]")
    if np.any(rounded != times):
        odd = times[rounded != times][0]
        raise ValueError(f"{name} must hold dates of whole microseconds, found {odd}: give words")
    return rounded.astype(str)


def _from_floats(name: str, ids: np.ndarray) -> np.ndarray:
    """Return floating-point numbers, as whole ones if they all are."""
    if not np.all(np.isfinite(ids)):
        raise ValueError(f"{name} must not be missing, found {ids[~np.isfinite(ids)][0]}")
    if np.any(inexact := np.abs(ids) >= 2**53):
        raise ValueError(
            f"{name} must not be floating-point numbers of 2**53 or more, which cannot tell all ids apart, found "
            f"{ids[inexact][0]}: give whole numbers, each column in an array of its own or in a DataFrame, or words"
        )
    return ids.astype(np.int64) if np.all(ids == np.round(ids)) else ids


def as_ids(name: str, ids: Any) -> np.ndarray:
    """Return ids as an array of numbers or of words.

    Examples
    --------
    >>> as_ids("X", [2**63 + 1, 5]).tolist()    # NumPy alone makes both floating-point numbers
    [9223372036854775809, 5]
    """
    array = np.asarray(ids)
    if array.dtype.kind in "fU" and isinstance(ids, list | tuple):
        array = np.array(ids, object)  # NumPy has made one type of several
    if array.dtype.kind == "O":
        array = _from_objects(name, array)
    if array.dtype.kind in "bS":
        array = array.astype(np.int64 if array.dtype.kind == "b" else str)
    elif array.dtype.kind in "fmM":
        array = (_from_floats if array.dtype.kind == "f" else _from_times)(name, array)
    if array.dtype.kind == "c":
        raise ValueError(f"Complex data not supported: {name} must be numbers or words, found dtype {array.dtype}")
    if array.dtype.kind not in "iufU":
        raise TypeError(f"{name} must be numbers or words, found dtype {array.dtype}")
    return array


def id_pairs(X: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Return ids of rows and columns, and the values that a sparse matrix has stored."""
    if issparse(X):
        cells = X.tocsr().tocoo()  # what is stored twice is summed, as SciPy does
        return cells.row.astype(np.int64), cells.col.astype(np.int64), cells.data
    unmasked("X", X)
    rows, columns = _two_columns(X)
    return as_ids("X", rows), as_ids("X", columns), None


def _two_columns(X: Any) -> tuple[Any, Any]:
    if hasattr(X, "iloc"):
        if X.shape[1] != 2:
            raise ValueError(f"X must have two columns, ids of rows and of columns, found {X.shape[1]}")
        return X.iloc[:, 0].to_numpy(), X.iloc[:, 1].to_numpy()
    if not hasattr(X, "__array__"):
        X = list(X)
        pairs = bool(X) and all(isinstance(pair, tuple | list) and len(pair) == 2 for pair in X)
        if pairs and not any(isinstance(one, tuple | list) for one in X[0]):
            # Each column by itself: words beside numbers would make words of the numbers.
            return [pair[0] for pair in X], [pair[1] for pair in X]
    try:
        X = np.asarray(X)
    except ValueError:
        raise ValueError(f"X must be pairs of ids, of a row and of a column, found {X[0]!r} first") from None
    if X.ndim != 2 or X.shape[1] != 2:
        raise ValueError(f"X must have shape (n, 2), ids of rows and of columns, found shape {X.shape}")
    return X[:, 0], X[:, 1]


def single_ids(X: Any) -> np.ndarray:
    """Return ids of rows, one each."""
    shape = np.shape(X)
    if len(shape) == 2 and shape[1] == 1:
        X, shape = np.asarray(X)[:, 0], shape[:1]
    if len(shape) != 1:
        raise ValueError(f"X must hold ids of rows, one each, where y is None, found shape {shape}: pairs come with y")
    return as_ids("X", X)

"""Ratings as users give them: values and weights of pairs of ids, and side information by id."""

import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from thalweg import arguments
from thalweg.completion import Ratings
from thalweg.models._ids import IdIndex, as_ids, id_pairs
from thalweg.models._inputs import check_sizes, row_weights, unmasked

MIN_RATINGS = 20
"""Ratings below which neither their noise nor their range is known. At twice as many, warnings would come too often."""

MAX_COUNT = 100_000
"""The largest count: with more, single precision loses what other cells say."""


class GivenRatings(NamedTuple):
    """Ids of rows and columns, values, and weights or None."""

    rows: np.ndarray
    columns: np.ndarray
    values: np.ndarray
    weights: np.ndarray | None

    def indexed(self, rows: IdIndex, columns: IdIndex) -> Ratings:
        """Return the ratings with indices in place of ids."""
        at_row, at_column = rows.indices(self.rows).astype(np.int32), columns.indices(self.columns).astype(np.int32)
        return Ratings(at_row, at_column, self.values, self.weights, (len(rows.ids), len(columns.ids)))


def checked_values(name: str, values: Any, count: int) -> np.ndarray:
    """Return finite numbers, one for each pair."""
    unmasked(name, values)
    numbers = np.asarray(values)
    if np.issubdtype(numbers.dtype, np.object_):
        try:
            numbers = numbers.astype(np.float64)
        except (TypeError, ValueError):
            raise ValueError(f"{name} must hold numbers, found {numbers.reshape(-1)[0]!r}") from None
    if numbers.dtype.kind not in "biuf":
        raise ValueError(f"{name} must hold numbers, found dtype {numbers.dtype}")
    numbers = numbers.astype(np.float64)
    if numbers.ndim == 2 and numbers.shape[1] == 1:
        numbers = numbers[:, 0]
    if numbers.shape != (count,):
        raise ValueError(f"{name} must have shape ({count},), one for each pair of ids, found shape {numbers.shape}")
    if not np.all(np.isfinite(numbers)):
        index = int(np.flatnonzero(~np.isfinite(numbers))[0])
        raise ValueError(f"{name} must hold finite numbers, found {numbers[index]} at index {index}")
    check_sizes(name, numbers)
    return numbers


def checked_ratings(X: Any, y: Any, sample_weight: Any, implicit: bool, empty: bool = False) -> GivenRatings:
    """Return ratings of positive weight, or raise an error that says what is wrong with them."""
    rows, columns, stored = id_pairs(X)
    if stored is not None and y is not None:
        raise ValueError("y must be None where X is sparse: the ratings are its stored entries")
    if not len(rows) and not empty:
        raise ValueError("X must hold at least one rating, found 0 sample(s)")
    if stored is None and y is None and len(rows) and not implicit:
        raise ValueError("fit requires y to be passed, but the target y is None: pass the ratings, one for each pair")
    given = y if stored is None else stored
    values = checked_values("y" if stored is None else "X", np.ones(len(rows)) if given is None else given, len(rows))
    if implicit:
        _check_counts(values, sample_weight)
    weights = None if sample_weight is None else row_weights(sample_weight, rows)
    if weights is None:
        return GivenRatings(rows, columns, values, None)
    return GivenRatings(*(part[weights > 0] for part in (rows, columns, values, weights)))


def _check_counts(values: np.ndarray, sample_weight: Any) -> None:
    if sample_weight is not None:
        raise ValueError("sample_weight must be None with feedback='implicit': counts are weights")
    if np.any(values <= 0):
        raise ValueError(f"y must hold positive counts with feedback='implicit', found {values.min():g}")
    if np.any(values > MAX_COUNT):
        raise ValueError(
            f"y must hold counts of at most {MAX_COUNT:,} with feedback='implicit', found {values.max():g}: a "
            "count is a weight, and such a one leaves nothing to the others. Take np.log1p(y)"
        )


def rating_range(bounds: Any, values: np.ndarray) -> tuple[float, float]:
    """Return the least and the largest rating there is.

    Examples
    --------
    >>> rating_range("auto", np.arange(40.0) % 5), rating_range((1, 5), np.array([2.0, 4.0]))
    ((0.0, 4.0), (1.0, 5.0))
    >>> rating_range("auto", np.linspace(0, 1, 40))    # no scale: most values came once
    (-inf, inf)
    """
    if bounds is None:
        return -np.inf, np.inf
    if isinstance(bounds, str):
        is_scale = len(values) >= max(MIN_RATINGS, 2 * len(np.unique(values)))
        return (float(values.min()), float(values.max())) if is_scale else (-np.inf, np.inf)
    if len(bounds) != 2:
        raise ValueError(f"bounds must be 'auto', None or a pair (least, largest), found {bounds!r}")
    low, high = (arguments.real("bounds", bound) for bound in bounds)
    if not low < high:
        raise ValueError(f"bounds must be a pair (least, largest), found {bounds!r}")
    if values.min() < low or values.max() > high:
        raise ValueError(f"y must be within bounds={bounds!r}, found {values.min():g} to {values.max():g}")
    return low, high


def warn_of_poor_ratings(ratings: Ratings, implicit: bool) -> None:
    """Warn where intervals cannot be believed: hardly any ratings, or a table that was doubled."""
    count = len(ratings.values)
    if count < MIN_RATINGS:
        warnings.warn(f"{count} rating(s) hardly tell how noisy ratings are: intervals are wide", stacklevel=5)
        return
    order = np.lexsort((ratings.values, ratings.columns, ratings.rows))
    copies = int(np.sum(np.all([np.diff(part[order]) == 0 for part in ratings[:3]], axis=0)))
    if 2 * copies >= count and not implicit:  # what was done again was done again
        warnings.warn(
            f"{copies} of {count} ratings are copies of another one of the same cell, which count as further ratings "
            "without noise: drop them if they are there by mistake",
            stacklevel=5,
        )


def warn_of_repeated_ratings(old: Ratings, new: Ratings) -> None:
    """Warn if most new ratings repeat old ones."""
    old_cells, new_cells = (of.rows.astype(np.int64) * new.shape[1] + of.columns for of in (old, new))
    order = np.argsort(old_cells, kind="stable")
    nearest = order[np.searchsorted(old_cells, new_cells, sorter=order).clip(max=len(order) - 1)]
    repeated = int(np.sum((old_cells[nearest] == new_cells) & (old.values[nearest] == new.values)))
    if repeated >= max(MIN_RATINGS, len(new.values) / 2):
        warnings.warn(
            f"{repeated} of {len(new.values)} new ratings are of cells that had the same value before: each counts as "
            "a rating of its own, by which the noise looks smaller than it is. Leave out what was learned before",
            stacklevel=4,
        )


class SideInformation(NamedTuple):
    """Vectors by id."""

    ids: np.ndarray
    vectors: np.ndarray

    def matrix(self, ids: np.ndarray) -> np.ndarray:
        """Return a line for each id, NaN for those without a vector."""
        indices = IdIndex(self.ids).indices(ids)
        lines = np.full((len(ids), self.vectors.shape[1]), np.nan)
        lines[indices >= 0] = self.vectors[indices[indices >= 0]]
        return lines


def side_information(name: str, features: Any, ids: np.ndarray, width: int | None = None) -> SideInformation:
    """Return side information in any of its forms, or raise an error that says what is wrong with it."""
    if features is None:
        return SideInformation(ids[:0], np.zeros((0, width or 0)))
    known, vectors = _ids_and_vectors(name, features, ids)
    known = as_ids(f"ids of {name}", known)
    try:
        vectors = np.asarray(vectors).astype(np.float64)
    except (TypeError, ValueError):
        raise ValueError(f"{name} must hold numbers: encode words first, say with OneHotEncoder") from None
    if vectors.ndim != 2 or len(vectors) != len(known):
        raise ValueError(f"{name} must have a vector for each of {len(known)} ids, found shape {vectors.shape}")
    if not np.all(np.isfinite(vectors)):
        raise ValueError(f"{name} must hold finite numbers; leave out the ids of which nothing is known")
    check_sizes(name, vectors)
    if len(np.unique(known)) != len(known):
        raise ValueError(f"{name} must have one vector an id, found an id twice")
    if width is not None and vectors.shape[1] != width:
        raise ValueError(f"{name} must have {width} numbers an id as in fit, found {vectors.shape[1]}")
    return SideInformation(known, vectors)


def _ids_and_vectors(name: str, features: Any, ids: np.ndarray) -> tuple[Any, Any]:
    if hasattr(features, "iloc"):
        return features.index.to_numpy(), features.to_numpy()
    if isinstance(features, Mapping):
        lengths = {np.shape(vector) for vector in features.values()}
        if len(lengths) > 1:
            raise ValueError(f"{name} must have vectors of one length, found {sorted(map(str, lengths))}")
        return list(features), np.array([np.asarray(vector) for vector in features.values()])
    if isinstance(features, tuple) and len(features) == 2:
        return features
    vectors, known = np.asarray(features), np.unique(ids)
    if len(ids) and (ids.dtype.kind not in "iu" or known[0] < 0 or known[-1] >= len(vectors)):
        raise ValueError(
            f"{name} as an array has a line for each of the ids 0 to {len(vectors) - 1}, found the id "
            f"{known[-1].item()!r}: pass a pair (ids, array), a dict or a DataFrame"
        )
    return np.arange(len(vectors)), vectors

"""Ratings as users give them: values and weights of pairs of ids, side information by id."""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from thalweg import arguments
from thalweg.codec import storable
from thalweg.completion import Ratings
from thalweg.models._common import row_weights, unmasked
from thalweg.models._ids import Names, pairs, plain

_HARDLY_ANY, _COPIES = 20, 0.1
"""Ratings below which noise is hardly known, and the share of copies that looks like a mistake."""

_MOST_COUNTED = 100_000
"""The largest count: with more, single precision cannot tell what other cells say."""

_SIZES = (1e-100, 1e100)
"""Between which numbers are, or 0: squares of others could be 0 or overflow."""

_SAME_AGAIN = 20
"""New ratings that repeat old ones, from which on one is told."""

_ANEW = 1.5
"""How many times the ratings of the last fit there are when partial_fit makes another: the cost of all fits together is
then at most three times that of the last one."""


class Given(NamedTuple):
    """Ids of rows and columns, values, and weights or None."""

    rows: np.ndarray
    columns: np.ndarray
    values: np.ndarray
    weights: np.ndarray | None


@storable
@dataclass(frozen=True)
class Kept:
    """All ratings so far by numbers of rows and columns, with side information, for a fit anew.

    Examples
    --------
    >>> one = Ratings(np.array([0]), np.array([0]), np.array([3.0]), None, (1, 1))
    >>> kept = Kept.of(one, np.zeros((1, 0)), np.zeros((1, 0)))
    >>> more = kept.with_more(one._replace(rows=np.array([1]), shape=(2, 1)), np.zeros((1, 0)), np.zeros((0, 0)))
    >>> more.ratings.shape, more.due
    ((2, 1), True)
    """

    rows: np.ndarray
    columns: np.ndarray
    values: np.ndarray
    weights: np.ndarray
    """Empty where none were given."""
    row_side: np.ndarray
    column_side: np.ndarray
    fitted: int
    """Ratings that the last fit had."""

    @staticmethod
    def of(ratings: Ratings, row_side: np.ndarray, column_side: np.ndarray) -> "Kept":
        """Those of a fit."""
        weights = np.zeros(0) if ratings.weights is None else ratings.weights
        places = ratings.rows.astype(np.int32), ratings.columns.astype(np.int32)
        return Kept(*places, ratings.values, weights, row_side, column_side, len(ratings.values))

    def check_stored(self) -> None:
        """Refuse ratings of rows and columns that there are not."""
        counted = (len(self.weights),) if len(self.weights) else ()
        if len({len(self.rows), len(self.columns), len(self.values), *counted}) > 1:
            raise ValueError(f"{len(self.rows)} rows and {len(self.columns)} columns of {len(self.values)} ratings")
        for name, numbers, side in (("row", self.rows, self.row_side), ("column", self.columns, self.column_side)):
            if not np.issubdtype(numbers.dtype, np.integer) or np.any((numbers < 0) | (numbers >= len(side))):
                raise ValueError(f"ratings of a {name} beyond the {len(side)} that there are")
        if not np.all(np.isfinite(self.values)):
            raise ValueError("ratings that are no finite numbers")

    @property
    def ratings(self) -> Ratings:
        """As a fit takes them."""
        shape = len(self.row_side), len(self.column_side)
        return Ratings(self.rows, self.columns, self.values, self.weights if len(self.weights) else None, shape)

    @property
    def due(self) -> bool:
        """Whether there are so many more than the last fit had that it is time for another."""
        return len(self.values) >= _ANEW * self.fitted

    @property
    def fitted_whole(self) -> "Kept":
        """As of a fit to all of them."""
        return replace(self, fitted=len(self.values))

    def _repeated_by(self, more: "Kept") -> int:
        """How many ratings are of a cell that has that value."""
        width = int(max(self.columns.max(initial=0), more.columns.max(initial=0))) + 1
        known, asked = (one.rows.astype(np.int64) * width + one.columns for one in (self, more))
        order = np.argsort(known, kind="stable")
        nearest = order[np.searchsorted(known, asked, sorter=order).clip(max=len(known) - 1)]
        return int(np.sum((known[nearest] == asked) & (self.values[nearest] == more.values)))

    def with_more(
        self, ratings: Ratings, row_side: np.ndarray, column_side: np.ndarray, explicit: bool = False
    ) -> "Kept":
        """With further ratings, and the side information of rows and columns that come with them.

        Of ``explicit`` ones it is told if they are old ones again.
        """
        more, weights = Kept.of(ratings, row_side, column_side), self.weights
        again = self._repeated_by(more) if explicit else 0
        if again >= _SAME_AGAIN and again > len(more.values) / 2:
            warnings.warn(
                f"{again} of {len(more.values)} new ratings are of cells that had the same value before: each counts "
                "as a rating of its own, by which the noise looks smaller than it is. Leave out what was learned "
                "before",
                stacklevel=5,
            )
        if len(self.weights) or len(more.weights):
            own, its = (one.weights if len(one.weights) else np.ones(len(one.values)) for one in (self, more))
            weights = np.concatenate([own, its])
        return Kept(
            np.concatenate([self.rows, more.rows]),
            np.concatenate([self.columns, more.columns]),
            np.concatenate([self.values, more.values]),
            weights,
            np.vstack([self.row_side, row_side]),
            np.vstack([self.column_side, column_side]),
            self.fitted,
        )


def checked_values(name: str, values: Any, count: int) -> np.ndarray:
    """Finite numbers, one for each pair."""
    unmasked(name, values)
    found = np.asarray(values)
    if np.issubdtype(found.dtype, np.object_):
        try:
            found = found.astype(np.float64)
        except (TypeError, ValueError):
            raise ValueError(f"{name} must hold numbers, found {found.reshape(-1)[0]!r}") from None
    if found.dtype.kind not in "biuf":
        raise ValueError(f"{name} must hold numbers, found dtype {found.dtype}")
    found = found.astype(np.float64)
    if found.ndim == 2 and found.shape[1] == 1:
        found = found[:, 0]
    if found.shape != (count,):
        raise ValueError(f"{name} must have shape ({count},), one for each pair of ids, found shape {found.shape}")
    if not np.all(np.isfinite(found)):
        where = int(np.flatnonzero(~np.isfinite(found))[0])
        raise ValueError(f"{name} must hold finite numbers, found {found[where]} at index {where}")
    _check_sizes(name, found)
    return found


def _check_sizes(name: str, values: np.ndarray) -> None:
    largest = float(np.max(np.abs(values), initial=0.0))
    if largest and not _SIZES[0] <= largest <= _SIZES[1]:
        raise ValueError(f"{name} must hold numbers of sizes from 1e-100 to 1e100, found {largest:g}: take other units")


def checked_ratings(X: Any, y: Any, sample_weight: Any, implicit: bool, empty: bool = False) -> Given:
    """Ratings as they are used, or an error that says what is wrong with them."""
    rows, columns, stored = pairs(X)
    if stored is not None and y is not None:
        raise ValueError("y must be None where X is sparse: the ratings are its stored entries")
    if y is None and stored is None and not implicit and not (empty and not len(rows)):
        raise ValueError("fit requires y to be passed, but the target y is None: pass the ratings, one for each pair")
    given = stored if stored is not None else np.ones(len(rows)) if y is None else y
    values = checked_values("y" if stored is None else "X", given, len(rows))
    if not len(rows) and not empty:
        raise ValueError("X must hold at least one rating, found 0 sample(s)")
    if implicit and sample_weight is not None:
        raise ValueError("sample_weight must be None with feedback='implicit': counts are weights")
    if implicit and np.any(values <= 0):
        raise ValueError(f"y must hold positive counts with feedback='implicit', found {values.min():g}")
    if implicit and np.any(values > _MOST_COUNTED):
        raise ValueError(
            f"y must hold counts of at most {_MOST_COUNTED:,} with feedback='implicit', found {values.max():g}: a "
            "count is a weight, and such a one leaves nothing to the others. Take np.log1p(y)"
        )
    weights = None if sample_weight is None else row_weights(sample_weight, rows)
    if weights is not None:
        kept = weights > 0
        rows, columns, values, weights = rows[kept], columns[kept], values[kept], weights[kept]
    return Given(rows, columns, values, weights)


def numbered(given: Given, rows: Names, columns: Names) -> Ratings:
    """Ratings by numbers in place of ids."""
    shape = len(rows.ids), len(columns.ids)
    return Ratings(rows.numbers(given.rows), columns.numbers(given.columns), given.values, given.weights, shape)


def rating_range(bounds: Any, values: np.ndarray) -> tuple[float, float]:
    """The least and the largest rating there is.

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
        scale = len(values) >= max(_HARDLY_ANY, 2 * len(np.unique(values)))
        return (float(values.min()), float(values.max())) if scale else (-np.inf, np.inf)
    if len(bounds) != 2:
        raise ValueError(f"bounds must be 'auto', None or a pair (least, largest), found {bounds!r}")
    low, high = (arguments.real("bounds", bound) for bound in bounds)
    if not low < high:
        raise ValueError(f"bounds must be a pair (least, largest), found {bounds!r}")
    if values.min() < low or values.max() > high:
        raise ValueError(f"y must be within bounds={bounds!r}, found {values.min():g} to {values.max():g}")
    return low, high


def warn_of_poor_ratings(given: Given, implicit: bool) -> None:
    """Say where intervals cannot be believed: hardly any ratings, or a table that was doubled."""
    count = len(given.values)
    if count < _HARDLY_ANY:
        message = f"{count} rating(s) hardly tell how noisy ratings are: intervals are wide"
        warnings.warn(message, UserWarning, stacklevel=6)
        return
    order = np.lexsort((given.values, given.columns, given.rows))
    same = [np.diff(np.unique(part, return_inverse=True)[1][order]) == 0 for part in given[:3]]
    copies = int(np.sum(np.all(same, axis=0)))
    if copies > _COPIES * count and not implicit:  # what was done again was done again
        warnings.warn(
            f"{copies} of {count} ratings are copies of another one of the same cell, which count as further ratings "
            "without noise: drop them if they are there by mistake",
            UserWarning,
            stacklevel=6,
        )


class SideInformation(NamedTuple):
    """Vectors by id."""

    ids: np.ndarray
    vectors: np.ndarray

    @property
    def width(self) -> int:
        """Numbers of a vector."""
        return self.vectors.shape[1]

    def matrix(self, ids: np.ndarray) -> np.ndarray:
        """A line for each id, NaN for those without a vector."""
        numbers = Names(self.ids).numbers(ids)
        found = np.full((len(ids), self.width), np.nan)
        found[numbers >= 0] = self.vectors[numbers[numbers >= 0]]
        return found


def side_information(name: str, features: Any, ids: np.ndarray, width: int | None = None) -> SideInformation:
    """Side information in any of its forms, or an error that says what is wrong with it."""
    if features is None:
        return SideInformation(ids[:0], np.zeros((0, width or 0)))
    if hasattr(features, "iloc"):
        known, vectors = features.index.to_numpy(), features.to_numpy()
    elif isinstance(features, Mapping):
        widths = {np.shape(vector) for vector in features.values()}
        if len(widths) > 1:
            raise ValueError(f"{name} must have vectors of one length, found {sorted(map(str, widths))}")
        known, vectors = list(features), np.array([np.asarray(vector) for vector in features.values()])
    elif isinstance(features, tuple) and len(features) == 2:
        known, vectors = features
    else:
        vectors = np.asarray(features)
        known = np.arange(len(vectors))
        known_ids = np.unique(ids)
        if len(ids) and (ids.dtype.kind not in "iu" or known_ids[0] < 0 or known_ids[-1] >= len(vectors)):
            raise ValueError(
                f"{name} as an array has a line for each of the ids 0 to {len(vectors) - 1}, found the id "
                f"{known_ids[-1].item()!r}: pass a pair (ids, array), a dict or a DataFrame"
            )
    known = plain(f"ids of {name}", known)
    try:
        vectors = np.asarray(vectors).astype(np.float64)
    except (TypeError, ValueError):
        raise ValueError(f"{name} must hold numbers: encode words first, say with OneHotEncoder") from None
    if vectors.ndim != 2 or len(vectors) != len(known):
        raise ValueError(f"{name} must have a vector for each of {len(known)} ids, found shape {vectors.shape}")
    if not np.all(np.isfinite(vectors)):
        raise ValueError(f"{name} must hold finite numbers; leave out the ids of which nothing is known")
    _check_sizes(name, vectors)
    if len(np.unique(known)) != len(known):
        raise ValueError(f"{name} must have one vector an id, found an id twice")
    if width is not None and vectors.shape[1] != width:
        raise ValueError(f"{name} must have {width} numbers an id as in fit, found {vectors.shape[1]}")
    return SideInformation(known, vectors)

"""Examples of which only a batch at a time is made dense and converted: arrays, memory maps, sparse matrices."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy.sparse

from thalweg.machines.functional import Batch
from thalweg.padding import padded

# Rows whose median is the offset of all.
_MIDDLE_ROWS = 255

_STRIP, _DIGITS, _COMPARED = 8192, 9, 131_072
"""Rows that are compared at a time, digits of what they are compared by, and the most that are: it takes a pass."""

_LOOKED_AT = 4096
"""Rows that are compared first: of as many of 131,072 that are there twice, some sixty meet their copy."""

_FAR = 5.0
"""Standard deviations from the middle to where a value is far out."""

_BESIDE, _FEWEST_BESIDE = 10.0, 4
"""A code is so many times further from other values than they are from each other, which has so many with it."""

_GROUPS = 200
"""Of fewer places a slice would leave out whole regions."""

_EXTREME = 2.0**40
"""Features that are larger than this, or all of them smaller than its inverse, have squares that float32 may lose."""

_APART = 0.05
"""Where rows are copied, the most that have no copy, of all, and places with several values, of all of them."""


@dataclass(frozen=True)
class Rows:
    """Features, targets and weights of examples.

    ``targets`` are rows of numbers, or, where ``table`` is given, labels: the target of label c is row c of the table.
    Where ``places`` are given, example i has the features of row places[i] of ``x``. Targets that are numbers are in
    units of ``scale``. Features are those of ``x`` less ``offset``, in float64, before they are cast to anything less;
    values further from 0 than ``far``, where it is given, grow as logarithms from there on; where there is a ``map``,
    features are products with it.

    Examples
    --------
    >>> rows = Rows(np.array([[0], [1], [2]]), np.array([1, 0, 1]), np.ones(3), table=np.eye(2))
    >>> batch = rows.batch(np.array([2]), size=2, dtype=np.float32)
    >>> batch.y
    array([[0., 1.],
           [1., 0.]], dtype=float32)
    >>> batch.weights  # the second row is padding
    array([1., 0.], dtype=float32)
    """

    x: Any
    targets: np.ndarray
    weights: np.ndarray
    table: np.ndarray | None = None
    places: np.ndarray | None = None
    scale: Any = 1.0
    offset: np.ndarray | None = None
    map: np.ndarray | None = None
    far: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.weights)

    @property
    def outputs(self) -> int:
        """The number of columns of a target."""
        return self._any_target().shape[1]

    @property
    def dimension(self) -> int:
        """The number of features."""
        return int(self.x.shape[1] if self.map is None else self.map.shape[1])

    @property
    def counts(self) -> np.ndarray | None:
        """The weight of each label; None where targets are numbers."""
        return None if self.table is None else np.bincount(self.targets, self.weights, len(self.table))

    def features(self, indices: Any, dtype: Any) -> np.ndarray:
        """Features of chosen rows, dense, less the offset and mapped."""
        return dense("X", self._read(indices), dtype, *self.frame)

    @property
    def frame(self) -> tuple[np.ndarray | None, ...]:
        """The offset, the map and how far is far, as :func:`dense` takes them."""
        return self.offset, self.map, self.far

    def framed(self, offset: np.ndarray | None, map: np.ndarray | None = None, far: np.ndarray | None = None) -> "Rows":
        """The rows in another frame."""
        return replace(self, offset=offset, map=map, far=far)

    def middle(self) -> np.ndarray:
        """A point amid the rows: of each feature the median of some hundred rows, as it is in one of them.

        A median, since an extreme row must not take it along; and so a feature that is mostly zero keeps its zeros.

        Examples
        --------
        >>> Rows(np.array([[7.0, 0.0], [9.0, 0.0], [8.0, 1e9]]), np.zeros((3, 1)), np.ones(3)).middle()
        array([8., 0.])
        """
        there = dense("X", self._read(self._some()), np.float64)
        found = np.partition(there, len(there) // 2, axis=0)[len(there) // 2]
        # What float32 cannot hold is refused later, with its size.
        return np.where(np.abs(found) < np.finfo(np.float32).max, found, 0.0)

    def reach(self) -> np.ndarray | None:
        """How far from the offset a value of each feature is far: five standard deviations, outermost ones aside.

        New values may be further out than any that were learned from, and kernels know nothing there. Nothing is far
        where most values are the same: the others are no outliers. A code, such as −999 for what is missing, is left
        aside as well: beside it the others would all be one. None where nothing is far.

        Examples
        --------
        >>> x = np.stack([np.linspace(-1, 1, 255), np.arange(255) == 9], axis=1)
        >>> Rows(x, np.zeros((255, 1)), np.ones(255), offset=np.zeros(2)).reach().round(1)
        array([2.9, inf])
        """
        there = self.features(self._some(), np.float64)
        ordered = np.sort(there, axis=0)
        with np.errstate(over="ignore", invalid="ignore"):
            low, high = np.quantile(there, [0.01, 0.99], axis=0)
            # Of fewer than a hundred rows the hundredth is none: one at either end is left aside all the same.
            low, high = np.fmax(low, ordered[1 % len(there)]), np.fmin(high, ordered[-2 % len(there)])
            far = _FAR * np.std(np.clip(there, np.minimum(low, high), np.maximum(low, high)), axis=0)
        for feature, column in enumerate(there.T):
            if (rest := _but_a_code(column)) is not None:
                far[feature] = _FAR * np.std(rest)
        if np.any(lost := ~(far < _EXTREME**2)):
            size = np.max(np.abs(there[:, lost]))
            raise ValueError(f"X must fit in float32, found a feature of values of {size:.0e} beside far smaller ones")
        far[(far == 0) | (np.mean(there == np.median(there, axis=0), axis=0) > 0.5)] = np.inf
        return far if np.any(np.isfinite(far)) else None

    def unit(self) -> float:
        """What to divide features by so that float32 holds their squares: a power of two, 1 but for extreme sizes.

        Examples
        --------
        >>> rows = Rows(np.array([[0.0], [1.0], [2.0]]), np.zeros((3, 1)), np.ones(3))
        >>> rows.unit(), replace(rows, x=2.0**99 * rows.x).unit() / 2.0**99
        (1.0, 1.0)
        """
        there = dense("X", self._read(self._some()), np.float64)
        with np.errstate(over="ignore"):
            away = np.abs(there - np.median(there, axis=0))
        # Values far out are squashed later, and features of which most are the same say nothing if others do.
        sizes = np.quantile(away, 0.9, axis=0, method="lower")
        sizes = sizes if np.any(sizes) else np.max(away, axis=0)
        known, size = sizes[sizes > 0], float(min(np.max(sizes), np.finfo(float).max))
        if size == 0 or 1 / _EXTREME <= size <= _EXTREME:
            return 1.0
        if size > 1 and np.min(known) / size < np.finfo(np.float32).tiny:
            raise ValueError(f"X must fit in float32, found features from {np.min(known):.0e} to {size:.0e} in size")
        return float(2.0 ** np.floor(np.log2(size)))

    def _some(self) -> np.ndarray:
        return np.unique(np.linspace(0, len(self) - 1, _MIDDLE_ROWS).astype(int))

    def targets_of(self, indices: Any) -> np.ndarray:
        """Targets of chosen rows."""
        targets = self.targets[indices]
        return targets if self.table is None else self.table[targets]

    def subset(self, indices: np.ndarray) -> "Rows":
        """Chosen rows, as they are."""
        return replace(
            self,
            x=self._read(indices),
            targets=self.targets[indices],
            weights=self.weights[indices],
            places=None,
        )

    def shuffled(self, seed: Any) -> np.ndarray:
        """A random order. Where rows are copied, those of one row follow each other.

        So a slice of it has all of them or none, and says how rows fare that are new: a machine knows copies of what it
        has learned by heart. Rows are copied if all but a few have copies, or if there are any and some feature has a
        value of its own in nearly every row. Values that differ at one place are no copies, and where rows meet by
        chance, new ones will too. More than 131,072 rows are not compared.

        Examples
        --------
        >>> x = np.tile(np.arange(300.0), 2)[:, None]
        >>> found = Rows(x, x, np.ones(600)).shuffled(0)
        >>> bool(np.all(x[found[::2]] == x[found[1::2]]))
        True
        """
        order = np.random.default_rng(seed).permutation(len(self))
        if len(self) > _COMPARED:
            return order
        # With copies of nearly all rows, some of those looked at first would be of one another.
        some = order[:_LOOKED_AT]
        if len(np.unique(self._places(some))) == len(some):
            return order
        place = self._places(np.arange(len(self)))
        times = np.bincount(place)
        copied = np.sum(times == 1) <= _APART * len(self) or self._hardly_meet(some)
        if len(times) < _GROUPS or self.meet(np.arange(len(self)), place) or not copied:
            return order
        first = np.full(len(times), len(self))
        np.minimum.at(first, place[order], np.arange(len(self)))
        return order[np.argsort(first[place[order]], kind="stable")]

    def meet(self, indices: np.ndarray, place: np.ndarray) -> bool:
        """Whether rows meet by chance at places with numbers 0, 1, …: they have several targets there, unlike copies.

        Examples
        --------
        >>> y = np.array([1, 0, 0, 1])
        >>> rows = Rows(np.array([[0.0], [0.0], [1.0], [1.0]]), y, np.ones(4), table=np.eye(2))
        >>> rows.meet(np.arange(4), np.array([0, 0, 1, 1])), rows.meet(np.arange(4), y)
        (True, False)
        """
        seen = self.targets[indices]
        seen = seen if self.table is not None else seen @ np.arange(1.0, seen.shape[1] + 1)
        values = np.unique(seen, return_inverse=True)[1]
        pairs = len(np.unique(place * (np.max(values) + 1) + values))
        return bool(pairs > (1 + _APART) * (np.max(place) + 1))

    def _hardly_meet(self, indices: np.ndarray) -> bool:
        """Whether a feature has a value of its own in nearly every one of some rows, but for copies."""
        different = np.unique(self.features(indices, np.float64), axis=0)
        values = max(len(np.unique(column)) for column in different.T)
        return values >= (1 - _APART) * len(different)

    def _places(self, indices: np.ndarray) -> np.ndarray:
        """A number for each of some rows, the same for those at one place.

        By products with one vector, in units in which features are alike.
        """
        spread = np.std(self.features(slice(0, _LOOKED_AT), np.float64), axis=0)
        weights = np.random.default_rng(0).normal(size=self.dimension) / np.where(spread > 0, spread, 1.0)
        strips = [indices[first : first + _STRIP] for first in range(0, len(indices), _STRIP)]
        with np.errstate(all="ignore"):
            along = np.concatenate([self.features(strip, np.float64) @ weights for strip in strips])
        return _alike(along)

    def merged(self, chosen: np.ndarray, dtype: Any) -> "Rows":
        """Chosen rows, dense and in their frame: those that are the same as one, of their weight and mean target.

        To squares they are what all of them are.

        Examples
        --------
        >>> rows = Rows(np.array([[3.0], [5.0], [3.0]]), np.array([[1.0], [0.0], [2.0]]), np.ones(3))
        >>> one = rows.merged(np.arange(3), float)
        >>> one.x.tolist(), one.targets.tolist(), one.weights.tolist()
        ([[3.0], [5.0]], [[1.5], [0.0]], [2.0, 1.0])
        """
        x, weights, targets = self.features(chosen, dtype), self.weights[chosen], self.targets_of(chosen)
        first, place = same(x)
        order = np.argsort(first)
        total = np.bincount(place, weights)
        means = np.stack([np.bincount(place, weights * column) for column in targets.T], axis=1) / total[:, None]
        return Rows(x[first[order]], means[order], total[order], scale=self.scale)

    def misses(self, found: np.ndarray) -> float:
        """The part of labels that predictions miss, or the root of their mean squared error in units of users."""
        if self.table is not None:
            return float(np.average(labels(found) != self.targets, weights=self.weights))
        errors = (found - self.targets) * self.scale
        return float(np.sqrt(np.average(np.sum(errors**2, axis=1), weights=self.weights)))

    def batch(self, indices: np.ndarray, size: int, dtype: Any) -> Batch:
        """Return chosen rows as a batch of ``size`` rows: those too many are padding of weight 0."""
        x: Any = padded(self.features(indices, dtype), size)
        # A padding row needs a target that its loss is defined at.
        y = np.concatenate([self.targets_of(indices), np.repeat(self._any_target(), size - len(indices), axis=0)])
        weights = padded(self.weights[indices], size)
        return Batch(x, dense("y", y, dtype), dense("sample_weight", weights, dtype))

    def stack(self, indices: np.ndarray, size: int, dtype: Any) -> Batch:
        """Return batches of ``size`` rows in one, with the batches as the first axis; the last one may be padded."""
        batches = [self.batch(indices[i : i + size], size, dtype) for i in range(0, len(indices), size)]
        x, y, weights = (np.stack(parts) for parts in zip(*batches, strict=True))
        return Batch(x, y, weights)  # type: ignore[arg-type]

    def _read(self, indices: Any) -> Any:
        return self.x[indices if self.places is None else self.places[indices]]

    def _any_target(self) -> np.ndarray:
        return (self.targets if self.table is None else self.table)[:1]


def same(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The first row of each kind, and for each row which of those it is equal to.

    Examples
    --------
    >>> first, place = same(np.array([[3.0, 1.0], [5.0, 0.0], [3.0, 1.0]]))
    >>> first[place].tolist()
    [0, 1, 0]
    """
    with np.errstate(all="ignore"):
        place = _alike(x @ np.random.default_rng(0).normal(size=x.shape[1]))
    first = _first(place)
    apart = np.any(x != x[first[place]], axis=1)  # what is alike along one direction may differ
    place[apart] = len(first) + np.arange(np.sum(apart))
    return _first(place), place


def _but_a_code(column: np.ndarray) -> np.ndarray | None:
    """The values without the lowest or the highest, if that is there more than once and far from all others.

    Examples
    --------
    >>> _but_a_code(np.array([-999.0, 3.0, 1.0, -999.0, 2.0]))
    array([3., 1., 2.])
    """
    values, times = np.unique(column, return_counts=True)
    if len(values) < _FEWEST_BESIDE:
        return None
    for code, rest in ((0, values[1:]), (-1, values[:-1])):
        with np.errstate(over="ignore"):
            if times[code] > 1 and abs(values[code] - rest[code]) > _BESIDE * np.ptp(rest):
                return column[column != values[code]]
    return None


def _first(place: np.ndarray) -> np.ndarray:
    """Where each of the numbers 0, 1, … is for the first time."""
    found = np.zeros(np.max(place, initial=-1) + 1, int)
    found[place[::-1]] = np.arange(len(place))[::-1]  # of several that are put in one place the last stays
    return found


def _alike(along: np.ndarray) -> np.ndarray:
    """A number for each value, the same for those that differ by rounding alone."""
    with np.errstate(all="ignore"):
        rounded = np.round(along / np.max(np.abs(along)), _DIGITS)
    return np.ravel(np.unique(rounded, return_inverse=True)[1])


def labels(found: np.ndarray) -> np.ndarray:
    """The labels of predictions: of two the second where the only column is positive, else the largest column's.

    Examples
    --------
    >>> labels(np.array([[-1.0], [2.0]])), labels(np.array([[0.1, 0.3, 0.2]]))
    (array([0, 1]), array([1]))
    """
    return (found[:, 0] > 0).astype(int) if found.shape[1] == 1 else np.argmax(found, axis=1)


def dense(
    name: str,
    array: Any,
    dtype: Any,
    offset: np.ndarray | None = None,
    map: np.ndarray | None = None,
    far: np.ndarray | None = None,
) -> Any:
    """Return an array, or a sparse matrix, less an offset, squashed and mapped, as a dense array of a dtype.

    What does not fit in it is refused.

    Examples
    --------
    >>> dense("X", [[1e300]], np.float32)
    Traceback (most recent call last):
        ...
    ValueError: X must fit in float32, found values of size 1e+300
    """
    array = array.toarray() if scipy.sparse.issparse(array) else array
    try:
        with np.errstate(over="raise"):
            # The offset is in float64, and so is the difference.
            array = array if offset is None else array - offset
            if far is not None and np.any(beyond := np.abs(array) > far):
                values, unit = array[beyond], np.broadcast_to(far / _FAR, array.shape)[beyond]
                steps = np.abs(values) / unit - _FAR
                array[beyond] = np.sign(values) * unit * (_FAR + np.log1p(steps))
            return np.asarray(array if map is None else array @ map, dtype=dtype)
    except FloatingPointError:
        largest = np.max(np.abs(array))
        raise ValueError(f"{name} must fit in {np.dtype(dtype).name}, found values of size {largest:g}") from None

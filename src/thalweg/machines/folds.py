"""Units of the features, a lengthscale and a ridge for few rows: each left out in turn, in closed form for squares."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.linalg import LinAlgError, cholesky, eigh
from scipy.linalg.lapack import strtri

from thalweg.kernels import Kernel
from thalweg.kernels.bandwidth import median_of_pairs, some_pairs
from thalweg.kernels.profiles import value_and_rise, written_out
from thalweg.machines.rows import Rows
from thalweg.padding import padded, padded_size
from thalweg.threads import enough_threads

FEWEST = 40
"""With fewer different rows than this, what is left out says too little."""

FINELY = ((0.5**0.5, 1.0), (2**0.5, 1.0), (1.0, 10**0.5), (1.0, 0.1**0.5))
"""Directions in which a multiplier and a ridge are refined."""

COARSELY = ((0.5, 1.0), (2.0, 1.0), (1.0, 10**0.5), (1.0, 0.1**0.5))
"""Those in which the ones of other rows are followed."""

# Rows that are looked at, and of those the rows that are left out in turn, in the end and before.
_LOOKED_AT, FINALLY, _MOST = 2000, 640, 320
# Numbers that the spreads of features are taken from, at most.
_ENTRIES = 2**21
# Pairs whose median distance is taken for that of all.
_PAIRS = 5000
# Numbers of rows are multiples of this, or of a power of two, where programs are compiled for them.
_GRAIN = 64
_RIDGES = 10.0 ** (np.arange(-6, 5) / 2)
# Of features whose standard deviations differ by less than the first factor one scale is as good as another. Where too
# few rows are there to choose by, each feature has its own from the second factor on.
_ALIKE, _APART = 1.5, 10.0
# Values are clipped at so many standard deviations of all but their outermost hundredth.
_FAR = 10.0
# Widths of the middle half of the targets from it to an outlier.
_OUTLYING = 3.0


def two_at_once(act: Callable[..., Any], *several: Sequence[Any]) -> list[Any]:
    """Call a function with some arguments, two calls at a time, in the precision of JAX that is in use.

    Examples
    --------
    >>> two_at_once(pow, [2, 3], [5, 2])
    [32, 9]
    """
    double = jax.dtypes.canonicalize_dtype(np.float64) == np.float64

    def one(*given: Any) -> Any:
        with jax.enable_x64(double):  # which a thread does not inherit
            return act(*given)

    # One thread of BLAS for each; a scope that one of them ended would end that of the other.
    with enough_threads(1):
        pool = ThreadPoolExecutor(2)
        try:
            return list(pool.map(one, *several))
        finally:  # Whoever interrupts does not wait for the others.
            pool.shutdown(wait=False, cancel_futures=True)


class Sample(NamedTuple):
    """Rows that differ, the weight and the mean target of each, and those to leave out in turn.

    Rows that are the same are one of the sum of their weights: a row given twice counts as one of weight two. Where
    rows meet by chance, so will new ones: there it is each of those at one place that is left out in turn.
    """

    x: np.ndarray
    weights: np.ndarray
    targets: np.ndarray
    shares: np.ndarray
    """What is left out at a time, of the weight of the row."""
    within: np.ndarray
    """The squared distance of targets from their mean, if they differ."""
    left_out: np.ndarray
    rounding: np.ndarray
    """The spread that rounding alone makes of a feature that is constant."""
    spread: np.ndarray
    """About the standard deviations of the features."""
    usual: float = 1.0
    """What weights are counted in, and ridges with them: the mean weight of a row."""

    def units(self) -> tuple[Any, ...]:
        """Units of the features worth a try: one for all, and the standard deviation of each, 1 if it is constant."""
        there = self.spread > self.rounding
        own = np.where(there, self.spread, 1.0)
        factor = np.max(own[there], initial=0) / np.min(own[there], initial=np.inf)
        if len(self.x) < FEWEST:
            return (own if factor > _APART else 1.0,)
        return (1.0, own) if factor > _ALIKE else (1.0,)

    def in_unit(self, unit: Any, most: int = _MOST) -> "Sample":
        """The sample with features in other units, of which at most so many rows are left out."""
        count = min(len(self.left_out), most)
        return self._replace(x=self.x / unit, left_out=self.left_out[np.arange(count) * len(self.left_out) // count])

    def to_leave_out(self) -> "Leaving":
        """The rows to leave out."""
        some = self.part(self.left_out, np.arange(len(self.left_out)))
        mean = np.average(some.targets, axis=0, weights=some.weights)
        return Leaving(Distances(some.x), some.weights, some.targets - mean, mean, some.shares, some.within)

    def part(self, chosen: np.ndarray, left_out: np.ndarray) -> "Sample":
        """Chosen rows, and which of them to leave out."""
        x, weights, targets, shares, within = (part[chosen] for part in self[:5])
        known = {"x": x, "weights": weights, "targets": targets, "shares": shares, "within": within}
        return self._replace(**known, left_out=left_out)

    def without_outliers(self) -> "Sample":
        """The rows with targets no further from the middle half of all than three times its width."""
        low, high = middle_half(self.targets)
        kept = np.all((low <= self.targets) & (self.targets <= high), axis=1)
        left_out = (np.cumsum(kept) - 1)[self.left_out[kept[self.left_out]]]
        return self.part(kept, left_out)

    def median(self) -> float:
        """The median distance between rows, of some thousand pairs."""
        if len(self.x) < 2:
            return 1.0
        with np.errstate(over="ignore"):
            return median_of_pairs(self.x, *some_pairs(len(self.x), np.random.default_rng(0), _PAIRS))


def middle_half(targets: np.ndarray, widths: float = _OUTLYING) -> tuple[np.ndarray, np.ndarray]:
    """How far targets reach that are no outliers: some times the width of the middle half, on either side of it.

    Examples
    --------
    >>> middle_half(np.arange(5.0)[:, None])
    (array([-5.]), array([9.]))
    """
    low, high = np.quantile(targets, [0.25, 0.75], axis=0)
    reach = np.where(high > low, widths * (high - low), np.inf)
    return low - reach, high + reach


def sample(rows: Rows, seed: int) -> Sample:
    """Look at some rows."""
    chosen = np.arange(len(rows))
    if len(rows) > _LOOKED_AT:
        chosen = np.sort(np.random.default_rng([seed, 0]).permutation(len(rows))[:_LOOKED_AT])
    different, place = np.unique(rows.features(chosen, np.float64), axis=0, return_inverse=True)
    place, each = np.ravel(place), rows.weights[chosen]
    weights = np.bincount(place, each)
    given = rows.targets_of(chosen)
    targets = np.stack([np.bincount(place, each * column) for column in given.T], axis=1) / weights[:, None]
    shares, within = np.ones(len(different)), np.zeros(len(different))
    if rows.meet(chosen, place):
        shares = np.bincount(place, each**2) / weights**2
        within = np.bincount(place, each * np.sum((given - targets[place]) ** 2, axis=1)) / weights
    some = np.random.default_rng([seed, 3]).permutation(len(different))[:FINALLY]
    away = 0.0 if rows.offset is None or rows.map is not None else np.abs(rows.offset)
    rounding = 8 * np.finfo(np.float64).eps * (np.median(np.abs(different), axis=0) + away)
    spread = _spread(rows, different)
    usual = float(np.mean(weights))
    return Sample(different, weights / usual, targets, shares, within, np.sort(some), rounding, spread, usual)


def _spread(rows: Rows, some: np.ndarray) -> np.ndarray:
    """Standard deviations of the features, by far more rows than some: a column may hold but few that are not 0.

    Values far out are clipped: one of extreme size must not hide the others. Of two values none hides another, however
    rare it is; there it is the geometric mean of the standard deviation and their distance, since rows with the rarer
    one would be too far from all others by the first and too near by the second (on a9a, bike, Covertype and w8a it
    erred 1 to 6 % less than by the first).
    """
    low = np.quantile(some, 0.005, axis=0, method="higher")
    high = np.quantile(some, 0.995, axis=0, method="lower")
    inner = np.clip(some, np.minimum(low, high), np.maximum(low, high))
    middle, far = np.mean(inner, axis=0), _FAR * np.std(inner, axis=0)
    two = np.all((some == np.min(some, axis=0)) | (some == np.max(some, axis=0)), axis=0)
    far[two] = np.inf
    stride = -(-len(rows) * some.shape[1] // _ENTRIES)
    chosen = slice(None, None, max(stride, 1))
    there, weights = rows.features(chosen, np.float64), rows.weights[chosen]
    there = np.clip(there, middle - far, middle + far, out=there if there.flags.owndata else None)
    share, reach = weights / np.sum(weights), np.ptp(there[:, two], axis=0)
    there -= share @ there
    spread = np.sqrt(share @ np.square(there, out=there))
    spread[two] = np.sqrt(spread[two] * reach)
    return spread


def squared_distances(x: np.ndarray, y: np.ndarray | None = None) -> np.ndarray:
    """‖x_i − y_j‖² by a product of matrices; no ``y`` means ``x`` again, and 0 on the diagonal.

    Examples
    --------
    >>> squared_distances(np.array([[0.0], [2.0]]))
    array([[0., 4.],
           [4., 0.]])
    """
    # The median: beside a row of extreme size the others would lose their digits to a mean.
    middle = np.median(x if y is None else y, axis=0)
    left = x - middle
    right = left if y is None else y - middle
    squares = [np.sum(part**2, axis=1)[:, None] for part in (left, right)]
    one = np.ones_like
    # Squares and products in one: a pass over so large a matrix takes longer than a few more columns.
    found = np.hstack([left, squares[0], one(squares[0])]) @ np.hstack([-2 * right, one(squares[1]), squares[1]]).T
    if y is None:
        np.fill_diagonal(found, 0.0)
    return np.maximum(found, 0, out=found)


def kernel_matrix(kernel: Kernel, x: np.ndarray, y: np.ndarray | None = None) -> np.ndarray:
    """The matrix of a kernel in the precision of x: by NumPy, or by a program for rows about as many.

    Examples
    --------
    >>> from thalweg.kernels import Gaussian
    >>> kernel_matrix(Gaussian(), np.zeros((2, 1)), np.zeros((1, 1)))
    array([[1.],
           [1.]])
    """
    if written_out(kernel):
        length = np.asarray(kernel.lengthscale, x.dtype)
        return value_and_rise(kernel, squared_distances(x / length, None if y is None else y / length), rise=False)[0]
    of_size = lambda z: jnp.asarray(padded(z, padded_size(len(z), _GRAIN)))
    kernel = jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf, x.dtype)), kernel)
    compiled = kernel(of_size(x), None if y is None else of_size(y))
    return np.asarray(compiled, x.dtype)[: len(x), : len(x if y is None else y)]


class Distances:
    """Rows, maybe others, and the squared distances between them, which are found once for kernels of any lengthscale.

    Examples
    --------
    >>> from thalweg.kernels import Gaussian
    >>> near = Distances(np.array([[0.0], [2.0]]))
    >>> [round(float(near.kernel(Gaussian(), times)[0, 1]), 3) for times in (1.0, 2.0)]
    [0.135, 0.607]
    """

    def __init__(self, x: np.ndarray, y: np.ndarray | None = None) -> None:
        self.x, self.y = x, y

    @cached_property
    def squares(self) -> np.ndarray:
        """Squared distances."""
        return squared_distances(self.x, self.y)

    def kernel(self, kernel: Kernel, times: float = 1.0) -> np.ndarray:
        """The matrix of a kernel, its lengthscale multiplied, in float32."""
        if not written_out(kernel) or np.ndim(kernel.lengthscale):
            y = None if self.y is None else self.y / times
            return np.array(kernel_matrix(kernel, self.x / times, y), np.float32)
        return self.value_and_rise(kernel, times, rise=False)[0]

    def value_and_rise(self, kernel: Kernel, times: float = 1.0, rise: bool = True) -> tuple[np.ndarray, np.ndarray]:
        """The same with its derivative in scaled squares, of a kernel that is written out and has one lengthscale."""
        factor = (times * float(kernel.lengthscale)) ** -2
        with np.errstate(over="ignore"):
            scaled = np.multiply(self.squares, factor, dtype=np.float32, casting="same_kind")
        return value_and_rise(kernel, scaled, rise)


class Leaving(NamedTuple):
    """Rows to leave out in turn: their distances and weights, their targets less a mean, that mean, and the rest."""

    distances: Distances
    weights: np.ndarray
    targets: np.ndarray
    mean: np.ndarray
    shares: np.ndarray
    within: np.ndarray

    @property
    def turns(self) -> float:
        """How often something is left out."""
        return float(np.sum(1 / self.shares))

    def system(self, kernel: Kernel, times: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """K, each row and column times the root of its weight, these roots, and the targets times them."""
        root = np.sqrt(self.weights).astype(np.float32)[:, None]
        matrix = self.distances.kernel(kernel, times)
        matrix *= root * root.T
        return matrix, root, (root * self.targets).astype(np.float32)

    def found(self, errors: np.ndarray, spared: np.ndarray, times: float, ridge: float) -> "Found":
        """What errors of rows left out say, where f follows each of them, if it is not, by all but what is spared."""
        left = 1 - self.shares + self.shares * spared  # the same where a part of each is left out
        errors = errors * (spared / left)[:, None]
        p = np.clip(self.targets - errors + self.mean, 0, 1)
        squares = float(np.sum(self.weights[:, None] * errors**2) + np.sum(self.weights * self.within / left**2))
        return Found(squares if np.isfinite(squares) else np.inf, times, ridge, float(np.mean(p * (1 - p))))


class Found(NamedTuple):
    """What left the smallest errors: how large they were, a multiplier, a ridge, and the mean of p(1 − p) there."""

    errors: float
    times: float
    ridge: float
    curvature: float


def refined(
    rows: Leaving,
    begun: Found,
    kernel: Kernel,
    multipliers: Sequence[float],
    directions: Sequence[tuple[float, float]] = FINELY,
) -> Found:
    """A better multiplier, between the first and the last given, and a better ridge than those found by other rows."""
    known = dict[tuple[str, str], Found]()

    def at(times: float, ridge: float) -> Found:
        place = f"{times:.6g}", f"{ridge:.6g}"
        if place not in known:
            known[place] = _left_out_at(rows, kernel, times, ridge)
        return known[place]

    best = at(begun.times, begun.ridge)
    for narrower, stronger in directions:
        while True:
            times, ridge = best.times * narrower, best.ridge * stronger
            inside = multipliers[0] <= times <= multipliers[-1] and _RIDGES[0] <= ridge <= _RIDGES[-1]
            if not inside or not at(times, ridge).errors < best.errors:
                break
            best = at(times, ridge)
    return best


def _left_out_at(rows: Leaving, kernel: Kernel, times: float, ridge: float) -> Found:
    """The errors of rows left out with one multiplier and one ridge: (A⁻¹y)ᵢ/(A⁻¹)ᵢᵢ for A = K + ridge."""
    matrix, root, y = rows.system(kernel, times)
    matrix[np.diag_indices(len(matrix))] += np.float32(ridge)
    try:
        with enough_threads(len(matrix)):
            inverse = strtri(cholesky(matrix.T, lower=True, overwrite_a=True, check_finite=False), lower=1)[0]
            diagonal = np.sum(inverse**2, axis=0)
            errors = (inverse.T @ (inverse @ y)) / diagonal[:, None] / root
    except LinAlgError:  # beside large weights so small a ridge is lost to rounding
        errors, diagonal = np.full_like(rows.targets, np.inf), np.ones(len(root))
    return rows.found(errors, ridge * diagonal, times, ridge)


def left_out(rows: Leaving, kernel: Kernel, multipliers: Sequence[float]) -> Found | None:
    """The multiplier and the ridge with the smallest squared errors on rows left out; None for too few.

    Multipliers of the kernel's lengthscale are in order; from 1 the search goes both ways as long as errors fall. The
    curvature is that of the logistic loss, where targets are 0 and 1: its ridge is that of squares times it.
    """
    if rows.turns < FEWEST:
        return None

    def at(times: float) -> Found:
        matrix, root, y = rows.system(kernel, times)
        with enough_threads(len(matrix)):
            values, vectors = eigh(matrix.T, driver="evd", overwrite_a=True, check_finite=False)
            kept = (_RIDGES / (np.maximum(values, 0)[:, None] + _RIDGES)).astype(np.float32)
            spared, coordinates = vectors**2 @ kept, vectors.T @ y
            errors = (
                (vectors @ (part[:, None] * coordinates)) / (root * each[:, None])
                for part, each in zip(kept.T, spared.T, strict=True)
            )
            several = zip(errors, spared.T, _RIDGES, strict=True)
            found = (rows.found(each, share, times, float(ridge)) for each, share, ridge in several)
            return min(found, key=lambda one: one.errors)

    start = int(np.argmin(np.abs(np.log(multipliers))))
    best = at(multipliers[start])
    for side in (multipliers[:start][::-1], multipliers[start + 1 :]):
        for times in side:
            found = at(times)
            if not found.errors < best.errors:
                break
            best = found
    return best

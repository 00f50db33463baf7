"""Units of the features, a lengthscale and a ridge for few rows: each left out in turn, in closed form for squares."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.linalg import cholesky
from scipy.linalg.blas import dsymm
from scipy.linalg.lapack import dpotri

from thalweg.kernels import Kernel
from thalweg.kernels.bandwidth import median_of_pairs, some_pairs
from thalweg.kernels.profiles import value_and_rise, written_out
from thalweg.machines.rows import Rows
from thalweg.padding import padded, padded_size
from thalweg.threads import enough_threads

FEWEST = 40
"""With fewer different rows than this, what is left out says too little."""

# Rows that are looked at, and of those the rows that are left out in turn, in the end and before.
_LOOKED_AT, FINALLY, _MOST = 2000, 640, 320
# Directions in which a multiplier and a ridge are refined.
_FINELY = ((0.5**0.5, 1.0), (2**0.5, 1.0), (1.0, 10**0.5), (1.0, 0.1**0.5))
# Numbers that the spreads of features are taken from, at most.
_ENTRIES = 2**22
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
    with enough_threads(1), ThreadPoolExecutor(2) as pool:
        return list(pool.map(one, *several))


class Sample(NamedTuple):
    """Rows that differ, the weight and the mean target of each, and those to leave out in turn.

    Rows that are the same are one of the sum of their weights: a row given twice counts as one of weight two.
    """

    x: np.ndarray
    weights: np.ndarray
    targets: np.ndarray
    left_out: np.ndarray
    rounding: np.ndarray
    """The spread that rounding alone makes of a feature that is constant."""
    spread: np.ndarray
    """Standard deviations of the features."""

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
        return self._replace(x=self.x / unit, left_out=self.left_out[:: -(-len(self.left_out) // most)])

    def to_leave_out(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Features, weights and targets of the rows to leave out, the targets less their mean, and that mean."""
        x, weights, targets = (part[self.left_out] for part in (self.x, self.weights, self.targets))
        mean = np.average(targets, axis=0, weights=weights)
        return x, weights, targets - mean, mean

    def without_outliers(self) -> "Sample":
        """The same with targets no further from the middle half of them than six times its width."""
        low, high = np.quantile(self.targets, [0.25, 0.75], axis=0)
        reach = np.where(high > low, 6 * (high - low), np.inf)
        return self._replace(targets=np.clip(self.targets, low - reach, high + reach))

    def median(self) -> float:
        """The median distance between rows, of some thousand pairs."""
        if len(self.x) < 2:
            return 1.0
        with np.errstate(over="ignore"):
            return median_of_pairs(self.x, *some_pairs(len(self.x), np.random.default_rng(0), _PAIRS))


def sample(rows: Rows, seed: int) -> Sample:
    """Look at some rows."""
    chosen = np.arange(len(rows))
    if len(rows) > _LOOKED_AT:
        chosen = np.sort(np.random.default_rng([seed, 0]).permutation(len(rows))[:_LOOKED_AT])
    different, place = np.unique(rows.features(chosen, np.float64), axis=0, return_inverse=True)
    place, each = np.ravel(place), rows.weights[chosen]
    weights = np.bincount(place, each)
    targets = np.stack([np.bincount(place, each * column) for column in rows.targets_of(chosen).T], axis=1)
    some = np.random.default_rng([seed, 3]).permutation(len(different))[:FINALLY]
    away = 0.0 if rows.offset is None or rows.map is not None else np.abs(rows.offset)
    rounding = 8 * np.finfo(np.float64).eps * (np.median(np.abs(different), axis=0) + away)
    spread = _spread(rows, different)
    return Sample(different, weights, targets / weights[:, None], np.sort(some), rounding, spread)


def _spread(rows: Rows, some: np.ndarray) -> np.ndarray:
    """Standard deviations of the features, by far more rows than some: a column may hold but few that are not 0.

    Values far out are clipped: one of extreme size must not hide the others. Of two values none hides another, however
    rare it is.
    """
    low = np.quantile(some, 0.005, axis=0, method="higher")
    high = np.quantile(some, 0.995, axis=0, method="lower")
    inner = np.clip(some, np.minimum(low, high), np.maximum(low, high))
    middle, far = np.mean(inner, axis=0), _FAR * np.std(inner, axis=0)
    two = np.all((some == np.min(some, axis=0)) | (some == np.max(some, axis=0)), axis=0)
    far[two] = np.inf
    stride = -(-len(rows) * some.shape[1] // _ENTRIES)
    chosen = slice(None, None, max(stride, 1))
    there, weights = np.clip(rows.features(chosen, np.float64), middle - far, middle + far), rows.weights[chosen]
    mean = np.average(there, axis=0, weights=weights)
    return np.sqrt(np.average((there - mean) ** 2, axis=0, weights=weights))


def scaled_squares(kernel: Kernel, x: np.ndarray, y: np.ndarray | None = None) -> np.ndarray:
    """‖(x_i − y_j)/lengthscale‖²; no ``y`` means ``x`` again.

    Examples
    --------
    >>> from thalweg.kernels import Gaussian
    >>> scaled_squares(Gaussian(2.0), np.zeros((1, 1)), np.array([[2.0], [4.0]]))
    array([[1., 4.]])
    """
    length = np.asarray(kernel.lengthscale, x.dtype)
    return squared_distances(x / length, None if y is None else y / length)


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
    found = left @ (-2 * right.T)
    found += np.sum(left**2, axis=1)[:, None]
    found += np.sum(right**2, axis=1)[None, :]
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
        return value_and_rise(kernel, scaled_squares(kernel, x, y), rise=False)[0]
    of_size = lambda z: jnp.asarray(padded(z, padded_size(len(z), _GRAIN)))
    kernel = jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf, x.dtype)), kernel)
    compiled = kernel(of_size(x), None if y is None else of_size(y))
    return np.asarray(compiled, x.dtype)[: len(x), : len(x if y is None else y)]


class Found(NamedTuple):
    """What left the smallest errors: how large they were, a multiplier, a ridge, and the mean of p(1 − p) there."""

    errors: float
    times: float
    ridge: float
    curvature: float


def refined(rows: Sample, begun: Found, kernel: Callable[[float], Any]) -> Found:
    """A better multiplier and ridge than those found by some rows, by all that may be left out in turn."""
    x, weights, y, mean = rows.to_leave_out()
    root, known = np.sqrt(weights)[:, None], dict[tuple[str, str], Found]()

    def at(times: float, ridge: float) -> Found:
        place = f"{times:.6g}", f"{ridge:.6g}"
        if place not in known:
            matrix = root * kernel_matrix(kernel(times), x) * root.T
            matrix[np.diag_indices(len(x))] += ridge
            with enough_threads(len(x)):
                inverse = dpotri(cholesky(matrix, lower=True, overwrite_a=True), lower=1)[0]
            spared = np.diag(inverse)[:, None]
            errors = (dsymm(1.0, inverse, root * y, lower=1)) / spared / root
            known[place] = _found(errors, y, mean, weights, times, ridge)
        return known[place]

    best = at(begun.times, begun.ridge)
    for narrower, stronger in _FINELY:
        while _RIDGES[0] <= best.ridge * stronger <= _RIDGES[-1]:
            found = at(best.times * narrower, best.ridge * stronger)
            if not found.errors < best.errors:
                break
            best = found
    return best


def _found(
    errors: np.ndarray, y: np.ndarray, mean: np.ndarray, weights: np.ndarray, times: float, ridge: float
) -> Found:
    p = np.clip(y - errors + mean, 0, 1)
    return Found(float(np.sum(weights[:, None] * errors**2)), times, ridge, float(np.mean(p * (1 - p))))


def left_out(
    rows: Sample, multipliers: Sequence[float], kernel: Callable[[float], Any], near: float = 1.0
) -> Found | None:
    """The multiplier and the ridge with the smallest squared errors on rows left out; None for too few.

    Multipliers are in order; from the one next to ``near`` the search goes both ways as long as errors fall. The
    curvature is that of the logistic loss, where targets are 0 and 1: its ridge is that of squares times it.
    """
    if len(rows.x) < FEWEST:
        return None
    x, weights, y, mean = rows.to_leave_out()
    root = np.sqrt(weights)[:, None]

    def at(times: float) -> Found:
        K = kernel_matrix(kernel(times), x)
        with enough_threads(len(K)):
            values, vectors = np.linalg.eigh(root * K * root.T)
        values, coordinates = np.maximum(values, 0), vectors.T @ (root * y)
        kept = _RIDGES / (values[:, None] + _RIDGES)
        spared = vectors**2 @ kept
        errors = (
            (vectors @ (part[:, None] * coordinates)) / root / share[:, None]
            for part, share in zip(kept.T, spared.T, strict=True)
        )
        found = (
            _found(each, y, mean, weights, times, float(ridge)) for each, ridge in zip(errors, _RIDGES, strict=True)
        )
        return min(found, key=lambda one: one.errors if np.isfinite(one.errors) else np.inf)

    start = int(np.argmin(np.abs(np.log(np.asarray(multipliers) / near))))
    best = at(multipliers[start])
    for side in (multipliers[:start][::-1], multipliers[start + 1 :]):
        for times in side:
            found = at(times)
            if not found.errors < best.errors:
                break
            best = found
    return best

"""A learned metric: units of the features in which a function changes alike along each of them.

A function is fitted by squares, its mean squared slope along each feature is taken (the diagonal of the average
gradient outer product of Radhakrishnan et al., 2024), and a feature's unit becomes the inverse root of it; then again
in the new units, a few rounds. Half of the rows learn and the other half judge, both ways round: units are kept only
where they lower the errors by more than chance would.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy.linalg import LinAlgError, cho_factor, cho_solve

from thalweg.compiling import quick_jit
from thalweg.kernels import Kernel
from thalweg.kernels.profiles import written_out
from thalweg.machines.folds import COARSELY, FEWEST, Distances, Found, Sample, left_out, refined, two_at_once
from thalweg.padding import padded, padded_size
from thalweg.threads import enough_threads

_ROUNDS = 5
# Rows of a half, at most, and of those that are left out in turn for a multiplier and a ridge.
_HALF, _LOOKED_AT = 1000, 250
MOST_FEATURES = 2000
"""With more features, slopes are mostly noise, and rounds are dear."""

# Axes of no more features are turned.
_MOST_TURNED = 1000
# A round that lowers them by less is the last one, but not the first: of many features that tell nothing those that
# matter show in the second.
_GAIN, _FIRST = 0.01, 2
# Slopes are of a fit by few rows: with many, a slice may say that what features count to such a power is better.
_SOFTER = 0.7, 0.5
# A feature that hardly matters still counts so much beside the one that matters most: a later round can bring it back.
_LEAST = 1e-3

_OVERSHOT = 1.5

# Rows of a half are padded to a multiple of this.
_GRAIN = 64

SURE = 2.0
"""Errors must fall by so many standard errors of the difference, where nothing else judges."""

KernelOf = Callable[[float], Kernel]
"""A kernel of a lengthscale."""


def learned_unit(
    seen: Sample, unit: Any, multipliers: Sequence[float], kernel: KernelOf, *, sure: float = SURE
) -> list[np.ndarray]:
    """Units of the features from slopes; none where those given are as good, or where the rows are too few to tell.

    Second ones are softer: in them features that matter less count for more.

    Parameters
    ----------
    seen
        Rows.
    unit
        Units to begin with.
    multipliers
        Of the median distance, to choose from in each round.
    kernel
        Makes a kernel.
    sure
        By how many standard errors those learned must be better on the other half.

    Examples
    --------
    >>> from thalweg.kernels import Gaussian
    >>> from thalweg.machines import Rows
    >>> from thalweg.machines.folds import sample
    >>> x = np.random.default_rng(0).normal(size=(200, 3))
    >>> rows = Rows(x, np.sin(2 * x[:, :1]), np.ones(200))
    >>> unit, *_ = learned_unit(sample(rows, 0), 1.0, (0.5, 1.0), Gaussian)
    >>> (unit[0] / unit[1:] < 0.1).tolist()
    [True, True]
    """
    if len(seen.x) < 2 * FEWEST or seen.x.shape[1] > MOST_FEATURES or seen.x.shape[1] == 1:
        return []
    begun = np.broadcast_to(np.asarray(unit, float), seen.x.shape[1:])
    told = _rounds(seen, begun, multipliers, kernel, _diagonal)
    best = min(told[1:], key=lambda one: one[0])
    gained = told[0][1] - best[1]
    if np.mean(gained) <= sure * np.std(gained) / len(gained) ** 0.5:
        return []
    unit = np.exp(np.mean(np.log(best[2]), axis=0))
    return [unit, _softened(seen, unit, _SOFTER[0])]


def learned_map(seen: Sample, multipliers: Sequence[float], kernel: KernelOf) -> np.ndarray | None:
    """A matrix A of few columns: a function changes alike along each of the features xA; None for too few rows.

    From the units that are learned first, rounds go on with the whole average gradient outer product of standardised
    features: its eigenvectors are directions, and the roots of its eigenvalues say how much they count.

    Examples
    --------
    >>> from thalweg.kernels import Gaussian
    >>> from thalweg.machines import Rows
    >>> from thalweg.machines.folds import sample
    >>> x = np.random.default_rng(0).normal(size=(300, 3))
    >>> rows = Rows(x, np.sin(x[:, :1] + x[:, 1:2]), np.ones(300))
    >>> A = learned_map(sample(rows, 0), (0.5, 1.0, 2.0), Gaussian)
    >>> along = A[:, -1] / A[0, -1]
    >>> bool(abs(along - [1, 1, 0]).max() < 0.1)
    True
    """
    dimension = seen.x.shape[1]
    if dimension > _MOST_TURNED:
        raise ValueError(f"metric='full' takes up to {_MOST_TURNED} features, found {dimension}: 'diagonal' takes more")
    begun = learned_unit(seen, seen.units()[-1], multipliers, kernel, sure=-np.inf)
    if not begun:
        return None
    _, _, maps = min(_rounds(seen, begun[0], multipliers, kernel, _turned)[1:], key=lambda one: one[0])
    spread = _spread(seen)[1][:, None]
    products = [(spread * one) @ (spread * one).T for one in maps]
    values, directions = np.linalg.eigh(sum(product / np.trace(product) for product in products))
    counts = np.sqrt(np.maximum(values, 0))
    kept = counts > 2 * _LEAST * np.max(counts)
    return directions[:, kept] * counts[kept] / spread


def _rounds(
    seen: Sample,
    begun: np.ndarray,
    multipliers: Sequence[float],
    kernel: KernelOf,
    follow: Callable[..., np.ndarray | None],
) -> list[tuple[float, np.ndarray, list[np.ndarray]]]:
    """The mean error of each round, those of the rows, and the units, or maps, of either half."""
    order = np.random.default_rng(0).permutation(len(seen.x))
    halves = order[::2][:_HALF], order[1::2][:_HALF]
    units: list[np.ndarray] = [begun] * 2
    before: list[Found | None] = [None] * 2
    told: list[tuple[float, np.ndarray, list[np.ndarray]]] = []
    while len(told) <= _ROUNDS:
        rounds = two_at_once(
            lambda these, others, unit, found: _round(seen, these, others, unit, multipliers, kernel, found, follow),
            halves,
            halves[::-1],
            units,
            before,
        )
        errors = np.concatenate([one.errors for one in rounds])
        told.append((float(np.mean(errors)), errors, units))
        if len(told) > _FIRST and told[-1][0] >= (1 - _GAIN) * told[-2][0]:
            break
        units, before = [one.unit for one in rounds], [one.found for one in rounds]
    return told


class _Round(NamedTuple):
    errors: np.ndarray
    """Squared, of each row of the other half."""
    found: Found
    """The multiplier and the ridge."""
    unit: np.ndarray
    """For the next round."""


def _round(
    seen: Sample,
    these: np.ndarray,
    others: np.ndarray,
    unit: np.ndarray,
    multipliers: Sequence[float],
    kernel: KernelOf,
    before: Found | None,
    follow: Callable[..., np.ndarray | None],
) -> _Round:
    """Fit these rows in a unit, judge that on the others, and look at its slopes."""
    placed = lambda x: x / unit if unit.ndim == 1 else x @ unit
    half = seen.part(these, np.arange(len(these))).in_unit(1.0, _LOOKED_AT)
    half = half._replace(x=placed(half.x))
    median = half.median()
    if before is None:
        best = left_out(half.to_leave_out(), kernel(median), multipliers)
    else:
        best = refined(half.to_leave_out(), before, kernel(median), multipliers, COARSELY)
    assert best is not None
    fitted, middle = kernel(best.times * median), np.median(half.x, axis=0)
    # In float32, which the ridge allows, but about their middle: far from the origin it would tell no rows apart.
    mine, theirs = ((x - middle).astype(np.float32) for x in (half.x, placed(seen.x[others])))
    among = Distances(mine)
    matrix, rise = among.value_and_rise(fitted) if written_out(fitted) else (among.kernel(fitted), None)
    mean, dual = _fitted(half, matrix, best.ridge)
    off = mean + Distances(theirs, mine).kernel(fitted) @ dual - seen.targets[others]
    errors = seen.weights[others] * np.sum(off**2, axis=1)
    following = follow(seen, unit, half.weights, fitted, mine, dual, rise)
    return _Round(errors, best, unit if following is None else following)


def _spread(seen: Sample) -> tuple[np.ndarray, np.ndarray]:
    """Which features vary in the sample, and their standard deviations there, 1 where they do not."""
    spread = np.std(seen.x, axis=0)
    varies = spread > seen.rounding
    return varies, np.where(varies, spread, 1.0)


def _softened(seen: Sample, unit: np.ndarray, power: float) -> np.ndarray:
    """Units in which features count what they did to a power."""
    spread = _spread(seen)[1]
    return spread * (unit / spread) ** power


def _diagonal(seen: Sample, unit: np.ndarray, weights: np.ndarray, *fitted: Any) -> np.ndarray | None:
    """The units of the next round."""
    varies, spread = _spread(seen)
    matters = np.where(varies, np.sqrt(mean_squared_slopes(weights, *fitted)) / unit * spread, 0)
    if not (np.all(np.isfinite(matters)) and np.max(matters) > 0):
        return None
    return spread / np.maximum(matters / np.max(matters), _LEAST)


def _turned(seen: Sample, unit: np.ndarray, weights: np.ndarray, *fitted: Any) -> np.ndarray | None:
    """The map of the next round."""
    varies, spread = _spread(seen)
    share = np.sqrt(weights / np.sum(weights))[:, None].astype(np.float32)
    back = (np.diag(1 / unit) if unit.ndim == 1 else unit).T * np.where(varies, spread, 0.0)
    product = sum(part.T @ part for part in (share * (slopes @ back) for slopes in _slopes(*fitted)))
    if not np.all(np.isfinite(product)):
        return None
    values, directions = np.linalg.eigh(np.asarray(product, float))
    counts = np.sqrt(np.maximum(values, 0))
    if not np.max(counts) > 0:
        return None
    return directions * np.maximum(counts / np.max(counts), _LEAST) / spread[:, None]


def _fitted(half: Sample, matrix: np.ndarray, ridge: float) -> tuple[np.ndarray, np.ndarray]:
    """The mean of the targets, and the coefficients of the kernel ridge regression of what is left."""
    root = np.sqrt(half.weights)[:, None]
    mean = np.average(half.targets, axis=0, weights=half.weights)
    matrix *= (root * root.T).astype(np.float32)
    matrix[np.diag_indices(len(matrix))] += np.float32(ridge)
    with enough_threads(len(matrix)):
        try:
            factor = cho_factor(matrix.T, lower=True)
        except LinAlgError:  # beside large weights so small a ridge is lost to rounding
            factor = cho_factor(matrix.T.astype(float) + np.eye(len(matrix)) * 1e-4 * np.max(half.weights), lower=True)
        dual = cho_solve(factor, root * (half.targets - mean))
    return mean, (root * dual).astype(np.float32)


def units_by_slopes(
    seen: Sample, kernel: Kernel, landmarks: np.ndarray, dual: np.ndarray, weights: np.ndarray
) -> list[np.ndarray]:
    """Units by the slopes of f_c = Σ_i dual_ic·k(·, x_i) at some of its landmarks x_i, and softer ones.

    What hardly counts in some units hardly shows in slopes: softer ones let it come back.

    Examples
    --------
    >>> from thalweg.kernels import Gaussian
    >>> from thalweg.machines import Rows
    >>> from thalweg.machines.folds import sample
    >>> x = np.array([[0.0, 0.0], [1.0, 1.0], [0.0, 1.0], [1.0, 0.0]])
    >>> seen = sample(Rows(x, np.zeros((4, 1)), np.ones(4)), 0)
    >>> unit, *softer = units_by_slopes(seen, Gaussian(), x, np.array([[1.0], [-1.0], [1.0], [-1.0]]), np.ones(4))
    >>> (unit / unit[0]).round(3).tolist()
    [1.0, 4.083]
    """
    length = np.broadcast_to(np.asarray(kernel.lengthscale, float), landmarks.shape[1:])
    placed = (landmarks / length).astype(np.float32)
    alone, dual = type(kernel)(lengthscale=1.0, variance=kernel.variance), dual.astype(np.float32)
    points = slice(None, None, -(-len(placed) // _HALF))
    unit = _diagonal(seen, length, weights[points], alone, placed, dual, None, placed[points])
    return [] if unit is None else [_softened(seen, unit, power) for power in (1.0, *_SOFTER)]


def overshot(seen: Sample, before: Any, unit: np.ndarray) -> np.ndarray:
    """Units half as far again from those before: rounds go the same way, in ever shorter steps.

    Examples
    --------
    >>> from thalweg.machines import Rows
    >>> from thalweg.machines.folds import sample
    >>> seen = sample(Rows(np.array([[0.0, 0.0], [1.0, 1.0]]), np.zeros((2, 1)), np.ones(2)), 0)
    >>> unit = overshot(seen, 1.0, np.array([1.0, 4.0]))
    >>> (unit / unit[0]).tolist()
    [1.0, 8.0]
    """
    spread = _spread(seen)[1]
    counts = spread / before * (before / unit) ** _OVERSHOT
    return spread / np.maximum(counts / np.max(counts), _LEAST)


def mean_squared_slopes(
    weights: np.ndarray,
    kernel: Kernel,
    x: np.ndarray,
    dual: np.ndarray,
    rise: np.ndarray | None = None,
    points: np.ndarray | None = None,
) -> np.ndarray:
    """Σ_c mean_i (∂f_c(x_i)/∂x_ij)², for f_c = Σ_i dual_ic·k(·, x_i), or at other points than the x_i.

    ``rise`` is what :meth:`Distances.value_and_rise` gives, where it has been found before.

    Examples
    --------
    >>> from thalweg.kernels import Gaussian
    >>> x = np.array([[0.0, 0.0], [1.0, 0.0]])
    >>> mean_squared_slopes(np.ones(2), Gaussian(), x, np.array([[1.0], [0.0]])).round(4)  # (e^(−1/2))² / 2
    array([0.1839, 0.    ])
    """
    if not written_out(kernel) or (rise is None and jax.default_backend() == "gpu"):
        of_size = lambda part: padded(part.astype(x.dtype), padded_size(len(part), _GRAIN))
        parts = map(of_size, (x, dual, weights, x if points is None else points))
        return np.asarray(differentiated(kernel, *parts))
    if rise is None:
        rise = (Distances(x) if points is None else Distances(points, x)).value_and_rise(kernel)[1]
    each = _slopes(kernel, x, dual, rise, points)
    return np.sum([np.average(slopes**2, axis=0, weights=weights) for slopes in each], axis=0)


def _slopes(
    kernel: Kernel, x: np.ndarray, dual: np.ndarray, rise: np.ndarray, points: np.ndarray | None = None
) -> Iterator[np.ndarray]:
    """∂f_c(x_i)/∂x_ij for each output in turn, of a kernel that is written out and has one lengthscale."""
    points = x if points is None else points
    with enough_threads(len(x)):
        for column in dual.T:
            sums = rise @ np.column_stack([column, column[:, None] * x])
            yield 2 * (sums[:, :1] * points - sums[:, 1:]) / float(kernel.lengthscale) ** 2


@quick_jit(lambda kernel, x, *_: len(x) < _GRAIN**2, tuned=False)
def differentiated(
    kernel: Kernel,
    x: Float[Array, "n d"],
    dual: Float[Array, "n outputs"],
    weights: Float[Array, " m"],
    points: Float[Array, "m d"],
) -> Float[Array, " d"]:
    """:func:`mean_squared_slopes` of any kernel."""
    found, pull = jax.vjp(lambda points: kernel.matrix(points, x) @ dual, points)

    def of_output(cotangent: Array) -> Array:
        (slopes,) = pull(jnp.broadcast_to(cotangent, found.shape))
        return jnp.average(slopes**2, axis=0, weights=weights)

    return jnp.sum(jax.lax.map(of_output, jnp.eye(dual.shape[1], dtype=x.dtype)), axis=0)

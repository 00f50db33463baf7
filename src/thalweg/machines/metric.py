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
from scipy.linalg import cho_factor, cho_solve

from thalweg.compiling import quick_jit
from thalweg.kernels import Kernel
from thalweg.kernels.profiles import value_and_rise, written_out
from thalweg.machines.folds import FEWEST, Sample, kernel_matrix, left_out, scaled_squares, two_at_once
from thalweg.padding import padded, padded_size
from thalweg.threads import enough_threads

_ROUNDS = 5
# Rows of a half, at most.
_HALF = 1000
# With more features than this per row of a half, slopes are mostly noise, and rounds are dear.
_MOST_FEATURES = 2000
# Axes of no more features are turned.
_MOST_TURNED = 1000
# Errors must fall by so many standard errors of the difference.
_SURE = 2.0
# A round that lowers them by less is the last one, but not the first: of many features that tell nothing those that
# matter show in the second.
_GAIN, _FIRST = 0.01, 2
# A feature that hardly matters still counts so much beside the one that matters most: a later round can bring it back.
_LEAST = 1e-3

# Rows of a half are padded to a multiple of this.
_GRAIN = 64

KernelOf = Callable[[float, Any], Kernel]
"""A kernel for a multiplier and the median distance."""


def learned_unit(
    seen: Sample, unit: Any, multipliers: Sequence[float], kernel: KernelOf, *, always: bool = False
) -> np.ndarray | None:
    """Units of the features from slopes; None where those given are as good, or where the rows are too few to tell.

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
    always
        Whether to take those learned without asking the other half.

    Examples
    --------
    >>> from thalweg.kernels import Gaussian
    >>> from thalweg.machines import Rows
    >>> from thalweg.machines.folds import sample
    >>> x = np.random.default_rng(0).normal(size=(200, 3))
    >>> rows = Rows(x, np.sin(2 * x[:, :1]), np.ones(200))
    >>> unit = learned_unit(sample(rows, 0), 1.0, (0.5, 1.0), lambda times, base: Gaussian(lengthscale=times * base))
    >>> (unit[0] / unit[1:] < 0.1).tolist()
    [True, True]
    """
    if len(seen.x) < 2 * FEWEST or seen.x.shape[1] > _MOST_FEATURES or seen.x.shape[1] == 1:
        return None
    begun = np.broadcast_to(np.asarray(unit, float), seen.x.shape[1:])
    told = _rounds(seen, begun, multipliers, kernel, _diagonal)
    _, errors, units = min(told[1:], key=lambda one: one[0])
    gained = told[0][1] - errors
    if not always and np.mean(gained) <= _SURE * np.std(gained) / len(gained) ** 0.5:
        return None
    return np.exp(np.mean(np.log(units), axis=0))


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
    >>> A = learned_map(sample(rows, 0), (0.5, 1.0, 2.0), lambda times, base: Gaussian(lengthscale=times * base))
    >>> along = A[:, -1] / A[0, -1]
    >>> bool(abs(along - [1, 1, 0]).max() < 0.1)
    True
    """
    dimension = seen.x.shape[1]
    if dimension > _MOST_TURNED:
        raise ValueError(f"metric='full' takes up to {_MOST_TURNED} features, found {dimension}: 'diagonal' takes more")
    begun = learned_unit(seen, seen.units()[-1], multipliers, kernel, always=True)
    if begun is None:
        return None
    _, _, maps = min(_rounds(seen, begun, multipliers, kernel, _turned)[1:], key=lambda one: one[0])
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
    units, near = [begun] * 2, [1.0] * 2
    told: list[tuple[float, np.ndarray, list[np.ndarray]]] = []
    while len(told) <= _ROUNDS:
        rounds = two_at_once(
            lambda these, others, unit, times: _round(seen, these, others, unit, multipliers, kernel, times, follow),
            halves,
            halves[::-1],
            units,
            near,
        )
        errors = np.concatenate([one.errors for one in rounds])
        told.append((float(np.mean(errors)), errors, units))
        if len(told) > _FIRST and told[-1][0] >= (1 - _GAIN) * told[-2][0]:
            break
        units, near = [one.unit for one in rounds], [one.times for one in rounds]
    return told


class _Round(NamedTuple):
    errors: np.ndarray
    """Squared, of each row of the other half."""
    times: float
    """The multiplier."""
    unit: np.ndarray
    """For the next round."""


def _round(
    seen: Sample,
    these: np.ndarray,
    others: np.ndarray,
    unit: np.ndarray,
    multipliers: Sequence[float],
    kernel: KernelOf,
    near: float,
    follow: Callable[..., np.ndarray | None],
) -> _Round:
    """Fit these rows in a unit, judge that on the others, and look at its slopes."""
    placed = lambda x: x / unit if unit.ndim == 1 else x @ unit
    half = _part(seen, these).in_unit(1.0)
    half = half._replace(x=placed(half.x))
    median = half.median()
    best = left_out(half, multipliers, lambda times: kernel(times, median), near)
    assert best is not None
    fitted, middle = kernel(best.times, median), np.median(half.x, axis=0)
    # In float32, which the ridge allows, but about their middle: far from the origin it would tell no rows apart.
    low = np.float32 if written_out(fitted) else np.float64
    mine, theirs = ((x - middle).astype(low) for x in (half.x, placed(seen.x[others])))
    mean, dual = _fitted(half._replace(x=mine), fitted, best.ridge)
    off = mean + kernel_matrix(fitted, theirs, mine) @ dual.astype(low) - seen.targets[others]
    errors = seen.weights[others] * np.sum(off**2, axis=1)
    following = follow(seen, unit, fitted, mine, dual.astype(low), half.weights)
    return _Round(errors, best.times, unit if following is None else following)


def _spread(seen: Sample) -> tuple[np.ndarray, np.ndarray]:
    """Which features vary in the sample, and their standard deviations there, 1 where they do not."""
    spread = np.std(seen.x, axis=0)
    varies = spread > seen.rounding
    return varies, np.where(varies, spread, 1.0)


def _diagonal(
    seen: Sample, unit: np.ndarray, kernel: Kernel, x: np.ndarray, dual: np.ndarray, weights: np.ndarray
) -> np.ndarray | None:
    """The units of the next round."""
    varies, spread = _spread(seen)
    matters = np.where(varies, np.sqrt(mean_squared_slopes(kernel, x, dual, weights)) / unit * spread, 0)
    if not (np.all(np.isfinite(matters)) and np.max(matters) > 0):
        return None
    return spread / np.maximum(matters / np.max(matters), _LEAST)


def _turned(
    seen: Sample, unit: np.ndarray, kernel: Kernel, x: np.ndarray, dual: np.ndarray, weights: np.ndarray
) -> np.ndarray | None:
    """The map of the next round."""
    varies, spread = _spread(seen)
    share = np.sqrt(weights / np.sum(weights))[:, None].astype(x.dtype)
    back = (np.diag(1 / unit) if unit.ndim == 1 else unit).T * np.where(varies, spread, 0.0)
    product = sum(part.T @ part for part in (share * (slopes @ back) for slopes in _slopes(kernel, x, dual)))
    if not np.all(np.isfinite(product)):
        return None
    values, directions = np.linalg.eigh(np.asarray(product, float))
    counts = np.sqrt(np.maximum(values, 0))
    if not np.max(counts) > 0:
        return None
    return directions * np.maximum(counts / np.max(counts), _LEAST) / spread[:, None]


def _part(seen: Sample, chosen: np.ndarray) -> Sample:
    x, weights, targets = (part[chosen] for part in seen[:3])
    return Sample(x, weights, targets, np.arange(len(chosen)), seen.rounding, seen.spread)


def _fitted(half: Sample, kernel: Kernel, ridge: float) -> tuple[np.ndarray, np.ndarray]:
    """The mean of the targets, and the coefficients of the kernel ridge regression of what is left."""
    root = np.sqrt(half.weights)[:, None]
    mean = np.average(half.targets, axis=0, weights=half.weights)
    matrix = root * np.asarray(kernel_matrix(kernel, half.x), float) * root.T
    with enough_threads(len(matrix)):
        matrix[np.diag_indices(len(matrix))] += ridge
        dual = cho_solve(cho_factor(matrix, lower=True, overwrite_a=True), root * (half.targets - mean))
    return mean, root * dual


def mean_squared_slopes(kernel: Kernel, x: np.ndarray, dual: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Σ_c mean_i (∂f_c(x_i)/∂x_ij)², for f_c = Σ_i dual_ic·k(·, x_i).

    Examples
    --------
    >>> from thalweg.kernels import Gaussian
    >>> x = np.array([[0.0, 0.0], [1.0, 0.0]])
    >>> mean_squared_slopes(Gaussian(), x, np.array([[1.0], [0.0]]), np.ones(2)).round(4)  # (e^(−1/2))² / 2
    array([0.1839, 0.    ])
    """
    if not written_out(kernel):
        room = padded_size(len(x), _GRAIN)
        return np.asarray(differentiated(kernel, *(padded(part, room) for part in (x, dual, weights))))
    return np.sum([np.average(slopes**2, axis=0, weights=weights) for slopes in _slopes(kernel, x, dual)], axis=0)


def _slopes(kernel: Kernel, x: np.ndarray, dual: np.ndarray) -> Iterator[np.ndarray]:
    """∂f_c(x_i)/∂x_ij for each output in turn, of a kernel that is written out."""
    with enough_threads(len(x)):
        rise = 2 * value_and_rise(kernel, scaled_squares(kernel, x))[1]
        x = x - np.median(x, axis=0)
        for column in dual.T:
            each = rise * column[None, :]
            yield (np.sum(each, axis=1)[:, None] * x - each @ x) / np.asarray(kernel.lengthscale, x.dtype) ** 2


@quick_jit(lambda kernel, x, dual, weights: len(x) < _GRAIN**2, tuned=False)
def differentiated(
    kernel: Kernel, x: Float[Array, "n d"], dual: Float[Array, "n outputs"], weights: Float[Array, " n"]
) -> Float[Array, " d"]:
    """:func:`mean_squared_slopes` of any kernel."""
    _, pull = jax.vjp(lambda points: kernel.matrix(points, x) @ dual, x)

    def of_output(cotangent: Array) -> Array:
        (slopes,) = pull(jnp.broadcast_to(cotangent, dual.shape))
        return jnp.average(slopes**2, axis=0, weights=weights)

    return jnp.sum(jax.lax.map(of_output, jnp.eye(dual.shape[1], dtype=x.dtype)), axis=0)

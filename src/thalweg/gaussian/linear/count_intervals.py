"""Intervals of counts whose rate eᶻ is known up to a normal distribution of z, or a mixture of them."""

from collections.abc import Callable
from functools import partial

import numpy as np
from scipy.special import betainc, gammainc, pdtr

_FEW, _MANY, _WIDTH = 32, 481, 6.0
"""Of points of the quadrature over z, and how many standard deviations they reach to either side."""

_SHARP = 1.0
"""How many times the variance of a count's logarithm that of z may be for few points to do."""


_LARGE = 1e15
"""A count of which its neighbours are no further than rounding."""


def count_intervals(
    shares: np.ndarray, means: np.ndarray, variances: np.ndarray, dispersions: np.ndarray, level: float
) -> np.ndarray:
    """Central intervals that counts are in with at least this probability: both ends belong to them, one per column.

    Rows are the parts of the mixture, each with its share, its dispersion, and mean and variance of z for each count.
    An end beyond the largest number is infinite.

    Examples
    --------
    >>> one = np.ones(1)
    >>> count_intervals(one, np.log([[2.0, 1e9]]), np.array([[0.0, 0.01]]), np.zeros(1), 0.9)[0]
    array([0., 5.])
    """
    with np.errstate(over="ignore"):
        rates = np.exp(means + 2 * np.sqrt(variances))
        noise = 1 / np.maximum(rates, 1) + dispersions[:, None]
    sharp = np.any(variances > _SHARP * noise, axis=0)
    ends = np.empty((means.shape[1], 2))
    # As seen from z, the distribution of a count is a step where z is known less well than the count given z: the
    # quantiles are then those of the points, and must be many.
    for rows, points in ((~sharp, _FEW), (sharp, _MANY)):
        if np.any(rows):
            ends[rows] = _central(shares, means[:, rows], variances[:, rows], dispersions, level, points)
    return ends


def _central(
    shares: np.ndarray, means: np.ndarray, variances: np.ndarray, dispersions: np.ndarray, level: float, points: int
) -> np.ndarray:
    nodes = np.linspace(-_WIDTH, _WIDTH, points)
    weights = np.exp(-0.5 * nodes**2)
    with np.errstate(over="ignore"):
        rates = np.exp(means[:, None] + nodes[:, None] * np.sqrt(variances)[:, None])
    below = partial(
        _count_below,
        np.concatenate(shares[:, None] * weights / np.sum(weights)),
        np.concatenate(rates),
        np.repeat(dispersions, points)[:, None],
    )
    return np.column_stack([_least_count(below, means.shape[1], end) for end in ((1 - level) / 2, (1 + level) / 2)])


def _count_below(shares: np.ndarray, rates: np.ndarray, dispersions: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """P(y ≤ count) of each column of rates, averaged over its rows."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        dispersed = betainc(1 / dispersions, counts + 1, 1 / (1 + dispersions * rates))
        # Of large counts, where those are NaN: the rate itself, or a share of it that is gamma-distributed.
        large = np.where(dispersions > 0, gammainc(1 / dispersions, counts / (dispersions * rates)), counts >= rates)
    small = np.where(dispersions > 0, dispersed, pdtr(counts, rates))
    return shares @ np.where(counts > _LARGE, large, small)


@np.errstate(over="ignore")
def _least_count(below: Callable[[np.ndarray], np.ndarray], rows: int, probability: float) -> np.ndarray:
    """The least whole number of each row with at least this probability up to it."""
    low, high = np.full(rows, -1.0), np.ones(rows)
    while np.any(short := (below(high) < probability) & np.isfinite(high)):
        low, high = np.where(short, high, low), np.where(short, 2 * high, high)
    while np.any(high - low > np.maximum(1, 1e-12 * high)):
        middle = np.floor((low + high) / 2)
        under = below(middle) < probability
        low, high = np.where(under, middle, low), np.where(under, high, middle)
    return high

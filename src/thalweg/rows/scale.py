"""Robust centres and scales of features, and the frame in which distances between rows are taken.

A frame maps a row x to Mᵀ s(x − c): c is the median of each feature, s leaves values near it alone and lets those that
are far out grow as logarithms, and M is a metric, one scale for each feature or a matrix. Framed features are of the
order of 1, so that float32 holds their squares whatever the units of the data are.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.special import ndtri

from thalweg.codec import storable

__all__ = ["FeatureFrame", "fit_frame", "median_and_spread"]

WINSORISED = 0.1
"""The share of values at either end that the spread does not see as they are: codes and outliers may be so many."""

_WINSORISED_NORMAL = 0.8238
"""The standard deviation of a standard normal variable that is clipped at its tenths."""

MAX_DEVIATIONS = 3.0
"""The spread is at most so many times what the median absolute deviation tells: a code such as −999 for what is missing
may be a third of the values."""

FAR_SPREADS = 5.0
"""Robust standard deviations beyond which a value grows as a logarithm: normal values hardly ever get there, and with
twice as many a single outlier would dominate distances."""


def median_and_spread(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the median of each feature, and a standard deviation of what is not far out.

    The median is a value that occurs. Where more than half of the values are the same the spread is 0.

    Examples
    --------
    >>> median_and_spread(np.array([[7.0, 0.0], [9.0, 0.0], [8.0, 1e9]]))[0]
    array([8., 0.])
    """
    middle = len(x) // 2
    centre = np.partition(x, middle, axis=0)[middle]
    with np.errstate(over="ignore"):
        away = x - centre
        deviations = np.partition(np.abs(away), middle, axis=0)[middle]
        clipped = np.clip(away, *np.quantile(away, [WINSORISED, 1 - WINSORISED], axis=0, method="nearest"))
        spread = np.std(clipped, axis=0) / _WINSORISED_NORMAL
    normal_deviation = ndtri(0.75)  # the median absolute deviation of a standard normal variable
    return centre, np.minimum(spread, MAX_DEVIATIONS * deviations / normal_deviation)


@storable
@dataclass(frozen=True)
class FeatureFrame:
    """How rows become those that a kernel sees.

    Parameters
    ----------
    centre
        c, a number for each feature; None for 0.
    spread
        The robust standard deviation of each feature, infinite where no value counts as far out; None where none does.
    metric
        M: a factor for each feature, or a matrix with a row for each; None for 1.

    Examples
    --------
    >>> frame = FeatureFrame(centre=np.array([10.0]), spread=np.array([1.0]), metric=np.array([0.5]))
    >>> frame.apply(np.array([[12.0], [10_000.0]])).round(2).tolist()
    [[1.0], [7.1]]
    """

    centre: np.ndarray | None = None
    spread: np.ndarray | None = None
    metric: np.ndarray | None = None

    def check_stored(self) -> None:
        """Refuse arrays that do not belong together, as a file could hold them."""
        if self.centre is None:
            if self.spread is not None or self.metric is not None:
                raise ValueError("a frame with a spread or a metric must have a centre")
            return
        parts = {"centre": (self.centre, (1,)), "spread": (self.spread, (1,)), "metric": (self.metric, (1, 2))}
        for name, (array, sizes) in parts.items():
            if array is None:
                continue
            if not isinstance(array, np.ndarray) or array.ndim not in sizes or len(array) != len(self.centre):
                raise ValueError(f"{name} of a frame must have an entry for each feature")
            if not (np.all(array > 0) if name == "spread" else np.all(np.isfinite(array))):
                raise ValueError(f"{name} of a frame must be {'positive' if name == 'spread' else 'finite'}")

    def with_metric(self, metric: np.ndarray | None) -> "FeatureFrame":
        """Return the same frame with another metric."""
        return replace(self, metric=metric)

    def dimension(self, features: int) -> int:
        """The number of features of a framed row."""
        return features if self.metric is None or self.metric.ndim == 1 else self.metric.shape[1]

    def apply(self, x: np.ndarray) -> np.ndarray:
        """Return Mᵀ s(x − c) in float64; what overflows raises FloatingPointError."""
        with np.errstate(over="raise"):
            if self.centre is not None:
                x = x - self.centre  # in float64, before anything is lost
            if self.spread is not None and np.any(far := np.abs(x) > FAR_SPREADS * self.spread):
                unit = np.broadcast_to(self.spread, x.shape)[far]
                x[far] = np.sign(x[far]) * unit * (FAR_SPREADS + np.log1p(np.abs(x[far]) / unit - FAR_SPREADS))
            if self.metric is None:
                return x
            return x * self.metric if self.metric.ndim == 1 else x @ self.metric


def fit_frame(sample: np.ndarray) -> FeatureFrame:
    """Return the frame of the features of some rows: centred, with far values squashed, in their own units.

    Examples
    --------
    >>> x = np.stack([np.linspace(-1, 1, 255), np.arange(255) == 9], axis=1)
    >>> fit_frame(x).spread.round(1)
    array([0.7, inf])
    """
    centre, spread = median_and_spread(np.asarray(sample, np.float64))
    return FeatureFrame(centre, np.where((spread > 0) & np.isfinite(spread), spread, np.inf))


def standard_scales(framed: Any) -> np.ndarray:
    """Return the standard deviation of each framed feature, 1 where rounding alone makes one.

    Examples
    --------
    >>> standard_scales(np.array([[1.0, 5.0], [3.0, 5.0]])).tolist()
    [1.0, 1.0]
    """
    spread = np.std(framed, axis=0)
    rounding = np.finfo(np.float64).eps * np.max(np.abs(framed), axis=0, initial=0.0)
    return np.where(spread > len(framed) * rounding, spread, 1.0)


def binary_scales(framed: Any) -> np.ndarray:
    """Return the least power of two above each framed feature, by which division is exact; 1 where it is 0.

    Examples
    --------
    >>> binary_scales(np.array([[3.0, 0.0], [-5e-3, 0.0]])).tolist()
    [4.0, 1.0]
    """
    largest = np.max(np.abs(framed), axis=0)
    return np.exp2(np.ceil(np.log2(np.where(largest > 0, largest, 1.0))))

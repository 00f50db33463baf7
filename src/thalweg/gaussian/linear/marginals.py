"""Numbers by themselves under a posterior: their quantiles."""

from dataclasses import dataclass

import numpy as np
from scipy.special import stdtr, stdtrit

_BISECTIONS = 60


@dataclass(frozen=True)
class Marginals:
    """The distributions of single numbers: each a mixture of normal or Student's t distributions, one per row.

    Examples
    --------
    >>> Marginals(np.ones(1), np.zeros((1, 1)), np.ones((1, 1)), np.array([np.inf])).interval(0.95).round(2)
    array([[-1.96,  1.96]])
    """

    shares: np.ndarray
    means: np.ndarray
    deviations: np.ndarray
    freedoms: np.ndarray
    """Degrees of freedom of each part: infinite for normal distributions."""

    def below(self, values: np.ndarray | float) -> np.ndarray:
        """The probability that each coefficient is at most so large."""
        with np.errstate(divide="ignore", invalid="ignore"):
            standard = (values - self.means) / self.deviations
        # Where nothing is uncertain, a value at the mean has half of the probability below it.
        return self.shares @ stdtr(self.freedoms[:, None], np.nan_to_num(standard, posinf=1e300, neginf=-1e300))

    def interval(self, level: float) -> np.ndarray:
        """The central intervals that hold the probability ``level``, one per row: lower and upper end."""
        return np.column_stack([self._quantile((1 - level) / 2), self._quantile((1 + level) / 2)])

    def _quantile(self, probability: float) -> np.ndarray:
        ends = self.means + stdtrit(self.freedoms[:, None], probability) * self.deviations
        low, high = ends.min(axis=0), ends.max(axis=0)
        # That of the mixture is between those of its parts.
        for _ in range(_BISECTIONS if len(self.shares) > 1 else 0):
            middle = (low + high) / 2
            under = self.below(middle) < probability
            low, high = np.where(under, middle, low), np.where(under, high, middle)
        return (low + high) / 2

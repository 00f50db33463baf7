"""Laws of the random degree n, in survival form S_j = Pr(n ≥ j) and in log space.

The randomly truncated series Σ_{j≤n} (b_j / S_j) T_j is unbiased for any law with S_j > 0 wherever b_j ≠ 0
(Lemma 1 of the paper). What a law decides is the variance, Lemma 2: (π/2) Σ_{j≥1} b_j² (1/S_j − 1).
"""

import warnings
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import scipy.special

from thalweg.arguments import real
from thalweg.spectral.chebyshev import decay

__all__ = ["InfiniteVarianceWarning"]

FLOOR = 2.0**-30
"""The smallest probability of a degree up to the last: a weight b_j/S_j is then never beyond the reach of the uniform
numbers, at the cost of J·2⁻³⁰ in the mean degree. Twice as much doubles that cost, which stays next to nothing."""


class InfiniteVarianceWarning(UserWarning):
    """A degree law whose survival falls faster than b_j²: the estimate is unbiased, its variance infinite.

    >>> issubclass(InfiniteVarianceWarning, UserWarning)  # so that warnings.simplefilter("ignore", …) silences it
    True
    """


class Law(NamedTuple):
    """A law of the degree: log S_j for j = 0 … J, with S_0 = 1.

    ``rate`` is the exponential rate at which S_j falls for large j (∞ if it falls faster than any exponential, 0
    if it ends at J with the coefficients); ``biased`` marks a law that leaves coefficients out.
    """

    name: str
    log_survival: np.ndarray
    rate: float = 0.0
    biased: bool = False

    @property
    def survival(self) -> np.ndarray:
        """S_0 … S_J."""
        return np.exp(self.log_survival)

    @property
    def floored(self) -> "Law":
        """The law as it is sampled: no degree rarer than the uniform numbers can draw."""
        if self.biased:
            return self
        return self._replace(log_survival=np.maximum(self.log_survival, np.log(FLOOR)))

    @property
    def mean(self) -> float:
        """E n = Σ_{j≥1} S_j."""
        return float(np.sum(self.survival[1:]))


def variance(coefficients: np.ndarray, law: Law) -> float:
    """Return the Chebyshev-weighted variance of the randomly truncated series, Lemma 2 (0/0 counts as 0)."""
    squares = np.asarray(coefficients, np.float64)[1:] ** 2
    with np.errstate(over="ignore", invalid="ignore"):
        terms = squares * np.expm1(-law.log_survival[1 : squares.size + 1])
    return float(0.5 * np.pi * np.sum(terms[squares > 0]))


def optimal(coefficients: np.ndarray, mean: float, *others: np.ndarray) -> Law:
    """Return the law of least variance for the actual coefficients.

    min Σ b_j²/S_j subject to Σ_{j≥1} S_j = N and 1 ≥ S_1 ≥ S_2 ≥ … is solved by S_j = min(1, c √y_j), y the
    non-increasing isotonic regression of b_j². With N ≥ J the series is not truncated at all. Where one recurrence
    serves several series, as of a value and its gradient, their b_j² are added in units of their sums.

    Examples
    --------
    >>> law = optimal(2.0 ** -np.arange(10.0), 3.0)
    >>> round(law.mean, 12), bool(np.all(np.diff(law.log_survival) <= 0))
    (3.0, True)
    """
    real("degree", mean, above=0)
    size = max(b.size for b in (coefficients, *others)) - 1
    weights = np.zeros(size)
    for b in (coefficients, *others):
        sizes = np.abs(np.asarray(b[1:], np.float64))
        squares = (sizes / (np.max(sizes, initial=0.0) or 1.0)) ** 2
        weights[: squares.size] += squares / (np.sum(squares) or 1.0)
    if mean >= size:
        return Law("optimal", np.zeros(size + 1))
    fitted = np.maximum.accumulate(weights[::-1])[::-1]
    if np.max(fitted - weights) > 1e-24 * np.max(weights):
        # Slow to import, and not needed where coefficients fall by themselves, as those of log do up to rounding.
        from scipy.optimize import isotonic_regression

        fitted = isotonic_regression(weights, increasing=False).x
    root = np.sqrt(fitted)
    logs = np.log(np.maximum(root, np.finfo(np.float64).tiny))
    floor = np.log(min(FLOOR, 0.5 * mean / size))
    survival = lambda log_c: np.clip(log_c + logs, floor, 0.0)
    # Bisection on log c: Σ_j S_j rises with it from J·floor to J.
    low, high = floor - logs[0] - 1.0, -logs[-1] + 1.0
    while low < (middle := 0.5 * (low + high)) < high:
        if np.sum(np.exp(survival(middle))) < mean:
            low = middle
        else:
            high = middle
    return Law("optimal", np.append(0.0, survival(0.5 * (low + high))))


def theorem3(coefficients: np.ndarray, mean: float, rho: float | None = None) -> Law:
    """Return the law of Theorem 3, corrected: S_j = 1 for j ≤ K, (N−K)(ρ−1)ρ^(K−j) beyond.

    ρ is the sum of the semi-axes of the ellipse in which f is analytic; by default it is fitted to the
    coefficients.
    """
    rho = decay(coefficients)[0] if rho is None else real("rho", rho, above=1)
    degrees = np.arange(coefficients.size, dtype=np.float64)
    # An entire function has no finite ρ: the law is then all but certain, one degree either side of N.
    log_rho = min(np.log(rho), 700.0)
    start = max(0.0, np.ceil(mean - 1.0 / -np.expm1(-log_rho)))
    logs = np.full(degrees.size, 0.0)
    beyond = degrees > start
    scale = mean - start  # positive, since K < N
    # log((N−K)(ρ−1)) + (K−j) log ρ, with ρ − 1 = ρ(1 − 1/ρ) so that a huge ρ does not overflow.
    logs[beyond] = np.log(scale) + np.log(-np.expm1(-log_rho)) + log_rho * (start + 1 - degrees[beyond])
    return Law("theorem3", np.minimum(logs, 0.0), rate=float(log_rho))


def geometric(coefficients: np.ndarray, mean: float) -> Law:
    """Return the geometric law of mean N: S_j = (N/(N+1))^j."""
    ratio = np.log(mean) - np.log1p(mean)
    return Law("geometric", ratio * np.arange(coefficients.size), rate=float(-ratio))


def poisson(coefficients: np.ndarray, mean: float) -> Law:
    """Return the Poisson law of mean N."""
    degrees = np.arange(1, coefficients.size)
    return Law("poisson", _log_survival(scipy.special.gammainc(degrees, mean)), rate=np.inf)


def negative_binomial(coefficients: np.ndarray, mean: float, shape: float = 5.0) -> Law:
    """Return the negative binomial law of mean N: the number of failures before ``shape`` successes."""
    degrees, failure = np.arange(1, coefficients.size), mean / (shape + mean)
    survival = scipy.special.betainc(degrees, shape, failure)
    return Law("negative_binomial", _log_survival(survival), rate=-float(np.log(failure)))


def _log_survival(survival: np.ndarray) -> np.ndarray:
    """Return log S_0 … log S_J for S_1 … S_J, which rounding must not let rise."""
    with np.errstate(divide="ignore"):
        return np.append(0.0, np.log(np.minimum.accumulate(survival)))


def fixed(coefficients: np.ndarray, mean: float) -> Law:
    """Return the degree ⌊N⌋ with certainty: biased wherever the series goes on, and here for comparison only."""
    degrees = np.arange(coefficients.size)
    biased = bool(np.any(np.asarray(coefficients)[degrees > mean] != 0))
    return Law("fixed", np.where(degrees <= mean, 0.0, -np.inf), biased=biased)


_LAWS = optimal, theorem3, geometric, poisson, negative_binomial, fixed
LAWS: dict[str, Callable[..., Law]] = {law.__name__: law for law in _LAWS}


def warn_if_infinite(coefficients: np.ndarray, law: Law) -> None:
    """Warn if Σ b_j²/S_j diverges for the whole series, by the rates at which both fall."""
    rho, entire = decay(coefficients)
    if not (law.biased or entire or law.rate < 2.0 * np.log(rho)):
        warnings.warn(
            f"the {law.name} law of mean {law.mean:.3g} has infinite variance for this function on this interval: its "
            f"survival falls like e^(−{law.rate:.3g} j), b_j² like e^(−{2 * np.log(rho):.3g} j). "
            "Use law='optimal', or a larger degree where the law is geometric.",
            InfiniteVarianceWarning,
            stacklevel=3,
        )

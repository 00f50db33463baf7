"""What is expected of a vector before its ratings, from features of its row, and how uneven the noise is.

Vectors are V = ΦY + E with rows of E from N(0, Λ⁻¹) and coefficients Y of prior precision ridge ⊗ Λ, the first feature
a constant. Given the posteriors of the vectors, that of Y is Gaussian with mean (ΦᵀΦ + ridge)⁻¹ΦᵀV̄; a ridge for
each feature and Λ are those that make the bound highest, so that features that tell nothing are switched off. All of
this is small, and done by the host in float64.
"""

from dataclasses import dataclass, field, replace

import numpy as np
from scipy.linalg import cho_factor, cho_solve
from scipy.optimize import brentq
from scipy.special import digamma, gammaln

from thalweg.codec import storable

_FLAT = 1e-8
"""The ridge of the constant, which is not learned."""

_RIDGES = (1e-3, 1e8)
"""Limits of a ridge that is learned."""

_SPREAD = 1e-3
"""What is added to the sum of squares of which Λ⁻¹ is the mean: a prior that keeps it positive definite."""

_EVEN = (0.5, 1e4)
"""Limits of the degrees of freedom of the noise's scales."""


@storable
@dataclass(frozen=True)
class Expectation:
    """The prior of a side: coefficients Y of the features, their ridges, Λ, and (ΦᵀΦ + ridge)⁻¹.

    Examples
    --------
    >>> start = Expectation.start(features=np.ones((4, 1)), precisions=np.full(2, 10.0))
    >>> means = np.array([[1.0, 0.0], [1.0, 2.0], [1.0, 0.0], [1.0, 2.0]])
    >>> start.regressed(np.ones((4, 1)), means).expected(np.ones((1, 1))).round(3)
    array([[1., 1.]])
    """

    coefficients: np.ndarray
    ridge: np.ndarray
    precision: np.ndarray
    inverse: np.ndarray

    def check_stored(self) -> None:
        """Refuse arrays that do not fit one another, and a prior without a covariance."""
        features, width = self.coefficients.shape
        shapes = [part.shape for part in (self.ridge, self.precision, self.inverse)]
        if shapes != [(features,), (width, width), (features, features)]:
            raise ValueError(f"a prior of shapes {shapes} for {features} features of {width} numbers")
        if not all(np.all(np.isfinite(part)) for part in (self.coefficients, np.linalg.inv(self.precision))):
            raise ValueError("a prior without a covariance")

    @staticmethod
    def start(features: np.ndarray, precisions: np.ndarray) -> "Expectation":
        """Nothing expected, before anything is known, but the precision of each number."""
        ridge = np.concatenate([[_FLAT], np.full(features.shape[1] - 1, 1.0 + 0.1 * len(features))])
        return Expectation(
            np.zeros((features.shape[1], len(precisions))), ridge, np.diag(precisions), _inverse(features, ridge)
        )

    def expected(self, features: np.ndarray) -> np.ndarray:
        """The means of rows with such features."""
        return features @ self.coefficients

    def covariance_factor(self, features: np.ndarray) -> np.ndarray:
        """By how much Λ⁻¹ is to be scaled for rows with such features that had no part in the fit."""
        return 1.0 + np.einsum("nj,jk,nk->n", features, self.inverse, features)

    def regressed(self, features: np.ndarray, means: np.ndarray) -> "Expectation":
        """With the coefficients that vectors of these means call for, and the ridges that those call for."""
        ridge = self.ridge
        if len(ridge) > 1:
            told = np.einsum("jk,kl,jl->j", self.coefficients, self.precision, self.coefficients)
            free = self.coefficients.shape[1]
            if np.any(self.coefficients):
                ridge = np.clip(free / (told + free * np.diag(self.inverse)), *_RIDGES)
                ridge[0] = _FLAT
        inverse = _inverse(features, ridge)
        return replace(self, coefficients=inverse @ (features.T @ means), ridge=ridge, inverse=inverse)

    def scaled(self, scatter: np.ndarray, rows: int) -> "Expectation":
        """With the Λ that vectors with this sum of squares about what is expected call for."""
        inverse = self._squares(scatter) / max(rows, 1)
        return replace(self, precision=np.linalg.inv((inverse + inverse.T) / 2))

    def _squares(self, scatter: np.ndarray) -> np.ndarray:
        told = self.coefficients.T @ (self.ridge[:, None] * self.coefficients)
        return scatter + told + _SPREAD * np.eye(len(scatter))

    def bound(self, scatter: np.ndarray, rows: int, logdets: float) -> float:
        """E log p(V, Y | Λ) − E log q(V, Y), but for the constants; ``logdets`` is Σ log|posterior precision|."""
        free = len(self.precision)
        found = rows * np.linalg.slogdet(self.precision)[1] - np.sum(self._squares(scatter) * self.precision)
        found += rows * free - logdets
        # The uncertainty of Y, in the prior of V and in its own, is tr (ΦᵀΦ + ridge)⁻¹(ΦᵀΦ + ridge): a constant.
        found += free * (np.sum(np.log(self.ridge)) + np.linalg.slogdet(self.inverse)[1])
        return float(found) / 2


def _inverse(features: np.ndarray, ridge: np.ndarray) -> np.ndarray:
    return cho_solve(cho_factor(features.T @ features + np.diag(ridge)), np.eye(len(ridge)))


@storable
@dataclass(frozen=True)
class Unevenness:
    """Posteriors Gamma(shape, rate) of factors of the noise's precision, one a row, with prior Gamma(ν/2, ν/2).

    Examples
    --------
    >>> even = Unevenness.even(3)
    >>> even.means
    array([1., 1., 1.])
    >>> uneven = even.learned(np.full(3, 50.0), np.array([20.0, 50.0, 200.0]))
    >>> uneven.means.round(1)
    array([2.2, 1. , 0.3])
    """

    shape: np.ndarray
    rate: np.ndarray
    degrees: float
    certain: bool = field(default=False)

    def check_stored(self) -> None:
        """Refuse what is no posterior of a precision."""
        if self.rate.shape != self.shape.shape or not all(
            np.all((part > 0) & np.isfinite(part)) for part in (self.shape, self.rate)
        ):
            raise ValueError("noise that is of no gamma distribution")

    @staticmethod
    def even(rows: int) -> "Unevenness":
        """The same noise everywhere."""
        return Unevenness(np.ones(rows), np.ones(rows), 4.0, True)

    @property
    def means(self) -> np.ndarray:
        """E ω."""
        return self.shape / self.rate

    @property
    def logs(self) -> np.ndarray:
        """E log ω."""
        return np.zeros_like(self.shape) if self.certain else digamma(self.shape) - np.log(self.rate)

    @property
    def variances(self) -> np.ndarray:
        """E 1/ω, by which the noise's variance is multiplied."""
        return np.ones_like(self.shape) if self.certain else self.rate / np.maximum(self.shape - 1, 0.5)

    def learned(self, ratings: np.ndarray, misfit: np.ndarray) -> "Unevenness":
        """Given how many ratings each row has, and τΣE(r − f)² of each."""
        degrees = self.degrees
        if not self.certain:
            seen = ratings > 0
            gap = float(np.mean(self.logs[seen] - self.means[seen])) + 1.0
            slope = lambda x: np.log(x / 2) - digamma(x / 2) + gap
            low, high = _EVEN
            degrees = low if slope(low) < 0 else high if slope(high) > 0 else float(brentq(slope, low, high))
        return Unevenness((degrees + ratings) / 2, (degrees + np.maximum(misfit, 0.0)) / 2, degrees)

    def centred(self) -> tuple["Unevenness", float]:
        """The same with a mean of 1, and the factor that the precision of the noise is to be multiplied by for that.

        It changes nothing of what is said about ratings and brings ω closest to its prior.
        """
        mean = float(np.mean(self.means))
        return replace(self, rate=self.rate * mean), mean

    def bound(self) -> float:
        """E log p(ω) − E log q(ω)."""
        if self.certain:
            return 0.0
        half = self.degrees / 2
        prior = half * np.log(half) - gammaln(half) + (half - 1) * self.logs - half * self.means
        entropy = self.shape - np.log(self.rate) + gammaln(self.shape) + (1 - self.shape) * digamma(self.shape)
        return float(np.sum(prior + entropy))

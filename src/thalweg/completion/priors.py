"""Priors of the vectors of a side from features of its rows, and noise that differs from row to row.

Vectors are V = ΦY + E with rows of E from N(0, Λ⁻¹) and coefficients Y of prior precision ridge ⊗ Λ, the first feature
a constant. Given the posteriors of the vectors, that of Y is Gaussian with mean (ΦᵀΦ + ridge)⁻¹ΦᵀV̄. A ridge for each
feature and Λ maximise the bound, so that features without use are switched off. Λ has a Wishart prior worth one row.

Features are a constant, side information, and which columns a row has rated at all: the leading singular vectors of
the matrix of rated cells, each cell divided by the roots of the numbers of ratings of its row and its column. The last
are sums over the columns that a row has rated, so that new rows have them too.
"""

from dataclasses import dataclass, replace

import numpy as np
from scipy.sparse import csr_matrix
from scipy.special import digamma, gammaln, polygamma
from sklearn.utils.extmath import randomized_svd

from thalweg.codec import storable
from thalweg.linalg import factorise

PRIOR_VARIANCE = 1e-3
"""The variance of a vector's entries in the row that the prior of Λ is worth, ratings having variance 1: a factor
without use ends there. With twice as much, it adds twice as much to the variance of predictions, still next to none."""


@storable
@dataclass(frozen=True)
class FactorPrior:
    """The prior of a side: coefficients Y of the features, their ridges, Λ, and (ΦᵀΦ + ridge)⁻¹.

    Examples
    --------
    >>> prior = FactorPrior.initial(features=np.ones((4, 1)), precisions=np.full(2, 10.0))
    >>> means = np.array([[1.0, 0.0], [1.0, 2.0], [1.0, 0.0], [1.0, 2.0]])
    >>> prior.with_coefficients(np.ones((4, 1)), means).mean(np.ones((1, 1))).round(3)    # halfway from 0 at first
    array([[0.5, 0.5]])
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
        if not all(np.all(np.isfinite(part)) for part in (self.coefficients, self.covariance)):
            raise ValueError("a prior without a covariance")

    @staticmethod
    def initial(features: np.ndarray, precisions: np.ndarray) -> "FactorPrior":
        """Return a prior with mean 0 and the given precision of each entry."""
        # At first a feature is worth as much as all rows.
        ridge, coefficients = np.full(features.shape[1], len(features)), np.zeros((features.shape[1], len(precisions)))
        return FactorPrior(coefficients, ridge.astype(float), np.diag(precisions), _inverse(features, ridge))

    @property
    def covariance(self) -> np.ndarray:
        """Λ⁻¹."""
        return np.linalg.inv(self.precision)

    def mean(self, features: np.ndarray) -> np.ndarray:
        """Return the means of rows with these features."""
        return features @ self.coefficients

    def covariance_factor(self, features: np.ndarray) -> np.ndarray:
        """Return the multiples of Λ⁻¹ that are the covariances of rows that had no part in the fit."""
        return 1.0 + np.einsum("nj,jk,nk->n", features, self.inverse, features)

    def with_coefficients(self, features: np.ndarray, means: np.ndarray) -> "FactorPrior":
        """Return the prior with the ridges for its coefficients, then the coefficients for vectors of these means."""
        ridge = self.ridge
        if np.any(self.coefficients):
            squares = np.einsum("jk,kl,jl->j", self.coefficients, self.precision, self.coefficients)
            ridge = 1 / (squares / len(self.precision) + np.diag(self.inverse))
        inverse = _inverse(features, ridge)
        return replace(self, coefficients=inverse @ (features.T @ means), ridge=ridge, inverse=inverse)

    def with_spread(self, scatter: np.ndarray, rows: int) -> "FactorPrior":
        """Return the prior with the best Λ for ``rows`` vectors of this sum of squares about their prior means."""
        covariance = self._squares(scatter) / (rows + 1)
        return replace(self, precision=np.linalg.inv((covariance + covariance.T) / 2))

    def _squares(self, scatter: np.ndarray) -> np.ndarray:
        coefficients = self.coefficients.T @ (self.ridge[:, None] * self.coefficients)
        return scatter + coefficients + PRIOR_VARIANCE * np.eye(len(scatter))

    def bound(self, scatter: np.ndarray, rows: int, log_determinants: float) -> float:
        """Return E log p(V, Y, Λ) − E log q(V, Y) up to constants; the last argument is Σ log|posterior precision|."""
        free = len(self.precision)
        total = (rows + 1) * np.linalg.slogdet(self.precision)[1] - np.sum(self._squares(scatter) * self.precision)
        total += rows * free - log_determinants
        # The uncertainty of Y, in the prior of V and in its own, is tr (ΦᵀΦ + ridge)⁻¹(ΦᵀΦ + ridge): a constant.
        total += free * (np.sum(np.log(self.ridge)) + np.linalg.slogdet(self.inverse)[1])
        return float(total) / 2


def _inverse(features: np.ndarray, ridge: np.ndarray) -> np.ndarray:
    return factorise(features.T @ features, ridge).inverse()


@storable
@dataclass(frozen=True)
class NoiseScales:
    """Posteriors Gamma(shape, rate) of multipliers ω of the noise's precision, one a row, with prior Gamma(ν/2, ν/2).

    Examples
    --------
    >>> prior = NoiseScales.prior(3, degrees=4.0)
    >>> prior.means
    array([1., 1., 1.])
    >>> prior.learned(np.full(3, 50.0), np.array([20.0, 50.0, 200.0])).means.round(1)
    array([2.2, 1. , 0.3])
    """

    shape: np.ndarray
    rate: np.ndarray
    degrees: float
    """ν, the degrees of freedom."""

    def check_stored(self) -> None:
        """Refuse what is no posterior of a precision."""
        numbers = np.concatenate([self.shape, self.rate])
        if self.rate.shape != self.shape.shape or not np.all((numbers > 0) & np.isfinite(numbers)):
            raise ValueError("noise that is of no gamma distribution")

    @staticmethod
    def prior(rows: int, degrees: float) -> "NoiseScales":
        """Return the prior of rows; with many degrees of freedom, noise is the same everywhere."""
        return NoiseScales(np.full(rows, degrees / 2), np.full(rows, degrees / 2), degrees)

    @property
    def means(self) -> np.ndarray:
        """E ω."""
        return self.shape / self.rate

    @property
    def logs(self) -> np.ndarray:
        """E log ω."""
        return digamma(self.shape) - np.log(self.rate)

    @property
    def variances(self) -> np.ndarray:
        """E 1/ω, by which the noise's variance is multiplied."""
        return self.rate / np.maximum(self.shape - 1, 0.5)

    def learned(self, counts: np.ndarray, misfit: np.ndarray) -> "NoiseScales":
        """Return the posteriors given the number of ratings of each row and its τΣE(r − f)², then the best ν."""
        shape, rate = (self.degrees + counts) / 2, (self.degrees + np.maximum(misfit, 0.0)) / 2
        rated = counts > 0
        # ν/2 solves log x − ψ(x) = gap: an approximation (Minka, 2002), then two Newton steps in 1/x.
        gap = float(np.mean((shape / rate - digamma(shape) + np.log(rate))[rated])) - 1.0
        x = (3 - gap + np.sqrt((gap - 3) ** 2 + 24 * gap)) / (12 * gap)
        for _ in range(2):
            x = 1 / (1 / x + (np.log(x) - digamma(x) - gap) / (x**2 * (1 / x - polygamma(1, x))))
        return NoiseScales(shape, rate, 2 * x)

    def centred(self) -> tuple["NoiseScales", float]:
        """Return the multipliers over their mean, and the mean, by which the noise's precision is to be multiplied.

        Predictions stay the same, and ω comes closest to its prior.
        """
        mean = float(np.mean(self.means))
        return replace(self, rate=self.rate * mean), mean

    def extended(self, rows: int) -> "NoiseScales":
        """Return the multipliers with those of further rows, at their prior."""
        new = NoiseScales.prior(rows, self.degrees)
        return replace(self, shape=np.append(self.shape, new.shape), rate=np.append(self.rate, new.rate))

    def bound(self) -> float:
        """Return E log p(ω) − E log q(ω)."""
        half = self.degrees / 2
        prior = half * np.log(half) - gammaln(half) + (half - 1) * self.logs - half * self.means
        entropy = self.shape - np.log(self.rate) + gammaln(self.shape) + (1 - self.shape) * digamma(self.shape)
        return float(np.sum(prior + entropy))


@storable
@dataclass(frozen=True)
class FeatureMap:
    """The features of one side: a constant, standardised side information, and what its ratings are of.

    Examples
    --------
    >>> features = FeatureMap.of(np.array([[1.0], [3.0], [np.nan]]))
    >>> features(np.array([[5.0], [np.nan]]))
    array([[1., 3.],
           [1., 0.]])
    """

    centre: np.ndarray
    scale: np.ndarray
    basis: np.ndarray
    """For each row of the other side, what a row that has rated it adds to its features."""
    typical: np.ndarray
    """Coefficients of the sums over rated columns on the other features: what they explain is left out."""

    @staticmethod
    def of(side: np.ndarray, basis: np.ndarray | None = None, rated: csr_matrix | None = None) -> "FeatureMap":
        """Make the map from side information, NaN where it is missing, and from the rated cells and their basis."""
        known = side[~np.isnan(side).any(axis=1)]
        if not len(known):
            known = np.zeros((1, side.shape[1]))
        spread = known.std(axis=0)
        varies = spread > len(known) * np.finfo(float).eps * np.abs(known).max(axis=0)  # more than rounding
        scale = np.where(varies, spread, np.inf)
        plain = FeatureMap(known.mean(axis=0), scale, np.zeros((0, 0)), np.zeros((side.shape[1] + 1, 0)))
        if basis is None or rated is None:
            return plain
        # The mean is taken over ratings, not over rows: a row without ratings is expected to be their typical author.
        features, weights = plain(side), np.sqrt(np.diff(rated.indptr))[:, None]
        typical = np.linalg.lstsq(weights * features, weights * _sums(rated, basis), rcond=None)[0]
        return replace(plain, basis=basis, typical=typical)

    def __call__(self, side: np.ndarray, rated: csr_matrix | None = None) -> np.ndarray:
        """Return a line of features for each row; what is missing is taken to be average."""
        known = np.nan_to_num((side - self.centre) / self.scale, nan=0.0)
        features = np.hstack([np.ones((len(side), 1)), known])
        if not self.basis.shape[1]:
            return features
        sums = np.zeros((len(side), self.basis.shape[1]))
        if rated is not None:
            rated = rated[:, : len(self.basis)]  # columns that came after the fit are not in the basis
            has_ratings = (np.diff(rated.indptr) > 0)[:, None]
            sums = np.where(has_ratings, _sums(rated, self.basis) - features @ self.typical, 0.0)
        return np.hstack([features, sums])


def _sums(rated: csr_matrix, basis: np.ndarray) -> np.ndarray:
    return rated @ basis / np.sqrt(np.maximum(np.diff(rated.indptr), 1))[:, None]


def presence_bases(rated: csr_matrix, components: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the bases of rated cells: for columns, from which rows have features, and for rows, for columns.

    Examples
    --------
    >>> rated = csr_matrix(np.array([[1.0, 1.0, 0.0, 0.0], [1.0, 1.0, 0.0, 0.0], [0.0, 0.0, 1.0, 1.0]]))
    >>> for_rows, for_columns = presence_bases(rated, 2, seed=0)
    >>> for_rows.shape, for_columns.shape
    ((4, 2), (3, 2))
    """
    rows, columns = (np.sqrt(np.maximum(np.asarray(rated.sum(axis=axis)).ravel(), 1)) for axis in (1, 0))
    normalised = rated.multiply(1 / rows[:, None]).multiply(1 / columns[None, :]).tocsr()
    left, strengths, right = randomized_svd(normalised, components, random_state=seed)
    # A row's feature is strength × left; divided by its spread over rows, all features have one size.
    spreads = strengths * np.stack([left.std(axis=0), right.std(axis=1)])
    rounding = np.finfo(spreads.dtype).eps * strengths[0]
    row_scales, column_scales = np.where(spreads > rounding, spreads, np.inf)
    return right.T / columns[:, None] / row_scales, left / rows[:, None] / column_scales

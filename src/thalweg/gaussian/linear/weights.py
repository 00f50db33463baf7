"""The posterior N(m, V) over the weights of a linear predictor, and what follows from it.

Weights are counted in prior standard deviations, so that the prior is N(0, I), and the features are centred if there is
an intercept: :class:`PriorFrame` holds these coordinates. V is a matrix, or, where there are more weights than
examples, the prior's outside the space that the examples span, and no matrix over pairs of weights is formed. A
posterior averaged over several priors is a mixture of such Gaussians.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.special import stdtr, stdtrit

from thalweg.codec import storable
from thalweg.gaussian.likelihood import mean_targets
from thalweg.gaussian.linear.observations import LinearObservations, check_numbers
from thalweg.gaussian.posteriors import Full

__all__ = ["CoefficientMarginals", "PriorFrame", "WeightPosterior"]

RELATIVE_ROUNDING = 1e-12
"""A standard deviation of a column below this share of its size is rounding. Ten times less would take the rounding of
columns of a million rows for variation."""


@storable
@dataclass(frozen=True)
class PriorFrame:
    """The coordinates of the weights: centre of the features (None without intercept), prior standard deviations.

    With an intercept the prior mean of the linear predictor is ``intercept`` where all features are at the centre.

    Examples
    --------
    >>> PriorFrame(centre=np.array([2.0]), scales=np.array([10.0, 0.5])).design(np.array([[1.0, 4.0]]))
    array([[10.,  1.]])
    """

    centre: np.ndarray | None
    scales: np.ndarray
    intercept: float = 0.0

    def check_stored(self) -> None:
        """Refuse coordinates that do not fit one another."""
        check_numbers(self, scales=(len(self.scales),), intercept=())
        if self.centre is not None:
            check_numbers(self, centre=(len(self.scales) - 1,))

    def spreads(self, rows: LinearObservations) -> np.ndarray:
        """The part of each weight but the intercept's in the prior standard deviation of the linear predictor.

        It is 0 for a constant column, but for rounding.
        """
        mean_squares = lambda columns: rows.weights @ columns[:, self.intercepts :] ** 2 / np.sum(rows.weights)
        centred, plain = mean_squares(self.design(rows.columns)), mean_squares(rows.columns * self.scales)
        return np.sqrt(np.where(centred > RELATIVE_ROUNDING**2 * plain, centred, 0.0))

    def origin(self, columns: np.ndarray) -> np.ndarray:
        """The prior mean of the linear predictor of each row."""
        return self.intercept * columns[:, 0] if self.intercepts else np.zeros(len(columns))

    @property
    def intercepts(self) -> int:
        """1 with an intercept, 0 without: where the other weights begin."""
        return int(self.centre is not None)

    def design(self, columns: np.ndarray) -> np.ndarray:
        """The columns in these coordinates."""
        if self.centre is None:
            return columns * self.scales
        ones = columns[:, :1]
        return np.hstack([ones, columns[:, 1:] - ones * self.centre]) * self.scales

    def back(self) -> np.ndarray:
        """The matrix that maps weights in these coordinates to coefficients in the units of the data."""
        matrix = np.diag(self.scales)
        if self.centre is not None:
            matrix[0, 1:] = -self.centre * self.scales[1:]
        return matrix


@storable
@dataclass(frozen=True)
class WeightPosterior:
    """The posterior N(mean, V) in the coordinates of a frame.

    V is ``covariance``, or I + B(C − I)Bᵀ of more weights than examples: the prior's but along ``basis``.

    Examples
    --------
    >>> WeightPosterior(PriorFrame(None, np.array([2.0])), np.ones(1), np.array([[0.25]])).coefficients()
    (array([2.]), array([1.]))
    """

    frame: PriorFrame
    mean: Any
    covariance: Any
    """V, or C, that of the weights along the basis."""
    basis: np.ndarray | None = None
    """B, orthonormal columns that span the rows of the design."""
    freedom: float = np.inf
    """Degrees of freedom of Student's t distributions, where the variance of the noise has been learned."""
    inflation: float = 1.0
    """By how much the noise learned was too small, since the weights had followed it: V is larger by this factor."""
    likelihood: Any = None
    """With the parameters that belong to this posterior."""

    def check_stored(self) -> None:
        """Refuse a covariance of other weights than there are."""
        count = rank = len(self.frame.scales)
        if self.basis is not None:
            rank = np.shape(self.basis)[-1]
            check_numbers(self, basis=(count, rank))
        check_numbers(self, mean=(count,), inflation=(), covariance=(rank, rank))
        if not self.freedom > 0:
            raise ValueError(f"{self.freedom} degrees of freedom")

    def latent(self, columns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance of the linear predictor."""
        design = self.frame.design(columns)
        if self.basis is None:
            variance = np.sum((design @ self.covariance) * design, axis=1)
        else:
            variance = np.sum(design**2, axis=1) - self._learned(design @ self.basis)
        return self.frame.origin(columns) + design @ self.mean, self.inflation * np.maximum(variance, 0)

    def variances(self) -> np.ndarray:
        """The diagonal of V."""
        return np.diagonal(self.covariance) if self.basis is None else 1 - self._learned(self.basis)

    def _learned(self, along: np.ndarray) -> np.ndarray:
        """How much less variance than a priori there is in each row of weights along the basis."""
        return np.sum((along - along @ self.covariance) * along, axis=1)

    def coefficients(self) -> tuple[np.ndarray, np.ndarray]:
        """Means and standard deviations in the units of the data, the intercept's first if there is one."""
        scales = self.frame.scales
        means, deviations = scales * self.mean, scales * np.sqrt(self.inflation * np.maximum(self.variances(), 0))
        if self.frame.centre is not None:
            # The intercept is the linear predictor where all features are 0.
            (means[0],), (variance,) = self.latent(np.eye(1, len(scales)))
            deviations[0] = np.sqrt(variance)
        return means, deviations

    def second_moments(self) -> np.ndarray:
        """m² + V of all weights but the intercept's; 1 where the examples say what the prior does."""
        return (self.mean**2 + self.variances())[self.frame.intercepts :]

    def covariance_of_coefficients(self) -> np.ndarray | None:
        """Over all pairs, the intercept first; None where it was not formed."""
        if self.basis is not None:
            return None
        back = self.frame.back()
        return self.inflation * (back @ self.covariance @ back.T)

    def with_learned_noise(self, total: float) -> "WeightPosterior":
        """The same where the noise was learned too, from examples of this total weight.

        They have n − Σ(1 − V) degrees of freedom left, the sum being what the weights have learned from them. As many
        weights as examples, or more, could follow any noise; their prior keeps them from it, and half of n are left.
        """
        freedom = max(self.learned_freedom(total), total / 2 if len(self.mean) >= total else 0.0)
        return replace(self, freedom=freedom, inflation=max(total / freedom, 1.0))

    def learned_freedom(self, total: float) -> float:
        """The degrees of freedom that examples of this total weight leave to a noise or a dispersion."""
        return max(total - float(np.sum(1 - self.variances())), 1.0)

    def predict(self, columns: np.ndarray, offsets: np.ndarray | float = 0.0) -> np.ndarray:
        """The mean of the targets of rows."""
        mean, variance = self.latent(columns)
        return mean_targets(self.likelihood, mean + offsets, variance)

    def sample(
        self, count: int, columns: np.ndarray, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Draw coefficients and the linear predictors of rows, and the factors by which the variance learned is off."""
        zeros = np.zeros(len(self.covariance))
        shifts = rng.multivariate_normal(zeros, self.covariance, count, check_valid="ignore", method="eigh")
        if self.basis is not None:
            prior = rng.normal(size=(count, len(self.mean)))
            shifts = prior + (shifts - prior @ self.basis) @ self.basis.T
        known = np.isinf(self.freedom)
        factors = np.ones(count) if known else self.freedom / rng.chisquare(self.freedom, size=count)
        factors *= self.inflation
        weights = self.mean + np.sqrt(factors)[:, None] * shifts
        coefficients = weights * self.frame.scales
        if self.frame.centre is not None:
            coefficients[:, 0] += self.frame.intercept - coefficients[:, 1:] @ self.frame.centre
        return coefficients, self.frame.origin(columns) + weights @ self.frame.design(columns).T, factors

    def parts(self) -> tuple[tuple[float, "WeightPosterior"], ...]:
        """Itself, with all of the probability: a mixture has several."""
        return ((1.0, self),)

    def as_prior(self) -> Full:
        """The prior of the examples that come next."""
        if self.basis is None:
            return Full.from_moments(self.mean, self.covariance)
        learned = self.basis @ (np.eye(len(self.covariance)) - self.covariance) @ self.basis.T
        return Full.from_moments(self.mean, np.eye(len(self.mean)) - learned)


@storable
@dataclass(frozen=True)
class PosteriorMixture(WeightPosterior):
    """The posterior Σ share·N(mean, V), beside the most probable of its kind.

    Means and variances are those of the whole, by the law of total variance.

    Examples
    --------
    >>> part = lambda mean: WeightPosterior(PriorFrame(None, np.ones(1)), np.array([mean]), np.ones((1, 1)))
    >>> members = part(0.0), part(2.0)
    >>> mixture = PosteriorMixture(**vars(members[0]), members=members, shares=np.array([0.5, 0.5]))
    >>> means, deviations = mixture.coefficients()
    >>> float(means[0]), round(float(deviations[0] ** 2), 6)
    (1.0, 2.0)
    """

    members: tuple[WeightPosterior, ...] = ()
    shares: Any = None

    def check_stored(self) -> None:
        """Refuse members of other weights."""
        super().check_stored()
        check_numbers(self, shares=(len(self.members),))
        if any(len(part.frame.scales) != len(self.frame.scales) for part in self.members):
            raise ValueError("members of other weights")

    def parts(self) -> tuple[tuple[float, WeightPosterior], ...]:
        """The probability of each member, and the member."""
        return tuple(zip(self.shares.tolist(), self.members, strict=True))

    def _total(self, means: np.ndarray, variances: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        mean = self.shares @ means
        return mean, self.shares @ (variances + (means - mean) ** 2)

    def latent(self, columns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance of the linear predictor."""
        return self._total(*np.stack([member.latent(columns) for member in self.members], axis=1))

    def coefficients(self) -> tuple[np.ndarray, np.ndarray]:
        """Means and standard deviations in the units of the data, the intercept's first if there is one."""
        means, deviations = np.stack([member.coefficients() for member in self.members], axis=1)
        mean, variance = self._total(means, deviations**2)
        return mean, np.sqrt(variance)

    def covariance_of_coefficients(self) -> np.ndarray | None:
        """Over all pairs, the intercept first; None where it was not formed."""
        covariances = [member.covariance_of_coefficients() for member in self.members]
        if any(covariance is None for covariance in covariances):
            return None
        return self._covariance(np.stack([member.coefficients()[0] for member in self.members]), covariances)

    def _covariance(self, means: np.ndarray, covariances: list[Any]) -> Any:
        shifts = means - self.shares @ means
        within = sum(share * covariance for share, covariance in zip(self.shares, covariances, strict=True))
        return within + (shifts.T * self.shares) @ shifts

    def as_prior(self) -> Full:
        """The Gaussian of the same mean and covariance, as the prior of the examples that come next."""
        priors = [(member.as_prior(), member.frame.scales / self.frame.scales) for member in self.members]
        means = np.stack([scales * prior.mean for prior, scales in priors])
        covariance = self._covariance(means, [scales[:, None] * prior.covariance * scales for prior, scales in priors])
        return Full.from_moments(self.shares @ means, covariance)


@dataclass(frozen=True)
class CoefficientMarginals:
    """The distributions of single numbers: each a mixture of normal or Student's t distributions, one per row.

    Examples
    --------
    >>> normal = CoefficientMarginals(np.ones(1), np.zeros((1, 1)), np.ones((1, 1)), np.array([np.inf]))
    >>> normal.interval(0.95).round(2)
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
        """Bisect between the quantiles of the parts, where that of the mixture is."""
        ends = self.means + stdtrit(self.freedoms[:, None], probability) * self.deviations
        low, high = ends.min(axis=0), ends.max(axis=0)
        middle = (low + high) / 2
        while np.any((low < middle) & (middle < high)):
            under = self.below(middle) < probability
            low, high = np.where(under, middle, low), np.where(under, high, middle)
            middle = (low + high) / 2
        return middle

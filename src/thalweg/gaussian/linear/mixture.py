"""A posterior averaged over several priors: a mixture of Gaussians over the weights."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from thalweg.codec import storable
from thalweg.gaussian.linear.observations import check_numbers
from thalweg.gaussian.linear.weights import Frame, Weights
from thalweg.gaussian.posteriors import Full


@storable
@dataclass(frozen=True)
class Mixture:
    """The posterior Σ share·N(mean, V): means and variances are those of the whole, by the law of total variance.

    Examples
    --------
    >>> part = lambda mean: Weights(Frame(None, np.ones(1)), np.array([mean]), Full(*np.ones((3, 1, 1))))
    >>> means, deviations = Mixture(part(0.0).frame, (part(0.0), part(2.0)), np.array([0.5, 0.5])).coefficients()
    >>> float(means[0]), round(float(deviations[0] ** 2), 6)
    (1.0, 2.0)
    """

    frame: Frame
    """The coordinates in which it is a prior of what comes next."""
    members: tuple[Weights, ...]
    shares: np.ndarray

    def check_stored(self) -> None:
        """Refuse members of other weights."""
        check_numbers("shares", self.shares, (len(self.members),))
        if any(len(part.frame.scales) != len(self.frame.scales) for part in self.members):
            raise ValueError("members of other weights")

    def parts(self) -> tuple[tuple[float, Weights], ...]:
        """The probability of each member, and the member."""
        return tuple(zip(self.shares.tolist(), self.members, strict=True))

    def _total(self, means: np.ndarray, variances: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        mean = self.shares @ means
        return mean, self.shares @ (variances + (means - mean) ** 2)

    def latent(self, columns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance of the linear predictor."""
        means, variances = zip(*(member.latent(columns) for member in self.members), strict=True)
        return self._total(np.stack(means), np.stack(variances))

    def coefficients(self) -> tuple[np.ndarray, np.ndarray]:
        """Means and standard deviations in the units of the data, the intercept's first if there is one."""
        means, deviations = zip(*(member.coefficients() for member in self.members), strict=True)
        mean, variance = self._total(np.stack(means), np.stack(deviations) ** 2)
        return mean, np.sqrt(variance)

    def covariance_of_coefficients(self) -> np.ndarray | None:
        """Over all pairs, the intercept first; None where it was not formed."""
        covariances = [member.covariance_of_coefficients() for member in self.members]
        if any(covariance is None for covariance in covariances):
            return None
        return self._covariance(np.stack([member.coefficients()[0] for member in self.members]), covariances)

    def _covariance(self, means: np.ndarray, covariances: list[Any]) -> Any:
        away = means - self.shares @ means
        within = sum(share * covariance for share, covariance in zip(self.shares, covariances, strict=True))
        return within + (away.T * self.shares) @ away

    def as_prior(self) -> Full:
        """The Gaussian of the same mean and covariance, as the prior of the examples that come next."""
        priors = [(member.as_prior(), member.frame.scales / self.frame.scales) for member in self.members]
        means = np.stack([units * prior.mean for prior, units in priors])
        covariance = self._covariance(means, [units[:, None] * prior.covariance * units for prior, units in priors])
        precision: Any = np.linalg.inv(covariance)
        mean: Any = self.shares @ means
        return Full(mean, covariance, (precision + precision.T) / 2)

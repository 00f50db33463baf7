"""The prior of documents, N(Cᵀx_d, Σ), and how it is learned from their posteriors.

x_d begins with a 1; without covariates there is nothing else, and Cᵀ is the mean μ. The part of z that is the same for
all topics does not change proportions, so C is reported with rows that sum to zero.
"""

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from thalweg.files import storable
from thalweg.linalg import factorise

__all__ = ["Prevalence", "TopicMoments"]

COVARIANCE_SHRINKAGE = 10.0
"""Documents' worth of prior belief, for each topic, that Σ is the identity: with many topics, few documents say little
of it. Doubled, correlations of a few hundred documents shrink."""


class DocumentPrior(NamedTuple):
    """N(μ_d, Σ) of documents for a compiled program: means, the one precision Σ⁻¹, and log |Σ⁻¹|."""

    means: Float[Any, "d k"]
    precision: Float[Any, "k k"]
    log_determinant: Float[Any, ""]


@storable
class TopicMoments(NamedTuple):
    """Means over documents of xxᵀ, xmᵀ and mmᵀ + V: the statistics that the prior is learned from.

    Examples
    --------
    >>> moments = TopicMoments.of(np.ones((2, 1)), np.array([[1.0], [3.0]]), np.array([[2.0]]))
    >>> moments.xm, moments.mm
    (array([[2.]]), array([[6.]]))
    """

    xx: Float[np.ndarray, "p p"]
    xm: Float[np.ndarray, "p k"]
    mm: Float[np.ndarray, "k k"]

    @classmethod
    def of(cls, design: np.ndarray, means: np.ndarray, covariance_sum: np.ndarray) -> "TopicMoments":
        """Return the moments of some documents from their means and the sum of their V."""
        count = max(len(design), 1)
        return cls(design.T @ design / count, design.T @ means / count, (means.T @ means + covariance_sum) / count)

    def mixed(self, new: "TopicMoments", share: float) -> "TopicMoments":
        """Return the mean of these moments and of ``share`` of new ones."""
        return TopicMoments(*((1 - share) * old + share * fresh for old, fresh in zip(self, new, strict=True)))


@storable
class Prevalence(NamedTuple):
    """N(Cᵀx, Σ).

    Examples
    --------
    >>> Prevalence.start(1, 2).covariance
    array([[1., 0.],
           [0., 1.]])
    """

    coefficients: Float[np.ndarray, "p k"]
    covariance: Float[np.ndarray, "k k"]

    @classmethod
    def start(cls, covariates: int, topics: int) -> "Prevalence":
        """Return N(0, I)."""
        return cls(np.zeros((covariates, topics)), np.eye(topics))

    @classmethod
    def learned(cls, moments: TopicMoments, documents: float) -> "Prevalence":
        """Return the most probable prior given posteriors of ``documents`` documents.

        Examples
        --------
        >>> means = np.array([[1.0, 0.0], [3.0, 0.0]])
        >>> Prevalence.learned(TopicMoments.of(np.ones((2, 1)), means, np.zeros((2, 2))), 2).coefficients
        array([[2., 0.]])
        """
        coefficients = np.linalg.solve(moments.xx + covariate_ridge(len(moments.xx)) / max(documents, 1), moments.xm)
        explained = coefficients.T @ moments.xm
        covariance = moments.mm - explained - explained.T + coefficients.T @ moments.xx @ coefficients
        belief = COVARIANCE_SHRINKAGE * len(covariance)
        covariance = (documents * covariance + belief * np.eye(len(covariance))) / (documents + belief)
        return cls(coefficients, (covariance + covariance.T) / 2)

    def prior(self, design: Float[np.ndarray, "d p"]) -> DocumentPrior:
        """Return the prior of documents with given covariates."""
        factor = factorise(self.covariance)
        parts = design @ self.coefficients, factor.inverse(), -factor.log_determinant()
        return DocumentPrior(*(np.asarray(part, np.float32) for part in parts))


def covariate_ridge(covariates: int) -> Float[np.ndarray, "p p"]:
    """Return the precision of the prior C ~ N(0, Σ) a standard deviation of a covariate; the intercept is free."""
    return np.diag(np.arange(covariates) > 0).astype(float)

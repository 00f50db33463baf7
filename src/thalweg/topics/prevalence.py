"""The prior of documents, N(Cᵀx_d, Σ): learned from their posteriors, and the errors of its coefficients C.

x_d begins with a 1; without covariates there is nothing else, and Cᵀ is the mean μ. The part of z that is the same for
all topics cannot be seen in words, so C is reported with rows that sum to zero.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from thalweg.files import storable

_RIDGE = 1.0
"""Documents' worth of belief that covariates, in standard deviations, have no effect."""
_SHRINKAGE = 10.0
"""Documents' worth of belief, for each topic, that Σ is the identity."""


@storable
class TopicMoments(NamedTuple):
    """Means over documents of xxᵀ, xmᵀ and mmᵀ + V: what the prior is learned from.

    Examples
    --------
    >>> found = TopicMoments.of(np.ones((2, 1)), np.array([[1.0], [3.0]]), np.array([[2.0]]))
    >>> found.xm, found.mm
    (array([[2.]]), array([[6.]]))
    """

    xx: Float[np.ndarray, "p p"]
    xm: Float[np.ndarray, "p k"]
    mm: Float[np.ndarray, "k k"]

    @classmethod
    def of(cls, design: np.ndarray, means: np.ndarray, spread: np.ndarray) -> "TopicMoments":
        """Those of some documents; ``spread`` is the sum of their V."""
        count = max(len(design), 1)
        return cls(design.T @ design / count, design.T @ means / count, (means.T @ means + spread) / count)


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
        """N(0, I)."""
        return cls(np.zeros((covariates, topics)), np.eye(topics))

    @classmethod
    def learned(cls, moments: TopicMoments, documents: float, ridge: float = _RIDGE) -> "Prevalence":
        """The most probable prior given posteriors of ``documents`` documents.

        Examples
        --------
        >>> means = np.array([[1.0, 0.0], [3.0, 0.0]])
        >>> Prevalence.learned(TopicMoments.of(np.ones((2, 1)), means, np.zeros((2, 2))), 2).coefficients
        array([[2., 0.]])
        """
        belief = np.full(len(moments.xx), ridge / max(documents, 1))
        belief[0] = 0
        coefficients = np.linalg.solve(moments.xx + np.diag(belief), moments.xm)
        explained = coefficients.T @ moments.xm
        covariance = moments.mm - explained - explained.T + coefficients.T @ moments.xx @ coefficients
        prior = _SHRINKAGE * len(covariance)
        covariance = (documents * covariance + prior * np.eye(len(covariance))) / (documents + prior)
        return cls(coefficients, (covariance + covariance.T) / 2)


def contrasts(topics: int) -> Float[np.ndarray, "k r"]:
    """An orthonormal basis of the vectors of ``topics`` entries that sum to zero.

    Examples
    --------
    >>> basis = contrasts(3)
    >>> bool(np.allclose(basis.T @ basis, np.eye(2))), bool(np.allclose(basis.sum(axis=0), 0))
    (True, True)
    """
    columns = np.eye(topics)[:, : topics - 1] - 1 / topics
    return np.linalg.qr(columns)[0] if topics > 1 else np.zeros((1, 0))

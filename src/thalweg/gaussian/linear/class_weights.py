"""The posterior over the weights of several classes: P(class) = softmax(z), a linear predictor z for each class."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from thalweg.codec import storable
from thalweg.gaussian.linear.observations import check_numbers
from thalweg.gaussian.linear.weights import PriorFrame, WeightPosterior
from thalweg.gaussian.posteriors import Full
from thalweg.gaussian.softmax import NODES, ExpectedSoftmax, contrasts
from thalweg.threads import enough_threads

FEW_NODES, FEW_NODES_VARIANCE = 16, 0.25
"""Nodes that are enough for few classes if the linear predictors of no row vary by more than this: mean probabilities
are then off by 5e-4 at most, as with all nodes where they vary by 1."""


@storable
@dataclass(frozen=True)
class ClassWeights(WeightPosterior):
    """The posterior of the weights of several classes: ``mean`` has a row for each contrast between classes.

    The intercept of its frame is not used.

    Examples
    --------
    >>> frame, zeros = PriorFrame(None, np.ones(1)), np.zeros((2, 1))
    >>> ClassWeights(frame, zeros, np.eye(2), intercepts=np.zeros(3)).predict(np.ones((1, 1))).round(2)
    array([[0.33, 0.33, 0.33]])
    """

    intercepts: Any = None
    """Prior means of the intercepts of the classes."""
    shift: Any = 0.0
    """Of the linear predictor of each class in predictions, so that they add up to the labels seen."""

    def check_stored(self) -> None:
        """Refuse arrays that do not fit one another."""
        shape = len(self.intercepts) - 1, len(self.frame.scales)
        check_numbers("intercepts", self.intercepts, (len(self.intercepts),))
        check_numbers("means", self.mean, shape)
        check_numbers("covariances", self.covariance, (shape[0] * shape[1],) * 2)
        check_numbers("shifts", self.intercepts + self.shift, (len(self.intercepts),))

    def second_moments(self) -> np.ndarray:
        """m² + V of each feature's weights, averaged over the contrasts; 1 where the examples say nothing."""
        return np.mean(self.mean**2 + self.variances().reshape(self.mean.shape), axis=0)[self.frame.intercepts :]

    def coefficients(self) -> tuple[np.ndarray, np.ndarray]:
        """Means and standard deviations in the units of the data, a row for each class; classes add up to 0."""
        means = self._in_units_of_data(self.mean[None])[0]
        variances = np.diagonal(self.covariance_of_coefficients())
        return means, np.sqrt(np.maximum(variances, 0)).reshape(means.shape)

    def covariance_of_coefficients(self) -> np.ndarray:
        """Over all pairs, all of a class after all of the one before."""
        matrix = np.kron(self._basis / np.sqrt(2), self.frame.back())
        return matrix @ self.covariance @ matrix.T

    def _in_units_of_data(self, draws: np.ndarray) -> np.ndarray:
        """Weights as coefficients, a row for each class."""
        coefficients = self._basis / np.sqrt(2) @ draws @ self.frame.back().T
        if self.frame.centre is not None:
            coefficients[..., 0] += self.intercepts - np.mean(self.intercepts)
        return coefficients

    def nodes_needed(self, columns: np.ndarray) -> int:
        """The nodes that expectations at these rows need."""
        design = self._design(columns)
        variances = np.sum((design @ np.einsum("apaq->pq", self._blocks)) * design, axis=1)
        return NODES if np.max(variances) > FEW_NODES_VARIANCE else FEW_NODES

    def in_frame(self, frame: PriorFrame) -> Full:
        """The same in the coordinates of a frame with other scales."""
        scales = np.tile(self.frame.scales / frame.scales, len(self.mean))
        return Full.from_moments(scales * self.mean.reshape(-1), scales[:, None] * self.covariance * scales)

    def leverages(self, columns: np.ndarray) -> np.ndarray:
        """p V[z − Σpz] of each class at rows, p its probability: the share of the information on it in an example."""
        design, probabilities = self._design(columns), self.predict(columns, nodes=self.nodes_needed(columns))
        between = np.einsum("np,apbq,nq->nab", design, self._blocks, design, optimize=True)
        centred = self._basis - (probabilities @ self._basis)[:, None]
        return np.clip(probabilities * np.einsum("nka,nab,nkb->nk", centred, between, centred, optimize=True), 0, 1)

    def sample(
        self, count: int, columns: np.ndarray, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Draw coefficients, and with each the linear predictors of rows: a class along the first axis; and ones."""
        mean = self.mean.reshape(-1)
        draws = rng.multivariate_normal(mean, self.covariance, count, check_valid="ignore", method="eigh")
        draws = draws.reshape(count, *self.mean.shape)
        latent = np.einsum("ka,nap,rp->knr", self._basis, draws, self._design(columns), optimize=True)
        prior = (self.intercepts + self.shift)[:, None, None]
        return self._in_units_of_data(draws), prior + latent, np.ones(count)

    def predict(self, columns: np.ndarray, offsets: Any = 0.0, nodes: int = NODES) -> np.ndarray:
        """The probabilities of the classes, averaged over the posterior; offsets, common to all, change nothing."""
        design, counts = self._design(columns), np.zeros((len(columns), len(self.intercepts)))
        likelihood = ExpectedSoftmax.of(counts, design, self.intercepts + self.shift, nodes)
        posterior: Any = Full(self.mean.reshape(-1), self.covariance, self.covariance)
        with enough_threads(nodes):
            return likelihood.mean_probabilities(posterior)

    @property
    def _basis(self) -> np.ndarray:
        return contrasts(len(self.intercepts))

    @property
    def _blocks(self) -> np.ndarray:
        """The covariance by contrast, feature, contrast and feature."""
        return self.covariance.reshape(self.mean.shape * 2)

    def _design(self, columns: np.ndarray) -> np.ndarray:
        return self.frame.design(columns) / np.sqrt(2)

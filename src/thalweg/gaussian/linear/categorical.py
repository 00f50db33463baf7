"""Linear models of several classes: P(class) = softmax(z), a linear predictor z for each class."""

from dataclasses import replace
from typing import Any, NamedTuple

import jax
import numpy as np

from thalweg.codec import storable
from thalweg.descent import History, Status
from thalweg.gaussian.ascent import maximise_bound, place
from thalweg.gaussian.divergence import KLToNormal
from thalweg.gaussian.linear.fitting import (
    ROWS_PER_FEATURE,
    LinearModel,
    widen_with_jeffreys,
)
from thalweg.gaussian.linear.observations import LinearObservations, check_numbers, with_intercept
from thalweg.gaussian.linear.solution import standard_normal
from thalweg.gaussian.linear.weights import PriorFrame
from thalweg.gaussian.posteriors import Full
from thalweg.gaussian.softmax import NODES, ExpectedSoftmax, contrasts
from thalweg.threads import enough_threads

FEW_NODES, FEW_NODES_VARIANCE = 16, 0.25
"""Nodes that are enough for few classes if the linear predictors of no row vary by more than this: mean probabilities
are then off by 5e-4 at most, as with all nodes where they vary by 1."""


@storable
class CategoricalFit(NamedTuple):
    """The posterior of the weights of several classes; arrays are NumPy's.

    The intercept of its frame is not used.

    Examples
    --------
    >>> from thalweg.gaussian.linear import AscentSettings, BinaryTargets
    >>> rows = LinearObservations(np.ones((3, 1)), np.array([0, 1, 2]), np.ones(3))
    >>> result = fit_categorical(rows, 3, LinearModel(BinaryTargets(), AscentSettings(1e-6, 100), 1.0, None))
    >>> result.probabilities(np.ones((1, 1))).round(3)
    array([[0.333, 0.333, 0.333]])
    """

    frame: PriorFrame
    mean: np.ndarray
    """Of the weights in these coordinates: a row for each contrast of the classes."""
    covariance: np.ndarray
    """Over all of them."""
    intercepts: np.ndarray
    """Prior means of the intercepts of the classes."""
    elbo: float
    steps: int
    status: Status
    history: History
    prior_scale: Any
    shift: np.ndarray | float = 0.0
    """Of the linear predictor of each class in predictions, so that they add up to the labels seen."""

    def check_stored(self) -> None:
        """Refuse arrays that do not fit one another."""
        shape = len(self.intercepts) - 1, len(self.frame.scales)
        check_numbers("intercepts", self.intercepts, (len(self.intercepts),))
        check_numbers("means", self.mean, shape)
        check_numbers("covariances", self.covariance, (shape[0] * shape[1],) * 2)
        check_numbers("shifts", self.intercepts + self.shift, (len(self.intercepts),))

    def _to_coefficients(self) -> np.ndarray:
        """The matrix that maps weights to coefficients: all of a class after all of the one before."""
        return np.kron(contrasts(len(self.intercepts)) / np.sqrt(2), self.frame.back())

    def second_moments(self) -> np.ndarray:
        """m² + V of each feature's weights, averaged over the contrasts; 1 where the examples say nothing."""
        variances = np.diagonal(self.covariance).reshape(self.mean.shape)
        return np.mean(self.mean**2 + variances, axis=0)[self.frame.intercepts :]

    def coefficients(self) -> tuple[np.ndarray, np.ndarray]:
        """Means and covariance in the units of the data: those of a class after those before; classes add up to 0."""
        matrix = self._to_coefficients()
        means = (matrix @ self.mean.reshape(-1)).reshape(len(self.intercepts), -1)
        if self.frame.centre is not None:
            means[:, 0] += self.intercepts - np.mean(self.intercepts)
        return means.reshape(-1), matrix @ self.covariance @ matrix.T

    def nodes_needed(self, columns: np.ndarray) -> int:
        """The nodes that expectations at these rows need."""
        design = self._design(columns)
        blocks = self.covariance.reshape(self.mean.shape * 2)
        variances = np.sum((design @ np.einsum("apaq->pq", blocks)) * design, axis=1)
        return NODES if np.max(variances) > FEW_NODES_VARIANCE else FEW_NODES

    def in_frame(self, frame: PriorFrame) -> Full:
        """The same in the coordinates of a frame with other scales."""
        scales = np.tile(self.frame.scales / frame.scales, len(self.mean))
        return Full.from_moments(scales * self.mean.reshape(-1), scales[:, None] * self.covariance * scales)

    def leverages(self, columns: np.ndarray) -> np.ndarray:
        """p V[z − Σpz] of each class at rows, p its probability: the share of the information on it in an example."""
        design, basis = self._design(columns), contrasts(len(self.intercepts))
        probabilities = self.probabilities(columns[:, self.frame.intercepts :], self.nodes_needed(columns))
        blocks = self.covariance.reshape(self.mean.shape * 2)
        between = np.einsum("np,apbq,nq->nab", design, blocks, design, optimize=True)
        centred = basis - (probabilities @ basis)[:, None]
        return np.clip(probabilities * np.einsum("nka,nab,nkb->nk", centred, between, centred, optimize=True), 0, 1)

    def sample(self, count: int, X: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Draw coefficients, and with each the linear predictors of rows: a class along the last axis."""
        mean, classes = self.mean.reshape(-1), len(self.intercepts)
        draws = rng.multivariate_normal(mean, self.covariance, count, check_valid="ignore", method="eigh")
        coefficients = self.coefficients()[0] + (draws - mean) @ self._to_coefficients().T
        design = self._design(with_intercept(X, self.frame.centre is not None))
        in_basis = (draws.reshape(count, *self.mean.shape) @ design.T).swapaxes(1, 2)
        latent = self.intercepts + self.shift + in_basis @ contrasts(classes).T
        return coefficients.reshape(count, classes, -1), latent

    def probabilities(self, X: np.ndarray, nodes: int = NODES) -> np.ndarray:
        """The probabilities of the classes, averaged over the posterior."""
        design, classes = self._design(with_intercept(X, self.frame.centre is not None)), len(self.intercepts)
        likelihood = ExpectedSoftmax.of(np.zeros((len(X), classes)), design, self.intercepts + self.shift, nodes)
        posterior: Any = Full(self.mean.reshape(-1), self.covariance, self.covariance)  # type: ignore[arg-type]
        with enough_threads(nodes):
            return likelihood.mean_probabilities(posterior)

    def _design(self, columns: np.ndarray) -> np.ndarray:
        return self.frame.design(columns) / np.sqrt(2)


def fit_categorical(rows: LinearObservations, classes: int, model: LinearModel) -> CategoricalFit:
    """The posterior given observations whose targets are 0, 1, …; prior scales are those of log-odds of two classes."""
    labels = rows.weights[:, None] * np.eye(classes)[rows.targets.astype(int)]
    rows = rows._replace(targets=0 * rows.targets)

    # Of a fit that only says which scales, pseudo-labels and nodes it takes, half of the digits are enough.
    rough_model = replace(model, settings=model.settings._replace(tol=np.sqrt(model.settings.tol)))

    def fit_at(scale: Any, nearby: CategoricalFit | None, last: bool) -> CategoricalFit:
        if nearby is None:
            return _fit_at(rows, labels, rough_model, scale)
        # Half as many labels of each class as an example has leverage on it (Kosmidis and Firth 2011).
        pseudo_labels = rows.weights[:, None] * nearby.leverages(rows.columns) / 2
        return _fit_at(rows, labels + pseudo_labels, model if last else rough_model, scale, nearby)

    with enough_threads(NODES):
        if not isinstance(model.prior_scale, str):
            rough = fit_at(model.prior_scale, None, last=False)
            if rough.status is Status.INTERRUPTED:
                return rough
            result = _fit_at(rows, labels, model, model.prior_scale, rough)
            return result._replace(steps=rough.steps + result.steps)
        wide = model.wide_scales(rows)
        # All features together say no more a priori than as many as there are tens of examples.
        enough = np.sum(rows.weights) / (ROWS_PER_FEATURE * len(wide))
        balance = lambda result: result if model.intercept_scale is None else _balance(rows, labels, result)
        narrowed = wide * min(1.0, np.sqrt(enough))
        return widen_with_jeffreys(fit_at, narrowed, CategoricalFit.second_moments, balance)


def _balance(rows: LinearObservations, labels: np.ndarray, result: CategoricalFit) -> CategoricalFit:
    """Shift predictions until they add up to the labels seen, and half a label of each class.

    Pseudo-labels made rare classes frequent.
    """
    goal = np.sum(labels, axis=0) + 0.5
    nodes, last = result.nodes_needed(rows.columns), np.inf
    while True:
        probabilities = result.probabilities(rows.columns[:, 1:], nodes)
        missing = np.log(goal / np.sum(goal)) - np.log(rows.weights @ probabilities / np.sum(rows.weights))
        result = result._replace(shift=result.shift + missing)
        largest = np.max(np.abs(missing))
        # Each round leaves about the same share of what is missing.
        if largest < 1e-4 or largest >= last:
            return result
        last = largest


def _fit_at(
    rows: LinearObservations, labels: np.ndarray, model: LinearModel, scale: Any, nearby: CategoricalFit | None = None
) -> CategoricalFit:
    """The posterior for one prior scale; ``nearby`` is that for another, or for other labels, to start from."""
    frame, classes = model.frame(rows, scale), labels.shape[1]
    intercepts = np.zeros(classes) if model.intercept_scale is None else np.log(np.sum(labels, axis=0) + 0.5)
    nodes = FEW_NODES if nearby is None else nearby.nodes_needed(rows.columns)
    likelihood = ExpectedSoftmax.of(labels, frame.design(rows.columns) / np.sqrt(2), intercepts, nodes)
    design = likelihood.design
    prior = standard_normal((classes - 1) * len(frame.scales))
    if nearby is None:
        # At 0 with the largest curvature that a softmax has (Böhning 1992).
        information = (design.T * np.sum(labels, axis=1)) @ design / 2
        curvature = np.kron(np.eye(classes - 1), information)
        start: Any = Full.from_precision(prior.mean, prior.precision + curvature)
    else:
        start = nearby.in_frame(frame)
    with jax.enable_x64(True):
        likelihood, term, start = place((likelihood, KLToNormal(prior), start), labels.size * len(likelihood.nodes))
        result = maximise_bound(likelihood, term, start, **model.settings._asdict())
    mean, covariance = np.asarray(result.x.mean).reshape(classes - 1, -1), np.asarray(result.x.covariance)
    outcome = result.steps, result.status, result.history
    return CategoricalFit(frame, mean, covariance, intercepts, -result.loss, *outcome, scale)

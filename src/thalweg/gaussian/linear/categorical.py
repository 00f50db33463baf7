"""Linear models of several classes: P(class) = softmax(z), a linear predictor z for each class."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import jax
import numpy as np
from scipy.special import softmax

from thalweg.codec import storable
from thalweg.descent import Status
from thalweg.gaussian.ascent import maximise_bound, place
from thalweg.gaussian.divergence import KLToNormal
from thalweg.gaussian.linear.observations import LinearObservations, check_numbers
from thalweg.gaussian.linear.solution import LinearFit, LinearProblem, standard_normal
from thalweg.gaussian.linear.targets import ROWS_PER_FEATURE, TargetModel
from thalweg.gaussian.linear.weights import PriorFrame, WeightPosterior
from thalweg.gaussian.posteriors import Full
from thalweg.gaussian.softmax import NODES, ExpectedSoftmax, contrasts
from thalweg.threads import enough_threads

__all__ = ["CategoricalTargets", "ClassWeights"]

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
        classes, weights = len(self.intercepts), len(self.frame.scales)
        check_numbers(self, intercepts=(classes,), shift=np.shape(self.shift) and (classes,))
        check_numbers(self, mean=(classes - 1, weights), covariance=((classes - 1) * weights,) * 2)

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


@dataclass(frozen=True)
class CategoricalTargets(TargetModel):
    """0, 1, … of so many classes, or how often each class was seen in a row; prior scales are those of log-odds.

    Examples
    --------
    >>> from thalweg.gaussian.linear import AscentSettings, LinearModel
    >>> rows = LinearObservations(np.ones((3, 1)), np.array([0, 1, 2]), np.ones(3))
    >>> model = LinearModel(CategoricalTargets(3), AscentSettings(1e-6, 100), prior_scale=1.0, intercept_scale=None)
    >>> model.fit(rows).predict(np.ones((1, 1))).round(3)
    array([[0.333, 0.333, 0.333]])
    """

    classes: int

    jeffreys_widening: ClassVar[float] = 1.0

    def intercept_only(self, rows: LinearObservations) -> float:
        """0: each class has its own, which :meth:`posterior` finds."""
        return 0.0

    def wide_scale(self, rows: LinearObservations, wide: PriorFrame) -> float:
        """Less than 1 for few rows: all features together say no more a priori than as many as there are tens."""
        features = len(wide.scales) - wide.intercepts
        return float(min(1.0, np.sqrt(np.sum(rows.weights) / (ROWS_PER_FEATURE * features))))

    def uses_jeffreys(self, rows: LinearObservations) -> bool:
        """Always."""
        return True

    def learns_scale(self, rows: LinearObservations) -> bool:
        """Never: the wide prior is narrower for few rows."""
        return False

    def pseudo_observations(self, rows: LinearObservations, fit: LinearFit) -> LinearObservations:
        """Half as many labels of each class as an example has leverage on it (Kosmidis and Firth 2011)."""
        return rows._replace(targets=self._shares(rows) + fit.weights.leverages(rows.columns) / 2)

    def _shares(self, rows: LinearObservations) -> np.ndarray:
        """How often each class was seen in each row."""
        return rows.targets if rows.targets.ndim == 2 else np.eye(self.classes)[rows.targets.astype(int)]

    def balance(self, rows: LinearObservations, fit: LinearFit) -> LinearFit:
        """Shift predictions until they add up to the labels seen, and half a label of each class.

        Pseudo-labels made rare classes frequent.
        """
        goal = rows.weights @ self._shares(rows) + 0.5
        weights, last = fit.weights, np.inf
        nodes = weights.nodes_needed(rows.columns)
        while True:
            probabilities = weights.predict(rows.columns, nodes=nodes)
            missing = np.log(goal / np.sum(goal)) - np.log(rows.weights @ probabilities / np.sum(rows.weights))
            weights = replace(weights, shift=weights.shift + missing)
            largest = np.max(np.abs(missing))
            # Each round leaves about the same share of what is missing.
            if largest < 1e-4 or largest >= last:
                return fit._replace(weights=weights)
            last = largest

    def draw(self, likelihood: Any, z: np.ndarray, factors: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """0, 1, …, from the linear predictors of the classes along the first axis."""
        bounds = np.cumsum(softmax(z, axis=0), axis=0)[:-1]
        return np.sum(rng.uniform(size=bounds.shape[1:]) > bounds, axis=0)

    def posterior(self, problem: LinearProblem, nearby: LinearFit | None = None) -> LinearFit:
        """By few nodes and half of the digits at first, unless ``nearby`` says which nodes it takes."""
        rough = problem._replace(settings=problem.settings._replace(tol=np.sqrt(problem.settings.tol)))
        with enough_threads(NODES):
            if nearby is not None:
                return self._solve(rough if problem.rough else problem, nearby)
            first = self._solve(rough, None)
            if problem.rough or first.status is Status.INTERRUPTED:
                return first
            result = self._solve(problem, first)
            return result._replace(steps=first.steps + result.steps)

    def _solve(self, problem: LinearProblem, nearby: LinearFit | None) -> LinearFit:
        rows, frame, classes = problem.rows, problem.frame, self.classes
        labels = rows.weights[:, None] * self._shares(rows)
        intercepts = np.zeros(classes) if frame.centre is None else np.log(np.sum(labels, axis=0) + 0.5)
        nodes = FEW_NODES if nearby is None else nearby.weights.nodes_needed(rows.columns)
        likelihood = ExpectedSoftmax.of(labels, frame.design(rows.columns) / np.sqrt(2), intercepts, nodes)
        design = likelihood.design
        prior = standard_normal((classes - 1) * len(frame.scales))
        if nearby is None:
            # At 0 with the largest curvature that a softmax has (Böhning 1992).
            information = (design.T * np.sum(labels, axis=1)) @ design / 2
            curvature = np.kron(np.eye(classes - 1), information)
            start: Any = Full.from_precision(prior.mean, prior.precision + curvature)
        else:
            start = nearby.weights.in_frame(frame)
        with jax.enable_x64(True):
            likelihood, term, start = place((likelihood, KLToNormal(prior), start), labels.size * len(likelihood.nodes))
            result = maximise_bound(likelihood, term, start, **problem.settings._asdict())
        mean, covariance = np.asarray(result.x.mean).reshape(classes - 1, -1), np.asarray(result.x.covariance)
        weights = ClassWeights(frame, mean, covariance, intercepts=intercepts)
        return LinearFit(weights, -result.loss, result.steps, result.status, result.history)

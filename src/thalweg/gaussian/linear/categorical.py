"""Several classes as targets: P(class) = softmax(z), a linear predictor z for each class."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import jax
import numpy as np
from scipy.special import softmax

from thalweg.descent import Status
from thalweg.gaussian.ascent import maximise_bound, place
from thalweg.gaussian.divergence import KLToNormal
from thalweg.gaussian.linear.class_weights import FEW_NODES, ClassWeights
from thalweg.gaussian.linear.observations import LinearObservations
from thalweg.gaussian.linear.solution import LinearFit, LinearProblem, standard_normal
from thalweg.gaussian.linear.targets import ROWS_PER_FEATURE, TargetModel
from thalweg.gaussian.linear.weights import PriorFrame
from thalweg.gaussian.posteriors import Full
from thalweg.gaussian.softmax import NODES, ExpectedSoftmax
from thalweg.threads import enough_threads


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

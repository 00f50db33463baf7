"""Candidates of the search: kernel ridge regression on a subset of the rows, its validation losses and gradients."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from thalweg.kernels import Kernel
from thalweg.kernels.forms import Radial
from thalweg.kernels.host import kernel_tiles, squared_distances_on_host
from thalweg.linalg import factorise
from thalweg.threads import enough_threads

MAX_GRADIENT_OUTPUTS = 4
"""Outputs whose gradients are taken; more are mixed by random signs, which leaves the expected mean square alone."""

MEDIAN_ROWS = 500
"""Rows whose distances have the median that lengthscales are multiples of: all pairs of so many know it to 2 %, and it
does not depend on the order of fewer rows."""

KEPT_METRICS = 6
"""Metrics whose distances are kept: as many as are compared at a time."""


@dataclass(frozen=True, eq=False)
class Metric:
    """What framed features are multiplied by: factors, or a matrix; the identity of the object is its hash."""

    factors: np.ndarray | None
    learned: bool = False

    def apply(self, x: np.ndarray) -> np.ndarray:
        """Return rows in this metric."""
        if self.factors is None:
            return x
        return x * self.factors if self.factors.ndim == 1 else x @ self.factors


class Candidate(NamedTuple):
    """Kernel ridge regression."""

    family: Any
    """A class of kernels, or a kernel that was given."""
    metric: Metric
    multiplier: float
    """Of the median distance between rows, which makes the lengthscale."""
    ridge: float
    """In units of a row's weight."""

    def __hash__(self) -> int:
        # A kernel that was given holds arrays, which have no hash: it is the same object or another one.
        return hash((object.__hash__(self.family), *self[1:]))


class Rung:
    """Rows to learn from and rows to validate on; without the latter, rows are left out one by one.

    Parameters
    ----------
    x, y, weights
        Rows to learn from: framed features, targets less the intercept, and weights of mean 1.
    held
        The same three of the validation set.

    All is computed by NumPy: no candidate is so large that a device would win back the time its programs take to
    compile, and the choice is the same with and without one.
    """

    def __init__(self, x: np.ndarray, y: np.ndarray, weights: np.ndarray, held: Any) -> None:
        self.x, self.y, self.weights, self.held = x, y, weights, held
        self._distances: dict[Metric, tuple[Any, Any, float]] = {}

    def lengthscale(self, candidate: Candidate) -> float:
        """Return the lengthscale of a candidate."""
        return candidate.multiplier * self.distances(candidate.metric)[2]

    def kernel(self, candidate: Candidate) -> Kernel:
        """Return the kernel of a candidate."""
        family = candidate.family
        return family if isinstance(family, Kernel) else family(lengthscale=self.lengthscale(candidate))

    def distances(self, metric: Metric) -> tuple[Any, Any, float]:
        """Return squared distances among the rows and to the validation set in a metric, and the median distance."""
        if metric not in self._distances:
            x = metric.apply(self.x)
            among = squared_distances_on_host(x, x)
            some = among[:MEDIAN_ROWS, :MEDIAN_ROWS]
            between = some[np.tril_indices(len(some), -1)]
            median = float(np.sqrt(np.median(between[between > 0]))) if np.any(between > 0) else 1.0
            others = None if self.held is None else squared_distances_on_host(metric.apply(self.held[0]), x)
            cast = lambda squares: None if squares is None else squares.astype(self.x.dtype)
            self._distances[metric] = cast(among), cast(others), median
            if len(self._distances) > KEPT_METRICS:
                self._distances.pop(next(iter(self._distances)))
        return self._distances[metric]

    def matrices(self, candidate: Candidate) -> tuple[Any, Any]:
        """Return the kernel matrix among the rows, and that of the validation set with them."""
        kernel = self.kernel(candidate)
        if not isinstance(kernel, Radial) or isinstance(candidate.family, Kernel):
            x = candidate.metric.apply(self.x)
            among = kernel_tiles(kernel, x).to_dense()
            return among, None if self.held is None else kernel_tiles(
                kernel, candidate.metric.apply(self.held[0]), x
            ).to_dense()
        among, others, median = self.distances(candidate.metric)
        square = among.dtype.type((candidate.multiplier * median) ** 2)
        return kernel.profile(among / square), None if others is None else kernel.profile(others / square)

    def score(self, candidate: Candidate) -> np.ndarray:
        """Return the weighted squared loss of each validation row."""
        with enough_threads(len(self.x) // 2):
            if self.held is None:
                return self._leave_one_out(candidate)[0]
            _, values = self.fit(candidate)
        return self.held[2] * np.sum((np.asarray(values) - self.held[1]) ** 2, axis=1)

    def fit(self, candidate: Candidate) -> tuple[Any, Any]:
        """Return the weights of the rows in f, and f at the validation set or, without one, of rows left out."""
        if self.held is None:
            _, weights, values = self._leave_one_out(candidate)
            return weights, values
        among, others = self.matrices(candidate)
        weights = factorise(among, candidate.ridge / self.weights).solve(self.y.astype(among.dtype))
        return weights, others @ weights

    def _leave_one_out(self, candidate: Candidate) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The losses of rows left out one by one, the weights with none left out, and f at rows left out.

        With A = K + ridge/w and W = A⁻¹y the residuals of rows left out are W_i / (A⁻¹)_ii.
        """
        among, _ = self.matrices(candidate)
        factor = factorise(among.astype(float, copy=False), candidate.ridge / self.weights)
        weights = factor.solve(self.y)
        left = factor.leave_one_out(weights)
        return self.weights * np.sum(left**2, axis=1), weights, self.y - left

    def gradients(self, candidate: Candidate, full: bool) -> np.ndarray | None:
        """Return M = mean_x ∇f(x)∇f(x)ᵀ over outputs in framed features, or the roots of its diagonal.

        For k = κ(‖x − x_i‖²): ∇f = 2 Σ_i W_i κ′(r_i²)(x − x_i).
        """
        with enough_threads(len(self.x) // 2):
            return self._gradients(candidate, full)

    def _gradients(self, candidate: Candidate, full: bool) -> np.ndarray | None:
        among, _, median = self.distances(candidate.metric)
        square = among.dtype.type((candidate.multiplier * median) ** 2)
        weights, _ = self.fit(candidate)
        if weights.shape[1] > MAX_GRADIENT_OUTPUTS:
            signs = np.random.default_rng(0).choice([-1.0, 1.0], (weights.shape[1], MAX_GRADIENT_OUTPUTS))
            weights = weights @ (signs / np.sqrt(MAX_GRADIENT_OUTPUTS)).astype(weights.dtype)
        slope = candidate.family().profile_slope(among / square)
        x = candidate.metric.apply(self.x).astype(slope.dtype)
        total: Any = 0.0
        for column in weights.astype(slope.dtype).T:
            sums = slope @ np.concatenate([column[:, None], column[:, None] * x], axis=1)
            gradient = 2 * (sums[:, :1] * x - sums[:, 1:]) / square
            total = total + (gradient.T @ gradient if full else np.sum(gradient**2, axis=0)) / len(gradient)
        total, factors = np.asarray(total, float), candidate.metric.factors
        if factors is not None:  # back from the metric to framed features
            total = factors @ total @ factors.T if factors.ndim == 2 else scale_both_sides(total, factors)
        return total if np.all(np.isfinite(total)) and np.any(total > 0) else None


def scale_both_sides(total: np.ndarray, factors: np.ndarray) -> np.ndarray:
    """Return D·M·D for D = diag(factors), or the diagonal of it where M is given by its diagonal."""
    return total * factors**2 if total.ndim == 1 else total * factors * factors[:, None]

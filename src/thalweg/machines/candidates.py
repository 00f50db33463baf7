"""Candidates of the search: kernel ridge regression on some rows, its losses with rows left out, and its gradients."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from thalweg.kernels import Kernel
from thalweg.kernels.forms import Radial
from thalweg.kernels.host import kernel_tiles, squared_distances_on_host
from thalweg.linalg import factorise
from thalweg.machines.newton import drowns_in_float32
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
    """Rows that candidates learn from and are scored on: each row is left out in turn, in closed form.

    Parameters
    ----------
    x, y, weights
        Framed features, targets less the intercept, and weights of mean 1.

    All is computed by NumPy: no candidate is so large that a device would win back the time its programs take to
    compile, and the choice is the same with and without one.
    """

    def __init__(self, x: np.ndarray, y: np.ndarray, weights: np.ndarray) -> None:
        self.x, self.y, self.weights = x, y, weights
        self._distances: dict[tuple[Metric, type], tuple[np.ndarray, float]] = {}
        self._weights: dict[Candidate, np.ndarray] = {}

    def lengthscale(self, candidate: Candidate) -> float:
        """Return the lengthscale of a candidate."""
        return candidate.multiplier * self.distances(candidate)[1]

    def kernel(self, candidate: Candidate) -> Kernel:
        """Return the kernel of a candidate."""
        family = candidate.family
        return family if isinstance(family, Kernel) else family(lengthscale=self.lengthscale(candidate))

    def distances(self, candidate: Candidate) -> tuple[np.ndarray, float]:
        """Return squared distances among the rows, in the precision that the ridge takes, and the median distance."""
        metric, dtype = candidate.metric, float if drowns_in_float32(candidate.ridge, len(self.x)) else np.float32
        if (metric, dtype) not in self._distances:
            x = metric.apply(self.x)
            squares = squared_distances_on_host(x, x)
            some = squares[:MEDIAN_ROWS, :MEDIAN_ROWS]
            between = some[np.tril_indices(len(some), -1)]
            median = float(np.sqrt(np.median(between[between > 0]))) if np.any(between > 0) else 1.0
            self._distances[metric, dtype] = squares.astype(dtype), median
            if len(self._distances) > KEPT_METRICS:
                self._distances.pop(next(iter(self._distances)))
        return self._distances[metric, dtype]

    def matrix(self, candidate: Candidate) -> np.ndarray:
        """Return the kernel matrix among the rows."""
        kernel, (squares, median) = self.kernel(candidate), self.distances(candidate)
        if not isinstance(kernel, Radial) or isinstance(candidate.family, Kernel):
            return kernel_tiles(kernel, candidate.metric.apply(self.x).astype(squares.dtype)).to_dense()
        return kernel.profile(squares / squares.dtype.type((candidate.multiplier * median) ** 2))

    def score(self, candidate: Candidate) -> np.ndarray:
        """Return the weighted squared loss of each row, left out."""
        with enough_threads(len(self.x) // 2):
            return self.weights * np.sum((self.leave_one_out(candidate) - self.y) ** 2, axis=1)

    def leave_one_out(self, candidate: Candidate) -> np.ndarray:
        """Return what f is at each row without that row, from the factor of A = K + ridge/w and the weights A⁻¹y."""
        matrix = self.matrix(candidate)
        factor = factorise(matrix, candidate.ridge / self.weights)
        self._weights[candidate] = weights = factor.solve(self.y.astype(matrix.dtype))
        return self.y - factor.leave_one_out(weights)

    def gradients(self, candidate: Candidate, full: bool) -> np.ndarray | None:
        """Return M = mean_x ∇f(x)∇f(x)ᵀ over outputs in framed features (AGOP), or its diagonal.

        For k = κ(‖x − x_i‖²): ∇f = 2 Σ_i W_i κ′(r_i²)(x − x_i).
        """
        with enough_threads(len(self.x) // 2):
            return self._gradients(candidate, full)

    def _gradients(self, candidate: Candidate, full: bool) -> np.ndarray | None:
        squares, median = self.distances(candidate)
        square = squares.dtype.type((candidate.multiplier * median) ** 2)
        if candidate not in self._weights:
            self.leave_one_out(candidate)
        weights = self._weights[candidate]
        if weights.shape[1] > MAX_GRADIENT_OUTPUTS:
            signs = np.random.default_rng(0).choice([-1.0, 1.0], (weights.shape[1], MAX_GRADIENT_OUTPUTS))
            weights = weights @ (signs / np.sqrt(MAX_GRADIENT_OUTPUTS)).astype(weights.dtype)
        slope = candidate.family().profile_slope(squares / square)
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

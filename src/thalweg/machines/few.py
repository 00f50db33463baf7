"""f of few landmarks from the squares of all rows, for data that are nearly told apart: nothing is compiled.

With F = k(rows, landmarks), K = k(landmarks, landmarks) and row weights w,

    (Fᵀ diag(w) F + αK) W = Fᵀ diag(w) (y − intercept).
"""

import numpy as np
from scipy.linalg import cho_factor, cho_solve, cholesky, solve_triangular

from thalweg.kernels import Kernel
from thalweg.machines.dense import drawn
from thalweg.machines.rows import Rows
from thalweg.machines.tiles import product

LANDMARKS = 1024
"""How many are enough for what few rows tell apart already."""

# Rows at a time, and what is added to the diagonal of a matrix that is factorised, in units of it.
_STRIP, _JITTER = 4096, 1e-9


def spread_out(kernel: Kernel, x: np.ndarray, count: int, seed: int) -> np.ndarray:
    """Which of some rows become landmarks: half are any, others are drawn by how much the first half leaves out.

    Two rounds of randomly pivoted Cholesky (Chen, Epperly, Tropp and Webber, 2024).

    Examples
    --------
    >>> from thalweg.kernels import Gaussian
    >>> sorted(spread_out(Gaussian(), np.array([[0.0], [0.0], [0.0], [9.0]]), 2, seed=0).tolist())[1]
    3
    """
    rng = np.random.default_rng([seed, 5])
    first = rng.permutation(len(x))[: count // 2]
    root = cholesky(_raised(product(kernel, x[first], x[first])), lower=True)
    strips = (x[begin : begin + _STRIP] for begin in range(0, len(x), _STRIP))
    features = (solve_triangular(root, product(kernel, x[first], strip), lower=True) for strip in strips)
    left = float(kernel.variance) - np.concatenate([np.sum(part**2, axis=0) for part in features])
    return np.concatenate([first, drawn(left, first, count - len(first), rng)])


class Few:
    """The squares of rows for some landmarks, to which more rows can be added.

    Examples
    --------
    >>> from thalweg.kernels import Gaussian
    >>> x, y = np.arange(4.0)[:, None], np.sin(np.arange(4.0))[:, None]
    >>> few = Few(Gaussian(), x, np.zeros(1))  # all rows are landmarks: (K + α) W = y
    >>> few.add(Rows(x, y, np.ones(4)), np.arange(4))
    >>> K = np.exp(-((x - x.T) ** 2) / 2)
    >>> bool(abs(few.weights(0.1) - np.linalg.solve(K + 0.1 * np.eye(4), y)).max() < 1e-6)
    True
    """

    def __init__(self, kernel: Kernel, landmarks: np.ndarray, intercept: np.ndarray) -> None:
        self.kernel, self.landmarks, self.intercept = kernel, landmarks, intercept
        self.squares, self.sums = (np.zeros((len(landmarks), size)) for size in (len(landmarks), len(intercept)))

    def add(self, rows: Rows, chosen: np.ndarray) -> None:
        """Add chosen rows, some of which at a time are read."""
        for part in (chosen[begin : begin + _STRIP] for begin in range(0, len(chosen), _STRIP)):
            root = np.sqrt(rows.weights[part])[:, None]
            features = root * product(self.kernel, rows.features(part, np.float64), self.landmarks)
            self.squares += features.T @ features
            self.sums += features.T @ (root * (rows.targets_of(part) - self.intercept))

    def weights(self, ridge: float) -> np.ndarray:
        """W."""
        matrix = self.squares + ridge * product(self.kernel, self.landmarks, self.landmarks)
        return cho_solve(cho_factor(_raised(matrix), lower=True), self.sums)


def _raised(matrix: np.ndarray) -> np.ndarray:
    matrix[np.diag_indices(len(matrix))] += _JITTER * np.trace(matrix) / len(matrix)
    return matrix

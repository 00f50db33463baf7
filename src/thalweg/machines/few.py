"""f of few landmarks from the squares of all rows, for data that are nearly told apart: nothing is compiled.

With F = k(rows, landmarks), K = k(landmarks, landmarks) and row weights w,

    (Fᵀ diag(w) F + αK) W = Fᵀ diag(w) (y − intercept).
"""

import numpy as np
from scipy.linalg import cho_factor, cho_solve

from thalweg.kernels import Kernel
from thalweg.machines.dense import drawn
from thalweg.machines.folds import two_at_once
from thalweg.machines.rows import Rows
from thalweg.machines.tiles import product
from thalweg.threads import enough_threads

LANDMARKS = 512
"""How many are enough for what few rows tell apart already."""

# Rows at a time, and what is added to the diagonal of a matrix that is factorised, in units of it.
_STRIP, _JITTER = 2048, 1e-9


def telling(kernel: Kernel, rows: Rows, intercept: np.ndarray, ridge: float, count: int, seed: int) -> np.ndarray:
    """Which rows become landmarks: a quarter are the first ones, others are drawn by how far those leave f off.

    So there are many where classes meet: on skin_nonskin 512 of them miss a third fewer labels than as many that are
    spread out over the features, and no more than 1,024 of those.

    Examples
    --------
    >>> from thalweg.kernels import Gaussian
    >>> rows = Rows(np.array([[0.0], [0.0], [0.1], [9.0]]), np.array([[1.0], [1.0], [1.0], [-1.0]]), np.ones(4))
    >>> telling(Gaussian(), rows, np.zeros(1), 1e-3, count=2, seed=0).tolist()
    [0, 3]
    """
    first, every = np.arange(count - 3 * count // 4), np.arange(len(rows))
    x = rows.features(every, np.float32)
    few = Few(kernel, x[first], intercept)
    few.add(rows, every[: 2 * _STRIP])  # which are enough to see where it is off
    off = intercept + product(kernel, x, few.landmarks, few.weights(ridge)) - rows.targets_of(every)
    left = rows.weights * np.sum(off**2, axis=1)
    return np.concatenate([first, drawn(left, first, count - len(first), np.random.default_rng([seed, 5]))])


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
        # Features are in float32, as in predictions, but their squares in float64.
        self.kernel, self.landmarks, self.intercept = kernel, landmarks.astype(np.float32), intercept
        self.squares, self.sums = (np.zeros((len(landmarks), size)) for size in (len(landmarks), len(intercept)))

    def add(self, rows: Rows, chosen: np.ndarray) -> None:
        """Add chosen rows, some of which at a time are read."""
        strips = [chosen[begin : begin + _STRIP] for begin in range(0, len(chosen), _STRIP)]
        for begin in range(0, len(strips), 2):
            for squares, sums in two_at_once(lambda part: self._of(rows, part), strips[begin : begin + 2]):
                self.squares += squares
                self.sums += sums

    def weights(self, ridge: float) -> np.ndarray:
        """W."""
        matrix = self.squares + ridge * product(self.kernel, self.landmarks, self.landmarks).astype(float)
        with enough_threads(len(matrix)):
            return cho_solve(cho_factor(_raised(matrix), lower=True), self.sums)

    def _of(self, rows: Rows, part: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        root = np.sqrt(rows.weights[part])[:, None]
        features = root * product(self.kernel, rows.features(part, np.float32), self.landmarks)
        return features.T @ features, features.T @ (root * (rows.targets_of(part) - self.intercept))


def _raised(matrix: np.ndarray) -> np.ndarray:
    matrix[np.diag_indices(len(matrix))] += _JITTER * np.trace(matrix) / len(matrix)
    return matrix

"""MNIST as its first hundred principal components, and the bandwidth that SVC is tuned to."""

from typing import NamedTuple

import jax
import numpy as np

import thalweg
from thalweg.kernels import median_distance


class Digits(NamedTuple):
    """Training and test part."""

    X: np.ndarray
    y: np.ndarray
    new: np.ndarray
    labels: np.ndarray

    @property
    def gamma(self) -> float:
        """4/(2·median²): half the median distance as lengthscale."""
        return 4 / (2 * median_distance(self.X[:2000], jax.random.key(0), sample=100_000) ** 2)


def images() -> Digits:
    """MNIST, 28 × 28 from 0 to 1."""
    data = thalweg.data.load("mnist")
    as_floats = lambda x: np.asarray(x, np.float32).reshape(-1, 28, 28) / 255
    return Digits(as_floats(data.X_train), np.asarray(data.y_train), as_floats(data.X_test), np.asarray(data.y_test))


def digits(components: int = 100) -> Digits:
    """Scores on the principal components of the training part."""
    data = images()
    X, new = data.X.reshape(len(data.X), -1), data.new.reshape(len(data.new), -1)
    mean = X.mean(axis=0)
    _, vectors = np.linalg.eigh(((X - mean).T @ (X - mean)).astype(np.float64))
    basis = vectors[:, ::-1][:, :components].astype(np.float32)
    return Digits((X - mean) @ basis, data.y, (new - mean) @ basis, data.labels)

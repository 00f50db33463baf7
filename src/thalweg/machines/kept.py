"""Squares of some ten thousand rows where half of the kernel matrix is in memory, in blocks: (K + D) W = Y.

The entries of a block with itself and those before it are found when it is met, and its weights are solved for with the
others held fixed, as in :mod:`thalweg.machines.visits`. From there conjugate gradients only multiply by what is kept.
They are preconditioned by a visit to each block and another one in reverse, (L + B) B⁻¹ (B + Lᵀ) for K + D = L + B + Lᵀ
with blocks B on the diagonal.
"""

from collections.abc import Iterator

import numpy as np

from thalweg.kernels import Kernel
from thalweg.machines.dense import LEAST_DIAGONAL, Factor
from thalweg.machines.tiles import product
from thalweg.threads import enough_threads

MOST = 20_480
"""Rows of which half a matrix is kept: 0.8 GiB in float32."""


class Kept:
    """Weights W of the rows, and what they say of rows held out.

    Parameters
    ----------
    kernel
        A kernel that is written out.
    x, targets, diagonal
        Rows, Y and D.
    held
        Rows held out.
    size
        Rows of a block.

    Examples
    --------
    >>> from thalweg.kernels import Gaussian
    >>> x, y = np.arange(4.0)[:, None], np.sin(np.arange(4.0))[:, None]
    >>> kept = Kept(Gaussian(), x, y, np.full(4, 0.1), held=x[:1], size=2)
    >>> list(kept.meet())
    [2, 2]
    >>> for _ in range(4):
    ...     left = kept.step()
    >>> K = np.exp(-((x - x.T) ** 2) / 2)
    >>> bool(abs(kept.weights - np.linalg.solve(K + 0.1 * np.eye(4), y)).max() < 1e-6), bool(left < 1e-6)
    (True, True)
    """

    def __init__(
        self, kernel: Kernel, x: np.ndarray, targets: np.ndarray, diagonal: np.ndarray, held: np.ndarray, size: int
    ) -> None:
        self.kernel, self.x, self.held = kernel, x, held
        self.targets, self.diagonal = (part.astype(x.dtype) for part in (targets, diagonal[:, None]))
        self.blocks = [slice(begin, min(begin + size, len(x))) for begin in range(0, len(x), size)]
        self.weights = np.zeros_like(self.targets)
        self.strips: list[np.ndarray] = []
        self.factors: list[Factor] = []
        self.of_held: list[np.ndarray] = []

    def meet(self) -> Iterator[int]:
        """Find the matrix block by block, solve for each of them in turn, and yield its number of rows."""
        for block in self.blocks:
            strip = product(self.kernel, self.x[block], self.x[: block.stop])
            own = strip[:, block]
            np.fill_diagonal(own, float(self.kernel.variance))
            least = LEAST_DIAGONAL[own.dtype] * float(self.kernel.variance)
            with enough_threads(1):
                factor = Factor(own, np.maximum(self.diagonal[block, 0], least), np.ones(len(own), bool))
            self.strips.append(strip)
            self.factors.append(factor)
            self.of_held.append(product(self.kernel, self.held, self.x[block]))
            before = strip[:, : block.start] @ self.weights[: block.start]
            self.weights[block] = factor(self.targets[block] - before)
            yield len(own)
        self.residual = self.targets - self._times(self.weights)
        self.direction = self._preconditioned(self.residual)
        self.square = np.sum(self.residual * self.direction, axis=0, dtype=float)

    def step(self) -> float:
        """Make a step of conjugate gradients, and return the part of the objective that it gained."""
        image = self._times(self.direction)
        size = _ratio(self.square, np.sum(self.direction * image, axis=0, dtype=float))
        self.weights += (size * self.direction).astype(image.dtype)
        self.residual -= (size * image).astype(image.dtype)
        steepest, before = self._preconditioned(self.residual), self.square
        self.square = np.sum(self.residual * steepest, axis=0, dtype=float)
        self.direction = (steepest + _ratio(self.square, before) * self.direction).astype(image.dtype)
        whole = max(float(np.sum(self.targets * self.weights, dtype=float)), np.finfo(float).tiny)
        return float(np.sum(size * before)) / whole

    def values(self) -> np.ndarray:
        """What is said of the rows held out."""
        pairs = zip(self.of_held, self.blocks, strict=True)
        return np.sum([matrix @ self.weights[block] for matrix, block in pairs], axis=0)

    def _times(self, v: np.ndarray) -> np.ndarray:
        """(K + D) v."""
        found = self.diagonal * v
        for block, strip in zip(self.blocks, self.strips, strict=True):
            found[block] += strip @ v[: block.stop]
            found[: block.start] += strip[:, : block.start].T @ v[block]
        return found

    def _preconditioned(self, v: np.ndarray) -> np.ndarray:
        """(B + Lᵀ)⁻¹ B (L + B)⁻¹ v."""
        found, above = np.empty_like(v), np.zeros_like(v)
        parts = list(zip(self.blocks, self.strips, self.factors, strict=True))
        for block, strip, factor in parts:
            found[block] = factor(v[block] - strip[:, : block.start] @ found[: block.start])
        for block, strip, factor in reversed(parts):
            found[block] -= factor(above[block])
            above[: block.start] += strip[:, : block.start].T @ found[block]
        return found


def _ratio(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.where(b > 0, a / np.where(b > 0, b, 1), 0)

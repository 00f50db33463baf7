"""Squares of some ten thousand rows where half of the kernel matrix is in memory, in blocks: (K + D) W = Y.

The entries of a block with itself and those before it are found when it is met, and its weights are solved for with the
others held fixed, as in :mod:`thalweg.machines.visits`. From there conjugate gradients only multiply by what is kept.
With blocks B on the diagonal of K + D = L + B + Lᵀ they are those of

    (L + B)⁻¹ (K + D) (B + Lᵀ)⁻¹ = (B + Lᵀ)⁻¹ + (L + B)⁻¹ (1 − B (B + Lᵀ)⁻¹),

preconditioned by B (Eisenstat, 1981): a visit to each block and another one in reverse take no more than a product with
K. Where the diagonal of B had to be raised by E, there is B + E instead of B on the right.
"""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

from thalweg.kernels import Kernel
from thalweg.machines.dense import LEAST_DIAGONAL, Factor
from thalweg.machines.folds import two_at_once
from thalweg.machines.methods import Settings
from thalweg.machines.tiles import product
from thalweg.threads import enough_threads

MOST = 20_480
"""Rows of which half a matrix is kept at once: 0.8 GiB in float32."""

FEW_MISSES = 0.025
"""Where a pass over many rows misses fewer labels than this part, no other is made: to spare a seventh of them is not
worth twice the time of the first (MNIST's 1.3 % became 1.1)."""

# Half a matrix of more rows may take this part of the memory; a device has it whole, of no more rows than these.
_PART, _MOST_ON_DEVICE = 0.25, 51_200
BLOCK = 2048
"""Rows of a block: with twice as many there are a few steps less, but factors take four times as long."""

# Steps end where one gains no more than this part of the objective and so many have lowered a loss by too little; of
# smooth kernels the objective says little of what is still to be learned.
_GAIN, _LAST, _MOST_STEPS = 3e-3, 3, 50
# Entries of a matrix that one thread multiplies in less time than it takes to call two.
_LITTLE = 2**18
_LIMITS = "/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"


def most_rows() -> int:
    """Rows of which half a matrix, in float32, takes a quarter of the memory of this machine, or those of ``MOST``.

    Examples
    --------
    >>> most_rows() >= MOST
    True
    """
    try:
        room = float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (AttributeError, OSError, ValueError):  # a system that does not say
        return MOST
    limits = [path.read_text().strip() for path in map(Path, _LIMITS) if path.is_file()]
    room = min([room, *(float(limit) for limit in limits if limit.isdigit())])
    return max(MOST, int((_PART * room / 2) ** 0.5))


def most_rows_on_device() -> int:
    """Rows of which a whole matrix takes a quarter of the memory of a device, but no more than 51,200 (10 GiB).

    Examples
    --------
    >>> most_rows_on_device() <= 51_200
    True
    """
    told = jax.local_devices()[0].memory_stats() or {}
    return min(int((_PART * told.get("bytes_limit", 0) / 4) ** 0.5), _MOST_ON_DEVICE)


def keeps(rows: int, settings: Settings, dtype: Any) -> bool:
    """Whether so many rows are solved for here, with a kernel that is written out.

    Examples
    --------
    >>> from thalweg.machines import LogisticLoss, SquaredLoss
    >>> [keeps(20_000, Settings(loss=loss()), np.float32) for loss in (SquaredLoss, LogisticLoss)]
    [True, False]
    """
    most = most_rows() if jax.default_backend() == "cpu" else most_rows_on_device()
    method, few = settings.method, rows <= min(most, settings.max_features)
    asked = method.visits and method.early_stopping == "auto" and settings.passes is None
    return settings.loss.quadratic and few and asked and np.dtype(dtype) == np.float32


class Gradients:
    """Conjugate gradients, step by step; a subclass defines :meth:`step`.

    Examples
    --------
    >>> class Halving(Gradients):
    ...     left = 1.0
    ...     def step(self):
    ...         self.left /= 2
    ...         return self.left
    >>> there = Halving()
    >>> len(list(there.steps(lambda: there.left, 0.9)))  # until a step gains less than a third of a hundredth
    9
    """

    def step(self) -> float:
        """Make a step, and return the part of the objective that it gained."""
        raise NotImplementedError

    def steps(self, loss: Callable[[], float], least: float) -> Iterator[float]:
        """Make steps until the objective no longer falls by much, nor a loss, which is yielded, by the least part."""
        told = list[float]()
        while len(told) < _MOST_STEPS:
            gained = self.step()
            told.append(loss())
            yield told[-1]
            last, before = told[-_LAST:], told[:-_LAST]
            lower = not before or min(last) < (1 - least) * min(before)
            if not (gained > _GAIN or (gained > 0 and lower)):
                return


class Kept(Gradients):
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
        Rows of a block, if they are to be others than usual.

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
        self,
        kernel: Kernel,
        x: np.ndarray,
        targets: np.ndarray,
        diagonal: np.ndarray,
        held: np.ndarray,
        size: int | None = None,
    ) -> None:
        self.kernel, self.x, self.held = kernel, x, held
        # Columns in one piece: products of a matrix with few of them take half the time.
        self.targets = targets.astype(x.dtype, order="F")
        self._set(diagonal)
        count = -(-len(x) // (size or BLOCK))
        self.blocks = [slice(len(x) * i // count, len(x) * (i + 1) // count) for i in range(count)]
        self.weights, self.begun = np.zeros_like(self.targets), False
        self.strips: list[np.ndarray] = []
        self.factors: list[Factor] = []
        self.of_held: list[np.ndarray] = []

    @property
    def met(self) -> bool:
        """Whether the matrix has been found."""
        return len(self.strips) == len(self.blocks)

    def begin(self, weights: np.ndarray) -> None:
        """Begin with weights that were found before: nothing is solved for when blocks are met."""
        self.weights, self.begun = weights.astype(self.x.dtype, order="F"), True

    def meet(self) -> Iterator[int]:
        """Find the matrix block by block, solve for each of them in turn, and yield its number of rows."""
        for block in self.blocks:
            with enough_threads(1):
                strip = product(self.kernel, self.x[block], self.x[: block.stop])
                np.fill_diagonal(strip[:, block], float(self.kernel.variance))
                self.strips.append(strip)
                self.factors.append(self._factor(block, strip))
                self.of_held.append(product(self.kernel, self.held, self.x[block]))
                if not self.begun:
                    before = _times(strip[:, : block.start], self.weights[: block.start])
                    self.weights[block] = self.factors[-1](self.targets[block] - before)
            yield len(strip)
        self._face()

    def change(self, diagonal: np.ndarray) -> None:
        """Go on with another D."""
        self._set(diagonal)
        with enough_threads(1):
            self.factors = [self._factor(*pair) for pair in zip(self.blocks, self.strips, strict=True)]
        self._face()

    def _set(self, diagonal: np.ndarray) -> None:
        self.diagonal = diagonal[:, None].astype(self.x.dtype)
        self.raised = np.maximum(LEAST_DIAGONAL[self.x.dtype] * float(self.kernel.variance) - self.diagonal, 0)

    def _factor(self, block: slice, strip: np.ndarray) -> Factor:
        return Factor(strip[:, block], (self.diagonal + self.raised)[block, 0], np.ones(len(strip), bool))

    def _face(self) -> None:
        """Begin with conjugate gradients, from what a visit to all blocks makes of what is left."""
        with enough_threads(1):
            self.left, self.steepest = self._visited(self.targets - self._image())
        self.direction, self.square = self.steepest, np.sum(self.left * self.steepest, axis=0, dtype=float)

    def step(self) -> float:
        """Make a step of conjugate gradients, and return the part of the objective that it gained."""
        with enough_threads(1):
            return self._step()

    def _step(self) -> float:
        step, times_step = self._visited_in_reverse(self.direction)
        visited, times_visited = self._visited(self.direction - times_step - self.raised * step)
        image, times_image = step + visited, times_step + times_visited
        size = _ratio(self.square, np.sum(self.direction * image, axis=0, dtype=float))
        self.weights = self.weights + (size * step).astype(step.dtype)
        self.left -= (size * image).astype(image.dtype)
        self.steepest = self.steepest - (size * times_image).astype(image.dtype)
        before, self.square = self.square, np.sum(self.left * self.steepest, axis=0, dtype=float)
        self.direction = (self.steepest + _ratio(self.square, before) * self.direction).astype(image.dtype)
        whole = max(float(np.sum(self.targets * self.weights, dtype=float)), np.finfo(float).tiny)
        return float(np.sum(size * before)) / whole

    def values(self, some: slice | np.ndarray = slice(None)) -> np.ndarray:
        """What is said of the rows held out, or of some of them."""
        pairs = zip(self.of_held, self.blocks, strict=True)
        return np.sum([_times(matrix[some], self.weights[block]) for matrix, block in pairs], axis=0)

    def _image(self) -> np.ndarray:
        """(K + D) W."""
        found = self.diagonal * self.weights
        for block, strip in zip(self.blocks, self.strips, strict=True):
            found[block] += _times(strip, self.weights[: block.stop])
            found[: block.start] += _times(strip[:, : block.start].T, self.weights[block])
        return found

    def _visited(self, v: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(L + B)⁻¹ v, and B times that."""
        found, times = np.empty_like(v), np.empty_like(v)
        for block, strip, factor in zip(self.blocks, self.strips, self.factors, strict=True):
            times[block] = v[block] - _times(strip[:, : block.start], found[: block.start])
            found[block] = factor(times[block])
        return found, times

    def _visited_in_reverse(self, v: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(B + Lᵀ)⁻¹ v, and B times that."""
        found, times = np.empty_like(v), v.copy(order="F")
        for block, strip, factor in reversed(list(zip(self.blocks, self.strips, self.factors, strict=True))):
            found[block] = factor(times[block])
            times[: block.start] -= _times(strip[:, : block.start].T, found[block])
        return found, times


def _times(matrix: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Two halves at once, each by one thread: those of BLAS wait for one another where a machine is busy."""
    if matrix.size < _LITTLE:
        return (v.T @ matrix.T).T
    half = len(matrix) // 2
    return np.hstack(two_at_once(lambda part: v.T @ part.T, [matrix[:half], matrix[half:]])).T


def _ratio(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.where(b > 0, a / np.where(b > 0, b, 1), 0)

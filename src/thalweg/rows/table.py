"""Examples of which only a batch at a time is made dense and converted: arrays, memory maps, sparse matrices."""

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse

from thalweg.padding import padded
from thalweg.rows.scale import FeatureFrame, binary_scales, fit_frame
from thalweg.rows.split import Duplicates, duplicates_are_copies, find_duplicates, random_order

__all__ = ["Batch", "Table", "as_dense", "predicted_labels"]

SAMPLE_ROWS = 2048
"""Rows, evenly spaced, that say how features are distributed: medians of so many are off by 3 % of a spread."""

MAX_COMPARED_ROWS = 131_072
"""Up to so many rows are compared in search of copies, which takes a pass over them."""


class Batch(NamedTuple):
    """Examples, one to a row. A row of weight 0 is padding.

    >>> Batch(np.zeros((4, 2)), np.ones((4, 1)), np.ones(4)).x.shape
    (4, 2)
    """

    x: Any
    y: Any
    weights: Any


@dataclass(frozen=True)
class Table:
    """Features, targets and weights of examples.

    Parameters
    ----------
    x
        An array, a memory map or a sparse matrix (CSR); rows are read when they are asked for.
    targets
        Rows of numbers; or labels 0, 1, …, where ``codes`` are given: the target of label c is row c of the codes.
    weights
        Positive weights.
    codes
        The target of each label.
    index
        Where given, example i is row index[i] of ``x``.
    scale
        The unit of targets that are numbers, in the unit of the user.
    frame
        What maps rows of ``x`` to features.

    Examples
    --------
    >>> table = Table(np.array([[0], [1], [2]]), np.array([1, 0, 1]), np.ones(3), codes=np.eye(2))
    >>> batch = table.batch(np.array([2]), size=2, dtype=np.float32)
    >>> batch.y
    array([[0., 1.],
           [1., 0.]], dtype=float32)
    >>> batch.weights  # the second row is padding
    array([1., 0.], dtype=float32)
    """

    x: Any
    targets: np.ndarray
    weights: np.ndarray
    codes: np.ndarray | None = None
    index: np.ndarray | None = None
    scale: Any = 1.0
    frame: FeatureFrame = field(default_factory=FeatureFrame)

    def __len__(self) -> int:
        return len(self.weights)

    @property
    def outputs(self) -> int:
        """The number of columns of a target."""
        return self._some_target().shape[1]

    @property
    def dimension(self) -> int:
        """The number of features in the frame."""
        return self.frame.dimension(int(self.x.shape[1]))

    @property
    def counts(self) -> np.ndarray | None:
        """The total weight of each label; None where targets are numbers."""
        return None if self.codes is None else np.bincount(self.targets, self.weights, len(self.codes))

    def of_shares(self) -> "Table":
        """Return the table with codes of 0 and 1, which losses of probabilities take, instead of −1 and 1."""
        return replace(self, codes=(np.asarray(self.codes) + 1) / 2)

    def features(self, indices: Any, dtype: Any) -> np.ndarray:
        """Return features of chosen rows, dense and in the frame."""
        return as_dense("X", self._read(indices), dtype, self.frame)

    def targets_of(self, indices: Any) -> np.ndarray:
        """Return targets of chosen rows."""
        targets = self.targets[indices]
        return targets if self.codes is None else self.codes[targets]

    def with_frame(self, frame: FeatureFrame) -> "Table":
        """Return the same rows in another frame."""
        return replace(self, frame=frame)

    def fit_frame(self) -> FeatureFrame:
        """Return the frame that fits the features of a sample of the rows."""
        return fit_frame(as_dense("X", self._read(_evenly_spaced(len(self))), np.float64))

    def in_binary_scales(self) -> "Table":
        """Return the same rows with features of the order of 1, whatever their units: float32 holds their squares."""
        framed = as_dense("X", self._read(_evenly_spaced(len(self))), np.float64, self.frame)
        return self.with_frame(self.frame.with_metric(1 / binary_scales(framed)))

    def subset(self, indices: np.ndarray) -> "Table":
        """Return chosen rows, read now."""
        return replace(
            self, x=self._read(indices), targets=self.targets[indices], weights=self.weights[indices], index=None
        )

    @cached_property
    def copies(self) -> Duplicates | None:
        """The groups of duplicate rows that are copies of one another; None where there are none."""
        if len(self) > MAX_COMPARED_ROWS:
            return None
        pieces = (np.arange(i, min(i + SAMPLE_ROWS, len(self))) for i in range(0, len(self), SAMPLE_ROWS))
        found = find_duplicates(row for piece in pieces for row in self.features(piece, np.float64))
        if len(found.first) == len(self):
            return None
        distinct = self.features(found.first[_evenly_spaced(len(found.first))], np.float64)
        return found if duplicates_are_copies(distinct, self.targets_of(slice(None)), found) else None

    def shuffled(self, seed: Any) -> np.ndarray:
        """Return a random order of the rows in which copies follow each other."""
        return random_order(len(self), seed, None if self.copies is None else self.copies.group)

    def merged(self, chosen: np.ndarray, dtype: Any) -> "Table":
        """Return chosen rows, dense and framed, with duplicates merged: each has the mean target and total weight.

        Examples
        --------
        >>> table = Table(np.array([[3.0], [5.0], [3.0]]), np.array([[1.0], [0.0], [2.0]]), np.ones(3))
        >>> merged = table.merged(np.arange(3), float)
        >>> merged.x.tolist(), merged.targets.tolist(), merged.weights.tolist()
        ([[3.0], [5.0]], [[1.5], [0.0]], [2.0, 1.0])
        """
        x = self.features(chosen, dtype)
        duplicates = find_duplicates(x)
        targets, weights = duplicates.merge(self.targets_of(chosen), self.weights[chosen])
        return Table(x[duplicates.first], targets, weights, scale=self.scale)

    def error(self, predictions: np.ndarray) -> float:
        """Return the share of labels missed, or the root mean squared error in the unit of the user."""
        if self.codes is not None:
            return float(np.average(predicted_labels(predictions) != self.targets, weights=self.weights))
        errors = (predictions - self.targets) * self.scale
        return float(np.sqrt(np.average(np.sum(errors**2, axis=1), weights=self.weights)))

    def batch(self, indices: np.ndarray, size: int, dtype: Any) -> Batch:
        """Return chosen rows as a batch of ``size`` rows, padded with rows of weight 0."""
        # A padding row needs a target that its loss is defined at.
        missing = np.repeat(self._some_target(), size - len(indices), axis=0)
        y = np.concatenate([self.targets_of(indices), missing])
        weights = padded(self.weights[indices], size)
        x = padded(self.features(indices, dtype), size)
        return Batch(x, as_dense("y", y, dtype), as_dense("sample_weight", weights, dtype))

    def stack(self, indices: np.ndarray, size: int, dtype: Any) -> Batch:
        """Return batches of ``size`` rows with the batches as the first axis; the last one may be padded."""
        batches = [self.batch(indices[i : i + size], size, dtype) for i in range(0, len(indices), size)]
        x, y, weights = (np.stack(parts) for parts in zip(*batches, strict=True))
        return Batch(x, y, weights)

    def _read(self, indices: Any) -> Any:
        return self.x[indices if self.index is None else self.index[indices]]

    def _some_target(self) -> np.ndarray:
        return (self.targets if self.codes is None else self.codes)[:1]


def _evenly_spaced(count: int) -> np.ndarray:
    """Some of the indices below ``count``."""
    return np.unique(np.linspace(0, count - 1, SAMPLE_ROWS).astype(int))


def predicted_labels(predictions: np.ndarray) -> np.ndarray:
    """Return labels: of two the second where the only column is positive, else that of the largest column.

    Examples
    --------
    >>> predicted_labels(np.array([[-1.0], [2.0]])), predicted_labels(np.array([[0.1, 0.3, 0.2]]))
    (array([0, 1]), array([1]))
    """
    return (predictions[:, 0] > 0).astype(int) if predictions.shape[1] == 1 else np.argmax(predictions, axis=1)


def as_dense(name: str, array: Any, dtype: Any, frame: FeatureFrame | None = None) -> np.ndarray:
    """Return an array or a sparse matrix as a dense array of a dtype, in a frame; what does not fit is refused.

    Examples
    --------
    >>> as_dense("X", [[1e300]], np.float32)
    Traceback (most recent call last):
        ...
    ValueError: X must fit in float32, found values of size 1e+300
    """
    array = array.toarray() if scipy.sparse.issparse(array) else np.asarray(array)
    try:
        with np.errstate(over="raise"):
            framed = array if frame is None else frame.apply(array)
            return np.asarray(framed, dtype=dtype)
    except FloatingPointError:
        largest = np.max(np.abs(array))
        raise ValueError(f"{name} must fit in {np.dtype(dtype).name}, found values of size {largest:g}") from None

"""Examples of which only a batch at a time is made dense and converted: arrays, memory maps, sparse matrices."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse

from thalweg.oracles.functional import Batch


@dataclass(frozen=True)
class Rows:
    """Features, targets and weights of examples.

    ``targets`` are rows of numbers, or, where ``table`` is given, labels: the target of label c is row c of the table.
    Where ``places`` are given, example i has the features of row places[i] of ``x``.

    Examples
    --------
    >>> rows = Rows(np.array([[0], [1], [2]]), np.array([1, 0, 1]), np.ones(3), table=np.eye(2))
    >>> batch = rows.batch(np.array([2]), size=2, dtype=np.float32)
    >>> batch.y
    array([[0., 1.],
           [1., 0.]], dtype=float32)
    >>> batch.weights  # the second row is padding
    array([1., 0.], dtype=float32)
    """

    x: Any
    targets: np.ndarray
    weights: np.ndarray
    table: np.ndarray | None = None
    places: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.weights)

    def features(self, indices: Any, dtype: Any) -> np.ndarray:
        """Features of chosen rows, dense."""
        rows = self._read(indices)
        return _cast("X", rows.toarray() if scipy.sparse.issparse(rows) else rows, dtype)

    def subset(self, indices: np.ndarray) -> "Rows":
        """Chosen rows, as they are."""
        return Rows(self._read(indices), self.targets[indices], self.weights[indices], self.table)

    def batch(self, indices: np.ndarray, size: int, dtype: Any) -> Batch:
        """Return chosen rows as a batch of ``size`` rows: those too many are padding of weight 0."""
        missing = size - len(indices)
        targets = self.targets[indices]
        targets = targets if self.table is None else self.table[targets]
        x: Any = np.pad(self.features(indices, dtype), [(0, missing), (0, 0)])
        # A padding row needs a target that its loss is defined at.
        y: Any = np.concatenate(
            [targets, np.repeat(targets[:0] if not missing else self._any_target(), missing, axis=0)]
        )
        weights: Any = np.pad(self.weights[indices], (0, missing))
        return Batch(x, _cast("y", y, dtype), _cast("sample_weight", weights, dtype))

    def stack(self, indices: np.ndarray, size: int, dtype: Any) -> Batch:
        """Return batches of ``size`` rows in one, with the batches as the first axis; the last one may be padded."""
        batches = [self.batch(indices[i : i + size], size, dtype) for i in range(0, len(indices), size)]
        x, y, weights = (np.stack(parts) for parts in zip(*batches, strict=True))
        return Batch(x, y, weights)  # type: ignore[arg-type]

    def _read(self, indices: Any) -> Any:
        return self.x[indices if self.places is None else self.places[indices]]

    def _any_target(self) -> np.ndarray:
        return (self.targets if self.table is None else self.table)[:1]


def _cast(name: str, array: Any, dtype: Any) -> Any:
    try:
        with np.errstate(over="raise"):
            return np.asarray(array, dtype=dtype)
    except FloatingPointError:
        largest = np.max(np.abs(array))
        raise ValueError(f"{name} must fit in {np.dtype(dtype).name}, found values of size {largest:g}") from None

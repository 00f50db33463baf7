"""The rows of a regression: what was seen where, with which noise, and the mean that the process returns to.

Rows with equal inputs are merged: one with their mean target and their total weight has the same posterior. The squared
differences from that mean stay in the marginal likelihood, since they say how large the noise is.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import scipy.linalg

from thalweg.codec import storable
from thalweg.gaussian.linear.observations import check_numbers
from thalweg.linalg import namespace
from thalweg.rows import duplicates_are_copies, find_duplicates
from thalweg.rows.scale import standard_scales

MEANS = ("zero", "constant", "linear")


@storable
@dataclass(frozen=True)
class ProcessMean:
    """A mean that is linear in coefficients with a flat prior: none, a constant, or a plane in the features.

    Examples
    --------
    >>> mean = ProcessMean.of("linear", np.array([[-1.0], [1.0], [-1.0], [1.0]]))
    >>> mean.basis(np.array([[3.0]]))
    array([[1., 3.]])
    """

    kind: str
    centre: np.ndarray
    scale: np.ndarray
    features: np.ndarray
    """The features that a plane depends on."""

    @classmethod
    def of(cls, kind: str, inputs: np.ndarray) -> "ProcessMean":
        """Return the mean for some inputs; features that the others determine are left out."""
        centre, scale = inputs[0] + np.mean(inputs - inputs[0], axis=0), standard_scales(inputs)
        _, sizes, order = scipy.linalg.qr((inputs - centre) / scale, mode="economic", pivoting=True)
        rank = np.sum(np.abs(np.diag(sizes)) > np.sqrt(np.finfo(float).eps) * max(1.0, abs(sizes[0, 0])))
        # Fewer coefficients than would go through all rows.
        return cls(kind, centre, scale, np.sort(order[: min(rank, (len(inputs) - 1) // 2)]))

    def basis(self, inputs: np.ndarray) -> np.ndarray:
        """Return the columns that the coefficients multiply."""
        plane = ((inputs - self.centre) / self.scale)[:, self.features]
        columns = np.concatenate([np.ones((len(inputs), 1)), plane], axis=1)
        return columns[:, : {"zero": 0, "constant": 1}.get(self.kind)]


@storable
class RegressionRows(NamedTuple):
    """Rows of a regression as arrays of NumPy, or of JAX on a device.

    Examples
    --------
    >>> x, y = np.array([[3.0], [5.0], [3.0]]), np.array([[1.0], [0.0], [2.0]])
    >>> merged = RegressionRows.of(x, y, np.zeros(3), np.ones(3), ProcessMean.of("constant", x)).merged()
    >>> merged.targets.tolist(), merged.scatter.tolist(), merged.counts.tolist()
    ([[1.5], [0.0]], [0.5, 0.0], [2.0, 1.0])
    """

    inputs: Any
    targets: Any
    basis: Any
    """Columns of the mean."""
    known: Any
    """The variance of noise that is known, beside the one that is learned."""
    weights: Any
    """The noise of a row is divided by its weight."""
    scatter: Any
    """Weighted squared differences between the targets that a row stands for and their mean."""
    counts: Any
    """How many targets a row stands for."""
    log_shift: Any
    """The logarithm of the weight less those of the targets' own weights."""

    @classmethod
    def of(
        cls, inputs: np.ndarray, targets: np.ndarray, known: np.ndarray, weights: np.ndarray, mean: ProcessMean
    ) -> "RegressionRows":
        """Return rows of positive weight, in an order that does not depend on the one given."""
        counted = np.flatnonzero(weights > 0)
        order = counted[np.lexsort(np.column_stack([weights, targets, known, inputs])[counted].T)]
        inputs, zeros = inputs[order], np.zeros(len(order))
        return cls(inputs, targets[order], mean.basis(inputs), known[order], weights[order], zeros, zeros + 1, zeros)

    def check_stored(self) -> None:
        """Refuse arrays that do not fit one another, as a file could hold them."""
        count, tables = len(self.inputs), ("inputs", "targets", "basis")
        shapes = {name: (count, *np.shape(getattr(self, name))[1:2]) for name in tables}
        check_numbers(self, **dict.fromkeys(self._fields, (count,)) | shapes)

    def subset(self, indices: np.ndarray) -> "RegressionRows":
        """Return some of the rows."""
        return RegressionRows(*(part[indices] for part in self))

    def without_copies(self) -> "RegressionRows":
        """Return the rows, each of them once: agreeing with its copies a row would seem to have no noise."""
        duplicates = find_duplicates(np.column_stack([self.inputs, self.known, self.weights]))
        copies = duplicates_are_copies(self.inputs[duplicates.first], self.targets, duplicates)
        return self.subset(duplicates.first) if copies else self

    def merged(self) -> "RegressionRows":
        """Return the rows with those merged that have equal inputs and known noise."""
        duplicates = find_duplicates(np.column_stack([self.inputs, self.known]))
        first, group = duplicates
        near = self.targets - self.targets[first][group]  # differences, so that no digits are lost
        mean, total = duplicates.merge(near, self.weights)
        scatter = np.bincount(group, self.weights * np.sum((near - mean[group]) ** 2, axis=1))
        log_shift = np.log(total) - np.bincount(group, np.log(self.weights))
        counts = np.bincount(group).astype(float)
        targets = self.targets[first] + mean
        return RegressionRows(
            self.inputs[first], targets, self.basis[first], self.known[first], total, scatter, counts, log_shift
        )

    @property
    def outputs(self) -> int:
        """The number of targets of a row."""
        return self.targets.shape[1]

    def variances(self, noise: Any) -> Any:
        """Return the variance of the noise of each row."""
        return (noise + self.known) / self.weights

    def repeat_losses(self, noise: Any) -> Any:
        """Return what merged targets add to −log p(y), by row.

        Of c targets with equal inputs, c − 1 differences are observed, which are noise alone.
        """
        variances, xp = self._repeat_variances(noise), namespace(self.counts)
        logs = (self.counts - 1) * xp.log(2 * np.pi * variances) + self.log_shift
        return (self.outputs * logs + self.scatter / variances) / 2

    def repeat_derivatives(self, noise: Any) -> tuple[Any, Any]:
        """Return the derivative of the sum of those in log noise, and its information."""
        variances, spare = self._repeat_variances(noise), self.counts - 1
        share = noise / variances
        gradient = share * (self.outputs * spare - self.scatter / variances) / 2
        return gradient.sum(), (self.outputs / 2 * spare * share**2).sum()

    def _repeat_variances(self, noise: Any) -> Any:
        return namespace(self.counts).where(self.counts > 1, noise + self.known, 1.0)


def varying(inputs: np.ndarray) -> np.ndarray:
    """Return which features differ between rows."""
    return np.any(inputs != inputs[:1], axis=0)

"""What a linear model is fitted to: columns of features, targets, and how often each example counts."""

from numbers import Real
from typing import Any, NamedTuple

import numpy as np

from thalweg.codec import storable

__all__ = ["LinearObservations"]


@storable
class LinearObservations(NamedTuple):
    """Examples: the columns (that of the intercept first, if there is one), targets, positive weights, and offsets.

    Examples
    --------
    >>> X, y, weights = np.array([[2.0], [3.0]]), np.array([1.0, 0.0]), np.array([1.0, 0.0])
    >>> LinearObservations.of(X, y, weights, intercept=True).columns
    array([[1., 2.]])
    """

    columns: np.ndarray
    targets: np.ndarray
    weights: np.ndarray
    offsets: np.ndarray | float = 0.0
    """The known part of the linear predictor of each."""

    @classmethod
    def of(
        cls, X: np.ndarray, y: np.ndarray, weights: np.ndarray, intercept: bool, offsets: np.ndarray | float = 0.0
    ) -> "LinearObservations":
        """Those of positive weight."""
        counts = weights > 0
        known = np.broadcast_to(offsets, len(y))[counts]
        return cls(with_intercept(X[counts], intercept), y[counts], weights[counts], known)

    def check_stored(self) -> None:
        """Refuse arrays that do not fit one another."""
        rows = (len(self.targets),)
        check_numbers(self, columns=(*rows, np.shape(self.columns)[-1]), targets=rows, weights=rows, offsets=rows)

    def less_offsets(self) -> "LinearObservations":
        """Subtract the offsets from the targets, which is the same to a Gaussian likelihood."""
        return self._replace(targets=self.targets - self.offsets, offsets=np.zeros(len(self.targets)))

    def joined(self, further: "LinearObservations") -> "LinearObservations":
        """These, and others after them."""
        return LinearObservations(*(np.concatenate(parts) for parts in zip(self, further, strict=True)))

    def compressed(self) -> "LinearObservations":
        """Return at most one row more than columns with the same Gaussian likelihood, whatever the noise.

        They have the same products of columns and targets, by a QR factorisation, and the same total weight.
        """
        most = self.columns.shape[1] + 1
        if len(self.targets) <= most:
            return self
        total = np.sum(self.weights)
        scaled = np.sqrt(self.weights)[:, None] * np.column_stack([self.columns, self.targets])
        # Equal weights that add up to the total; what they multiply is divided by them.
        factor = np.linalg.qr(scaled, mode="r") / np.sqrt(total / most)
        return LinearObservations(factor[:, :-1], factor[:, -1], np.full(most, total / most), np.zeros(most))


def with_intercept(X: np.ndarray, intercept: bool) -> np.ndarray:
    """The features with a column of ones before them, if there is an intercept."""
    return np.hstack([np.ones((len(X), 1)), X]) if intercept else X


def check_numbers(owner: Any, **shapes: tuple[int, ...]) -> None:
    """Refuse fields of an object from a file that are no finite numbers in these shapes."""
    for name, shape in shapes.items():
        found = getattr(owner, name)
        numeric = isinstance(found, np.ndarray) if shape else isinstance(found, Real)
        if not numeric or np.shape(found) != shape or not np.all(np.isfinite(found)):
            raise ValueError(f"{name} are no finite numbers of shape {shape}")

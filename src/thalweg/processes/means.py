"""What a process returns to far from its rows: zero, a constant, or a plane, with coefficients of a flat prior."""

from dataclasses import dataclass

import numpy as np
import scipy.linalg

from thalweg.codec import storable

KINDS = ("zero", "constant", "linear")

_DEPENDENT = 1e-6
"""A feature of which others leave no more than this is theirs."""


@storable
@dataclass(frozen=True)
class Mean:
    """The columns of a mean whose coefficients are found with the rest.

    Examples
    --------
    >>> mean = Mean.of("linear", np.array([[-1.0], [1.0], [-1.0], [1.0]]))
    >>> mean.basis(np.array([[3.0]]))
    array([[1., 3.]])
    """

    kind: str
    centre: np.ndarray
    scale: np.ndarray
    features: np.ndarray
    """Those that a plane has a slope in."""

    @classmethod
    def of(cls, kind: str, inputs: np.ndarray, weights: np.ndarray | None = None) -> "Mean":
        """One for rows like these: features are counted in their standard deviations."""
        centre = inputs[0] + np.average(inputs - inputs[0], axis=0, weights=weights)
        scale = np.sqrt(np.average((inputs - centre) ** 2, axis=0, weights=weights))
        # A feature that is constant up to rounding has no scale.
        varies = scale > 1e-12 * np.abs(centre)
        scale = np.where(varies, scale, 1.0)
        # Slopes that the rows tell apart, and fewer than would go through all of them.
        _, sizes, order = scipy.linalg.qr((inputs - centre) / scale * varies, mode="economic", pivoting=True)
        rank = np.sum(np.abs(np.diag(sizes)) > _DEPENDENT * max(1.0, abs(sizes[0, 0])))
        return cls(kind, centre, scale, np.sort(order[: min(rank, (len(inputs) - 1) // 2)]))

    def basis(self, inputs: np.ndarray) -> np.ndarray:
        """The columns at some inputs."""
        ones = np.ones((len(inputs), 1))
        match self.kind:
            case "zero":
                return ones[:, :0]
            case "constant":
                return ones
            case _:
                return np.concatenate([ones, ((inputs - self.centre) / self.scale)[:, self.features]], axis=1)

"""What a process returns to far from its rows: zero, a constant, or a plane, with coefficients of a flat prior."""

from dataclasses import dataclass

import numpy as np

from thalweg.codec import storable

KINDS = ("zero", "constant", "linear")


@storable
@dataclass(frozen=True)
class Mean:
    """The columns of a mean whose coefficients are found with the rest.

    Examples
    --------
    >>> mean = Mean.of("linear", np.array([[0.0], [2.0]]))
    >>> mean.basis(np.array([[3.0]]))
    array([[1., 2.]])
    """

    kind: str
    centre: np.ndarray
    scale: np.ndarray

    @classmethod
    def of(cls, kind: str, inputs: np.ndarray, weights: np.ndarray | None = None) -> "Mean":
        """One for rows like these: features are counted in their standard deviations."""
        centre = inputs[0] + np.average(inputs - inputs[0], axis=0, weights=weights)
        scale = np.sqrt(np.average((inputs - centre) ** 2, axis=0, weights=weights))
        # A feature that is constant up to rounding has no scale.
        return cls(kind, centre, np.where(scale > 1e-12 * np.abs(centre), scale, 1.0))

    def basis(self, inputs: np.ndarray) -> np.ndarray:
        """The columns at some inputs."""
        ones = np.ones((len(inputs), 1))
        match self.kind:
            case "zero":
                return ones[:, :0]
            case "constant":
                return ones
            case _:
                return np.concatenate([ones, (inputs - self.centre) / self.scale], axis=1)

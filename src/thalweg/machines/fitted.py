"""A machine that has learned something, as files hold it."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Self

import jax
import numpy as np

from thalweg.arguments import number, whole
from thalweg.codec import storable
from thalweg.kernels import Kernel
from thalweg.machines.calibration import Calibration, usual
from thalweg.machines.learners import Learner


@storable
@dataclass(frozen=True)
class Fitted:
    """A machine that has learned something: arrays, numbers and words.

    Parameters
    ----------
    learner
        The function, and what it goes on learning with.
    alpha
        The ridge.
    rows
        The number of rows that it was made for; None means a stream.
    seen
        The weight of the rows in the sum of losses.
    passes
        How many were made.
    history
        A line for each pass or batch: rows, seconds, features, and the loss and score on rows held out; for each step
        of a solution the objective, the part of it that a further step would gain (``left``), and products with the
        kernel matrix.
    offset
        What is subtracted from features, in float64, before they are cast to the precision of the machine; kernels
        do not see it, but rounding would.
    map
        A matrix that features less the offset are multiplied with, if one was learned.
    far
        How far from the offset values are squashed, for each feature.
    counts
        The weight of each label seen, if targets are labels; the intercept of f comes from it.
    calibration
        How probabilities are made from f, by rows left out; None where none were.
    residuals
        Of rows left out, sorted, if targets are numbers.

    Examples
    --------
    >>> from thalweg.machines import Rows, Settings, SquaredLoss, fit
    >>> x = np.arange(4.0)[:, None]
    >>> fitted = fit(Rows(x, np.sin(x), np.ones(4)), Settings(loss=SquaredLoss()), seed=0)
    >>> fitted.features, fitted.passes, fitted.double
    (4, 1, True)
    """

    learner: Learner
    alpha: float
    rows: int | None
    seen: float = 0.0
    passes: int = 0
    history: tuple[dict[str, float], ...] = ()
    offset: np.ndarray | None = None
    counts: np.ndarray | None = None
    calibration: Calibration | None = None
    residuals: np.ndarray | None = None
    map: np.ndarray | None = None
    far: np.ndarray | None = None

    def check_stored(self) -> None:
        """Refuse numbers that a fit would not leave behind, as a file could hold them."""
        number("alpha", self.alpha, above=0)
        number("seen", self.seen, least=0)
        whole("passes", self.passes, least=0)
        whole("seed", self.learner.seed, least=0, most=2**31 - 1)
        if self.offset is not None and (self.offset.ndim != 1 or not np.all(np.isfinite(self.offset))):
            raise ValueError("offset must be a row of finite numbers")
        if self.far is not None and (
            self.offset is None or self.far.shape != self.offset.shape or not np.all(self.far > 0)
        ):
            raise ValueError("far must be a row of positive numbers, as many as in offset")
        blocks = self.learner.expansion.blocks
        if self.map is not None and (
            self.offset is None
            or np.shape(self.map) != (len(self.offset), blocks.shape[2])
            or not np.all(np.isfinite(self.map))
        ):
            raise ValueError("map must be a matrix of finite numbers that leads to the features of the machine")
        if self.counts is not None and not (np.all(np.isfinite(self.counts)) and np.all(self.counts >= 0)):
            raise ValueError("counts must be non-negative")
        if self.residuals is not None and (self.residuals.ndim != 2 or not np.all(np.isfinite(self.residuals))):
            raise ValueError("residuals must be finite, in two dimensions")

    @property
    def kernel(self) -> Kernel:
        """The kernel in use."""
        return self.learner.machine.coordinates.kernel

    @property
    def frame(self) -> tuple[np.ndarray | None, ...]:
        """The offset, the map and how far is far."""
        return self.offset, self.map, self.far

    @property
    def features(self) -> int:
        """The number of features in use."""
        return self.learner.features

    @property
    def double(self) -> bool:
        """Whether it works in float64."""
        return self.learner.dtype == np.float64

    def mapped(self, convert: Callable[[Any], Any]) -> Self:
        """Return the same machine with its arrays, but not random keys, converted."""
        return replace(self, learner=self.learner.mapped(convert))

    def in_units(self, factor: np.ndarray, shift: np.ndarray) -> Self:
        """Return a machine for targets that are ``factor`` times what they were and ``shift`` more, for each output."""
        with jax.enable_x64(self.double):
            residuals = None if self.residuals is None else self.residuals * factor
            return replace(self, learner=self.learner.in_units(factor, shift, self.alpha), residuals=residuals)

    def predict(self, x: Any) -> np.ndarray:
        """f at the rows of an array, a memory map or a sparse matrix (CSR), a column for each output."""
        with jax.enable_x64(self.double):
            return self.learner.predict(x, *self.frame)

    def logits(self, values: np.ndarray, shifted: bool = True) -> np.ndarray:
        """What has probabilities as its sigmoid or softmax, where f has these values; or that before its shift."""
        level = np.asarray(self.learner.expansion.intercept, values.dtype)
        calibration = self.calibration or usual(self.learner.machine.loss, len(level))
        return (calibration.logits if shifted else calibration.unshifted)(values, level)

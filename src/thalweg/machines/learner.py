"""A learner, which makes passes over examples by stochastic steps, and a fitted machine, as files hold it."""

from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from thalweg.arguments import number, whole
from thalweg.codec import storable
from thalweg.kernels import Kernel
from thalweg.machines.calibration import Calibration, HeldOut, default_calibration, fit_calibration, sorted_residuals
from thalweg.machines.expansion import Expansion, predict
from thalweg.machines.functional_gradient import Machine, run
from thalweg.rows import FeatureFrame, Table

__all__ = ["FittedMachine"]

SCANNED_STEPS, MANY_ROWS = 8, 1024
"""Steps in one compiled scan, unless a step has so many rows that calling it costs nothing beside the work."""

MIN_GAIN = 3e-3
"""The share by which iterations must lower a validation loss to go on: half of it gains nothing that a table of 10,000
rows could show."""

SETTLED_STEPS = 8
"""Steps end where the mean loss of the last ones, at least so many, is not lower by ``MIN_GAIN`` than that of as many
before: they are the slow part of a pass over many rows, and the first of them gain the most."""

Predictions = list[tuple[np.ndarray, Any]]
"""Rows in the order in which they were learned from, block by block, and f there before."""


@storable
@dataclass
class Learner:
    """Learns along the blocks that a rule chooses, one batch to a step.

    Parameters
    ----------
    machine
        The parts of the method.
    expansion
        The function so far.
    batch_size
        Rows of a step.
    seed
        Seeds the choice of blocks; with the number of steps taken it gives the key of a step.
    """

    machine: Machine
    expansion: Expansion
    batch_size: int
    seed: int

    @property
    def dtype(self) -> Any:
        """The precision that it works in."""
        return self.expansion.weights.dtype

    @property
    def features(self) -> int:
        """The number of features in use."""
        return int(self.expansion.used) * self.machine.coordinates.width

    def learn(
        self, table: Table, order: np.ndarray, alpha: float, total: float, before: Predictions | None = None
    ) -> Iterator[int]:
        """Learn from new rows in this order; yield the numbers of rows as they are done.

        ``total`` is the weight of all rows in the sum of losses that ``alpha`` regularises. To ``before`` rows that
        become landmarks are added, with f there before it has learned from them; where it is given, steps that no
        longer lower the loss on new rows are the last.
        """
        yield from self._steps(table, order, self.batch_size, alpha / total)

    def again(self, table: Table, order: np.ndarray, alpha: float, total: float) -> Iterator[int]:
        """Learn from rows that were seen before."""
        yield from self.learn(table, order, alpha, total)

    def predict(self, x: Any, frame: FeatureFrame) -> np.ndarray:
        """Return f at the rows of ``x``, an array, a memory map or a sparse matrix."""
        return predict(self.machine.coordinates, self.expansion, x, frame)

    def score(self, table: Table, values: np.ndarray | None = None) -> tuple[float, float]:
        """Return the mean loss on rows, and the error of predictions in the unit of the user."""
        values = self.predict(table.x, table.frame) if values is None else values
        losses = self.machine.loss.value(values, np.asarray(table.targets_of(slice(None)), self.dtype))
        return float(np.average(np.asarray(losses), weights=table.weights)), table.error(values)

    def with_intercept(self, intercept: np.ndarray, alpha: float) -> Self:
        """Return a learner whose function has another intercept."""
        return replace(self, expansion=self.expansion._replace(intercept=np.asarray(intercept, self.dtype)))

    def with_targets(self, factor: np.ndarray, shift: np.ndarray, alpha: float) -> Self:
        """Return a learner whose targets are ``factor`` times what they were and ``shift`` more, for each output.

        Without a memory of targets it is the old function in the new units: its intercept has the shift.
        """
        now, times = self.expansion, np.asarray(factor, self.dtype)
        return replace(
            self,
            expansion=now._replace(
                weights=now.weights * times[None, None, :],
                drift=now.drift * times[None, :],
                mean_square=now.mean_square * np.mean(times**2),
                intercept=now.intercept * times + np.asarray(shift, self.dtype),
            ),
        )

    def mapped(self, convert: Callable[[Any], Any]) -> Self:
        """Return the same learner with its arrays, but not random keys, converted."""
        is_number = lambda leaf: eqx.is_array(leaf) and not jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        return replace(self, **jax.tree.map(lambda leaf: convert(leaf) if is_number(leaf) else leaf, vars(self)))

    def is_finite(self) -> bool:
        """Whether all weights are finite."""
        return bool(np.isfinite(np.sum(np.asarray(self.expansion.weights))))

    def _steps(
        self, table: Table, order: np.ndarray, size: int, ridge: float, until_settled: bool = False
    ) -> Iterator[int]:
        machine = eqx.tree_at(lambda m: m.ridge, self.machine, jnp.asarray(ridge))
        losses, window = list[float](), max(SETTLED_STEPS, int(self.expansion.used) // 4)
        for part in chunks(order, size, 1 if size >= MANY_ROWS else SCANNED_STEPS):
            batches = table.stack(part, size, self.dtype)
            steps, taken = len(batches.weights), int(self.expansion.steps)
            keys = _keys(self.seed, np.arange(taken, taken + steps, dtype=np.int32))
            self.expansion, report = run(machine, self.expansion, batches, keys)
            yield len(part)
            if until_settled:
                losses.extend(np.asarray(report.value).tolist())  # on rows that were new
                before, now = losses[-2 * window : -window], losses[-window:]
                if len(losses) >= 2 * window and sum(now) > (1 - MIN_GAIN) * sum(before):
                    return


@jax.jit
def _keys(seed: Any, counts: Any) -> Any:
    return jax.vmap(lambda count: jax.random.fold_in(jax.random.key(seed), count))(counts)


def chunks(order: np.ndarray, size: int, steps: int) -> Iterator[np.ndarray]:
    """Split rows into chunks of so many whole batches, and the rest into single ones.

    Examples
    --------
    >>> [len(part) for part in chunks(np.arange(10), 2, 2)]
    [4, 4, 2]
    """
    even = len(order) // (size * steps) * size * steps
    for begin in range(0, even, size * steps):
        yield order[begin : begin + size * steps]
    for begin in range(even, len(order), size):
        yield order[begin : begin + size]


@storable
@dataclass(frozen=True)
class FittedMachine:
    """A fitted machine: arrays, numbers and words.

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
        A record for each pass or batch: rows, seconds, features, and the loss and error on the validation set; for each
        Newton step the objective, the share of it that a further step would gain (``left``), and products with the
        kernel matrix so far.
    frame
        What maps rows to the features of the machine.
    counts
        The weight of each label seen, if targets are labels; the intercept of f comes from it.
    search_loss
        The squared loss of the machine that won the search, infinite where nothing was searched for.
    chosen
        How many numbers the search chose by the rows, which look easier for it than new ones.
    bandwidth, metric
        What was asked for, which a machine that goes on must be asked for again.
    calibration
        The map from f to probabilities, by held-out rows; None where none were.
    residuals
        Of held-out rows in ascending order, if targets are numbers.

    Examples
    --------
    >>> from thalweg.machines import Settings, SquaredLoss, Table, fit
    >>> x = np.arange(4.0)[:, None]
    >>> fitted = fit(Table(x, np.sin(x), np.ones(4)), Settings(loss=SquaredLoss()), seed=0)
    >>> fitted.features, fitted.passes, fitted.double
    (4, 1, True)
    """

    learner: Learner
    alpha: float
    rows: int | None
    seen: float = 0.0
    passes: int = 0
    history: tuple[dict[str, float], ...] = ()
    frame: FeatureFrame = field(default_factory=FeatureFrame)
    counts: np.ndarray | None = None
    search_loss: float = np.inf
    chosen: int = 0
    bandwidth: float | str = "auto"
    metric: str = "auto"
    calibration: Calibration | None = None
    residuals: np.ndarray | None = None

    def check_stored(self) -> None:
        """Refuse numbers that a fit would not leave behind, as a file could hold them."""
        number("alpha", self.alpha, above=0)
        number("seen", self.seen, least=0)
        whole("passes", self.passes, least=0)
        whole("seed", self.learner.seed, least=0, most=2**31 - 1)
        if self.counts is not None and not (np.all(np.isfinite(self.counts)) and np.all(self.counts >= 0)):
            raise ValueError("counts must be non-negative")
        if self.residuals is not None and (self.residuals.ndim != 2 or not np.all(np.isfinite(self.residuals))):
            raise ValueError("residuals must be finite, in two dimensions")

    @property
    def kernel(self) -> Kernel:
        """The kernel in use."""
        return self.learner.machine.coordinates.kernel

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

    def with_targets(self, factor: np.ndarray, shift: np.ndarray) -> Self:
        """Return a machine for targets that are ``factor`` times what they were and ``shift`` more, for each output."""
        with jax.enable_x64(self.double):
            residuals = None if self.residuals is None else self.residuals * factor
            return replace(self, learner=self.learner.with_targets(factor, shift, self.alpha), residuals=residuals)

    def predict(self, x: Any) -> np.ndarray:
        """Return f at the rows of an array, a memory map or a sparse matrix (CSR), a column for each output."""
        with jax.enable_x64(self.double):
            return self.learner.predict(x, self.frame)

    def logits(self, values: np.ndarray) -> np.ndarray:
        """Return calibrated log-odds where f has these values."""
        intercept = np.asarray(self.learner.expansion.intercept, values.dtype)
        calibration = self.calibration or default_calibration(self.learner.machine.loss, len(intercept))
        return calibration.logits(values, intercept)

    def calibrated(self, held_out: HeldOut | None) -> Self:
        """Return the machine with probabilities, or residuals, by held-out rows."""
        if held_out is None or not np.all(np.isfinite(held_out.values)):
            return self
        if held_out.table.codes is None:
            return replace(self, residuals=sorted_residuals(held_out))
        intercept = np.asarray(self.learner.expansion.intercept, np.float64)
        return replace(self, calibration=fit_calibration(held_out, intercept, self.learner.machine.loss))

    def at_quantile(self, q: float) -> Self:
        """Return the machine shifted until the share q of held-out targets is below f.

        With a ridge that the squared loss has chosen f follows few rows too closely to be a quantile for others. What
        one standard error may explain is left alone.
        """
        residuals = self.residuals
        if residuals is None:
            return self
        off = np.abs(np.mean(residuals <= 0, axis=0) - q) > np.sqrt(q * (1 - q) / len(residuals))
        shift = np.where(off, np.quantile(residuals, q, axis=0), 0.0)
        learner, now = copy(self.learner), self.learner.expansion
        learner.expansion = now._replace(intercept=now.intercept + shift.astype(learner.dtype))
        return replace(self, learner=learner, residuals=residuals - shift)

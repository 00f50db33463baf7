"""A regression to be solved: its rows, where searches start, and which subsets they go through.

Kernels are in the units of the data. What makes a search independent of units is where it starts, at lengthscales of
√d standard deviations of each feature and at a share of the variance of the targets, and that it moves logarithms.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import numpy as np

from thalweg.kernels import Gaussian, Kernel, Matern12, Matern32, Matern52
from thalweg.processes.evidence import PRIOR_DEVIATION, LogPosterior
from thalweg.processes.exact import ExactEvidence, Parameters
from thalweg.processes.observations import MEANS, ProcessMean, RegressionRows, varying
from thalweg.rows import fit_frame
from thalweg.rows.scale import standard_scales
from thalweg.trees import as_host_arrays

__all__ = ["RegressorSettings"]

FAMILIES: tuple[type[Kernel], ...] = (Matern32, Matern52, Gaussian, Matern12)
"""The kernels that are compared where none is given."""

STARTING_NOISE_SHARE = 0.1
"""The share of the targets' variance that searches start with as noise."""

LEAST_NOISE_SHARE = np.sqrt(np.finfo(float).eps)
"""The least noise that a search may find, as a share of the one it starts with: less is lost to rounding in K."""

SUBSET_ROWS = {"cpu": (150, 400, 1200, 4000), "gpu": (150, 400, 4000, 16_000)}
"""Rows that kernels are compared on, and at last those that the best one is fitted to before all rows, or instead of
them. Of two families that so many rows do not tell apart either will do."""

LEAST_GROWTH = 1.5
"""A subset is learned from if there are so many times its rows. With a factor of 2 the time falls by half at 800."""


@dataclass(frozen=True)
class RegressorSettings:
    """How to find the posterior and its parameters.

    Examples
    --------
    >>> RegressorSettings(learn=False).restarts
    1
    """

    methods: ClassVar[tuple[str, ...]] = ("auto", "exact", "iterative", "grid")
    means: ClassVar[tuple[str, ...]] = MEANS

    method: str = "auto"
    """One of ``methods``."""
    learn: bool = True
    """Whether to maximise the marginal likelihood over the kernel's parameters and the noise."""
    mean: str = "constant"
    """One of ``means``: what the function returns to far from the rows."""
    restarts: int = 1
    """How many more starting points to search the best kernel from, on the smallest subset of the rows."""
    max_iter: int = 100
    """How many steps a search takes at most."""
    verbose: bool = False
    """Whether to show how searches go on."""


@dataclass(frozen=True)
class RegressionProblem:
    """Rows, where searches start, and what is to be learned."""

    rows: RegressionRows
    """Those with equal inputs are merged."""
    mean: ProcessMean
    starts: list[Parameters]
    kernel: Kernel | type[Kernel] | None
    learn_noise: bool
    settings: RegressorSettings
    seed: int

    @property
    def learns(self) -> bool:
        """Whether there is anything to learn: not from targets that are all the same."""
        return self.settings.learn and bool(np.any(self.rows.targets) or np.any(self.rows.scatter))

    @property
    def order(self) -> np.ndarray:
        """A random order of the rows, of which searches see the first."""
        return np.random.default_rng(self.seed).permutation(len(self.rows.inputs))

    def least_noise(self, size: int) -> float:
        """Return the least noise that a search may find on so many rows; few of them may agree by chance."""
        share = LEAST_NOISE_SHARE if size == len(self.rows.inputs) else np.sqrt(LEAST_NOISE_SHARE)
        return share * float(self.starts[0].noise)

    def log_posterior(self, evidence: Any, origin: Parameters, deviation: float = PRIOR_DEVIATION) -> LogPosterior:
        """Return the posterior of the parameters that are learned, given some of the rows."""
        least = self.least_noise(len(evidence.inputs)) if self.learn_noise else None
        return LogPosterior(evidence, origin, fixed=int(not self.learn_noise), deviation=deviation, least_noise=least)

    def subset(self, size: int, order: np.ndarray) -> ExactEvidence:
        """Return the evidence of the first rows of an order; that of all of them if they are no more."""
        whole = size >= len(self.rows.inputs)
        return ExactEvidence(self.rows if whole else self.rows.subset(np.sort(order[:size])))


def subset_rows() -> tuple[int, ...]:
    """Return the numbers of rows that kernels are compared on, on this kind of device."""
    return SUBSET_ROWS["cpu" if jax.default_backend() == "cpu" else "gpu"]


def subset_sizes(rows: int) -> list[int]:
    """Return the numbers of rows that are learned from one after another, the last of them all."""
    return [size for size in subset_rows() if LEAST_GROWTH * size <= rows] + [rows]


def starting_parameters(
    rows: RegressionRows, kernel: Kernel | type[Kernel] | None, noise: float | None
) -> list[Parameters]:
    """Return where searches start: kernels in the units of the data, one for each family."""
    noise_variance, variance = _variances(rows)
    families = (kernel,) if isinstance(kernel, type) else FAMILIES
    # Values far out are drawn in, so that they do not say what is far for the others.
    scales = standard_scales(fit_frame(rows.inputs).apply(rows.inputs))
    lengthscales = scales * np.sqrt(max(1, np.sum(varying(rows.inputs))))
    kernels = [kernel] if isinstance(kernel, Kernel) else [family(lengthscales, variance) for family in families]
    start = np.asarray(STARTING_NOISE_SHARE * noise_variance if noise is None else noise)
    return [Parameters(as_host_arrays(one), start) for one in kernels]


def _variances(rows: RegressionRows) -> tuple[float, float]:
    """Return the mean squares that noise and kernel have to account for.

    They are those of the targets less the best mean, which for the noise has a constant in any case. Where nothing but
    rounding is left they are those about a constant, then those between merged targets, and next to nothing if there
    are none.
    """
    square = lambda left: float(np.mean(np.average(left**2, axis=0, weights=rows.weights)))
    away = rows.targets - rows.targets[:1]  # near which nothing is lost to rounding
    away = away - np.average(away, axis=0, weights=rows.weights)
    root = np.sqrt(rows.weights)[:, None]
    left = away - rows.basis @ np.linalg.lstsq(root * rows.basis, root * away, rcond=None)[0]
    rounding = (np.finfo(float).eps ** 0.75 * float(np.max(np.abs(rows.targets)))) ** 2
    within = float(np.sum(rows.scatter)) / (np.sum(rows.weights) * rows.outputs)
    noise = next((one for one in (square(left), square(away), within) if one > rounding), LEAST_NOISE_SHARE)
    return noise, noise if rows.basis.shape[1] else square(rows.targets) or LEAST_NOISE_SHARE

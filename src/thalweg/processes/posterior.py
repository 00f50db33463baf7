"""The posterior of a function by factors of the covariance of its rows, for one or several plausible parameters."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import ndtri

from thalweg.codec import storable
from thalweg.kernels import Kernel
from thalweg.padding import padded
from thalweg.processes import exact
from thalweg.processes.covariance import TILE_ROWS, device_terms
from thalweg.processes.exact import ExactEvidence, ExactSolution, Parameters, computes_on_device
from thalweg.processes.observations import ProcessMean, RegressionRows
from thalweg.threads import enough_threads
from thalweg.trees import as_device_arrays, as_host_arrays

COVERAGE = 0.95
"""The share of rows whose intervals, of as much of a normal distribution, are to hold what all others predict."""


@storable
@dataclass(frozen=True)
class ExactPosterior:
    """The posterior of a function, as a mixture over parameters: equally plausible ones, or a single choice."""

    kernel: Kernel
    """The one that makes rows most probable."""
    noise: float
    mean: ProcessMean
    rows: RegressionRows
    kernels: tuple[Kernel, ...]
    """Those of the mixture."""
    noises: np.ndarray
    solution: ExactSolution | None = None
    """That of a single choice; those of a mixture are made when they are first needed."""
    scale: float = 1.0
    """What standard deviations are multiplied by, so that they are right for rows that are left out."""

    residual: ClassVar[float] = 0.0
    """That of a solve: none."""
    coarse: ClassVar[bool] = False

    @classmethod
    def of(
        cls,
        best: Parameters,
        mean: ProcessMean,
        rows: RegressionRows,
        solution: ExactSolution | None = None,
        mixture: Sequence[Parameters] = (),
    ) -> "ExactPosterior":
        """Return the posterior for the best parameters, or for a mixture."""
        parts = [as_host_arrays(one) for one in mixture or [best]]
        kernels, noises = tuple(one.kernel for one in parts), np.array([float(one.noise) for one in parts])
        if solution is not None and not computes_on_device(len(rows.inputs)):
            # In the order of rows that a file keeps, so that what is loaded predicts the same to the last bit.
            solution = ExactSolution(*map(np.ascontiguousarray, solution))
        return cls(as_host_arrays(best.kernel), float(best.noise), mean, rows, kernels, noises, solution)

    def stored(self) -> dict[str, Any]:
        """Return what a file holds: no arrays of an accelerator."""
        known = {field.name: getattr(self, field.name) for field in fields(self)}
        return known | {"solution": None if self.solution is None else ExactSolution(*map(np.asarray, self.solution))}

    def __reduce__(self) -> tuple:
        return type(self), tuple(self.stored().values())

    @cached_property
    def solutions(self) -> tuple[ExactSolution, ...]:
        """Those of all parameters of the mixture."""
        if self.solution is not None:
            return (self.solution,)
        with jax.enable_x64(True), enough_threads(len(self.rows.inputs)):
            evidence = ExactEvidence(self.rows)
            return tuple(evidence.solution(Parameters(*one)) for one in zip(self.kernels, self.noises, strict=True))

    @property
    def observation_noise(self) -> float:
        """The variance of an observation around the function."""
        return self.scale**2 * float(np.mean(self.noises))

    def predict(self, new: np.ndarray, full: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """Return means of the function at new inputs, a column for each target, and variances or, if full, covariance.

        The spread of a mixture is the mean of its parts' own and how far their means are apart, on average over
        targets.
        """
        means, spreads = map(np.array, zip(*self._predictions(new, full), strict=True))
        mean = means.mean(axis=0)
        apart = means - mean
        shared = np.einsum("kit,kjt->ij" if full else "kit,kit->i", apart, apart) / (len(apart) * apart.shape[2])
        return mean, self.scale**2 * (spreads.mean(axis=0) + shared)

    def _predictions(self, new: np.ndarray, full: bool) -> list[tuple[np.ndarray, np.ndarray]]:
        """Predictions of each part."""
        tile = len(new) if full else TILE_ROWS
        tiles = [new[begin : begin + tile] for begin in range(0, len(new), tile)]
        with jax.enable_x64(True), enough_threads(len(self.rows.inputs)):
            made = [
                [self._tile(kernel, solution, part, full) for part in tiles]
                for kernel, solution in zip(self.kernels, self.solutions, strict=True)
            ]
        return [tuple(map(np.concatenate, zip(*parts, strict=True))) for parts in made]  # type: ignore[misc]

    def _tile(self, kernel: Kernel, solution: ExactSolution, new: np.ndarray, full: bool) -> tuple[Any, Any]:
        inputs, basis, count = self.rows.inputs, self.mean.basis(new), len(new)
        if not computes_on_device(len(inputs)):
            return exact.predict(kernel, inputs, solution, new, basis, full)
        size = count if full else TILE_ROWS  # one program, however many there are
        placed = [jnp.asarray(padded(part, size)) for part in (new, basis)]
        terms = device_terms(kernel, inputs.shape[1]) or as_device_arrays(kernel)
        found = exact.compiled_predict(terms, jnp.asarray(inputs), jax.tree.map(jnp.asarray, solution), *placed, full)
        mean, spread = map(np.asarray, found)
        return mean[:count], spread[(slice(count),) * spread.ndim]

    def sample(self, new: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
        """Draw functions from the posterior, at new inputs: (points, targets, count)."""
        parts = self._predictions(new, full=True)
        counts = rng.multinomial(count, np.full(len(parts), 1 / len(parts)))
        drawn = [_normals(*part, number, rng) for part, number in zip(parts, counts, strict=True) if number]
        functions = np.concatenate(drawn, axis=2)[:, :, rng.permutation(count)]
        mean = np.mean([mean for mean, _ in parts], axis=0)[:, :, None]
        return mean + self.scale * (functions - mean)

    def calibrated(self) -> "ExactPosterior":
        """Return the same with the scale that leave-one-out predictions ask for."""
        with enough_threads(len(self.rows.inputs)):
            parts = [exact.leave_one_out(solution) for solution in self.solutions]
        return replace(self, scale=widening(*map(np.array, zip(*parts, strict=True))))


def _normals(mean: np.ndarray, covariance: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    size = mean.shape[1], count
    drawn = rng.multivariate_normal(0 * mean[:, 0], covariance, size, check_valid="ignore", method="eigh")
    return mean[:, :, None] + np.moveaxis(drawn, 2, 0)


def widening(differences: np.ndarray, variances: np.ndarray) -> float:
    """Return what standard deviations must be multiplied by so that 95 % of the rows left out are within 1.96 of them.

    At least 1. ``differences`` (parameters, rows, targets) and ``variances`` (parameters, rows) are those of
    :func:`~thalweg.processes.exact.leave_one_out` for parameters drawn from their posterior; given all rows but one,
    each draw is as plausible as it is without that row's own density.
    """
    known = np.all(np.isfinite(variances), axis=0)
    if not np.any(known):
        return 1.0
    differences, variances = differences[:, known], variances[:, known]
    loss = np.sum(differences**2, axis=2) / (2 * variances) + differences.shape[2] / 2 * np.log(variances)
    share = np.exp(loss - loss.max(axis=0))
    share = (share / share.sum(axis=0))[:, :, None]
    mean = np.sum(share * differences, axis=0)
    variance = np.sum(share * (variances[:, :, None] + (differences - mean) ** 2), axis=0)
    return max(1.0, float(np.quantile(np.abs(mean) / np.sqrt(variance), COVERAGE)) / ndtri((1 + COVERAGE) / 2))

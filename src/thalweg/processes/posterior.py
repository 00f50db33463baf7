"""Posteriors of a function by factors of the covariance of its rows: for given parameters, or for several plausible."""

from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg
from scipy.linalg.lapack import dtrtri

from thalweg.codec import storable
from thalweg.kernels import Kernel
from thalweg.padding import padded
from thalweg.processes import host
from thalweg.processes.blend import Blend
from thalweg.processes.exact import (
    STRIP,
    Parameters,
    Solution,
    compiled_covariances,
    compiled_predictions,
    length,
    predictions,
)
from thalweg.processes.means import Mean
from thalweg.threads import enough_threads

_COVERED, _DEVIATIONS = 0.95, 1.959964
"""How many of the rows that are left out are to be within so many standard deviations."""

_LEFT_OUT = 2_000
"""Rows up to which parameters are uncertain enough for intervals to need it."""


@storable
@dataclass(frozen=True)
class ExactPosterior:
    """The posterior of a function by a factor of its covariance, without padding.

    Arrays are those of NumPy; of many rows on an accelerator they stay there until they are written down.
    """

    kernel: Kernel
    noise: float
    mean: Mean
    inputs: np.ndarray
    factor: np.ndarray | jax.Array
    weights: np.ndarray | jax.Array
    coefficients: np.ndarray | jax.Array
    whitened: np.ndarray | jax.Array
    basis_factor: np.ndarray | jax.Array
    scale: float = 1.0
    """What standard deviations are multiplied by, so that they are right for rows that are left out."""

    residual: ClassVar[float] = 0.0
    """That of a solve: none."""
    coarse: ClassVar[bool] = False

    @classmethod
    def of(cls, parameters: Parameters, mean: Mean, inputs: np.ndarray, found: Solution) -> "ExactPosterior":
        """Without padded rows, which come last."""
        rows = len(inputs)
        kernel, noise = jax.tree.map(np.asarray, parameters.kernel), float(parameters.noise)
        if not host.serves(rows) and len(found.factor) == rows:
            return cls(kernel, noise, mean, inputs, *found[:-1])
        # In the order of rows that a file keeps, so that what is loaded predicts the same to the last bit.
        factor, weights, coefficients, whitened, basis_factor, _ = map(np.ascontiguousarray, found)
        arrays = np.ascontiguousarray(factor[:rows, :rows]), weights[:rows], coefficients, whitened[:rows], basis_factor
        return cls(kernel, noise, mean, inputs, *arrays)

    def stored(self) -> dict[str, Any]:
        """What a file holds: no arrays of an accelerator."""
        taken = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: np.asarray(part) if isinstance(part, jax.Array) else part for name, part in taken.items()}

    def __reduce__(self) -> tuple:
        return type(self), tuple(self.stored().values())

    @property
    def observation_noise(self) -> float:
        """The variance of an observation around the function."""
        return self.scale**2 * self.noise

    def predict(self, new: np.ndarray, full: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """Means of the function at new inputs, a column per target, and its variances or, if ``full``, covariance."""
        strip = len(new) if full else STRIP
        with jax.enable_x64(True), enough_threads(len(self.inputs)):
            predict = self._on_host if host.serves(len(self.inputs)) else self._on_device
            parts = [predict(new[first : first + strip], full) for first in range(0, len(new), strip)]
        means, spreads = zip(*parts, strict=True)
        return np.concatenate(means), self.scale**2 * np.concatenate(spreads)

    def calibrated(self) -> "ExactPosterior":
        """The same, with the scale that :func:`widening` finds; of many rows it stays 1."""
        if len(self.inputs) > _LEFT_OUT:
            return self
        with enough_threads(len(self.inputs)):
            gaps, variances = left_out(self._solution())
        return replace(self, scale=widening(gaps[None], variances[None]))

    def _solution(self) -> Solution:
        return Solution(self.factor, self.weights, self.coefficients, self.whitened, self.basis_factor, np.zeros(()))

    def _on_host(self, new: np.ndarray, full: bool) -> tuple[np.ndarray, np.ndarray]:
        cross = host.matrix(self.kernel, self.inputs, new)
        prior = host.matrix(self.kernel, new) if full else host.diagonal(self.kernel, new)
        return predictions(cross, prior, self._solution(), self.mean.basis(new), full, np, scipy.linalg)

    def _on_device(self, new: np.ndarray, full: bool) -> tuple[np.ndarray, np.ndarray]:
        count, size = len(new), length(len(new)) if full else STRIP  # one program, however many there are
        points, basis = (jax.device_put(padded(array, size)) for array in (new, self.mean.basis(new)))
        found = jax.tree.map(jnp.asarray, self._solution())
        kernel = Blend.of(self.kernel, self.inputs.shape[1]) or self.kernel
        predict = compiled_covariances if full else compiled_predictions
        mean, spread = predict(kernel, jnp.asarray(self.inputs), found, points, basis)
        return np.asarray(mean)[:count], np.asarray(spread)[(slice(count),) * np.ndim(spread)]

    def sample(self, new: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
        """Functions drawn from the posterior, at new inputs: (points, targets, count)."""
        mean, covariance = self.predict(new, full=True)
        values, vectors = np.linalg.eigh((covariance + covariance.T) / 2)
        root = vectors * np.sqrt(np.maximum(values, 0))
        return mean[:, :, None] + np.einsum("ij,jtc->itc", root, rng.standard_normal((*mean.shape, count)))


@storable
@dataclass(frozen=True)
class MixedPosterior:
    """The posterior of a function whose kernel and noise are uncertain: a mixture over plausible ones.

    Factors of the covariance are made when they are first asked for.
    """

    kernel: Kernel
    """The most plausible one."""
    noise: float
    mean: Mean
    rows: host.HostRows
    kernels: tuple[Kernel, ...]
    noises: tuple[float, ...]
    scale: float = 1.0
    """As in :class:`ExactPosterior`."""

    residual: ClassVar[float] = 0.0
    coarse: ClassVar[bool] = False

    @classmethod
    def of(cls, best: Parameters, mean: Mean, rows: host.HostRows, drawn: list[Parameters]) -> "MixedPosterior":
        """Of parameters drawn from their posterior."""
        kernels = tuple(jax.tree.map(np.asarray, parameters.kernel) for parameters in (best, *drawn))
        noises = tuple(float(parameters.noise) for parameters in (best, *drawn))
        return cls(kernels[0], noises[0], mean, rows, kernels[1:], noises[1:])

    def calibrated(self) -> "MixedPosterior":
        """The same, with the scale that :func:`widening` finds."""
        parts = [left_out(part._solution()) for part in self.parts]
        return replace(self, scale=widening(*map(np.array, zip(*parts, strict=True))))

    @cached_property
    def parts(self) -> tuple[ExactPosterior, ...]:
        """The posterior for each of the parameters."""
        with jax.enable_x64(True), enough_threads(len(self.rows.inputs)):
            each = [Parameters(k, np.asarray(s)) for k, s in zip(self.kernels, self.noises, strict=True)]
            return tuple(ExactPosterior.of(one, self.mean, self.rows.inputs, self.rows.solution(one)) for one in each)

    @property
    def observation_noise(self) -> float:
        """The variance of an observation around the function."""
        return self.scale**2 * float(np.mean(self.noises))

    def predict(self, new: np.ndarray, full: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """Means of the function at new inputs, and its variances or covariance, alike for all targets.

        The spread is the mean of the parts' own and how far their means are apart, on average over targets.
        """
        means, spreads = map(np.array, zip(*(part.predict(new, full) for part in self.parts), strict=True))
        mean = means.mean(axis=0)
        apart = means - mean
        shared = np.einsum("kit,kjt->ij" if full else "kit,kit->i", apart, apart) / (len(apart) * apart.shape[2])
        return mean, self.scale**2 * (spreads.mean(axis=0) + shared)

    def sample(self, new: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
        """Functions drawn from the posterior, at new inputs: (points, targets, count)."""
        counts = rng.multinomial(count, np.full(len(self.parts), 1 / len(self.parts)))
        drawn = [part.sample(new, number, rng) for part, number in zip(self.parts, counts, strict=True) if number]
        found = np.concatenate(drawn, axis=2)[:, :, rng.permutation(count)]
        mean = np.mean([part.predict(new)[0] for part in self.parts], axis=0)[:, :, None]
        return mean + self.scale * (found - mean)


def widening(gaps: np.ndarray, variances: np.ndarray) -> float:
    """What standard deviations must be multiplied by so that 95 % of the rows are within 1.96 of what others predict.

    At least 1. ``gaps`` (parameters, rows, targets) and ``variances`` (parameters, rows) are those of
    :func:`left_out` for parameters drawn from their posterior; given all rows but one, each
    draw is as plausible as it is without that row's own probability.
    """
    known = np.all(np.isfinite(variances), axis=0)
    if not np.any(known):
        return 1.0
    gaps, variances = gaps[:, known], variances[:, known]
    unlikely = np.sum(gaps**2, axis=2) / (2 * variances) + gaps.shape[2] / 2 * np.log(variances)
    share = np.exp(unlikely - unlikely.max(axis=0))
    share = (share / share.sum(axis=0))[:, :, None]
    gap = np.sum(share * gaps, axis=0)
    variance = np.sum(share * (variances[:, :, None] + (gaps - gap) ** 2), axis=0)
    return max(1.0, float(np.quantile(np.abs(gap) / np.sqrt(variance), _COVERED)) / _DEVIATIONS)


def left_out(found: Solution) -> tuple[np.ndarray, np.ndarray]:
    """How far each row is from what all others predict for it, a column per target, and the variance of that.

    With P = A⁻¹ − A⁻¹H(HᵀA⁻¹H)⁻¹HᵀA⁻¹ these are (Py)ᵢ/Pᵢᵢ and 1/Pᵢᵢ: nothing is solved again. Others that do not
    determine the mean predict nothing: the variance is infinite.
    """
    root = dtrtri(np.asarray(found.factor).T, lower=0)[0].T  # in the order of columns: nothing is copied
    hat = scipy.linalg.solve_triangular(np.asarray(found.basis_factor), np.asarray(found.whitened).T @ root, lower=True)
    precisions = np.sum(root**2, axis=0) - np.sum(hat**2, axis=0)
    known = precisions > 1e-10 * np.sum(root**2, axis=0)
    variances = np.where(known, 1 / np.where(known, precisions, 1.0), np.inf)
    return np.asarray(found.weights) * np.where(known, variances, 0.0)[:, None], variances

"""Gaussian process regression by factorising the covariance: marginal likelihood, its gradient, the posterior.

With A = K + diag(noise), targets y and a mean Hβ whose coefficients β have a flat prior, the loss is

    −log p(y) = ½ ‖y − Hβ̂‖²_{A⁻¹} + ½ log det A + n/2 log 2π,    β̂ = argmin ‖y − Hβ‖²_{A⁻¹}.

Its derivative in any parameter of A is ½ tr(W ∂A) with W = A⁻¹ − ααᵀ and α = A⁻¹(y − Hβ̂): one product of W with the
Jacobian of the covariance gives all parameters at once. Everything runs in the precision of the data, which is float64
in :mod:`thalweg.processes.regression`.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import cho_solve, solve_triangular
from jaxtyping import Array, Float

from thalweg.codec import storable
from thalweg.compiling import quick_jit
from thalweg.kernels import Kernel
from thalweg.padding import padded, padded_size
from thalweg.processes.means import Mean
from thalweg.threads import enough_threads

_LEAST, _GRAIN = 64, 16
"""Rows are padded to as many at least, and to a multiple, so that sets of similar size share one program."""

_PADDED = 2048
"""Rows above which padding would cost more than a new program."""

_QUICK = 1024
"""Rows up to which a program runs for less time than XLA would take to make it fast."""

_STRIP = 2048
"""Rows of the covariance whose derivative exists at a time."""

_PREDICTED = 1024
"""Rows of a prediction that exist at a time."""


class Parameters(eqx.Module):
    """What is learned: a kernel, and the variance of the noise."""

    kernel: Kernel
    noise: Float[Array, ""]


class Observations(NamedTuple):
    """Rows of a regression, padded: a padded row is independent of all others, and its targets are zero."""

    inputs: Float[Array, "n d"]
    targets: Float[Array, "n t"]
    basis: Float[Array, "n p"]
    """Columns of the mean; coefficients have a flat prior."""
    known: Float[Array, " n"]
    """The variance of noise that is known, beside the one that is learned."""
    weights: Float[Array, " n"]
    """How often a row counts: its noise is divided by it."""
    real: Float[Array, " n"]

    @classmethod
    def padded(
        cls, inputs: np.ndarray, targets: np.ndarray, basis: np.ndarray, known: np.ndarray, weights: np.ndarray
    ) -> "Observations":
        """Rows of NumPy on the device."""
        size = length(len(inputs))
        arrays = (inputs, targets, basis, known, weights, np.ones(len(inputs)))
        return cls(*(jax.device_put(padded(array, size)) for array in arrays))


class Solution(NamedTuple):
    """The factor of A, A⁻¹(y − Hβ̂), β̂, and the factor of HᵀA⁻¹H with L⁻¹H."""

    factor: Float[Array, "n n"]
    weights: Float[Array, "n t"]
    coefficients: Float[Array, "p t"]
    whitened: Float[Array, "n p"]
    basis_factor: Float[Array, "p p"]
    loss: Float[Array, ""]


def length(rows: int) -> int:
    """The number that rows are padded to."""
    return padded_size(max(rows, _LEAST), _GRAIN) if rows <= _PADDED else rows


def few(*arguments: Any) -> bool:
    """Whether to compile in a hurry."""
    return max(np.shape(leaf)[0] for leaf in jax.tree.leaves(arguments) if np.ndim(leaf)) <= _QUICK


def covariance(parameters: Parameters, rows: Observations) -> Float[Array, "n n"]:
    """A, with padded rows independent of everything."""
    among = parameters.kernel(rows.inputs) * rows.real[:, None] * rows.real[None]
    weights = jnp.where(rows.real > 0, rows.weights, 1.0)
    return among + jnp.diag(jnp.where(rows.real > 0, (parameters.noise + rows.known) / weights, 1.0))


def solution(parameters: Parameters, rows: Observations) -> Solution:
    """Factorise A, and solve for the weights and the coefficients of the mean."""
    factor = jnp.linalg.cholesky(covariance(parameters, rows))
    outputs = rows.targets.shape[1]
    whitened = solve_triangular(factor, jnp.concatenate([rows.targets, rows.basis], axis=1), lower=True)
    left, basis = whitened[:, :outputs], whitened[:, outputs:]
    if basis.shape[1]:
        basis_factor = jnp.linalg.cholesky(basis.T @ basis)
        coefficients = cho_solve((basis_factor, True), basis.T @ left)
        left = left - basis @ coefficients
    else:
        basis_factor, coefficients = jnp.zeros((0, 0), left.dtype), jnp.zeros((0, outputs), left.dtype)
    weights = solve_triangular(factor, left, lower=True, trans=1)
    # A row of weight w stands for w equal ones, whose differences, all 0, are observed too.
    noise = jnp.where(rows.real > 0, 2 * np.pi * (parameters.noise + rows.known), 1.0)
    counted = jnp.where(rows.real > 0, rows.weights, 1.0)
    repeats = (counted - 1) * jnp.log(noise) + jnp.log(counted)
    constant = jnp.sum(rows.real) / 2 * np.log(2 * np.pi) + jnp.sum(repeats) / 2
    loss = jnp.sum(left**2) / 2 + outputs * (jnp.sum(jnp.log(jnp.diag(factor))) + constant)
    return Solution(factor, weights, coefficients, basis, basis_factor, loss)


posterior = quick_jit(few)(solution)


@quick_jit(few)
def loss_and_slope(parameters: Parameters, rows: Observations) -> tuple[Float[Array, ""], Parameters]:
    """−log p(y), and its derivative in the logarithms of all parameters."""
    found = solution(parameters, rows)
    inverse = cho_solve((found.factor, True), jnp.eye(len(found.factor), dtype=found.factor.dtype))
    pull = rows.targets.shape[1] * inverse - found.weights @ found.weights.T
    counted = jnp.where(rows.real > 0, rows.weights, 1.0)
    variances = jnp.where(rows.real > 0, parameters.noise + rows.known, 1.0)
    repeats = jnp.where(counted == 1, 0.0, rows.targets.shape[1] * (counted - 1) / variances)
    slope = Parameters(
        kernel=_kernel_slope(parameters.kernel, rows, pull / 2),
        noise=jnp.sum((jnp.diag(pull) / counted + repeats) * rows.real) / 2,
    )
    return found.loss, jax.tree.map(jnp.multiply, slope, parameters)


def _kernel_slope(kernel: Kernel, rows: Observations, pull: Float[Array, "n n"]) -> Kernel:
    """The derivative of Σ pull·K in the kernel's parameters, from strips of the matrix where it is large."""
    pull = pull * rows.real[:, None] * rows.real[None]
    size = len(pull)
    if size <= _STRIP:
        return jax.vjp(lambda kernel: kernel(rows.inputs), kernel)[1](pull)[0]

    def strip(total: Kernel, first: Array) -> tuple[Kernel, None]:
        # The last strip starts early enough to be whole, and counts only the rows that are new; the diagonal, where a
        # kernel may hold white noise, is not in a strip.
        begin = jnp.minimum(first, size - _STRIP)
        number = begin + jnp.arange(_STRIP)
        counted = (number >= first)[:, None] & (number[:, None] != jnp.arange(size)[None])
        part = jnp.where(counted, jax.lax.dynamic_slice_in_dim(pull, begin, _STRIP), 0)
        inputs = jax.lax.dynamic_slice_in_dim(rows.inputs, begin, _STRIP)
        slope = jax.vjp(lambda kernel: kernel(inputs, rows.inputs), kernel)[1](part)[0]
        return jax.tree.map(jnp.add, total, slope), None

    diagonal = jax.vjp(lambda kernel: kernel.diagonal(rows.inputs), kernel)[1](jnp.diag(pull))[0]
    return jax.lax.scan(strip, diagonal, jnp.arange(0, size, _STRIP))[0]


@storable
@dataclass(frozen=True)
class ExactPosterior:
    """The posterior of a function by a factor of its covariance; arrays of NumPy, without padding."""

    kernel: Kernel
    noise: float
    mean: Mean
    inputs: np.ndarray
    factor: np.ndarray
    weights: np.ndarray
    coefficients: np.ndarray
    whitened: np.ndarray
    basis_factor: np.ndarray

    residual: ClassVar[float] = 0.0
    """That of a solve: none."""
    coarse: ClassVar[bool] = False

    @classmethod
    def of(cls, parameters: Parameters, mean: Mean, inputs: np.ndarray, found: Solution) -> "ExactPosterior":
        """Without padded rows, which come last."""
        rows = len(inputs)
        factor, weights, coefficients, whitened, basis_factor, _ = (np.asarray(part) for part in found)
        kernel, noise = jax.tree.map(np.asarray, parameters.kernel), float(parameters.noise)
        arrays = factor[:rows, :rows], weights[:rows], coefficients, whitened[:rows], basis_factor
        return cls(kernel, noise, mean, inputs, *arrays)

    def predict(self, new: np.ndarray, full: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """Means of the function at new inputs, a column per target, and its variances or, if ``full``, covariance."""
        strip = len(new) if full else _PREDICTED
        with jax.enable_x64(True), enough_threads(len(self.inputs)):
            arrays = (self.factor, self.weights, self.coefficients, self.whitened, self.basis_factor)
            solution = Solution(*(jnp.asarray(array) for array in (*arrays, 0.0)))
            means, spreads = [], []
            for first in range(0, len(new), strip):
                rows = new[first : first + strip]
                count, size = len(rows), length(len(rows))
                points, basis = (jax.device_put(padded(array, size)) for array in (rows, self.mean.basis(rows)))
                mean, spread = _predictions(self.kernel, jnp.asarray(self.inputs), solution, points, basis, full)
                means.append(np.asarray(mean)[:count])
                spreads.append(np.asarray(spread)[:count, :count] if full else np.asarray(spread)[:count])
        return np.concatenate(means), np.concatenate(spreads)

    def sample(self, new: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
        """Functions drawn from the posterior, at new inputs: (points, targets, count)."""
        mean, covariance = self.predict(new, full=True)
        values, vectors = np.linalg.eigh((covariance + covariance.T) / 2)
        root = vectors * np.sqrt(np.maximum(values, 0))
        return mean[:, :, None] + np.einsum("ij,jtc->itc", root, rng.standard_normal((*mean.shape, count)))


@partial(jax.jit, static_argnames="full")
def _predictions(
    kernel: Kernel, inputs: Array, found: Solution, new: Array, basis: Float[Array, "m p"], full: bool
) -> tuple[Float[Array, "m t"], Array]:
    cross = kernel(inputs, new)
    mean = cross.T @ found.weights + basis @ found.coefficients
    inner = solve_triangular(found.factor, cross, lower=True)
    left = solve_triangular(found.basis_factor, (basis - inner.T @ found.whitened).T, lower=True)
    if full:
        return mean, kernel(new) - inner.T @ inner + left.T @ left
    variance = kernel.diagonal(new) - jnp.sum(inner**2, axis=0) + jnp.sum(left**2, axis=0)
    return mean, jnp.maximum(variance, 0.0)

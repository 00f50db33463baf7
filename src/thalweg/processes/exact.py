"""Gaussian process regression by factorising the covariance: marginal likelihood, its gradient, the posterior.

With A = K + diag(noise), targets y and a mean Hβ whose coefficients β have a flat prior, the loss is

    −log p(y) = ½ ‖y − Hβ̂‖²_{A⁻¹} + ½ log det A + n/2 log 2π,    β̂ = argmin ‖y − Hβ‖²_{A⁻¹}.

Its derivative in any parameter of A is ½ tr(W ∂A) with W = A⁻¹ − ααᵀ and α = A⁻¹(y − Hβ̂): one product of W with the
Jacobian of the covariance gives all parameters at once. Everything runs in the precision of the data, which is float64
in :mod:`thalweg.processes.regression`.

The inverse costs six times the factorisation. Of many rows it is replaced by SSᵀ/M with M columns s ~ N(0, A⁻¹), which
the factor gives: E SSᵀ/M = A⁻¹, and the variance of the derivative in a parameter is its Fisher information over M. So
where that derivative is 0 the parameter is off by 1/√M of its own standard deviation, whatever the number of rows.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields
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
"""Rows of the covariance that are made, or whose derivative exists, at a time."""

_INVERTED = 2048
"""Rows up to which slopes are exact."""

_DRAWN = 64
"""Vectors that slopes of more rows are made of."""

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
    scatter: Float[Array, " n"]
    """Squared differences, over targets, between the values that a row stands for and their mean."""
    real: Float[Array, " n"]

    @classmethod
    def padded(
        cls,
        inputs: np.ndarray,
        targets: np.ndarray,
        basis: np.ndarray,
        known: np.ndarray,
        weights: np.ndarray,
        scatter: np.ndarray,
    ) -> "Observations":
        """Rows of NumPy on the device."""
        size = length(len(inputs))
        arrays = (inputs, targets, basis, known, weights, scatter, np.ones(len(inputs)))
        return cls(*(jax.device_put(padded(array, size)) for array in arrays))

    def loss_and_slope(self, parameters: Parameters) -> tuple[Any, Parameters]:
        """−log p(y), and its derivative in the logarithms of all parameters."""
        return loss_and_slope(parameters, self)


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
    weights = jnp.where(rows.real > 0, rows.weights, 1.0)
    noise = jnp.where(rows.real > 0, (parameters.noise + rows.known) / weights, 1.0)
    if len(rows.inputs) <= _STRIP:
        return parameters.kernel(rows.inputs) * rows.real[:, None] * rows.real[None] + jnp.diag(noise)
    # Rows so many are not padded. Made in strips: at once it would take the memory of several such matrices.
    size, number = len(rows.inputs), jnp.arange(len(rows.inputs))
    diagonal = parameters.kernel.diagonal(rows.inputs) + noise

    def strip(step: Array, filled: Array) -> Array:
        begin = jnp.minimum(step * _STRIP, size - _STRIP)
        part = parameters.kernel(jax.lax.dynamic_slice_in_dim(rows.inputs, begin, _STRIP), rows.inputs)
        part = jnp.where(begin + jnp.arange(_STRIP)[:, None] == number[None], diagonal[None], part)
        return jax.lax.dynamic_update_slice_in_dim(filled, part, begin, 0)

    return jax.lax.fori_loop(0, -(-size // _STRIP), strip, jnp.zeros((size, size), diagonal.dtype))


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
    # A row of weight w stands for w values at one place, whose differences are observed too.
    noise = jnp.where(rows.real > 0, parameters.noise + rows.known, 1.0)
    counted = jnp.where(rows.real > 0, rows.weights, 1.0)
    repeats = jnp.where(counted == 1, 0.0, (counted - 1) * jnp.log(2 * np.pi * noise) + jnp.log(counted))
    differing = jnp.sum(jnp.where(rows.scatter > 0, rows.scatter / noise, 0.0))
    constant = jnp.sum(rows.real) / 2 * np.log(2 * np.pi) + jnp.sum(repeats) / 2
    loss = (jnp.sum(left**2) + differing) / 2 + outputs * (jnp.sum(jnp.log(jnp.diag(factor))) + constant)
    return Solution(factor, weights, coefficients, basis, basis_factor, loss)


posterior = quick_jit(few)(solution)


@quick_jit(few)
def loss_and_slope(parameters: Parameters, rows: Observations, seed: int = 0) -> tuple[Float[Array, ""], Parameters]:
    """−log p(y), and its derivative in the logarithms of all parameters, which of many rows is an estimate.

    Equal seeds give equal draws whatever the parameters.
    """
    found = solution(parameters, rows)
    outputs, size = rows.targets.shape[1], len(rows.inputs)
    if size <= _INVERTED:
        left = cho_solve((found.factor, True), jnp.eye(size, dtype=found.factor.dtype))
        pull = lambda part: outputs * part(left) - part(found.weights) @ found.weights.T
        diagonal = outputs * jnp.diag(left)
    else:
        normal = jax.random.normal(jax.random.key(seed), (size, _DRAWN), found.factor.dtype)
        left = solve_triangular(found.factor, normal, lower=True, trans=1) / np.sqrt(_DRAWN)
        pull = lambda part: outputs * part(left) @ left.T - part(found.weights) @ found.weights.T
        diagonal = outputs * jnp.sum(left**2, axis=1)
    diagonal = diagonal - jnp.sum(found.weights**2, axis=1)
    counted = jnp.where(rows.real > 0, rows.weights, 1.0)
    variances = jnp.where(rows.real > 0, parameters.noise + rows.known, 1.0)
    repeats = jnp.where(counted == 1, 0.0, (outputs * (counted - 1) - rows.scatter / variances) / variances)
    slope = Parameters(
        kernel=_kernel_slope(parameters.kernel, rows, pull, diagonal),
        noise=jnp.sum((diagonal / counted + repeats) * rows.real),
    )
    return found.loss, jax.tree.map(lambda one, parameter: one * parameter / 2, slope, parameters)


def _kernel_slope(
    kernel: Kernel, rows: Observations, pull: Callable[[Callable], Array], diagonal: Float[Array, " n"]
) -> Kernel:
    """The derivative of Σ pull·K in the kernel's parameters, from strips of the matrix where it is large.

    ``pull(part)`` makes those rows of the matrix that ``part`` takes of one with as many rows.
    """
    size = len(rows.inputs)
    if size <= _STRIP:
        whole = pull(lambda array: array) * rows.real[:, None] * rows.real[None]
        return jax.vjp(lambda kernel: kernel(rows.inputs), kernel)[1](whole)[0]

    def strip(total: Kernel, first: Array) -> tuple[Kernel, None]:
        # The last strip starts early enough to be whole, and counts only the rows that are new; the diagonal, where a
        # kernel may hold white noise, is not in a strip.
        begin = jnp.minimum(first, size - _STRIP)
        number = begin + jnp.arange(_STRIP)
        counted = (number >= first)[:, None] & (number[:, None] != jnp.arange(size)[None])
        taken = lambda array: jax.lax.dynamic_slice_in_dim(array, begin, _STRIP)
        part = jnp.where(counted, pull(taken), 0)
        slope = jax.vjp(lambda kernel: kernel(taken(rows.inputs), rows.inputs), kernel)[1](part)[0]
        return jax.tree.map(jnp.add, total, slope), None

    own = jax.vjp(lambda kernel: kernel.diagonal(rows.inputs), kernel)[1](diagonal)[0]
    return jax.lax.scan(strip, own, jnp.arange(0, size, _STRIP))[0]


@storable
@dataclass(frozen=True)
class ExactPosterior:
    """The posterior of a function by a factor of its covariance, without padding.

    Arrays are those of NumPy; on an accelerator those of n numbers or more stay there until they are written down.
    """

    kernel: Kernel
    noise: float
    mean: Mean
    inputs: np.ndarray
    factor: np.ndarray | Array
    weights: np.ndarray | Array
    coefficients: np.ndarray | Array
    whitened: np.ndarray | Array
    basis_factor: np.ndarray | Array

    residual: ClassVar[float] = 0.0
    """That of a solve: none."""
    coarse: ClassVar[bool] = False

    def stored(self) -> dict[str, Any]:
        """What a file holds: no arrays of an accelerator."""
        taken = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: np.asarray(part) if isinstance(part, jax.Array) else part for name, part in taken.items()}

    def __reduce__(self) -> tuple:
        return type(self), tuple(self.stored().values())

    @classmethod
    def of(cls, parameters: Parameters, mean: Mean, inputs: np.ndarray, found: Solution) -> "ExactPosterior":
        """Without padded rows, which come last."""
        rows = len(inputs)
        here = jax.default_backend() == "cpu"
        factor, weights, coefficients, whitened, basis_factor, _ = map(np.asarray, found) if here else found
        kernel, noise = jax.tree.map(np.asarray, parameters.kernel), float(parameters.noise)
        factor = factor if len(factor) == rows else factor[:rows, :rows]
        arrays = factor, weights[:rows], coefficients, whitened[:rows], basis_factor
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

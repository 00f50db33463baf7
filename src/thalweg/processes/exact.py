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
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float

from thalweg.compiling import Prepared, quick_jit
from thalweg.kernels import Kernel
from thalweg.padding import padded, padded_size
from thalweg.processes.blend import Blend
from thalweg.processes.factors import Inverted

_LEAST, _GRAIN = 64, 16
"""Rows are padded to as many at least, and to a multiple, so that sets of similar size share one program."""

_PADDED = 2048
"""Rows above which padding would cost more than a new program."""

_QUICK = 1024
"""Rows up to which a program runs for less time than XLA would take to make it fast."""

_STRIP = 2048
"""Rows of the covariance that are made, or whose derivative exists, at a time."""

INVERTED = 2048
"""Rows up to which slopes are exact."""

STRIP = 1024
"""Rows of a prediction that exist at a time."""

_MIXED = 8
"""Columns that the targets are mixed into for the information, if they are more."""

DRAWN = 64
"""Vectors that slopes of more rows are made of."""


class Parameters(NamedTuple):
    """What is learned: a kernel, and the variance of the noise."""

    kernel: Kernel
    noise: Float[Array | np.ndarray, ""]


def unflattened(values: np.ndarray, like: Any) -> Any:
    """A tree of the numbers in a row."""
    leaves, structure = jax.tree.flatten(like)
    found, end = [], 0
    for leaf in leaves:
        begin, end = end, end + leaf.size
        found.append(values[begin:end].reshape(leaf.shape))
    return jax.tree.unflatten(structure, found)


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
    copies: Float[Array, " n"]
    """How many values a row stands for: those that were seen at one place."""
    shift: Float[Array, " n"]
    """The logarithm of its weight less those of the values' own."""
    real: Float[Array, " n"]

    @classmethod
    def padded(cls, *rows: np.ndarray) -> "Observations":
        """Rows of NumPy, all that there is of them but ``real``, on the device."""
        count = len(rows[0])
        return cls(*(jax.device_put(padded(array, length(count))) for array in (*rows, np.ones(count))))

    def knows(self, kernel: Kernel) -> bool:
        """Whether :meth:`loss_slope_and_information` can be asked of it."""
        return Blend.serves(kernel)

    def solution(self, parameters: Parameters) -> "Solution":
        """The factor of A, and what follows from it; a loss of NaN where A has none.

        By the program that a search needs, if that is known: another would have to be compiled.
        """
        return self._informed(parameters)[0] if self.knows(parameters.kernel) else posterior(parameters, self)

    def loss(self, parameters: Parameters) -> Any:
        """−log p(y), by the program that a search needs."""
        return (
            self._informed(parameters)[0].loss if self.knows(parameters.kernel) else loss_and_slope(parameters, self)[0]
        )

    def loss_and_slope(self, parameters: Parameters) -> tuple[Any, Parameters]:
        """−log p(y), and its derivative in the logarithms of all parameters."""
        if self.knows(parameters.kernel):
            return self.loss_slope_and_information(parameters)[:2]
        return loss_and_slope(parameters, self)

    def loss_slope_and_information(self, parameters: Parameters) -> tuple[Any, Parameters, np.ndarray]:
        """Those, and the average information of :func:`information`."""
        told = np.asarray(self._informed(parameters)[1])
        chosen = Blend.chosen(parameters.kernel, self.inputs.shape[1])
        return told[0, 0], unflattened(told[1] @ chosen, parameters), chosen.T @ told[2:] @ chosen

    def prepare(self, parameters: Parameters) -> None:
        """Begin to make the program that parameters like these need, if it is one that can be shared."""
        if self.knows(parameters.kernel):
            informed.prepare(self._blended(parameters), self)

    def _informed(self, parameters: Parameters) -> tuple["Solution", Any]:
        return informed(self._blended(parameters), self)

    def _blended(self, parameters: Parameters) -> Parameters:
        blend = Blend.of(parameters.kernel, self.inputs.shape[1])
        assert blend is not None
        return Parameters(blend, parameters.noise)


class Solution(NamedTuple):
    """The factor of A, A⁻¹(y − Hβ̂), β̂, and the factor of HᵀA⁻¹H with L⁻¹H."""

    factor: Float[Array | np.ndarray, "n n"]
    weights: Float[Array | np.ndarray, "n t"]
    coefficients: Float[Array | np.ndarray, "p t"]
    whitened: Float[Array | np.ndarray, "n p"]
    basis_factor: Float[Array | np.ndarray, "p p"]
    loss: Float[Array | np.ndarray, ""]


def length(rows: int) -> int:
    """The number that rows are padded to."""
    return padded_size(max(rows, _LEAST), _GRAIN) if rows <= _PADDED else rows


def few(*arguments: Any, most: int = _QUICK) -> bool:
    """Whether to compile in a hurry."""
    return max(np.shape(leaf)[0] for leaf in jax.tree.leaves(arguments) if np.ndim(leaf)) <= most


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


def solved(factor: Any, noise: Any, rows: Any, xp: Any, linalg: Any) -> Solution:
    """The weights and the coefficients of the mean from a factor of A, by NumPy and SciPy or by their twins in JAX."""
    outputs = rows.targets.shape[1]
    whitened = linalg.solve_triangular(factor, xp.concatenate([rows.targets, rows.basis], axis=1), lower=True)
    left, basis = whitened[:, :outputs], whitened[:, outputs:]
    basis_factor, coefficients = xp.zeros((0, 0), left.dtype), xp.zeros((0, outputs), left.dtype)
    if basis.shape[1]:
        gram = basis.T @ basis
        basis_factor = xp.sqrt(gram) if len(gram) == 1 else xp.linalg.cholesky(gram)
        coefficients = linalg.cho_solve((basis_factor, True), basis.T @ left)
        left = left - basis @ coefficients
    weights = linalg.solve_triangular(factor, left, lower=True, trans=1)
    # Of several values at one place the differences are observed too.
    spare = xp.where(rows.real > 0, rows.copies - 1, 0.0)
    variances = xp.where(spare > 0, noise + rows.known, 1.0)
    repeats = spare * xp.log(2 * np.pi * variances) + xp.where(rows.real > 0, rows.shift, 0.0)
    constant = xp.sum(rows.real) / 2 * np.log(2 * np.pi) + xp.sum(repeats) / 2
    squares = xp.sum(left**2) + xp.sum(rows.scatter / variances)
    loss = squares / 2 + outputs * (xp.sum(xp.log(xp.diag(factor))) + constant)
    return Solution(factor, weights, coefficients, basis, basis_factor, loss)


def solution(parameters: Parameters, rows: Observations, inverted: bool = False) -> tuple[Solution, Any]:
    """Factorise A, and solve for the weights and the coefficients of the mean; and what solves with the factor."""
    factor = jnp.linalg.cholesky(covariance(parameters, rows))
    linalg = Inverted(factor) if inverted and len(factor) <= INVERTED else jax.scipy.linalg
    return solved(factor, parameters.noise, rows, jnp, linalg), linalg


def mixed(weights: Any, xp: Any) -> Any:
    """Columns whose products have, in the mean over signs, the same sum as those of A⁻¹(y − Hβ̂) over all targets."""
    outputs = weights.shape[1]
    if outputs <= _MIXED:
        return weights
    signs = np.random.default_rng(0).choice([-1.0, 1.0], (outputs, _MIXED)) / np.sqrt(_MIXED)
    return weights @ xp.asarray(signs)


def information(moved: Any, found: Solution, noise: Any, rows: Any, xp: Any, linalg: Any) -> Any:
    """The average information of parameters: ½ Σ αᵀ∂A P ∂A α over targets, from (∂A α)ₙₚₜ, the noise last.

    Its mean is Fisher's information ½ tr(P ∂A P ∂A), with P = A⁻¹ − A⁻¹H(HᵀA⁻¹H)⁻¹HᵀA⁻¹, and it takes one product and
    one solve with the factor for each parameter where that takes an inverse (Gilmour, Thompson and Cullis, 1995).
    """
    size, parameters, columns = moved.shape
    inner = linalg.solve_triangular(found.factor, moved.reshape(size, -1), lower=True)
    hat = linalg.solve_triangular(found.basis_factor, found.whitened.T @ inner, lower=True)
    by_parameter = lambda part: part.reshape(len(part), parameters, columns).swapaxes(0, 1).reshape(parameters, -1)
    inner, hat = by_parameter(inner), by_parameter(hat)
    variances = noise + rows.known
    share = xp.where((rows.real > 0) & (variances > 0), noise / xp.where(variances > 0, variances, 1.0), 0.0)
    repeats = rows.targets.shape[1] / 2 * xp.sum((rows.copies - 1) * rows.real * share**2)
    last = np.zeros((parameters, parameters))
    last[-1, -1] = 1
    return (inner @ inner.T - hat @ hat.T) / 2 + repeats * xp.asarray(last)


posterior = quick_jit(few, tuned=False)(lambda parameters, rows: solution(parameters, rows)[0])


@quick_jit(few, tuned=False)
def loss_and_slope(parameters: Parameters, rows: Observations, seed: int = 0) -> tuple[Any, Parameters]:
    """−log p(y), and its derivative in the logarithms of all parameters, which of many rows is an estimate.

    Equal seeds give equal draws whatever the parameters.
    """
    found, linalg = solution(parameters, rows, inverted=True)
    pull, diagonal = _pull(found, rows, seed, linalg)
    by_kernel = kernel_slope(parameters.kernel, rows.inputs, pull, diagonal)
    slope = Parameters(by_kernel, _noise_slope(parameters, rows, diagonal))
    return found.loss, jax.tree.map(lambda one, parameter: one * parameter / 2, slope, parameters)


def _all_at_once(parameters: Parameters, rows: Observations) -> tuple[Solution, Float[Array, "p+2 p"]]:
    """The solution, and its loss, the derivative of that and the average information below each other.

    Parameters are those of a blended kernel, and the noise. One array takes one transfer to the host.
    """
    found, linalg = solution(parameters, rows, inverted=True)
    pull, diagonal = _pull(found, rows, 0, linalg)
    columns = mixed(found.weights, jnp)
    slopes, moved = _pulled(parameters.kernel, rows.inputs, pull, columns)
    weights = jnp.where(rows.real > 0, rows.weights, 1.0)
    moved = jnp.concatenate([moved, ((parameters.noise / weights)[:, None] * columns)[None]])
    moved = jnp.swapaxes(moved * rows.real[None, :, None], 0, 1)
    told = information(moved, found, parameters.noise, rows, jnp, linalg)
    slopes = jnp.append(slopes, parameters.noise * _noise_slope(parameters, rows, diagonal)) / 2
    return found, jnp.concatenate([jnp.full((1, len(slopes)), found.loss), slopes[None], told])


informed = Prepared(_all_at_once, few, tuned=False)


def _pull(
    found: Solution, rows: Observations, seed: int | Array, linalg: Any
) -> tuple[Callable[[Callable], Array], Array]:
    """W = A⁻¹ − ααᵀ over targets, as :func:`kernel_slope` takes it, or an estimate of it; and its diagonal."""
    outputs, size = rows.targets.shape[1], len(rows.inputs)
    if isinstance(linalg, Inverted):
        left = linalg.inverse.T @ linalg.inverse
        real = rows.real[:, None]
        pull = lambda part: (outputs * part(left) - part(found.weights) @ found.weights.T) * part(real) * real.T
        diagonal = outputs * jnp.diag(left)
    else:
        normal = jax.random.normal(jax.random.key(seed), (size, DRAWN), found.factor.dtype)
        left = solve_triangular(found.factor, normal, lower=True, trans=1) * rows.real[:, None] / np.sqrt(DRAWN)
        pull = lambda part: outputs * part(left) @ left.T - part(found.weights) @ found.weights.T
        diagonal = outputs * jnp.sum(left**2, axis=1)
    return pull, diagonal - jnp.sum(found.weights**2, axis=1)


def _noise_slope(parameters: Parameters, rows: Observations, diagonal: Array) -> Array:
    """Twice the derivative of the loss in the noise."""
    counted = jnp.where(rows.real > 0, rows.weights, 1.0)
    spare = jnp.where(rows.real > 0, rows.copies - 1, 0.0)
    variances = jnp.where(spare > 0, parameters.noise + rows.known, 1.0)
    repeats = (rows.targets.shape[1] * spare - rows.scatter / variances) / variances
    return jnp.sum((diagonal / counted + repeats) * rows.real)


def _pulled(
    kernel: Any, inputs: Array, pull: Callable[[Callable], Array], columns: Array
) -> tuple[Float[Array, " p"], Float[Array, "p n t"]]:
    """:meth:`~thalweg.processes.blend.Blend.pulled`, from strips of the matrix where it is large."""
    size = len(inputs)
    if size <= _STRIP:
        return kernel.pulled(inputs, inputs, pull(lambda array: array), columns)

    def strip(step: Array, total: tuple[Array, Array]) -> tuple[Array, Array]:
        # The last strip starts early enough to be whole, and counts only the rows that are new.
        begin = jnp.minimum(step * _STRIP, size - _STRIP)
        taken = lambda array: jax.lax.dynamic_slice_in_dim(array, begin, _STRIP)
        part = jnp.where((begin + jnp.arange(_STRIP) >= step * _STRIP)[:, None], pull(taken), 0)
        slopes, moved = kernel.pulled(taken(inputs), inputs, part, columns)
        return total[0] + slopes, jax.lax.dynamic_update_slice_in_dim(total[1], moved, begin, 1)

    count = kernel.lengthscales.size + kernel.variances.size
    begun = jnp.zeros(count, columns.dtype), jnp.zeros((count, size, columns.shape[1]), columns.dtype)
    return jax.lax.fori_loop(0, -(-size // _STRIP), strip, begun)


def kernel_slope(
    kernel: Kernel, inputs: Float[Array, "n d"], pull: Callable[[Callable], Array], diagonal: Float[Array, " n"]
) -> Kernel:
    """The derivative of Σ pull·K in the kernel's parameters, from strips of the matrix where it is large.

    ``pull(part)`` makes those rows of the matrix that ``part`` takes of one with as many rows.
    """
    size = len(inputs)
    if size <= _STRIP:
        return jax.vjp(lambda kernel: kernel(inputs), kernel)[1](pull(lambda array: array))[0]

    def strip(total: Kernel, first: Array) -> tuple[Kernel, None]:
        # The last strip starts early enough to be whole, and counts only the rows that are new; the diagonal, where a
        # kernel may hold white noise, is not in a strip.
        begin = jnp.minimum(first, size - _STRIP)
        number = begin + jnp.arange(_STRIP)
        counted = (number >= first)[:, None] & (number[:, None] != jnp.arange(size)[None])
        taken = lambda array: jax.lax.dynamic_slice_in_dim(array, begin, _STRIP)
        part = jnp.where(counted, pull(taken), 0)
        slope = jax.vjp(lambda kernel: kernel(taken(inputs), inputs), kernel)[1](part)[0]
        return jax.tree.map(jnp.add, total, slope), None

    own = jax.vjp(lambda kernel: kernel.diagonal(inputs), kernel)[1](diagonal)[0]
    return jax.lax.scan(strip, own, jnp.arange(0, size, _STRIP))[0]


def predictions(
    cross: Any, prior: Any, found: Solution, basis: Any, full: bool, xp: Any, linalg: Any
) -> tuple[Any, Any]:
    """Means and variances, or their covariance, from k(rows, new) and the variances or the covariance of the prior."""
    mean = cross.T @ found.weights + basis @ found.coefficients
    inner = linalg.solve_triangular(found.factor, cross, lower=True)
    left = linalg.solve_triangular(found.basis_factor, (basis - inner.T @ found.whitened).T, lower=True)
    if full:
        return mean, prior - inner.T @ inner + left.T @ left
    return mean, xp.maximum(prior - xp.sum(inner**2, axis=0) + xp.sum(left**2, axis=0), 0.0)


@quick_jit(lambda *_: False, tuned=False)
def compiled_covariances(kernel: Kernel, inputs: Array, found: Solution, new: Array, basis: Array) -> tuple:
    """:func:`predictions` on the device, with their covariance."""
    return predictions(kernel(inputs, new), kernel(new), found, basis, True, jnp, jax.scipy.linalg)


def _predictions(kernel: Kernel, inputs: Array, found: Solution, new: Array, basis: Array) -> tuple:
    return predictions(kernel(inputs, new), kernel.diagonal(new), found, basis, False, jnp, jax.scipy.linalg)


compiled_predictions = Prepared(_predictions, lambda *_: False, tuned=False)
"""The same with variances."""


def prepare_predictions(kernel: Kernel, rows: Any) -> None:
    """Begin to make the program that will predict from these rows, if the kernel is one that others share it with."""
    (size, features), outputs, columns = rows.inputs.shape, rows.targets.shape[1], rows.basis.shape[1]
    blend = Blend.of(kernel, features)
    if blend is not None:
        like: Any = lambda *shape: jax.ShapeDtypeStruct(shape, rows.inputs.dtype)
        shapes = ((size, size), (size, outputs), (columns, outputs), (size, columns), (columns, columns), ())
        found = Solution(*(like(*shape) for shape in shapes))
        compiled_predictions.prepare(blend, like(size, features), found, like(STRIP, features), like(STRIP, columns))

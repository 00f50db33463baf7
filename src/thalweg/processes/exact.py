"""The marginal likelihood of a Gaussian process by factorising the covariance of its rows, on the host or on a device.

With A = K + diag(noise), targets y and a mean Hβ whose coefficients have a flat prior, the loss is

    −log p(y) = ½ ‖y − Hβ̂‖²_{A⁻¹} + ½ log det A + n/2 log 2π,    β̂ = argmin ‖y − Hβ‖²_{A⁻¹}.

With the factor LLᵀ = A and z = L⁻¹(y − Hβ̂) it is a sum over rows, ½z_i² + log L_ii + ½ log 2π: the negative logarithms
of the density of each row given those before it. Its derivative in a parameter of A is ½ Σ W∘∂A with W = A⁻¹ − ααᵀ,
α = A⁻¹(y − Hβ̂).

The inverse costs six times the factorisation. Of many rows it is replaced by SSᵀ/M with M columns s ~ N(0, A⁻¹), which
the factor gives: E SSᵀ/M = A⁻¹, and the variance of the derivative in a parameter is its Fisher information over M. So
where that derivative is 0 the parameter is off by 1/√M of its own standard deviation, whatever the number of rows.
"""

import operator
from functools import reduce
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from thalweg.codec import storable
from thalweg.compiling import Prepared, quick_jit
from thalweg.kernels import Kernel
from thalweg.kernels.host import summands
from thalweg.linalg import Factor, NotPositiveDefinite, factorise, namespace
from thalweg.processes import covariance
from thalweg.processes.covariance import TILE_ROWS, Pull, Term, compiles_quickly
from thalweg.processes.observations import RegressionRows
from thalweg.trees import as_device_arrays, flattened

MAX_HOST_ROWS = 300
"""Up to so many rows are left to the host even if there is an accelerator: a transfer and a new program take longer
than the factorisations of a fit."""

INVERSE_DRAWS = 64
"""Columns that replace the inverse of more than ``TILE_ROWS`` rows; a search then ends within 1/√64 of a standard
deviation of the optimum. Twice as many take twice the time of the derivatives."""


class Parameters(NamedTuple):
    """What is learned: a kernel, and the variance of the noise."""

    kernel: Kernel
    noise: Float[Array | np.ndarray, ""]


@storable
class ExactSolution(NamedTuple):
    """A factor of A, and what follows from it."""

    factor: Any
    """L, lower triangular."""
    weights: Any
    """α = A⁻¹(y − Hβ̂)."""
    coefficients: Any
    """β̂."""
    whitened: Any
    """L⁻¹H."""
    basis_factor: Any
    """The Cholesky factor of HᵀA⁻¹H."""
    losses: Any
    """−log p(y) as a sum over rows."""


def solve(factor: Factor, noise: Any, rows: RegressionRows) -> ExactSolution:
    """Return the weights, the coefficients of the mean and the losses from a factor of A."""
    xp, outputs = namespace(factor.lower), rows.outputs
    whitened = factor.half_solve(xp.concatenate([rows.targets, rows.basis], axis=1))
    left, basis = whitened[:, :outputs], whitened[:, outputs:]
    basis_factor, coefficients = xp.zeros((0, 0), left.dtype), xp.zeros((0, outputs), left.dtype)
    if basis.shape[1]:
        small = factorise(basis.T @ basis)
        basis_factor, coefficients = small.lower, small.solve(basis.T @ left)
        left = left - basis @ coefficients
    weights = factor.half_solve(left, transpose=True)
    logs = xp.log(xp.diagonal(factor.lower)) + np.log(2 * np.pi) / 2
    losses = xp.sum(left**2, axis=1) / 2 + outputs * logs + rows.repeat_losses(noise)
    return ExactSolution(factor.lower, weights, coefficients, basis, basis_factor, losses)


def evaluate(
    kernel: Any, noise: Any, rows: RegressionRows, seed: int = 0, tile_rows: int = TILE_ROWS
) -> tuple[ExactSolution, Any, Any]:
    """Return the solution, the gradient of the loss in the logarithms of all parameters, and their information.

    Of terms these are all lengthscales and the variance of each, and the noise; of any other kernel on a device, its
    own, in a tree of parameters, without information. Of more rows than a tile has the gradient is an estimate, with
    equal draws for equal seeds.
    """
    xp, many = namespace(rows.inputs), len(rows.inputs) > tile_rows
    terms = kernel if isinstance(kernel, tuple) else ()
    parts = covariance.parts_of(terms, rows.inputs) if terms and not many else None
    if parts is None:
        among = covariance.matrix_by_tiles(kernel, rows.inputs, tile_rows)
    else:
        among = reduce(operator.add, (value for value, _ in parts))
    factor = factorise(among, rows.variances(noise))
    del among  # before other matrices are made
    solution = solve(factor, noise, rows)
    pull, own = _gradient_weights(factor, solution, rows, seed, many)
    repeats = rows.repeat_derivatives(noise)
    by_noise = xp.sum(own * noise / rows.weights) / 2 + repeats[0]
    if not terms:
        if xp is np:
            on_host = covariance.gradient_on_host(kernel, rows.inputs, pull(lambda array: array) / 2)
            return solution, np.append(on_host, by_noise), None
        traced = covariance.kernel_gradient(kernel, rows.inputs, pull, own, tile_rows)
        return solution, Parameters(jax.tree.map(lambda a, b: a * b / 2, traced, kernel), by_noise), None
    columns = solution.weights
    gradient, products = covariance.gradient_and_products(terms, rows.inputs, pull, columns, parts, tile_rows)
    products = xp.concatenate([products, (columns * (noise / rows.weights)[:, None])[:, None]], axis=1)
    information = _information(products, solution)
    last = xp.arange(len(information)) == len(information) - 1
    information = information + xp.where(last[:, None] & last[None], repeats[1], 0)
    return solution, xp.append(gradient / 2, by_noise), information


def _gradient_weights(
    factor: Factor, solution: ExactSolution, rows: RegressionRows, seed: int, many: bool
) -> tuple[Pull, Any]:
    """Return W summed over targets, or an estimate of it, and its diagonal."""
    xp, outputs, weights = namespace(factor.lower), rows.outputs, solution.weights
    if not many:
        whole = outputs * factor.inverse() - weights @ weights.T
        return (lambda take: take(whole)), xp.diagonal(whole)
    shape = len(weights), INVERSE_DRAWS
    on_host = lambda: np.random.default_rng(seed).standard_normal(shape)
    normal = on_host() if xp is np else jax.random.normal(jax.random.key(seed), shape, weights.dtype)
    drawn = factor.half_solve(normal, transpose=True) * np.sqrt(outputs / INVERSE_DRAWS)
    pull = lambda take: take(drawn) @ drawn.T - take(weights) @ weights.T
    return pull, xp.sum(drawn**2, axis=1) - xp.sum(weights**2, axis=1)


def _information(products: Any, solution: ExactSolution) -> Any:
    """The average information of parameters, ½ Σ αᵀ∂A P ∂A α over targets, from (∂A α) by row, parameter and target.

    Its mean is Fisher's information ½ tr(P ∂A P ∂A), with P = A⁻¹ − A⁻¹H(HᵀA⁻¹H)⁻¹HᵀA⁻¹, and it takes one product and
    one solve with the factor for each parameter where that takes an inverse (Gilmour, Thompson and Cullis, 1995).
    """
    size, parameters, columns = products.shape
    inner = Factor(solution.factor, 0.0).half_solve(products.reshape(size, -1))
    hat = Factor(solution.basis_factor, 0.0).half_solve(solution.whitened.T @ inner)
    by_parameter = lambda part: part.reshape(len(part), parameters, columns).swapaxes(0, 1).reshape(parameters, -1)
    inner, hat = by_parameter(inner), by_parameter(hat)
    return (inner @ inner.T - hat @ hat.T) / 2


class EvidenceEvaluation(NamedTuple):
    """Losses by row, the gradient of their sum in the logarithms of all parameters, and the parameters' information."""

    losses: np.ndarray
    gradient: np.ndarray
    information: np.ndarray | None


class ExactEvidence:
    """−log p(y) of rows as a function of the parameters: on a device if there is one and rows are many."""

    def __init__(self, rows: RegressionRows, on_device: bool | None = None) -> None:
        self.rows, self.inputs = rows, rows.inputs
        self.on_device = computes_on_device(len(rows.inputs)) if on_device is None else on_device
        self._placed = jax.device_put(rows) if self.on_device else rows

    def prepare(self, kernel: Kernel) -> None:
        """Begin to compile the program of all radial kernels, if one will be needed."""
        if self.on_device and covariance.device_terms(kernel, self.inputs.shape[1]):
            _compiled_evaluation.prepare(*self._arguments(Parameters(kernel, np.ones(()))))

    def solution(self, parameters: Parameters) -> ExactSolution:
        """Return the factor of A and what follows from it; NotPositiveDefinite if it has none."""
        if self.on_device:  # by the program of the search, since another would have to be compiled
            return _compiled_evaluation(*self._arguments(parameters))[0]
        among = covariance.matrix_by_tiles(parameters.kernel, self.inputs)
        return solve(factorise(among, self.rows.variances(parameters.noise)), parameters.noise, self.rows)

    def losses(self, parameters: Parameters) -> np.ndarray:
        """Return −log p(y) as a sum over rows; infinite where A has no factor."""
        try:
            return np.asarray(self.solution(parameters).losses)
        except NotPositiveDefinite:
            return np.full(len(self.inputs), np.inf)

    def evaluate(self, parameters: Parameters) -> EvidenceEvaluation:
        """Return the loss, its gradient and the information; an infinite loss where A has no factor."""
        count = flattened(parameters).size
        terms = summands(parameters.kernel)
        try:
            if self.on_device:
                found = _compiled_evaluation(*self._arguments(parameters))
                # All at once: each of them apart takes as long as the computation of some hundred rows.
                losses, gradient, information = jax.device_get((found[0].losses, *found[1:]))
                terms = terms if information is not None else ()
            else:
                solution, gradient, information = evaluate(terms or parameters.kernel, parameters.noise, self.rows)
                losses = solution.losses
        except NotPositiveDefinite:
            return EvidenceEvaluation(np.full(len(self.inputs), np.inf), np.zeros(count), None)
        gradient = flattened(gradient)
        if terms:
            features = self.inputs.shape[1]
            number = (len(gradient) - 1) // (features + 1)
            own = covariance.own_parameters(parameters.kernel, features, number)
            return EvidenceEvaluation(losses, gradient @ own, own.T @ information @ own)
        return EvidenceEvaluation(losses, gradient, None)

    def _arguments(self, parameters: Parameters) -> tuple:
        kernel, noise = parameters
        terms = covariance.device_terms(kernel, self.inputs.shape[1])
        return terms or as_device_arrays(kernel), jnp.asarray(noise, jnp.float64), self._placed


def computes_on_device(rows: int) -> bool:
    """Whether to compute on an accelerator: if there is one, and it is worth a transfer and a new program."""
    return jax.default_backend() != "cpu" and rows > MAX_HOST_ROWS


_compiled_evaluation = Prepared(evaluate, compiles_quickly, tuned=False)


def predict(
    kernel: Kernel | tuple[Term, ...], inputs: Any, solution: ExactSolution, new: Any, basis: Any, full: bool = False
) -> tuple[Any, Any]:
    """Return means of the function at new inputs, a column for each target, and its variances or covariance."""
    xp = namespace(inputs)
    cross = covariance.matrix(kernel, inputs, new)
    mean = cross.T @ solution.weights + basis @ solution.coefficients
    inner = Factor(solution.factor, 0.0).half_solve(cross)
    left = Factor(solution.basis_factor, 0.0).half_solve((basis - inner.T @ solution.whitened).T)
    if full:
        return mean, covariance.matrix(kernel, new) - inner.T @ inner + left.T @ left
    prior = covariance.diagonal(kernel, new)
    return mean, xp.maximum(prior - xp.sum(inner**2, axis=0) + xp.sum(left**2, axis=0), 0.0)


compiled_predict = quick_jit(lambda *_: False, tuned=False, static_argnums=5)(predict)


def leave_one_out(solution: ExactSolution) -> tuple[np.ndarray, np.ndarray]:
    """Return each row's difference from what all others predict, a column for each target, and its variance.

    With P = A⁻¹ − A⁻¹H(HᵀA⁻¹H)⁻¹HᵀA⁻¹ these are (Py)ᵢ/Pᵢᵢ and 1/Pᵢᵢ: nothing is solved again. Where the others do not
    determine the mean they predict nothing, and the variance is infinite.
    """
    root = Factor(np.asarray(solution.factor), 0.0).inverse_root()
    hat = Factor(np.asarray(solution.basis_factor), 0.0).half_solve(np.asarray(solution.whitened).T @ root)
    inverse = np.sum(root**2, axis=0)
    precisions = inverse - np.sum(hat**2, axis=0)
    known = precisions > np.sqrt(np.finfo(float).eps) * inverse
    variances = np.where(known, 1 / np.where(known, precisions, 1.0), np.inf)
    return np.asarray(solution.weights) * np.where(known, variances, 0.0)[:, None], variances

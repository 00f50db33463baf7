"""Marginal likelihoods by a factor, their gradients and information, against dense algebra, on host and device."""

from functools import cache

import jax
import numpy as np
import pytest

from thalweg.kernels import (
    Bias,
    Cauchy,
    Gaussian,
    Laplacian,
    Linear,
    Matern12,
    Matern32,
    Matern52,
    Periodic,
    White,
)
from thalweg.kernels.host import summands
from thalweg.processes.covariance import device_terms, own_parameters
from thalweg.processes.exact import ExactEvidence, Parameters, compiled_predict, evaluate, leave_one_out, predict
from thalweg.processes.observations import ProcessMean, RegressionRows
from thalweg.threads import enough_threads
from thalweg.trees import as_host_arrays, flattened, unflattened

RNG = np.random.default_rng(0)
COUNT, SEEDS = 40, 200
INPUTS = RNG.normal(size=(COUNT, 2))
TARGETS = np.stack([np.sin(2 * INPUTS[:, 0]), INPUTS[:, 1]], axis=1) + 0.1 * RNG.normal(size=(COUNT, 2))
NEW = RNG.normal(size=(5, 2))
RADIAL = [
    Matern12([1.0, 2.0], 1.5),
    Matern52(1.3, 0.7),
    Gaussian([1.0, 2.0], 1.5) + Matern32(2.0, 0.3),
    Matern12(2.0) + Gaussian([1.0, 2.0]),
]
OTHERS = [
    Laplacian(1.3),
    Cauchy([1.0, 2.0]),
    Gaussian(1.0) + White(0.3) + Linear(0.5),
    Periodic(2.0) * Gaussian(3.0) + Bias(2.0),
]
THREE = Matern32([1.0, 2.0]) + Matern52(1.3, 0.4) + Matern12(0.7)
ALL_OTHERS = Laplacian(1.3, 0.4) + Cauchy([1.0, 2.0]) + White(0.3) + Linear(0.5) + OTHERS[3] + Matern12(0.7)
"""Each of the others and a rough radial kernel, whose derivatives one program makes."""


@pytest.fixture(autouse=True)
def one_thread():
    with enough_threads(COUNT):
        yield


def rows(mean="linear", repeats=True):
    """Rows of one to three targets each, whose scatter is given."""
    counts = 1.0 + np.arange(COUNT) % 3 if repeats else np.ones(COUNT)
    scatter = np.where(counts > 1, np.arange(COUNT) / COUNT, 0.0)
    basis = ProcessMean.of(mean, INPUTS).basis(INPUTS)
    known = np.linspace(0, 0.1, COUNT)
    return RegressionRows(INPUTS, TARGETS, basis, known, counts, scatter, counts, np.log(counts))


def definition(parameters, data):
    """−log p(y) with the coefficients of the mean at their best, every target as a row of its own."""
    counts = data.counts.astype(int)
    again, ends = np.repeat(np.arange(COUNT), counts), np.cumsum(counts)
    # Two of the targets of a row with scatter lie beside their mean.
    several, beside = counts > 1, np.zeros((len(again), 2))
    lengths = np.sqrt(data.scatter / 2)[several]
    beside[ends[several] - 1, 0], beside[ends[several] - 2, 0] = lengths, -lengths
    covariance = np.asarray(parameters.kernel(INPUTS))[again][:, again]
    covariance = covariance + np.diag(parameters.noise + data.known[again])
    basis, targets = data.basis[again], data.targets[again] + beside
    inverse = np.linalg.inv(covariance)
    if basis.shape[1]:
        targets = targets - basis @ np.linalg.solve(basis.T @ inverse @ basis, basis.T @ inverse @ targets)
    quadratic = np.trace(targets.T @ inverse @ targets)
    return quadratic / 2 + np.linalg.slogdet(covariance)[1] + len(again) * np.log(2 * np.pi)


def in_logarithms(function, parameters):
    """A function of parameters, and its derivatives in their logarithms by differences of the fourth order."""
    values, step = flattened(parameters), 1e-3
    moved = lambda move: function(unflattened(values * np.exp(move), parameters))
    slope = lambda unit: 8 * (moved(unit) - moved(-unit)) - (moved(2 * unit) - moved(-2 * unit))
    return function(parameters), np.array([slope(unit) for unit in step * np.eye(len(values))]) / (12 * step)


def loss_and_gradient(parameters, data):
    return in_logarithms(lambda moved: definition(moved, data), parameters)


def check_loss_and_gradient(kernel, data, places=("host", "device")):
    parameters = as_host_arrays(Parameters(kernel, np.asarray(0.2)))
    expected, derivative = loss_and_gradient(parameters, data)
    for place in places:
        evidence = ExactEvidence(data, place == "device")
        losses, gradient, _ = evidence.evaluate(parameters)
        assert np.sum(losses) == pytest.approx(expected, rel=1e-10)
        np.testing.assert_allclose(gradient, derivative, rtol=1e-7, atol=1e-8)
        assert np.sum(evidence.losses(parameters)) == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("kernel", [*RADIAL, ALL_OTHERS, THREE], ids=str)
def test_loss_and_gradient_are_those_of_the_definition(kernel):
    # On a device three radial kernels are summed as all others are, of which Matern12 is the least smooth.
    check_loss_and_gradient(kernel, rows(), ("host",) if kernel is THREE else ("host", "device"))


def test_loss_knows_that_the_mean_is_zero():
    check_loss_and_gradient(RADIAL[0], rows("zero"))


def test_losses_are_those_of_each_row_given_the_ones_before():
    data, noise = rows("zero", repeats=False)._replace(known=np.zeros(COUNT)), 0.2
    losses = ExactEvidence(data).losses(as_host_arrays(Parameters(RADIAL[0], np.asarray(noise))))
    covariance = np.asarray(RADIAL[0](INPUTS)) + noise * np.eye(COUNT)
    for row in (0, 1, 17, 39):
        before, cross = covariance[:row, :row], covariance[row, :row]
        gain = np.linalg.solve(before, cross) if row else np.zeros(0)
        variance = covariance[row, row] - gain @ cross
        away = TARGETS[row] - gain @ TARGETS[:row]
        expected = np.sum(away**2) / (2 * variance) + np.log(2 * np.pi * variance)
        assert losses[row] == pytest.approx(expected - data.log_shift[row], rel=1e-9)


def arguments(kernel, data, on_device):
    """A kernel's terms, or itself, the noise and the rows, on host or device."""
    if not on_device:
        return summands(as_host_arrays(kernel)), np.asarray(0.2), data
    terms = device_terms(kernel, 2) or kernel
    return jax.device_put(as_arrays(terms)), jax.device_put(np.asarray(0.2)), jax.device_put(data)


def as_arrays(tree):
    return jax.tree.map(np.asarray, tree)


BY_TILES = {"host": (RADIAL[2], False), "device": (RADIAL[2], True), "any": (OTHERS[2], True)}
"""Kernels, and whether they are evaluated on a device."""


@cache
def draws_by_tiles(name):
    """Losses, gradients and information by tiles, from many seeds."""
    kernel, on_device = BY_TILES[name]
    given = arguments(kernel, rows(), on_device)
    one = lambda seed: evaluate(*given, seed=seed, tile_rows=24)  # does not divide 40
    if on_device:
        solution, gradients, information = as_arrays(jax.jit(jax.vmap(one))(np.arange(SEEDS)))
        gradients = np.concatenate([np.reshape(leaf, (SEEDS, -1)) for leaf in jax.tree.leaves(gradients)], axis=1)
        return np.sum(solution.losses, axis=1), gradients, information
    losses, gradients, information = zip(*((np.sum(s.losses), g, i) for s, g, i in map(one, range(SEEDS))), strict=True)
    return np.array(losses), np.array(gradients), information


@pytest.mark.parametrize("name", BY_TILES)
def test_gradients_of_many_rows_are_unbiased_and_their_variance_is_the_information_over_the_draws(name):
    data, draws, kernel = rows(), 64, BY_TILES[name][0]
    parameters = as_host_arrays(Parameters(kernel, np.asarray(0.2)))
    losses, gradients, _ = draws_by_tiles(name)
    expected, derivative = loss_and_gradient(parameters, data)
    np.testing.assert_allclose(losses, expected, rtol=1e-10)
    if summands(kernel):
        gradients = gradients @ own_parameters(kernel, 2, 2)
    errors = gradients.std(axis=0) / np.sqrt(SEEDS)
    assert np.all(np.abs(gradients.mean(axis=0) - derivative) < 5 * errors)
    covariance, changes = derivatives(parameters, data)
    left = np.linalg.solve(covariance, changes)
    # Two targets: twice the trace, four times the variance.
    information = 4 * np.einsum("pij,pji->p", left, left) / 2
    np.testing.assert_allclose(gradients.var(axis=0), information / draws, rtol=0.45)


@pytest.mark.parametrize("name", ["host", "device"])
def test_information_by_tiles_is_that_of_the_whole_matrix(name):
    kernel, on_device = BY_TILES[name]
    whole = ExactEvidence(rows(), on_device).evaluate(as_host_arrays(Parameters(kernel, np.asarray(0.2))))
    own = own_parameters(kernel, 2, 2)
    tiled = own.T @ draws_by_tiles(name)[2][0] @ own
    np.testing.assert_allclose(tiled, whole.information, rtol=1e-9, atol=1e-9)


def derivatives(parameters, data):
    """A, and its derivatives in the logarithms of all parameters."""
    covariance = lambda moved: np.asarray(moved.kernel(data.inputs)) + np.diag(data.variances(moved.noise))
    return in_logarithms(covariance, parameters)


def information_by_definition(parameters, data):
    """½ Σ αᵀ∂A P ∂A α over targets, with what merged targets say of the noise."""
    covariance, moved = derivatives(parameters, data)
    inverse, basis = np.linalg.inv(covariance), data.basis
    projected = inverse - inverse @ basis @ np.linalg.solve(basis.T @ inverse @ basis, basis.T @ inverse)
    products = moved @ projected @ data.targets
    found = np.einsum("int,nm,jmt->ij", products, projected, products)
    share = parameters.noise / (parameters.noise + data.known)
    found[-1, -1] += data.outputs * np.sum((data.counts - 1) * share**2)
    return found / 2


@pytest.mark.parametrize("kernel", [*RADIAL[:3]], ids=str)
def test_information_is_that_of_the_definition(kernel):
    data, parameters = rows(), as_host_arrays(Parameters(kernel, np.asarray(0.2)))
    expected = information_by_definition(parameters, data)
    for on_device in (False, True):
        found = ExactEvidence(data, on_device).evaluate(parameters).information
        np.testing.assert_allclose(found, expected, rtol=1e-7, atol=1e-8)


def test_information_is_in_the_mean_that_of_fisher():
    parameters = as_host_arrays(Parameters(RADIAL[0], np.asarray(0.1)))
    empty = rows("zero", repeats=False)
    covariance, moved = derivatives(parameters, empty)
    left = np.linalg.solve(covariance, moved)
    expected = np.einsum("inm,jmn->ij", left, left) / 2
    root, rng = np.linalg.cholesky(covariance), np.random.default_rng(1)
    drawn = [empty._replace(targets=root @ rng.standard_normal((COUNT, 1))) for _ in range(300)]
    found = np.array([ExactEvidence(one).evaluate(parameters).information for one in drawn])
    error = found.std(axis=0, ddof=1) / np.sqrt(len(found))
    assert np.all(np.abs(found.mean(axis=0) - expected) < 5 * error)


@pytest.mark.parametrize("mean", ["zero", "linear"])
def test_host_and_device_predict_the_same(mean):
    data, parameters = rows(mean), as_host_arrays(Parameters(Matern52([1.0, 2.0], 1.5), np.asarray(0.2)))
    basis = ProcessMean.of(mean, INPUTS).basis(NEW)
    here, there = (ExactEvidence(data, on_device).solution(parameters) for on_device in (False, True))
    terms = device_terms(parameters.kernel, 2)
    for full in (False, True):
        mine = predict(parameters.kernel, INPUTS, here, NEW, basis, full)
        theirs = compiled_predict(terms, INPUTS, there, NEW, basis, full)
        for one, other in zip(mine, theirs, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-12)


def test_one_program_serves_all_radial_kernels():
    first = jax.tree.structure(device_terms(RADIAL[0], 2))
    shapes = jax.tree.map(np.shape, device_terms(RADIAL[0], 2))
    for kernel in RADIAL[1:]:
        assert jax.tree.structure(device_terms(kernel, 2)) == first
        assert jax.tree.map(np.shape, device_terms(kernel, 2)) == shapes
    for kernel in (*OTHERS, THREE):
        assert device_terms(kernel, 2) == ()


def test_a_covariance_that_is_not_one_has_an_infinite_loss():
    parameters = as_host_arrays(Parameters(Gaussian([1.0, 2.0]), np.asarray(0.1)))
    evidence = ExactEvidence(rows()._replace(inputs=np.full((COUNT, 2), np.nan)))
    assert np.all(np.isinf(evidence.losses(parameters)))
    assert np.all(np.isinf(evidence.evaluate(parameters).losses))


def test_rows_left_out_are_predicted_as_by_a_solution_without_them():
    data = rows("linear", repeats=False)
    parameters = as_host_arrays(Parameters(Matern32([1.0, 2.0], 1.5), np.asarray(0.2)))
    differences, variances = leave_one_out(ExactEvidence(data).solution(parameters))
    for row in (0, 7, 39):
        others = data.subset(np.arange(COUNT) != row)
        solution = ExactEvidence(others).solution(parameters)
        here, basis = INPUTS[row : row + 1], data.basis[row : row + 1]
        mean, variance = predict(parameters.kernel, others.inputs, solution, here, basis)
        np.testing.assert_allclose(differences[row], TARGETS[row] - mean[0], rtol=1e-8)
        assert variances[row] == pytest.approx(variance[0] + 0.2 + data.known[row], rel=1e-8)


def test_a_row_that_alone_determines_the_mean_is_not_predicted_by_others():
    inputs, ones, zeros = np.array([[0.0], [0.0], [5.0]]), np.ones(3), np.zeros(3)
    basis = ProcessMean("linear", np.zeros(1), np.ones(1), np.array([0])).basis(inputs)
    data = RegressionRows(inputs, inputs, basis, zeros, ones, zeros, ones, zeros)
    solution = ExactEvidence(data).solution(as_host_arrays(Parameters(Gaussian(1.0), np.asarray(0.1))))
    assert np.isinf(leave_one_out(solution)[1][2])

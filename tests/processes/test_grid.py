"""The grid method against dense linear algebra with the same interpolated kernel, and against the exact method."""

from functools import cache

import jax
import numpy as np
import pytest

from thalweg.errors import IncompatiblePartsError
from thalweg.kernels import Gaussian, Grid, Interpolation, Linear, Matern12, Matern32, Matern52, Periodic
from thalweg.processes import RegressorSettings, fit_regressor
from thalweg.processes.exact import Parameters
from thalweg.processes.grid import GridEvidence, is_fine, lattice, posterior, suits
from thalweg.processes.observations import ProcessMean, RegressionRows
from thalweg.trees import as_host_arrays, flattened, unflattened

RNG = np.random.default_rng(0)
COUNT = 60
NODES = {1: (48,), 2: (14, 12), 3: (9, 8, 8)}
KERNELS = {
    "Gaussian": Gaussian(0.15, 1.3),
    "Matern32": Matern32(0.2, 0.7),
    "Matern52": Matern52(0.2, 1.0),
    "sum": Gaussian(0.15) + Matern52(0.2, 0.5),
    "product": Periodic(0.4) * Gaussian(0.3),
}
FIXED = RegressorSettings("grid", learn=False)


def rows_of(dimension):
    rng = np.random.default_rng(dimension)
    inputs = rng.uniform(size=(COUNT, dimension))
    targets = np.stack([np.sin(7 * inputs[:, 0]), inputs.sum(axis=1)], axis=1) + 0.1 * rng.normal(size=(COUNT, 2))
    noise = np.where(np.arange(COUNT) % 2, 0.05, 0.0)
    weights = 1.0 + np.arange(COUNT) % 2
    basis = ProcessMean.of("linear", inputs).basis(inputs)
    return RegressionRows(inputs, targets, basis, noise, weights, 0.1 * (weights - 1), weights, np.log(weights))


def around(dimension):
    """A torus that is twice as wide as the rows."""
    nodes = NODES[dimension]
    return Grid([-0.5] * dimension, [2 / (count - 1) for count in nodes], nodes)


def circulant(kernel, made):
    """K among all nodes, by its definition: correlations at the shorter way round."""
    index = np.stack(np.unravel_index(np.arange(made.size), made.shape), axis=-1)
    gaps = np.abs(index[:, None] - index[None])
    gaps = np.minimum(gaps, np.array(made.shape) - gaps) * made.spacing
    flat = gaps.reshape(-1, len(made.shape))
    return np.asarray(kernel(np.zeros((1, len(made.shape))), flat)).reshape(made.size, made.size)


def interpolation_matrix(made, points):
    return np.asarray(jax.jit(Interpolation.mv)(made.interpolation(points), np.eye(made.size)))


def dense_loss(parameters, rows, made, W):
    """−log p(y) with the coefficients of the mean at their best, its definition, weights as repeated rows."""
    A = W @ circulant(parameters.kernel, made) @ W.T
    A = A + np.diag((parameters.noise + rows.known) / rows.weights)
    inverse, H, y = np.linalg.inv(A), rows.basis, rows.targets
    left = y - H @ np.linalg.solve(H.T @ inverse @ H, H.T @ inverse @ y)
    noise = 2 * np.pi * (parameters.noise + rows.known)
    constant = np.sum((rows.weights - 1) * np.log(noise) + np.log(rows.weights)) + COUNT * np.log(2 * np.pi)
    constant = constant + np.sum(rows.scatter / (parameters.noise + rows.known)) / y.shape[1]
    return np.trace(left.T @ inverse @ left) / 2 + y.shape[1] * (np.linalg.slogdet(A)[1] + constant) / 2


def slopes_in_logarithms(function, parameters):
    """Derivatives in the logarithms of parameters, by differences of the fourth order."""
    values, step = flattened(parameters), 1e-3
    moved = lambda move: function(unflattened(values * np.exp(move), parameters))
    slope = lambda unit: 8 * (moved(unit) - moved(-unit)) - (moved(2 * unit) - moved(-2 * unit))
    return np.array([slope(unit) for unit in step * np.eye(len(values))]) / (12 * step)


FAST = ("sum",)
CASES = [(name, 1) for name in FAST]
CASES += [pytest.param(name, 1, marks=pytest.mark.slow) for name in KERNELS if name not in FAST]
CASES += [pytest.param("Matern52", dimension, marks=pytest.mark.slow) for dimension in (2, 3)]


@pytest.mark.parametrize(("name", "dimension"), CASES)
def test_loss_and_gradient_are_unbiased(name, dimension):
    rows, made = rows_of(dimension), around(dimension)
    parameters = as_host_arrays(Parameters(KERNELS[name], np.asarray(0.03)))
    # Where a torus is too small for a kernel its spectrum is cut at 0, and it is another kernel.
    assert np.linalg.eigvalsh(circulant(parameters.kernel, made))[0] > -1e-9
    W = interpolation_matrix(made, rows.inputs)
    loss = lambda moved: dense_loss(moved, rows, made, W)
    expected = np.append(loss(parameters), slopes_in_logarithms(loss, parameters))
    # What truncating solves costs is tested below.
    found = [GridEvidence(rows, made, seed, tolerances=(1e-8, 1e-8)).evaluate(parameters) for seed in range(24)]
    drawn = np.array([[*one.losses, *one.gradient] for one in found])
    errors = drawn.std(axis=0, ddof=1) / np.sqrt(len(drawn))
    assert np.all(np.abs(drawn.mean(axis=0) - expected) < 5 * errors + 1e-6)


def test_truncated_probes_bias_the_loss_by_less_than_their_residual():
    rows, made, parameters = rows_of(1), around(1), as_host_arrays(Parameters(KERNELS["sum"], np.asarray(0.03)))
    loose = GridEvidence(rows, made, 0).evaluate(parameters)
    tight = GridEvidence(rows, made, 0, tolerances=(1e-10, 1e-10)).evaluate(parameters)
    assert abs(loose.losses[0] - tight.losses[0]) < 1e-3 * COUNT
    np.testing.assert_allclose(loose.gradient, tight.gradient, atol=1e-2 * COUNT)


def test_the_posterior_is_that_of_the_dense_interpolated_kernel():
    rows = rows_of(1)
    new = np.random.default_rng(9).uniform(-0.1, 1.1, size=(9, 1))
    kernel, noise = KERNELS["sum"], 0.03
    plane = ProcessMean.of("linear", rows.inputs)
    # What truncating solves costs is tested above.
    evidence = GridEvidence(rows, around(1), 0, tolerances=(1e-10, 1e-10))
    found = posterior(Parameters(kernel, noise), plane, evidence, 0)
    mean, variance = found.predict(new)
    values, vectors = np.linalg.eigh(circulant(kernel, found.grid))
    among = vectors * np.maximum(values, 0) @ vectors.T  # as the spectrum is cut at 0
    W, here = (interpolation_matrix(found.grid, x) for x in (rows.inputs, new))
    A = W @ among @ W.T + np.diag((noise + rows.known) / rows.weights)
    H, above = (plane.basis(x) for x in (rows.inputs, new))
    inverse = np.linalg.inv(A)
    level = np.linalg.solve(H.T @ inverse @ H, H.T @ inverse @ rows.targets)
    cross = here @ among @ W.T
    np.testing.assert_allclose(mean, cross @ inverse @ (rows.targets - H @ level) + above @ level, atol=1e-5)
    left = above - cross @ inverse @ H
    exact = np.diag(
        here @ among @ here.T - cross @ inverse @ cross.T + left @ np.linalg.solve(H.T @ inverse @ H, left.T)
    )
    assert np.all(variance > 0)
    # 64 samples: the standard error of a variance is √(2/64) of it.
    np.testing.assert_allclose(variance, exact, rtol=5 * np.sqrt(2 / 64))
    assert np.mean(variance / exact) == pytest.approx(1.0, abs=5 * np.sqrt(2 / 64 / 3))
    drawn = found.sample(new, 64, np.random.default_rng(0))
    np.testing.assert_allclose(np.mean((drawn - mean[:, :, None]) ** 2, axis=2), np.stack([variance] * 2, axis=1))


@pytest.mark.slow
@pytest.mark.parametrize(("dimension", "count"), [(1, 60), (2, 2500)])
def test_it_is_close_to_the_exact_method(dimension, count):
    rng = np.random.default_rng(1)
    inputs = rng.uniform(size=(count, dimension))
    targets = (np.sin(7 * inputs[:, 0]) + inputs.sum(axis=1) + 0.1 * rng.normal(size=count))[:, None]
    kernel = Gaussian(0.3, 1.0)
    exact = fit_regressor(inputs, targets, RegressorSettings("exact", learn=False), kernel, 0.02)
    found = fit_regressor(inputs, targets, FIXED, kernel, 0.02)
    new = rng.uniform(size=(50, dimension))
    assert found.method == "grid"
    np.testing.assert_allclose(found.posterior.predict(new)[0], exact.posterior.predict(new)[0], atol=0.02)


def test_few_rows_of_a_plane_take_the_exact_method():
    rng = np.random.default_rng(0)
    inputs = rng.uniform(size=(500, 2))
    waves = np.sin(20 * inputs[:, 0]) * np.cos(15 * inputs[:, 1])
    targets = (waves + 0.1 * rng.normal(size=500))[:, None]
    found = fit_regressor(inputs, targets, RegressorSettings("grid", restarts=0), Matern32)
    assert found.method == "exact"
    assert np.sqrt(np.mean((found.posterior.predict(inputs)[0][:, 0] - waves) ** 2)) < 0.1


@cache
def learned(factor):
    """A fit that starts from a lengthscale wrong by a factor; fits from all factors share their programs."""
    rng = np.random.default_rng(3)
    inputs = np.sort(rng.uniform(0, 60, size=(450, 1)), axis=0)
    truth = np.linalg.cholesky(np.asarray(Gaussian(2.0, 4.0)(inputs)) + 1e-8 * np.eye(450)) @ rng.normal(size=450)
    targets = (truth + 0.3 * rng.normal(size=450))[:, None]
    return fit_regressor(inputs, targets, RegressorSettings("grid", mean="zero"), Gaussian(2.0 * factor, 1.0))


@pytest.mark.parametrize("factor", [1e-3, 1e3])
def test_learning_finds_the_same_from_any_start(factor):
    found = learned(factor)
    assert float(found.posterior.kernel.lengthscale) == pytest.approx(2.0, rel=0.15)
    assert found.posterior.noise == pytest.approx(0.09, rel=0.3)
    assert not found.posterior.coarse
    assert found.solved


def test_a_rough_function_without_noise_is_searched_from_some_noise():
    rng, left = np.random.default_rng(1), np.exp(-1 / 12)
    y = [rng.normal()]
    for _ in range(799):
        y.append(left * y[-1] + np.sqrt(1 - left**2) * rng.normal())
    found = fit_regressor(np.arange(800.0)[:, None], np.array(y)[:, None], RegressorSettings("grid"), Matern12)
    assert found.log_marginal_likelihood > -430  # -490 from a noise of 1e-7 of the variance
    assert 8 < float(found.posterior.kernel.lengthscale[0]) < 20


def test_beyond_the_grid_is_the_prior():
    found = learned(1e3).posterior
    mean, variance = found.predict(np.array([[1e4], [-1e4]]))
    np.testing.assert_array_equal(mean, 0)
    np.testing.assert_allclose(variance, float(found.kernel.variance))
    with pytest.raises(ValueError, match="2 points lie beyond"):
        found.sample(np.array([[1e4], [-1e4]]), 1, np.random.default_rng(0))


def test_a_grid_that_memory_does_not_hold_fine_enough_says_so():
    inputs = np.random.default_rng(0).uniform(size=(60, 3))
    wide, narrow = Gaussian(0.3), Gaussian(0.01)
    assert is_fine(lattice(wide, inputs), wide, inputs)
    assert not is_fine(lattice(narrow, inputs), narrow, inputs)


def test_the_grid_follows_the_kernel():
    inputs = np.linspace(0, 1, 20)[:, None]
    fine, coarse = (lattice(Gaussian(length), inputs) for length in (0.01, 0.3))
    assert fine.spacing[0] < 0.01 < coarse.spacing[0] < 0.3
    assert not suits(coarse, Gaussian(0.01), inputs)
    assert suits(coarse, Gaussian(0.25), inputs)
    assert not suits(fine, Gaussian(0.3), inputs), "its ends would meet"


@pytest.mark.parametrize(
    ("inputs", "kernel", "noise", "error", "words"),
    [
        (np.zeros((3, 4)), Gaussian(1.0), 0.1, ValueError, "up to 3 features, found 4"),
        (np.zeros((3, 1)), Linear(), 0.1, IncompatiblePartsError, "stationary kernel"),
        (np.zeros((3, 1)), Gaussian(1.0), 0.0, ValueError, "noise in every row"),
    ],
)
def test_what_a_grid_cannot_do_is_said(inputs, kernel, noise, error, words):
    with pytest.raises(error, match=words):
        fit_regressor(inputs, np.zeros((3, 1)), FIXED, kernel, noise)


HOSTILE = {
    "one point": (np.ones((1, 1)), np.ones(1)),
    "equal points": (np.ones((20, 1)), RNG.normal(size=20)),
    "a constant target": (RNG.normal(size=(20, 1)), np.ones(20)),
    "a constant column": (np.stack([RNG.normal(size=20), np.ones(20)], axis=1), RNG.normal(size=20)),
    "tiny and far": (1e8 + 1e-2 * RNG.normal(size=(20, 1)), 1e8 + 1e-3 * RNG.normal(size=20)),
    "huge": (1e8 * RNG.normal(size=(20, 1)), 1e8 * RNG.normal(size=20)),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", HOSTILE)
def test_nothing_breaks_it(case):
    inputs, targets = HOSTILE[case]
    found = fit_regressor(inputs, targets[:, None], RegressorSettings("grid", max_iter=5), Gaussian)
    mean, variance = found.posterior.predict(np.concatenate([inputs, inputs + 3 * np.std(inputs) + 1]))
    assert np.all(np.isfinite(mean))
    assert np.all(variance >= 0)
    assert np.max(np.abs(mean - targets.mean())) < 10 * (np.ptp(targets) + 1e-6 * np.abs(targets).max())


@pytest.mark.parametrize(
    ("dimensions", "rows", "wave"), [(1, 800, 15.0), pytest.param(2, 4000, 7.0, marks=pytest.mark.slow)]
)
def test_waves_are_seen_beside_larger_ones_where_rows_lie_unevenly(dimensions, rows, wave):
    rng = np.random.default_rng(0)
    inputs = rng.uniform(0, 10, (rows, dimensions))
    targets = np.sin(inputs).sum(1) + 0.3 * np.sin(wave * inputs[:, 0]) + 0.1 * rng.normal(size=rows)
    found = fit_regressor(inputs, targets[:, None], RegressorSettings("grid", restarts=0))
    assert found.method == "grid"
    assert 0.005 < found.posterior.noise < 0.02

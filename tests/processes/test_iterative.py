"""GP regression by solves: against dense algebra and the exact method, and where float32 is not enough."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from thalweg.kernels import Gaussian, Matern32
from thalweg.processes import RegressorSettings, fit_regressor
from thalweg.processes.exact import ExactEvidence, Parameters
from thalweg.processes.iterative import PIVOTS, POSTERIOR_SAMPLES, nystrom, posterior, solve
from thalweg.processes.observations import ProcessMean, RegressionRows
from thalweg.trees import as_host_arrays

RNG = np.random.default_rng(0)
ROWS = RNG.normal(size=(40, 2))
TARGETS = np.stack([np.sin(2 * ROWS[:, 0]), ROWS[:, 1]], axis=1) + 0.1 * RNG.normal(size=(40, 2))
NEW = RNG.normal(size=(7, 2))
KERNEL, NOISE = Matern32([1.0, 2.0], 1.5), np.linspace(0.05, 0.2, 40)


def right_sides(columns):
    """As many as a posterior of two targets has, so that they share its programs; the last is 0."""
    rest = np.random.default_rng(3).normal(size=(len(columns), POSTERIOR_SAMPLES))
    rest[:, -1] = 0
    return np.concatenate([columns, rest], axis=1)


def test_solves_are_solutions():
    solves = solve(KERNEL, jax.device_put(ROWS), NOISE, right_sides(TARGETS), jax.random.key(0))
    expected = np.linalg.solve(np.asarray(KERNEL(ROWS)) + np.diag(NOISE), solves.columns)
    assert solves.dtype == jnp.float32
    assert np.max(solves.solved.residuals) <= 0.02
    np.testing.assert_allclose(solves.solved.x, expected, atol=0.02 * np.abs(expected).max())


def test_the_preconditioner_is_the_covariance_if_all_rows_are_pivots():
    solution = jax.jit(lambda key: nystrom(KERNEL, jnp.asarray(ROWS), NOISE, key, 40).solve(TARGETS))
    expected = np.linalg.solve(np.asarray(KERNEL(ROWS)) + np.diag(NOISE), TARGETS)
    np.testing.assert_allclose(solution(jax.random.key(0)), expected, atol=1e-6)


def test_products_are_in_float64_where_float32_is_not_enough():
    """Targets that are linear in the features: the kernel is nearly constant, and the noise small against it."""
    kernel, noise = Matern32([1e2, 1e2], 1e5), np.full(40, 1e-4)
    solves = solve(kernel, jax.device_put(ROWS), noise, right_sides(ROWS), jax.random.key(0))
    assert solves.dtype == jnp.float64
    covariance = np.asarray(kernel(ROWS)) + np.diag(noise)
    columns = np.asarray(solves.columns)
    residual = columns - covariance @ np.asarray(solves.solved.x)
    assert np.linalg.norm(residual) < 1e-4 * np.linalg.norm(columns)


@pytest.mark.parametrize("features", [pytest.param(3, marks=pytest.mark.slow), 16])
def test_a_small_noise_that_is_learned_is_no_trouble(features, monkeypatch):
    monkeypatch.setitem(PIVOTS, "cpu", 256)
    rng = np.random.default_rng(0)
    x, w = rng.normal(size=(400, features)), rng.normal(size=features)
    y = x @ w + 1e-3 * rng.normal(size=400)
    found = fit_regressor(x, y[:, None], RegressorSettings("iterative", restarts=0), Gaussian)
    new = rng.normal(size=(200, features))
    mean, variance = found.posterior.predict(new)
    errors = mean[:, 0] - new @ w
    assert np.sqrt(np.mean(errors**2)) < 1e-3
    assert np.mean(np.abs(errors) < 2 * np.sqrt(variance)) > 0.9
    # Ten times as much where rounding, which differs between machines, keeps solves from their end.
    assert any(found.posterior.noise == pytest.approx(noise, rel=0.3) for noise in (1e-6, 1e-5))


def test_linear_data_are_learned(monkeypatch):
    """Of the shapes of the test above, whose programs it shares."""
    monkeypatch.setitem(PIVOTS, "cpu", 256)
    rng = np.random.default_rng(0)
    x, w = rng.normal(size=(400, 16)), np.array([3.0, -2.0, 1.0] + 13 * [0.0])
    y = x @ w + 0.1 * rng.normal(size=400)
    found = fit_regressor(x, y[:, None], RegressorSettings("iterative", restarts=0), Gaussian)
    new = rng.normal(size=(200, 16))
    mean = found.posterior.predict(new)[0][:, 0]
    assert np.sqrt(np.mean((mean - new @ w) ** 2)) < 0.05
    assert found.solved


@pytest.mark.parametrize("mean", ["zero", "constant"])
def test_samples_have_the_mean_and_the_variances_of_the_exact_posterior(mean):
    settings = {method: RegressorSettings(method, learn=False, mean=mean) for method in ("exact", "iterative")}
    mine, theirs = (
        fit_regressor(ROWS, TARGETS, settings[method], KERNEL, noise=0.2).posterior.predict(NEW)
        for method in ("iterative", "exact")
    )
    np.testing.assert_allclose(mine[0], theirs[0], atol=2e-3)
    # 64 samples: the standard error of a variance is √(2/64) of it, and random features add a few per cent.
    np.testing.assert_allclose(mine[1], theirs[1], rtol=5 * np.sqrt(2 / 64))


@pytest.mark.parametrize("mean", [pytest.param("zero", marks=pytest.mark.slow), "constant"])
def test_the_likelihood_is_the_exact_one_within_its_error(mean, monkeypatch):
    """With fewer pivots than rows, as large data have."""
    monkeypatch.setitem(PIVOTS, "cpu", 24)
    weights, plane = 1.0 + np.arange(40) % 3, ProcessMean.of(mean, ROWS)
    rows = RegressionRows.of(ROWS, TARGETS, np.linspace(0, 0.1, 40), weights, plane).merged()
    parameters = as_host_arrays(Parameters(KERNEL, np.asarray(0.02)))
    expected, count = float(np.sum(ExactEvidence(rows).losses(parameters))), 6
    found = [posterior(parameters, plane, rows, seed) for seed in range(count)]
    errors = np.array([one.loss - expected for one in found])
    reported = np.array([one.loss_error for one in found])
    assert np.all(reported > 0)
    assert abs(np.mean(errors)) < 5 * np.sqrt(np.mean(reported**2) / count)
    assert np.std(errors) < 3 * np.sqrt(np.mean(reported**2))

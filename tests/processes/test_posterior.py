"""Posteriors by factors: single ones, mixtures over plausible parameters, samples, and calibration."""

import numpy as np
import pytest

from thalweg.kernels import Gaussian, Matern32
from thalweg.processes import RegressorSettings, fit_regressor
from thalweg.processes.posterior import widening

RNG = np.random.default_rng(0)
INPUTS = RNG.normal(size=(40, 2))
TARGETS = np.stack([np.sin(2 * INPUTS[:, 0]), INPUTS[:, 1]], axis=1) + 0.1 * RNG.normal(size=(40, 2))
NEW = RNG.normal(size=(7, 2))
FIXED = RegressorSettings(learn=False, mean="zero")


def within_errors(draws, truth):
    """Within five standard errors, from means over a hundred batches."""
    batches = draws.reshape(100, -1, *draws.shape[1:]).mean(axis=1)
    return np.all(np.abs(batches.mean(axis=0) - truth) < 5 * batches.std(axis=0) / np.sqrt(100))


@pytest.fixture(scope="module")
def mixture():
    return fit_regressor(INPUTS[:24], TARGETS[:24, :1], RegressorSettings(restarts=0), Gaussian).posterior


def test_samples_have_the_covariance_of_the_posterior():
    posterior = fit_regressor(INPUTS, TARGETS, FIXED, Matern32([1.0, 2.0], 1.5), noise=0.2).posterior
    mean, covariance = posterior.predict(NEW, full=True)
    drawn = posterior.sample(NEW, 4000, np.random.default_rng(0))
    assert drawn.shape == (7, 2, 4000)
    deviations = np.sqrt(np.diag(covariance))
    assert np.all(np.abs(drawn.mean(axis=2) - mean) < 5 * deviations[:, None] / np.sqrt(4000))
    errors = np.sqrt((covariance**2 + np.outer(deviations, deviations) ** 2) / 4000)
    assert np.all(np.abs(np.cov(drawn[:, 0]) - covariance) < 5 * errors)


def test_a_mixture_has_the_moments_of_its_parts(mixture):
    assert len(mixture.kernels) == 64
    means, covariances = map(np.array, zip(*mixture._predictions(NEW, full=True), strict=True))
    second = covariances.mean(axis=0) + np.mean([np.outer(m, m) for m in means[:, :, 0]], axis=0)
    mean, covariance = mixture.predict(NEW, full=True)
    np.testing.assert_allclose(mean, means.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(covariance / mixture.scale**2, second - np.outer(mean, mean), atol=1e-10)
    np.testing.assert_allclose(mixture.predict(NEW)[1], np.diag(covariance), rtol=1e-9)


def test_samples_of_a_mixture_have_its_moments(mixture):
    mean, covariance = mixture.predict(NEW, full=True)
    drawn = mixture.sample(NEW, 4000, np.random.default_rng(0))[:, 0].T
    assert within_errors(drawn, mean[:, 0])
    assert within_errors((drawn - mean[:, 0]) ** 2, np.diag(covariance))


def test_parameters_that_are_given_are_certain():
    posterior = fit_regressor(INPUTS, TARGETS, RegressorSettings(learn=False), Gaussian(1.0), noise=0.1).posterior
    assert len(posterior.kernels) == 1
    assert posterior.scale == 1.0


@pytest.mark.parametrize("factor", [0.5, 1.0, 3.0])
def test_deviations_are_widened_by_as_much_as_they_were_too_small_and_never_narrowed(factor):
    differences = factor * np.random.default_rng(1).normal(size=(1, 20000, 1))
    # Of a quantile at 95 %: √(0.05 · 0.95 / 20,000) / (2 φ(1.96)) = 0.013, against 1.96.
    assert widening(differences, np.ones((1, 20000))) == pytest.approx(max(1.0, factor), rel=5 * 0.013 / 1.96)


def test_differences_that_are_large_against_their_variances_leave_a_finite_width():
    differences = 1e16 + np.array([0.0, 2.0])[:, None, None] * np.ones((1, 3, 1))
    with np.errstate(divide="raise", invalid="raise"):
        assert np.isfinite(widening(differences, np.ones((2, 3))))


@pytest.mark.slow
def test_intervals_cover_with_25_rows_and_a_kernel_to_learn():
    """Of functions drawn from a process: what a point estimate of the parameters misses by far."""
    covered, rng = [], np.random.default_rng(3)
    for _ in range(200):
        points = rng.uniform(0, 4, size=(45, 1))
        truth = np.exp(-((points - points.T) ** 2) / 2) + 1e-9 * np.eye(45)
        values = np.linalg.cholesky(truth) @ rng.normal(size=45) + 0.2 * rng.normal(size=45)
        posterior = fit_regressor(points[:25], values[:25, None], RegressorSettings(restarts=0), Gaussian).posterior
        mean, variance = posterior.predict(points[25:])
        deviations = np.sqrt(variance + posterior.observation_noise)
        covered.append(np.mean(np.abs(values[25:] - mean[:, 0]) < 1.96 * deviations))
    assert 0.93 < np.mean(covered) < 0.98

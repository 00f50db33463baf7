"""GP regression as a whole: against scikit-learn, against limits, and on what it is to learn."""

import numpy as np
import pytest
from sklearn.gaussian_process import GaussianProcessRegressor, kernels

from thalweg.kernels import Bias, Gaussian, Linear, Matern32
from thalweg.processes import RegressorSettings, fit_regressor
from thalweg.processes.observations import ProcessMean, RegressionRows

RNG = np.random.default_rng(0)
ROWS = RNG.normal(size=(40, 2))
TARGETS = np.stack([np.sin(2 * ROWS[:, 0]), ROWS[:, 1]], axis=1) + 0.1 * RNG.normal(size=(40, 2))
NEW = RNG.normal(size=(7, 2))
FIXED = RegressorSettings(learn=False, mean="zero")
KERNEL = Matern32([1.0, 2.0], 1.5)


def test_scikit_learn_says_the_same_of_a_kernel_that_is_given():
    theirs = GaussianProcessRegressor(
        kernels.ConstantKernel(1.5) * kernels.Matern([1.0, 2.0], nu=1.5), alpha=0.2, optimizer=None
    ).fit(ROWS, TARGETS[:, 0])
    ours = fit_regressor(ROWS, TARGETS[:, :1], FIXED, KERNEL, noise=0.2)
    assert ours.log_marginal_likelihood == pytest.approx(theirs.log_marginal_likelihood_value_, rel=1e-9)
    mean, covariance = theirs.predict(NEW, return_cov=True)
    found, spread = ours.posterior.predict(NEW, full=True)
    np.testing.assert_allclose(found[:, 0], mean, atol=1e-9)
    np.testing.assert_allclose(spread, covariance, atol=1e-9)
    np.testing.assert_allclose(ours.posterior.predict(NEW)[1], np.diag(covariance), atol=1e-9)


@pytest.mark.parametrize("mean", ["constant", "linear"])
def test_a_mean_of_flat_prior_is_the_limit_of_a_wide_one(mean):
    wide = Bias(1e5) if mean == "constant" else Bias(1e5) + Linear(1e5)
    limit = fit_regressor(ROWS, TARGETS, FIXED, KERNEL + wide, noise=0.2)
    found = fit_regressor(ROWS, TARGETS, RegressorSettings(learn=False, mean=mean), KERNEL, noise=0.2)
    for mine, theirs in zip(found.posterior.predict(5 * NEW), limit.posterior.predict(5 * NEW), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-3, atol=1e-3)


def test_a_weight_of_two_is_the_row_twice_and_a_weight_of_zero_no_row():
    weights = np.array([2.0, 0.0] + [1.0] * 38)
    again = np.r_[0, 0, 2:40]
    weighted = fit_regressor(ROWS, TARGETS, FIXED, KERNEL, noise=0.2, weights=weights).posterior.predict(NEW)
    repeated = fit_regressor(ROWS[again], TARGETS[again], FIXED, KERNEL, noise=0.2).posterior.predict(NEW)
    for mine, theirs in zip(weighted, repeated, strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-9)


def test_merged_duplicates_are_as_probable_as_single_rows():
    """A kernel that is not stationary is not merged: with no variance of its own the sum is the same kernel."""
    again = np.r_[np.arange(40), np.arange(10), np.arange(5)]
    targets = TARGETS[again] + 0.1 * np.random.default_rng(1).normal(size=(55, 2))
    merged = fit_regressor(ROWS[again], targets, FIXED, KERNEL, noise=0.2)
    single = fit_regressor(ROWS[again], targets, FIXED, KERNEL + Linear(1e-12), noise=0.2)
    assert len(merged.posterior.rows.inputs) == 40
    assert len(single.posterior.rows.inputs) == 55
    assert merged.log_marginal_likelihood == pytest.approx(single.log_marginal_likelihood, rel=1e-8)
    for one, other in zip(merged.posterior.predict(NEW), single.posterior.predict(NEW), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-8)


def test_rows_that_differ_behind_a_large_offset_are_not_merged():
    inputs = np.column_stack([1e8 + np.repeat(np.arange(10.0), 2), np.full(20, 3.0)])
    rows = RegressionRows.of(inputs, inputs, np.arange(20) % 4.0, np.ones(20), ProcessMean.of("constant", inputs))
    assert len(rows.merged().inputs) == 20  # known noise differs
    same = rows._replace(known=np.zeros(20)).merged()
    np.testing.assert_array_equal(same.counts, 2)
    np.testing.assert_array_equal(np.sort(same.inputs[:, 0]), 1e8 + np.arange(10.0))


def test_the_order_of_rows_does_not_matter():
    order = np.random.default_rng(2).permutation(40)
    settings = RegressorSettings(restarts=0)
    found = [fit_regressor(ROWS[some], TARGETS[some], settings, Gaussian) for some in (np.arange(40), order)]
    for one, other in zip(*(fit.posterior.predict(NEW) for fit in found), strict=True):
        np.testing.assert_array_equal(one, other)


def test_learning_finds_what_the_data_were_drawn_from():
    rng = np.random.default_rng(0)
    rows = rng.uniform(-3, 3, size=(200, 2))
    truth = Gaussian([1.0, 30.0], 4.0)
    drawn = np.linalg.cholesky(np.asarray(truth(rows)) + 1e-8 * np.eye(200)) @ rng.normal(size=200)
    found = fit_regressor(rows, (drawn + 0.3 * rng.normal(size=200))[:, None], RegressorSettings(), Gaussian)
    kernel = found.posterior.kernel
    assert found.posterior.noise == pytest.approx(0.09, rel=0.35)
    assert kernel.lengthscale[0] == pytest.approx(1.0, rel=0.5)
    assert kernel.lengthscale[1] > 5


def test_the_noise_beside_a_steep_plane_is_that_about_the_plane():
    steep = 1e6 * ROWS[:, :1] + np.random.default_rng(1).normal(size=(40, 1))
    found = fit_regressor(ROWS, steep, RegressorSettings(mean="linear", restarts=0), Gaussian).posterior
    assert 0.3 < float(found.kernel.variance + found.noise) < 3


def test_without_a_mean_the_kernel_accounts_for_the_level_of_the_targets():
    level = 1e3 + TARGETS[:, :1]
    found = fit_regressor(ROWS, level, RegressorSettings(mean="zero", restarts=0), Gaussian)
    assert found.posterior.kernel.variance > 2e5  # a prior about the variance of the targets has it at 5e4


@pytest.mark.filterwarnings("ignore:The optimal value found")
@pytest.mark.parametrize("scatter", [pytest.param(0.1, marks=pytest.mark.slow), 1.5])
def test_rows_are_as_probable_as_scikit_learn_makes_them_with_the_same_kernel(scatter):
    """Features that say nothing, whose lengthscales have no end; and more noise than searches start with."""
    rng = np.random.default_rng(3)
    inputs = rng.normal(size=(40, 5))
    targets = np.sin(inputs[:, 0]) + inputs[:, 4] ** 2 / 2 + scatter * rng.normal(size=40)
    targets -= np.mean(targets)
    found = fit_regressor(inputs, targets[:, None], RegressorSettings(mean="zero"), Gaussian)
    theirs = kernels.ConstantKernel() * kernels.RBF(np.ones(5)) + kernels.WhiteKernel(0.1)
    best = GaussianProcessRegressor(theirs, n_restarts_optimizer=2, random_state=0).fit(inputs, targets)
    assert found.log_marginal_likelihood > best.log_marginal_likelihood_value_ - 0.1


def test_duplicates_are_scattered_by_the_noise():
    values = 1e8 * np.random.default_rng(0).normal(size=(24, 1))
    settings = RegressorSettings(restarts=0, mean="zero")
    found = fit_regressor(np.full((24, 1), 5.0), values, settings, Matern32).posterior
    assert 0.3 < found.noise / np.var(values) < 3


def test_a_plane_has_coefficients_for_features_that_the_rows_tell_apart():
    doubled = np.column_stack([ROWS, ROWS[:, 0] * 3 + 1, np.full(40, 7.0)])
    basis = ProcessMean.of("linear", doubled).basis(doubled)
    assert np.linalg.matrix_rank(basis) == basis.shape[1] == 3
    assert ProcessMean.of("linear", doubled[:2]).basis(doubled[:2]).shape[1] == 1

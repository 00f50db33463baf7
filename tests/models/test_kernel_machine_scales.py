"""Kernel estimators on features of different scales: one for all, or each its own, whichever predicts better."""

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from thalweg import KernelClassifier, KernelRegressor, load
from thalweg.kernels import Gaussian, Matern32
from thalweg.machines import Auto


def raw(seed, n):
    """Three features, 1e8 ± 1, an income and 0 or 1, with labels of which 17 % are positive."""
    draws = np.random.default_rng(seed)
    x = np.column_stack([1e8 + draws.normal(size=n), np.exp(draws.normal(10, 1, n)), draws.integers(0, 2, n)])
    signal = 2 * x[:, 2] + (x[:, 0] - 1e8)
    return x, signal, (draws.uniform(size=n) < 1 / (1 + np.exp(3 - signal))).astype(int)


X, SIGNAL, LABELS = raw(1, 400)
NEW, NEW_SIGNAL, NEW_LABELS = raw(2, 2000)


def test_raw_features_are_classified_as_well_as_standardised_ones(tmp_path):
    x, labels = X[:250], LABELS[:250]
    model = KernelClassifier(Gaussian, random_state=0).fit(x, labels)
    found = log_loss(NEW_LABELS, model.predict_proba(NEW))
    line = make_pipeline(StandardScaler(), LogisticRegression()).fit(x, labels)
    scaled = make_pipeline(StandardScaler(), KernelClassifier(Gaussian, random_state=0)).fit(x, labels)
    assert found < log_loss(NEW_LABELS, line.predict_proba(NEW)) + 0.01
    assert found < 1.02 * log_loss(NEW_LABELS, scaled.predict_proba(NEW))
    assert model.kernel_.lengthscale.shape == (3,)  # in units of the user
    model.save(tmp_path / "model")
    np.testing.assert_array_equal(load(tmp_path / "model").predict_proba(NEW), model.predict_proba(NEW))


@pytest.mark.slow
def test_raw_features_of_a_stream_and_of_numbers():
    stream = ((X[i : i + 200], LABELS[i : i + 200]) for i in (0, 200))
    model = KernelClassifier(random_state=0, method=Auto(block_size=448)).fit_stream(stream)
    constant = log_loss(NEW_LABELS, np.full(2000, LABELS.mean()))
    assert log_loss(NEW_LABELS, model.predict_proba(NEW)) < 0.9 * constant
    assert KernelRegressor(random_state=0).fit(X, SIGNAL).score(NEW, NEW_SIGNAL) > 0.99


def lengthscales(x, y=SIGNAL, **options):
    return np.asarray(KernelRegressor(random_state=0, **options).fit(x, y).kernel_.lengthscale)


@pytest.mark.slow
def test_digits_and_their_principal_components_keep_one_scale():
    """Their pixels, and their components the more, say by their spread how much they tell."""
    x, y = load_digits(return_X_y=True)
    x = x[:400] - x[:400].mean(axis=0)
    components = x @ np.linalg.svd(x, full_matrices=False)[2].T[:, :40]
    for features in (x, components):
        assert lengthscales(features, (y[:400] == 3).astype(float), metric="none").ndim == 0


def test_scales_of_unlike_features_are_their_standard_deviations():
    found = lengthscales(X, kernel=Gaussian, metric="none")
    np.testing.assert_allclose(found[:2] / found[0], np.std(X, axis=0)[:2] / np.std(X, axis=0)[0], rtol=0.7)
    np.testing.assert_allclose(found[2] / found[0], np.std(X[:, 2]) / np.std(X[:, 0]), rtol=0.05)


def test_features_that_are_constant_and_a_row_of_extreme_size_do_no_harm():
    constant = np.column_stack([X, np.full(400, 7.0), np.full(400, 0.1 + 0.2), np.zeros(400)])[:150]
    model, plain = (
        KernelRegressor(Gaussian, metric="none", random_state=0).fit(x, SIGNAL[:150]) for x in (constant, X[:150])
    )
    found = np.asarray(model.kernel_.lengthscale)
    assert np.all(np.isfinite(found))
    new = np.column_stack([NEW, np.full(2000, 7.0), np.full(2000, 0.1 + 0.2), np.zeros(2000)])
    assert model.score(new, NEW_SIGNAL) > plain.score(NEW, NEW_SIGNAL) - 0.01
    odd = np.concatenate([X[:150, :2], [[1e15, 1e15]]])
    model = KernelRegressor(Gaussian, metric="none", random_state=0).fit(odd, np.append(X[:150, 0] - 1e8, 0.0))
    assert model.score(NEW[:, :2], NEW[:, 0] - 1e8) > 0.95


def test_a_kernel_that_is_given_is_in_units_of_the_user():
    model = KernelRegressor(Gaussian(2.0), random_state=0).fit(X, SIGNAL)
    assert float(model.kernel_.lengthscale) == 2.0


def test_a_row_further_out_than_all_others_has_no_mean_of_the_targets(tmp_path):
    """With heavy tails new rows lie further out than all that were learned from."""
    x = np.exp(2 * np.random.default_rng(0).normal(size=(400, 1)))
    model = KernelRegressor(random_state=0).fit(x, np.log(x[:, 0]))
    model.save(tmp_path / "model")
    new = [[2 * x.max()]]
    assert model.predict(new)[0] > 0.4 * np.log(x.max())
    np.testing.assert_array_equal(load(tmp_path / "model").predict(new), model.predict(new))


@pytest.mark.parametrize("factor", [2.0**83, pytest.param(2.0**-660, marks=pytest.mark.slow)])
def test_features_of_any_size_are_learned_from(factor, tmp_path):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 2))
    t = np.sin(2 * x[:, 0]) + 0.1 * rng.normal(size=40)
    for family, y in ((KernelRegressor, t), (KernelClassifier, t > 0)):
        usual = family(Gaussian, random_state=0).fit(x, y)
        model = family(Gaussian, random_state=0).fit(factor * x, y)
        np.testing.assert_array_equal(model.predict(factor * x), usual.predict(x))
        expected = factor * np.asarray(usual.kernel_.lengthscale, float)
        np.testing.assert_allclose(np.asarray(model.kernel_.lengthscale), expected, rtol=1e-6)
        model.save(tmp_path / "model")
        again = load(tmp_path / "model")
        np.testing.assert_array_equal(again.predict(factor * x), usual.predict(x))
        stream = family(Gaussian, alpha=0.1, random_state=0)
        for part in (slice(0, 25), slice(25, 40)):
            stream.partial_fit(factor * x[part], y[part])
        assert stream.score(factor * x, y) > 0.9


def test_features_that_float32_could_not_hold_beside_one_another_are_learned_from():
    x = np.random.default_rng(0).normal(size=(60, 2)) * [1.0, 1e200]
    for y in (np.sin(x[:, 0]), np.sin(x[:, 1] / 1e200)):
        assert KernelRegressor(Gaussian, random_state=0).fit(x, y).score(x, y) > 0.95


@pytest.mark.slow
@pytest.mark.parametrize("code", [-999.0, 1e6])
def test_a_code_for_what_is_missing_does_not_hide_the_other_values(code):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(1100, 3))
    y = np.sin(2 * X[:, 0]) + 0.1 * rng.normal(size=1100)
    X[rng.permutation(1100)[:350], 0] = code
    model = KernelRegressor(random_state=0).fit(X[:800], y[:800])
    there = X[800:, 0] != code
    assert model.score(X[800:][there], y[800:][there]) > 0.95


@pytest.mark.parametrize(("rows", "size"), [(30, 1e39), (30, 1e200), (30, -1.7e308), (100, -1.7e308)])
def test_one_entry_of_extreme_size_among_few_rows_is_an_outlier(rows, size):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(rows, 3))
    y = np.sin(2 * X[:, 0])
    X[rows // 3, 0] = size
    assert KernelRegressor(Matern32, random_state=0).fit(X, y).score(X, y) > 0.9
    X[rows // 3 : rows // 3 + 3, 0] = size, size / 2, size / 4
    assert KernelRegressor(Matern32, random_state=0).fit(X, y).score(X, y) > 0.8

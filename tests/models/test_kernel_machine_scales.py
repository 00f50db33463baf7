"""Kernel estimators on features of different scales: one unit for all, or each its own, whichever predicts better."""

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from thalweg.machines.choice import choose

from thalweg import KernelClassifier, KernelRegressor, load
from thalweg.kernels import Gaussian, Laplacian
from thalweg.machines import Auto, HingeLoss, Rows, Settings, SquaredLoss, folds


def raw(seed, n):
    """Three features, 1e8 ± 1, an income and 0 or 1, with labels of which 17 % are positive."""
    draws = np.random.default_rng(seed)
    x = np.column_stack([1e8 + draws.normal(size=n), np.exp(draws.normal(10, 1, n)), draws.integers(0, 2, n)])
    signal = 2 * x[:, 2] + (x[:, 0] - 1e8)
    return x, signal, (draws.uniform(size=n) < 1 / (1 + np.exp(3 - signal))).astype(int)


X, SIGNAL, LABELS = raw(1, 400)
NEW, NEW_SIGNAL, NEW_LABELS = raw(2, 2000)


def test_raw_features_are_classified_as_well_as_standardised_ones(tmp_path):
    """Issue 13: the log-loss was 0.506 where logistic regression of standardised features has 0.421."""
    model = KernelClassifier(random_state=0).fit(X, LABELS)
    found = log_loss(NEW_LABELS, model.predict_proba(NEW))
    line = make_pipeline(StandardScaler(), LogisticRegression()).fit(X, LABELS)
    scaled = make_pipeline(StandardScaler(), KernelClassifier(random_state=0)).fit(X, LABELS)
    assert found < log_loss(NEW_LABELS, line.predict_proba(NEW)) + 0.01
    assert found < log_loss(NEW_LABELS, scaled.predict_proba(NEW)) + 0.002
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


def choice(x, y=SIGNAL, loss=None, **settings):
    rows = Rows(x - np.median(x, axis=0), y[:, None], np.ones(len(x)))
    return choose(rows, Settings(loss=loss or SquaredLoss(), **settings), 0, np.float32)[0]


def test_digits_and_their_principal_components_keep_one_scale():
    """Their pixels, and their components the more, say by their spread how much they tell."""
    x, y = load_digits(return_X_y=True)
    x = x[:400] - x[:400].mean(axis=0)
    components = x @ np.linalg.svd(x, full_matrices=False)[2].T[:, :40]
    for features in (x, components):
        assert choice(features, (y[:400] == 3).astype(float), metric="none").lengthscale.ndim == 0


@pytest.mark.parametrize("x", [X, X[:30]], ids=["enough rows", "few rows"])
def test_units_are_those_of_standard_deviations(x):
    spread = np.std(x, axis=0)
    spread[2] **= 0.5  # of 0 and 1: between its standard deviation and their distance
    for kind, loss in ((Gaussian, SquaredLoss()), (Laplacian, HingeLoss())):
        found = np.asarray(choice(x, SIGNAL[: len(x)], loss, kernel=kind).lengthscale)
        np.testing.assert_allclose(found / found[0], spread / spread[0], rtol=0.05)


def test_features_that_are_constant_and_a_row_of_extreme_size_do_no_harm():
    constant = np.column_stack([X, np.full(400, 7.0), 0.1 + 0.2 * (np.arange(400) % 1), np.zeros(400)])
    found = np.asarray(choice(constant).lengthscale)
    assert np.all(np.isfinite(found))
    np.testing.assert_allclose(found[:3] / found[0], np.asarray(choice(X).lengthscale) / found[0], rtol=1e-6)
    odd = np.concatenate([X, [[1e15, 1e15, 1e15]]])
    found = np.asarray(choice(odd, np.append(SIGNAL, 0.0)).lengthscale)
    assert found[0] < 100


def test_a_kernel_that_is_given_is_in_units_of_the_user():
    model = KernelRegressor(Gaussian(2.0), random_state=0).fit(X, SIGNAL)
    assert float(model.kernel_.lengthscale) == 2.0


def test_a_rare_value_of_two_has_the_unit_of_its_column():
    """Seen on w8a: columns of which fewer than one in 200 is 1 were clipped to 0, and had the unit 1.

    It is between the standard deviation and the distance of the two: by the first alone rare ones are too far away.
    """
    rng = np.random.default_rng(0)
    x = np.column_stack([rng.normal(size=1000), np.arange(1000) % 400 == 0, np.where(np.arange(1000) == 7, 1e9, 0)])
    x[7, 0] = 1e9
    seen = folds.sample(Rows(x, x[:, :1], np.ones(1000)), seed=0)
    own = seen.units()[1]
    np.testing.assert_allclose(own[1:], np.sqrt(np.std(seen.x[:, 1:], axis=0) * [1, 1e9]))
    assert own[0] < 2


def test_features_alike_cost_no_second_look(monkeypatch):
    seen = []
    real = choose.__globals__["left_out"]
    monkeypatch.setitem(choose.__globals__, "left_out", lambda *given: seen.append(1) or real(*given))
    choice(StandardScaler().fit_transform(X), kernel=Gaussian, metric="none")
    assert len(seen) == 1


def test_a_row_further_out_than_all_others_has_no_mean_of_the_targets(tmp_path):
    """Seen on keggundirected: two of 6,361 rows, 86 standard deviations out, were a tenth of all the error."""
    x = np.exp(2 * np.random.default_rng(0).normal(size=(400, 1)))
    model = KernelRegressor(random_state=0).fit(x, np.log(x[:, 0]))
    model.save(tmp_path / "model")
    new = [[2 * x.max()]]
    assert model.predict(new)[0] > 0.4 * np.log(x.max())  # it was -0.07
    np.testing.assert_array_equal(load(tmp_path / "model").predict(new), model.predict(new))


@pytest.mark.parametrize("factor", [2.0**83, 2.0**-660])
def test_features_of_any_size_are_learned_from(factor, tmp_path):
    """Squares beyond float32 were warnings, raw errors of SciPy or, of tiny features, an OverflowError."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(120, 2))
    t = np.sin(2 * x[:, 0]) + 0.1 * rng.normal(size=120)
    for family, y in ((KernelRegressor, t), (KernelClassifier, t > 0)):
        usual = family(random_state=0).fit(x, y)
        model = family(random_state=0).fit(factor * x, y)
        np.testing.assert_array_equal(model.predict(factor * x), usual.predict(x))
        expected = factor * np.asarray(usual.kernel_.lengthscale, float)
        np.testing.assert_allclose(np.asarray(model.kernel_.lengthscale), expected, rtol=1e-6)
        model.save(tmp_path / "model")
        again = load(tmp_path / "model")
        np.testing.assert_array_equal(again.predict(factor * x), usual.predict(x))
        stream = family(Gaussian, random_state=0)
        for part in (slice(0, 80), slice(80, 120)):
            stream.partial_fit(factor * x[part], y[part])
        assert stream.score(factor * x, y) > 0.9
    more = rng.normal(size=(2100, 2))
    big = KernelRegressor(Gaussian, metric="none", random_state=0).fit(factor * more, np.sin(more[:, 0]))
    assert big.score(factor * more, np.sin(more[:, 0])) > 0.99


def test_features_that_float32_cannot_hold_beside_one_another_are_refused():
    x = np.random.default_rng(0).normal(size=(60, 2)) * [1.0, 1e200]
    with pytest.raises(ValueError, match=r"X must fit in float32, found features from .e\+00 to .e\+200 in size"):
        KernelRegressor().fit(x, x[:, 0])


@pytest.mark.parametrize("code", [-999.0, 1e6])
def test_a_code_for_what_is_missing_does_not_hide_the_other_values(code):
    """Beside it they were all one (R² 0.65), or rounding left a kernel matrix that has no factor."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(900, 3))
    y = np.sin(2 * X[:, 0]) + 0.1 * rng.normal(size=900)
    X[rng.permutation(900)[:300], 0] = code
    model = KernelRegressor(random_state=0).fit(X[:600], y[:600])
    told = X[600:, 0] != code
    assert model.score(X[600:][told], y[600:][told]) > 0.95


@pytest.mark.parametrize("rows", [30, 100])
@pytest.mark.parametrize("size", [1e39, 1e200, -1.7e308])
def test_one_entry_of_extreme_size_among_few_rows_is_an_outlier(rows, size):
    """Of so few rows a hundredth is none: its error was SciPy's, or the feature was lost."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(rows, 3))
    y = np.sin(2 * X[:, 0])
    X[rows // 3, 0] = size
    assert KernelRegressor(random_state=0).fit(X, y).score(X, y) > 0.9
    X[rows // 3 : rows // 3 + 3, 0] = size, size / 2, size / 4
    with pytest.raises(ValueError, match=r"X must fit in float32, .* values of .* beside far smaller ones"):
        KernelRegressor(random_state=0).fit(X, y)

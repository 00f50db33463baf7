"""Generalised linear models in use: predictions, intervals, scaling, weights, precision, scikit-learn's contract."""

import warnings

import jax
import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.estimator_checks import estimator_checks_generator

from thalweg.models import BernoulliGLM, GaussianGLM, NegativeBinomialGLM, PoissonGLM, Summary

MODELS = [BernoulliGLM(2.5), GaussianGLM(None, 2.5), PoissonGLM(2.5), NegativeBinomialGLM(0.5, 2.5)]
by_name = lambda model: type(model).__name__


def simulated(model, X, coefficients, rng):
    z = X @ coefficients
    if isinstance(model, BernoulliGLM):
        return (rng.uniform(size=len(z)) < 1 / (1 + np.exp(-z))).astype(int)
    if isinstance(model, GaussianGLM):
        return z + rng.normal(size=len(z))
    rate = np.exp(z)
    return rng.poisson(rate * rng.gamma(2, 0.5, size=len(z)) if isinstance(model, NegativeBinomialGLM) else rate)


@pytest.mark.parametrize("model", MODELS, ids=by_name)
def test_predictions_are_averages_over_the_posterior(model):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(12, 2))
    y = simulated(model, X, [0.5, -0.5], rng)
    model = clone(model).fit(X, y)
    draws = rng.multivariate_normal(np.append(model.intercept_, model.coef_), model.covariance_, size=200_000)
    new = 0.5 * rng.normal(size=(3, 2))
    z = draws[:, :1] + draws[:, 1:] @ new.T
    if isinstance(model, BernoulliGLM):
        means, predicted = 1 / (1 + np.exp(-z)), model.predict_proba(new)[:, 1]
        plug_in = 1 / (1 + np.exp(-model.intercept_ - new @ model.coef_))
        assert np.all(np.abs(predicted - 0.5) < np.abs(plug_in - 0.5))
    else:
        means, predicted = (z if isinstance(model, GaussianGLM) else np.exp(z)), model.predict(new)
    error = means.std(axis=0) / np.sqrt(len(draws))
    assert np.all(np.abs(predicted - means.mean(axis=0)) < 5 * error)


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS, ids=by_name)
def test_intervals_cover_as_often_as_they_say(model):
    """With coefficients drawn from the prior a 90 % interval of the exact posterior covers 90 % of the time."""
    level, repeats, d = 0.9, 150, 3
    rng = np.random.default_rng(7)
    covered = []
    for _ in range(repeats):
        X, coefficients = rng.normal(size=(120, d)), 0.5 * rng.normal(size=d)
        fitted = clone(model).set_params(prior_scale=0.5, fit_intercept=False, tol=1e-3)
        if isinstance(fitted, GaussianGLM):
            fitted.set_params(noise_variance=1.0)
        low, high = fitted.fit(X, simulated(model, X, coefficients, rng)).interval(level).T
        covered.append((low < coefficients) & (coefficients < high))
    assert abs(np.mean(covered) - level) < 5 * np.sqrt(level * (1 - level) / (repeats * d))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:PoissonGLM. the counts vary")  # about what the prior given cannot follow
@pytest.mark.parametrize(("shape", "decades"), [((60, 5), 6), ((4, 30), 2)], ids=["features", "examples"])
@pytest.mark.parametrize("scale", [2.5, "auto"])
@pytest.mark.parametrize("model", MODELS, ids=by_name)
def test_wild_scales_and_offsets_converge(model, scale, shape, decades):
    """Other warnings are errors here: every one of these converges."""
    model = clone(model).set_params(prior_scale=scale)
    if isinstance(model, PoissonGLM) and scale == 2.5:
        model.set_params(max_iter=5000)  # eᶻ, with a prior standard deviation of z in the hundreds, is stiff
    rng = np.random.default_rng(0)
    X = rng.normal(size=shape) * 10.0 ** np.linspace(-decades, decades, shape[1])
    y = simulated(model, X / np.abs(X).mean(axis=0), rng.normal(size=shape[1]) / np.sqrt(shape[1]), rng)
    y[:2] = 0, 1
    fitted = clone(model).fit(X, y)
    assert np.all(np.isfinite(fitted.coef_))
    for _, part in fitted._posterior.weights.parts():  # An average over priors can be wider than one of them.
        prior, deviations = part.frame.scales[1:] * np.sqrt(part.inflation), part.coefficients()[1][1:]
        assert np.all((deviations >= 0) & (deviations <= prior * (1 + 1e-9)))
    shifted = clone(model).fit(X / X.std(axis=0) + 1e6, y)
    plain = clone(model).fit(X / X.std(axis=0), y)
    assert shifted.coef_ == pytest.approx(plain.coef_, abs=1e-6)
    assert shifted.intercept_ == pytest.approx(plain.intercept_ - 1e6 * plain.coef_.sum(), rel=1e-4, abs=1e-2)


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS, ids=by_name)
def test_prior_scales_undo_the_scales_of_features(model):
    rng = np.random.default_rng(0)
    X, units = rng.normal(size=(50, 3)), np.array([1e-5, 1.0, 1e4])
    y = simulated(model, X, [0.5, -0.5, 0.2], rng)
    plain = clone(model).fit(X, y)
    scaled = clone(model).set_params(prior_scale=2.5 / units).fit(X * units, y)
    assert scaled.coef_ * units == pytest.approx(plain.coef_, abs=1e-8)
    assert scaled.elbo_ == pytest.approx(plain.elbo_, abs=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize("model", [*MODELS, NegativeBinomialGLM(prior_scale=2.5)], ids=by_name)
def test_weights_are_repetitions(model):
    rng = np.random.default_rng(0)
    X, weights = rng.normal(size=(40, 3)), rng.integers(0, 3, size=40)
    y = simulated(model, X, [0.5, -0.5, 0.2], rng)
    model = clone(model).set_params(tol=1e-8)  # to more digits than are compared
    weighted = clone(model).fit(X, y, sample_weight=weights)
    repeated = clone(model).fit(np.repeat(X, weights, axis=0), np.repeat(y, weights))
    assert weighted.coef_ == pytest.approx(repeated.coef_, abs=1e-7)
    assert weighted.elbo_ == pytest.approx(repeated.elbo_, abs=1e-7)


@pytest.mark.slow
def test_rates_with_exposures_are_counts():
    rng = np.random.default_rng(0)
    X, exposure = rng.normal(size=(80, 2)), rng.integers(1, 9, size=80)
    rows = np.repeat(np.arange(80), exposure)
    counts = rng.poisson(np.exp(X[rows] @ [0.5, -0.5]))
    totals = np.bincount(rows, weights=counts)
    split = PoissonGLM(tol=1e-7).fit(X[rows], counts)
    rates = PoissonGLM(tol=1e-7).fit(X, totals / exposure, sample_weight=exposure)
    assert rates.coef_ == pytest.approx(split.coef_, abs=1e-6)
    assert rates.coef_sd_ == pytest.approx(split.coef_sd_, abs=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("model", [PoissonGLM(), NegativeBinomialGLM()], ids=by_name)
def test_extreme_counts_and_tiny_weights_converge(model):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(50, 2))
    y = rng.poisson(np.exp(X @ [3.0, -2.0]))
    y[0], X[0] = 10_000_000, [20.0, -20.0]
    fitted = clone(model).fit(X, y, sample_weight=rng.uniform(1e-6, 1, size=50))
    assert np.all(np.isfinite(fitted.coef_))


@pytest.mark.slow
def test_separable_classes_converge():
    X = np.linspace(-1, 1, 20)[:, None]
    model = BernoulliGLM(prior_scale=100).fit(X, X[:, 0] > 0)
    assert model.score(X, X[:, 0] > 0) == 1
    assert np.isfinite(model.elbo_)


@pytest.mark.slow
def test_rows_of_zeros_and_equal_rows_are_no_trouble_over_examples():
    X = np.zeros((4, 10))
    X[2:] = 1.0
    for model in MODELS:
        fitted = clone(model).set_params(fit_intercept=False).fit(X, [0, 1, 0, 1])
        assert np.all(np.isfinite(fitted.coef_sd_))


def test_results_do_not_depend_on_the_precision_switched_on():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(30, 2))
    y = simulated(BernoulliGLM(), X, [1.0, -1.0], rng)
    wide = BernoulliGLM().fit(X, y)
    with jax.enable_x64(False):
        narrow = BernoulliGLM().fit(X, y)
        probabilities = narrow.predict_proba(X)
    assert np.array_equal(narrow.coef_, wide.coef_)
    assert np.array_equal(probabilities, wide.predict_proba(X))
    assert probabilities.dtype == np.float64


def test_want_of_convergence_is_said():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(30, 2))
    with pytest.warns(ConvergenceWarning, match="BernoulliGLM took 1 steps without reaching tol=1e-05"):
        BernoulliGLM(prior_scale=2.5, max_iter=1).fit(X, simulated(BernoulliGLM(), X, [1.0, -1.0], rng))


def test_a_tolerance_below_rounding_is_warned_of():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(4, 30)) * 10.0 ** np.linspace(-4, 4, 30)
    reached = PoissonGLM(prior_scale=2.5).fit(X, [0, 1, 2, 0])
    with pytest.warns(ConvergenceWarning, match="Standardise the features or lower prior_scale"):
        beyond = PoissonGLM(prior_scale=2.5, tol=1e-12).fit(X, [0, 1, 2, 0])
    assert beyond.elbo_ == pytest.approx(reached.elbo_, abs=1e-6)


def test_summary_is_a_table():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(100, 2))
    model = GaussianGLM().fit(X, 1 + X @ [2.0, 0.0] + rng.normal(size=100))
    table = model.summary()
    assert isinstance(table, Summary)
    assert table.names == ["intercept", "x0", "x1"]
    assert table.interval == pytest.approx(model.interval())
    assert table.means == pytest.approx(np.append(model.intercept_, model.coef_))
    assert table.probability_positive[1] == pytest.approx(1)
    lines = repr(table).splitlines()
    assert lines[0].split() == ["mean", "sd", "2.5", "%", "97.5", "%", "P(>", "0)"]
    assert [line.split()[0] for line in lines[1:]] == ["intercept", "x0", "x1"]
    model.feature_names_in_ = np.array(["dose", "<b>"], dtype=object)
    assert "<td>dose</td>" in model.summary()._repr_html_()
    assert "<b>" not in model.summary()._repr_html_()


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS, ids=by_name)
def test_without_intercept(model):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(30, 2)) + 3
    fitted = clone(model).set_params(fit_intercept=False).fit(X, simulated(model, X, [0.3, -0.2], rng))
    assert fitted.intercept_ == 0
    assert fitted.interval().shape == (2, 2)
    assert fitted.summary().names == ["x0", "x1"]


# To learn the width of the prior takes most of the time of a fit; what depends on rows and their weights does it too.
WITH_LEARNED_PRIOR = {
    "check_estimators_dtypes",
    "check_fit2d_1feature",
    "check_fit2d_1sample",
    "check_methods_sample_order_invariance",
    "check_sample_weight_equivalence_on_dense_data",
}


def checks(name, model, is_slow):
    """Return all checks of a model as parameters of a test."""
    return [
        pytest.param(
            estimator,
            check,
            id=f"{by_name(model)}-{name}-{number}-{check.func.__name__}",
            marks=pytest.mark.slow if is_slow(check.func.__name__) else (),
        )
        for number, (estimator, check) in enumerate(estimator_checks_generator(model))
    ]


CHECKS = [
    *checks("given", GaussianGLM(prior_scale=1.0), lambda check: False),
    *checks("default", GaussianGLM(), lambda check: check not in WITH_LEARNED_PRIOR),
    *checks("default", BernoulliGLM(), lambda check: True),
    *checks("default", PoissonGLM(), lambda check: True),
    *checks("default", NegativeBinomialGLM(), lambda check: True),
]


@pytest.mark.parametrize(("estimator", "check"), CHECKS)
def test_scikit_learn_contract(estimator, check):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check(estimator)


def test_a_refused_fit_leaves_the_model_as_it_was():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((40, 3))
    y = np.where(X[:, 0] + 0.5 * rng.standard_normal(40) > 0, "b", "a")
    model = BernoulliGLM().fit(X, y)
    before = model.predict_proba(X)
    with pytest.raises(ValueError, match="class"):
        model.fit(X[:, :2], np.ones(40))
    np.testing.assert_array_equal(model.predict_proba(X), before)
    assert set(model.predict(X)) == {"a", "b"}


@pytest.mark.parametrize("first", [True, False])
def test_the_intercept_is_that_of_the_fit(first):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((40, 3))
    y = X[:, 0] + 1.0
    model = GaussianGLM(fit_intercept=first).fit(X, y)
    before = model.predict(X)
    model.set_params(fit_intercept=not first)
    np.testing.assert_array_equal(model.predict(X), before)
    with pytest.raises(ValueError, match=f"fit_intercept must stay what it was in the first fit, {first}"):
        model.partial_fit(X, y)


def test_words_are_no_counts():
    with pytest.raises(ValueError, match="y must hold numbers, found"):
        PoissonGLM().fit(np.ones((2, 1)), np.array(["a", "b"]))


def test_predictions_refuse_what_a_fit_would():
    X = np.random.default_rng(0).standard_normal((20, 2))
    model = BernoulliGLM().fit(X, np.arange(20) % 2)
    with pytest.raises(ValueError, match=r"X must hold numbers of at most 1e\+75, found"):
        model.predict_proba(X * 1e155)


@pytest.mark.parametrize("model", [BernoulliGLM(), PoissonGLM(), GaussianGLM()], ids=lambda model: type(model).__name__)
def test_columns_whose_squares_are_0_are_refused(model):
    """They were taken for constant, with a warning that named another reason, and predictions overflowed."""
    X = np.random.default_rng(0).standard_normal((20, 2)) * [1.0, 1e-200]
    with pytest.raises(ValueError, match=r"in each column one of at least 1e-75 or 0 alone, found .*e-200 in column 1"):
        model.fit(X, np.arange(20) % 2)
    model.fit(X * [1.0, 0.0], np.arange(20) % 2)


def test_targets_of_float32_raise_no_warning():
    X = np.random.default_rng(0).normal(size=(50, 2))
    counts = np.random.default_rng(1).poisson(2.0, size=50)
    np.testing.assert_allclose(PoissonGLM().fit(X, counts.astype(np.float32)).coef_, PoissonGLM().fit(X, counts).coef_)

"""The prior scale that generalised linear models learn: where the bound is highest, and what streams do."""

import jax
import numpy as np
import pytest
from scipy import optimize, stats
from sklearn.base import clone

from thalweg.models import BernoulliGLM, GaussianGLM, NegativeBinomialGLM, PoissonGLM

OTHERS = [
    pytest.param(model, marks=pytest.mark.slow, id=type(model).__name__)
    for model in (GaussianGLM(1.0), PoissonGLM(), NegativeBinomialGLM(0.5))
]
MODELS = [pytest.param(BernoulliGLM(), id="BernoulliGLM"), *OTHERS]
SPACES = pytest.mark.parametrize(
    "shape", [pytest.param((60, 4), id="features"), pytest.param((12, 30), id="examples", marks=pytest.mark.slow)]
)


def problem(model, n, d, strength=1.0, seed=0):
    """Features, and targets whose linear predictor has about the standard deviation ``strength``."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    z = strength * X @ rng.normal(size=d) / np.sqrt(d)
    if isinstance(model, BernoulliGLM):
        return X, (rng.uniform(size=n) < 1 / (1 + np.exp(-z))).astype(int)
    if isinstance(model, GaussianGLM):
        return X, z + rng.normal(size=n)
    return X, rng.poisson(np.exp(z) * (rng.gamma(2, 0.5, size=n) if isinstance(model, NegativeBinomialGLM) else 1))


def bound(model, X, y, log):
    return clone(model).set_params(prior_scale=np.exp(log)).fit(X, y).elbo_


@pytest.mark.slow
@SPACES
@pytest.mark.parametrize("model", MODELS)
def test_the_bound_is_highest_there(model, shape):
    X, y = problem(model, *shape, strength=2.0)
    model = clone(model).set_params(tol=1e-6)
    learned = clone(model).fit(X, y)
    best = np.log(learned.prior_scale_)
    assert learned.elbo_ == pytest.approx(bound(model, X, y, best), abs=1e-7)
    slope = (bound(model, X, y, best + 0.01) - bound(model, X, y, best - 0.01)) / 0.02
    assert abs(slope) < 1e-3
    assert all(bound(model, X, y, best + move) < learned.elbo_ - 1e-3 for move in (-0.3, 0.3))


@SPACES
@pytest.mark.parametrize("model", MODELS)
def test_the_slope_is_that_of_the_prior(model, shape):
    """∂ bound / ∂ log s = Σ(m² + V)/s² − d, of the coefficients in units of the noise for linear regression."""
    X, y = problem(model, *shape)
    for scale in (0.1, 0.7):
        fitted = clone(model).set_params(prior_scale=scale, tol=1e-6).fit(X, y)
        squares = np.sum(fitted.coef_**2 + fitted.coef_sd_**2) / getattr(fitted, "noise_variance_", 1)
        log, h = np.log(scale), 1e-3
        difference = (bound(fitted, X, y, log + h) - bound(fitted, X, y, log - h)) / (2 * h)
        assert squares / scale**2 - shape[1] == pytest.approx(difference, abs=1e-4)


@pytest.mark.parametrize("model", MODELS)
def test_signal_widens_the_prior_and_noise_narrows_it(model):
    scale = lambda strength: clone(model).fit(*problem(model, 250, 10, strength)).prior_scale_
    strong, weak, none = scale(3.0), scale(0.3), scale(0.0)
    assert 0.5 < strong < 2  # The coefficients have standard deviations of strength/√10.
    assert weak < strong / 4
    assert none < strong / 6


@pytest.mark.parametrize("model", MODELS)
def test_other_units_of_the_features_are_another_unit_of_the_scale(model):
    X, y = problem(model, 40, 3)
    plain, other = clone(model).fit(X, y), clone(model).fit(100 * X + 7, y)
    assert 100 * other.prior_scale_ == pytest.approx(plain.prior_scale_, rel=1e-4)
    assert 100 * other.coef_ == pytest.approx(plain.coef_, abs=1e-4)


@pytest.mark.slow
def test_the_learned_scale_of_linear_regression_maximises_the_evidence():
    X, y = problem(GaussianGLM(), 30, 4)
    model = GaussianGLM(0.7, fit_intercept=False).fit(X, y)
    covariance = lambda log: 0.7 * (np.eye(30) + np.exp(2 * log) * X @ X.T)
    loss = lambda log: -stats.multivariate_normal(cov=covariance(log)).logpdf(y)
    best = optimize.minimize_scalar(loss, bounds=(-5, 5), options={"xatol": 1e-9})
    assert np.log(model.prior_scale_) == pytest.approx(best.x, abs=1e-4)
    assert model.elbo_ == pytest.approx(-best.fun, abs=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize(("model", "parameter"), [(NegativeBinomialGLM, "dispersion"), (GaussianGLM, "noise_variance")])
def test_the_scale_is_learned_together_with_the_likelihood(model, parameter):
    X, y = problem(model(), 100, 3)
    learned = model(tol=1e-6).fit(X, y)
    width, scale = getattr(learned, f"{parameter}_"), learned.prior_scale_
    at = lambda width, scale: model(width, prior_scale=scale, tol=1e-6).fit(X, y).elbo_
    assert learned.elbo_ == pytest.approx(at(width, scale), abs=1e-7)
    for factor in (0.9, 1.1):
        assert at(factor * width, scale) < learned.elbo_ > at(width, factor * scale)


@pytest.mark.slow
@pytest.mark.parametrize("model", [BernoulliGLM(), PoissonGLM()], ids=lambda m: type(m).__name__)
def test_the_two_spaces_find_the_same_scale(model):
    X, y = problem(model, 12, 30)
    model = clone(model).set_params(tol=1e-6)
    examples = clone(model).fit(X, y)
    features = clone(model).fit(np.tile(X, (4, 1)), np.tile(y, 4), sample_weight=np.full(48, 0.25))
    assert examples.covariance_ is None
    assert features.covariance_ is not None
    assert examples.prior_scale_ == pytest.approx(features.prior_scale_, rel=1e-4)
    assert examples.elbo_ == pytest.approx(features.elbo_, abs=1e-6)


def test_learning_compiles_nothing_anew():
    BernoulliGLM().fit(*problem(BernoulliGLM(), 60, 4))
    compiled = []
    listener = lambda event, *_, **__: compiled.append(event) if "backend_compile" in event else None
    jax.monitoring.register_event_duration_secs_listener(listener)
    try:
        learned = BernoulliGLM().fit(*problem(BernoulliGLM(), 70, 5, strength=3.0, seed=1))
    finally:
        jax.monitoring.unregister_event_duration_listener(listener)
    assert learned.prior_scale_ > 0
    assert not compiled


def test_what_is_given_is_kept():
    X, y = problem(BernoulliGLM(), 40, 2)
    assert BernoulliGLM(prior_scale=1).fit(X, y).prior_scale_ == 1
    assert BernoulliGLM(prior_scale=[1, 2]).fit(X, y).prior_scale_.tolist() == [1, 2]


def test_features_that_do_not_vary_say_nothing_of_the_scale():
    model = BernoulliGLM().fit(np.full((10, 2), 0.1), [0, 1] * 5)
    assert model.prior_scale_ == 2.5
    assert model.coef_ == pytest.approx(0, abs=1e-9)


def test_a_stream_keeps_the_scale_it_began_with():
    X, y = problem(BernoulliGLM(), 80, 3)
    stream = BernoulliGLM().partial_fit(X[:40], y[:40])
    assert stream.prior_scale_ == 2.5
    given = BernoulliGLM(prior_scale=2.5).partial_fit(X[:40], y[:40])
    for model in (stream, given):
        model.partial_fit(X[40:], y[40:])
    assert np.array_equal(stream.coef_, given.coef_)
    fitted = BernoulliGLM().fit(X[:40], y[:40])
    learned = fitted.prior_scale_
    fitted.partial_fit(X[40:], y[40:])
    assert fitted.prior_scale_ == learned != 2.5


@pytest.mark.slow
def test_a_stream_of_linear_regression_learns_the_scale_from_all_batches():
    X, y = problem(GaussianGLM(), 80, 3)
    stream, whole = GaussianGLM(), GaussianGLM().fit(X, y)
    for batch in np.split(np.arange(80), [5, 40]):
        stream.partial_fit(X[batch], y[batch])
    for found in ("prior_scale_", "noise_variance_", "coef_", "elbo_"):
        assert getattr(stream, found) == pytest.approx(getattr(whole, found), rel=1e-6), found

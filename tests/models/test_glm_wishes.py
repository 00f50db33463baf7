"""What users of the generalised linear models looked for: offsets, sparse features, class weights, draws, intervals."""

import sys
import types

import numpy as np
import pytest
import scipy.sparse
from scipy import stats
from scipy.special import expit

from thalweg.models import BernoulliGLM, GaussianGLM, NegativeBinomialGLM, PoissonGLM

rng = np.random.default_rng(0)
X = rng.normal(size=(60, 2))
Z = 0.3 + X @ [0.8, -0.5]
LABELS, NUMBERS, COUNTS = (rng.uniform(size=60) < expit(Z)).astype(int), Z + rng.normal(size=60), rng.poisson(np.exp(Z))
MODELS = [
    (BernoulliGLM(), LABELS),
    (GaussianGLM(), NUMBERS),
    (PoissonGLM(), COUNTS),
    (NegativeBinomialGLM(0.5), COUNTS),
]
each = pytest.mark.parametrize(("model", "y"), MODELS, ids=lambda value: type(value).__name__)


def means(model, rows, **known):
    return model.predict_proba(rows, **known)[:, 1] if hasattr(model, "predict_proba") else model.predict(rows, **known)


@each
def test_an_intercept_does_not_see_a_constant_offset(model, y):
    plain = type(model)(**model.get_params()).fit(X, y)
    moved = type(model)(**model.get_params()).fit(X, y, offset=3.0)
    assert moved.coef_ == pytest.approx(plain.coef_, abs=1e-5)
    assert moved.intercept_ == pytest.approx(plain.intercept_ - 3, abs=1e-4)
    assert means(moved, X, offset=np.full(60, 3.0)) == pytest.approx(means(plain, X), rel=1e-4)


@each
def test_an_offset_takes_the_place_of_a_known_effect(model, y):
    known = type(model)(**model.get_params()).fit(X[:, :1], y, offset=-0.5 * X[:, 1])
    free = type(model)(**model.get_params()).fit(X, y)
    assert known.coef_[0] == pytest.approx(free.coef_[0], abs=free.coef_sd_[0])
    assert means(known, X[:, :1], offset=-0.5 * X[:, 1]) == pytest.approx(means(free, X), rel=0.6, abs=0.4)


def test_a_gaussian_offset_is_subtracted():
    offset = 5 * X[:, 1]
    assert GaussianGLM().fit(X, NUMBERS, offset=offset).coef_ == pytest.approx(
        GaussianGLM().fit(X, NUMBERS - offset).coef_, abs=1e-12
    )


def test_a_stream_takes_offsets():
    whole, stream = PoissonGLM().fit(X, COUNTS, offset=X[:, 0]), PoissonGLM()
    for batch in np.split(np.arange(60), 2):
        stream.partial_fit(X[batch], COUNTS[batch], offset=X[batch, 0])
    assert stream.coef_ == pytest.approx(whole.coef_, abs=whole.coef_sd_.max())


def test_counts_over_exposures_are_rates_with_weights():
    exposure = rng.integers(1, 9, size=60)
    y = rng.poisson(exposure * np.exp(Z))
    given = PoissonGLM(tol=1e-7).fit(X, y, exposure=exposure)
    rates = PoissonGLM(prior_scale=given.prior_scale_, tol=1e-7).fit(X, y / exposure, sample_weight=exposure)
    assert given.coef_ == pytest.approx(rates.coef_, abs=1e-2)  # Features are centred with other weights.
    assert given.predict(X, exposure=2.0) == pytest.approx(2 * given.predict(X))
    assert given.predict(X, offset=np.log(2.0)) == pytest.approx(given.predict(X, exposure=2.0))
    low, high = given.predict_interval(X, exposure=exposure).T
    assert np.mean((low <= y) & (y <= high)) >= 0.9


@pytest.mark.parametrize("kind", [scipy.sparse.csr_matrix, scipy.sparse.csc_array, scipy.sparse.coo_matrix])
def test_sparse_features_are_features(kind):
    thin = np.where(np.abs(X) > 0.5, X, 0.0)
    sparse, dense = BernoulliGLM().fit(kind(thin), LABELS), BernoulliGLM().fit(thin, LABELS)
    assert np.array_equal(sparse.coef_, dense.coef_)
    assert np.array_equal(sparse.predict_proba(kind(thin)), dense.predict_proba(thin))


def test_large_sparse_features_are_not_made_dense():
    huge = scipy.sparse.csr_matrix((200_000, 20_000))
    with pytest.raises(ValueError, match=r"X is sparse, and would take 29\.8 GiB .* partial_fit"):
        PoissonGLM().fit(huge, np.zeros(200_000))


def test_class_weights_are_sample_weights():
    weighted = BernoulliGLM(class_weight={1: 3.0}).fit(X, LABELS)
    by_hand = BernoulliGLM().fit(X, LABELS, sample_weight=np.where(LABELS == 1, 3.0, 1.0))
    assert np.array_equal(weighted.coef_, by_hand.coef_)
    rare = np.flatnonzero((LABELS == 0) | (np.arange(60) < 10))
    balanced = BernoulliGLM(class_weight="balanced").fit(X[rare], LABELS[rare])
    assert balanced.predict_proba(X[rare])[:, 1].mean() == pytest.approx(0.5, abs=0.1)
    with pytest.raises(ValueError, match="class_weight must be a dictionary or None in a stream, found 'balanced'"):
        BernoulliGLM(class_weight="balanced").partial_fit(X, LABELS)


def test_decisions_are_log_odds():
    model = BernoulliGLM().fit(X, LABELS)
    assert expit(model.decision_function(X)) == pytest.approx(model.predict_proba(X)[:, 1])
    assert np.array_equal(model.decision_function(X) > 0, model.predict(X) == 1)
    assert np.all(np.isfinite(model.decision_function(X * 1e6)))


@pytest.mark.parametrize(
    ("model", "y", "rows"),
    [
        (BernoulliGLM(), LABELS, 60),
        (BernoulliGLM("learn"), LABELS, 60),
        (GaussianGLM(), NUMBERS, 60),
        (GaussianGLM(), NUMBERS, 8),
    ],
    ids=["normal", "mixture", "student", "few"],
)
def test_draws_of_coefficients_have_the_moments_of_the_posterior(model, y, rows):
    model.fit(X[:rows] + 100, y[:rows])
    draws = model.sample(40_000, random_state=0)
    assert draws.shape == (40_000, 3)
    inside = (model.interval(0.8)[:, 0] < draws) & (draws < model.interval(0.8)[:, 1])
    assert inside.mean(axis=0) == pytest.approx(0.8, abs=0.012)
    assert np.median(draws[:, 1:], axis=0) == pytest.approx(model.coef_, abs=0.03)


def test_draws_over_examples_have_the_covariance_of_the_posterior():
    wide = rng.normal(size=(6, 20))
    model = BernoulliGLM(0.7).fit(wide, [0, 1, 0, 1, 1, 0])
    assert model.covariance_ is None
    draws = model.sample(40_000, random_state=0)
    assert draws.mean(axis=0)[1:] == pytest.approx(model.coef_, abs=0.02)
    assert draws.std(axis=0)[1:] == pytest.approx(model.coef_sd_, rel=0.03)


@each
def test_draws_of_targets_have_the_means_that_are_predicted(model, y):
    model = type(model)(**model.get_params()).fit(X, y)
    draws = model.sample(20_000, X[:3], offset=0.1, random_state=0)
    assert draws.shape == (20_000, 3)
    assert draws.mean(axis=0) == pytest.approx(means(model, X[:3], offset=0.1), rel=0.1)
    assert np.array_equal(model.sample(5, X, random_state=1), model.sample(5, X, random_state=1))


def test_draws_of_classes_are_classes():
    model = BernoulliGLM().fit(X, np.array(["no", "yes"])[LABELS])
    assert set(model.sample(50, X[:2], random_state=0).ravel()) == {"no", "yes"}


@each
def test_intervals_of_observations_hold_observations(model, y):
    """Noise and counts included: as many new targets as they say, and as many of the draws."""
    if isinstance(model, BernoulliGLM):
        assert not hasattr(model, "predict_interval")
        return
    model = type(model)(**model.get_params()).fit(X, y)
    low, high = model.predict_interval(X[:5], 0.8).T
    draws = model.sample(20_000, X[:5], random_state=0)
    inside = np.mean((low <= draws) & (draws <= high), axis=0)
    assert np.all(inside > 0.79)
    assert isinstance(model, PoissonGLM | NegativeBinomialGLM) or np.all(inside < 0.81)
    narrower = np.mean((low < draws) & (draws < high), axis=0)
    assert np.all(narrower < 0.81)


def test_intervals_of_observations_are_those_of_least_squares():
    model = GaussianGLM(prior_scale=1e4, intercept_scale=1e4).fit(X[:10], NUMBERS[:10])
    A = np.column_stack([np.ones(10), X[:10]])
    (found, (squares,), *_), new = np.linalg.lstsq(A, NUMBERS[:10]), np.append(1.0, X[20])
    error = np.sqrt(squares / 7 * (1 + new @ np.linalg.inv(A.T @ A) @ new))
    reach = stats.t(7).ppf(0.95) * error
    assert model.predict_interval(X[20:21], 0.9)[0] == pytest.approx(
        [new @ found - reach, new @ found + reach], rel=1e-4
    )


@pytest.mark.filterwarnings("ignore:PoissonGLM. the counts vary")  # no feature may explain them
def test_intervals_of_counts_are_quantiles():
    model = PoissonGLM(prior_scale=1e-6, intercept_scale=1e-6).fit(X, COUNTS)
    exact = stats.poisson(model.predict(X[:1])[0])
    assert model.predict_interval(X[:1], 0.9)[0].tolist() == [exact.ppf(0.05), exact.ppf(0.95)]
    wide = NegativeBinomialGLM(2.0, prior_scale=1e-6, intercept_scale=1e-6).fit(X, COUNTS)
    exact = stats.nbinom(0.5, 1 / (1 + 2 * wide.predict(X[:1])[0]))
    assert wide.predict_interval(X[:1], 0.9)[0].tolist() == [exact.ppf(0.05), exact.ppf(0.95)]


def test_a_summary_becomes_a_data_frame(monkeypatch):
    summary = GaussianGLM().fit(X, NUMBERS).summary()
    frame = types.SimpleNamespace(DataFrame=lambda columns, index: (columns, index))
    monkeypatch.setitem(sys.modules, "pandas", frame)
    columns, index = summary.to_frame()
    assert list(columns) == ["mean", "sd", "2.5 %", "97.5 %", "P(> 0)"]
    assert index == ["intercept", "x0", "x1"]
    assert columns["sd"] == pytest.approx(summary.deviations)
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match="to_frame needs pandas"):
        summary.to_frame()


def test_the_intercept_follows_the_units_of_the_target():
    """An effect of 1 of a feature at 1e8, beside an intercept of 1e5, is found to the precision of the noise."""
    feature = rng.normal(size=200)
    y = 1e5 + feature + 0.1 * rng.normal(size=200)
    model = GaussianGLM().fit(1e8 + feature[:, None], y)
    assert model.coef_[0] == pytest.approx(1.0, abs=4 * 0.1 / np.sqrt(200))
    assert model.coef_sd_[0] == pytest.approx(0.1 / np.sqrt(200), rel=0.2)
    assert model.noise_variance_ == pytest.approx(0.01, rel=0.3)
    plain = GaussianGLM().fit(feature[:, None], y - 1e5)
    assert model.coef_ == pytest.approx(plain.coef_, abs=1e-6)


@pytest.mark.parametrize(("model", "level"), [(PoissonGLM(), 1e6), (BernoulliGLM(), None)])
def test_the_intercept_follows_the_level_of_the_target(model, level):
    """Rare labels and large counts leave the intercept where the data are, however narrow its prior."""
    y = np.full(60, level) if level else (np.arange(60) < 2).astype(int)
    model.set_params(intercept_scale=0.1).fit(X, y)
    found = model.predict(X).mean() if level else model.predict_proba(X)[:, 1].mean()
    assert found == pytest.approx(y.mean(), rel=0.01, abs=0.03)
    model.set_params(intercept_scale=10.0)


@pytest.mark.parametrize("kind", [BernoulliGLM, PoissonGLM])
def test_a_stream_counts_features_in_the_units_of_its_first_batch(kind):
    """The prior scale follows the units of the features."""
    y = LABELS if kind is BernoulliGLM else COUNTS
    plain, scaled = kind(), kind()
    for batch in np.split(np.arange(60), 2):
        plain.partial_fit(X[batch], y[batch])
        scaled.partial_fit(1e-4 * X[batch], y[batch])
    assert 1e-4 * scaled.coef_ == pytest.approx(plain.coef_, rel=1e-3, abs=1e-4)

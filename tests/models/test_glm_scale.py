"""The prior scale that generalised linear models learn and average over, and what streams do."""

import jax
import numpy as np
import pytest
from scipy import optimize, stats
from sklearn.base import clone

from thalweg.models import BernoulliGLM, CategoricalGLM, GaussianGLM, NegativeBinomialGLM, PoissonGLM

OTHERS = [
    pytest.param(model, marks=pytest.mark.slow, id=type(model).__name__)
    for model in (GaussianGLM(1.0, "learn"), PoissonGLM("learn"), NegativeBinomialGLM(0.5, "learn"))
]
MODELS = [pytest.param(BernoulliGLM("learn"), id="BernoulliGLM"), *OTHERS]
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


def log_prior(X, scales):
    """The scale's own prior: the spread of the linear predictor is half-Cauchy, here the density of its logarithm."""
    square = np.sum((X.std(axis=0) * scales) ** 2)
    return np.log(square) / 2 - np.log1p(square)


@pytest.mark.slow
@SPACES
@pytest.mark.parametrize("model", MODELS)
def test_the_bound_is_highest_there(model, shape):
    """Together with the scale's own prior."""
    X, y = problem(model, *shape, strength=2.0)
    model = clone(model).set_params(tol=1e-6)
    learned = clone(model).fit(X, y)
    best = np.log(learned.prior_scale_)
    assert learned.elbo_ == pytest.approx(bound(model, X, y, best), abs=1e-7)
    density = lambda move: bound(model, X, y, best + move) + log_prior(X, np.exp(best + move))
    assert abs(density(0.01) - density(-0.01)) / 0.02 < 1e-3
    assert all(density(move) < density(0.0) - 1e-3 for move in (-0.3, 0.3))


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
    scale = lambda strength: clone(model).fit(*problem(model, 250, 10, strength)).prior_scale_.mean()
    strong, weak, none = scale(3.0), scale(0.3), scale(0.0)
    assert 0.5 < strong < 2  # The coefficients have standard deviations of strength/√10.
    assert weak < strong / 4
    assert none < strong / 6
    assert none > 1e-2  # No effects are likely, and none is not certain.


@pytest.mark.parametrize("model", MODELS)
def test_other_units_of_the_features_are_another_unit_of_the_scale(model):
    X, y = problem(model, 40, 3)
    plain, other = clone(model).fit(X, y), clone(model).fit(100 * X + 7, y)
    assert 100 * other.prior_scale_ == pytest.approx(plain.prior_scale_, rel=1e-4)
    assert 100 * other.coef_ == pytest.approx(plain.coef_, abs=1e-4)


@pytest.mark.slow
def test_the_learned_scale_of_linear_regression_maximises_the_evidence():
    X, y = problem(GaussianGLM(), 30, 4)
    model = GaussianGLM(0.7, "learn", fit_intercept=False).fit(X, y)
    units = X / (sizes := np.sqrt(np.mean(X**2, axis=0)))
    covariance = lambda log: 0.7 * (np.eye(30) + np.exp(2 * log) * units @ units.T)
    evidence = lambda log: stats.multivariate_normal(cov=covariance(log)).logpdf(y)
    loss = lambda log: -evidence(log) - log - np.log(2) + np.log1p(4 * np.exp(2 * log))
    best = optimize.minimize_scalar(loss, bounds=(-5, 5), options={"xatol": 1e-9})
    assert np.log(model.prior_scale_ * sizes) == pytest.approx(best.x, abs=1e-4)
    assert model.elbo_ == pytest.approx(evidence(best.x), abs=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(("model", "parameter"), [(NegativeBinomialGLM, "dispersion"), (GaussianGLM, "noise_variance")])
def test_the_scale_is_learned_together_with_the_likelihood(model, parameter):
    X, y = problem(model(), 100, 3)
    learned = model(prior_scale="learn", tol=1e-6).fit(X, y)
    width, scale = getattr(learned, f"{parameter}_"), learned.prior_scale_
    at = lambda width, scale: model(width, prior_scale=scale, tol=1e-6).fit(X, y).elbo_
    own = lambda width: -np.sqrt(width) if model is NegativeBinomialGLM else 0.0
    density = lambda width, scale: at(width, scale) + log_prior(X, scale) + own(width)
    assert learned.elbo_ == pytest.approx(at(width, scale), abs=1e-7)
    for factor in (0.8, 1.25):
        assert density(factor * width, scale) < density(width, scale) > density(width, factor * scale)


@pytest.mark.slow
@pytest.mark.parametrize("model", [BernoulliGLM("learn"), PoissonGLM("learn")], ids=lambda m: type(m).__name__)
def test_the_two_spaces_find_the_same_scale(model):
    X, y = problem(model, 12, 30)
    model = clone(model).set_params(tol=1e-6)
    examples = clone(model).fit(X, y)
    features = clone(model).fit(np.tile(X, (4, 1)), np.tile(y, 4), sample_weight=np.full(48, 0.25))
    assert examples.covariance_ is None
    assert features.covariance_ is not None
    assert examples.prior_scale_ == pytest.approx(features.prior_scale_, rel=1e-4)
    assert examples.elbo_ == pytest.approx(features.elbo_, abs=1e-6)


def test_a_fit_compiles_nothing():
    compiled = []
    listener = lambda event, *_, **__: compiled.append(event) if "backend_compile" in event else None
    jax.monitoring.register_event_duration_secs_listener(listener)
    try:
        learned = BernoulliGLM("learn").fit(*problem(BernoulliGLM(), 70, 5, strength=3.0, seed=1))
    finally:
        jax.monitoring.unregister_event_duration_listener(listener)
    assert np.all(learned.prior_scale_ > 0)
    assert not compiled


def test_what_is_given_is_kept():
    X, y = problem(BernoulliGLM(), 40, 2)
    assert BernoulliGLM(prior_scale=1).fit(X, y).prior_scale_ == 1
    assert BernoulliGLM(prior_scale=[1, 2]).fit(X, y).prior_scale_.tolist() == [1, 2]


def test_features_that_do_not_vary_say_nothing_of_the_scale():
    model = BernoulliGLM("learn").fit(np.full((10, 2), 0.1), [0, 1] * 5)
    assert model.prior_scale_ == pytest.approx(12.5)
    assert model.coef_ == pytest.approx(0, abs=1e-9)


def test_a_stream_has_the_scale_of_the_rows_it_remembers():
    X, y = problem(BernoulliGLM(), 80, 3)
    stream = BernoulliGLM().partial_fit(X[:40], y[:40]).partial_fit(X[40:], y[40:])
    whole = BernoulliGLM().fit(X, y)
    assert stream.prior_scale_ == pytest.approx(whole.prior_scale_)
    assert stream.coef_ == pytest.approx(whole.coef_, abs=1e-6)
    fitted = BernoulliGLM("learn").fit(X[:40], y[:40])
    learned = fitted.prior_scale_
    fitted.partial_fit(X[40:], y[40:])
    assert fitted.prior_scale_ is learned


@pytest.mark.slow
def test_a_stream_of_linear_regression_learns_the_scale_from_all_batches():
    X, y = problem(GaussianGLM(), 80, 3)
    stream, whole = GaussianGLM(prior_scale="learn"), GaussianGLM(prior_scale="learn").fit(X, y)
    for batch in np.split(np.arange(80), [5, 40]):
        stream.partial_fit(X[batch], y[batch])
    for found in ("prior_scale_", "noise_variance_", "coef_", "elbo_"):
        assert getattr(stream, found) == pytest.approx(getattr(whole, found), rel=1e-6), found


def newton(gradient_and_curvature, A):
    """The maximum-likelihood estimate and its standard errors, by Newton's method on standardised columns."""
    x = np.zeros(A.shape[1])
    for _ in range(50):
        pull, curvature = gradient_and_curvature(A @ x)
        hessian = (A.T * curvature) @ A
        x = x + np.linalg.solve(hessian, A.T @ pull)
    return x, np.sqrt(np.diag(np.linalg.inv(hessian)))


@pytest.mark.parametrize("kind", [BernoulliGLM, GaussianGLM, PoissonGLM])
def test_a_large_effect_beside_an_income_is_found(kind):
    """The prior follows the units: a 0/1 column of effect 2 beside incomes of 10⁴ to 10⁵."""
    rng = np.random.default_rng(0)
    group, income = rng.integers(0, 2, size=1000), np.exp(rng.normal(10.3, 0.6, size=1000))
    z = 2.0 * group - 1
    y, parts = {
        BernoulliGLM: lambda: (
            y := (rng.uniform(size=1000) < 1 / (1 + np.exp(-z))).astype(int),
            lambda z: (y - 1 / (1 + np.exp(-z)), 1 / (2 + np.exp(z) + np.exp(-z))),
        ),
        GaussianGLM: lambda: (y := z + rng.normal(size=1000), lambda z: (y - z, np.ones(1000))),
        PoissonGLM: lambda: (y := rng.poisson(np.exp(z)), lambda z: (y - np.exp(z), np.exp(z))),
    }[kind]()
    means, errors = newton(parts, np.column_stack([np.ones(1000), (income - income.mean()) / income.std(), group]))
    model = kind().fit(np.column_stack([income, group]), y)
    assert model.coef_[1] == pytest.approx(means[2], rel=0.03)
    assert model.coef_sd_[1] == pytest.approx(errors[2], rel=0.1)
    assert model.coef_[0] * income.std() == pytest.approx(means[1], abs=0.5 * errors[1])
    assert model.coef_sd_[0] * income.std() == pytest.approx(errors[1], rel=0.2)
    assert model.prior_scale_.shape == (2,)


def covered(model, simulate, n, effects, runs):
    """How often default intervals cover the effects."""
    rng, hits = np.random.default_rng(0), []
    for _ in range(runs):
        X = rng.normal(size=(n, len(effects)))
        low, high = clone(model).fit(X, simulate(X @ effects, rng)).interval()[1:].T
        hits.append((low < effects) & (effects < high))
    return np.mean(hits)


@pytest.mark.slow
def test_intervals_of_small_effects_cover():
    labels = lambda z, rng: (rng.uniform(size=len(z)) < 1 / (1 + np.exp(-z))).astype(int)
    normal = lambda z, rng: z + rng.normal(size=len(z))
    for scale in ("auto", "learn"):
        assert covered(BernoulliGLM(scale), labels, 100, [0.1, 0.2], runs=60) >= 0.92
        assert covered(GaussianGLM(None, scale), normal, 100, [0.1, 0.2], runs=60) >= 0.92


@pytest.mark.slow
def test_intervals_of_linear_regression_with_few_examples_cover():
    normal = lambda z, rng: z + rng.normal(size=len(z))
    assert covered(GaussianGLM(), normal, 12, [0.5, -0.5, 1.0, 0.0, 0.2], runs=100) >= 0.91


def test_few_examples_of_linear_regression_have_students_intervals():
    """With a wide prior they are those of least squares: n − d − 1 degrees of freedom."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(12, 5))
    y = X @ [0.5, -0.5, 1.0, 0.0, 0.2] + rng.normal(size=12)
    model = GaussianGLM(prior_scale=1e3).fit(X, y)
    A = np.column_stack([np.ones(12), X])
    means, (squares,), *_ = np.linalg.lstsq(A, y)
    errors = np.sqrt(np.diag(np.linalg.inv(A.T @ A)) * squares / 6)
    reach = stats.t(6).ppf(0.95) * errors
    assert model.interval(0.9) == pytest.approx(np.column_stack([means - reach, means + reach]), rel=1e-3)
    assert model.summary().probability_positive == pytest.approx(stats.t(6).cdf(means / errors), abs=1e-3)
    known = GaussianGLM(1.0, prior_scale=1e3).fit(X, y)
    assert known.interval(0.9)[0, 1] - known.intercept_ == pytest.approx(stats.norm.ppf(0.95) * known.intercept_sd_)


def test_intervals_are_quantiles_of_the_mixture():
    X, y = problem(BernoulliGLM(), 40, 3, strength=0.3)
    model = BernoulliGLM("learn").fit(X, y)
    parts = model._posterior.weights.parts()
    assert len(parts) > 1
    below = lambda x: sum(share * stats.norm(*part.coefficients()).cdf(x) for share, part in parts)
    low, high = model.interval(0.9).T
    assert below(low) == pytest.approx(0.05, abs=1e-9)
    assert below(high) == pytest.approx(0.95, abs=1e-9)
    assert np.sqrt(np.diag(model.covariance_)) == pytest.approx(np.append(model.intercept_sd_, model.coef_sd_))
    assert np.array_equal(model.predict(X), (model.predict_proba(X)[:, 1] > 0.5).astype(int))


@pytest.mark.slow
@pytest.mark.parametrize("kind", [PoissonGLM, NegativeBinomialGLM])
def test_counts_without_an_event_leave_the_rates_possible_that_they_do(kind):
    """Jeffreys' prior decides, not the wide one of the log rate."""
    n, rate = 60, 0.02
    runs = covered = 0
    for run in range(40 if kind is PoissonGLM else 12):
        rng = np.random.default_rng(run)
        X, y = rng.normal(size=(n, 1)), rng.poisson(rate, size=n)
        if y.any():
            continue
        model = kind().fit(X, y)
        low, high = model.interval()[0]
        runs, covered = runs + 1, covered + (low < np.log(rate) < high)
        # The exact upper end of Jeffreys' posterior is 2.5 events in n.
        assert 1.5 < n * np.exp(high) < 6
    assert runs > 2
    assert covered == runs


def test_a_large_effect_among_many_features_is_not_carried_away():
    """A wide prior alone estimates an effect of 2 among 20 features as 2.4 from 200 rows."""
    estimates = []
    for run in range(12):
        rng = np.random.default_rng(run)
        X = rng.normal(size=(200, 20))
        y = (rng.uniform(size=200) < 1 / (1 + np.exp(-2 * X[:, 0]))).astype(int)
        estimates.append(BernoulliGLM().fit(X, y).coef_[0])
    error = np.std(estimates) / np.sqrt(len(estimates))
    assert np.mean(estimates) - 2 < 0.15 + 2 * error


@pytest.mark.slow
@pytest.mark.parametrize("rows", [200, 400])
def test_a_large_effect_among_many_features_is_covered(rows):
    covered = []
    for run in range(200):
        rng = np.random.default_rng(run)
        X = rng.normal(size=(rows, 20))
        y = (rng.uniform(size=rows) < 1 / (1 + np.exp(-2 * X[:, 0]))).astype(int)
        low, high = BernoulliGLM().fit(X, y).interval()[1]
        covered.append(low < 2 < high)
    # Nominal 95 %; 80 % before Jeffreys' prior was there.
    assert np.mean(covered) > 0.88


def rare(run, n=1000):
    """Features, and labels about nine of which are 1."""
    rng = np.random.default_rng(run)
    X = rng.normal(size=(n, 3))
    return X, (rng.uniform(size=n) < 1 / (1 + np.exp(5 - X @ RARE))).astype(int)


RARE = np.array([0.8, 0.0, -0.4])


def test_what_examples_tell_grows_with_the_rarer_labels_that_were_seen():
    """Pseudo-labels make a rare kind more frequent; standard deviations are those of the labels seen."""
    X, y = rare(0)
    model = BernoulliGLM().fit(X, y)
    chances = model.predict_proba(X)[:, 1]
    columns = np.column_stack([np.ones(len(X)), X])
    told = (columns.T * chances * (1 - chances)) @ columns
    told[1:, 1:] += np.diag(model.prior_scale_**-2.0)
    assert model.coef_sd_ == pytest.approx(np.sqrt(np.diagonal(np.linalg.inv(told)))[1:], rel=0.04)
    assert chances.sum() == pytest.approx(y.sum() + 0.5, abs=0.02)


@pytest.mark.slow
def test_effects_on_rare_labels_are_covered():
    covered = []
    for run in range(200):
        low, high = BernoulliGLM().fit(*rare(run)).interval()[1:].T
        covered.append((low < RARE) & (high > RARE))
    assert np.mean(covered) > 0.93


@pytest.mark.slow
@pytest.mark.parametrize("kind", [NegativeBinomialGLM, CategoricalGLM])
def test_the_effect_of_a_rare_feature_is_covered(kind):
    """Nine of 300 rows have it; counts vary more than a Poisson law's, or there are three classes."""
    effects, covered = np.array([0.5, -0.5, 1.0]), []
    for run in range(200):
        rng = np.random.default_rng([run, 7])
        X = np.column_stack([rng.normal(size=(300, 2)), np.arange(300) < 9])
        if kind is NegativeBinomialGLM:
            truth = effects[2]
            y = rng.poisson(np.exp(0.5 + X @ effects) * rng.gamma(2, 0.5, size=300))
        else:
            truth = effects[2] * np.array([0.5, -0.5, 0.0])
            y = np.argmax(X @ np.outer(effects, [0.5, -0.5, 0.0]) + rng.gumbel(size=(300, 3)), axis=1)
        low, high = kind().fit(X, y).interval()[..., -1, :].T
        covered.append((low < truth) & (truth < high))
    assert 0.92 < np.mean(covered) < 0.98


def test_a_column_lost_in_its_offset_is_told():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(50, 2)), rng.normal(size=50)
    with pytest.warns(UserWarning, match="in x1, which is rounding"):
        GaussianGLM().fit(X + np.array([0, 1e13]), y)


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(12, 30), (30, 100)])
def test_more_features_than_rows_leave_predictions_of_a_sensible_width(shape):
    n, d = shape
    covered, widths = [], []
    for seed in range(4):
        rng = np.random.default_rng(seed)
        X = rng.normal(size=(n + 200, d))
        y = X[:, :3].sum(axis=1) + rng.normal(size=n + 200)
        low, high = GaussianGLM().fit(X[:n], y[:n]).predict_interval(X[n:]).T
        covered.append(np.mean((low < y[n:]) & (y[n:] < high)))
        widths.append(np.median(high - low))
    # The targets themselves have a standard deviation of 2.
    assert np.max(widths) < 2 * 3.92 * 2
    assert np.mean(covered) > 0.85


def test_the_intercept_of_few_events_is_covered():
    covered = []
    for seed in range(30):
        rng = np.random.default_rng(seed)
        X, counts = rng.normal(size=(100, 3)), rng.poisson(0.08, size=100)
        model = PoissonGLM().fit(X, counts)
        low, high = model.interval()[0]
        covered.append(low < np.log(0.08) < high)
        assert np.sum(model.predict(X)) == pytest.approx(np.sum(counts) + 0.5)
    # Without Jeffreys' prior 83 % of 300 such intervals do.
    assert np.mean(covered) > 0.9


def test_steps_begin_where_a_step_leads_on():
    """A whole step from the prior mean ends at a bound of −1e80 here, whose curvature no factor holds."""
    rng = np.random.default_rng(13)
    X = np.column_stack([np.exp(rng.normal(0, 0.6, size=1000)), rng.normal(size=1000)])
    y = rng.poisson(np.exp(0.5 + (X - X.mean(axis=0)) @ [1.0, 1.0]))
    np.testing.assert_allclose(PoissonGLM().fit(X, y).coef_, 1, rtol=0.05)

"""Generalised linear models: closed forms, brute force, two spaces, streams, coverage, and what is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize, stats
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from thalweg.models import BernoulliGLM, GaussianGLM, NegativeBinomialGLM, PoissonGLM

MODELS = [
    BernoulliGLM,
    *(pytest.param(m, marks=pytest.mark.slow) for m in (GaussianGLM, PoissonGLM, NegativeBinomialGLM)),
]


def problem(model, n=40, d=2, seed=0):
    """Features, and targets that the model could have made."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d)) + 0.5
    z = 0.3 + X @ rng.normal(size=d) / np.sqrt(d)
    draw = {
        BernoulliGLM: lambda: (rng.uniform(size=n) < 1 / (1 + np.exp(-z))).astype(int),
        GaussianGLM: lambda: z + 0.5 * rng.normal(size=n),
        PoissonGLM: lambda: rng.poisson(np.exp(z)),
        NegativeBinomialGLM: lambda: rng.poisson(np.exp(z) * rng.gamma(2, 0.5, size=n)),
    }
    return X, draw[model]()


def prior_covariance(X, scales, intercept_scale):
    """That of intercept and coefficients: they are independent where the features are centred."""
    back = np.eye(X.shape[1] + 1)
    back[0, 1:] = -X.mean(axis=0)
    return back @ np.diag(np.append(intercept_scale, scales) ** 2) @ back.T


@pytest.mark.parametrize("shape", [(30, 4), (5, 12)], ids=["features", "examples"])
def test_gaussian_is_bayesian_linear_regression(shape):
    X, y = problem(GaussianGLM, *shape)
    variance, scales = 0.3, np.linspace(0.5, 2, shape[1])
    model = GaussianGLM(variance, prior_scale=scales, intercept_scale=20).fit(X, y)
    A = np.column_stack([np.ones(len(X)), X])
    prior = variance * prior_covariance(X, scales, 20)
    covariance = np.linalg.inv(np.linalg.inv(prior) + A.T @ A / variance)
    # The intercept's prior is around the mean target.
    mean = np.eye(1, len(A.T))[0] * y.mean() + covariance @ A.T @ (y - y.mean()) / variance
    assert np.append(model.intercept_, model.coef_) == pytest.approx(mean, abs=1e-8)
    deviations = np.sqrt(np.diag(covariance))
    assert np.append(model.intercept_sd_, model.coef_sd_) == pytest.approx(deviations, abs=1e-8)
    if model.covariance_ is not None:
        assert model.covariance_ == pytest.approx(covariance, abs=1e-8)
    evidence = stats.multivariate_normal(cov=A @ prior @ A.T + variance * np.eye(len(y))).logpdf(y - y.mean())
    assert model.elbo_ == pytest.approx(evidence, abs=1e-8)
    assert model.predict(X) == pytest.approx(A @ mean, abs=1e-8)
    assert model.n_iter_ == 1


@pytest.mark.parametrize("shape", [(30, 4), (5, 12)], ids=["features", "examples"])
def test_learned_noise_maximises_the_evidence(shape):
    X, y = problem(GaussianGLM, *shape)
    model = GaussianGLM(prior_scale=2.5, intercept_scale=20).fit(X, y)
    A = np.column_stack([np.ones(len(X)), X])
    unit = A @ prior_covariance(X, np.full(shape[1], 2.5), 20) @ A.T + np.eye(len(y))
    loss = lambda log: -stats.multivariate_normal(cov=np.exp(log) * unit).logpdf(y - y.mean())
    best = optimize.minimize_scalar(loss, bounds=(-10, 10), options={"xatol": 1e-9})
    assert model.noise_variance_ == pytest.approx(np.exp(best.x), rel=1e-6)
    assert model.elbo_ == pytest.approx(-best.fun, abs=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
def test_the_two_spaces_agree(model):
    X, y = problem(model, n=8, d=20)
    examples = model(prior_scale=0.5, tol=1e-7).fit(X, y)
    # Five copies that count a fifth each are the same data, and more rows than features.
    features = clone(examples).fit(np.tile(X, (5, 1)), np.tile(y, 5), sample_weight=np.full(40, 0.2))
    assert examples.covariance_ is None
    assert features.covariance_.shape == (21, 21)
    new = np.random.default_rng(1).normal(size=(6, 20))
    for found in ("coef_", "coef_sd_", "intercept_", "intercept_sd_", "elbo_"):
        assert getattr(examples, found) == pytest.approx(getattr(features, found), abs=1e-6), found
    assert examples.predict(new) == pytest.approx(features.predict(new), rel=1e-6)


def expected_log(model, y, m, v):
    """E log p(y|z) by plain Gauss–Hermite quadrature."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(100)
    z = m[:, None] + jnp.sqrt(v)[:, None] * nodes[None]
    if isinstance(model, BernoulliGLM):
        values = y[:, None] * z - jnp.logaddexp(0, z)
    elif isinstance(model, PoissonGLM):
        values = y[:, None] * z - jnp.exp(z) - jax.scipy.special.gammaln(y + 1.0)[:, None]
    else:
        r = 1 / model.dispersion
        constant = jax.scipy.special.gammaln(y + r) - jax.scipy.special.gammaln(r) - jax.scipy.special.gammaln(y + 1.0)
        values = y[:, None] * z - y[:, None] * jnp.log(r) - (y[:, None] + r) * jnp.log1p(jnp.exp(z) / r)
        values += constant[:, None]
    return values @ (weights / weights.sum())


@pytest.mark.parametrize(
    "shape", [pytest.param((40, 2), id="features"), pytest.param((3, 4), id="examples", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize(
    "model", [BernoulliGLM(), PoissonGLM(), NegativeBinomialGLM(0.5)], ids=lambda m: type(m).__name__
)
def test_the_bound_is_highest_there_by_brute_force(model, shape):
    X, y = problem(type(model), *shape, seed=3)
    y[:2] = 0, 1
    weights = np.random.default_rng(4).uniform(0.5, 2, size=len(y))
    model.set_params(tol=1e-7, prior_scale=1.5, intercept_scale=4).fit(X, y, sample_weight=weights)
    p = shape[1] + 1
    centred = X - np.average(X, axis=0, weights=weights)
    A = jnp.asarray(np.column_stack([np.ones(len(X)), centred]) * np.append(4, np.full(p - 1, 1.5)))
    ones = weights @ y
    odds = (ones + 0.5) / (weights.sum() - (ones - 0.5 if isinstance(model, BernoulliGLM) else 0.0))
    y = jnp.asarray(y, float)
    below = np.tril_indices(p)

    @jax.jit
    @jax.value_and_grad
    def loss(x):
        mean, root = x[:p], jnp.zeros((p, p)).at[below].set(x[p:])
        v = jnp.sum((A @ root) ** 2, axis=1)
        kl = (jnp.sum(root**2) + mean @ mean - p) / 2 - jnp.sum(jnp.log(jnp.abs(jnp.diag(root))))
        return kl - jnp.asarray(weights) @ expected_log(model, y, np.log(odds) + A @ mean, v)

    start = np.append(np.zeros(p), 0.1 * np.eye(p)[below])
    best = optimize.minimize(loss, start, jac=True, method="BFGS", options={"gtol": 1e-8, "maxiter": 5000})
    assert model.elbo_ == pytest.approx(-best.fun, abs=1e-5)
    assert model.coef_ == pytest.approx(1.5 * best.x[1:p], abs=1e-5)
    root = np.zeros((p, p))
    root[below] = best.x[p:]
    assert model.coef_sd_ == pytest.approx(1.5 * np.sqrt(np.sum(root**2, axis=1))[1:], abs=1e-5)


@pytest.mark.slow
def test_learned_dispersion_maximises_the_bound():
    X, y = problem(NegativeBinomialGLM, n=200)
    learned = NegativeBinomialGLM(prior_scale=1, tol=1e-7).fit(X, y)
    bound = lambda dispersion: NegativeBinomialGLM(dispersion, prior_scale=1, tol=1e-7).fit(X, y).elbo_
    assert learned.elbo_ == pytest.approx(bound(learned.dispersion_), abs=1e-9)
    # Its square root has an exponential prior.
    density = lambda factor: bound(factor * learned.dispersion_) - np.sqrt(factor * learned.dispersion_)
    slope = (density(1.01) - density(1 / 1.01)) / (2 * np.log(1.01))
    assert abs(slope) < 0.01
    assert density(1.2) < density(1.0) > density(1 / 1.2)


@pytest.mark.parametrize("kind", [PoissonGLM, NegativeBinomialGLM])
@pytest.mark.parametrize("sign", [1, -1])
def test_a_group_without_an_event_may_have_the_rates_that_leave_it_so(kind, sign):
    """The upper end of its interval is at rates with which three zeros are no surprise."""
    rng = np.random.default_rng(0)
    rare, other = np.arange(60) < 3, rng.normal(size=60)
    counts = np.where(rare, 0, rng.poisson(1.0, size=60))
    model = kind().fit(np.column_stack([sign * rare, other]), counts)
    upper = np.max(sign * model.interval()[1])
    zeros = lambda rate: np.exp(-3 * rate)
    assert 0.01 < zeros(np.exp(model.intercept_ + upper)) < 0.1
    assert 0.2 < model.predict(np.column_stack([sign * rare, other])[:3]).sum() < 0.8
    assert model.predict(np.column_stack([sign * rare, other])[3:]).sum() == pytest.approx(counts.sum(), abs=0.3)


@pytest.mark.parametrize(("scale", "most"), [("auto", 0.07), pytest.param("learn", 0.05, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "events", [pytest.param(0, marks=pytest.mark.slow), pytest.param(1, marks=pytest.mark.slow), 2]
)
def test_few_events_are_predicted_as_few(events, scale, most):
    X, y = np.random.default_rng(0).normal(size=(200, 2)), np.arange(200) < events
    model = NegativeBinomialGLM(prior_scale=scale).fit(X, y.astype(int))
    # Without an event Jeffreys' prior decides: half an event for each of three weights, and slopes are hardly known.
    assert model.predict(X).mean() == pytest.approx((events or 1.5) / 200, abs=0.002)
    assert model.predict(X).max() < (most if events else 0.15)
    assert model.n_iter_ < 5000
    assert model.dispersion_ < 1


def test_the_dispersion_of_even_counts_is_found_at_its_lower_end():
    """The bound is flat there but for rounding."""
    rows = (20 * np.random.RandomState(0).uniform(size=(20, 5))).astype(int)
    model = NegativeBinomialGLM(prior_scale=0.08).fit(rows, rows[:, 0])
    assert model.dispersion_ == 1e-6
    assert model.n_iter_ < 200
    assert model.elbo_ == pytest.approx(PoissonGLM(prior_scale=0.08).fit(rows, rows[:, 0]).elbo_, abs=1e-3)


@pytest.mark.slow
def test_counts_without_overdispersion_are_poisson():
    X, _ = problem(PoissonGLM, n=50)
    y = np.full(50, 3)
    poisson, negative_binomial = PoissonGLM(2.5).fit(X, y), NegativeBinomialGLM(prior_scale=2.5).fit(X, y)
    assert negative_binomial.dispersion_ == 1e-6
    assert negative_binomial.coef_ == pytest.approx(poisson.coef_, abs=1e-4)


@pytest.mark.parametrize("noise", [0.3, None], ids=["given", "learned"])
def test_a_gaussian_stream_is_exact(noise):
    X, y = problem(GaussianGLM, n=90, d=3)
    weights = np.random.default_rng(0).uniform(0, 2, size=90)
    stream, whole = GaussianGLM(noise), GaussianGLM(noise).fit(X, y, weights)
    for batch in np.split(np.arange(90), [1, 3, 40]):
        stream.partial_fit(X[batch], y[batch], sample_weight=weights[batch])
    for found in ("coef_", "intercept_", "covariance_", "elbo_", "noise_variance_"):
        assert getattr(stream, found) == pytest.approx(getattr(whole, found), abs=1e-9), found


@pytest.mark.slow
@pytest.mark.parametrize(
    "model", [BernoulliGLM(2.5), PoissonGLM(2.5), NegativeBinomialGLM(0.5, 2.5)], ids=lambda m: type(m).__name__
)
def test_streams_come_close(model):
    X, y = problem(type(model), n=3000, d=3)
    batches = np.split(np.arange(3000), [250, 480, 700, 900, 1150, 1400, 1600, 1800, 2000, 2250, 2400, 2600, 2800])
    model.fit(X, y)
    mean, deviation, elbo = model.coef_, model.coef_sd_, model.elbo_
    stream = type(model)(**model.get_params())
    for batch in batches:
        stream.partial_fit(X[batch], y[batch])
    assert stream.coef_ == pytest.approx(mean, abs=0.3 * deviation.max())
    assert stream.coef_sd_ == pytest.approx(deviation, rel=0.05)
    assert stream.elbo_ == pytest.approx(elbo, abs=1.0)


@pytest.mark.slow
def test_a_stream_goes_on_from_a_fit_over_examples():
    X, y = problem(BernoulliGLM, n=60, d=10)
    stream = BernoulliGLM(2.5).fit(X[:6], y[:6])
    assert stream.covariance_ is None
    stream.partial_fit(X[6:], y[6:])
    assert stream.covariance_.shape == (11, 11)
    whole = BernoulliGLM(2.5).fit(X, y)
    assert np.max(np.abs(stream.coef_ - whole.coef_) / whole.coef_sd_) < 1


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ((np.zeros((3, 5)), [0, 1, 1]), "features"),
        ((np.zeros((3, 2)), [0, 1, 2]), "y must hold the classes"),
        ((np.full((3, 2), np.nan), [0, 1, 1]), "NaN"),
        ((np.full((3, 2), 1e150), [0, 1, 1]), "X must hold numbers of at most"),
        ((np.zeros((3, 2)), [0, 1, 1], [3, 4]), "classes must be those of the first batch"),
        ((np.zeros((3, 2)), [0, 1, 1], None, [1, -1, 1]), "sample_weight must be non-negative"),
        ((np.zeros((3, 2)), [0, 1, 1], None, [0, 0, 0]), "(?i)weights .*zero"),
    ],
)
def test_a_refused_batch_leaves_the_model_as_it_was(batch, message):
    X, y = problem(BernoulliGLM)
    model = BernoulliGLM().partial_fit(X, y)
    before = dict(vars(model))
    with pytest.raises(ValueError, match=message):
        model.partial_fit(*batch)
    assert vars(model).keys() == before.keys()
    assert all(vars(model)[name] is before[name] for name in before)


def test_the_first_batch_needs_both_classes_or_their_names():
    X, y = problem(BernoulliGLM)
    ones = X[y == 1]
    with pytest.raises(ValueError, match="pass classes="):
        BernoulliGLM().partial_fit(ones, np.ones(len(ones)))
    model = BernoulliGLM().partial_fit(ones, np.ones(len(ones)), classes=[1, 0])
    assert model.classes_.tolist() == [0, 1]


BAD = [
    (BernoulliGLM(), {"y": [0, 1, 2, 0]}, ValueError, "Only binary classification is supported"),
    (BernoulliGLM(), {"y": [1, 1, 1, 1]}, ValueError, "two classes, found one class"),
    (BernoulliGLM(), {"y": [0.5, 1.5, 2.5, 0.1]}, ValueError, "Unknown label type"),
    (BernoulliGLM(prior_scale=[1.0, 2.0, 3.0]), {}, ValueError, r"prior_scale .* shape \(2,\).* found shape \(3,\)"),
    (BernoulliGLM(prior_scale=[1.0, 0.0]), {}, ValueError, "prior_scale must hold finite numbers above 0, found"),
    (PoissonGLM(), {"y": [0, 1, -2, 0]}, ValueError, "y must hold counts, numbers of at least 0, found -2"),
    (PoissonGLM(), {"y": [0, 1, 1e200, 0]}, ValueError, "y must hold numbers of at most 1e"),
    (PoissonGLM(), {"sample_weight": np.zeros(4)}, ValueError, "(?i)weights .*zero"),
]


@pytest.mark.parametrize(("model", "changes", "error", "message"), BAD)
def test_bad_input_is_refused_in_words(model, changes, error, message):
    given = {"X": np.arange(8.0).reshape(4, 2), "y": [0, 1, 1, 0], **changes}
    with pytest.raises(error, match=message):
        model.fit(**given)


@pytest.mark.parametrize(
    "model",
    [
        BernoulliGLM(prior_scale=0),
        BernoulliGLM(prior_scale="wide"),
        BernoulliGLM(intercept_scale=-1),
        BernoulliGLM(fit_intercept="no"),
        BernoulliGLM(max_iter=0),
        BernoulliGLM(tol=0),
        BernoulliGLM(verbose="loud"),
        GaussianGLM(noise_variance=0),
        NegativeBinomialGLM(dispersion=-1),
    ],
    ids=repr,
)
def test_bad_parameters_are_refused(model):
    (name,) = [name for name, value in model.get_params().items() if value is not getattr(type(model)(), name)]
    with pytest.raises(ValueError, match=f"The '{name}' parameter of {type(model).__name__} must be"):
        model.fit(np.arange(8.0).reshape(4, 2), [0, 1, 1, 0])


def test_nothing_is_said_before_a_fit():
    for method in ("interval", "summary"):
        with pytest.raises(NotFittedError):
            getattr(BernoulliGLM(), method)()
    X, y = problem(BernoulliGLM)
    with pytest.raises(ValueError, match="level must be a finite number above 0 below 1, found 95"):
        BernoulliGLM().fit(X, y).interval(95)

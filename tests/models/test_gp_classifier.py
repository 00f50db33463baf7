"""GP classification: the optimum of the bound, its kernel, predictions, and what happens to bad input."""

import pickle
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
from sklearn.datasets import make_moons
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.metrics import log_loss
from sklearn.utils.estimator_checks import estimator_checks_generator

import thalweg
from thalweg.gaussian import BernoulliLogit, StudentT
from thalweg.kernels import Gaussian, Matern32
from thalweg.models import GPClassifier
from thalweg.models._process import padded_length

KERNEL = Gaussian(lengthscale=0.7, variance=20.0)


@pytest.fixture(scope="module")
def moons():
    return make_moons(60, noise=0.25, random_state=0)


@pytest.fixture(scope="module")
def fixed(moons):
    return GPClassifier(KERNEL, jitter=1e-3, learn=False, tol=1e-4).fit(*moons)


def exact_bound(X, y, kernel, jitter):
    """The optimum of the bound by another road: L-BFGS over the mean and a full covariance's factor, whitened."""
    count = len(y)
    with jax.enable_x64(True):
        root = jnp.linalg.cholesky(kernel(jnp.asarray(X)) + jitter * jnp.eye(count))
        lower = np.tril_indices(count)
        targets = jnp.asarray(y, float)

        @jax.jit
        def loss(flat):
            u = flat[:count]
            factor = jnp.zeros((count, count)).at[lower].set(flat[count:])
            logs = jnp.diagonal(factor)
            factor = factor - jnp.diag(logs) + jnp.diag(jnp.exp(logs))
            m, spread = root @ u, root @ factor
            expected = BernoulliLogit().expected(targets, m, jnp.sum(spread**2, axis=1))
            kl = (u @ u + jnp.sum(factor**2) - count) / 2 - jnp.sum(logs)
            return kl - jnp.sum(expected.value)

        both = jax.jit(jax.value_and_grad(loss))
        found = scipy.optimize.minimize(
            lambda flat: tuple(np.asarray(part) for part in both(flat)),
            np.zeros(count + len(lower[0])),
            jac=True,
            method="L-BFGS-B",
            options={"maxiter": 4000, "maxfun": 5000, "ftol": 1e-13, "gtol": 1e-7},
        )
    return -found.fun


def test_bound_is_the_optimum_over_all_gaussians(moons, fixed):
    X, y = moons
    assert fixed.elbo_ == pytest.approx(exact_bound(X, y, KERNEL, 1e-3), abs=1e-4)
    assert fixed.elbo_ == fixed.log_marginal_likelihood_bound_


def test_default_tolerance_leaves_less_than_a_thousandth_of_a_nat(moons, fixed):
    loose = GPClassifier(KERNEL, jitter=1e-3, learn=False).fit(*moons)
    assert loose.n_iter_ < fixed.n_iter_
    assert 0 <= fixed.elbo_ - loose.elbo_ < 1e-3


@pytest.mark.parametrize("step", [1e-4, 1e4])
def test_recovers_from_a_bad_step(moons, fixed, step):
    model = GPClassifier(KERNEL, jitter=1e-3, learn=False, tol=1e-4, step=step).fit(*moons)
    assert model.elbo_ == pytest.approx(fixed.elbo_, abs=1e-5)


def test_predictions_are_averages_over_the_posterior(moons, fixed):
    X, _ = moons
    new = X[:5] + 0.1
    mean, variance = fixed.latent(new)
    samples = mean + np.sqrt(variance) * np.random.default_rng(0).standard_normal((200_000, 5))
    probabilities = 1 / (1 + np.exp(-samples))
    error = probabilities.std(axis=0) / np.sqrt(len(samples))
    assert np.all(np.abs(fixed.predict_proba(new)[:, 1] - probabilities.mean(axis=0)) < 5 * error)


def test_latent_process_returns_to_the_prior_far_away(fixed):
    mean, variance = fixed.latent([[100.0, 100.0]])
    assert mean[0] == pytest.approx(0, abs=1e-8)
    assert variance[0] == pytest.approx(20.0)


def test_kernels_made_in_single_precision_are_used_in_double(moons, fixed):
    with jax.enable_x64(False):
        model = GPClassifier(Gaussian(0.7, 20.0), jitter=1e-3, learn=False, tol=1e-4).fit(*moons)
        probabilities = model.predict_proba(moons[0])
    assert model.elbo_ == pytest.approx(fixed.elbo_, abs=1e-5)
    assert probabilities.dtype == np.float64


@pytest.mark.slow
def test_predictions_belong_to_the_fit_whatever_is_set_after_it(moons, fixed):
    model = GPClassifier(KERNEL, jitter=1e-3, learn=False, tol=1e-4).fit(*moons)
    model.set_params(likelihood="probit")
    np.testing.assert_array_equal(model.predict_proba(moons[0]), fixed.predict_proba(moons[0]))


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_a_fit_that_fails_or_is_interrupted_leaves_the_model_as_it_was(moons, fixed, monkeypatch, error):
    def interrupted(*arguments):
        raise error

    X, y = moons
    model = GPClassifier(KERNEL, jitter=1e-3, learn=False, tol=1e-4).fit(X, y)
    monkeypatch.setattr("thalweg.models._process.infer", interrupted)
    with pytest.raises(error):
        model.fit(X[:, :1], np.arange(60) % 3)
    np.testing.assert_array_equal(model.predict(X), fixed.predict(X))
    new = GPClassifier(learn=False)
    with pytest.raises(error):
        new.fit(X, y)
    with pytest.raises(NotFittedError):
        new.predict(X)


def test_a_pickled_model_predicts_the_same_to_the_last_digit(moons):
    with jax.enable_x64(False):
        model = GPClassifier(restarts=0, max_iter=20, tol=1.0).fit(*moons)
        again = pickle.loads(pickle.dumps(model))
        np.testing.assert_array_equal(again.predict_proba(moons[0]), model.predict_proba(moons[0]))


def test_learning_raises_the_bound_to_where_it_is_flat(moons):
    X, y = moons
    given = GPClassifier(KERNEL, learn=False).fit(X, y)
    learned = GPClassifier(KERNEL, restarts=0, tol=1e-4, random_state=0).fit(X, y)
    assert learned.elbo_ > given.elbo_
    around = learned.kernel_
    for factor in (0.9, 1.1):
        for kernel in (
            Gaussian(float(around.lengthscale) * factor, float(around.variance)),
            Gaussian(float(around.lengthscale), float(around.variance) * factor),
        ):
            assert GPClassifier(kernel, learn=False, tol=1e-4).fit(X, y).elbo_ <= learned.elbo_ + 1e-4


@pytest.mark.slow
def test_batches_come_close_to_the_optimum(moons, fixed):
    model = GPClassifier(KERNEL, jitter=1e-3, learn=False, batch_size=6, max_iter=60, random_state=0).fit(*moons)
    assert fixed.elbo_ - 0.5 < model.elbo_ <= fixed.elbo_
    again = GPClassifier(KERNEL, jitter=1e-3, learn=False, batch_size=6, max_iter=60, random_state=0).fit(*moons)
    assert again.elbo_ == model.elbo_


def test_weight_two_is_the_row_twice(moons):
    X, y = moons
    weights = np.ones(len(y))
    weights[:10] = 2
    twice_X, twice_y = np.concatenate([X, X[:10]]), np.concatenate([y, y[:10]])
    weighted = GPClassifier(KERNEL, jitter=0.0, learn=False, tol=1e-4).fit(X, y, weights)
    repeated = GPClassifier(KERNEL, jitter=0.0, learn=False, tol=1e-4).fit(twice_X, twice_y)
    assert weighted.elbo_ == pytest.approx(repeated.elbo_, abs=1e-5)
    assert weighted.predict_proba(X) == pytest.approx(repeated.predict_proba(X), abs=1e-5)


def test_duplicates_and_a_singular_kernel_are_no_trouble(moons):
    X, y = moons
    X, y = np.repeat(X, 2, axis=0), np.repeat(y, 2)
    model = GPClassifier(Gaussian(100.0, 1e4), jitter=0.0, learn=False).fit(X, y)
    assert np.isfinite(model.elbo_)
    assert np.all(model.latent(X)[1] > 0)


@pytest.mark.slow
def test_wildly_scaled_features(moons):
    X, y = moons
    scaled = X * np.array([1e6, 1e-6])
    model = GPClassifier(Gaussian([0.7e6, 0.7e-6], 20.0), jitter=1e-3, learn=False).fit(scaled, y)
    same = GPClassifier(KERNEL, jitter=1e-3, learn=False).fit(X, y)
    assert model.elbo_ == pytest.approx(same.elbo_, abs=1e-6)
    assert np.isfinite(GPClassifier(restarts=0, random_state=0).fit(scaled, y).elbo_)


@pytest.mark.slow
def test_likelihood_that_is_not_log_concave_keeps_a_covariance(moons):
    X, y = moons
    model = GPClassifier(KERNEL, likelihood=StudentT(3.0, 0.3), learn=False).fit(X, y)
    assert np.isfinite(model.elbo_)
    assert np.all(model.latent(X)[1] > 0)


def test_three_classes_one_against_the_rest():
    rng = np.random.default_rng(0)
    y = np.repeat(["a", "b", "c"], 20)
    X = rng.standard_normal((60, 2)) * 0.4 + np.repeat([[0, 0], [2, 0], [0, 2]], 20, axis=0)
    model = GPClassifier(Gaussian(1.0, 10.0), learn=False).fit(X, y)
    probabilities = model.predict_proba(X)
    assert probabilities.sum(axis=1) == pytest.approx(1)
    assert model.score(X, y) > 0.9
    assert len(model.kernel_) == 3


def test_says_when_steps_ran_out(moons):
    with pytest.warns(ConvergenceWarning, match="Raise max_iter"):
        GPClassifier(KERNEL, learn=False, max_iter=2).fit(*moons)


@pytest.mark.parametrize(
    ("parameters", "error", "message"),
    [
        ({"kernel": "rbf"}, TypeError, "kernel must be a kernel from thalweg.kernels or None, found 'rbf'"),
        ({"likelihood": "cauchit"}, ValueError, "likelihood must be 'logit', 'probit' or a Likelihood"),
        ({"jitter": -1.0}, ValueError, "jitter must be a finite number of at least 0, found -1.0"),
        ({"step": 0.0}, ValueError, "step must be a finite number above 0, found 0.0"),
        ({"max_iter": 0}, ValueError, "max_iter must be a whole number of at least 1, found 0"),
        ({"batch_size": 2.5}, TypeError, "batch_size must be a whole number of at least 1, found 2.5"),
        ({"restarts": -1}, ValueError, "restarts must be a whole number of at least 0, found -1"),
        ({"kernel": Gaussian([1.0, 1.0, 1.0])}, ValueError, "3 lengthscales"),
    ],
)
def test_bad_parameters(moons, parameters, error, message):
    with pytest.raises(error, match=message):
        GPClassifier(**parameters).fit(*moons)


def test_bad_data(moons):
    X, y = moons
    with pytest.raises(ValueError, match="found one class"):
        GPClassifier().fit(X, np.ones(len(y)))
    with pytest.raises(ValueError, match="sample_weight must be non-negative"):
        GPClassifier().fit(X, y, -np.ones(len(y)))
    with pytest.raises(ValueError, match="NaN"):
        GPClassifier().fit(np.full_like(X, np.nan), y)


def test_padding_is_an_eighth_at_most():
    for rows in range(64, 3000, 7):
        assert rows <= padded_length(rows) <= rows * 9 / 8 + 1


# Without learning, for time; converged to the digits in which the checks compare weighted with repeated rows.
CHECKS = list(estimator_checks_generator(GPClassifier(learn=False, jitter=0.0, tol=1e-9, max_iter=1000)))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("estimator", "check"), CHECKS, ids=lambda part: getattr(getattr(part, "func", None), "__name__", "gp")
)
def test_scikit_learn_contract(estimator, check):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        check(estimator)


@pytest.mark.slow
@pytest.mark.shared_data
def test_ionosphere_reaches_the_known_optimum():
    data = thalweg.data.load("ionosphere")
    model = GPClassifier(Gaussian(np.e, np.exp(5.0)), jitter=1e-2, learn=False).fit(data.X, data.y)
    best = GPClassifier(Gaussian(np.e, np.exp(5.0)), jitter=1e-2, learn=False, tol=1e-4, max_iter=500).fit(
        data.X, data.y
    )
    assert 0 <= best.elbo_ - model.elbo_ < 1e-3
    bits = [log_loss(data.y, m.predict_proba(data.X)) / np.log(2) for m in (model, best)]
    assert abs(bits[0] - bits[1]) < 1e-3


@pytest.mark.slow
def test_other_kernels_learn_too(moons):
    model = GPClassifier(Matern32(1.0, 5.0), restarts=0, random_state=0).fit(*moons)
    assert isinstance(model.kernel_, Matern32)
    assert model.score(*moons) > 0.85


def test_a_first_fit_compiles_four_programs_at_most():
    compiled = []
    note = lambda event, seconds, **_: compiled.append(event) if event.endswith("backend_compile_duration") else None
    jax.monitoring.register_event_duration_secs_listener(note)
    # No other test has this many rows and features.
    X = np.random.default_rng(0).normal(size=(97, 7))
    GPClassifier(Gaussian(2.0, 5.0), learn=False).fit(X, X[:, 0] > 0)
    jax.monitoring.unregister_event_duration_listener(note)
    assert 0 < len(compiled) <= 4

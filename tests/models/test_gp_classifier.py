"""GPClassifier: predictions, classes, what is refused, and scikit-learn's contract."""

import pickle
import warnings

import jax
import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import make_moons
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import estimator_checks_generator

import thalweg
from thalweg import processes
from thalweg.gaussian import Poisson
from thalweg.kernels import Gaussian, Linear, Periodic
from thalweg.models import GPClassifier

KERNEL = Gaussian(lengthscale=0.7, variance=20.0)


@pytest.fixture(scope="module")
def moons():
    return make_moons(60, noise=0.25, random_state=0)


@pytest.fixture(scope="module")
def fixed(moons):
    return GPClassifier(KERNEL, jitter=1e-3, learn=False, tol=1e-4).fit(*moons)


def test_predictions_are_averages_over_the_posterior(moons, fixed):
    X, _ = moons
    new = X[:5] + 0.1
    mean, variance = fixed.latent(new)
    samples = mean + np.sqrt(variance) * np.random.default_rng(0).standard_normal((200_000, 5))
    probabilities = 1 / (1 + np.exp(-samples))
    error = probabilities.std(axis=0) / np.sqrt(len(samples))
    found = fixed.predict_proba(new)[:, 1]
    assert np.all(np.abs(found - probabilities.mean(axis=0)) < 5 * error)
    np.testing.assert_allclose(fixed.decision_function(new), np.log(found / (1 - found)), rtol=1e-12)
    assert fixed.elbo_ == fixed.log_marginal_likelihood_bound_


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
    monkeypatch.setattr(processes, "fit_classifier", interrupted)
    with pytest.raises(error):
        model.fit(X[:, :1], np.arange(60) % 3)
    np.testing.assert_array_equal(model.predict(X), fixed.predict(X))
    new = GPClassifier(learn=False)
    with pytest.raises(error):
        new.fit(X, y)
    with pytest.raises(NotFittedError):
        new.predict(X)


def test_an_interrupt_on_a_subset_of_the_rows_is_said(moons, fixed, monkeypatch):
    monkeypatch.setattr(processes, "fit_classifier", lambda *_: fixed._processes[0])
    X, y = moons
    with pytest.warns(ConvergenceWarning, match=f"knows {len(X)} of {2 * len(X)} rows, and elbo_ is of those"):
        GPClassifier(KERNEL, learn=False).fit(np.vstack([X, X + 9]), np.append(y, y))


def test_a_pickled_model_predicts_the_same_to_the_last_digit(moons, fixed):
    with jax.enable_x64(False):
        again = pickle.loads(pickle.dumps(fixed))
        np.testing.assert_array_equal(again.predict_proba(moons[0]), fixed.predict_proba(moons[0]))


def test_the_defaults_learn_a_kernel(moons, fixed):
    model = GPClassifier(max_iter=20, tol=1.0).fit(*moons)
    assert model.elbo_ > fixed.elbo_
    assert model.score(*moons) > 0.85
    assert isinstance(model.kernel_, Gaussian)


@pytest.mark.slow
def test_wildly_scaled_features(moons):
    X, y = moons
    scaled = X * np.array([1e6, 1e-6])
    model = GPClassifier(Gaussian([0.7e6, 0.7e-6], 20.0), jitter=1e-3, learn=False).fit(scaled, y)
    same = GPClassifier(KERNEL, jitter=1e-3, learn=False).fit(X, y)
    assert model.elbo_ == pytest.approx(same.elbo_, abs=1e-6)
    assert np.isfinite(GPClassifier(random_state=0).fit(scaled, y).elbo_)


def test_three_classes_one_against_the_rest():
    rng = np.random.default_rng(0)
    y = np.repeat(["a", "b", "c"], 20)
    X = rng.standard_normal((60, 2)) * 0.4 + np.repeat([[0, 0], [2, 0], [0, 2]], 20, axis=0)
    model = GPClassifier(Gaussian(1.0, 10.0), learn=False).fit(X, y)
    probabilities = model.predict_proba(X)
    assert probabilities.sum(axis=1) == pytest.approx(1)
    assert model.score(X, y) > 0.9
    assert len(model.kernel_) == len(model.history_) == 3


def test_says_when_steps_ran_out(moons):
    with pytest.warns(ConvergenceWarning, match="after 2 steps, tol is 0.01; .* Raise max_iter"):
        GPClassifier(KERNEL, learn=False, max_iter=2).fit(*moons)


@pytest.mark.parametrize(
    "parameters",
    [
        {"kernel": 3},
        {"likelihood": "cauchit"},
        {"jitter": -1.0},
        {"learn": "no"},
        {"step": 0.0},
        {"step": np.inf},
        {"tol": np.nan},
        {"max_iter": 0},
        {"batch_size": 2.5},
    ],
    ids=lambda parameters: "-".join(parameters),
)
def test_bad_parameters_are_refused(moons, parameters):
    with pytest.raises((TypeError, ValueError), match=f"The '{next(iter(parameters))}' parameter of GPClassifier must"):
        GPClassifier(**parameters).fit(*moons)


def test_a_likelihood_that_is_not_of_labels_is_refused(moons):
    """It would predict what is no probability."""
    with pytest.raises(ValueError, match=r"likelihood must be one of labels 0 and 1 .*found Poisson\("):
        GPClassifier(likelihood=Poisson()).fit(*moons)


def test_bad_data_are_refused(moons):
    X, y = moons
    with pytest.raises(ValueError, match="found one class"):
        GPClassifier().fit(X, np.ones(len(y)))
    with pytest.raises(ValueError, match="sample_weight must be non-negative"):
        GPClassifier().fit(X, y, -np.ones(len(y)))
    with pytest.raises(ValueError, match="NaN"):
        GPClassifier().fit(np.full_like(X, np.nan), y)
    with pytest.raises(ValueError, match="3 lengthscales"):
        GPClassifier(Gaussian([1.0, 1.0, 1.0])).fit(X, y)


# Without learning, for time. Weighted and repeated rows take the same steps, to fifteen digits, as long as rounding has
# no say in their lengths, which it has from 1e-7 on.
TOLERANCES = {
    "check_sample_weight_equivalence_on_dense_data": 1e-5,
    "check_sample_weight_equivalence_on_sparse_data": 1e-5,
}
CHECKS = list(estimator_checks_generator(GPClassifier(learn=False, jitter=0.0)))


@pytest.mark.parametrize(
    ("estimator", "check"),
    [
        (clone(estimator).set_params(tol=TOLERANCES.get(check.func.__name__, 0.01)), check)
        for estimator, check in CHECKS
    ],
    ids=lambda part: getattr(getattr(part, "func", None), "__name__", "gp"),
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


def test_a_grid_search_reaches_the_kernels_parameters(moons):
    kernel = Gaussian(0.7, 20.0) + 1.0
    search = GridSearchCV(GPClassifier(kernel, learn=False), {"kernel__k1__lengthscale": [1e-3, 0.7]}, cv=2)
    search.fit(*moons)
    assert search.best_params_ == {"kernel__k1__lengthscale": 0.7}
    assert float(search.best_estimator_.kernel_.k1.lengthscale) == 0.7
    assert float(kernel.k1.lengthscale) == 0.7


def test_features_that_say_nothing_are_told_from_those_that_do():
    """With one scale for all, or one learned for each whatever it gains, the error is above a third."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(650, 6))
    y = x[:, 0] * x[:, 1] > 0
    model = GPClassifier(random_state=0).fit(x[:150], y[:150])
    assert model.score(x[150:], y[150:]) > 0.85
    assert np.max(model.kernel_.lengthscale[:2]) < np.min(model.kernel_.lengthscale[2:])


def test_a_lengthscale_for_each_feature_must_gain_more_than_by_chance():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(100, 4))
    y = np.sum(x, axis=1) + rng.logistic(size=100) > 0
    assert np.size(GPClassifier(random_state=0).fit(x, y).kernel_.lengthscale) == 1


def test_raw_features_are_as_good_as_standardised_ones():
    """The sight: 1e8 ± 1, an income and a 0/1 column had a log-loss of 0.497, a linear model 0.421."""
    rng = np.random.default_rng(1)
    X = np.column_stack([1e8 + rng.normal(size=360), np.exp(rng.normal(10, 1, 360)), rng.integers(0, 2, 360)])
    z = -3 + 2 * X[:, 2] + X[:, 0] - 1e8
    y, train = (rng.uniform(size=360) < 1 / (1 + np.exp(-z))).astype(int), np.arange(360) < 240
    model = GPClassifier().fit(X[train], y[train])
    linear = make_pipeline(StandardScaler(), LogisticRegression(C=1e6)).fit(X[train], y[train])
    losses = [log_loss(y[~train], m.predict_proba(X[~train])) for m in (model, linear)]
    assert losses[0] < losses[1] + 0.02


def test_a_saved_sum_of_kernels_predicts_the_same(moons, tmp_path):
    model = GPClassifier(Gaussian(0.7, 20.0) * Periodic(5.0) + Linear(), learn=False).fit(*moons)
    model.save(tmp_path / "model")
    again = thalweg.load(tmp_path / "model")
    np.testing.assert_array_equal(again.predict_proba(moons[0]), model.predict_proba(moons[0]))
    assert repr(again.kernel_) == repr(model.kernel_)


@pytest.mark.parametrize("word", ["rbf", "matern12", "matern32", "matern52", "laplacian", "cauchy"])
def test_a_kernel_goes_by_its_name(moons, word):
    model = GPClassifier(word, learn=False).fit(*moons)
    assert model.score(*moons) > 0.8
    assert clone(model).kernel == word


def test_a_kernel_in_other_units_from_which_nothing_is_learned_is_told():
    X, y = make_moons(60, noise=0.2, random_state=0)
    with pytest.warns(UserWarning, match="that of tossing a coin, -41.59: learning from kernel=Gaussian.* led nowhere"):
        GPClassifier(Gaussian(1e6)).fit(X, y)


def test_a_class_without_weight_is_refused():
    X, y = make_moons(20, noise=0.2, random_state=0)
    with pytest.raises(ValueError, match="sample_weight must leave some weight to every class, found none for"):
        GPClassifier().fit(X, y, sample_weight=(y == 0).astype(float))


@pytest.fixture(scope="module")
def weak():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 2))
    return X, (rng.uniform(size=60) < 1 / (1 + np.exp(-2 * X[:, 0]))).astype(int)


def test_copies_are_no_new_evidence_for_the_kernel(weak):
    X, y = weak
    once = GPClassifier(random_state=0).fit(X, y)
    thrice = GPClassifier(random_state=0).fit(np.tile(X, (3, 1)), np.tile(y, 3))
    assert thrice.kernel_ == once.kernel_
    weighted = GPClassifier(random_state=0).fit(X, y, sample_weight=np.full(60, 3.0))
    np.testing.assert_array_equal(weighted.predict_proba(X), thrice.predict_proba(X))
    # The posterior counts them: three labels say more than one.
    given = GPClassifier(once.kernel_, learn=False).fit(np.tile(X, (3, 1)), np.tile(y, 3))
    np.testing.assert_allclose(thrice.predict_proba(X), given.predict_proba(X), atol=1e-4)
    assert np.abs(thrice.decision_function(X)).mean() > 1.1 * np.abs(once.decision_function(X)).mean()


def test_labels_seen_again_and_again_at_a_few_places_are_evidence():
    doses, ones = np.arange(6.0), np.array([0, 0, 4, 8, 10, 12])
    X, y = np.repeat(doses, 12)[:, None], (np.arange(12) < ones[:, None]).astype(int).ravel()
    chances = GPClassifier(random_state=0).fit(X, y).predict_proba(doses[:, None])[:, 1]
    np.testing.assert_allclose(chances, ones / 12, atol=0.1)

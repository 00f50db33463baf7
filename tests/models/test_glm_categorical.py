"""Several classes: the softmax model beside two classes, by brute force, and what follows from its posterior."""

import warnings

import numpy as np
import pytest
from scipy.special import softmax
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression
from sklearn.utils.estimator_checks import estimator_checks_generator

from thalweg.gaussian.linear.observations import with_intercept
from thalweg.gaussian.softmax import NODES
from thalweg.models import BernoulliGLM, CategoricalGLM

X, y = load_iris(return_X_y=True)


@pytest.fixture(scope="module")
def fitted():
    return CategoricalGLM().fit(X, y)


def test_two_classes_are_logistic_regression():
    # Given the prior: "auto" joins that of two classes with Jeffreys'.
    model, two = (kind(1.25 / X[50:].std(axis=0)).fit(X[50:], y[50:]) for kind in (CategoricalGLM, BernoulliGLM))
    assert 2 * model.coef_[1] == pytest.approx(two.coef_, rel=5e-3)
    assert 2 * model.coef_sd_[1] == pytest.approx(two.coef_sd_, rel=5e-3)
    assert model.elbo_ == pytest.approx(two.elbo_, abs=0.02)
    assert model.predict_proba(X[50:]) == pytest.approx(two.predict_proba(X[50:]), abs=2e-3)
    assert model.decision_function(X[50:]).shape == (100,)


def test_probabilities_are_averages_over_the_posterior(fitted):
    draws = fitted.sample(20_000, random_state=0)
    assert draws.shape == (20_000, 3, 5)
    assert draws.sum(axis=1) == pytest.approx(0, abs=1e-8)
    error = fitted.coef_sd_.max() / np.sqrt(20_000)
    assert draws.mean(axis=0)[:, 1:] == pytest.approx(fitted.coef_, abs=5 * error)
    assert draws.std(axis=0)[:, 0] == pytest.approx(fitted.intercept_sd_, rel=0.03)
    z = draws[:, None, :, 0] + np.einsum("skd,nd->snk", draws[:, :, 1:], X[::25])
    assert fitted.predict_proba(X[::25]) == pytest.approx(softmax(z, axis=-1).mean(axis=0), abs=0.01)


@pytest.mark.slow
def test_many_examples_leave_the_maximum_likelihood_estimate():
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(4000, 2)) * [1.0, 1e4] + [0.0, 1e6]
    z = ((rows - [0.0, 1e6]) / [1.0, 1e4]) @ np.array([[1.0, -0.5, 0.0], [0.0, 0.5, -1.0]])
    labels = np.argmax(z + rng.gumbel(size=z.shape), axis=1)
    model = CategoricalGLM().fit(rows, labels)
    theirs = LogisticRegression(C=np.inf).fit((rows - [0.0, 1e6]) / [1.0, 1e4], labels)
    assert model.coef_ * [1.0, 1e4] == pytest.approx(theirs.coef_ - theirs.coef_.mean(axis=0), abs=0.01)
    low, high = np.moveaxis(model.interval(), -1, 0)[:, :, 1:] * [1.0, 1e4]
    truth = np.array([[1.0, -0.5, 0.0], [0.0, 0.5, -1.0]])
    truth = (truth - truth.mean(axis=1, keepdims=True)).T
    assert np.mean((low < truth) & (truth < high)) >= 5 / 6


def test_a_fit_starts_from_the_posterior_of_the_one_before(fitted):
    """Each fit, for another prior or with pseudo-labels, begins at the posterior of the last one."""
    assert fitted.n_iter_ < 100


@pytest.mark.slow
def test_intervals_of_several_classes_cover():
    rng, effects, hits = np.random.default_rng(0), np.array([[0.5, -0.5, 0.0], [0.0, 0.0, 0.0]]), []
    for _ in range(150):
        rows = rng.normal(size=(100, 2))
        labels = np.argmax(rows @ effects + rng.gumbel(size=(100, 3)), axis=1)
        low, high = np.moveaxis(CategoricalGLM().fit(rows, labels).interval(), -1, 0)[:, :, 1:]
        hits.append((low < effects.T) & (high > effects.T))
    assert 0.92 <= np.mean(hits) <= 0.98


def with_a_rare_column(seed):
    """Three classes, 200 rows, and a column that is 1 in every twentieth; and the coefficients, less their mean."""
    rng = np.random.default_rng(seed)
    rows = np.column_stack([rng.normal(size=200), rng.uniform(size=200) < 0.05]).astype(float)
    effects = np.array([[0.0, 0.0, 0.0], [0.3, 0.5, 1.0], [-0.3, -0.5, -1.0]])
    labels = np.argmax(effects[:, 0] + rows @ effects[:, 1:].T + rng.gumbel(size=(200, 3)), axis=1)
    return rows, labels, effects - effects.mean(axis=0)


@pytest.mark.slow
def test_intervals_of_a_column_that_is_seldom_there_cover():
    """Without Jeffreys' prior 87 % do: a likelihood of few examples leads away from 0, and is then too sure of it."""
    hits = []
    for seed in range(60):
        rows, labels, effects = with_a_rare_column(seed)
        low, high = np.moveaxis(CategoricalGLM().fit(rows, labels).interval(), -1, 0)
        hits.append((low < effects) & (effects < high))
    assert np.mean(hits) > 0.93
    assert np.mean(np.array(hits)[:, :, 2]) > 0.91


def test_a_class_that_a_rare_column_never_has_is_no_proof():
    """A prior alone, however wide, takes a handful of rows without the third class for nearly that."""
    rows, labels, _ = with_a_rare_column(0)
    rare = rows[:, 1] > 0
    labels[rare] = np.arange(np.sum(rare)) % 2
    model = CategoricalGLM().fit(rows, labels)
    given = CategoricalGLM(prior_scale=model.prior_scale_).fit(rows, labels)
    assert 0 > model.coef_[2, 1] > 0.8 * given.coef_[2, 1]
    chances = model.predict_proba(rows).mean(axis=0)
    np.testing.assert_allclose(chances, (np.bincount(labels) + 0.5) / 201.5, rtol=1e-3)


def test_a_table_has_a_row_for_each_class_and_coefficient(fitted):
    summary = fitted.summary()
    assert summary.names[:2] == ["0: intercept", "0: x0"]
    assert len(summary.names) == 15
    assert fitted.interval(0.9).shape == (3, 5, 2)
    assert fitted.interval().reshape(-1, 2) == pytest.approx(summary.interval)


def test_words_are_classes_and_weights_are_repetitions():
    words = np.array(["setosa", "versicolor", "virginica"])[y]
    model = CategoricalGLM(prior_scale=2.0, class_weight={"virginica": 2.0}).fit(X[::3], words[::3])
    twice = np.concatenate([np.arange(0, 150, 3), np.arange(102, 150, 3)])
    repeated = CategoricalGLM(prior_scale=2.0).fit(X[twice], words[twice])
    assert model.predict(X).tolist() == repeated.predict(X).tolist()
    assert model.coef_ == pytest.approx(repeated.coef_, abs=1e-4)
    assert set(model.sample(5, X, random_state=0).ravel()) == set(words)


CHECKS = [
    pytest.param(*case, id=f"{number}-{case[1].func.__name__}", marks=pytest.mark.slow)
    for number, case in enumerate(estimator_checks_generator(CategoricalGLM()))
]


@pytest.mark.parametrize(("estimator", "check"), CHECKS)
def test_scikit_learn_contract(estimator, check):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check(estimator)


@pytest.fixture(scope="module")
def many():
    rng = np.random.default_rng(0)
    X = rng.uniform(-1.5, 1.5, size=(1500, 2))
    z = X @ rng.normal(size=(2, 4)) + np.array([0.0, 0.5, -1.0, 0.0])
    return X, np.argmax(z + rng.gumbel(size=z.shape), axis=1)


@pytest.mark.parametrize("prior_scale", ["auto", 1.0])
def test_few_nodes_lead_to_the_same_fit_as_all(many, prior_scale):
    """A row far away takes all nodes; with hardly any weight it changes nothing else."""
    rows, labels = many
    quick = CategoricalGLM(prior_scale).fit(rows, labels)
    assert quick._posterior.weights.nodes_needed(with_intercept(rows, True)) < NODES
    far, weights = np.vstack([rows, [[100.0, 0.0]]]), np.append(np.ones(len(rows)), 1e-12)
    assert quick._posterior.weights.nodes_needed(with_intercept(far, True)) == NODES
    slow = CategoricalGLM(prior_scale).fit(far, np.append(labels, 0), sample_weight=weights)
    assert np.max(np.abs(quick.coef_ - slow.coef_) / slow.coef_sd_) < 1e-3
    assert quick.coef_sd_ == pytest.approx(slow.coef_sd_, rel=1e-4)
    assert quick.predict_proba(rows) == pytest.approx(slow.predict_proba(rows), abs=1e-5)

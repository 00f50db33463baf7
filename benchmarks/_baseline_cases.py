"""The cases of :mod:`benchmarks.baseline`: small fits with defaults, on data drawn here or shipped by scikit-learn.

A case is a function of a seed that returns an :class:`Outcome`: predictions, a loss for each test row (or another
error that should be small), log densities of the truth, and whether intervals of a given level hold it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse
from scipy.stats import norm
from sklearn import datasets
from sklearn.model_selection import train_test_split

import thalweg
from thalweg.descent import FISTA, L1, NegativeEntropy, Simplex, Work, minimize
from thalweg.oracles import SVRG, Exact, MiniBatch

Array = np.ndarray


@dataclass
class Outcome:
    """What one fit predicted, and how well; every array has an entry for each test row."""

    predictions: Array
    losses: Array
    log_densities: Array | None = None
    inside: Array | None = None
    level: float = 0.95


Case = Callable[[int], Outcome]
CASES: dict[str, Case] = {}


def case(function: Case) -> Case:
    CASES[function.__name__] = function
    return function


# Data


def friedman(rows: int, seed: int, features: int = 8, noise: float = 1.0) -> tuple[Array, Array]:
    return datasets.make_friedman1(rows, n_features=features, noise=noise, random_state=seed)


def split(x: Any, y: Array, seed: int, test: float = 0.3) -> tuple[Any, Any, Array, Array]:
    return train_test_split(x, y, test_size=test, random_state=seed)


def classes(rows: int, seed: int, **options: Any) -> tuple[Array, Array]:
    return datasets.make_classification(
        rows, n_features=12, n_informative=6, n_clusters_per_class=3, flip_y=0.02, random_state=seed, **options
    )


def raw_units(x: Array, seed: int) -> Array:
    """The same features in units from 1e-4 to 1e4, far from 0."""
    rng = np.random.default_rng(seed)
    return (x + rng.normal(size=x.shape[1]) * 20) * 10 ** rng.uniform(-4, 4, size=x.shape[1])


def noiseless(x: Array) -> Array:
    return x[:, 0] * x[:, 1] + np.sin(3 * x[:, 2]) + x[:, 3] ** 2


# Kinds of outcomes


def regression(model: Any, data: tuple, intervals: bool = True, **fit: Any) -> Outcome:
    x, new, y, truth = data
    model.fit(x, y, **fit)
    predictions = model.predict(new)
    losses = (predictions - truth) ** 2
    losses = losses if losses.ndim == 1 else losses.sum(axis=1)
    inside = None
    if intervals:
        ends = model.predict_interval(new, level=0.95)
        low, high = ends if isinstance(ends, tuple) else ends.T
        inside = (low <= truth) & (truth <= high)
    return Outcome(predictions.ravel(), losses, inside=inside)


def gaussian_process(model: Any, data: tuple, **fit: Any) -> Outcome:
    x, new, y, truth = data
    mean, deviation = model.fit(x, y, **fit).predict(new, return_std=True)
    inside = np.abs(truth - mean) <= norm.ppf(0.975) * deviation
    return Outcome(mean, (mean - truth) ** 2, norm.logpdf(truth, mean, deviation), inside)


def classification(model: Any, data: tuple, probabilities: bool = True, **fit: Any) -> Outcome:
    x, new, y, truth = data
    model.fit(x, y, **fit)
    losses = (model.predict(new) != truth).astype(float)
    if not probabilities:
        return Outcome(losses, losses)
    p = model.predict_proba(new)
    own = p[np.arange(len(truth)), np.searchsorted(model.classes_, truth)]
    return Outcome(p.max(axis=1), losses, np.log(np.maximum(own, 1e-12)))


def coefficients(model: Any, x: Array, y: Array, truth: Array, **fit: Any) -> Outcome:
    """How near coefficients are to those that drew the data, and whether their intervals hold them."""
    model.fit(x, y, **fit)
    mean = np.ravel(model.coef_)
    low, high = np.asarray(model.interval()).reshape(-1, 2)[-len(truth) :].T
    return Outcome(mean, (mean - truth) ** 2, inside=(low <= truth) & (truth <= high))


def estimate(value: Any, exact: float) -> Outcome:
    """A spectral sum beside its exact value."""
    off = abs(float(value.value) - exact)
    inside = off <= 4 * float(value.standard_error) + 1e-9 * abs(exact)
    return Outcome(np.array([float(value.value)]), np.array([off / abs(exact)]), inside=np.array([inside]), level=0.999)


# Kernel machines


@case
def kernel_regressor_diabetes(seed: int) -> Outcome:
    return regression(thalweg.KernelRegressor(random_state=0), split(*datasets.load_diabetes(return_X_y=True), seed))


@case
def kernel_regressor_raw_units(seed: int) -> Outcome:
    x, y = friedman(2500, seed)
    return regression(thalweg.KernelRegressor(random_state=0), split(raw_units(x, seed), 1e5 + 30 * y, seed))


@case
def kernel_regressor_few_rows(seed: int) -> Outcome:
    rng = np.random.default_rng(seed)
    x = rng.uniform(0, 6, size=(345, 1))
    y = np.sin(x[:, 0]) + 0.1 * rng.normal(size=345)
    return regression(thalweg.KernelRegressor(random_state=0), (x[:45], x[45:], y[:45], y[45:]))


@case
def kernel_regressor_many_rows(seed: int) -> Outcome:
    return regression(thalweg.KernelRegressor(random_state=0), split(*friedman(14_000, seed), seed, 1 / 7))


@case
def kernel_regressor_duplicates(seed: int) -> Outcome:
    x, y = friedman(1100, seed)
    some = np.random.default_rng(seed).integers(0, 600, size=2000)
    return regression(thalweg.KernelRegressor(random_state=0), (x[some], x[600:], y[some], y[600:]))


@case
def kernel_regressor_noiseless(seed: int) -> Outcome:
    x = np.random.default_rng(seed).normal(size=(5800, 20))
    return regression(thalweg.KernelRegressor(random_state=0), split(x, noiseless(x), seed, 500))


@case
def kernel_regressor_float32(seed: int) -> Outcome:
    x, y = friedman(1500, seed)
    return regression(thalweg.KernelRegressor(random_state=0), split(x.astype("f"), y.astype("f"), seed))


@case
def kernel_regressor_few_of_many_features(seed: int) -> Outcome:
    return regression(thalweg.KernelRegressor(random_state=0), split(*friedman(2500, seed, features=50), seed))


@case
def kernel_regressor_huber(seed: int) -> Outcome:
    x, y = friedman(1500, seed)
    x, new, y, truth = split(x, y, seed)
    wrong = np.random.default_rng(seed).random(len(y)) < 0.1
    return regression(thalweg.KernelRegressor(loss="huber", random_state=0), (x, new, y + 200 * wrong, truth), False)


@case
def kernel_regressor_quantile(seed: int) -> Outcome:
    x, new, y, truth = split(*friedman(1500, seed, noise=2.0), seed)
    model = thalweg.KernelRegressor(loss=thalweg.machines.QuantileLoss(0.9), random_state=0)
    below = truth - model.fit(x, y).predict(new)
    losses = np.maximum(0.9 * below, -0.1 * below)
    return Outcome(truth - below, losses, inside=below <= 0, level=0.9)


@case
def kernel_regressor_stream(seed: int) -> Outcome:
    x, new, y, truth = split(*friedman(8000, seed), seed, 1000)
    batches = ((x[i : i + 1000], y[i : i + 1000]) for i in range(0, len(x), 1000))
    found = thalweg.KernelRegressor(random_state=0).fit_stream(batches).predict(new)
    return Outcome(found, (found - truth) ** 2)


@case
def kernel_regressor_udsg(seed: int) -> Outcome:
    data = split(*friedman(1500, seed), seed, 500)
    return regression(thalweg.KernelRegressor(method="udsg", max_iter=2, random_state=0), data, intervals=False)


@case
def kernel_regressor_two_outputs(seed: int) -> Outcome:
    x, y = friedman(1500, seed)
    y = np.column_stack([y, x[:, 1] * 10 + np.random.default_rng(seed).normal(size=len(y))])
    return regression(thalweg.KernelRegressor(random_state=0), split(x, y, seed), intervals=False)


@case
def kernel_classifier_digits(seed: int) -> Outcome:
    return classification(thalweg.KernelClassifier(random_state=0), split(*datasets.load_digits(return_X_y=True), seed))


@case
def kernel_classifier_breast_cancer(seed: int) -> Outcome:
    data = split(*datasets.load_breast_cancer(return_X_y=True), seed)
    return classification(thalweg.KernelClassifier(random_state=0), data)


@case
def kernel_classifier_few_rows(seed: int) -> Outcome:
    x, y = datasets.make_moons(440, noise=0.25, random_state=seed)
    return classification(thalweg.KernelClassifier(random_state=0), (x[:40], x[40:], y[:40], y[40:]))


@case
def kernel_classifier_rare_class(seed: int) -> Outcome:
    x, y = classes(9000, seed, weights=[0.97])
    return classification(thalweg.KernelClassifier(random_state=0), split(x, y, seed, 3000))


@case
def kernel_classifier_many_rows(seed: int) -> Outcome:
    x, y = classes(14_000, seed, n_classes=4)
    return classification(thalweg.KernelClassifier(random_state=0), split(x, y, seed, 2000))


@case
def kernel_classifier_softmax(seed: int) -> Outcome:
    x, y = classes(3000, seed, n_classes=4)
    return classification(thalweg.KernelClassifier(loss="logistic", random_state=0), split(x, y, seed, 1000))


@case
def kernel_classifier_hinge(seed: int) -> Outcome:
    x, y = classes(1500, seed)
    return classification(thalweg.KernelClassifier(loss="hinge", random_state=0), split(x, y, seed))


@case
def kernel_classifier_codes(seed: int) -> Outcome:
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, 8, size=(4000, 5))
    y = ((codes[:, 0] < 3) ^ (codes[:, 1] > 5)).astype(int)
    y = np.where(rng.random(4000) < 0.05, 1 - y, y)
    x = np.concatenate([codes[:, [j]] == np.arange(8) for j in range(5)], axis=1).astype(float)
    return classification(thalweg.KernelClassifier(random_state=0), split(x, y, seed))


@case
def kernel_classifier_stream(seed: int) -> Outcome:
    x, new, y, truth = split(*datasets.load_digits(return_X_y=True), seed)
    model = thalweg.KernelClassifier(random_state=0)
    model.fit_stream(((x[i : i + 250], y[i : i + 250]) for i in range(0, len(x), 250)), classes=range(10))
    p = model.predict_proba(new)
    return Outcome(p.max(axis=1), (p.argmax(axis=1) != truth).astype(float), np.log(p[np.arange(len(truth)), truth]))


@case
def kernel_classifier_dsg(seed: int) -> Outcome:
    data = split(*datasets.load_digits(return_X_y=True), seed)
    model = thalweg.KernelClassifier(method="dsg", max_iter=2, random_state=0)
    return classification(model, data, probabilities=False)


# Gaussian processes


@case
def gp_regressor_diabetes(seed: int) -> Outcome:
    return gaussian_process(thalweg.GPRegressor(random_state=0), split(*datasets.load_diabetes(return_X_y=True), seed))


@case
def gp_regressor_few_rows(seed: int) -> Outcome:
    rng = np.random.default_rng(seed)
    x = rng.uniform(0, 6, size=(315, 1))
    y = np.sin(x[:, 0]) + 0.2 * rng.normal(size=315)
    return gaussian_process(thalweg.GPRegressor(random_state=0), (x[:15], x[15:], y[:15], y[15:]))


@case
def gp_regressor_friedman(seed: int) -> Outcome:
    return gaussian_process(thalweg.GPRegressor(random_state=0), split(*friedman(2000, seed), seed, 500))


@case
def gp_regressor_raw_units(seed: int) -> Outcome:
    x, y = friedman(700, seed)
    return gaussian_process(thalweg.GPRegressor(random_state=0), split(raw_units(x, seed), 1e5 + 30 * y, seed))


@case
def gp_regressor_duplicates(seed: int) -> Outcome:
    rng = np.random.default_rng(seed)
    x = np.round(rng.uniform(0, 6, size=(700, 2)), 0)
    y = np.sin(x[:, 0]) + 0.3 * x[:, 1] + 0.3 * rng.normal(size=700)
    return gaussian_process(thalweg.GPRegressor(random_state=0), (x[:400], x[400:], y[:400], y[400:]))


@case
def gp_regressor_noiseless(seed: int) -> Outcome:
    x = np.random.default_rng(seed).normal(size=(1000, 5))
    return gaussian_process(thalweg.GPRegressor(random_state=0), split(x, noiseless(x), seed))


@case
def gp_regressor_float32(seed: int) -> Outcome:
    x, y = friedman(700, seed)
    return gaussian_process(thalweg.GPRegressor(random_state=0), split(x.astype("f"), y.astype("f"), seed))


@case
def gp_regressor_grid(seed: int) -> Outcome:
    rng = np.random.default_rng(seed)
    x = np.arange(6000.0)[:, None]
    y = np.sin(x[:, 0] / 40) + 0.5 * np.sin(x[:, 0] / 11) + 0.3 * rng.normal(size=6000)
    return gaussian_process(thalweg.GPRegressor(method="grid", random_state=0), split(x, y, seed))


@case
def gp_regressor_iterative(seed: int) -> Outcome:
    data = split(*friedman(3500, seed), seed, 500)
    return gaussian_process(thalweg.GPRegressor(method="iterative", random_state=0), data)


@case
def gp_classifier_moons(seed: int) -> Outcome:
    x, y = datasets.make_moons(480, noise=0.3, random_state=seed)
    return classification(thalweg.GPClassifier(random_state=0), (x[:80], x[80:], y[:80], y[80:]))


@case
def gp_classifier_breast_cancer(seed: int) -> Outcome:
    data = split(*datasets.load_breast_cancer(return_X_y=True), seed)
    return classification(thalweg.GPClassifier(random_state=0), data)


@case
def gp_classifier_duplicates(seed: int) -> Outcome:
    x, y = classes(900, seed)
    some = np.random.default_rng(seed).integers(0, 300, size=500)
    return classification(thalweg.GPClassifier(random_state=0), (x[some], x[300:], y[some], y[300:]))


@case
def gp_classifier_three_classes(seed: int) -> Outcome:
    return classification(thalweg.GPClassifier(random_state=0), split(*datasets.load_wine(return_X_y=True), seed))


# Linear models


def linear(rows: int, seed: int, size: float = 0.5) -> tuple[Array, Array, Array, np.random.Generator]:
    rng = np.random.default_rng(seed)
    x, weights = rng.normal(size=(rows, 6)), rng.normal(size=6) * size
    return x, weights, x @ weights, rng


@case
def bernoulli_glm(seed: int) -> Outcome:
    x, weights, f, rng = linear(400, seed)
    return coefficients(thalweg.BernoulliGLM(), x, (rng.random(400) < 1 / (1 + np.exp(-f))).astype(int), weights)


@case
def bernoulli_glm_rare_class(seed: int) -> Outcome:
    x, weights, f, rng = linear(3000, seed)
    y = (rng.random(3000) < 1 / (1 + np.exp(4 - f))).astype(int)
    return coefficients(thalweg.BernoulliGLM(), x, y, weights)


@case
def poisson_glm_exposure(seed: int) -> Outcome:
    x, weights, f, rng = linear(500, seed, 0.3)
    exposure = rng.uniform(0.5, 5, size=500)
    return coefficients(thalweg.PoissonGLM(), x, rng.poisson(exposure * np.exp(f)), weights, exposure=exposure)


@case
def gaussian_glm_few_rows(seed: int) -> Outcome:
    x, weights, f, rng = linear(40, seed)
    return coefficients(thalweg.GaussianGLM(), x, 7 + f + rng.normal(size=40), weights)


@case
def gaussian_glm_raw_units(seed: int) -> Outcome:
    data = split(*datasets.load_diabetes(return_X_y=True, scaled=False), seed)
    return regression(thalweg.GaussianGLM(), data)


@case
def negative_binomial_glm(seed: int) -> Outcome:
    x, weights, f, rng = linear(600, seed, 0.3)
    rate = np.exp(1 + f) * rng.gamma(2.0, 0.5, size=600)
    return coefficients(thalweg.NegativeBinomialGLM(), x, rng.poisson(rate), weights)


@case
def categorical_glm(seed: int) -> Outcome:
    x, y = classes(1500, seed, n_classes=4)
    return classification(thalweg.CategoricalGLM(), split(x, y, seed))


@case
def poisson_glm_stream(seed: int) -> Outcome:
    x, weights, f, rng = linear(2000, seed, 0.3)
    y, model = rng.poisson(np.exp(f)), thalweg.PoissonGLM()
    for i in range(0, 2000, 500):
        model.partial_fit(x[i : i + 500], y[i : i + 500])
    mean = np.ravel(model.coef_)
    return Outcome(mean, (mean - weights) ** 2)


# Topics and ratings


def corpus(documents: int, words: int, seed: int) -> scipy.sparse.csr_array:
    """Counts drawn from a correlated topic model of five topics over 400 words."""
    rng = np.random.default_rng(seed)
    topics = rng.dirichlet(np.full(400, 0.05), size=5)
    root = rng.normal(size=(5, 5)) / np.sqrt(5)
    shares = np.exp(1.5 * rng.normal(size=(documents, 5)) @ root)
    shares /= shares.sum(axis=1, keepdims=True)
    return scipy.sparse.csr_array(np.stack([rng.multinomial(words, share @ topics) for share in shares]))


def held_out(model: Any, new: Any) -> Outcome:
    """−log p of each word of the second halves of new documents, given the first."""
    found = model.completion(new)
    losses = -found.log_likelihood / found.tokens
    return Outcome(losses, losses)


@case
def topics_short_documents(seed: int) -> Outcome:
    X = corpus(700, 60, seed)
    return held_out(thalweg.CorrelatedTopicModel(5, random_state=0).fit(X[:500]), X[500:])


@case
def topics_long_documents(seed: int) -> Outcome:
    X = corpus(400, 400, seed)
    return held_out(thalweg.CorrelatedTopicModel(5, random_state=0).fit(X[:250]), X[250:])


@case
def topics_stream(seed: int) -> Outcome:
    X, model = corpus(1100, 60, seed), thalweg.CorrelatedTopicModel(5, random_state=0)
    for i in range(0, 900, 300):
        model.partial_fit(X[i : i + 300])
    return held_out(model, X[900:])


def ratings(rows: int, columns: int, count: int, seed: int) -> tuple[Array, Array, Array, Array]:
    rng = np.random.default_rng(seed)
    every = rng.permutation(rows * columns)[: count + 1000]
    pairs = np.column_stack([every // columns, every % columns])
    p, q = rng.normal(size=(rows, 2)), rng.normal(size=(columns, 2))
    y = 3 + np.sum(p[pairs[:, 0]] * q[pairs[:, 1]], axis=1) + 0.3 * rng.normal(size=len(pairs))
    return pairs[:count], pairs[count:], y[:count], y[count:]


@case
def completion_few_ratings(seed: int) -> Outcome:
    return regression(thalweg.MatrixCompletion(random_state=0), ratings(60, 40, 300, seed))


@case
def completion_many_ratings(seed: int) -> Outcome:
    return regression(thalweg.MatrixCompletion(random_state=0), ratings(300, 200, 12_000, seed))


@case
def completion_implicit(seed: int) -> Outcome:
    pairs, new, y, truth = ratings(200, 150, 6000, seed)
    model = thalweg.MatrixCompletion(feedback="implicit", random_state=0).fit(pairs[y > 4])
    ndcg = model.ranking(new[truth > 4])["ndcg"]
    return Outcome(np.array([ndcg]), np.array([1 - ndcg]))


@case
def completion_nuclear(seed: int) -> Outcome:
    model = thalweg.MatrixCompletion(method="nuclear", random_state=0)
    return regression(model, ratings(60, 40, 1200, seed), intervals=False)


# minimize


def _least_squares(x: Any, A: Any, b: Any) -> Any:
    return jnp.mean((A @ x - b) ** 2) / 2


def _lasso(seed: int, dtype: Any) -> Outcome:
    rng = np.random.default_rng(seed)
    A, truth = rng.normal(size=(300, 60)), np.where(np.arange(60) < 6, 3.0, 0.0)
    b = A @ truth + rng.normal(size=300)
    A, b = jnp.asarray(A, dtype), jnp.asarray(b, dtype)
    result = minimize(Exact(_least_squares, A, b), jnp.zeros(60, dtype), term=L1(0.1), momentum=FISTA())
    x = np.asarray(result.x, float)
    gradient = np.asarray(A, float).T @ (np.asarray(A, float) @ x - np.asarray(b, float)) / 300
    violation = np.where(x != 0, np.abs(gradient + 0.1 * np.sign(x)), np.maximum(np.abs(gradient) - 0.1, 0))
    return Outcome(x, violation, inside=np.array([result.success]), level=1.0)


@case
def minimize_lasso_float64(seed: int) -> Outcome:
    with jax.enable_x64(True):
        return _lasso(seed, jnp.float64)


@case
def minimize_lasso_float32(seed: int) -> Outcome:
    return _lasso(seed, jnp.float32)


@case
def minimize_svrg(seed: int) -> Outcome:
    x, _, f, rng = linear(500, seed, 1.0)
    y = np.where(rng.random(500) < 1 / (1 + np.exp(-f)), 1.0, -1.0)

    def losses(w: Any, batch: Any) -> Any:
        return jax.nn.softplus(-batch[1] * (batch[0] @ w))

    with jax.enable_x64(True):
        batches = MiniBatch(losses, (jnp.asarray(x), jnp.asarray(y)), batch_size=10)
        result = minimize(
            SVRG(batches, period=100), jnp.zeros(6), step=0.2, tol=Work(100 * 500), key=jax.random.key(seed)
        )
        w = np.asarray(result.x)
    gradient = -(y / (1 + np.exp(y * (x @ w)))) @ x / 500
    return Outcome(w, np.abs(gradient))


@case
def minimize_mirror_descent(seed: int) -> Outcome:
    variances = np.random.default_rng(seed).uniform(1, 5, size=20)
    with jax.enable_x64(True):
        covariance = jnp.diag(jnp.asarray(variances))
        result = minimize(
            lambda w: w @ covariance @ w, jnp.full(20, 0.05), term=Simplex(), divergence=NegativeEntropy()
        )
        w = np.asarray(result.x)
    exact = (1 / variances) / np.sum(1 / variances)
    return Outcome(w, np.abs(w - exact), inside=np.array([result.success]), level=1.0)


# Spectral sums


def _precision(seed: int) -> scipy.sparse.csr_array:
    side = 40
    line = scipy.sparse.diags([-np.ones(side - 1), (2.1 + 0.1 * seed) * np.ones(side), -np.ones(side - 1)], [-1, 0, 1])
    return scipy.sparse.csr_array(scipy.sparse.kronsum(line, line))


@case
def spectral_logdet_sparse(seed: int) -> Outcome:
    A = _precision(seed)
    return estimate(thalweg.logdet(A, jax.random.key(seed)), np.linalg.slogdet(A.toarray())[1])


@case
def spectral_logdet_large_sparse(seed: int) -> Outcome:
    side = 170
    line = scipy.sparse.diags([-np.ones(side - 1), (2.1 + 0.1 * seed) * np.ones(side), -np.ones(side - 1)], [-1, 0, 1])
    ends = 2.1 + 0.1 * seed - 2 * np.cos(np.pi * np.arange(1, side + 1) / (side + 1))
    exact = float(np.sum(np.log(ends[:, None] + ends)))
    return estimate(thalweg.logdet(scipy.sparse.kronsum(line, line).tocsr(), jax.random.key(seed)), exact)


@case
def spectral_estrada_dense_float32(seed: int) -> Outcome:
    A = np.random.default_rng(seed).normal(size=(3000, 3000)) / np.sqrt(3000) / 2
    A = (A + A.T).astype(np.float32)
    exact = float(np.sum(np.exp(np.linalg.eigvalsh(A.astype(float)))))
    return estimate(thalweg.trace_exp(jnp.asarray(A), jax.random.key(seed), method="stochastic"), exact)


@case
def spectral_trace_inverse_sparse(seed: int) -> Outcome:
    A = _precision(seed)
    return estimate(thalweg.trace_inverse(A, jax.random.key(seed)), np.trace(np.linalg.inv(A.toarray())))


def _rbf(seed: int) -> Array:
    x = np.random.default_rng(seed).uniform(size=(1500, 2))
    return np.exp(-((x[:, None] - x) ** 2).sum(-1) / (2 * 0.1**2)) + 0.01 * np.eye(1500)


@case
def spectral_logdet_dense(seed: int) -> Outcome:
    A = _rbf(seed)
    with jax.enable_x64(True):
        return estimate(thalweg.logdet(jnp.asarray(A), jax.random.key(seed)), np.linalg.slogdet(A)[1])


@case
def spectral_nuclear_norm(seed: int) -> Outcome:
    A = np.random.default_rng(seed).normal(size=(600, 300))
    with jax.enable_x64(True):
        return estimate(thalweg.nuclear_norm(jnp.asarray(A), jax.random.key(seed)), np.linalg.norm(A, "nuc"))


@case
def spectral_gradient(seed: int) -> Outcome:
    A = _rbf(seed)[:500, :500]
    with jax.enable_x64(True):
        objective = lambda noise: thalweg.logdet(jnp.asarray(A) + noise * jnp.eye(500), jax.random.key(seed)).value
        found = float(jax.grad(objective)(0.1))
    exact = float(np.trace(np.linalg.inv(A + 0.1 * np.eye(500))))
    return Outcome(np.array([found]), np.array([abs(found - exact) / exact]))

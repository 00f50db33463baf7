"""The likelihood as an oracle: its gradient is that of its value, its noise is unbiased and the key's alone."""

import jax
import numpy as np
import pytest

from thalweg.gaussian.expectations import MonteCarlo, Quadrature, ScoreSamples
from thalweg.gaussian.likelihoods import BernoulliLogit, GaussianNoise, Poisson, StudentT
from thalweg.gaussian.oracle import ExpectedLikelihood
from thalweg.gaussian.posteriors import Diagonal, Full, Implicit
from thalweg.gaussian.softmax import normal_nodes

rng = np.random.default_rng(0)
N, D = 12, 3
X = rng.normal(size=(N, D)) / 2
FACTOR = rng.normal(size=(D, D))
K = np.exp(-((X[:, None] - X) ** 2).sum(axis=-1)) + 0.1 * np.eye(N)
LABELS = rng.integers(0, 2, size=N)
IMPORTANCE = rng.uniform(0, 2, size=N)

POSTERIORS = {
    "full": Full.from_moments(rng.normal(size=D), FACTOR @ FACTOR.T + np.eye(D)),
    "diagonal": Diagonal.from_moments(rng.normal(size=D), rng.uniform(0.2, 2, size=D)),
    "implicit": Implicit.from_sites(K, rng.normal(size=N), rng.uniform(0, 2, size=N)),
}
value = jax.jit(lambda oracle, x: oracle.value(x))
full = jax.jit(lambda oracle, x: oracle.full(x))
estimate = jax.jit(lambda oracle, x, state, key: oracle.estimate(x, state, key))
every = pytest.mark.parametrize("kind", POSTERIORS)


def likelihood_of(kind, likelihood=None, targets=LABELS, **options):
    return ExpectedLikelihood(likelihood or BernoulliLogit(), targets, None if kind == "implicit" else X, **options)


@pytest.mark.parametrize(
    ("kind", "likelihood", "targets", "weights"),
    [
        ("full", BernoulliLogit(), LABELS, IMPORTANCE),
        ("diagonal", Poisson(), rng.poisson(2.0, size=N), None),
        ("implicit", BernoulliLogit(), LABELS, IMPORTANCE),
        ("implicit", StudentT(3.0, 0.5), rng.normal(size=N), None),
    ],
)
def test_the_gradient_is_that_of_the_value(kind, likelihood, targets, weights):
    oracle, x = likelihood_of(kind, likelihood, targets, weights=weights), POSTERIORS[kind]

    @jax.jit
    def evaluate(oracle, x, key):
        value_and_slope = jax.value_and_grad(oracle.value)(x)
        return value_and_slope, oracle.full(x), oracle.estimate(x, oracle.init(x), key)[0]

    (value, slope), out, estimated = evaluate(oracle, x, jax.random.key(0))
    jax.tree.map(lambda g, w: np.testing.assert_allclose(g, w, rtol=1e-9, atol=1e-9), out.gradient, slope)
    np.testing.assert_allclose(out.value, value, rtol=1e-12)
    jax.tree.map(np.testing.assert_array_equal, estimated, out)
    assert oracle.deterministic
    assert out.work == N


@every
def test_weights_count_examples(kind):
    """An example of weight 2 is an example seen twice, and one of weight 0 not seen."""
    counts = rng.permutation(np.repeat([0, 1, 2], N // 3))  # N in all, so that both share a program
    rows, ones = np.repeat(np.arange(N), counts), np.ones(N)
    x = POSTERIORS[kind]
    weighted = value(likelihood_of(kind, weights=counts), x)
    if kind == "implicit":
        seen = Implicit(*(part[rows] if part.ndim else part for part in x))
        repeated = value(ExpectedLikelihood(BernoulliLogit(), LABELS[rows], weights=ones), seen)
    else:
        repeated = value(ExpectedLikelihood(BernoulliLogit(), LABELS[rows], X[rows], weights=ones), x)
    np.testing.assert_allclose(weighted, repeated, rtol=1e-12)


STOCHASTIC = {
    "batches": {"batch_size": 5},
    "weighted batches": {"batch_size": 5, "weights": IMPORTANCE},
    "Monte Carlo": {"expectation": MonteCarlo(3)},
    "score function": {"expectation": ScoreSamples(3)},
    "score function with shared normals, batches": {"expectation": ScoreSamples(3, shared=True), "batch_size": 5},
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "noise"),
    [*(("implicit", name) for name in STOCHASTIC), ("full", "weighted batches")],
)
def test_estimates_are_unbiased_at_every_place_of_an_epoch(kind, noise):
    """The mean over runs is within five standard errors, for the first batch and for the one after it."""
    oracle, x, runs = likelihood_of(kind, **STOCHASTIC[noise]), POSTERIORS[kind], 4000

    @jax.jit
    @jax.vmap
    def two_in_a_row(key):
        keys = jax.random.split(key)
        first, state = oracle.estimate(x, oracle.init(x), keys[0])
        second, _ = oracle.estimate(x, state, keys[1])
        return (first.gradient, first.value), (second.gradient, second.value)

    exact = full(oracle, x)
    for found in two_in_a_row(jax.random.split(jax.random.key(2), runs)):
        for leaf, truth in zip(*map(jax.tree.leaves, (found, (exact.gradient, exact.value))), strict=True):
            mean, error = np.mean(leaf, axis=0), np.std(leaf, axis=0) / np.sqrt(runs)
            assert np.all(np.abs(mean - truth) <= 5 * error + 1e-12)


# Every kind of noise once: weights and batches, and normals of either use, shared or not.
COVERING = ("weighted batches", "Monte Carlo", "score function with shared normals, batches")


@pytest.mark.parametrize("noise", COVERING)
def test_the_same_key_gives_the_same_noise_whatever_x(noise):
    """With Gaussian noise every estimate of α is a quadratic in m, if batch and normals stay the same as m moves."""
    oracle = likelihood_of("implicit", GaussianNoise(1.0), rng.normal(size=N), **STOCHASTIC[noise])
    x, key = POSTERIORS["implicit"], jax.random.key(3)
    state = oracle.init(x)
    outs = [estimate(oracle, x._replace(mean=x.mean + shift), state, key) for shift in range(4)]
    slopes = np.array([np.asarray(out.gradient.mean) for out, _ in outs])
    assert np.all(np.any(slopes != 0, axis=1))
    np.testing.assert_allclose(np.diff(slopes, n=3, axis=0), 0, atol=1e-10)
    for _, state_after in outs:
        jax.tree.map(np.testing.assert_array_equal, state_after, outs[0][1])
    other, _ = estimate(oracle, x, state, jax.random.key(4))
    assert np.any(np.asarray(other.gradient.mean) != slopes[0])


def test_an_epoch_sees_every_example_once():
    oracle = likelihood_of("implicit", batch_size=4)
    x = POSTERIORS["implicit"]
    state, seen = oracle.init(x), []
    for seed in range(N // 4):
        out, state = estimate(oracle, x, state, jax.random.key(seed))
        assert out.work == 4
        seen.append(np.asarray(out.gradient.mean))
    np.testing.assert_allclose(np.sum(seen, axis=0) * 4 / N, full(oracle, x).gradient.mean, rtol=1e-12)


@pytest.mark.parametrize(
    ("arguments", "options", "error", "words"),
    [
        ((BernoulliLogit, LABELS), {}, TypeError, r"likelihood must be a Likelihood such as BernoulliLogit\(\)"),
        ((BernoulliLogit(), LABELS + 1), {}, ValueError, "BernoulliLogit: y must be"),
        ((BernoulliLogit(), np.full(3, np.nan)), {}, ValueError, "BernoulliLogit: y must be"),
        ((Poisson(), [-1.0]), {}, ValueError, "Poisson: y must be"),
        (
            (BernoulliLogit(), LABELS[:, None]),
            {},
            ValueError,
            r"targets must be a non-empty vector, found shape \(12, 1",
        ),
        ((BernoulliLogit(), []), {}, ValueError, "targets must be a non-empty vector"),
        (
            (BernoulliLogit(), LABELS, X[:5]),
            {},
            ValueError,
            r"design must be a matrix of 12 rows.* found shape \(5, 3\)",
        ),
        ((BernoulliLogit(), LABELS, X[:, 0]), {}, ValueError, r"design must be a matrix of 12 rows.* shape \(12,\)"),
        ((BernoulliLogit(), LABELS), {"weights": IMPORTANCE[:3]}, ValueError, "weights must be a vector of 12"),
        ((BernoulliLogit(), LABELS), {"weights": X}, ValueError, "weights must be a vector of 12"),
        (
            (BernoulliLogit(), LABELS),
            {"weights": -IMPORTANCE},
            ValueError,
            "weights must hold finite numbers of at least 0, found -",
        ),
        ((BernoulliLogit(), LABELS), {"batch_size": 0}, ValueError, "batch_size must be"),
        ((BernoulliLogit(), LABELS), {"batch_size": N + 1}, ValueError, "batch_size must be"),
        ((BernoulliLogit(), LABELS), {"expectation": Quadrature}, TypeError, r"expectation must be an Expectation"),
    ],
)
def test_bad_input_is_refused(arguments, options, error, words):
    with pytest.raises(error, match=words):
        ExpectedLikelihood(*arguments, **options)


def test_posteriors_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="design must be given for a Full posterior"):
        ExpectedLikelihood(BernoulliLogit(), LABELS).value(POSTERIORS["full"])
    with pytest.raises(ValueError, match="design must be None for the Implicit posterior"):
        ExpectedLikelihood(BernoulliLogit(), LABELS, X).value(POSTERIORS["implicit"])
    with pytest.raises(ValueError, match="there are 5 targets, and the Implicit posterior is over 12"):
        ExpectedLikelihood(BernoulliLogit(), LABELS[:5], batch_size=2).full(POSTERIORS["implicit"])
    with pytest.raises(ValueError, match="design has 2 columns, and the Diagonal posterior is over 3"):
        ExpectedLikelihood(BernoulliLogit(), LABELS, X[:, :2]).value(POSTERIORS["diagonal"])


@pytest.mark.parametrize("dimension", [2, 128, 139])
def test_nodes_of_many_contrasts_span_them(dimension):
    nodes = normal_nodes(dimension, 256)
    np.testing.assert_allclose(nodes.T @ nodes / len(nodes), np.eye(dimension), atol=1e-9)
    np.testing.assert_allclose(nodes.sum(axis=0), 0, atol=1e-9)

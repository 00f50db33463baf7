"""Document completion: posterior means against quadrature, errors against repetition, halves that are halves."""

import numpy as np
import pytest
from scipy.sparse import csr_array
from scipy.special import softmax

from thalweg import data
from thalweg.topics import Dirichlet, LogisticNormal, document_completion, split_tokens
from thalweg.topics.held_out import DOCUMENTS_AT_ONCE, log_predictive

TOPICS = np.array([[0.6, 0.3, 0.05, 0.05], [0.1, 0.1, 0.4, 0.4], [0.05, 0.45, 0.45, 0.05]])
WORDS = csr_array([[3, 1, 0, 0], [0, 9, 8, 0], [0, 0, 0, 0], [40, 20, 30, 10]])


def likelihood(proportions, topics, counts):
    """p(words | proportions) for a grid of proportions, (points, documents)."""
    return np.exp(np.log(proportions @ topics) @ counts.toarray().T)


def logistic_grid(mean, covariance, topics):
    """Proportions on a fine grid of z, the last fixed at 0 if the mean is short, and prior weights."""
    axes = [np.linspace(-8, 8, 121)] * len(mean)
    z = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, len(mean))
    away = z - mean
    weights = np.exp(-0.5 * np.einsum("if,fg,ig->i", away, np.linalg.inv(covariance), away))
    full = np.column_stack([z, np.zeros((len(z), topics - len(mean)))])
    return softmax(full, axis=1), weights


def dirichlet_grid(concentration):
    """The same for a Dirichlet, by the trapezoidal rule in the logits, where its tails are exponential."""
    free = len(concentration) - 1
    z = np.stack(np.meshgrid(*[np.linspace(-45, 45, 301)] * free, indexing="ij"), axis=-1).reshape(-1, free)
    proportions = softmax(np.column_stack([z, np.zeros(len(z))]), axis=1)
    return proportions, np.exp(np.log(proportions) @ concentration)


def posterior_mean(grid, topics, counts):
    proportions, prior = grid
    weights = prior[:, None] * likelihood(proportions, topics, counts)
    return (weights.T @ proportions) / weights.sum(axis=0)[:, None]


COVARIANCE = np.array([[1.5, -0.6], [-0.6, 0.8]])
CASES = {
    "two topics": (LogisticNormal([0.5], [[2.0]]), logistic_grid(np.array([0.5]), np.array([[2.0]]), 2), 2),
    "three topics": (LogisticNormal([0.5, -1.0], COVARIANCE), logistic_grid([0.5, -1.0], COVARIANCE, 3), 3),
    "both free": (LogisticNormal([0.5, -1.0], COVARIANCE), logistic_grid([0.5, -1.0], COVARIANCE, 2), 2),
    "Dirichlet, two": (Dirichlet([0.3, 2.0]), dirichlet_grid([0.3, 2.0]), 2),
    "Dirichlet, three": (Dirichlet([0.5, 0.4, 1.0]), dirichlet_grid([0.5, 0.4, 1.0]), 3),
}


@pytest.mark.parametrize("case", CASES)
def test_posterior_means_are_those_of_quadrature(case):
    prior, grid, k = CASES[case]
    chains = prior.chains(TOPICS[:k], WORDS, np.random.default_rng(0), chains=64, moves=40)
    mean, error = chains.mean(axis=1), chains.std(axis=1, ddof=1) / 8
    wanted = posterior_mean(grid, TOPICS[:k], WORDS)
    np.testing.assert_allclose(mean.sum(axis=1), 1, rtol=1e-5)
    assert (np.abs(mean - wanted) < 5 * error + 1e-5).all()
    assert (error < 0.03).all()


@pytest.mark.parametrize("case", ["two topics", "three topics", "Dirichlet, two"])
def test_the_score_is_that_of_the_definition(case):
    prior, grid, k = CASES[case]
    rng = np.random.default_rng(1)
    counts = csr_array(rng.poisson(3, size=(30, 4)))
    found = document_completion(counts, TOPICS[:k], prior, random_state=5)
    observed, held = split_tokens(counts, 5)
    predictive = posterior_mean(grid, TOPICS[:k], observed) @ TOPICS[:k]
    each = np.sum(held.toarray() * np.log(predictive), axis=1)
    wanted = each.sum() / held.sum()
    assert abs(found.score - wanted) < 5 * found.monte_carlo_error
    assert found.monte_carlo_error < 0.01
    apart = each - wanted * held.sum(axis=1)
    error = np.sqrt(np.sum(apart**2) * 30 / 29) / held.sum()
    np.testing.assert_allclose(found.standard_error, error, rtol=0.1)


def test_the_monte_carlo_error_is_the_spread_of_repetitions():
    prior, _, k = CASES["three topics"]
    counts = csr_array(np.random.default_rng(1).poisson(3, size=(30, 4)))
    observed, held = split_tokens(counts, 0)
    runs = [
        log_predictive(held, TOPICS[:k], prior.chains(TOPICS[:k], observed, np.random.default_rng(s)))
        for s in range(20)
    ]
    spread = np.std([values.sum() for values, _ in runs], ddof=1)
    reported = np.sqrt(np.mean([np.sum(noise**2) for _, noise in runs]))
    assert 0.5 < spread / reported < 1.6  # 19 degrees of freedom


def test_a_mean_for_each_document():
    means = np.array([[3.0], [-3.0], [0.0], [0.0]])
    chains = LogisticNormal(means, [[1.0]]).chains(TOPICS[:2], WORDS, np.random.default_rng(0), chains=32)
    for row, mean in enumerate(means):
        wanted = posterior_mean(logistic_grid(mean, np.eye(1), 2), TOPICS[:2], WORDS[[row]])
        error = chains[row].std(axis=0, ddof=1) / np.sqrt(32)
        assert (np.abs(chains[row].mean(axis=0) - wanted[0]) < 5 * error + 1e-5).all()


def test_each_of_many_documents_is_scored_under_its_own_mean():
    count = DOCUMENTS_AT_ONCE + 50
    means = np.where(np.arange(count) % 2, 3.0, -3.0)[:, None]
    counts = csr_array(np.random.default_rng(1).poisson(3, size=(count, 4)))
    found = document_completion(counts, TOPICS[:2], LogisticNormal(means, [[1.0]]), random_state=5)
    observed, held = split_tokens(counts, 5)
    wanted = np.empty(count)
    for mean in (3.0, -3.0):
        rows = np.flatnonzero(means[:, 0] == mean)
        predictive = posterior_mean(logistic_grid([mean], np.eye(1), 2), TOPICS[:2], observed[rows]) @ TOPICS[:2]
        wanted[rows] = np.sum(held[rows].toarray() * np.log(predictive), axis=1)
    assert np.nanmax(np.abs(found.log_likelihood - wanted) / np.maximum(found.noise, 1e-6)) < 8
    assert abs(found.score - wanted[found.tokens > 0].sum() / held.sum()) < 5 * found.monte_carlo_error


def test_halves_are_random_halves_of_tokens():
    counts = csr_array(np.random.default_rng(0).poisson(0.8, size=(200, 6)))
    observed, held = split_tokens(counts, 3)
    np.testing.assert_array_equal((observed + held).toarray(), counts.toarray())
    total = counts.sum(axis=1)
    np.testing.assert_array_equal(held.sum(axis=1), total // 2)
    # Of (6, 2) tokens four are held out: three of the first kind on average, with the hypergeometric variance 3/7.
    many = csr_array(np.tile([6, 2], (4000, 1)))
    firsts = split_tokens(many, 0)[1].toarray()[:, 0]
    assert abs(firsts.mean() - 3) < 5 * np.sqrt(3 / 7 / 4000)
    np.testing.assert_allclose(firsts.var(), 3 / 7, rtol=0.12)


def test_what_is_given_is_left_as_it_was():
    counts = csr_array((np.array([2.0, 3.0, 1.0]), np.array([3, 0, 1]), np.array([0, 2, 3])), shape=(2, 4))
    before = counts.copy()
    one = document_completion(counts, TOPICS, Dirichlet(np.ones(3)), random_state=2)
    np.testing.assert_array_equal(counts.indices, before.indices)
    np.testing.assert_array_equal(counts.data, before.data)
    again = document_completion(counts.toarray(), TOPICS, Dirichlet(np.ones(3)), random_state=2)
    np.testing.assert_array_equal(one.log_likelihood, again.log_likelihood)


def test_documents_without_a_half_do_not_count():
    found = document_completion([[0, 0, 0, 0], [1, 0, 0, 0], [2, 2, 0, 0]], TOPICS, Dirichlet(np.ones(3)))
    np.testing.assert_array_equal(found.tokens, [0, 0, 2])
    assert np.isnan(found.log_likelihood[:2]).all()
    assert np.isfinite(found.score)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (([[1.5, 0, 0, 0]], TOPICS, Dirichlet(np.ones(3))), "counts must be whole"),
        (([[-1, 0, 0, 0]], TOPICS, Dirichlet(np.ones(3))), "counts must be whole"),
        (([[np.nan, 0, 0, 0]], TOPICS, Dirichlet(np.ones(3))), "counts must be whole"),
        (([[1, 1, 1]], TOPICS, Dirichlet(np.ones(3))), "one vocabulary"),
        (([[1, 0, 0, 0]], TOPICS, Dirichlet(np.ones(3))), "two tokens or more"),
        ((np.zeros((0, 4), int), TOPICS, Dirichlet(np.ones(3))), "two tokens or more"),
        (([[1, 1, 1, 1]], -TOPICS, Dirichlet(np.ones(3))), "components must hold"),
        (([[1, 1, 1, 1]], TOPICS, Dirichlet(np.ones(2))), "concentration must have"),
        (([[1, 1, 1, 1]], TOPICS, LogisticNormal(np.ones(4), np.eye(4))), "mean must have an entry"),
        (([[1, 1, 1, 1]], TOPICS, LogisticNormal(np.ones((2, 3)), np.eye(3))), "mean must have a row"),
        (([[1, 1]], [[1.0, 0.0], [1.0, 0.0]], Dirichlet(np.ones(2))), "no probability in any topic"),
    ],
)
def test_what_cannot_be_scored_is_refused(arguments, words):
    with pytest.raises(ValueError, match=words):
        document_completion(*arguments)


@pytest.mark.parametrize("covariance", [np.eye(3), -np.eye(2), np.ones((2, 2))])
def test_a_covariance_must_be_one(covariance):
    with pytest.raises(ValueError, match="covariance must"):
        LogisticNormal(np.zeros(2), covariance)


def test_a_concentration_is_positive():
    with pytest.raises(ValueError, match="concentration must"):
        Dirichlet([1.0, 0.0])


def importance(prior, topics, counts, size, rng):
    """Posterior mean by plain importance sampling from the prior."""
    proportions = softmax(rng.multivariate_normal(prior.mean, prior.covariance, size), axis=1)
    return posterior_mean((proportions, np.ones(size)), topics, counts)


@pytest.mark.slow
def test_ten_topics_agree_with_a_million_draws_from_the_prior():
    rng = np.random.default_rng(0)
    topics = rng.dirichlet(np.full(50, 0.1), size=10) * 0.95 + 0.001
    root = rng.normal(size=(10, 10)) / 2
    prior = LogisticNormal(rng.normal(size=10), root @ root.T + 0.5 * np.eye(10))
    counts = csr_array(rng.poisson(0.3, size=(6, 50)))
    topics /= topics.sum(axis=1, keepdims=True)
    chains = prior.chains(topics, counts, rng, chains=64, moves=100)
    halves = [importance(prior, topics, counts, 500_000, rng) for _ in range(4)]
    error = np.hypot(chains.std(axis=1, ddof=1) / 8, np.std(halves, axis=0, ddof=1) / 2)
    assert (np.abs(chains.mean(axis=1) - np.mean(halves, axis=0)) < 6 * error + 1e-4).all()


@pytest.mark.slow
@pytest.mark.shared_data
def test_a_thousand_articles_and_fifty_topics_are_scored_to_three_digits():
    ap = data.load("ap")
    counts = csr_array((ap.counts.astype(int), ap.indices.astype(np.int32), ap.indptr), shape=(2246, 10473))
    rng = np.random.default_rng(0)
    topics = np.stack([counts[rng.permutation(1123)[:20]].sum(axis=0) + 0.05 for _ in range(50)])
    for prior in (LogisticNormal(np.zeros(50), 4 * np.eye(50)), Dirichlet(np.full(50, 0.1))):
        assert document_completion(counts[1123:], topics, prior).monte_carlo_error < 0.002

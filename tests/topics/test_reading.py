"""Words, documents and correlations of topics: against plain loops, against each other, and where they are planted."""

import numpy as np
import pytest
from scipy.sparse import csr_array
from scipy.special import softmax

from thalweg.topics import (
    correlation_graph,
    exclusivity,
    npmi,
    top_documents,
    top_indices,
    top_words,
    topic_correlations,
    u_mass,
    word_scores,
)

RNG = np.random.default_rng(0)
TOPICS = RNG.dirichlet(np.full(40, 0.3), size=4)
COUNTS = csr_array(RNG.poisson(0.4, size=(60, 40)))


def frex(topics, k, w, weight):
    """The harmonic mean of two empirical distribution functions, one word at a time; no ties here."""
    share = topics / topics.sum(axis=0)
    exclusive = np.mean(share[k] <= share[k, w])
    frequent = np.mean(topics[k] <= topics[k, w])
    return 1 / (weight / exclusive + (1 - weight) / frequent)


@pytest.mark.parametrize("weight", [0.0, 0.5, 0.8, 1.0])
def test_frex_is_the_harmonic_mean_of_ranks(weight):
    wanted = [[frex(TOPICS, k, w, weight) for w in range(40)] for k in range(4)]
    np.testing.assert_allclose(word_scores(TOPICS, "frex", weight=weight), wanted, rtol=1e-12)


def test_lift_divides_by_how_often_a_word_occurs():
    frequency = np.asarray(COUNTS.sum(axis=0))
    frequency[3] = 0
    found = word_scores(TOPICS, "lift", frequency=frequency)
    wanted = TOPICS[1, 7] / (frequency[7] / frequency.sum())
    np.testing.assert_allclose(found[1, 7], wanted, rtol=1e-12)
    assert (found[:, 3] == 0).all()


def test_topics_need_not_be_scaled():
    for by in ("probability", "frex", "lift"):
        np.testing.assert_array_equal(top_indices(7.0 * TOPICS, 10, by), top_indices(TOPICS, 10, by))


def test_a_word_of_all_topics_is_first_by_probability_only():
    topics = np.full((3, 30), 0.01)
    topics[:, 0] = 1.0
    for k in range(3):
        topics[k, 1 + 5 * k : 6 + 5 * k] = 0.2
    words = [f"w{i}" for i in range(30)]
    assert [row[0] for row in top_words(topics, words, 3)] == ["w0"] * 3
    for by in ("frex", "lift"):
        for k, row in enumerate(top_words(topics, words, 5, by)):
            assert set(row) == {f"w{i}" for i in range(1 + 5 * k, 6 + 5 * k)}


def test_more_words_than_there_are():
    assert top_indices(TOPICS, 100).shape == (4, 40)


def test_top_documents_are_sorted_and_ties_keep_their_order():
    np.testing.assert_array_equal(top_documents([[0.5, 0.5], [0.9, 0.1], [0.5, 0.5]], 1, 5), [0, 2, 1])


def test_correlations_of_proportions_are_pearsons():
    proportions = RNG.dirichlet(np.ones(5), size=50)
    np.testing.assert_allclose(topic_correlations(proportions), np.corrcoef(proportions.T), rtol=1e-10)


def test_correlations_of_a_prior_do_not_depend_on_what_all_topics_share():
    root = RNG.normal(size=(5, 5))
    covariance = root @ root.T
    shared = RNG.normal(size=5)
    same = covariance + shared[:, None] + shared[None] + 3.0  # cov of z + a·1, a correlated with z
    np.testing.assert_allclose(topic_correlations(covariance=same), topic_correlations(covariance=covariance))
    z = RNG.multivariate_normal(np.zeros(5), covariance, 200_000)
    logs = np.log(softmax(z, axis=1))
    centred = logs - logs.mean(axis=1, keepdims=True)
    np.testing.assert_allclose(topic_correlations(covariance=covariance), np.corrcoef(centred.T), atol=0.015)


def test_a_topic_that_never_changes_has_no_correlations():
    proportions = np.column_stack([np.full(10, 0.2), np.linspace(0, 0.8, 10), np.linspace(0.8, 0, 10)])
    np.testing.assert_allclose(topic_correlations(proportions), [[1, 0, 0], [0, 1, -1], [0, -1, 1]], atol=1e-12)


@pytest.mark.parametrize("method", ["threshold", "neighbours"])
def test_the_graph_finds_topics_that_were_made_to_go_together(method):
    covariance = 0.5 * np.eye(8)
    for i, j in ((0, 1), (4, 6)):
        covariance[i, j] = covariance[j, i] = 0.4
    z = np.random.default_rng(1).multivariate_normal(np.zeros(8), covariance, 2000)
    graph = correlation_graph(softmax(z, axis=1), method, threshold=0.2)
    assert {tuple(edge) for edge in graph.edges} == {(0, 1), (4, 6)}
    assert (np.diff(graph.correlations) <= 0).all()


def test_neighbours_leave_out_what_a_third_topic_explains():
    z = np.random.default_rng(2).normal(size=(3000, 12))
    z[:, 0] = z[:, 1] + 0.6 * z[:, 0]
    z[:, 2] = z[:, 1] + 0.6 * z[:, 2]
    joined = lambda method: {tuple(map(int, edge)) for edge in correlation_graph(softmax(z, axis=1), method).edges}
    assert {(0, 1), (1, 2), (0, 2)} <= joined("threshold")
    assert {(0, 1), (1, 2)} <= joined("neighbours")
    assert (0, 2) not in joined("neighbours")


def documents_with(counts, *words):
    return sum(all(row[w] > 0 for w in words) for row in counts.toarray())


def test_coherences_are_those_of_counting():
    top = top_indices(TOPICS, 5)
    n = COUNTS.shape[0]
    for k, words in enumerate(top):
        mimno, bouma = 0.0, []
        for m in range(1, 5):
            for l in range(m):
                both, better, worse = (
                    documents_with(COUNTS, *pair) for pair in ((words[m], words[l]), (words[l],), (words[m],))
                )
                mimno += np.log((both + 1) / better)
                bouma.append(np.log((both / n) / (better * worse / n**2)) / -np.log(both / n) if both else -1.0)
        np.testing.assert_allclose(u_mass(top, COUNTS)[k], mimno, rtol=1e-12)
        np.testing.assert_allclose(npmi(top, COUNTS)[k], np.mean(bouma), rtol=1e-12)
        own = np.mean([TOPICS[k, w] / TOPICS[:, w].sum() for w in words])
        np.testing.assert_allclose(exclusivity(TOPICS, top)[k], own, rtol=1e-12)


def test_words_that_never_or_always_occur():
    counts = np.array([[1, 1, 0], [2, 1, 0]])
    np.testing.assert_array_equal(npmi([[0, 1], [0, 2]], counts), [1.0, -1.0])
    np.testing.assert_allclose(u_mass([[0, 2], [2, 0]], counts), [np.log(1 / 2), np.nan])


def test_planted_topics_cohere_and_mixed_words_do_not():
    rng = np.random.default_rng(3)
    blocks = np.kron(np.eye(3), np.ones((1, 10))) / 10
    proportions = rng.dirichlet(np.full(3, 0.1), size=300)
    counts = np.stack([rng.multinomial(40, row @ blocks) for row in proportions])
    planted, mixed = np.arange(30).reshape(3, 10), np.arange(30).reshape(10, 3).T
    for measure in (u_mass, npmi):
        assert measure(planted, counts).min() > measure(mixed, counts).max()
    assert (exclusivity(blocks, planted) == 1).all()


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: top_words(TOPICS, ["a"], 3), "vocabulary must have a word for each of the 40"),
        (lambda: top_indices(TOPICS, 0), "n must be a whole number"),
        (lambda: top_indices(TOPICS, 3, "love"), "by must be one of"),
        (lambda: word_scores(TOPICS, "frex", weight=2.0), "weight must be"),
        (lambda: word_scores(TOPICS, "lift", frequency=[1, 2]), "frequency must hold a count"),
        (lambda: word_scores(np.full((2, 3), np.nan)), "components must hold"),
        (lambda: top_documents([[0.5, 0.5]], 2), "topic must be a whole number from 0 to 1"),
        (lambda: topic_correlations(), "either proportions or covariance"),
        (lambda: topic_correlations(covariance=[1.0]), "covariance must be a square"),
        (lambda: topic_correlations(covariance=np.triu(np.ones((3, 3)))), "covariance must be symmetric"),
        (lambda: topic_correlations(covariance=-np.eye(3)), "no negative eigenvalue"),
        (lambda: topic_correlations([[-0.1, 1.1]]), "proportions must hold"),
        (lambda: correlation_graph([[0.5, 0.5]], "huge"), "method must be one of"),
        (lambda: u_mass([[0, 40]], COUNTS), "top must hold columns from 0 to 39"),
        (lambda: npmi([[0]], COUNTS), "two words or more"),
        (lambda: npmi([[0.5, 1.0]], COUNTS), "top must hold one row"),
        (lambda: exclusivity(TOPICS, [[0, 1]]), "row for each of the 4 topics"),
    ],
)
def test_bad_arguments_are_named(call, words):
    with pytest.raises(ValueError, match=words):
        call()


def test_what_are_no_numbers_is_told():
    with pytest.raises(ValueError, match="counts must be whole numbers of at least 0, found nan"):
        npmi([[0, 1]], np.full((3, 2), np.nan))
    with pytest.raises(TypeError, match="components must hold numbers, found <U1"):
        top_words([["x"]], ["a"])
    with pytest.raises(ValueError, match="components must hold one row of probabilities"):
        top_words(np.zeros((0, 4)), list("abcd"))

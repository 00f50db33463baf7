"""Initial topics: the anchors that there are, and the mixtures of them that words are."""

import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment, nnls
from scipy.sparse import csr_array
from scipy.special import softmax

from thalweg.topics import start

TOPICS = 6


def likeness(found, true):
    unit = lambda rows: rows / np.linalg.norm(rows, axis=1, keepdims=True)
    cosines = unit(found) @ unit(true).T
    return cosines[linear_sum_assignment(-cosines)]


def background_and_own(rng):
    """Topics that share most of what they write, each with words of its own."""
    own = np.kron(np.eye(TOPICS), np.ones(10)) * rng.gamma(1.0, size=60)
    own /= own.sum(axis=1, keepdims=True)
    return np.hstack([np.tile(0.7 * rng.dirichlet(np.ones(30)), (TOPICS, 1)), 0.3 * own])


def test_anchors_are_found_under_what_all_topics_share():
    rng = np.random.default_rng(0)
    topics = background_and_own(rng)
    shares = rng.dirichlet(np.full(TOPICS, 0.3), size=3000)
    counts = csr_array(np.stack([rng.multinomial(60, p) for p in shares @ topics]))
    found = start.starting_topics(counts, TOPICS)[0]
    assert likeness(found[:, 30:], topics[:, 30:]).min() > 0.97
    assert likeness(found, topics).min() > 0.97


def test_mixtures_are_those_of_constrained_least_squares():
    rng = np.random.default_rng(0)
    corners = 5 + rng.normal(size=(4, 8))  # far from the origin: what they share is larger than what they do not
    rows = rng.dirichlet(np.ones(4), size=20) @ corners + 0.3 * rng.normal(size=(20, 8))
    found = start._mixtures(rows, corners)
    heavy = 1e4  # the sum is one because everything else costs more
    for row, weights in zip(rows, found, strict=True):
        exact, _ = nnls(np.vstack([corners.T, np.full(4, heavy)]), np.append(row, heavy))
        np.testing.assert_allclose(weights, exact, atol=1e-4)


@pytest.mark.parametrize("seed", [1, 3, 4])
def test_a_rare_topic_of_short_documents_is_among_the_starts(seed):
    rng = np.random.default_rng(seed)
    topics = rng.dirichlet(np.full(200, 0.1), size=4)
    shares = softmax(rng.normal(size=(800, 4)) - [2.0, 0, 0, 0], axis=1)
    counts = csr_array(np.stack([rng.multinomial(30, p / p.sum()) for p in shares @ topics]))
    unit = lambda rows: rows / np.linalg.norm(rows, axis=-1, keepdims=True)
    assert max(np.max(unit(given) @ unit(topics[0])) for given in start.starting_topics(counts, 4)) > 0.88

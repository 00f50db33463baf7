"""Chains in posteriors: their draws have the distributions they should, and effects that come of them cover."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.sparse import csr_array
from scipy.special import gammaln, softmax

from thalweg import CorrelatedTopicModel
from thalweg.gaussian.softmax import contrasts
from thalweg.topics.chains import ChainTarget, adaptation_rate
from thalweg.topics.documents import DocumentWords
from thalweg.topics.effects import JointChain, log_marginal
from thalweg.topics.pages import BatchShape, make_pages
from thalweg.topics.prevalence import Prevalence

COPIES, SIDES = 2000, 2
TOPICS = np.array([[0.6, 0.1], [0.3, 0.2], [0.1, 0.7]])
DOCUMENT = np.array([[2.0, 1.0, 4.0]])
MEAN, VARIANCE = 0.3, 1.7


@pytest.fixture(scope="module")
def copies():
    """Chains of as many copies of one document with two topics, and after some sweeps where they are."""
    table = csr_array(np.repeat(DOCUMENT, COPIES, axis=0).astype(np.float32))
    basis = contrasts(SIDES)
    prior = Prevalence(np.array([[MEAN]]) @ basis.T, VARIANCE * basis @ basis.T)
    chain = JointChain(table, np.ones((COPIES, 1)), TOPICS, prior, 0.2, 0)
    for move in range(50):
        words = chain.draw_documents(adaptation_rate(move, 30))
    return chain, np.asarray(chain.parts[0].state.u)[:COPIES, 0, 0], words


def posterior():
    """The document's u on a grid, and its posterior there."""
    u = np.linspace(-8, 8, 4001)
    shares = softmax(u[:, None] * contrasts(SIDES)[:, 0], axis=1)
    log = np.log(shares @ TOPICS.T) @ DOCUMENT[0] - (u - MEAN) ** 2 / (2 * VARIANCE)
    weights = np.exp(log - log.max())
    return u, shares, weights / weights.sum()


def test_chains_of_documents_have_the_exact_posterior(copies):
    u, _, weights = posterior()
    mean = weights @ u
    variance = weights @ (u - mean) ** 2
    fourth = weights @ (u - mean) ** 4
    found = copies[1]
    assert abs(found.mean() - mean) < 5 * np.sqrt(variance / COPIES)
    assert abs(found.var() - variance) < 5 * np.sqrt((fourth - variance**2) / COPIES)


def test_words_get_topics_by_their_chances(copies):
    u, shares, weights = posterior()
    joint = shares[:, None] * TOPICS[None]
    chance = weights @ (joint / joint.sum(axis=2, keepdims=True)).reshape(len(u), -1)
    expected = COPIES * DOCUMENT[0][:, None] * chance.reshape(3, SIDES)
    # Tokens of a document share its u: at most its whole count moves together.
    error = np.sqrt(COPIES) * DOCUMENT[0][:, None] / 2
    assert np.all(np.abs(copies[2] - expected) < 5 * error)
    assert copies[2].sum() == COPIES * DOCUMENT.sum()


@pytest.mark.parametrize("library", [np, jnp])
def test_the_gradient_is_that_of_the_density(library):
    rng = np.random.default_rng(0)
    topics, basis = rng.dirichlet(np.ones(6), size=4).T, contrasts(4)
    table = csr_array(rng.poisson(1.5, size=(3, 6)).astype(float))
    pages = make_pages(table, BatchShape(3, 3, 8))
    pages = pages._replace(counts=pages.counts.astype(float))
    u, means = rng.normal(size=(3, 2, 3)), rng.normal(size=(3, 3))
    given = (pages, topics, means, np.diag([1.0, 2.0, 3.0]), basis)

    def log_density(given, u):
        pages, topics, *prior = given
        return ChainTarget(DocumentWords.of(pages, topics, 3), *prior).log_density(u)

    if library is jnp:
        log_density = jax.jit(log_density)
    _, gradients = map(np.asarray, log_density(given, u))
    for side in range(3):
        step = 1e-5 * np.eye(3)[side]
        up, down = (np.asarray(log_density(given, u + s)[0]) for s in (step, -step))
        np.testing.assert_allclose((up - down) / 2e-5, gradients[:, :, side], rtol=1e-6)


def test_the_concentration_is_scored_by_the_dirichlet_multinomial():
    words = np.array([[3.0, 0.0], [1.0, 2.0]])
    for a in (0.1, 2.0):
        by_hand = sum(
            gammaln(2 * a) - gammaln(2 * a + column.sum()) + np.sum(gammaln(a + column) - gammaln(a))
            for column in words.T
        )
        assert log_marginal(words, a) == pytest.approx(by_hand)


def drawn(seed, documents=300, length=60, words=60, topics=3):
    """Documents, a covariate, and its effects."""
    rng = np.random.default_rng(seed)
    components = rng.dirichlet(np.full(words, 0.1), size=topics)
    effects = 0.6 * rng.normal(size=topics)
    effects -= effects.mean()
    covariate = rng.normal(size=documents)
    shares = softmax(covariate[:, None] * effects + rng.normal(size=(documents, topics)), axis=1)
    return (
        csr_array(np.stack([rng.multinomial(length, p / p.sum()) for p in shares @ components])),
        covariate,
        components,
        effects,
    )


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:draws of effects:UserWarning")
def test_intervals_of_effects_cover_with_topics_learned():
    covered, found, true = [], [], []
    for seed in range(24):
        X, covariate, components, effects = drawn(seed)
        model = CorrelatedTopicModel(3, random_state=seed).fit(X, covariates=covariate)
        order = np.argmax(components @ model.components_.T, axis=1)
        summary = model.effects()
        low, high = summary.interval[order].T
        covered.append(np.mean((low <= effects) & (effects <= high)))
        found.append(summary.means[order])
        true.append(effects)
    assert np.mean(covered) > 0.95 - 5 * np.std(covered) / np.sqrt(24)
    slopes = [f @ t / (t @ t) for f, t in zip(found, true, strict=True)]
    weights = np.array([t @ t for t in true])
    assert abs(np.average(slopes, weights=weights) - 1) < 0.06

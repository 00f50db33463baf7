"""Draws from the joint posterior of topics, prior and documents refine what was learned, and give effects with errors.

Variational EM takes each document's posterior for a Gaussian and the topics for known. Both make Σ and effects of
covariates too large and their errors too small, and leave topics that predict worse than their mean over a chain in the
posterior does. So a :class:`JointChain` goes on from there, and topics and prior become their means over it. One sweep
draws in turn

1. u_d of every document given topics and prior (:mod:`thalweg.topics.chains`), z_d = Bu_d ~ N(Cᵀx_d, Σ);
2. the topic of every word: p(k) ∝ β_k e^{z_k};
3. the concentration of the topics' Dirichlet prior, and the topics: Dirichlet given how often each wrote each word. A
   concentration that is too high makes topics too flat, and proportions too extreme to make up for it;
4. Σ and C: inverse Wishart and matrix normal given all u_d.

The mean and covariance of C over the chain are its effects. The chain keeps to the topics it begins with: topics that
were not found have no effects.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int
from scipy.linalg import helmert
from scipy.sparse import csr_array
from scipy.special import gammaln, softmax
from scipy.stats import invwishart

from thalweg.compiling import quick_jit
from thalweg.files import storable
from thalweg.linalg import factorise
from thalweg.padding import padded, padded_size
from thalweg.runs import Run
from thalweg.topics.chains import ChainState, ChainTarget, adaptation_rate, draw_noise, move_chains
from thalweg.topics.corpus import Topics, TopicSettings
from thalweg.topics.documents import DocumentWords, has_long_loops
from thalweg.topics.pages import SIZE_GRAIN, DocumentBatch, Pages, make_batches, split_rows
from thalweg.topics.prevalence import Prevalence, covariate_ridge

__all__ = ["Effects", "refined"]

WARM_UP_SHARE = 0.25
"""Sweeps that warm a chain up, as a share of the draws that may follow; doubled, a fit takes a sixth longer."""
MAX_ROUNDS = 10
"""Rounds of draws for effects, at most. Doubled, a chain that moves slowly takes twice as long."""
ENOUGH_DRAWS = 50
"""Independent draws that those of effects should be worth: the error of a deviation is then a tenth of it."""


@storable
class Effects(NamedTuple):
    """Coefficients C, of which each row sums to zero over topics, and the covariance of each topic's column.

    Examples
    --------
    >>> Effects._fields
    ('coefficients', 'covariances', 'worth')
    """

    coefficients: Float[np.ndarray, "p k"]
    covariances: Float[np.ndarray, "k p p"]
    worth: float
    """Independent draws that those of the chain are worth, of the coefficient that moved slowest."""


@quick_jit(lambda *_: True, loops=has_long_loops)
def _sweep(
    pages: Pages,
    topics: Float[Array, "v k"],
    prior: tuple[Array, Array, Array],
    state: ChainState,
    noise: tuple[Array, ...],
    tokens: Int[Array, " t"],
    uniforms: Float[Array, " t"],
    rate: Float[Array, ""],
) -> tuple[ChainState, Int[Array, " t"]]:
    """Move the chain of every document, and draw the topic of every token, given by its index on the pages."""
    words = DocumentWords.of(pages, topics, len(state.u))
    state, proportions = move_chains(ChainTarget(words, *prior), state, noise, rate)
    cumulate = jnp.triu(jnp.ones((topics.shape[1],) * 2, topics.dtype))
    weights = proportions[pages.document, 0][:, :, None] * cumulate[None]
    cumulative = (words.chances @ weights).reshape(-1, topics.shape[1])[tokens]
    return state, jnp.sum(cumulative[:, :-1] < (uniforms * cumulative[:, -1])[:, None], axis=1)


@dataclass
class _ChainPart:
    """Some documents of a chain and their state."""

    batch: DocumentBatch
    tokens: Int[Array, " t"]
    """The indices of tokens on the pages, filled up."""
    words: Int[np.ndarray, " s"]
    """The word of each token, not filled up."""
    state: ChainState


class JointChain:
    """A chain in the joint posterior, from topics and a prior on. Iterate over :meth:`draws`.

    Examples
    --------
    >>> table = csr_array(np.repeat([[9.0, 0.0], [0.0, 9.0]], 20, axis=0).astype(np.float32))
    >>> topics = np.array([[0.9, 0.1], [0.1, 0.9]])
    >>> chain = JointChain(table, np.ones((40, 1)), topics, Prevalence.start(1, 2), smoothing=0.2, seed=0)
    >>> words, prevalence = list(chain.draws(5, 5))[-1]
    >>> float(words.sum())
    360.0
    """

    def __init__(
        self,
        counts: csr_array,
        design: Float[np.ndarray, "n p"],
        topics: Float[np.ndarray, "v k"],
        prevalence: Prevalence,
        smoothing: float,
        seed: int,
    ) -> None:
        self.design, self.topics, self.smoothing = design, np.asarray(topics, np.float64), smoothing
        self.rng = np.random.default_rng(seed)
        self.basis = helmert(topics.shape[1]).T  # an orthonormal basis of vectors that sum to zero
        self.coefficients = prevalence.coefficients @ self.basis
        self.covariance = self.basis.T @ prevalence.covariance @ self.basis
        # RRᵀ is the covariance of a column of C, in units of Σ.
        self.root = factorise(design.T @ design + covariate_ridge(design.shape[1])).inverse_root().T
        self.parts = self._make_parts(counts)

    def _make_parts(self, counts: csr_array) -> list[_ChainPart]:
        rows = split_rows(counts.shape[0], counts.nnz / max(counts.shape[0], 1) * self.topics.shape[1])
        batches = list(make_batches(counts, self.design, rows))
        cells = np.arange(batches[0].pages.counts.size, dtype=np.int32)
        tokens = [np.repeat(cells, np.rint(batch.pages.counts.ravel()).astype(int)) for batch in batches]
        most = padded_size(max(1, *map(len, tokens)), SIZE_GRAIN)
        parts = []
        for batch, of_batch in zip(batches, tokens, strict=True):
            u = (batch.design @ self.coefficients).astype(np.float32)[:, None]
            shares = softmax((u @ self.basis.T.astype(np.float32))[:, 0], axis=1)
            state = ChainState(u, np.full(len(u), 0.7, np.float32), shares)
            words = np.asarray(batch.pages.words).ravel()[of_batch].astype(np.int64)
            pages, of_batch = jax.device_put((batch.pages, padded(of_batch, most)))
            parts.append(_ChainPart(batch._replace(pages=pages), of_batch, words, state))
        return parts

    def draws(self, warm_up: int, count: int) -> Iterator[tuple[Float[np.ndarray, "v k"], Prevalence]]:
        """Yield draws of how often each topic wrote each word and of the prior, after sweeps that adapt the chain.

        Topics and prior do not move in the first half of those: documents must first find where they belong.
        """
        for number in range(warm_up + count):
            words = self.draw_documents(adaptation_rate(number, warm_up))
            if number >= warm_up // 2:
                self._draw_topics(words)
                self._draw_prior()
            if number >= warm_up:
                covariance = self.basis @ self.covariance @ self.basis.T
                yield words, Prevalence(self.coefficients @ self.basis.T, covariance)

    def draw_documents(self, rate: np.float32) -> Float[np.ndarray, "v k"]:
        """Move all documents, and return how often each topic now wrote each word."""
        single = lambda array: np.asarray(array, np.float32)
        topics, basis, sides = single(self.topics), single(self.basis), self.topics.shape[1]
        precision = single(factorise(self.covariance).inverse())
        total = np.zeros(self.topics.size)
        for part in self.parts:
            prior = single(part.batch.design @ self.coefficients), precision, basis
            noise = draw_noise(self.rng, part.state.u.shape)
            uniforms = self.rng.random(len(part.tokens), np.float32)
            given = part.state, noise, part.tokens, uniforms, rate
            part.state, topic = _sweep(part.batch.pages, topics, prior, *given)
            drawn = np.asarray(topic)[: len(part.words)]
            total += np.bincount(part.words * sides + drawn, minlength=len(total))
        return total.reshape(self.topics.shape)

    def _draw_topics(self, words: Float[np.ndarray, "v k"]) -> None:
        """Draw the concentration by two Metropolis steps on its logarithm, and topics given it."""
        here = log_marginal(words, self.smoothing)
        for _ in range(2):
            other = self.smoothing * np.exp(0.15 * self.rng.normal())
            there = log_marginal(words, other)
            if np.log(self.rng.random()) < there - here:
                self.smoothing, here = other, there
        drawn = self.rng.standard_gamma((words + self.smoothing).astype(np.float32), dtype=np.float32)
        self.topics = drawn / drawn.sum(axis=0)

    def _draw_prior(self) -> None:
        """Draw Σ and C given all u; their prior is Σ ~ W⁻¹(I, r + 1) and C ~ N(0, Σ) a standard deviation."""
        count, sides = len(self.design), self.basis.shape[1]
        u = np.concatenate([np.asarray(part.state.u, np.float64)[: len(part.batch.rows), 0] for part in self.parts])
        whitened = self.root.T @ (self.design.T @ u)
        scatter = np.eye(sides) + u.T @ u - whitened.T @ whitened
        self.covariance = np.atleast_2d(invwishart.rvs(sides + 1 + count, scatter, random_state=self.rng))
        noise = self.rng.normal(size=whitened.shape)
        self.coefficients = self.root @ (whitened + noise @ factorise(self.covariance).lower.T)


def log_marginal(words: Float[np.ndarray, "v k"], concentration: float) -> float:
    """Return log p(counts of words by topic | concentration), with topics integrated out.

    Examples
    --------
    >>> bool(np.isclose(log_marginal(np.array([[1.0], [0.0]]), 0.3), np.log(0.5)))
    True
    """
    total = len(words) * concentration
    of_topics = gammaln(total) - gammaln(total + words.sum(axis=0))
    often = np.bincount(words.ravel().astype(np.int64))[1:]
    counts = np.flatnonzero(often) + 1
    gain = gammaln(concentration + counts) - gammaln(concentration)
    return float(np.sum(of_topics) + often[counts - 1] @ gain)


def refined(
    counts: csr_array, design: Float[np.ndarray, "n p"], state: Topics, settings: TopicSettings, seed: int
) -> tuple[Topics, Effects | None]:
    """Return what has been learned with its means over a chain, and effects where there are covariates.

    Examples
    --------
    >>> table = csr_array(np.repeat([[9.0, 0.0], [0.0, 9.0]], 20, axis=0).astype(np.float32))
    >>> design = np.column_stack([np.ones(40), np.repeat([1.0, -1.0], 20)])
    >>> start = Topics.start(table, 2, np.array([[0.9, 0.1], [0.1, 0.9]]))
    >>> _, effects = refined(table, design, start, TopicSettings(2, draws=10), 0)
    >>> effects.coefficients.shape, bool(np.allclose(effects.coefficients.sum(axis=1), 0))
    ((2, 2), True)
    """
    chain = JointChain(counts, design, state.components(settings.smoothing), state.prevalence, settings.smoothing, seed)
    has_effects = design.shape[1] > 1
    most = settings.draws * (MAX_ROUNDS if has_effects else 1)
    warm_up, worth = int(WARM_UP_SHARE * most), np.inf
    coefficients: list[np.ndarray] = []
    covariance, words = np.zeros_like(state.prevalence.covariance), np.zeros(state.words.shape)
    with Run("draws", total=most, bar=settings.verbose) as run:
        while len(coefficients) < most:
            for drawn_words, prevalence in chain.draws(0 if coefficients else warm_up, settings.draws):
                coefficients.append(prevalence.coefficients)
                covariance += prevalence.covariance
                words += drawn_words
                run.advance()
            effects_drawn = np.stack(coefficients)[:, 1:].reshape(len(coefficients), -1)
            worth = min(map(independent_draws, effects_drawn.T), default=np.inf)
            if worth >= ENOUGH_DRAWS:
                break
    drawn, count = np.stack(coefficients), len(coefficients)
    mean = drawn.mean(axis=0)
    shared = state.prevalence.coefficients.mean(axis=1, keepdims=True), state.prevalence.covariance.mean()
    prevalence = Prevalence(mean + shared[0], covariance / count + shared[1])
    per_document = (words / count / max(counts.shape[0], 1)).astype(np.float32)
    # The mean over draws has an error too, of one part in so many as they are worth.
    covariances = np.einsum("spk,sqk->kpq", drawn - mean, drawn - mean) / max(count - 1, 1) * (1 + 1 / worth)
    effects = Effects(mean, covariances, worth) if has_effects else None
    return state._replace(words=per_document, prevalence=prevalence), effects


def independent_draws(draws: Float[np.ndarray, " s"]) -> float:
    """Return how many independent draws those of a chain are worth, by Geyer's initial positive sequence.

    Examples
    --------
    >>> noise = np.random.default_rng(0).normal(size=4000)
    >>> worth = independent_draws(noise), independent_draws(np.convolve(noise, np.ones(10)))
    >>> bool(3000 < worth[0] <= 4000), bool(worth[1] < 800)
    (True, True)
    """
    count = len(draws)
    centred = draws - np.mean(draws)
    spectrum = np.fft.rfft(centred, 2 * count)
    autocovariance = np.fft.irfft(spectrum * np.conj(spectrum))[:count]
    if autocovariance[0] <= 0:
        return float(count)
    pairs = np.add.reduceat(autocovariance, np.arange(0, count, 2))[: count // 2] / autocovariance[0]
    ends = np.flatnonzero(pairs <= 0)
    total = np.sum(pairs[: ends[0]] if len(ends) else pairs)
    return float(count / max(2 * total - 1, 1.0))

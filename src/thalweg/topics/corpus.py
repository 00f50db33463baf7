"""Topics of a corpus by stochastic variational EM: posteriors of a batch of documents, then topics and prior."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from scipy.sparse import csr_array

from thalweg.files import storable
from thalweg.topics import documents
from thalweg.topics.first import FirstDocuments
from thalweg.topics.pages import Pages, page_shape, paged
from thalweg.topics.prevalence import Prevalence, TopicMoments
from thalweg.topics.pruning import pruned
from thalweg.topics.start import starting_topics, starts

_GRAIN = 64
_FEW_TOKENS = 150_000
_RACE = ((9, 8), (4, 12), (2, 20))
"""Of fewer tokens several starts are raced: so many of them go on for so many passes, and again."""
_MANY_TOPICS = 25
"""From so many on, a fit begins with more topics than asked for: anchors miss some."""
_FIRST, _LAST = 10, 3
"""Passes over the first documents of a stream; over all once those left out have shown that no more are needed."""


@dataclass(frozen=True)
class TopicSettings:
    """How topics are learned.

    ``step`` and ``samples`` are those of documents' posteriors, ``decay`` makes the n-th batch count n^−decay of what
    was learned before, ``smoothing`` is the Dirichlet prior of topics in words, ``patience`` how many passes may go by
    without a gain of ``tolerance`` nats a token.

    Examples
    --------
    >>> TopicSettings(10).method
    'pgsvi'
    """

    methods: ClassVar[tuple[str, ...]] = tuple(documents.METHODS)

    topics: int
    method: str = "pgsvi"
    smoothing: float = 0.2
    batch_size: int = 2048
    passes: int = 100
    tolerance: float = 2e-4
    step: float = 0.9
    samples: int = 4
    exact: bool = False
    """Whether to keep the part of the curvature that comes from words: see :mod:`thalweg.topics.documents`."""
    decay: float = 0.6
    warm_steps: int = 2
    """Steps of a posterior that goes on from the last pass."""
    cold_steps: int = 10
    """Steps of a posterior that begins at the prior."""
    held: int = 3
    """Batches before the prior is learned: posteriors of the first ones mostly say what the topics do not."""
    patience: int = 5
    draws: int = 80
    """From the joint posterior, after the passes."""
    verbose: bool = False


@storable
class Topics(NamedTuple):
    """What has been learned: topics, prior, and the means over documents that they follow from.

    Examples
    --------
    >>> Topics.start(csr_array(np.eye(4, dtype=int)), 1, 2).components(0.1).sum(axis=0).round(3).tolist()
    [1.0, 1.0]
    """

    words: Float[np.ndarray, "v k"]
    """How often each topic wrote each word, a document."""
    moments: TopicMoments
    prevalence: Prevalence
    batches: int
    documents: float
    """How many the smoothing and the shrinkage are set against."""
    first: FirstDocuments | None = None
    """Of a stream that has had few so far."""

    @classmethod
    def start(cls, counts: csr_array, covariates: int, topics: int, given: np.ndarray | None = None) -> "Topics":
        """From given topics, else from anchor words, before any posterior."""
        length = counts.sum() / max(counts.shape[0], 1)
        words = (starting_topics(counts, topics) if given is None else given).T * (length / topics)
        moments = TopicMoments(np.eye(covariates), np.zeros((covariates, topics)), np.eye(topics))
        return cls(words.astype(np.float32), moments, Prevalence.start(covariates, topics), 0, float(counts.shape[0]))

    def check_stored(self) -> None:
        """Refuse first documents with words that there are not."""
        if self.first is not None and np.max(self.first.indices, initial=-1) >= len(self.words):
            raise ValueError(f"first documents with words beyond the {len(self.words)} that there are")

    def components(self, smoothing: float) -> Float[np.ndarray, "v k"]:
        """p(word | topic)."""
        words = self.words + np.float32(smoothing / max(self.documents, 1))
        return words / words.sum(axis=0)


class Batch(NamedTuple):
    """Documents ready for a compiled program: pages, covariates, those that count, and their rows."""

    pages: Pages
    design: Float[np.ndarray, "d p"]
    counted: Float[np.ndarray, " d"]
    rows: np.ndarray


def batch_of(
    counts: csr_array, design: np.ndarray, counted: np.ndarray, rows: np.ndarray, shape: tuple[int, int, int]
) -> Batch:
    """Some rows of a table, filled up to a shape: documents, pages, and words of a page.

    Examples
    --------
    >>> table = csr_array(np.eye(3, dtype=int))
    >>> batch_of(table, np.ones((3, 1)), np.ones(3), np.arange(2), (4, 4, 8)).counted
    array([1., 1., 0., 0.], dtype=float32)
    """
    size, pages, width = shape
    filled, counts_here = np.zeros((size, design.shape[1]), np.float32), np.zeros(size, np.float32)
    filled[: len(rows)], counts_here[: len(rows)] = design[rows], counted[rows]
    return Batch(paged(counts[rows], width, size, pages), filled, counts_here, rows)


def prior_of(prevalence: Prevalence, design: np.ndarray) -> documents.Prior:
    """The prior of documents with given covariates, for a compiled program."""
    means, precision = design @ prevalence.coefficients, np.linalg.inv(prevalence.covariance)
    log_determinant = np.linalg.slogdet(precision)[1]
    return documents.Prior(*(jnp.asarray(part, jnp.float32) for part in (means, precision, log_determinant)))


def absorb(
    state: Topics, batch: Batch, means: Any, rng: np.random.Generator, settings: TopicSettings, steps: int, share: float
) -> tuple[Topics, documents.Statistics]:
    """One batch: posteriors from ``means`` on, then topics and prior, of which the batch becomes a ``share``."""
    found = documents.learn(
        batch.pages,
        state.components(settings.smoothing),
        prior_of(state.prevalence, batch.design),
        means,
        batch.counted,
        documents.antithetic(rng, (len(batch.design), settings.topics, settings.samples)),
        np.float32(settings.step),
        np.int32(steps),
        method=settings.method,
        exact=settings.exact,
    )
    counted = batch.counted > 0
    count = max(int(counted.sum()), 1)
    new = np.asarray(found.means, np.float64)[counted]
    moments = TopicMoments.of(batch.design[counted].astype(np.float64), new, np.asarray(found.spread, np.float64))
    words = (1 - np.float32(share)) * state.words + np.float32(share / count) * np.asarray(found.words)
    pairs = zip(state.moments, moments, strict=True)
    mixed = TopicMoments(*((1 - share) * old + share * fresh for old, fresh in pairs))
    held = state.batches < settings.held
    prevalence = state.prevalence if held else Prevalence.learned(mixed, state.documents)
    return state._replace(words=words, moments=mixed, prevalence=prevalence, batches=state.batches + 1), found


@dataclass
class LearnedTopics:
    """What a fit came to: the topics, the score of each pass, and how it ended.

    Examples
    --------
    >>> LearnedTopics(Topics.start(csr_array(np.eye(4, dtype=int)), 1, 2), []).converged
    False
    """

    state: Topics
    scores: list[float]
    converged: bool = False
    interrupted: bool = False


class Corpus:
    """Documents in batches of one shape, the means of their posteriors, and those left out to see convergence on.

    Of a document left out, half of the words are read, and the other half tells how well it is predicted. It is read
    with the others of its batch, and does not count.
    """

    def __init__(self, counts: csr_array, design: np.ndarray, settings: TopicSettings) -> None:
        self.counts, self.design, self.settings = counts, design, settings
        rng = np.random.default_rng(0)  # the same slice whatever the seed
        count = counts.shape[0]
        self.aside = rng.permutation(count) < (min(count // 10, 500) if count >= 200 else 0)
        read, self.hidden = _halves(counts, self.aside, rng)
        if not self.hidden.sum():  # fractions of words have no halves
            read, self.aside = counts, np.zeros_like(self.aside)
        self.parts = np.array_split(rng.permutation(count), max(1, round(count / settings.batch_size)))
        self.shape = page_shape(counts, self.parts, _GRAIN, _GRAIN)
        self.means = self.begun()
        self._make(read, ~self.aside)

    def begun(self) -> list[np.ndarray]:
        """Means of posteriors before anything was read."""
        return [np.zeros((self.shape[0], self.settings.topics), np.float32) for _ in self.parts]

    def _make(self, counts: csr_array, counted: np.ndarray) -> None:
        weights = counted.astype(np.float32)
        self.tokens = float(counts[counted].sum())
        self.batches = [batch_of(counts, self.design, weights, part, self.shape) for part in self.parts]

    def use_all(self) -> None:
        """Let the documents left out count from now on."""
        self.aside = np.zeros_like(self.aside)
        self._make(self.counts, ~self.aside)

    def one_pass(
        self, state: Topics, rng: np.random.Generator, steps: int, heard: Callable[[Topics], None]
    ) -> tuple[float, float]:
        """Every batch once, in random order; the log p of a token left out, else of one read, and the bound."""
        hidden = seen = bound = 0.0
        for index in rng.permutation(len(self.batches)):
            batch = self.batches[index]
            share = (1 + state.batches) ** -self.settings.decay if len(self.batches) > 1 else 1.0
            topics = state.components(self.settings.smoothing)
            state, found = absorb(state, batch, self.means[index], rng, self.settings, steps, share)
            self.means[index] = np.asarray(found.means)
            heard(state)
            seen += float(found.log_likelihood)
            bound += float(found.bound)
            if self.aside.any():
                hidden += _log_likelihood(self.hidden[batch.rows], np.asarray(found.proportions), topics)
        bound += self.settings.smoothing * float(np.sum(np.log(topics)))
        return hidden / float(self.hidden.sum()) if self.aside.any() else seen / max(self.tokens, 1.0), bound


def _halves(counts: csr_array, rows: np.ndarray, rng: np.random.Generator) -> tuple[csr_array, csr_array]:
    """The table with half of the words of some rows taken out, and those words."""
    chosen = np.repeat(rows, np.diff(counts.indptr))
    whole = np.where(chosen, np.floor(counts.data), 0).astype(np.int64)
    out = rng.binomial(whole, 0.5).astype(np.float32)
    make = lambda data: csr_array((data, counts.indices, counts.indptr), shape=counts.shape)
    return make(counts.data - out), make(out)


def _log_likelihood(counts: csr_array, proportions: np.ndarray, topics: np.ndarray) -> float:
    """Σ y log Σ_k π_k β_k, over words that occur."""
    document = np.repeat(np.arange(counts.shape[0]), np.diff(counts.indptr))
    some = counts.data > 0
    chance = np.einsum("nk,nk->n", proportions[document[some]], topics[counts.indices[some]])
    return float(np.sum(counts.data[some] * np.log(np.maximum(chance, 1e-30))))


def fit_topics(counts: csr_array, design: np.ndarray, settings: TopicSettings, seed: int) -> LearnedTopics:
    """Passes over a corpus until documents left out are predicted no better, then a few over all.

    ``counts`` are float32, and ``design`` has a row of covariates for each document, the first of them 1. Interrupted,
    it returns what was learned.

    Examples
    --------
    >>> table = csr_array(np.kron(np.eye(2), np.ones((20, 3))).astype(np.float32))
    >>> found = fit_topics(table, np.ones((40, 1)), TopicSettings(2), 0)
    >>> found.state.components(0.1).round(1).max(axis=0).tolist()
    [0.30000001192092896, 0.30000001192092896]
    """
    rng = np.random.default_rng(seed)
    few = counts.sum() < _FEW_TOKENS
    crowded = not few and settings.topics >= _MANY_TOPICS
    given = _of_a_crowd(counts, design, settings) if crowded else None
    learned = LearnedTopics(Topics.start(counts, design.shape[1], settings.topics, given), [])
    heard = lambda state: setattr(learned, "state", state)
    tell = print if settings.verbose else lambda text: None
    try:
        corpus = Corpus(counts, design, settings)
        if few and settings.topics > 1:
            heard(_raced(corpus, learned, heard))
        for step in range(settings.passes):
            steps = settings.cold_steps if step == 0 else settings.warm_steps
            score, _ = corpus.one_pass(learned.state, rng, steps, heard)
            learned.scores.append(score)
            tell(f"pass {step + 1}: {score:.4f} nats a word")
            if _settled(learned.scores, settings):
                learned.converged = True
                break
        if corpus.aside.any():
            corpus.use_all()
            for _ in range(_LAST):
                corpus.one_pass(learned.state, rng, settings.warm_steps + 1, heard)
    except KeyboardInterrupt:
        learned.interrupted = True
    return learned


def _raced(corpus: Corpus, learned: LearnedTopics, heard: Callable[[Topics], None]) -> Topics:
    """What has the best bound after some passes, of several starts; the same whatever the seed."""
    topics, rng = corpus.settings.topics, np.random.default_rng(0)
    given = starts(corpus.counts, topics)
    racing = [(0.0, Topics.start(corpus.counts, corpus.design.shape[1], topics, one), corpus.begun()) for one in given]
    for count, passes in _RACE:
        ahead = []
        for _, state, corpus.means in racing[:count]:
            heard(state)
            for _ in range(min(passes, corpus.settings.passes)):
                steps = corpus.settings.warm_steps if learned.state.batches else corpus.settings.cold_steps
                _, bound = corpus.one_pass(learned.state, rng, steps, heard)
            ahead.append((bound, learned.state, corpus.means))
        racing = sorted(ahead, key=lambda one: -one[0])
    _, chosen, corpus.means = racing[0]
    return chosen


def begun_topics(counts: csr_array, design: np.ndarray, settings: TopicSettings) -> Topics:
    """Some passes over the first documents of a stream: one is not enough to get away from the start.

    Of few words several starts are raced; of many, more topics than asked for are learned first.

    Examples
    --------
    >>> table = csr_array(np.kron(np.eye(2), np.ones((20, 3))).astype(np.float32))
    >>> begun_topics(table, np.ones((40, 1)), TopicSettings(2)).documents
    40.0
    """
    few = counts.sum() < _FEW_TOKENS
    given = None if few else _of_a_crowd(counts, design, settings)
    corpus = Corpus(counts, design, settings)
    return _passed(corpus, given, _FIRST, few and settings.topics > 1)._replace(batches=len(corpus.parts))


def _of_a_crowd(counts: csr_array, design: np.ndarray, settings: TopicSettings) -> np.ndarray | None:
    """Topics to start from, out of a quarter more that a few passes have found; nothing if that is less than one."""
    more = settings.topics // 4
    if not more:
        return None
    found = _passed(Corpus(counts, design, replace(settings, topics=settings.topics + more)), None, _FIRST // 2)
    given = pruned(found.words, settings.topics) + np.float32(1e-6)
    return (given / given.sum(axis=0)).T


def _passed(corpus: Corpus, given: np.ndarray | None, passes: int, race: bool = False) -> Topics:
    """So many passes over all documents from given topics on, else from anchors; the same whatever the seed."""
    rng, settings = np.random.default_rng(0), corpus.settings
    learned = LearnedTopics(Topics.start(corpus.counts, corpus.design.shape[1], settings.topics, given), [])
    heard = lambda state: setattr(learned, "state", state)
    corpus.use_all()
    if race:
        heard(_raced(corpus, learned, heard))
    for step in range(passes):
        steps = settings.cold_steps if step == 0 else settings.warm_steps
        corpus.one_pass(learned.state, rng, steps, heard)
    return learned.state


def _settled(scores: list[float], settings: TopicSettings) -> bool:
    """Whether the last passes gained less than the tolerance over those before."""
    patience = settings.patience
    if len(scores) <= settings.held + patience:
        return False
    return max(scores[-patience:]) < max(scores[:-patience]) + settings.tolerance

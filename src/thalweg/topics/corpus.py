"""Topics of a corpus by stochastic variational EM: posteriors of a batch of documents, then topics and prior."""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import numpy as np
from jaxtyping import Float, Int
from scipy.sparse import csr_array

from thalweg.files import storable
from thalweg.runs import Run
from thalweg.selection.race import race
from thalweg.topics.documents import BatchStatistics, StepPlan, learn
from thalweg.topics.expectations import METHODS
from thalweg.topics.pages import DocumentBatch, make_batches
from thalweg.topics.prevalence import Prevalence, TopicMoments
from thalweg.topics.start import starting_topics

__all__ = ["LearnedTopics", "TopicSettings", "Topics", "fit_topics"]

RACE_PASSES = 5
"""Passes over the first batch before starts are compared: with three a start that learns fast and ends badly wins."""
SETTLING_PASSES = 5
"""Passes over the first documents of a stream after its start. Doubled, streams start twice as slowly."""


@dataclass(frozen=True)
class TopicSettings:
    """How topics are learned.

    ``step`` and ``samples`` are those of documents' posteriors, ``decay`` makes the n-th batch count n^−decay of what
    was learned before, ``smoothing`` is the Dirichlet prior of topics in words, ``patience`` over how many passes a
    gain is measured that must be ``tolerance`` nats a token each.

    Examples
    --------
    >>> TopicSettings(10).method
    'pgsvi'
    """

    methods: ClassVar[tuple[str, ...]] = tuple(METHODS)

    topics: int
    method: str = "pgsvi"
    smoothing: float = 0.2
    batch_size: int = 2048
    passes: int = 100
    tolerance: float = 4e-4
    step: float = 0.9
    samples: int = 4
    decay: float = 0.6
    warm_steps: int = 2
    """Steps of a posterior that goes on from the last pass."""
    cold_steps: int = 10
    """Steps of a posterior that begins at the prior."""
    fixed_prior_batches: int = 3
    """Batches before the prior is learned: posteriors of the first ones mostly say what the topics do not."""
    patience: int = 5
    draws: int = 80
    """From the joint posterior, after the passes."""
    verbose: bool = False


@storable
class FirstDocuments(NamedTuple):
    """The first documents of a stream, stored until there are enough to start from: sparse counts and covariates."""

    data: Float[np.ndarray, " e"]
    indices: Int[np.ndarray, " e"]
    indptr: Int[np.ndarray, " n"]
    design: Float[np.ndarray, "n p"]
    started_from: int
    """How many of them the current topics started from."""

    @classmethod
    def of(cls, counts: csr_array, design: np.ndarray, started_from: int) -> "FirstDocuments":
        """Store a table."""
        return cls(counts.data, counts.indices, counts.indptr, design, started_from)

    def table(self, words: int) -> csr_array:
        """Return their counts of so many words."""
        return csr_array((self.data, self.indices, self.indptr), shape=(len(self.design), words))

    def check_stored(self) -> None:
        """Refuse arrays from a file that are no sparse table; the number of words is checked by :class:`Topics`."""
        self.table(int(np.max(self.indices, initial=-1)) + 1).check_format(full_check=True)
        are_whole = all(np.issubdtype(part.dtype, np.integer) for part in (self.indices, self.indptr))
        if not are_whole or not np.all(np.isfinite(self.data)):
            raise ValueError("counts that are no finite numbers, or words that are no columns")


@storable
class Topics(NamedTuple):
    """What has been learned: topics, prior, and the means over documents that they follow from.

    Examples
    --------
    >>> topics = Topics.start(csr_array(np.eye(4, dtype=int)), 1, np.full((2, 4), 0.25))
    >>> topics.components(0.1).sum(axis=0).round(3).tolist()
    [1.0, 1.0]
    """

    words: Float[np.ndarray, "v k"]
    """How often each topic wrote each word, a document."""
    moments: TopicMoments
    prevalence: Prevalence
    batches: int
    documents: float
    """The number of documents that smoothing and shrinkage are weighed against."""
    first: FirstDocuments | None = None
    """Those of a stream that has had few so far."""

    @classmethod
    def start(cls, counts: csr_array, covariates: int, given: Float[np.ndarray, "k v"]) -> "Topics":
        """Start from given topics, before any posterior."""
        length, topics = counts.sum() / max(counts.shape[0], 1), len(given)
        words = given.T * (length / topics)
        moments = TopicMoments(np.eye(covariates), np.zeros((covariates, topics)), np.eye(topics))
        return cls(words.astype(np.float32), moments, Prevalence.start(covariates, topics), 0, float(counts.shape[0]))

    def check_stored(self) -> None:
        """Refuse first documents with words that there are not."""
        if self.first is not None and np.max(self.first.indices, initial=-1) >= len(self.words):
            raise ValueError(f"first documents with words beyond the {len(self.words)} that there are")

    def components(self, smoothing: float) -> Float[np.ndarray, "v k"]:
        """Return p(word | topic)."""
        words = self.words + np.float32(smoothing / max(self.documents, 1))
        return words / words.sum(axis=0)


def update_topics(
    topics: Topics,
    batch: DocumentBatch,
    means: Any,
    rng: np.random.Generator,
    settings: TopicSettings,
    steps: int,
    share: float,
) -> tuple[Topics, BatchStatistics]:
    """Find the posteriors of a batch from ``means`` on, and mix a ``share`` of them into topics and prior."""
    shape = len(batch.counted), topics.words.shape[1], settings.samples
    plan = StepPlan.antithetic(rng, shape, settings.step, steps)
    given = batch.pages, topics.components(settings.smoothing), topics.prevalence.prior(batch.design), means
    statistics = learn(*given, batch.counted, plan, settings.method)
    counted = batch.counted > 0
    of_counted = batch.design[counted], np.asarray(statistics.means, np.float64)[counted]
    moments = TopicMoments.of(*of_counted, np.asarray(statistics.covariance_sum, np.float64))
    moments = topics.moments.mixed(moments, share)
    part = np.float32(share / max(int(counted.sum()), 1))
    words = (1 - np.float32(share)) * topics.words + part * np.asarray(statistics.words)
    is_fixed = topics.batches < settings.fixed_prior_batches
    prevalence = topics.prevalence if is_fixed else Prevalence.learned(moments, topics.documents)
    batches = topics.batches + 1
    return topics._replace(words=words, moments=moments, prevalence=prevalence, batches=batches), statistics


@dataclass
class LearnedTopics:
    """The result of a fit: the topics, the score of each pass, and how it ended.

    Examples
    --------
    >>> LearnedTopics(Topics.start(csr_array(np.eye(4, dtype=int)), 1, np.full((2, 4), 0.25)), []).converged
    False
    """

    state: Topics
    scores: list[float]
    converged: bool = False
    interrupted: bool = False


class EMState(NamedTuple):
    """Topics, and the posterior means of each batch that the next pass goes on from."""

    topics: Topics
    means: tuple[Any, ...]


class Corpus:
    """Documents in batches of one shape."""

    def __init__(self, counts: csr_array, design: np.ndarray, settings: TopicSettings) -> None:
        self.counts, self.design, self.settings = counts, design, settings
        count = counts.shape[0]
        # The same batches whatever the seed.
        self.parts = np.array_split(
            np.random.default_rng(0).permutation(count), max(1, round(count / settings.batch_size))
        )
        self.tokens = max(float(counts.sum()), 1.0)
        batches = make_batches(counts, design, self.parts)
        self.batches = [batch._replace(pages=jax.device_put(batch.pages)) for batch in batches]

    def start(self, given: Float[np.ndarray, "k v"]) -> EMState:
        """Start from given topics, with posteriors at the prior."""
        none = np.zeros((len(self.batches[0].counted), len(given)), np.float32)
        first = Topics.start(self.counts, self.design.shape[1], given)
        return EMState(first, tuple(none for _ in self.parts))

    def run_pass(
        self, state: EMState, rng: np.random.Generator, run: Run, most: int | None = None
    ) -> tuple[EMState, np.ndarray]:
        """Learn from every batch once, or from the first ones, in random order; keep the topics after each in a run.

        Return the state, and the bound on log p of the words of each document, 0 for those that were not read.
        """
        topics, means, settings = state.topics, list(state.means), self.settings
        steps = settings.warm_steps if topics.batches else settings.cold_steps
        bounds = np.zeros(self.counts.shape[0])
        for index in rng.permutation(len(self.batches))[:most]:
            batch = self.batches[index]
            share = (1 + topics.batches) ** -settings.decay if len(self.batches) > 1 else 1.0
            topics, statistics = update_topics(topics, batch, means[index], rng, settings, steps, share)
            means[index] = statistics.means
            bounds[batch.rows] = np.asarray(statistics.bounds)[: len(batch.rows)]
            run.keep(topics)
        return EMState(topics, tuple(means)), bounds


def start_corpus(corpus: Corpus, run: Run) -> EMState:
    """Return a state to learn from: the start with the best bound on the first documents, whatever the seed."""
    settings, rng = corpus.settings, np.random.default_rng(0)
    states = [corpus.start(given) for given in starting_topics(corpus.counts, settings.topics)]

    def losses(start: int, passes: int) -> np.ndarray:
        """Go on with a start, and return what its documents lack: −bounds, less the log-prior of topics."""
        for _ in range(min(passes, settings.passes)):
            states[start], bounds = corpus.run_pass(states[start], rng, run, most=1)
        log_prior = settings.smoothing * np.sum(np.log(states[start].topics.components(settings.smoothing)))
        return -bounds - log_prior / len(bounds)

    # A compiled program uses all cores, so candidates take turns.
    best = race(range(len(states)), losses, [RACE_PASSES], parallel=lambda rung: False).best.candidate
    run.keep(states[best].topics)
    return states[best]


def fit_topics(counts: csr_array, design: np.ndarray, settings: TopicSettings, seed: int) -> LearnedTopics:
    """Make passes over a corpus until they no longer raise the bound on log p of its words.

    ``counts`` are float32, and ``design`` has a row of covariates for each document, the first of them 1. Interrupted,
    it returns what was learned.

    Examples
    --------
    >>> table = csr_array(np.kron(np.eye(2), np.ones((20, 3))).astype(np.float32))
    >>> learned = fit_topics(table, np.ones((40, 1)), TopicSettings(2), 0)
    >>> learned.state.components(0.1).round(1).max(axis=0).tolist()
    [0.30000001192092896, 0.30000001192092896]
    """
    rng = np.random.default_rng(seed)
    scores: list[float] = []
    with Run("passes", total=settings.passes, bar=settings.verbose) as run:
        corpus = Corpus(counts, design, settings)
        state = start_corpus(corpus, run)
        while not (run.interrupted or has_converged(scores, settings) or len(scores) == settings.passes):
            state, bounds = corpus.run_pass(state, rng, run)
            scores.append(float(bounds.sum()) / corpus.tokens)
            run.advance(note=f"{scores[-1]:.4f} nats a word")
    return LearnedTopics(run.kept, scores, has_converged(scores, settings), run.interrupted)


def has_converged(scores: list[float], settings: TopicSettings) -> bool:
    """Whether the last passes gained less than the tolerance, each in the mean.

    Examples
    --------
    >>> has_converged([-9.0, -8.0] + 8 * [-7.0], TopicSettings(2)), has_converged([-9.0, -8.0, -7.0], TopicSettings(2))
    (True, False)
    """
    recent = scores[-settings.patience - 1 :]
    return len(recent) > settings.patience and recent[-1] - recent[0] < settings.patience * settings.tolerance

"""Initial topics, the same whatever the seed: anchor words found from the co-occurrences of words.

If every topic has a word that hardly any other uses, its anchor, then the rows of the co-occurrence matrix
Q̄_ij = p(word j | word i in the same document) are mixtures of the rows of the anchors, and those are the corners of the
rows' convex hull (Arora et al. 2013). Corners are found one after another, each the farthest from the flat through
those before; the weights of a word over them, p(topic | word), by projected gradients; Bayes' rule gives the topics.
Rows are taken in the leading eigenvectors of D^{−½}QD^{−½}, D = diag p(word), as in correspondence analysis. That keeps
them small and leaves out most of their noise: so scaled, it is the same for common and for rare words, and topics that
are too rare for the eigenvectors of Q can be told from it.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int
from scipy.linalg import qr
from scipy.sparse import csr_array, dia_array

__all__ = ["starting_topics"]

ANCHOR_SHARES = (0.04, 0.1)
"""Shares of documents that an anchor occurs in at least: rows of rarer words are mostly noise, and common words belong
to several topics. With a hundredth as a third one no start of six corpora was better."""
EIGENVECTORS_PER_TOPIC = 1.5
"""Fewer have less noise, more miss fewer of many topics; twice as many are mostly noise where documents are few."""
SCARCE_TOKENS = 10
"""Tokens added to each word's where rows are scaled: without them a word that was seen once would outweigh all."""
CANDIDATES_PER_TOPIC = 12
"""The least number of the most common words among which anchors are looked for. Doubled, words too rare to be anchors
are among them; halved, a tenth of a hundred topics lack one."""
SUBSPACE_ITERATIONS = 12
"""Products with which the leading eigenvectors are found; twice as many change no topic."""
MIXTURE_STEPS = 100
"""Accelerated gradient steps for p(topic | word): enough for four digits. Doubled, a start takes twice as long."""
UNIGRAM_SHARE = 0.1
"""The share of each initial topic that is the frequency of words, so that no word is excluded. Doubled, topics are less
distinct and take more passes."""


def starting_topics(counts: csr_array, topics: int) -> list[Float[np.ndarray, "k v"]]:
    """Return several initial topics: from rarer and more common anchors, in more and in fewer eigenvectors.

    Co-occurrences of few documents are noisy, and so are the corners of their rows, but one of several is often good.

    Examples
    --------
    >>> table = csr_array(np.kron(np.eye(2, dtype=int), np.ones((20, 3), int)))
    >>> found = starting_topics(table, 2)[0]
    >>> np.round(found @ np.repeat(np.eye(2), 3, axis=0), 2).max(axis=1).tolist()
    [0.95, 0.95]
    """
    profiles = WordProfiles.of(counts, topics)
    fewer = profiles._replace(rows=profiles.rows[:, :topics])
    return [each.topics(topics, common) for each in (profiles, fewer) for common in ANCHOR_SHARES]


class WordProfiles(NamedTuple):
    """Words as rows of Q̄ in the leading eigenvectors of the scaled Q, the first ones first, and their frequencies."""

    rows: Float[np.ndarray, "v r"]
    weights: Float[np.ndarray, " v"]
    """p(word) in pairs of words of one document."""
    occurrences: Float[np.ndarray, " v"]
    """The share of documents that a word is in; 0 for words that occur with no other."""
    unigram: Float[np.ndarray, " v"]

    @classmethod
    def of(cls, counts: csr_array, topics: int) -> "WordProfiles":
        """Compute them without forming Q."""
        counts = counts.astype(np.float64)
        words, lengths = counts.shape[1], counts.sum(axis=1)
        pairs = np.where(lengths > 1, lengths * (lengths - 1), np.inf)  # ordered pairs of two tokens of a document
        scaled = csr_array(dia_array((1 / np.sqrt(pairs)[None], [0]), shape=(len(pairs),) * 2) @ counts)
        transposed, same_token = csr_array(scaled.T), counts.T @ (1 / pairs)
        cooccurrence = lambda block: transposed @ (scaled @ block) - same_token[:, None] * block
        weights = np.maximum(cooccurrence(np.ones((words, 1)))[:, 0], 0)
        frequency = counts.sum(axis=0) + 0.1
        occurrences = np.bincount(counts.indices, minlength=words) / counts.shape[0] * (weights > 0)
        rows = np.zeros((words, 1))
        if np.any(weights):  # documents of one word have no co-occurrences
            scale = 1 / np.sqrt(weights + SCARCE_TOKENS * weights.sum() / max(lengths.sum(), 1))[:, None]
            rank = round(EIGENVECTORS_PER_TOPIC * topics)
            vectors = _leading_eigenvectors(lambda block: scale * cooccurrence(scale * block), words, rank)
            rows = cooccurrence(scale * vectors) / np.maximum(weights, 1e-300)[:, None]
            rows[weights <= 1e-12 * weights.max()] = 0
        return cls(rows, weights, occurrences, frequency / frequency.sum())

    def topics(self, topics: int, common: float) -> Float[np.ndarray, "k v"]:
        """Return the topics of the anchors among words that occur in the share ``common`` of the documents."""
        count = max(np.count_nonzero(self.occurrences >= common), CANDIDATES_PER_TOPIC * topics)
        candidates = np.sort(np.argsort(-self.occurrences, kind="stable")[:count])
        anchors = _corners(self.rows, candidates, topics)
        joint = (_mixtures(self.rows, self.rows[anchors]) * self.weights[:, None]).T
        totals = joint.sum(axis=1, keepdims=True)
        found = np.where(totals > 0, joint / np.maximum(totals, 1e-300), self.unigram)
        found = (1 - UNIGRAM_SHARE) * found + UNIGRAM_SHARE * self.unigram
        # Topics without an anchor differ a little by a fixed wave over the words, so that they can part.
        missing = np.arange(1, topics - len(found) + 1)
        waves = self.unigram * (1 + 0.5 * np.cos(np.outer(missing, np.arange(len(self.unigram)))))
        return np.concatenate([found, waves / waves.sum(axis=1, keepdims=True)])


def _leading_eigenvectors(
    product: Callable[[np.ndarray], np.ndarray], size: int, rank: int
) -> Float[np.ndarray, "v r"]:
    """Return eigenvectors of the largest positive eigenvalues, by subspace iteration from a fixed start."""
    block = np.random.default_rng(0).normal(size=(size, min(2 * rank, size)))
    for _ in range(SUBSPACE_ITERATIONS):
        block = np.linalg.qr(product(block))[0]
    values, vectors = np.linalg.eigh(block.T @ product(block))
    return block @ vectors[:, np.argsort(-values)[: min(rank, max(np.count_nonzero(values > 0), 1))]]


def _corners(rows: np.ndarray, candidates: np.ndarray, count: int) -> Int[np.ndarray, " k"]:
    """Return candidates whose rows are corners of the convex hull of all; fewer where the others are no farther."""
    points = rows[candidates]
    lengths = np.linalg.norm(points, axis=1)
    first = int(np.argmax(lengths))
    # A pivoted QR takes the row that is farthest from the flat through those before, one after another.
    triangle, order = qr((points - points[first]).T, mode="r", pivoting=True, check_finite=False)
    farther = np.abs(np.diagonal(triangle))[: count - 1] > 1e-5 * max(lengths[first], 1e-150)
    return candidates[[first, *order[: np.count_nonzero(farther)]]]


def _mixtures(rows: np.ndarray, corners: np.ndarray) -> Float[np.ndarray, "v k"]:
    """Return the weights, non-negative and of sum one, with which corners mix best into each row, by FISTA."""
    # Weights sum to one, so the part that all corners share says nothing, and steps would be a thousand times shorter.
    middle = np.mean(corners, axis=0)
    rows, corners = rows - middle, corners - middle
    gram, products = corners @ corners.T, rows @ corners.T
    size = 1 / max(np.linalg.eigvalsh(gram)[-1], 1e-300)
    weights = ahead = np.full(products.shape, 1 / len(corners))
    momentum = 1.0
    for _ in range(MIXTURE_STEPS):
        before, weights = weights, project_to_simplex(ahead - size * (ahead @ gram - products))
        following = (1 + np.sqrt(1 + 4 * momentum**2)) / 2
        ahead, momentum = weights + (momentum - 1) / following * (weights - before), following
    return weights


def project_to_simplex(points: Float[np.ndarray, "n k"]) -> Float[np.ndarray, "n k"]:
    """Return the nearest rows that are non-negative and sum to one.

    Examples
    --------
    >>> project_to_simplex(np.array([[2.0, 0.0], [0.5, 0.3]]))
    array([[1. , 0. ],
           [0.6, 0.4]])
    """
    falling = -np.sort(-points, axis=1)
    above = (np.cumsum(falling, axis=1) - 1) / np.arange(1, points.shape[1] + 1)
    last = np.sum(falling > above, axis=1) - 1
    return np.maximum(points - np.take_along_axis(above, last[:, None], axis=1), 0)

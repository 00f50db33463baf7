"""Topics to start from, the same whatever the seed: anchor words of the words' co-occurrences.

If every topic has a word that hardly any other uses, its anchor, then the rows of the co-occurrence matrix
Q̄_ij = p(word j | word i in the same document) are mixtures of the rows of the anchors, and those are the corners of the
rows' convex hull (Arora et al. 2013). Corners are found one after another, each the farthest from the flat through
those before; the weights of a word over them, p(topic | word), by projected gradients; Bayes' rule gives the topics.
Rows are taken in the leading eigenvectors of D^{−½}QD^{−½}, D = diag p(word), as in correspondence analysis. That keeps
them small and leaves out most of their noise: so scaled, it is the same for common and for rare words, and topics that
are too rare for the eigenvectors of Q can be told from it.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int
from scipy.sparse import csr_array, dia_array
from scipy.sparse.linalg import LinearOperator, eigsh

_COMMON = 0.04
"""The part of all documents that an anchor occurs in at least: rows of rare words are mostly noise."""
_OTHERS = (0.01, 0.1)
_WIDER = 1.5
"""Eigenvectors for each topic: fewer have less noise, more miss less."""
_SCARCE = 10
"""Tokens that are added to a word's where rows are scaled: by its own alone, a word seen once would outweigh all."""
_HEAPS, _HEAP = 3, 5
"""Starts from documents, and documents that each topic of such a start is made of."""
_SEVERAL = 25
"""From so many topics on, passes are dear and documents are never the best start: only three starts are tried."""
_FEWEST = 3
_ENOUGH, _MANY = 4, 16
"""Candidates for each anchor, at least; where fewer are so common, so many of the most common words are."""
_STEPS = 100
_UNIGRAM = 0.1
"""How much of each topic is left to the words of all, so that none is excluded."""
_MOST_DOCUMENTS = 70_000
"""Looked at: co-occurrences of more change little."""


def starting_topics(counts: csr_array, topics: int, common: float = _COMMON) -> Float[np.ndarray, "k v"]:
    """Topics, rows that sum to one, from anchor words; more topics than anchors can be found share them.

    An anchor occurs in the part ``common`` of all documents at least.

    Examples
    --------
    >>> table = csr_array(np.kron(np.eye(2, dtype=int), np.ones((20, 3), int)))    # two kinds of documents
    >>> np.round(starting_topics(table, 2) @ np.repeat(np.eye(2), 3, axis=0), 2)
    array([[0.95, 0.05],
           [0.05, 0.95]])
    """
    return _Words.of(counts, round(_WIDER * topics)).start(topics, common)


class _Words(NamedTuple):
    """Words as rows of co-occurrences, how often each occurs, p(word), and the unigram."""

    rows: Float[np.ndarray, "v r"]
    weights: Float[np.ndarray, " v"]
    occurs: Float[np.ndarray, " v"]
    """The part of documents that a word is in."""
    documents: int
    unigram: Float[np.ndarray, " v"]

    @classmethod
    def of(cls, counts: csr_array, rank: int) -> "_Words":
        counts = counts[:: -(-counts.shape[0] // _MOST_DOCUMENTS)]
        frequency = np.asarray(counts.sum(axis=0), np.float64).ravel() + 0.1
        rows, weights = _profiles(counts, rank)
        occurs = np.bincount(counts.indices, minlength=counts.shape[1]) * (weights > 0)
        return cls(rows, weights, occurs, counts.shape[0], frequency / np.sum(frequency))

    def start(self, topics: int, common: float) -> Float[np.ndarray, "k v"]:
        """Topics of the anchors among words that occur in the part ``common`` of the documents."""
        anchors = _corners(self.rows, self._candidates(topics, common), topics)
        found = (_mixtures(self.rows, self.rows[anchors]) * self.weights[:, None]).T
        totals = np.sum(found, axis=1, keepdims=True)
        found = np.where(totals > 0, found / np.maximum(totals, 1e-300), self.unigram)
        found = (1 - _UNIGRAM) * found + _UNIGRAM * self.unigram
        return _told_apart(np.concatenate([found, np.tile(self.unigram, (topics - len(found), 1))]), len(found))

    def _candidates(self, topics: int, common: float) -> Int[np.ndarray, " c"]:
        found = np.flatnonzero(self.occurs >= max(_FEWEST, common * self.documents))
        if len(found) >= _ENOUGH * topics:
            return found
        return np.sort(np.argsort(-self.occurs, kind="stable")[: _MANY * topics])


def starts(counts: csr_array, topics: int) -> list[Float[np.ndarray, "k v"]]:
    """Several topics to start from, all found without chance: anchors that are rarer or more common, and documents.

    Co-occurrences of few words are noisy, and so is where their corners are: of the starts, one is often good.

    Examples
    --------
    >>> table = csr_array(np.kron(np.eye(2, dtype=int), np.ones((20, 3), int)))
    >>> len(starts(table, 2))
    9
    """
    several, found = topics >= _SEVERAL, []
    for rank in (round(_WIDER * topics),) if several else (topics, round(_WIDER * topics)):
        words = _Words.of(counts, rank)
        found += [words.start(topics, common) for common in (_COMMON, *_OTHERS)]
    rng = np.random.default_rng(0)  # the same documents whatever the seed
    for _ in range(0 if several else _HEAPS):
        heaps = np.resize(rng.permutation(counts.shape[0]), (topics, _HEAP))
        heap = np.stack([np.asarray(counts[rows].sum(axis=0), np.float64).ravel() for rows in heaps])
        heap = heap / np.maximum(heap.sum(axis=1, keepdims=True), 1)
        found.append(_told_apart((heap + words.unigram) / 2, topics))
    return found


def _profiles(counts: csr_array, rank: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows of Q̄ in the leading eigenvectors of the scaled Q, and p(word)."""
    lengths = np.asarray(counts.sum(axis=1), np.float64).ravel()
    pairs = np.where(lengths > 1, lengths * (lengths - 1), np.inf)  # pairs of different tokens; NaN-free for none
    inverse = dia_array((1 / np.sqrt(pairs)[None], [0]), shape=(len(pairs), len(pairs)))
    scaled = csr_array(inverse @ counts.astype(np.float64))
    flipped = csr_array(scaled.T)
    own = np.asarray(counts.astype(np.float64).T @ (1 / pairs)).ravel()
    words = counts.shape[1]
    times = lambda block: flipped @ (scaled @ block) - (own * block.T).T
    weights = np.maximum(times(np.ones(words)), 0)
    if not np.any(weights):  # documents of one word tell nothing of words that go together
        return np.zeros((words, 1)), weights
    scale = 1 / np.sqrt(weights + _SCARCE * weights.sum() / max(lengths.sum(), 1) + 1e-300)
    between = lambda block: (scale * times((scale * block.T).T).T).T
    if rank >= words - 1 or words < 64:
        values, vectors = np.linalg.eigh(between(np.eye(words)))
        values, vectors = values[-rank:], vectors[:, -rank:]
    else:
        operator = LinearOperator((words, words), matvec=between, matmat=between, dtype=np.float64)
        values, vectors = eigsh(operator, k=rank, v0=1 / scale, tol=1e-4)
    vectors = vectors[:, values > 0] if np.any(values > 0) else vectors
    rows = times((scale * vectors.T).T) / np.maximum(weights, 1e-300)[:, None]
    rows[weights <= 1e-12 * weights.max(initial=1e-300)] = 0
    return rows, weights


def _corners(rows: np.ndarray, candidates: np.ndarray, count: int) -> Int[np.ndarray, " k"]:
    """Candidates whose rows are corners of the convex hull of all; fewer where the rest is flat."""
    points = rows[candidates]
    far = np.sum(points**2, axis=1)
    chosen = [int(np.argmax(far))]
    rest = points - points[chosen[0]]
    least = 1e-10 * max(far.max(), 1e-300)
    while len(chosen) < count:
        far = np.sum(rest**2, axis=1)
        following = int(np.argmax(far))
        if far[following] <= least:
            break
        chosen.append(following)
        along = rest[following] / np.sqrt(far[following])
        rest = rest - np.outer(rest @ along, along)
    return candidates[chosen]


def _mixtures(rows: np.ndarray, corners: np.ndarray) -> Float[np.ndarray, "v k"]:
    """For each row the weights, non-negative and of sum one, that mix the corners into it best, by FISTA."""
    # What all corners share says nothing, as weights sum to one, and would make steps a thousand times too short.
    middle = np.mean(corners, axis=0)
    rows, corners = rows - middle, corners - middle
    gram, aims = corners @ corners.T, rows @ corners.T
    size = 1 / max(np.linalg.eigvalsh(gram)[-1], 1e-300)
    weights = ahead = np.full(aims.shape, 1 / len(corners))
    pace = 1.0
    for _ in range(_STEPS):
        before, weights = weights, onto_simplex(ahead - size * (ahead @ gram - aims))
        following = (1 + np.sqrt(1 + 4 * pace**2)) / 2
        ahead, pace = weights + (pace - 1) / following * (weights - before), following
    return weights


def onto_simplex(points: Float[np.ndarray, "n k"]) -> Float[np.ndarray, "n k"]:
    """Rows moved to the nearest ones that are non-negative and sum to one.

    Examples
    --------
    >>> onto_simplex(np.array([[2.0, 0.0], [0.5, 0.3]]))
    array([[1. , 0. ],
           [0.6, 0.4]])
    """
    falling = -np.sort(-points, axis=1)
    above = (np.cumsum(falling, axis=1) - 1) / np.arange(1, points.shape[1] + 1)
    last = np.sum(falling > above, axis=1) - 1
    return np.maximum(points - np.take_along_axis(above, last[:, None], axis=1), 0)


def _told_apart(topics: np.ndarray, found: int) -> np.ndarray:
    """Topics beyond those found, made a little different by a fixed wave over the words, so that they can part."""
    extra = np.arange(found, len(topics))
    waves = 1 + 0.5 * np.cos(np.outer(extra - found + 1, np.arange(topics.shape[1])))
    topics[found:] *= waves
    return topics / topics.sum(axis=1, keepdims=True)

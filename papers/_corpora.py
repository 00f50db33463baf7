"""The corpora of Figure 3 of Khan et al. (2016), split into halves, and a small drawn one."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.sparse import csr_array
from scipy.special import softmax

from thalweg.data import load


@dataclass(frozen=True)
class Corpus:
    """Documents to learn from and to test on."""

    name: str
    train: csr_array
    test: csr_array


def _split_in_halves(name: str, data: Any) -> Corpus:
    """Return half of the documents, at random, for training, and the others for testing."""
    parts = np.asarray(data.counts, np.int64), np.asarray(data.indices, np.int32), np.asarray(data.indptr)
    counts = csr_array(parts, shape=(len(data.indptr) - 1, len(data.vocab)))
    order = np.random.default_rng(0).permutation(counts.shape[0])
    return Corpus(name, *(counts[part] for part in np.split(order, [len(order) // 2])))


def draw_corpus(seed: int) -> Corpus:
    """Draw documents from a correlated topic model: four topics, of which two and two go together."""
    rng = np.random.default_rng(seed)
    topics = rng.dirichlet(np.full(120, 0.05), size=4)
    covariance = np.kron(np.eye(2), [[1.5, 1.2], [1.2, 1.5]])
    shares = softmax(rng.multivariate_normal(np.zeros(4), covariance, 120), axis=1)
    counts = csr_array(np.stack([rng.multinomial(60, row @ topics) for row in shares]))
    return Corpus("drawn", counts[:80], counts[80:])


CORPORA: dict[str, Callable[[int], Corpus]] = {
    "NIPS": lambda seed: _split_in_halves("NIPS", load("nips_f20")),
    "AP": lambda seed: _split_in_halves("AP", load("ap")),
    "drawn": draw_corpus,
}
"""Papers of NIPS, words that occur more than 20 times; news of the Associated Press; and drawn documents."""

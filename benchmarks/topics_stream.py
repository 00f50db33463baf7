"""A million documents through partial_fit: documents a second, and memory that does not grow.

Documents of 100 words are drawn from a correlated topic model with 100 topics over 20,000 words, batch by batch as
they are learned from, so that neither the stream nor anything of it is ever held. The claim: within ten minutes of
learning on one GPU, in memory that the second half of the stream leaves as it was, and topics with a cosine of 0.9 or
more with those drawn.

    python -m benchmarks.topics_stream --documents 1000000 [--batch 8192] [--topics 100] [--words 20000]
"""

import argparse
import resource
import time

import jax
import numpy as np
from scipy.optimize import linear_sum_assignment
from scipy.sparse import csr_array

from benchmarks._common import report, table
from thalweg import CorrelatedTopicModel

LENGTH, SECONDS, COSINE = 100, 600.0, 0.9


class Stream:
    """Documents of a correlated topic model with sparse topics."""

    def __init__(self, topics, words, seed=0):
        self.rng = np.random.default_rng(seed)
        ranks = 1 / np.arange(1, words + 1)
        self.topics = np.stack([self._topic(ranks, words) for _ in range(topics)])
        self.edges = np.cumsum(self.topics, axis=1)
        near = np.exp(-np.abs(np.subtract.outer(np.arange(topics), np.arange(topics))) / 3)
        self.root = np.linalg.cholesky(2 * near + 0.1 * np.eye(topics))

    def _topic(self, ranks, words):
        """A shared part by Zipf's law, and a part of its own on some hundred words."""
        own = np.zeros(words)
        own[self.rng.choice(words, 300, replace=False)] = self.rng.gamma(0.5, size=300)
        return 0.3 * ranks / ranks.sum() + 0.7 * own / own.sum()

    def batch(self, documents):
        """Counts of some documents."""
        topics, words = self.topics.shape
        z = self.rng.normal(size=(documents, topics)) @ self.root.T
        shares = np.cumsum(np.exp(z - z.max(axis=1, keepdims=True)), axis=1)
        shares /= shares[:, -1:]
        picks = self.rng.random((documents, LENGTH))
        topic = np.stack([np.searchsorted(share, pick) for share, pick in zip(shares, picks, strict=True)])
        flat, word = topic.ravel(), np.empty(topic.size, np.int32)
        order = np.argsort(flat, kind="stable")
        draws = self.rng.random(topic.size)
        bounds = np.searchsorted(flat[order], np.arange(topics + 1))
        for k in range(topics):
            here = order[bounds[k] : bounds[k + 1]]
            word[here] = np.minimum(np.searchsorted(self.edges[k], draws[here]), words - 1)
        ones = np.ones(word.size, np.float32)
        document = np.repeat(np.arange(documents), LENGTH)
        return csr_array((ones, (document, word)), shape=(documents, words))


def resident():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def likeness(found, true):
    unit = lambda rows: rows / np.linalg.norm(rows, axis=1, keepdims=True)
    cosines = unit(found) @ unit(true).T
    return float(np.mean(cosines[linear_sum_assignment(-cosines)]))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--documents", type=int, default=1_000_000)
    parser.add_argument("--batch", type=int, default=8192, help="documents a call")
    parser.add_argument("--first", type=int, default=65536, help="documents of the first call")
    parser.add_argument("--step", type=int, default=2048, help="documents a step of learning, batch_size")
    parser.add_argument("--seconds", type=float, default=np.inf, help="when to end whatever is left")
    parser.add_argument("--topics", type=int, default=100)
    parser.add_argument("--words", type=int, default=20_000)
    parser.add_argument("--inference", default="pgsvi")
    options = parser.parse_args()
    stream = Stream(options.topics, options.words)
    model = CorrelatedTopicModel(options.topics, inference=options.inference, batch_size=options.step, random_state=0)
    seconds, memory, cosines, began = [], [], [], time.perf_counter()
    batches = 1 + max(0, options.documents - options.first) // options.batch
    for number in range(batches):
        documents = stream.batch(options.batch if number else options.first)
        start = time.perf_counter()
        jax.block_until_ready(model.partial_fit(documents).components_)
        seconds.append(time.perf_counter() - start)
        memory.append(resident())
        if number < 3 or number % 10 == 0:
            cosines.append([options.first + number * options.batch, likeness(model.components_, stream.topics)])
            said = f"{number + 1}/{batches}: {seconds[-1]:.2f} s, {memory[-1]:.2f} GiB, cosine {cosines[-1][1]:.3f}"
            print(said, flush=True)
        if time.perf_counter() - began > options.seconds:
            break
    count, learning = options.first + (len(seconds) - 1) * options.batch, float(np.sum(seconds))
    rate = options.batch / float(np.median(seconds[len(seconds) // 2 :]))
    cosine, growth = likeness(model.components_, stream.topics), memory[-1] - memory[len(memory) // 2]
    table(
        {
            "documents": [count],
            "learning, s": [learning],
            "first batch, s": [seconds[0]],
            "documents/s, warm": [rate],
            "with the drawing of documents, s": [time.perf_counter() - began],
            "most memory, GiB": [memory[-1]],
            "growth in the second half, GiB": [growth],
            "cosine with the topics drawn": [cosine],
        }
    )
    report(
        "a million documents (100 words each, 20,000 in all, 100 topics) stream through partial_fit in ten minutes, "
        "and the topics are found again to a cosine of 0.9",
        {"seconds of learning": learning, "documents a second": rate, "cosine": cosine},
        count > 0.99e6 and learning <= SECONDS and growth < 0.2 and cosine >= COSINE,
        documents=count,
        memory=memory[-1],
        growth=growth,
        cosines=cosines,
        first=seconds[0],
        inference=options.inference,
    )


if __name__ == "__main__":
    main()

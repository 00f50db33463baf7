"""Topics of a stream of documents, batch after batch."""

import numpy as np
from scipy.sparse import csr_array, vstack

from thalweg.runs import Run
from thalweg.topics.corpus import (
    SETTLING_PASSES,
    Corpus,
    FirstDocuments,
    Topics,
    TopicSettings,
    start_corpus,
    update_topics,
)
from thalweg.topics.pages import make_batches

__all__ = ["continue_topics"]

ENOUGH_DOCUMENTS_PER_TOPIC = 200
"""First documents that a stream should start from: of fewer, anchor words are noise. Doubled, more are stored."""
RESTART_GROWTH = 4
"""Topics start again when there are so many times the documents that they started from, until those were enough.
Doubled, a stream keeps bad topics for longer."""


def continue_topics(
    state: Topics | None,
    counts: csr_array,
    design: np.ndarray,
    settings: TopicSettings,
    seed: int,
    of: float | None = None,
) -> Topics:
    """Learn from more documents of a stream, from nothing if ``state`` is None.

    Topics that started from few documents start again once there are many more, and until then those are stored.
    ``of`` is the number of documents in all, where that is known, as in another pass over the same ones.

    Examples
    --------
    >>> table = csr_array(np.kron(np.eye(2), np.ones((20, 3))).astype(np.float32))
    >>> state = continue_topics(None, table, np.ones((40, 1)), TopicSettings(2), 0)
    >>> continue_topics(state, table, np.ones((40, 1)), TopicSettings(2), 0).documents
    80.0
    """
    if state is None:
        return _start(counts, design, settings, 0)
    if state.first is None:
        return _update(state, counts, design, settings, seed, of)
    table = csr_array(vstack([state.first.table(counts.shape[1]), counts]))
    rows, started_from = np.concatenate([state.first.design, design]), state.first.started_from
    if len(rows) >= RESTART_GROWTH * started_from:
        return _start(table, rows, settings, state.batches)
    state = _update(state, counts, design, settings, seed, of)
    return state._replace(first=FirstDocuments.of(table, rows, started_from))


def _start(counts: csr_array, design: np.ndarray, settings: TopicSettings, batches: int) -> Topics:
    """Start from the first documents, the same whatever the seed, and store them if they are few."""
    corpus, rng = Corpus(counts, design, settings), np.random.default_rng(0)
    with Run("first documents", total=SETTLING_PASSES, bar=settings.verbose) as run:
        state = start_corpus(corpus, run)
        for _ in range(0 if run.interrupted else SETTLING_PASSES):
            state, _ = corpus.run_pass(state, rng, run)
            run.advance()
    count = len(design)
    first = FirstDocuments.of(counts, design, count) if count < ENOUGH_DOCUMENTS_PER_TOPIC * settings.topics else None
    return run.kept._replace(first=first, batches=batches + len(corpus.parts))


def _update(
    state: Topics, counts: csr_array, design: np.ndarray, settings: TopicSettings, seed: int, of: float | None
) -> Topics:
    rng, count = np.random.default_rng(seed), counts.shape[0]
    parts = np.array_split(np.arange(count), -(-count // settings.batch_size))
    for batch in make_batches(counts, design, parts):
        state = state._replace(documents=state.documents + len(batch.rows) if of is None else of)
        means, share = state.prevalence.prior(batch.design).means, (1 + state.batches) ** -settings.decay
        state, _ = update_topics(state, batch, means, rng, settings, settings.cold_steps, share)
    return state

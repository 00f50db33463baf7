"""Topics of a stream of documents, batch after batch."""

import numpy as np
from scipy.sparse import csr_array, vstack

from thalweg.topics.corpus import Topics, TopicSettings, absorb, batch_of, begun_topics, prior_of
from thalweg.topics.first import FirstDocuments
from thalweg.topics.pages import page_shape

_ENOUGH = 200
"""Documents for each topic that a stream should begin from: of fewer, anchor words are noise."""
_TIMES = 4
"""Topics begin again when there are so many times the documents that they began from, until those were enough."""
_DOCUMENTS, _PAGES = 8, 64
"""What the numbers of a batch are filled up to multiples of."""


def continue_topics(
    state: Topics | None,
    counts: csr_array,
    design: np.ndarray,
    settings: TopicSettings,
    seed: int,
    of: float | None = None,
) -> Topics:
    """Learn from some more documents, of a stream; from nothing if ``state`` is None.

    Topics that began from few documents begin again once there are many more, and until then those are kept.
    ``of`` is how many documents there are in all, where that is known, as in another pass over the same ones.

    Examples
    --------
    >>> table = csr_array(np.kron(np.eye(2), np.ones((20, 3))).astype(np.float32))
    >>> state = continue_topics(None, table, np.ones((40, 1)), TopicSettings(2), 0)
    >>> continue_topics(state, table, np.ones((40, 1)), TopicSettings(2), 0).documents
    80.0
    """
    if state is None:
        return _begun(counts, design, settings, 0)
    if state.first is None:
        return _continued(state, counts, design, settings, seed, of)
    begun = state.first.begun
    table = csr_array(vstack([state.first.table(counts.shape[1]), counts]))
    rows = np.concatenate([state.first.design, design])
    if len(rows) >= _TIMES * begun:
        return _begun(table, rows, settings, state.batches)
    state = _continued(state, counts, design, settings, seed, of)
    return state._replace(first=FirstDocuments.of(table, rows, begun))


def _begun(counts: csr_array, design: np.ndarray, settings: TopicSettings, batches: int) -> Topics:
    state = begun_topics(counts, design, settings)
    few = len(design) < _ENOUGH * settings.topics
    first = FirstDocuments.of(counts, design, len(design)) if few else None
    return state._replace(first=first, batches=batches + state.batches)


def _continued(
    state: Topics, counts: csr_array, design: np.ndarray, settings: TopicSettings, seed: int, of: float | None
) -> Topics:
    count = counts.shape[0]
    counted, rng = np.ones(count, np.float32), np.random.default_rng(seed)
    parts = np.array_split(np.arange(count), -(-count // settings.batch_size))
    shape = page_shape(counts, parts, _DOCUMENTS, _PAGES)
    for part in parts:
        batch = batch_of(counts, design, counted, part, shape)
        state = state._replace(documents=state.documents + len(part) if of is None else of)
        means = prior_of(state.prevalence, batch.design).means
        share = (1 + state.batches) ** -settings.decay
        state, _ = absorb(state, batch, means, rng, settings, settings.cold_steps, share)
    return state

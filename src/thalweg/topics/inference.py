"""Posteriors of documents under topics that are known, batch by batch in bounded memory."""

from collections.abc import Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from scipy.sparse import csr_array

from thalweg.padding import padded, padded_size
from thalweg.topics import documents
from thalweg.topics.corpus import prior_of
from thalweg.topics.pages import page_count, page_width, paged
from thalweg.topics.prevalence import Prevalence

_BATCH = 1024
_CELLS = 2**25
"""Numbers in the covariances of a batch, at most: 128 MiB."""
_STEPS = 25
_GRAIN = 16
_SETS = 64
"""Sets of random points that steps take in turn."""


class TopicPosteriors(NamedTuple):
    """Of each document: mean and covariance of z, E[softmax z], and the bound on log p(its words).

    Examples
    --------
    >>> TopicPosteriors._fields
    ('means', 'covariances', 'proportions', 'bounds')
    """

    means: Float[np.ndarray, "n k"]
    covariances: Float[np.ndarray, "n k k"]
    proportions: Float[np.ndarray, "n k"]
    bounds: Float[np.ndarray, " n"]


class Inference(NamedTuple):
    """How posteriors are found: ``exact`` maximises the bound over V too, at K times the cost of a step.

    Examples
    --------
    >>> Inference(exact=True).method
    'pgsvi'
    """

    method: str = "pgsvi"
    samples: int = 16
    step: float = 0.9
    exact: bool = False
    seed: int = 0
    steps: int = _STEPS


def document_posteriors(
    counts: csr_array,
    design: Float[np.ndarray, "n p"],
    topics: Float[np.ndarray, "v k"],
    prevalence: Prevalence,
    how: Inference,
    means: Float[np.ndarray, "n k"] | None = None,
) -> Iterator[tuple[slice, TopicPosteriors]]:
    """The posteriors of some documents after another, and which they are; from ``means`` on, else the prior's.

    Examples
    --------
    >>> table = csr_array(np.array([[9, 0], [0, 9]], np.float32))
    >>> topics = np.array([[0.9, 0.1], [0.1, 0.9]])
    >>> found = list(document_posteriors(table, np.ones((2, 1)), topics, Prevalence.start(1, 2), Inference()))
    >>> found[0][1].proportions.argmax(axis=1)
    array([0, 1])
    """
    count, sides = counts.shape[0], topics.shape[1]
    most = min(_BATCH, max(_GRAIN, _CELLS // sides**2))
    width = page_width(counts)
    nodes = documents.antithetic(np.random.default_rng(how.seed), (_SETS, sides, how.samples))
    given = jax.device_put(topics.astype(np.float32))
    for start in range(0, count, most):
        rows = slice(start, min(start + most, count))
        part, here = counts[rows], rows.stop - rows.start
        size = padded_size(here, _GRAIN)
        filled = np.zeros((size, design.shape[1]))
        filled[:here] = design[rows]
        prior = prior_of(prevalence, filled)
        start_at = prior.means if means is None else jnp.asarray(padded(means[rows], size), jnp.float32)
        found = documents.posteriors(
            paged(part, width, size, padded_size(max(page_count(part, width), 1), _GRAIN)),
            given,
            prior,
            start_at,
            nodes,
            np.float32(how.step),
            np.int32(how.steps),
            method=how.method,
            exact=how.exact,
        )
        yield rows, TopicPosteriors(*(np.asarray(leaf, np.float64)[:here] for leaf in found))

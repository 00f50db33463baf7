"""Document completion: how well topics and a prior predict one half of a document's words from the other half.

The definition, the same for every model and library:

1. Of the W tokens of a document, ⌊W/2⌋, drawn at random without replacement, are held out; the others are observed.
2. A token w that is held out has the probability p(w) = Σ_k E[θ_k | observed tokens] p(w | k), the expectation under
   the exact posterior given the topics and the prior (PG-SVI, eq. 20, with the posterior itself in place of q).
3. The score is the mean of log p(w) over the held-out tokens of all documents, in nats.

Documents with fewer than two tokens have nothing to hold out and do not count.
"""

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from jaxtyping import Float, Int
from scipy.sparse import csr_array

from thalweg.topics.tables import as_counts, as_topics

__all__ = ["Completion", "document_completion", "split_tokens"]

DOCUMENTS_AT_ONCE = 256
"""Documents whose chains advance together. Doubled, memory doubles, and arrays leave the cache."""


class ProportionsPrior(Protocol):
    """A prior of proportions: see :class:`LogisticNormal` and :class:`Dirichlet`."""

    def part(self, rows: slice) -> "ProportionsPrior":
        """Return the prior of some of the documents."""

    def chains(self, components: np.ndarray, counts: csr_array, rng: np.random.Generator) -> Float[np.ndarray, "n c k"]:
        """Return the mean of θ over each of several independent chains in the posterior of each document."""


@dataclass(frozen=True)
class Completion:
    """The score of document completion, and how sure it is.

    ``score`` is in nats a token, higher is better. ``standard_error`` is over documents: other documents of the same
    kind would have given another score. ``monte_carlo_error`` is the part of it that more draws would remove.
    ``log_likelihood`` and ``tokens`` are those of each document, NaN and 0 where nothing was held out.

    Examples
    --------
    >>> Completion(np.array([-2.0, -12.0]), np.array([1, 4]), np.array([0.01, 0.02]))
    Completion(-2.8 ± 0.32 nats a token, 2 documents, 5 tokens; Monte Carlo ± 0.0045)
    """

    log_likelihood: Float[np.ndarray, " n"]
    tokens: Int[np.ndarray, " n"]
    noise: Float[np.ndarray, " n"]
    """The Monte Carlo error of each document's log-likelihood."""

    @property
    def score(self) -> float:
        """The mean log p of a held-out token."""
        return float(np.nansum(self.log_likelihood) / self.tokens.sum())

    @property
    def standard_error(self) -> float:
        """The error of the score, as a ratio of two sums over documents."""
        counted = self.tokens > 0
        residuals = self.log_likelihood[counted] - self.score * self.tokens[counted]
        n = max(int(counted.sum()), 2)
        return float(np.sqrt(np.sum(residuals**2) * n / (n - 1)) / self.tokens.sum())

    @property
    def monte_carlo_error(self) -> float:
        """The error of the score that comes from the draws, by the differences between independent chains."""
        return float(np.sqrt(np.nansum(self.noise**2)) / self.tokens.sum())

    def __repr__(self) -> str:
        return (
            f"Completion({self.score:.4g} ± {self.standard_error:.2g} nats a token, "
            f"{np.count_nonzero(self.tokens)} documents, {self.tokens.sum()} tokens; "
            f"Monte Carlo ± {self.monte_carlo_error:.2g})"
        )


def document_completion(
    counts: Any, components: Any, prior: ProportionsPrior, *, random_state: int | np.random.Generator = 0
) -> Completion:
    """Score topics and a prior of proportions by document completion, as the head of this module defines it.

    Posteriors come from Markov chains, and log p from their mean with the bias of the logarithm removed to first order,
    so that a score does not depend on how long the chains were, only its error does.

    Parameters
    ----------
    counts
        Documents by words, a SciPy sparse matrix or an array of whole numbers.
    components
        p(word | topic), one topic a row; rows are scaled to sum to one.
    prior
        A :class:`LogisticNormal`, a :class:`Dirichlet`, or anything else with their methods ``part`` and ``chains``.
    random_state
        A seed or a generator of NumPy. The same seed gives the same halves whatever the model.

    Examples
    --------
    >>> from thalweg.topics import Dirichlet
    >>> topics = [[0.5, 0.5, 0.0, 0.0], [0.0, 0.0, 0.5, 0.5]]
    >>> pure, mixed = [[40, 40, 0, 0], [0, 0, 30, 30]], [[0, 40, 40, 0], [30, 0, 30, 0]]
    >>> score = lambda documents: document_completion(documents, topics, Dirichlet([0.5, 0.5])).score
    >>> bool(score(pure) > -0.75), bool(score(mixed) < -1.3)    # log ½ and log ¼ at best
    (True, True)
    """
    table, topics = as_counts(counts), as_topics(components)
    if table.shape[1] != topics.shape[1]:
        raise ValueError(f"counts and components must have one vocabulary, found {table.shape[1]}, {topics.shape[1]}")
    rng = np.random.default_rng(random_state)
    observed, held = split_tokens(table, rng)
    if not held.nnz:
        raise ValueError(f"counts must have a document of two tokens or more, found none in {table.shape[0]} documents")
    unknown = np.flatnonzero((topics.max(axis=0) <= 0) & (table.sum(axis=0) > 0))
    if len(unknown):
        raise ValueError(
            f"components give {len(unknown)} words that occur in counts, such as column {unknown[0]}, no probability "
            "in any topic: smooth the topics, or leave out these columns of both"
        )
    tokens = held.sum(axis=1).astype(int)
    values, noises = np.full(len(tokens), np.nan), np.zeros(len(tokens))
    for first in range(0, len(tokens), DOCUMENTS_AT_ONCE):
        rows = slice(first, first + DOCUMENTS_AT_ONCE)
        chains = prior.part(rows).chains(topics, observed[rows], rng)
        values[rows], noises[rows] = log_predictive(held[rows], topics, chains)
    return Completion(np.where(tokens > 0, values, np.nan), tokens, noises)


def split_tokens(counts: Any, random_state: int | np.random.Generator = 0) -> tuple[csr_array, csr_array]:
    """Split the tokens of each document at random: ⌈W/2⌉ observed, ⌊W/2⌋ held out.

    Examples
    --------
    >>> observed, held = split_tokens([[3, 0, 4], [1, 0, 0]])
    >>> observed.sum(axis=1), held.sum(axis=1), (observed + held).toarray()
    (array([4, 1]), array([3, 0]), array([[3, 0, 4], [1, 0, 0]]))
    """
    table, rng = as_counts(counts), np.random.default_rng(random_state)
    held = table.copy()
    for start, stop in zip(table.indptr[:-1], table.indptr[1:], strict=True):
        bag = table.data[start:stop]
        held.data[start:stop] = rng.multivariate_hypergeometric(bag, bag.sum() // 2) if len(bag) else 0
    held.eliminate_zeros()
    return table - held, held


def log_predictive(
    held: csr_array, topics: Float[np.ndarray, "k v"], chains: Float[np.ndarray, "n c k"]
) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n"]]:
    """Return log-likelihoods of the held-out tokens of each document, and their Monte Carlo errors."""
    values, noises = np.zeros(held.shape[0]), np.zeros(held.shape[0])
    for row, (start, stop) in enumerate(zip(held.indptr[:-1], held.indptr[1:], strict=True)):
        words, times = held.indices[start:stop], held.data[start:stop]
        of_chains = chains[row] @ topics[:, words]
        mean, size = of_chains.mean(axis=0), len(of_chains)
        deviations = of_chains / mean - 1
        bias = 0.5 * np.sum(deviations**2, axis=0) / (size * (size - 1))
        values[row] = times @ (np.log(mean) + bias)
        noises[row] = np.sqrt(np.sum((deviations @ times) ** 2) / (size * (size - 1)))
    return values, noises

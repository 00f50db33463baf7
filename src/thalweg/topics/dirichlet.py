"""The Dirichlet prior of topic proportions, which is LDA's, and Markov chains in the posteriors of documents."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from jaxtyping import Float
from scipy.sparse import csr_array
from scipy.special import digamma

_WARM_SWEEPS = 5
_MEAN_FIELD_STEPS = 30
_AT_ONCE = 512
"""Documents whose chains advance together."""


@dataclass(frozen=True)
class Dirichlet:
    """Proportions θ ~ Dirichlet(concentration), as in latent Dirichlet allocation.

    Parameters
    ----------
    concentration
        α > 0, one for each topic.

    Examples
    --------
    Words of the second topic alone, three times:

    >>> import scipy.sparse
    >>> prior = Dirichlet(np.ones(2))
    >>> topics, words = np.array([[0.9, 0.1], [0.1, 0.9]]), scipy.sparse.csr_array([[0, 3]])
    >>> chains = prior.chains(topics, words, np.random.default_rng(0))
    >>> chains.shape, bool(chains.mean(axis=1)[0, 1] > 0.6)
    ((1, 8, 2), True)
    """

    concentration: Float[np.ndarray, " k"]

    def __post_init__(self) -> None:
        concentration = np.asarray(self.concentration, float)
        if concentration.ndim != 1 or not (np.isfinite(concentration) & (concentration > 0)).all():
            raise ValueError(f"concentration must be a vector of positive numbers, found {self.concentration!r}")
        object.__setattr__(self, "concentration", concentration)

    def part(self, rows: slice) -> "Dirichlet":
        """The prior of some of the documents: the same."""
        return self

    def chains(
        self, components: np.ndarray, counts: csr_array, rng: np.random.Generator, chains: int = 8, moves: int = 10
    ) -> Float[np.ndarray, "n c k"]:
        """For each document the mean of θ over each of several independent chains in its posterior.

        Collapsed Gibbs sweeps over the tokens with the topics held fixed; what is averaged is E[θ | assignments]. The
        start is the mean-field posterior: from assignments that use all topics a sparse prior needs hundreds of sweeps.
        """
        if len(components) != len(self.concentration):
            raise ValueError(
                f"concentration must have an entry for each of the {len(components)} topics, "
                f"found {len(self.concentration)}"
            )
        lengths = np.asarray(counts.sum(axis=1)).ravel()
        order = np.argsort(-lengths, kind="stable")
        single = components.astype(np.float32)
        found = np.empty((counts.shape[0], chains, len(components)))
        for first in range(0, len(order), _AT_ONCE):
            rows = order[first : first + _AT_ONCE]
            tokens = [np.repeat(counts.indices[a:b], counts.data[a:b].astype(int)) for a, b in _ends(counts, rows)]
            start = _lean(components, counts, rows, self.concentration)
            found[rows] = self._sweeps(start, single, [rng.permutation(each) for each in tokens], chains, moves, rng)
        return found

    def _sweeps(
        self,
        start: np.ndarray,
        components: np.ndarray,
        tokens: list[np.ndarray],
        chains: int,
        moves: int,
        rng: np.random.Generator,
    ) -> np.ndarray:
        """Chains from assignments drawn with θ at ``start``.

        Documents come longest first, so that those with an i-th token are the first few.

        Topics are the first axis of all arrays and documents the last: sums over topics are sums of long vectors.
        """
        lengths = np.array([len(each) for each in tokens])
        longest = int(lengths.max(initial=0))
        present = [int(np.count_nonzero(lengths > i)) for i in range(longest)]
        words = [np.array([each[i] for each in tokens[: present[i]]]) for i in range(longest)]
        smoothed = np.tile(self.concentration.astype(np.float32)[:, None, None], (1, chains, len(tokens)))
        topics = np.zeros((longest, chains, len(tokens)), np.intp)
        chain, document = np.ogrid[:chains, : len(tokens)]
        size = np.uint8 if len(smoothed) < 256 else np.intp
        total = np.zeros(smoothed.shape)
        for sweep in range(1 + _WARM_SWEEPS + moves):
            for i, (few, word) in enumerate(zip(present, words, strict=True)):
                topic, those = topics[i, :, :few], (chain, document[:, :few])
                if sweep:
                    smoothed[(topic, *those)] -= 1
                level = smoothed[:, :, :few] if sweep else start[:, None, :few]
                reached = level * components[:, None, word]
                for below, above in pairwise(reached):
                    above += below
                mark = rng.random((chains, few), np.float32) * reached[-1]
                topic[:] = np.add.reduce(reached[:-1] <= mark, axis=0, dtype=size)
                smoothed[(topic, *those)] += 1
            if sweep > _WARM_SWEEPS:
                total += smoothed
        return (total / total.sum(axis=0)).transpose(2, 1, 0)


def _ends(counts: csr_array, rows: np.ndarray) -> zip:
    """Where each document's words begin and end."""
    return zip(counts.indptr[rows], counts.indptr[rows + 1], strict=True)


def _lean(components: np.ndarray, counts: csr_array, rows: np.ndarray, alpha: np.ndarray) -> np.ndarray:
    """exp E log θ under the mean-field posterior of each document, which uses as few topics as the prior would like."""
    found = np.empty((len(alpha), len(rows)), np.float32)
    for column, (a, b) in enumerate(_ends(counts, rows)):
        words, times = components[:, counts.indices[a:b]], counts.data[a:b]
        gamma = alpha + times.sum() / len(alpha)
        for _ in range(_MEAN_FIELD_STEPS):
            level = np.exp(digamma(gamma))
            gamma = alpha + level * (words @ (times / np.maximum(level @ words, 1e-300)))
        level = np.exp(digamma(gamma) - digamma(gamma).max())
        found[:, column] = level
    return found

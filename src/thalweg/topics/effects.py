"""Draws from the joint posterior refine what was learned, and give effects of covariates with honest errors.

Variational EM leaves topics that predict worse than their mean over a chain in the posterior does, and effects that are
too large. So a :class:`~thalweg.topics.sampling.Chain` goes on from there, and topics and prior become their means over
it. z_d ~ N(Cᵀx_d, Σ) is not seen, and Σ and the topics are learned from the same words: all are drawn with C, and the
mean and covariance of C over the chain are its effects. The chain keeps to the topics it begins with: topics that were
not found have no effects.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.sparse import csr_array

from thalweg.files import storable
from thalweg.topics.corpus import Topics, TopicSettings
from thalweg.topics.prevalence import Prevalence
from thalweg.topics.sampling import Chain

_WARM, _WARM_EFFECTS = 20, 200
_ROUNDS = 10
_WORTH = 50
"""Independent draws that those of a chain should be worth, before it ends."""


@storable
class Effects(NamedTuple):
    """Coefficients C, of which each row sums to zero over topics, and the covariance of each topic's column.

    Examples
    --------
    >>> Effects._fields
    ('coefficients', 'covariances', 'worth')
    """

    coefficients: Float[np.ndarray, "p k"]
    covariances: Float[np.ndarray, "k p p"]
    worth: float
    """Independent draws that those of the chain are worth, of the coefficient that moved slowest."""


def refined(
    counts: csr_array,
    design: Float[np.ndarray, "n p"],
    state: Topics,
    settings: TopicSettings,
    seed: int,
) -> tuple[Topics, Effects | None]:
    """What has been learned with its means over a chain, and effects where there are covariates.

    Examples
    --------
    >>> table = csr_array(np.repeat([[9.0, 0.0], [0.0, 9.0]], 20, axis=0).astype(np.float32))
    >>> design = np.column_stack([np.ones(40), np.repeat([1.0, -1.0], 20)])
    >>> start = Topics.start(table, 2, 2, np.array([[0.9, 0.1], [0.1, 0.9]]))
    >>> _, found = refined(table, design, start, TopicSettings(2, draws=40), 0)
    >>> bool(found.coefficients[1, 0] > 0.5), bool(np.allclose(found.coefficients.sum(axis=1), 0))
    (True, True)
    """
    chain = Chain(counts, design, state.components(settings.smoothing), state.prevalence, settings.smoothing, seed)
    sought = design.shape[1] > 1
    drawn, covariance, words, worth = [], np.zeros_like(state.prevalence.covariance), np.zeros(state.words.shape), 0.0
    for number in range(_ROUNDS if sought else 1):
        for draw in chain.draws(0 if number else _WARM_EFFECTS if sought else _WARM, settings.draws):
            drawn.append(draw.prevalence.coefficients)
            covariance += draw.prevalence.covariance
            words += draw.words
        worth = min(map(independent, np.stack(drawn)[:, 1:].reshape(len(drawn), -1).T), default=np.inf)
        if settings.verbose:
            print(f"{len(drawn)} draws" + (f", worth {worth:.0f} of effects" if sought else ""))
        if worth >= _WORTH:
            break
    mean = np.mean(drawn, axis=0)
    shared = np.mean(state.prevalence.coefficients, axis=1, keepdims=True)
    prevalence = Prevalence(mean + shared, covariance / len(drawn) + np.mean(state.prevalence.covariance))
    per_document = (words / len(drawn) / max(counts.shape[0], 1)).astype(np.float32)
    apart = np.stack(drawn) - mean
    # The mean over draws has an error too, of one part in so many as they are worth.
    spread = np.einsum("spk,sqk->kpq", apart, apart) / max(len(drawn) - 1, 1) * (1 + 1 / worth)
    found = Effects(mean, spread, worth) if sought else None
    return state._replace(words=per_document, prevalence=prevalence), found


def independent(draws: Float[np.ndarray, " s"]) -> float:
    """How many independent draws those of a chain are worth, by Geyer's initial positive sequence.

    Examples
    --------
    >>> noise = np.random.default_rng(0).normal(size=4000)
    >>> bool(3000 < independent(noise) <= 4000), bool(independent(np.convolve(noise, np.ones(10))) < 800)
    (True, True)
    """
    count = len(draws)
    apart = draws - np.mean(draws)
    waves = np.fft.rfft(apart, 2 * count)
    together = np.fft.irfft(waves * np.conj(waves))[:count]
    if together[0] <= 0:
        return float(count)
    pairs = np.add.reduceat(together, np.arange(0, count, 2))[: count // 2] / together[0]
    ends = np.flatnonzero(pairs <= 0)
    total = np.sum(pairs[: ends[0]] if len(ends) else pairs)
    return float(count / max(2 * total - 1, 1.0))

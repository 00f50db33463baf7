"""Effects of covariates on the prevalence of topics, with errors that count all that is unknown beside them.

z_d ~ N(Cᵀx_d, Σ) is not seen, and Σ and the topics are learned from the same words. So C is drawn with them from their
joint posterior by :class:`~thalweg.topics.sampling.Chain`; its mean and covariance over the chain are reported. The
chain begins at the topics of variational EM, and keeps to them: topics that were not found have no effects.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.sparse import csr_array

from thalweg.files import storable
from thalweg.topics.corpus import Topics
from thalweg.topics.prevalence import Prevalence
from thalweg.topics.sampling import Chain

_WARM = 200
_ROUND, _ROUNDS = 200, 8
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


def measured(
    counts: csr_array,
    design: Float[np.ndarray, "n p"],
    state: Topics,
    smoothing: float,
    seed: int,
    tell: Callable[[str], None] = lambda text: None,
) -> tuple[Effects, Topics]:
    """Effects, and what has been learned with its means over the chain.

    Examples
    --------
    >>> table = csr_array(np.repeat([[9.0, 0.0], [0.0, 9.0]], 20, axis=0).astype(np.float32))
    >>> design = np.column_stack([np.ones(40), np.repeat([1.0, -1.0], 20)])
    >>> start = Topics.start(table, 2, 2, np.array([[0.9, 0.1], [0.1, 0.9]]))
    >>> found, _ = measured(table, design, start, 0.2, 0)
    >>> bool(found.coefficients[1, 0] > 0.5), bool(np.allclose(found.coefficients.sum(axis=1), 0))
    (True, True)
    """
    chain = Chain(counts, design, state.components(smoothing), state.prevalence, smoothing, seed)
    coefficients: list[np.ndarray] = []
    covariance, words, worth = np.zeros_like(state.prevalence.covariance), np.zeros(state.words.shape), 0.0
    for number in range(_ROUNDS):
        for draw in chain.draws(_WARM if number == 0 else 0, _ROUND):
            coefficients.append(draw.prevalence.coefficients)
            covariance += draw.prevalence.covariance
            words += draw.words
        drawn = np.stack(coefficients)
        worth = min(
            independent(drawn[:, row, column]) for row in range(1, drawn.shape[1]) for column in range(drawn.shape[2])
        )
        tell(f"{len(drawn)} draws of effects, worth {worth:.0f}")
        if worth >= _WORTH:
            break
    mean, apart = drawn.mean(axis=0), drawn - drawn.mean(axis=0)
    # The mean over draws has an error too, of one part in so many as they are worth.
    spread = np.einsum("spk,sqk->kpq", apart, apart) / (len(drawn) - 1) * (1 + 1 / worth)
    shared = np.mean(state.prevalence.coefficients, axis=1, keepdims=True)
    prevalence = Prevalence(mean + shared, covariance / len(drawn) + np.mean(state.prevalence.covariance))
    per_document = (words / len(drawn) / max(counts.shape[0], 1)).astype(np.float32)
    return Effects(mean, spread, worth), state._replace(words=per_document, prevalence=prevalence)


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

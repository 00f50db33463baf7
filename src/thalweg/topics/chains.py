"""Priors of topic proportions, and Markov chains in the posteriors that they give to documents.

Importance sampling would not do: with 50 topics, 500 draws from the Laplace approximation of the posterior of a news
article are worth about eight (``benchmarks/topics_completion.py``). Under a logistic-normal prior, chains move by
Hamiltonian Monte Carlo with the topics of words summed out, in coordinates z = Bu, B the contrasts of topics: words say
nothing of what all entries of z share. The metric is Σ⁻¹ plus half of the information that words would have on
proportions if their topics were seen. Written for NumPy and JAX alike: :mod:`thalweg.topics.effects` compiles it, a
score does not. Under a Dirichlet prior, chains are collapsed Gibbs sweeps.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Float
from scipy.linalg import helmert
from scipy.sparse import csr_array
from scipy.special import digamma

from thalweg.linalg import factorise, namespace
from thalweg.linalg.arrays import AnyArray, while_loop
from thalweg.topics.documents import MAX_MOVE, DocumentWords
from thalweg.topics.pages import BatchShape, make_pages, page_counts, page_width

__all__ = ["Dirichlet", "LogisticNormal"]

LEAPS = 2
"""Leapfrog steps of a move, about a quarter of an orbit. Doubled, a move costs twice as much and gains less."""
ACCEPTANCE = 0.8
"""The share of accepted moves that step sizes are adapted to, near the optimum of Hamiltonian Monte Carlo; anything
from 0.65 to 0.9 is as good."""
START_STEPS = 20
"""Newton steps to the mode, or updates of the mean-field posterior, that chains start from; twice as many change no
score."""


class ChainTarget(NamedTuple):
    """The density of u in each document: its words, and the prior N(mean, precision⁻¹) of u, with z = basis u."""

    words: DocumentWords
    means: Float[AnyArray, "d r"]
    precision: Float[AnyArray, "r r"]
    basis: Float[AnyArray, "k r"]

    def proportions(self, u: Any) -> Any:
        """Return softmax(Bu)."""
        xp, z = namespace(u), u @ self.basis.T
        shares = xp.exp(z - z.max(axis=-1, keepdims=True))
        return shares / shares.sum(axis=-1, keepdims=True)

    def log_density(self, u: Float[AnyArray, "d c r"]) -> tuple[Any, Any]:
        """Return log p(words, u) of each chain of each document, up to a constant, and its gradient in u."""
        proportions = self.proportions(u)
        chance, ratio, of_pages = self.words.read(proportions)
        wrote = self.words.assigned(ratio, of_pages)
        shift = u - self.means[:, None]
        pull = shift @ self.precision
        gradient = (wrote - self.words.lengths[:, None, None] * proportions) @ self.basis - pull
        return self.words.log_likelihood(chance) - (shift * pull).sum(axis=-1) / 2, gradient

    def metric_roots(self, proportions: Float[AnyArray, "d k"], information: float) -> Any:
        """Return L⁻¹ of the metric LLᵀ = Σ⁻¹ + ``information``·W Bᵀ(diag π − ππᵀ)B at some proportions."""
        xp = namespace(proportions)
        weighted = proportions[:, :, None] * self.basis[None]
        mean = proportions @ self.basis
        spread = xp.swapaxes(weighted, 1, 2) @ self.basis - mean[:, :, None] * mean[:, None]
        metric = self.precision[None] + (information * self.words.lengths)[:, None, None] * spread
        triangle = xp.linalg.cholesky(metric)
        if xp is np:
            return np.linalg.inv(triangle)
        unit = xp.broadcast_to(xp.eye(metric.shape[-1], dtype=metric.dtype), metric.shape)
        return jax.lax.linalg.triangular_solve(triangle, unit, left_side=True, lower=True)

    def modes(self) -> Any:
        """Return u of about the largest density of each document: Newton steps, with words' topics taken for seen."""
        xp, u = namespace(self.means), self.means[:, None]
        for _ in range(START_STEPS):
            root = self.metric_roots(self.proportions(u)[:, 0], 1.0)
            step = self.log_density(u)[1] @ xp.swapaxes(root, 1, 2) @ root
            farthest = xp.max(xp.abs(step), axis=-1, keepdims=True, initial=MAX_MOVE)
            u = u + step * (MAX_MOVE / farthest)
        return u


class ChainState(NamedTuple):
    """Where the chains of documents are, and what they have adapted to."""

    u: Float[AnyArray, "d c r"]
    step_sizes: Float[AnyArray, " d"]
    proportions: Float[AnyArray, "d k"]
    """Those at which the metric is taken."""


def draw_noise(rng: np.random.Generator, shape: tuple[int, ...]) -> tuple[np.ndarray, ...]:
    """Draw the noise of one move: standard normal speeds, and uniforms that stretch the steps and accept moves."""
    speeds = rng.standard_normal(shape, np.float32)
    return speeds, rng.random(shape[0], np.float32), rng.random(shape[:2], np.float32)


def adaptation_rate(move: int, warm_up: int) -> np.float32:
    """Return the rate at which a move adapts its chain: what it adapts to is then the mean over the warm-up."""
    return np.float32(1 / (1 + move) if move < warm_up else 0)


def move_chains(target: ChainTarget, state: ChainState, noise: tuple[Any, ...], rate: Any) -> tuple[ChainState, Any]:
    """Move every chain once, and adapt step sizes and metric at a rate; return the proportions of each chain too."""
    xp, (speeds, stretches, accepts) = namespace(state.u), noise
    root = target.metric_roots(state.proportions, 0.5)
    transposed = xp.swapaxes(root, 1, 2)
    # Steps of random length, so that no orbit comes back to where it began.
    size = (state.step_sizes * (0.8 + 0.4 * stretches))[:, None, None]

    def leap(carry: tuple[Any, ...]) -> tuple[Any, ...]:
        """Drift, then push: the first drift has no length, and the first and last push are half ones."""
        index, u, speed, first, _ = carry
        u = u + xp.where(index > 0, size, 0) * (speed @ root)
        value, gradient = target.log_density(u)
        share = xp.where((index > 0) & (index < LEAPS), 1.0, 0.5).astype(u.dtype)
        return index + 1, u, speed + share * size * (gradient @ transposed), xp.where(index > 0, first, value), value

    none = xp.zeros(state.u.shape[:2], state.u.dtype)
    carry = (xp.asarray(0), state.u, speeds, none, none)
    _, u, speed, first, last = while_loop(lambda carry: carry[0] <= LEAPS, leap, carry, xp)
    gain = last - first + (speeds**2 - speed**2).sum(axis=-1) / 2
    chance = xp.where(xp.isfinite(gain), xp.exp(xp.minimum(gain, 0)), 0)
    u = xp.where((accepts < chance)[:, :, None], u, state.u)
    proportions = target.proportions(u)
    sizes = xp.minimum(state.step_sizes * xp.exp(rate * (chance.mean(axis=1) - ACCEPTANCE)), 1.0)
    adapted = state.proportions + rate * (proportions.mean(axis=1) - state.proportions)
    return ChainState(u, sizes.astype(u.dtype), adapted), proportions


@dataclass(frozen=True)
class LogisticNormal:
    """Proportions θ = softmax(z), z ~ N(mean, covariance): the prior of correlated topics (PG-SVI, eq. 32 and 33).

    Parameters
    ----------
    mean
        One for all documents, of K entries, or one row for each document, as covariates of prevalence give it. With
        K − 1 entries the last topic's z is 0, as in structural topic models.
    covariance
        Positive definite, of the same side.

    Examples
    --------
    Words of the second topic alone, three times:

    >>> import scipy.sparse
    >>> prior = LogisticNormal(np.zeros(2), np.eye(2))
    >>> topics, words = np.array([[0.9, 0.1], [0.1, 0.9]]), scipy.sparse.csr_array([[0, 3]])
    >>> chains = prior.chains(topics, words, np.random.default_rng(0))
    >>> chains.shape, bool(chains.mean(axis=1)[0, 1] > 0.6)
    ((1, 16, 2), True)
    """

    mean: Float[np.ndarray, "..."]
    covariance: Float[np.ndarray, "f f"]

    def __post_init__(self) -> None:
        mean, covariance = np.asarray(self.mean, float), np.asarray(self.covariance, float)
        if mean.ndim not in (1, 2) or not np.isfinite(mean).all():
            raise ValueError(f"mean must be one finite vector or one for each document, found shape {mean.shape}")
        if covariance.shape != (mean.shape[-1],) * 2:
            raise ValueError(f"covariance must have the side of the mean, {mean.shape[-1]}, found {covariance.shape}")
        try:
            np.linalg.cholesky(covariance)
        except np.linalg.LinAlgError:
            raise ValueError("covariance must be positive definite, found a matrix that is not") from None
        object.__setattr__(self, "mean", mean)
        object.__setattr__(self, "covariance", covariance)

    def part(self, rows: slice) -> "LogisticNormal":
        """Return the prior of some of the documents."""
        return self if self.mean.ndim == 1 else LogisticNormal(self.mean[rows], self.covariance)

    def target(self, components: Float[np.ndarray, "k v"], counts: csr_array) -> ChainTarget:
        """Return the density of u in each document."""
        topics, free = components.shape[0], self.mean.shape[-1]
        if free not in (topics, topics - 1):
            raise ValueError(f"mean must have an entry for each of the {topics} topics, or one less, found {free}")
        if self.mean.ndim == 2 and len(self.mean) != counts.shape[0]:
            raise ValueError(f"mean must have a row for each of {counts.shape[0]} documents, found {len(self.mean)}")
        count, width = counts.shape[0], page_width(counts)
        pages = make_pages(counts, BatchShape(count, int(page_counts(counts, width).sum()), width))
        basis = helmert(topics).T  # an orthonormal basis of the vectors that sum to zero
        given = basis[:free]  # z of a topic that is not free is 0
        means = np.broadcast_to(self.mean @ given, (count, topics - 1)).astype(np.float32)
        precision = factorise(given.T @ self.covariance @ given).inverse()
        words = DocumentWords.of(pages, components.T.astype(np.float32), count)
        return ChainTarget(words, means, precision.astype(np.float32), basis.astype(np.float32))

    def chains(
        self, components: np.ndarray, counts: csr_array, rng: np.random.Generator, chains: int = 16, moves: int = 6
    ) -> Float[np.ndarray, "n c k"]:
        """Return the mean of θ over each of several independent chains in the posterior of each document.

        Chains start from a Gaussian at the mode, and adapt in as many moves that do not count.
        """
        target = self.target(components, counts)
        modes, shape = target.modes(), (counts.shape[0], chains, components.shape[0] - 1)
        proportions = target.proportions(modes)[:, 0]
        u = modes + rng.standard_normal(shape, np.float32) @ target.metric_roots(proportions, 0.5)
        state = ChainState(u, np.full(len(u), 0.7, np.float32), proportions)
        total = np.zeros((*shape[:2], len(components)))
        for number in range(2 * moves):
            rate = adaptation_rate(number, moves)
            state, shares = move_chains(target, state, draw_noise(rng, shape), rate)
            total += shares if number >= moves else 0
        return total / moves


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
        """Return the prior of some of the documents: the same."""
        return self

    def chains(
        self, components: np.ndarray, counts: csr_array, rng: np.random.Generator, chains: int = 8, moves: int = 10
    ) -> Float[np.ndarray, "n c k"]:
        """Return the mean of θ over each of several independent chains in the posterior of each document.

        Collapsed Gibbs sweeps over the tokens with the topics held fixed; what is averaged is E[θ | assignments]. The
        start is the mean-field posterior: from assignments that use all topics a sparse prior needs hundreds of sweeps.
        Half as many sweeps before them do not count.
        """
        if len(components) != len(self.concentration):
            raise ValueError(
                f"concentration must have an entry for each of the {len(components)} topics, "
                f"found {len(self.concentration)}"
            )
        # Longest first, so that the documents with an i-th token are the first ones.
        order = np.argsort(-counts.sum(axis=1), kind="stable")
        bags = [slice(a, b) for a, b in zip(counts.indptr[order], counts.indptr[order + 1], strict=True)]
        tokens = [rng.permutation(np.repeat(counts.indices[bag], counts.data[bag].astype(int))) for bag in bags]
        mean_field = lambda bag: self._mean_field(components[:, counts.indices[bag]], counts.data[bag])
        start = np.stack(list(map(mean_field, bags)), axis=1)
        components = components.astype(np.float32)
        lengths = np.array([len(each) for each in tokens])
        longest = int(lengths.max(initial=0))
        present = [int(np.count_nonzero(lengths > i)) for i in range(longest)]
        words = [np.array([each[i] for each in tokens[: present[i]]]) for i in range(longest)]
        # Topics are the first axis of all arrays and documents the last: sums over topics are sums of long vectors.
        smoothed = np.tile(self.concentration.astype(np.float32)[:, None, None], (1, chains, len(tokens)))
        topics = np.zeros((longest, chains, len(tokens)), np.intp)
        chain, document = np.ogrid[:chains, : len(tokens)]
        total, warm = np.zeros(smoothed.shape), moves // 2
        number = np.uint8 if len(smoothed) < 256 else np.intp
        for sweep in range(1 + warm + moves):
            for i, (few, word) in enumerate(zip(present, words, strict=True)):
                topic, those = topics[i, :, :few], (chain, document[:, :few])
                if sweep:
                    smoothed[(topic, *those)] -= 1
                level = smoothed[:, :, :few] if sweep else start[:, None, :few]
                cumulative = level * components[:, None, word]
                for below, above in pairwise(cumulative):
                    above += below
                mark = rng.random((chains, few), np.float32) * cumulative[-1]
                topic[:] = np.add.reduce(cumulative[:-1] <= mark, axis=0, dtype=number)
                smoothed[(topic, *those)] += 1
            if sweep > warm:
                total += smoothed
        return (total / total.sum(axis=0)).transpose(2, 1, 0)[np.argsort(order)]

    def _mean_field(self, chances: np.ndarray, counts: np.ndarray) -> Float[np.ndarray, " k"]:
        """Return exp E log θ, up to a factor, under the mean-field posterior of a document."""
        gamma = self.concentration + counts.sum() / len(self.concentration)
        for _ in range(START_STEPS):
            level = np.exp(digamma(gamma))
            gamma = self.concentration + level * (chances @ (counts / np.maximum(level @ chances, 1e-300)))
        return np.exp(digamma(gamma) - digamma(gamma).max()).astype(np.float32)

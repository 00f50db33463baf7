"""The logistic-normal prior of topic proportions, and Markov chains in the posteriors that it gives to documents.

Importance sampling alone would not do: with 50 topics, 500 draws from the Laplace approximation of the posterior of a
news article are worth about eight (``benchmarks/topics_completion.py``). So the chains begin there, and move.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.sparse import csr_array
from scipy.special import softmax

_MODE_STEPS = 15
_HALVINGS = 12
_WARM_MOVES = 8
_LEAPS = 3
_LEAP = 0.5
"""At first, of a posterior whose spread is about 1 in every direction; three make a quarter of an orbit."""
_ACCEPTANCE = 0.8
_AT_ONCE = 2**19
"""Likelihoods of a word computed at once: what fits into a cache."""


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
        """The prior of some of the documents."""
        return self if self.mean.ndim == 1 else LogisticNormal(self.mean[rows], self.covariance)

    def chains(
        self, components: np.ndarray, counts: csr_array, rng: np.random.Generator, chains: int = 16, moves: int = 12
    ) -> Float[np.ndarray, "n c k"]:
        """For each document the mean of θ over each of several independent chains in its posterior.

        Hamiltonian Monte Carlo in coordinates in which the Laplace approximation of the posterior is a standard normal;
        the chains start with draws from that, and the leap is adapted in moves that do not count.
        """
        topics, free = components.shape[0], self.mean.shape[-1]
        if free not in (topics, topics - 1):
            raise ValueError(f"mean must have an entry for each of the {topics} topics, or one less, found {free}")
        if self.mean.ndim == 2 and len(self.mean) != counts.shape[0]:
            raise ValueError(f"mean must have a row for each of {counts.shape[0]} documents, found {len(self.mean)}")
        means = np.broadcast_to(self.mean, (counts.shape[0], free))
        precision = np.linalg.inv(self.covariance)
        found = np.empty((counts.shape[0], chains, topics))
        for rows, words, times in _groups(components, counts, chains):
            found[rows] = _Posteriors.of(words, times, means[rows], precision).run(chains, moves, rng)
        return found


def _groups(
    components: np.ndarray, counts: csr_array, chains: int
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Documents of about the same number of words: their rows, p(word | topic), and how often they have each word."""
    lengths = np.diff(counts.indptr)
    order = np.argsort(-lengths, kind="stable")
    while len(order):
        longest = max(int(lengths[order[0]]), 1)
        rows, order = np.split(order, [max(1, _AT_ONCE // (chains * (longest + len(components))))])
        times = np.zeros((len(rows), longest))
        indices = np.zeros((len(rows), longest), int)
        filled = np.arange(longest) < lengths[rows, None]
        entries = (counts.indptr[rows, None] + np.arange(longest))[filled]
        times[filled], indices[filled] = counts.data[entries], counts.indices[entries]
        words = np.where(filled, components[:, indices], 1.0)
        yield rows, np.moveaxis(words, 0, 1), times


class _State(NamedTuple):
    """Points x, and there ℓ, its gradient, and the proportions."""

    x: np.ndarray
    value: np.ndarray
    gradient: np.ndarray
    proportions: np.ndarray


class _Posteriors(NamedTuple):
    """ℓ(x) = log p(words, z = mode + scale·x) for each of a group of documents, up to a constant.

    The prior's part is −½ xᵀ curvature x − slope·x, and at the mode the Hessian of ℓ is about −I. All in float32: what
    is lost is far below the noise.
    """

    words: np.ndarray
    times: np.ndarray
    mode: np.ndarray
    scale: np.ndarray
    curvature: np.ndarray
    slope: np.ndarray

    @classmethod
    def of(cls, words: np.ndarray, times: np.ndarray, mean: np.ndarray, precision: np.ndarray) -> "_Posteriors":
        modes, scales = _laplace(words, times, mean, precision)
        slope = np.einsum("nfg,nf->ng", scales, (modes - mean) @ precision)
        curvature = scales.transpose(0, 2, 1) @ precision @ scales
        logits = _with_reference(modes, words.shape[1])[:, None]
        scale = _with_reference(scales.transpose(0, 2, 1), words.shape[1])
        parts = words, times[:, :, None], logits, scale, curvature, slope[:, :, None]
        return cls(*(np.ascontiguousarray(part, np.float32) for part in parts))

    def at(self, x: np.ndarray) -> _State:
        logits = self.mode + x @ self.scale
        proportions = np.exp(logits - logits.max(axis=2, keepdims=True))
        proportions /= proportions.sum(axis=2, keepdims=True)
        likelihoods = np.maximum(proportions @ self.words, np.finfo(np.float32).tiny)
        bent = x @ self.curvature
        prior = (x @ self.slope)[:, :, 0] + 0.5 * np.einsum("ncf,ncf->nc", x, bent)
        times = self.times.transpose(0, 2, 1)
        pull = (times / likelihoods) @ self.words.transpose(0, 2, 1) - times.sum(axis=2, keepdims=True)
        gradient = (proportions * pull) @ self.scale.transpose(0, 2, 1) - self.slope.transpose(0, 2, 1) - bent
        return _State(x, (np.log(likelihoods) @ self.times)[:, :, 0] - prior, gradient, proportions)

    def run(self, chains: int, moves: int, rng: np.random.Generator) -> np.ndarray:
        documents, free = self.slope.shape[:2]
        state = self.at(rng.standard_normal((documents, chains, free), np.float32))
        leap = np.full(documents, _LEAP)
        for _ in range(_WARM_MOVES):
            state, accepted = self._move(state, leap, rng)
            leap *= np.exp(accepted - _ACCEPTANCE)
        total = np.zeros(state.proportions.shape)
        for _ in range(moves):
            state, _ = self._move(state, leap, rng)
            total += state.proportions
        return total / moves

    def _move(self, state: _State, leap: np.ndarray, rng: np.random.Generator) -> tuple[_State, np.ndarray]:
        """One Hamiltonian move of each chain, and how often each document's were accepted."""
        # Of random length, so that no orbit comes back to where it began.
        length = (leap * rng.uniform(0.7, 1.3)).astype(np.float32)[:, None, None]
        momentum = rng.standard_normal(state.x.shape, np.float32)
        before = state.value - 0.5 * np.sum(momentum**2, axis=2)
        momentum = momentum + 0.5 * length * state.gradient
        new = state
        for number in range(_LEAPS):
            new = self.at(new.x + length * momentum)
            momentum = momentum + (1.0 if number < _LEAPS - 1 else 0.5) * length * new.gradient
        gain = new.value - 0.5 * np.sum(momentum**2, axis=2) - before
        taken = np.log(rng.random(gain.shape)) < gain
        fresh = zip(new, state, strict=True)
        kept = (np.where(taken.reshape(taken.shape + (1,) * (one.ndim - 2)), one, old) for one, old in fresh)
        return _State(*kept), taken.mean(axis=1)


def _with_reference(free: np.ndarray, topics: int) -> np.ndarray:
    """z of all topics: that of the last is 0 if it is not free."""
    missing = topics - free.shape[-1]
    return np.concatenate([free, np.zeros((*free.shape[:-1], missing))], axis=-1) if missing else free


def _laplace(
    words: np.ndarray, times: np.ndarray, mean: np.ndarray, precision: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """About the modes of the posteriors, and square roots S of about their covariances SSᵀ there.

    The Hessian of the log-likelihood is Σ y(diag φ − φφᵀ) − W(diag π − ππᵀ). The first sum is left out of the steps,
    which makes each a step of EM; at the end as much of it is used as leaves the precision positive definite.
    """
    topics, free, totals = words.shape[1], mean.shape[1], times.sum(axis=1)

    def look(z: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        proportions = softmax(_with_reference(z, topics), axis=1)
        likelihoods = np.einsum("nk,nkw->nw", proportions, words)
        away = z - mean
        cost = 0.5 * np.einsum("nf,nf->n", away @ precision, away) - np.sum(times * np.log(likelihoods), axis=1)
        return proportions, likelihoods, cost

    def information(proportions: np.ndarray) -> np.ndarray:
        outer = proportions[:, :, None] * proportions[:, None]
        return totals[:, None, None] * (_diagonal(proportions) - outer)[:, :free, :free]

    z, (proportions, likelihoods, cost) = mean, look(mean)
    for _ in range(_MODE_STEPS):
        shares = proportions * np.einsum("nw,nkw->nk", times / likelihoods, words)
        gradient = (z - mean) @ precision - (shares - totals[:, None] * proportions)[:, :free]
        step = np.linalg.solve(precision + information(proportions), gradient[:, :, None])[:, :, 0]
        size = np.ones((len(z), 1))
        for _ in range(_HALVINGS):
            trial = look(z - size * step)
            worse = trial[2] > cost
            if not worse.any():
                break
            size[worse] /= 2
        size[worse] = 0.0
        z = z - size * step
        proportions, likelihoods, cost = look(z)
    phi = proportions[:, :, None] * words / likelihoods[:, None]
    doubt = _diagonal(np.einsum("nkw,nw->nk", phi, times)) - (phi * times[:, None]) @ phi.transpose(0, 2, 1)
    sure = precision + information(proportions)
    return z, np.stack([_root(a, b) for a, b in zip(sure, doubt[:, :free, :free], strict=True)])


def _root(sure: np.ndarray, doubt: np.ndarray) -> np.ndarray:
    """S with SSᵀ = (sure − share·doubt)⁻¹, for the largest share of a few that leaves a positive definite matrix."""
    for share in (1.0, 0.9, 0.5):
        try:
            factor = np.linalg.cholesky(sure - share * doubt)
            break
        except np.linalg.LinAlgError:
            continue
    else:
        factor = np.linalg.cholesky(sure)
    return np.linalg.inv(factor).T


def _diagonal(rows: np.ndarray) -> np.ndarray:
    return rows[:, :, None] * np.eye(rows.shape[1])

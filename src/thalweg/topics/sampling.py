"""Draws from the joint posterior of topics, prior and documents by Markov chains, for what point estimates get wrong.

Variational EM takes each document's posterior for a Gaussian and the topics for known. Both make Σ and effects of
covariates too large, and their errors too small. A chain has neither fault. With z_d = Bu_d, B the contrasts of topics
(words say nothing of what all entries of z share), one sweep draws in turn

1. u_d of every document given topics and prior, its words' topics summed out: Hamiltonian Monte Carlo;
2. the topic of every word: p(k) ∝ β_k e^{z_k};
3. the concentration of the topics' Dirichlet prior, and the topics: Dirichlet given how often each wrote each word. A
   concentration that is too high makes topics too flat, and proportions too extreme to make up for it;
4. Σ and C: inverse Wishart and matrix normal given all u_d.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int
from scipy.sparse import csr_array
from scipy.special import gammaln

from thalweg.padding import padded, padded_size
from thalweg.topics.documents import Words
from thalweg.topics.expectations import diagonals
from thalweg.topics.pages import Pages, page_shape, paged
from thalweg.topics.prevalence import Prevalence, contrasts

_GRAIN = 64
_CELLS = 2**26
"""Numbers p(word | topic) looked up at once, at most: 256 MiB."""
_LEAPS = 2
_ACCEPTANCE = 0.8
_FORGOTTEN = 0.05
"""How fast the places that the metric is taken at follow the draws, while the chain warms up."""
_HELD = 10
"""Sweeps before topics and prior move: documents must first find where they belong."""
_RIDGE = 1.0


class Conditions(NamedTuple):
    """What the documents' draws are given: p(word | topic), Σ⁻¹ in contrasts, and the contrasts."""

    topics: Float[Array, "v k"]
    precision: Float[Array, "r r"]
    basis: Float[Array, "k r"]


class Noise(NamedTuple):
    """Standard normal speeds, and uniforms for the length of leaps, for moves that are taken, and for tokens."""

    speeds: Float[Array, "d r"]
    stretched: Float[Array, " d"]
    accepted: Float[Array, " d"]
    tokens: Float[Array, " t"]


class Places(NamedTuple):
    """Where the chains of documents are, and what they have learned of their shape: the leap, and usual proportions."""

    u: Float[Array, "d r"]
    leaps: Float[Array, " d"]
    usual: Float[Array, "d k"]


def log_density(
    words: Words, given: Conditions, means: Float[Array, "d r"], u: Float[Array, "d r"]
) -> tuple[Float[Array, " d"], Float[Array, "d r"]]:
    """log p(words, u) of each document up to a constant, and its gradient in u."""
    proportions = jax.nn.softmax(u @ given.basis.T)
    chance, ratio, here = words.read(proportions[:, None])
    wrote = words.assigned(ratio, here)[:, 0]
    seen = words.pages.total(jnp.sum(words.pages.counts * jnp.log(chance[:, :, 0]), axis=1), len(u))
    pulled = (u - means) @ given.precision
    gradient = (wrote - words.totals[:, None] * proportions) @ given.basis - pulled
    return seen - jnp.sum((u - means) * pulled, axis=1) / 2, gradient


@jax.jit
def sweep(
    pages: Pages,
    given: Conditions,
    means: Float[Array, "d r"],
    places: Places,
    noise: Noise,
    tokens: Int[Array, " t"],
    learning: Float[Array, ""],
) -> tuple[Places, Int[Array, " t"]]:
    """Move the chain of every document, and draw the topic of every token, given by its place on the pages.

    Leaps and metric change by ``learning``.
    """
    words = Words.of(pages, given.topics, len(means))
    # Half of the words' information on proportions is taken to be lost, since their topics are not seen.
    spread = diagonals(places.usual) - places.usual[:, :, None] * places.usual[:, None]
    known = words.totals[:, None, None] / 2 * jnp.einsum("kr,dkj,js->drs", given.basis, spread, given.basis)
    triangle = lax.linalg.cholesky(given.precision[None] + known)
    unit = diagonals(jnp.ones_like(means))
    root = lax.linalg.triangular_solve(triangle, unit, left_side=True, lower=True)
    leap = places.leaps[:, None] * (0.8 + 0.4 * noise.stretched[:, None])

    def one(index: Array, state: tuple[Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array]:
        """Drift, then push; the first time there is no drift yet, and the first and last push are half ones."""
        u, speed, start, _ = state
        u = u + jnp.where(index > 0, leap, 0) * jnp.einsum("dsr,ds->dr", root, speed)
        value, slope = log_density(words, given, means, u)
        half = jnp.where((index > 0) & (index < _LEAPS), 1.0, 0.5).astype(u.dtype)
        return u, speed + half * leap * jnp.einsum("drs,ds->dr", root, slope), jnp.where(index > 0, start, value), value

    nowhere = jnp.zeros_like(places.leaps)
    u, speed, start, value = lax.fori_loop(0, _LEAPS + 1, one, (places.u, noise.speeds, nowhere, nowhere))
    gain = value - start + jnp.sum(noise.speeds**2 - speed**2, axis=1) / 2
    chance = jnp.where(jnp.isfinite(gain), jnp.exp(jnp.minimum(gain, 0)), 0)
    u = jnp.where((noise.accepted < chance)[:, None], u, places.u)
    proportions = jax.nn.softmax(u @ given.basis.T)
    leaps = jnp.minimum(places.leaps * jnp.exp(learning * (chance - _ACCEPTANCE)), 1.0)
    usual = places.usual + learning * (proportions - places.usual)
    heaping = proportions[pages.document][:, :, None] * jnp.triu(jnp.ones((u.shape[1] + 1,) * 2, u.dtype))[None]
    heaps = jnp.einsum("pwk,pkj->pwj", words.chances, heaping).reshape(-1, u.shape[1] + 1)[tokens]
    topic = jnp.sum(heaps[:, :-1] < (noise.tokens * heaps[:, -1])[:, None], axis=1)
    return Places(u, leaps, usual), topic


@dataclass
class Part:
    """Some documents of a chain: their pages, rows, and where they are."""

    pages: Pages
    tokens: Int[Array, " t"]
    """The places of tokens on the pages, filled up."""
    words: Int[np.ndarray, " s"]
    """Which word a token is; of as many as there are."""
    rows: slice
    places: Places


class Draw(NamedTuple):
    """One draw of what documents share: counts of words by topic, the Dirichlet's concentration, and the prior."""

    words: Float[np.ndarray, "v k"]
    smoothing: float
    prevalence: Prevalence


class Chain:
    """A chain in the joint posterior, from topics and a prior on. Iterate over :meth:`draws`.

    Examples
    --------
    >>> table = csr_array(np.repeat([[9.0, 0.0], [0.0, 9.0]], 20, axis=0).astype(np.float32))
    >>> chain = Chain(table, np.ones((40, 1)), np.array([[0.9, 0.1], [0.1, 0.9]]), Prevalence.start(1, 2), 0.2, 0)
    >>> last = list(chain.draws(5, 5))[-1]
    >>> float(last.words.sum())
    360.0
    """

    def __init__(
        self,
        counts: csr_array,
        design: Float[np.ndarray, "n p"],
        topics: Float[np.ndarray, "v k"],
        prevalence: Prevalence,
        smoothing: float,
        seed: int,
    ) -> None:
        self.design, self.topics, self.smoothing = design, np.asarray(topics, np.float64), smoothing
        self.rng = np.random.default_rng(seed)
        self.basis = contrasts(topics.shape[1])
        self.coefficients = prevalence.coefficients @ self.basis
        self.covariance = self.basis.T @ prevalence.covariance @ self.basis
        ridge = np.full(design.shape[1], _RIDGE)
        ridge[0] = 0
        self.information = design.T @ design + np.diag(ridge)
        self.parts = list(self._cut(counts))

    def _cut(self, table: csr_array) -> Iterator[Part]:
        count, sides = table.shape[0], self.topics.shape[1]
        groups = np.array_split(np.arange(count), min(count, -(-table.nnz * sides // _CELLS)) or 1)
        size, pages, width = page_shape(table, groups, _GRAIN, _GRAIN)
        most = padded_size(max(1, *(int(np.rint(table[group].data).sum()) for group in groups)), _GRAIN)
        for group in groups:
            rows = slice(int(group[0]), int(group[-1]) + 1)
            made = paged(table[rows], width, size, pages)
            cells = np.arange(pages * width, dtype=np.int32)
            tokens = np.repeat(cells, np.rint(np.asarray(made.counts).ravel()).astype(int))
            words = np.asarray(made.words).ravel()[tokens].astype(np.int64)
            u = jnp.asarray(self._means(rows, size))
            usual = jax.nn.softmax(u @ self.basis.T.astype(np.float32))
            places = Places(u, jnp.full(size, 0.7, jnp.float32), usual)
            yield Part(made, jnp.asarray(padded(tokens, most)), words, rows, places)

    def _means(self, rows: slice, size: int) -> Float[np.ndarray, "d r"]:
        found = np.zeros((size, self.basis.shape[1]), np.float32)
        found[: rows.stop - rows.start] = self.design[rows] @ self.coefficients
        return found

    def draws(self, warm: int, count: int) -> Iterator[Draw]:
        """``count`` draws, one a sweep, after ``warm`` sweeps that adapt the chain and are left out."""
        for number in range(warm + count):
            words = self._documents(_FORGOTTEN if number < warm else 0.0)
            if number >= min(_HELD, warm):
                self._topics(words)
                self._prior()
            if number >= warm:
                inside = self.basis @ self.covariance @ self.basis.T
                yield Draw(words, self.smoothing, Prevalence(self.coefficients @ self.basis.T, inside))

    def _documents(self, learning: float) -> Float[np.ndarray, "v k"]:
        """Move all documents; how often each topic now wrote each word."""
        precision = np.linalg.inv(self.covariance)
        given = Conditions(*(jnp.asarray(part, np.float32) for part in (self.topics, precision, self.basis)))
        sides = self.topics.shape[1]
        total = np.zeros(self.topics.size)
        for part in self.parts:
            means = self._means(part.rows, len(part.places.u))
            stretched, accepted = self.rng.random((2, len(means)), np.float32)
            speeds, uniforms = (
                self.rng.standard_normal(means.shape, np.float32),
                self.rng.random(len(part.tokens), np.float32),
            )
            noise = Noise(*map(jnp.asarray, (speeds, stretched, accepted, uniforms)))
            found = sweep(part.pages, given, means, part.places, noise, part.tokens, np.float32(learning))
            part.places, topic = found[0], np.asarray(found[1])[: len(part.words)]
            total += np.bincount(part.words * sides + topic, minlength=len(total))
        return total.reshape(self.topics.shape)

    def _topics(self, words: Float[np.ndarray, "v k"]) -> None:
        density = lambda a: _log_marginal(words, a)
        here = density(self.smoothing)
        for _ in range(2):
            other = self.smoothing * np.exp(0.15 * self.rng.normal())
            there = density(other)
            if np.log(self.rng.random()) < there - here:
                self.smoothing, here = other, there
        drawn = self.rng.standard_gamma((words + self.smoothing).astype(np.float32), dtype=np.float32)
        self.topics = drawn / drawn.sum(axis=0)

    def _prior(self) -> None:
        """Σ, C ~ their posterior given all u, before which Σ ~ W⁻¹(I, r + 1) and C ~ N(0, Σ) a standard deviation."""
        count, sides = len(self.design), self.basis.shape[1]
        u = np.concatenate([np.asarray(p.places.u, np.float64)[: p.rows.stop - p.rows.start] for p in self.parts])
        fitted = np.linalg.solve(self.information, self.design.T @ u)
        scatter = np.eye(sides) + u.T @ u - fitted.T @ self.information @ fitted
        self.covariance = inverse_wishart(self.rng, sides + 1 + count, scatter)
        left = np.linalg.inv(np.linalg.cholesky(self.information)).T
        right = np.linalg.cholesky(self.covariance)
        self.coefficients = fitted + left @ self.rng.normal(size=fitted.shape) @ right.T


def _log_marginal(words: np.ndarray, concentration: float) -> float:
    """log p(counts of words by topic | concentration), topics integrated out, and a flat prior of its logarithm."""
    total = len(words) * concentration
    of_topics = gammaln(total) - gammaln(total + words.sum(axis=0))
    often = np.bincount(words.ravel().astype(np.int64))[1:]
    counts = np.flatnonzero(often) + 1
    gain = gammaln(concentration + counts) - gammaln(concentration)
    return float(np.sum(of_topics) + often[counts - 1] @ gain)


def inverse_wishart(
    rng: np.random.Generator, freedom: int, scale: Float[np.ndarray, "r r"]
) -> Float[np.ndarray, "r r"]:
    """A draw from W⁻¹(scale, freedom), by Bartlett's triangle.

    Examples
    --------
    >>> draws = [inverse_wishart(np.random.default_rng(seed), 12, 9 * np.eye(2)) for seed in range(400)]
    >>> np.round(np.mean(draws, axis=0), 0) + 0.0        # scale / (freedom − side − 1)
    array([[1., 0.],
           [0., 1.]])
    """
    side = len(scale)
    triangle = np.tril(rng.normal(size=(side, side)), -1) + np.diag(np.sqrt(rng.chisquare(freedom - np.arange(side))))
    root = np.linalg.solve(triangle, np.linalg.cholesky(scale).T)
    return root.T @ root

"""Posteriors of documents: Gaussian q(z) = N(m, V) for each, all at once, by proximal-gradient steps.

A document with counts y of W words has the bound (PG-SVI, eq. 38, with the prior N(μ, Σ))

    L(m, V) = Σ_n y_n E_q log Σ_k β_nk e^{z_k} − W E_q log Σ_j e^{z_j} − KL[q ‖ N(μ, Σ)].

With π = softmax(z) and φ_nk ∝ β_nk e^{z_k} its gradients are

    ∇_m L = E[Σ_n y_n φ_n − W π] − Σ⁻¹(m − μ),
    2∇_V L = V⁻¹ − Σ⁻¹ − Γ,    Γ = W E[diag π − ππᵀ] − Σ_n y_n E[diag φ_n − φ_nφ_nᵀ],

and a step of size s goes to V⁻¹ ← (1 − s)V⁻¹ + s(Σ⁻¹ + Γ), then m ← m + s V ∇_m L. The second part of Γ makes it
indefinite; without it V is positive definite whatever the step, topics learn as well, and a step costs K² per document
instead of K² per word. With ``exact`` it is kept, and V⁻¹ moves along a curve that stays among positive definite
matrices: Λ ← Λ + sG + ½s²GΛ⁻¹G = ½(Λ + (Λ + sG)Λ⁻¹(Λ + sG)), G = Σ⁻¹ + Γ − Λ, whose fixed point is the maximum of L.

The older methods are the same loop with other expectations: see :mod:`thalweg.topics.expectations`.

XLA's batched factorisations and triangular solves can wait for ever for one another on a CPU: seen with JAX 0.10.2 on
two cores, when a program had six independent ones (20 × 20 and larger, 500 matrices and more), never when each needed
the one before. So no two are independent here: the mean's step and the next samples are one solve, a covariance and its
determinant come from one factor, and what is needed of the prior comes with it.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int

from thalweg.topics.expectations import METHODS, Expected, Method, diagonals
from thalweg.topics.pages import Pages

_FARTHEST = 3.0
"""The most that a step moves an entry of m: a step from afar is one of Newton's, and may overshoot."""
_TINY = 1e-30


class Prior(NamedTuple):
    """N(μ_d, Σ) of the documents, by its means, the one precision Σ⁻¹, and log |Σ⁻¹|."""

    means: Float[Array, "d k"]
    precision: Float[Array, "k k"]
    log_determinant: Float[Array, ""]


class Posteriors(NamedTuple):
    """q(z_d) = N(m_d, V_d) of documents: means, precisions V⁻¹ (their diagonals for diagonal ones), and draws of z."""

    means: Float[Array, "d k"]
    precisions: Float[Array, "d k k"] | Float[Array, "d k"]
    draws: Float[Array, "d s k"]
    proportions: Float[Array, "d k"]
    """E[softmax z]."""


class Nodes(NamedTuple):
    """Sets of points at which expectations over a standard normal are taken, and the weight of each point.

    Steps take the sets in turn. They are arguments of what is compiled: a generator of random numbers within it would
    take as long to compile as all else.
    """

    points: Float[Array, "n k s"]
    weights: Float[Array, " s"]

    def of(self, first: Int[Array, " d"], step: Int[Array, ""] | int) -> "Nodes":
        """The points of each document at a step, of those that begin with the set ``first``."""
        return self._replace(points=self.points[(first + step) % len(self.points)])


def antithetic(rng: np.random.Generator, shape: tuple[int, int, int]) -> Nodes:
    """Sets of standard normal points, each with its mirror image, of equal weight.

    Examples
    --------
    >>> nodes = antithetic(np.random.default_rng(0), (1, 3, 4))
    >>> bool(np.all(nodes.points[0, :, :2] == -nodes.points[0, :, 2:]))
    True
    """
    sets, sides, count = shape
    half = rng.standard_normal((sets, sides, max(count // 2, 1)), np.float32)
    points = np.concatenate([half, -half], axis=2)
    weights = np.full(points.shape[2], 1 / points.shape[2], np.float32)
    return Nodes(jnp.asarray(points), jnp.asarray(weights))


def _solve(triangle: Array, right: Array, transpose: bool = False) -> Array:
    return lax.linalg.triangular_solve(triangle, right, left_side=True, lower=True, transpose_a=transpose)


def solve_and_draw(precision: Array, gradient: Array, points: Array) -> tuple[Array, Array]:
    """Λ⁻¹g, and Λ^{−½}ε for standard normal points ε, of each document, from one factorisation.

    Diagonal precisions are vectors.

    Examples
    --------
    >>> move, apart = solve_and_draw(4 * jnp.eye(2)[None], jnp.ones((1, 2)), jnp.ones((1, 2, 3)))
    >>> move, apart.shape
    (Array([[0.25, 0.25]], dtype=float...), (1, 3, 2))
    """
    if precision.ndim == 2:
        return gradient / precision, jnp.swapaxes(points * lax.rsqrt(precision)[:, :, None], 1, 2)
    triangle = lax.linalg.cholesky(precision)
    whitened = _solve(triangle, gradient[:, :, None])
    solved = _solve(triangle, jnp.concatenate([whitened, points], axis=2), transpose=True)
    return solved[:, :, 0], jnp.swapaxes(solved[:, :, 1:], 1, 2)


class Words(NamedTuple):
    """What the words of documents say: their pages, p(word | topic) of each, and how many there are."""

    pages: Pages
    chances: Float[Array, "p w k"]
    totals: Float[Array, " d"]

    @classmethod
    def of(cls, pages: Pages, topics: Float[Array, "v k"], documents: int) -> "Words":
        """Look up the topics of every word."""
        return cls(pages, topics[pages.words], pages.total(jnp.sum(pages.counts, axis=1), documents))

    def read(self, proportions: Float[Array, "d s k"]) -> tuple[Array, Array, Array]:
        """p(word) under each proportion, y / p(word), and the proportions of the pages."""
        here = proportions[self.pages.document]
        chance = jnp.maximum(jnp.einsum("pwk,psk->pws", self.chances, here), _TINY)
        return chance, self.pages.counts[:, :, None] / chance, here

    def assigned(self, ratio: Array, here: Array) -> Float[Array, "d s k"]:
        """Σ_n y_n φ_n: how many of a document's words each topic wrote."""
        of_pages = here * jnp.einsum("pwk,pws->psk", self.chances, ratio)
        return self.pages.total(of_pages, len(self.totals))

    def doubt(self, ratio: Array, here: Array, weights: Array) -> Float[Array, "d k k"]:
        """Σ_n y_n E[φ_nφ_nᵀ], a sample at a time."""
        roots = lax.rsqrt(jnp.maximum(self.pages.counts, _TINY))

        def of_one(total: Array, sample: tuple[Array, Array, Array]) -> tuple[Array, None]:
            part, proportion, weight = sample
            shares = self.chances * proportion[:, None] * (part * roots)[:, :, None]
            return total + weight * jnp.einsum("pwk,pwj->pkj", shares, shares), None

        sides = self.chances.shape[2]
        zero = jnp.zeros((len(self.chances), sides, sides), self.chances.dtype)
        samples = (jnp.moveaxis(ratio, 2, 0), jnp.moveaxis(here, 1, 0), weights)
        return self.pages.total(lax.scan(of_one, zero, samples)[0], len(self.totals))


def _curved(precision: Array, target: Array, step: Array) -> Array:
    """A step from a precision towards a matrix that may be indefinite, among positive definite matrices."""
    ahead = target - precision
    whitened = _solve(lax.linalg.cholesky(precision), ahead)
    return precision + step * ahead + step**2 / 2 * jnp.einsum("dik,dij->dkj", whitened, whitened)


def _exact_curvature(words: Words, expected: Expected, weights: Array) -> Array:
    """The part of Γ that comes from the words, which is subtracted."""
    _, ratio, here = words.read(expected.read_at)
    wrote = jnp.einsum("dsk,s->dk", words.assigned(ratio, here), weights)
    return diagonals(wrote) - words.doubt(ratio, here, weights)


def infer(
    words: Words,
    prior: Prior,
    means: Float[Array, "d k"],
    nodes: Nodes,
    step: Float[Array, ""],
    *,
    method: Method,
    steps: Int[Array, ""] | int,
    exact: bool = False,
    last: bool = False,
) -> Posteriors:
    """Take steps on the posteriors of documents from given means, with expectations at ``nodes``.

    Each document begins with another set of them, or, where these steps are the ``last``, all with the first: equal
    documents then have equal posteriors. Proportions are then means over the draws of the later half of the steps too:
    of those at the end alone, a document without words has shares that are off by a fifth.
    """
    begins = jnp.arange(len(means), dtype=jnp.int32) * (0 if last else 1)
    settled = steps // 2 if last else steps
    first = nodes.of(begins, 0)
    precisions = method.start(prior.precision, words.totals, jax.nn.softmax(means))
    apart = solve_and_draw(precisions, jnp.zeros_like(means), first.points)[1]

    def one(index: Array, state: tuple[Array, ...]) -> tuple[Array, ...]:
        means, precisions, apart, weights, shares = state
        if last:
            shares = shares + jnp.where(index >= settled, _shares(means, apart), 0.0)
        expected = method.expected(means, precisions, apart, weights)
        _, ratio, here = words.read(expected.read_at)
        wrote = jnp.einsum("dsk,s->dk", words.assigned(ratio, here), expected.read_weights)
        uphill = wrote - words.totals[:, None] * expected.proportions - (means - prior.means) @ prior.precision
        target = method.target(prior.precision, words.totals, expected)
        if exact:
            target = target - _exact_curvature(words, expected, expected.read_weights)
            precisions = _curved(precisions, target, step)
        else:
            precisions = (1 - step) * precisions + step * target
        following = nodes.of(begins, index + 1)
        metric = method.metric(prior.precision, words.totals, expected, precisions)
        move, apart = solve_and_draw(metric, uphill, following.points)
        if method.apart_metric:
            apart = solve_and_draw(precisions, jnp.zeros_like(means), following.points)[1]
        farthest = jnp.max(jnp.abs(move), axis=1, keepdims=True)
        move = move * jnp.minimum(1, _FARTHEST / jnp.maximum(farthest, _TINY))
        return means + step * move, precisions, apart, following.weights, shares

    state = (means, precisions, apart, first.weights, jnp.zeros_like(means))
    means, precisions, apart, _, shares = lax.fori_loop(0, steps, one, state)
    shares = (shares + _shares(means, apart)) / jnp.asarray(steps - settled + 1, means.dtype)
    return Posteriors(means, precisions, means[:, None] + apart, shares)


def _shares(means: Array, apart: Array) -> Array:
    return jnp.mean(jax.nn.softmax(means[:, None] + apart), axis=1)


def covariances(precisions: Array) -> tuple[Float[Array, "d k k"], Float[Array, " d"]]:
    """V and log |V⁻¹| of each document.

    Examples
    --------
    >>> covariances(jnp.array([[[4.0, 0.0], [0.0, 2.0]]]))[0][0]
    Array([[0.25, 0.  ],
           [0.  , 0.5 ]], dtype=float...)
    """
    if precisions.ndim == 2:
        return diagonals(1 / precisions), jnp.sum(jnp.log(precisions), axis=1)
    unit = diagonals(jnp.ones(precisions.shape[:2], precisions.dtype))
    triangle = lax.linalg.cholesky(precisions)
    inverse = _solve(triangle, unit)
    log_determinant = 2 * jnp.sum(jnp.log(jnp.diagonal(triangle, axis1=1, axis2=2)), axis=1)
    return jnp.einsum("dik,dij->dkj", inverse, inverse), log_determinant


class Statistics(NamedTuple):
    """What topics and prior are learned from, of one batch: sums over those of its documents that count."""

    means: Float[Array, "d k"]
    proportions: Float[Array, "d k"]
    words: Float[Array, "v k"]
    """How often each topic wrote each word."""
    spread: Float[Array, "k k"]
    """Σ_d V_d."""
    log_likelihood: Float[Array, ""]
    """Σ_n y_n log Σ_k β_nk E[π_k]."""
    bound: Float[Array, ""]
    """Σ_d L(m_d, V_d), by the draws."""


@partial(jax.jit, static_argnames=("method", "exact"))
def learn(
    pages: Pages,
    topics: Float[Array, "v k"],
    prior: Prior,
    means: Float[Array, "d k"],
    counted: Float[Array, " d"],
    nodes: Nodes,
    step: Float[Array, ""],
    steps: Int[Array, ""],
    *,
    method: str,
    exact: bool = False,
) -> Statistics:
    """Take steps on the posteriors of a batch, and gather the statistics of the documents with ``counted`` 1, not 0."""
    way = METHODS[method]
    words = Words.of(pages, topics, len(means))
    found = infer(words, prior, means, nodes, step, method=way, steps=steps, exact=exact)
    weights = jnp.full(found.draws.shape[1], 1 / found.draws.shape[1], means.dtype)
    expected = way.expected(found.means, found.precisions, found.draws - found.means[:, None], weights)
    read, ratio, here = words.read(expected.read_at)
    shares = jnp.einsum("pws,psk,s,p->pwk", ratio, here, expected.read_weights, counted[pages.document])
    wrote = topics * jnp.zeros_like(topics).at[pages.words.reshape(-1)].add(shares.reshape(-1, topics.shape[1]))
    spread, log_determinant = covariances(found.precisions)
    proportions = found.proportions
    chance, _, _ = words.read(proportions[:, None])
    counts = pages.counts * counted[pages.document][:, None]
    seen = jnp.sum(counts * jnp.log(chance[:, :, 0]))
    gap = counted @ divergence(found.means, spread, log_determinant, prior)
    bound = jnp.einsum("pw,pws,s->", counts, jnp.log(read), expected.read_weights) - gap
    return Statistics(found.means, proportions, wrote, jnp.einsum("dij,d->ij", spread, counted), seen, bound)


class Inferred(NamedTuple):
    """Posteriors of documents as users see them."""

    means: Float[Array, "d k"]
    covariances: Float[Array, "d k k"]
    proportions: Float[Array, "d k"]
    bound: Float[Array, " d"]
    """L(m, V) of each, by the draws."""


@partial(jax.jit, static_argnames=("method", "exact"))
def posteriors(
    pages: Pages,
    topics: Float[Array, "v k"],
    prior: Prior,
    means: Float[Array, "d k"],
    nodes: Nodes,
    step: Float[Array, ""],
    steps: Int[Array, ""],
    *,
    method: str,
    exact: bool,
) -> Inferred:
    """Posteriors from some means on, and their bounds."""
    words = Words.of(pages, topics, len(prior.means))
    way = METHODS[method]
    found = infer(words, prior, means, nodes, step, method=way, steps=steps, exact=exact, last=True)
    spread, log_determinant = covariances(found.precisions)
    proportions = jax.nn.softmax(found.draws)
    chance, _, _ = words.read(proportions)
    likelihood = pages.total(jnp.sum(pages.counts * jnp.mean(jnp.log(chance), axis=2), axis=1), len(found.means))
    gap = divergence(found.means, spread, log_determinant, prior)
    return Inferred(found.means, spread, found.proportions, likelihood - gap)


def divergence(means: Array, spread: Array, log_determinant: Array, prior: Prior) -> Float[Array, " d"]:
    """KL[N(m, V) ‖ N(μ, Σ)] of each document, from m, V and log |V⁻¹|.

    Examples
    --------
    >>> prior = Prior(jnp.ones((1, 2)), jnp.eye(2), jnp.zeros(()))
    >>> float(divergence(jnp.zeros((1, 2)), jnp.eye(2)[None], jnp.zeros(1), prior)[0])
    1.0
    """
    apart = means - prior.means
    length = jnp.einsum("dk,kj,dj->d", apart, prior.precision, apart)
    trace = jnp.einsum("kj,dkj->d", prior.precision, spread)
    return (log_determinant - prior.log_determinant + trace + length - means.shape[1]) / 2

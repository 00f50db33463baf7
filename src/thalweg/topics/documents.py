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
the one before. So no two are independent here: the mean's step and the next draws are one solve, a covariance and its
determinant come from one factor, and the prior comes with its precision and determinant.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int
from scipy.sparse import csr_array

from thalweg.compiling import quick_jit
from thalweg.linalg import namespace
from thalweg.linalg.arrays import AnyArray
from thalweg.topics.expectations import METHODS, Expectations, InferenceMethod, diagonals, mean_curvature
from thalweg.topics.pages import Pages, make_batches, split_rows
from thalweg.topics.prevalence import DocumentPrior, Prevalence

__all__ = ["Inference", "TopicPosteriors", "document_posteriors"]

MAX_MOVE = 3.0
"""The largest move of an entry of m in a step: from far away a step is one of Newton's and may overshoot. Doubled, a
long document that starts at the prior may go there and back."""
MAX_UNOPTIMISED_CELLS = 2**14
"""Cells of pages, times topics, up to which programs are compiled without optimising their loops: a first fit takes two
thirds of the time, a second one half as much again. With three times as many a first fit gains nothing."""
LEAST_PROBABILITY = 1e-30
"""Probabilities are raised to this before a division or a logarithm in single precision, which ends at 1e-38."""


class TopicPosteriors(NamedTuple):
    """Posteriors of documents: mean and covariance of z, E[softmax z], and the bound on log p(words).

    Examples
    --------
    >>> TopicPosteriors._fields
    ('means', 'covariances', 'proportions', 'bounds')
    """

    means: Float[AnyArray, "n k"]
    covariances: Float[AnyArray, "n k k"]
    proportions: Float[AnyArray, "n k"]
    bounds: Float[AnyArray, " n"]


class StepPlan(NamedTuple):
    """The steps on posteriors: where expectations over a standard normal are taken, how long steps are, and how many.

    Steps take the sets of points in turn. They are arguments of the compiled program: a generator of random numbers
    within it would take as long to compile as all else. Another number of steps compiles nothing.

    Examples
    --------
    >>> plan = StepPlan.antithetic(np.random.default_rng(0), (1, 3, 4), 0.9, 10)
    >>> bool(np.all(plan.points[0, :, :2] == -plan.points[0, :, 2:]))
    True
    """

    points: Float[Any, "n k s"]
    weights: Float[Any, " s"]
    size: Float[Any, ""]
    steps: Int[Any, ""]

    @classmethod
    def antithetic(cls, rng: np.random.Generator, shape: tuple[int, int, int], size: float, steps: int) -> "StepPlan":
        """Draw sets of points, each with its mirror image, of equal weight."""
        sets, sides, count = shape
        half = rng.standard_normal((sets, sides, max(count // 2, 1)), np.float32)
        points = np.concatenate([half, -half], axis=2)
        weights = np.full(points.shape[2], 1 / points.shape[2], np.float32)
        return cls(points, weights, np.float32(size), np.int32(steps))


class DocumentWords(NamedTuple):
    """The words of documents on pages, p(word | topic) of each, and the length W of each document."""

    pages: Pages
    chances: Float[AnyArray, "p w k"]
    lengths: Float[AnyArray, " d"]

    @classmethod
    def of(cls, pages: Pages, topics: Float[AnyArray, "v k"], documents: int) -> "DocumentWords":
        """Look up the topics of every word."""
        return cls(pages, topics[pages.words], pages.total(pages.counts.sum(axis=1), documents))

    def read(self, proportions: Float[Array, "d s k"]) -> tuple[Any, Any, Any]:
        """Return p(word) under each proportion, y / p(word), and the proportions of the pages."""
        xp, of_pages = namespace(proportions), proportions[self.pages.document]
        chance = xp.maximum(self.chances @ xp.swapaxes(of_pages, 1, 2), LEAST_PROBABILITY)
        return chance, self.pages.counts[:, :, None] / chance, of_pages

    def assigned(self, ratio: Any, of_pages: Any) -> Any:
        """Return Σ_n y_n φ_n: how many of a document's words each topic wrote."""
        xp = namespace(ratio)
        return self.pages.total(of_pages * (xp.swapaxes(ratio, 1, 2) @ self.chances), len(self.lengths))

    def log_likelihood(self, chance: Any) -> Any:
        """Return Σ_n y_n log p(word_n) of each document and sample."""
        xp = namespace(chance)
        return self.pages.total((self.pages.counts[:, :, None] * xp.log(chance)).sum(axis=1), len(self.lengths))

    def outer(self, ratio: Array, of_pages: Array, weights: Array) -> Float[Array, "d k k"]:
        """Return Σ_n y_n E[φ_nφ_nᵀ], a sample at a time."""
        roots = lax.rsqrt(jnp.maximum(self.pages.counts, LEAST_PROBABILITY))

        def add(total: Array, sample: tuple[Array, Array, Array]) -> tuple[Array, None]:
            part, proportion, weight = sample
            shares = self.chances * proportion[:, None] * (part * roots)[:, :, None]
            return total + weight * jnp.einsum("pwk,pwj->pkj", shares, shares), None

        sides = self.chances.shape[2]
        zero = jnp.zeros((len(self.chances), sides, sides), self.chances.dtype)
        samples = (jnp.moveaxis(ratio, 2, 0), jnp.moveaxis(of_pages, 1, 0), weights)
        return self.pages.total(lax.scan(add, zero, samples)[0], len(self.lengths))


def has_long_loops(pages: Pages, topics: Float[AnyArray, "v k"], *_: Any) -> bool:
    """Whether a program for so many words runs long enough for its loops to be worth optimising.

    Examples
    --------
    >>> has_long_loops(Pages(np.zeros(9), np.zeros((9, 16)), np.zeros((9, 16))), np.ones((5, 3)))
    False
    """
    return pages.counts.size * topics.shape[1] > MAX_UNOPTIMISED_CELLS


def _solve(triangle: Array, right: Array, transpose: bool = False) -> Array:
    return lax.linalg.triangular_solve(triangle, right, left_side=True, lower=True, transpose_a=transpose)


def solve_and_draw(precision: Array, gradient: Array, points: Array) -> tuple[Array, Array]:
    """Return Λ⁻¹g, and Λ^{−½}ε for standard normal points ε, of each document, from one factorisation.

    Diagonal precisions are vectors.

    Examples
    --------
    >>> move, deviations = jax.jit(solve_and_draw)(4 * np.eye(2)[None], np.ones((1, 2)), np.ones((1, 2, 3)))
    >>> move, deviations.shape
    (Array([[0.25, 0.25]], dtype=float...), (1, 3, 2))
    """
    if precision.ndim == 2:
        return gradient / precision, jnp.swapaxes(points * lax.rsqrt(precision)[:, :, None], 1, 2)
    triangle = lax.linalg.cholesky(precision)
    whitened = _solve(triangle, gradient[:, :, None])
    solved = _solve(triangle, jnp.concatenate([whitened, points], axis=2), transpose=True)
    return solved[:, :, 0], jnp.swapaxes(solved[:, :, 1:], 1, 2)


def _curved_step(precision: Array, target: Array, step: Array) -> Array:
    """Move a precision towards a matrix that may be indefinite, among positive definite matrices."""
    ahead = target - precision
    whitened = _solve(lax.linalg.cholesky(precision), ahead)
    return precision + step * ahead + step**2 / 2 * jnp.einsum("dik,dij->dkj", whitened, whitened)


def _target_precision(prior: DocumentPrior, lengths: Array, curvature: Array) -> Array:
    """Return Σ⁻¹ + W E[diag π − ππᵀ], or its diagonal."""
    if curvature.ndim == 2:
        return jnp.diagonal(prior.precision)[None] + lengths[:, None] * curvature
    return prior.precision[None] + lengths[:, None, None] * curvature


def infer(
    words: DocumentWords,
    prior: DocumentPrior,
    means: Float[Array, "d k"],
    plan: StepPlan,
    *,
    method: InferenceMethod,
    exact: bool = False,
    shared_nodes: bool = False,
) -> tuple[TopicPosteriors, Expectations]:
    """Take steps on the posteriors of documents from given means, and return these and expectations under them.

    Each document begins with another set of nodes, or all with the first if they are shared: equal documents then have
    equal posteriors. Proportions are means over the draws of the later half of the steps: those at the end alone would
    leave a document without words with shares that are off by a fifth. Bounds are by the draws at the end.
    """
    size, steps, lengths = plan.size, plan.steps, jnp.asarray(words.lengths)
    first_set = jnp.arange(len(means), dtype=jnp.int32) * (0 if shared_nodes else 1)
    points_at = lambda step: plan.points[(first_set + step) % len(plan.points)]
    at_means = mean_curvature(jax.nn.softmax(means)[:, None], jnp.ones(1, means.dtype), method.diagonal)
    precisions = _target_precision(prior, lengths, at_means)
    deviations = solve_and_draw(precisions, jnp.zeros_like(means), points_at(0))[1]
    shares_of = lambda means, deviations: jnp.einsum(
        "dsk,s->dk", jax.nn.softmax(means[:, None] + deviations), plan.weights
    )

    def one(index: Array, state: tuple[Array, ...]) -> tuple[Array, ...]:
        means, precisions, deviations, shares = state
        shares = shares + jnp.where(index >= steps // 2, shares_of(means, deviations), 0.0)
        expected = method.expectations(means, precisions, deviations, plan.weights)
        _, ratio, of_pages = words.read(expected.points)
        wrote = jnp.einsum("dsk,s->dk", words.assigned(ratio, of_pages), expected.weights)
        gradient = wrote - lengths[:, None] * expected.proportions - (means - prior.means) @ prior.precision
        target = _target_precision(prior, lengths, expected.curvature)
        if exact:
            target = target - diagonals(wrote) + words.outer(ratio, of_pages, expected.weights)
            precisions = _curved_step(precisions, target, size)
        else:
            precisions = (1 - size) * precisions + size * target
        move, deviations = solve_and_draw(precisions, gradient, points_at(index + 1))
        if method.diagonal:
            # A diagonal above Σ⁻¹ + W(diag π − ππᵀ), with which steps of the mean cannot overshoot.
            largest = jnp.sum(jnp.abs(prior.precision), axis=1)[None] + lengths[:, None] * jnp.abs(expected.proportions)
            move = gradient / largest
        farthest = jnp.max(jnp.abs(move), axis=1, keepdims=True, initial=MAX_MOVE)
        return means + size * MAX_MOVE / farthest * move, precisions, deviations, shares

    state = (means, precisions, deviations, jnp.zeros_like(means))
    means, precisions, deviations, shares = lax.fori_loop(0, steps, one, state)
    shares = (shares + shares_of(means, deviations)) / jnp.asarray(steps - steps // 2 + 1, means.dtype)
    covariance, log_determinant = covariances(precisions)
    chance, _, _ = words.read(jax.nn.softmax(means[:, None] + deviations))
    gap = divergence(means, covariance, log_determinant, prior)
    posteriors = TopicPosteriors(means, covariance, shares, words.log_likelihood(chance) @ plan.weights - gap)
    return posteriors, method.expectations(means, precisions, deviations, plan.weights)


def covariances(precisions: Array) -> tuple[Float[Array, "d k k"], Float[Array, " d"]]:
    """Return V and log |V⁻¹| of each document.

    Examples
    --------
    >>> jax.jit(covariances)(np.array([[[4.0, 0.0], [0.0, 2.0]]]))[0][0]
    Array([[0.25, 0.  ],
           [0.  , 0.5 ]], dtype=float...)
    """
    if precisions.ndim == 2:
        return diagonals(1 / precisions), jnp.sum(jnp.log(precisions), axis=1)
    triangle = lax.linalg.cholesky(precisions)
    inverse = _solve(triangle, diagonals(jnp.ones(precisions.shape[:2], precisions.dtype)))
    log_determinant = 2 * jnp.sum(jnp.log(jnp.diagonal(triangle, axis1=1, axis2=2)), axis=1)
    return jnp.einsum("dik,dij->dkj", inverse, inverse), log_determinant


def divergence(means: Array, covariance: Array, log_determinant: Array, prior: DocumentPrior) -> Float[Array, " d"]:
    """Return KL[N(m, V) ‖ N(μ, Σ)] of each document, from m, V and log |V⁻¹|.

    Examples
    --------
    >>> prior = DocumentPrior(np.ones((1, 2)), np.eye(2), np.zeros(()))
    >>> float(jax.jit(divergence)(np.zeros((1, 2)), np.eye(2)[None], np.zeros(1), prior)[0])
    1.0
    """
    shift = means - prior.means
    length = jnp.einsum("dk,kj,dj->d", shift, prior.precision, shift)
    trace = jnp.einsum("kj,dkj->d", prior.precision, covariance)
    return (log_determinant - prior.log_determinant + trace + length - means.shape[1]) / 2


class BatchStatistics(NamedTuple):
    """What topics and prior are learned from, of one batch; sums are over the documents that count."""

    means: Float[AnyArray, "d k"]
    proportions: Float[AnyArray, "d k"]
    words: Float[Array, "v k"]
    """How often each topic wrote each word."""
    covariance_sum: Float[Array, "k k"]
    """Σ_d V_d."""
    bounds: Float[Array, " d"]
    """L(m_d, V_d) of each document, by the draws; 0 if it does not count."""


@quick_jit(lambda *_: True, loops=has_long_loops, static_argnames="method")
def learn(
    pages: Pages,
    topics: Float[Array, "v k"],
    prior: DocumentPrior,
    means: Float[Array, "d k"],
    counted: Float[Array, " d"],
    plan: StepPlan,
    method: str,
) -> BatchStatistics:
    """Take steps on the posteriors of a batch, and gather the statistics of the documents with ``counted`` 1, not 0."""
    words = DocumentWords.of(pages, topics, len(means))
    found, expected = infer(words, prior, means, plan, method=METHODS[method])
    _, ratio, of_pages = words.read(expected.points)
    shares = jnp.einsum("pws,psk,s,p->pwk", ratio, of_pages, expected.weights, counted[pages.document])
    wrote = topics * jnp.zeros_like(topics).at[pages.words.reshape(-1)].add(shares.reshape(-1, topics.shape[1]))
    covariance_sum = jnp.einsum("dij,d->ij", found.covariances, counted)
    return BatchStatistics(found.means, found.proportions, wrote, covariance_sum, counted * found.bounds)


@quick_jit(lambda *_: True, loops=has_long_loops, static_argnames=("method", "exact"))
def _posteriors(
    pages: Pages, topics: Float[Array, "v k"], prior: DocumentPrior, plan: StepPlan, method: str, exact: bool
) -> TopicPosteriors:
    words = DocumentWords.of(pages, topics, len(prior.means))
    return infer(words, prior, prior.means, plan, method=METHODS[method], exact=exact, shared_nodes=True)[0]


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
    steps: int = 25


def document_posteriors(
    counts: csr_array,
    design: Float[np.ndarray, "n p"],
    topics: Float[np.ndarray, "v k"],
    prevalence: Prevalence,
    how: Inference,
) -> Iterator[tuple[slice, TopicPosteriors]]:
    """Find the posteriors of documents under known topics, batch by batch in bounded memory.

    Examples
    --------
    >>> table = csr_array(np.array([[9, 0], [0, 9]], np.float32))
    >>> topics = np.array([[0.9, 0.1], [0.1, 0.9]])
    >>> found = list(document_posteriors(table, np.ones((2, 1)), topics, Prevalence.start(1, 2), Inference()))
    >>> found[0][1].proportions.argmax(axis=1)
    array([0, 1])
    """
    sides = topics.shape[1]
    parts = split_rows(counts.shape[0], max(sides, how.samples) * (sides + counts.nnz / max(counts.shape[0], 1)))
    shape_of_points = (how.steps + 1, sides, how.samples)
    plan = StepPlan.antithetic(np.random.default_rng(how.seed), shape_of_points, how.step, how.steps)
    on_device = jax.device_put(topics.astype(np.float32))
    for batch in make_batches(counts, design, parts):
        prior = prevalence.prior(batch.design)
        found = _posteriors(batch.pages, on_device, prior, plan, how.method, how.exact)
        leaves = (np.asarray(leaf, np.float64)[: len(batch.rows)] for leaf in found)
        yield slice(int(batch.rows[0]), int(batch.rows[-1]) + 1), TopicPosteriors(*leaves)

"""The posterior of one latent Gaussian process, its bound, and the kernel that makes the bound highest.

Everything here runs in float64, inside a scope: the caller opens it. Rows are padded to a few lengths with examples of
weight zero that are independent of all others under the prior, so that data sets of about the same size share one
compiled function; they change neither the posterior of the others nor the bound.
"""

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.optimize
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float
from threadpoolctl import threadpool_limits

from thalweg import trees
from thalweg.compiling import quick_jit, quick_options
from thalweg.descent import Descent, History, Monotone, Polynomial, Result, Status, minimize
from thalweg.gaussian.divergence import GaussianKL, KLToProcess
from thalweg.gaussian.likelihood import Likelihood
from thalweg.gaussian.oracle import ExpectedLikelihood
from thalweg.gaussian.posteriors import Implicit, Marginals, site_factor
from thalweg.kernels import Kernel
from thalweg.models._search import Found, search

_FURTHEST = np.log(1e4)
"""How far learning may take a parameter of the kernel from where it starts, as a logarithm."""

_RESTART_SPREAD = np.log(4.0)
"""Standard deviation of the logarithm of the parameters at a restart."""

_ONE_THREAD = 1024
"""Rows up to which a factorisation gains little from a second thread: a fifth of its time, on an idle machine."""

_FEW = 2048
"""Rows up to which a posterior is found in less time than XLA would take to make that fast."""

_ROWS = 1024
"""Rows of a prediction that exist at a time."""


class Problem(NamedTuple):
    """Padded data: inputs, targets 0 or 1, weights (0 for padding) and which rows are real."""

    inputs: Float[Array, "n d"]
    targets: Float[Array, " n"]
    weights: Float[Array, " n"]
    real: Float[Array, " n"]


@dataclass(frozen=True)
class Settings:
    """How to look for a posterior."""

    likelihood: Likelihood
    jitter: float
    step: float
    tol: float
    max_iter: int
    batch_size: int | None
    verbose: bool


@dataclass(frozen=True)
class Fitted:
    """A posterior, its kernel and its bound; arrays of NumPy, without padding."""

    kernel: Kernel
    weights: np.ndarray
    sites: np.ndarray
    bound: float
    steps: int
    history: History
    status: Status
    residual: float


def enough_threads(rows: int) -> AbstractContextManager:
    """One thread of BLAS for small matrices, within a scope.

    More gain little, and on a busy machine they wait for one another many times longer than they work.
    """
    return threadpool_limits(1 if rows <= _ONE_THREAD else None, user_api="blas")


def padded_length(rows: int) -> int:
    """The next of the lengths that arrays are padded to, at most an eighth more than ``rows`` (and at least 64).

    Examples
    --------
    >>> [padded_length(n) for n in (3, 65, 351, 5000)]
    [64, 72, 352, 5120]
    """
    unit = max(2 ** (rows.bit_length() - 4), 1)
    return max(-(-rows // unit) * unit, 64)


def padded_problem(inputs: np.ndarray, targets: np.ndarray, weights: np.ndarray | None) -> Problem:
    """Pad the data."""
    rows = len(targets)
    extra = padded_length(rows) - rows
    fill = lambda array: jax.device_put(np.pad(array, [(0, extra)] + [(0, 0)] * (array.ndim - 1)))
    ones = np.ones(rows)
    return Problem(fill(inputs), fill(targets), fill(ones if weights is None else weights), fill(ones))


def _few(*arguments: Any) -> bool:
    return max(np.shape(leaf)[0] for leaf in jax.tree.leaves(arguments) if np.ndim(leaf)) <= _FEW


def _covariance(kernel: Kernel, inputs: Array, real: Array, jitter: Array) -> Float[Array, "n n"]:
    """K + jitter·I, with padding independent of everything."""
    among = kernel(inputs) * real[:, None] * real
    return among + jnp.diag(jnp.where(real > 0, jitter, 1.0))


@quick_jit(_few)
def _prior(kernel: Kernel, inputs: Array, real: Array, jitter: Array) -> tuple[Float[Array, "n n"], Implicit]:
    """The covariance, and the process that has it."""
    covariance = _covariance(kernel, inputs, real, jitter)
    return covariance, Implicit.prior(covariance)


_resumed = quick_jit(_few)(Implicit.from_sites)


@eqx.filter_jit
def _loss(oracle: ExpectedLikelihood, q: Implicit) -> Array:
    return oracle.value(q) + q.kl_to_prior()


@eqx.filter_jit
def _slope(
    kernel: Kernel, problem: Problem, likelihood: Likelihood, jitter: Array, weights: Array, sites: Array
) -> Kernel:
    """The derivative of −bound in the kernel's parameters, the weights and sites of the posterior held fixed.

    At the optimal posterior that is the derivative of the best bound itself: the posterior's own part vanishes.
    """

    def loss(kernel: Kernel) -> Array:
        covariance = _covariance(kernel, problem.inputs, problem.real, jitter)
        moved = Implicit.from_sites(covariance, weights, sites)
        return _loss(ExpectedLikelihood(likelihood, problem.targets, weights=problem.weights), moved)

    return eqx.filter_grad(loss)(kernel)


def _natural(fitted: Fitted, problem: Problem) -> tuple[Array, Array]:
    """Weights and sites, padded like the problem."""
    extra = problem.real.shape[0] - len(fitted.weights)
    return jax.device_put(np.pad(fitted.weights, (0, extra))), jax.device_put(np.pad(fitted.sites, (0, extra)))


def infer(kernel: Kernel, problem: Problem, settings: Settings, seed: int, start: Fitted | None = None) -> Fitted:
    """Find the posterior for a kernel: exact natural-gradient steps, or steps from mini-batches."""
    covariance, q = _prior(kernel, problem.inputs, problem.real, settings.jitter)
    rows = int(np.sum(np.asarray(problem.real)))
    if start is not None:
        q = _resumed(covariance, *_natural(start, problem))
    batch_size = None if settings.batch_size is None else min(settings.batch_size, rows)
    oracle = ExpectedLikelihood(
        settings.likelihood,
        problem.targets,
        weights=problem.weights,
        batch_size=batch_size,
        # Padding would be wasted work in a batch. (Where all rows are used their number is not compiled in.)
        examples=None if batch_size is None else rows,
    )
    term, divergence = KLToProcess(covariance), GaussianKL()
    options = quick_options() if _few(problem) else None
    result: Found | Result
    if batch_size is None:
        result = search(
            Descent(oracle, term=term, divergence=divergence, step=Monotone(settings.step)),
            q,
            steps=settings.max_iter,
            tol=settings.tol,
            progress=settings.verbose,
            compiler_options=options,
        )
        q, loss, residual = result.last.x, result.last.objective, result.last.residual
    else:
        share = batch_size / rows
        result = minimize(
            oracle,
            q,
            term=term,
            divergence=divergence,
            step=Polynomial(settings.step * share, power=0.7, scale=2 / share),
            steps=max(int(settings.max_iter / share), 1),
            key=jax.random.key(seed),
            progress=settings.verbose,
            compiler_options=options,
        )
        q, loss, residual = result.x, _loss(oracle, result.x), result.history["residual"][-1]
    return Fitted(
        kernel=jax.tree.map(np.asarray, kernel),
        weights=np.asarray(q.weights)[:rows],
        sites=np.asarray(q.sites)[:rows],
        bound=-float(loss),
        steps=result.steps,
        history=result.history,
        status=result.status,
        residual=float(residual),
    )


def learn(kernel: Kernel, problem: Problem, settings: Settings, seed: int, restarts: int) -> Fitted:
    """Maximise the bound over the logarithms of the kernel's parameters too, from several starting points."""
    leaves, structure = jax.tree.flatten(kernel)
    shapes = [leaf.shape for leaf in leaves]
    first = np.concatenate([np.log(np.asarray(leaf, float)).ravel() for leaf in leaves])
    jitter = trees.scalar(settings.jitter)
    best: Fitted | None = None
    rng = np.random.default_rng(seed)

    def with_parameters(logs: np.ndarray) -> Kernel:
        parts = np.split(np.exp(logs), np.cumsum([int(np.prod(shape)) for shape in shapes])[:-1])
        return jax.tree.unflatten(structure, [jnp.asarray(p.reshape(s)) for p, s in zip(parts, shapes, strict=True)])

    for attempt in range(restarts + 1):
        latest: list[Fitted] = []

        def loss(logs: np.ndarray, latest: list[Fitted] = latest) -> tuple[float, np.ndarray]:
            nonlocal best
            proposed = with_parameters(logs)
            fitted = infer(proposed, problem, settings, seed, latest[-1] if latest else None)
            latest[:] = [fitted]
            if best is None or fitted.bound > best.bound:
                best = fitted
            slope = _slope(proposed, problem, settings.likelihood, jitter, *_natural(fitted, problem))
            flat = np.concatenate([np.asarray(leaf).ravel() for leaf in jax.tree.leaves(slope)])
            return -fitted.bound, flat * np.exp(logs)

        begin = first if attempt == 0 else first + _RESTART_SPREAD * rng.standard_normal(first.shape)
        bounds = [(value - _FURTHEST, value + _FURTHEST) for value in first]
        begin = np.clip(begin, first - _FURTHEST, first + _FURTHEST)
        scipy.optimize.minimize(
            loss, begin, jac=True, bounds=bounds, method="L-BFGS-B", options={"maxiter": 50, "ftol": 1e-7}
        )
    assert best is not None
    return best


_site_factor = quick_jit(_few)(site_factor)


def factor(fitted: Fitted, problem: Problem, settings: Settings) -> np.ndarray:
    """The Cholesky factor of B, which variances of predictions need."""
    covariance, _ = _prior(fitted.kernel, problem.inputs, problem.real, settings.jitter)
    rows = len(fitted.sites)
    whole = _site_factor(covariance, _natural(fitted, problem)[1])
    # Padding comes last, and leaves the rows of the factor before it alone. A large factor is cut where it is: on the
    # host it would be copied at each prediction. For a small one that is cheaper than to compile the cut.
    return np.asarray((np.asarray(whole) if rows <= _FEW else whole)[:rows, :rows])


@jax.jit
def _predict(kernel: Kernel, inputs: Array, new: Array, weights: Array, sites: Array, factor: Array) -> Marginals:
    cross = kernel(inputs, new)
    spread = solve_triangular(factor, jnp.sqrt(sites)[:, None] * cross, lower=True)
    prior = kernel.diagonal(new)
    variance = jnp.maximum(prior - jnp.sum(spread**2, axis=0), jnp.finfo(prior.dtype).eps * prior)
    return Marginals(weights @ cross, variance)


def predict(fitted: Fitted, inputs: np.ndarray, factor: np.ndarray, new: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The latent means and variances at new inputs, a strip of rows at a time."""
    arrays = [jnp.asarray(array) for array in (fitted.weights, fitted.sites, factor)]
    means, variances = [], []
    for first in range(0, len(new), _ROWS):
        strip = new[first : first + _ROWS]
        extra = min(padded_length(len(strip)), _ROWS) - len(strip)
        padded = jnp.asarray(np.pad(strip, ((0, extra), (0, 0)), mode="edge"))
        mean, variance = _predict(fitted.kernel, jnp.asarray(inputs), padded, *arrays)
        means.append(np.asarray(mean)[: len(strip)])
        variances.append(np.asarray(variance)[: len(strip)])
    return np.concatenate(means), np.concatenate(variances)

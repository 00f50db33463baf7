"""The posterior of one latent Gaussian process, its bound, and the kernel that makes the bound highest.

Everything here runs in float64, inside a scope: the caller opens it. Rows are padded to a few lengths with examples of
weight zero that are independent of all others under the prior, so that data sets of about the same size share one
compiled function; they change neither the posterior of the others nor the bound.
"""

from dataclasses import dataclass
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.optimize
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float

from thalweg.descent import History, Monotone, Polynomial, Stagnation, Status, Tolerance, minimize
from thalweg.gaussian.divergence import GaussianKL, KLToProcess
from thalweg.gaussian.likelihood import Likelihood
from thalweg.gaussian.oracle import ExpectedLikelihood
from thalweg.gaussian.posteriors import Implicit, Marginals, site_factor
from thalweg.kernels import Kernel

_FURTHEST = np.log(1e4)
"""How far learning may take a parameter of the kernel from where it starts, as a logarithm."""

_RESTART_SPREAD = np.log(4.0)
"""Standard deviation of the logarithm of the parameters at a restart."""

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
    fill = lambda array: jnp.asarray(np.pad(array, [(0, extra)] + [(0, 0)] * (array.ndim - 1)))
    ones = np.ones(rows)
    return Problem(fill(inputs), fill(targets), fill(ones if weights is None else weights), fill(ones))


@eqx.filter_jit
def _covariance(kernel: Kernel, inputs: Array, real: Array, jitter: Array) -> Float[Array, "n n"]:
    """K + jitter·I, with padding independent of everything."""
    among = kernel(inputs) * real[:, None] * real
    return among + jnp.diag(jnp.where(real > 0, jitter, 1.0))


_prior = jax.jit(Implicit.prior)


@eqx.filter_jit
def _resumed(covariance: Array, weights: Array, sites: Array) -> Implicit:
    return Implicit.from_sites(covariance, weights, sites)


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
    return jnp.asarray(np.pad(fitted.weights, (0, extra))), jnp.asarray(np.pad(fitted.sites, (0, extra)))


def infer(kernel: Kernel, problem: Problem, settings: Settings, seed: int, start: Fitted | None = None) -> Fitted:
    """Find the posterior for a kernel: exact natural-gradient steps, or steps from mini-batches."""
    covariance = _covariance(kernel, problem.inputs, problem.real, jnp.asarray(settings.jitter))
    rows = int(np.sum(np.asarray(problem.real)))
    q = _prior(covariance) if start is None else _resumed(covariance, *_natural(start, problem))
    batch_size = None if settings.batch_size is None else min(settings.batch_size, rows)
    oracle = ExpectedLikelihood(
        settings.likelihood,
        problem.targets,
        weights=problem.weights,
        batch_size=batch_size,
        # Padding would be wasted work in a batch. (Where all rows are used their number is not compiled in.)
        examples=None if batch_size is None else rows,
    )
    share = 1.0 if batch_size is None else batch_size / rows
    exact = batch_size is None
    step = Monotone(settings.step) if exact else Polynomial(settings.step * share, power=0.7, scale=2 / share)
    result = minimize(
        oracle,
        q,
        term=KLToProcess(covariance),
        divergence=GaussianKL(),
        step=step,
        steps=max(int(settings.max_iter / share), 1),
        stride=1 if exact else None,
        tol=Tolerance(0.0, settings.tol) | Stagnation() if exact else None,
        key=jax.random.key(seed),
        progress=settings.verbose,
    )
    found = result.x
    return Fitted(
        kernel=kernel,
        weights=np.asarray(found.weights)[:rows],
        sites=np.asarray(found.sites)[:rows],
        bound=-float(result.history["value"][-1] if exact else _loss(oracle, found)),
        steps=result.steps,
        history=result.history,
        status=result.status,
        residual=float(result.history["residual"][-1]),
    )


def learn(kernel: Kernel, problem: Problem, settings: Settings, seed: int, restarts: int) -> Fitted:
    """Maximise the bound over the logarithms of the kernel's parameters too, from several starting points."""
    leaves, structure = jax.tree.flatten(kernel)
    shapes = [leaf.shape for leaf in leaves]
    first = np.concatenate([np.log(np.asarray(leaf, float)).ravel() for leaf in leaves])
    jitter = jnp.asarray(settings.jitter)
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


_site_factor = jax.jit(site_factor)


def factor(fitted: Fitted, problem: Problem, settings: Settings) -> np.ndarray:
    """The Cholesky factor of B, which variances of predictions need."""
    covariance = _covariance(fitted.kernel, problem.inputs, problem.real, jnp.asarray(settings.jitter))
    rows = len(fitted.sites)
    # Padding comes last, and leaves the rows of the factor before it alone.
    return np.asarray(_site_factor(covariance, _natural(fitted, problem)[1]))[:rows, :rows]


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

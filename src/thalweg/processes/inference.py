"""The Gaussian posterior of a latent process given targets, for one kernel, and its bound.

Everything here runs in float64, inside a scope. Rows are padded to a few lengths with examples of weight zero that are
independent of all others under the prior, so that data sets of about the same size share one compiled function; they
change neither the posterior of the others nor the bound.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float

from thalweg.compiling import quick_jit, quick_options
from thalweg.descent import Monotone, Polynomial, Result, Stagnation, Status, Tolerance, minimize
from thalweg.gaussian.divergence import GaussianKL, KLToProcess
from thalweg.gaussian.likelihood import Likelihood
from thalweg.gaussian.oracle import ExpectedLikelihood
from thalweg.gaussian.posteriors import Implicit, site_factor
from thalweg.kernels import Kernel
from thalweg.padding import padded, padded_size

_FEW = 2048
"""Rows up to which a posterior is found in less time than XLA would take to make that fast."""

_LEAST, _GRAIN = 64, 16
"""Rows are padded to as many at least, and to a multiple."""

_NEARBY = 4.0
"""How many times longer the first step may be from a posterior of a similar kernel."""


@dataclass(frozen=True)
class ClassifierSettings:
    """How to look for a posterior, and for the kernel.

    Examples
    --------
    >>> from thalweg.gaussian import BernoulliLogit
    >>> ClassifierSettings(BernoulliLogit(), learn=False).restarts
    1
    """

    likelihood: Likelihood
    jitter: float = 1e-6
    """Added to the diagonal of the covariance of the training rows."""
    learn: bool = True
    """Whether to maximise the bound over the kernel's parameters."""
    restarts: int = 1
    """How many more starting points to learn from."""
    batch_size: int | None = None
    step: float = 1.0
    tol: float = 1e-2
    max_iter: int = 200
    verbose: bool = False


def length(rows: int) -> int:
    """The length that so many rows are padded to."""
    return padded_size(max(rows, _LEAST), _GRAIN)


def on_device(array: Any, rows: int) -> Array:
    """The array, padded to the length of so many rows."""
    return jax.device_put(padded(array, length(rows)))


class Problem(NamedTuple):
    """Padded data: inputs, targets, weights (0 for padding) and which rows are real."""

    inputs: Float[Array, "n d"]
    targets: Float[Array, " n"]
    weights: Float[Array, " n"]
    real: Float[Array, " n"]

    @classmethod
    def padded(cls, inputs: np.ndarray, targets: np.ndarray, weights: np.ndarray | None) -> "Problem":
        """Rows, padded."""
        ones = np.ones(len(targets))
        arrays = (inputs, targets, ones if weights is None else weights, ones)
        return cls(*(on_device(array, len(targets)) for array in arrays))

    @property
    def rows(self) -> int:
        """How many are real."""
        return int(np.sum(np.asarray(self.real)))


class Found(NamedTuple):
    """A posterior, padded as the problem is, its bound, and the prior covariance."""

    bound: float
    result: Result
    covariance: Float[Array, "n n"]

    def factor(self, rows: int) -> np.ndarray:
        """The Cholesky factor of B without padding, which comes last and leaves the rows before it alone."""
        if rows > _FEW:
            return np.asarray(site_factor(self.covariance, self.result.x.sites)[:rows, :rows])
        return _factor(np.asarray(self.covariance)[:rows, :rows], np.asarray(self.result.x.sites)[:rows])

    def precision(self, rows: int) -> np.ndarray:
        """S·B⁻¹·S = (K + S⁻²)⁻¹, which would be the precision of targets with Gaussian noise of the sites' size."""
        if rows > _FEW:
            return np.asarray(_precision(self.covariance, self.result.x.sites))[:rows, :rows]
        root = np.sqrt(np.asarray(self.result.x.sites)[:rows])
        inverse, _ = scipy.linalg.lapack.dpotri(self.factor(rows), lower=True, overwrite_c=True)
        lower = np.tril(root[:, None] * inverse * root)
        return lower + np.tril(lower, -1).T


def _few(*arguments: Any) -> bool:
    return max(np.shape(leaf)[0] for leaf in jax.tree.leaves(arguments) if np.ndim(leaf)) <= _FEW


def _covariance(kernel: Kernel, inputs: Array, real: Array, jitter: Array) -> Float[Array, "n n"]:
    """K + jitter·I, with padding independent of everything."""
    among = kernel(inputs) * real[:, None] * real[None]
    return among + jnp.diag(jnp.where(real > 0, jitter, 1.0))


@quick_jit(_few)
def _prior(kernel: Kernel, inputs: Array, real: Array, jitter: Array) -> tuple[Float[Array, "n n"], Implicit]:
    """The covariance, and the process that has it."""
    covariance = _covariance(kernel, inputs, real, jitter)
    return covariance, Implicit.prior(covariance)


@quick_jit(_few)
def slope(kernel: Kernel, inputs: Array, pull: Float[Array, "n n"]) -> Kernel:
    """The derivative in the kernel's parameters of what has the derivative ``pull`` in its matrix."""
    return eqx.filter_grad(lambda kernel: jnp.sum(pull * kernel(inputs)))(kernel)


def covariance_of(kernel: Kernel, problem: Problem, settings: ClassifierSettings) -> np.ndarray:
    """The prior covariance of the real rows."""
    covariance, _ = _prior(kernel, problem.inputs, problem.real, settings.jitter)
    return np.asarray(covariance)[: problem.rows, : problem.rows]


_from_sites = jax.jit(Implicit.from_sites)


@jax.jit
def _precision(covariance: Array, sites: Array) -> Float[Array, "n n"]:
    spread = solve_triangular(site_factor(covariance, sites), jnp.diag(jnp.sqrt(sites)), lower=True)
    return spread.T @ spread


def _resumed(covariance: Array, start: Implicit) -> Implicit:
    """The posterior with the weights and sites of another; of few rows on the host, which compiles nothing."""
    if len(start.sites) > _FEW:
        return _from_sites(covariance, start.weights, start.sites)
    K, weights, sites = (np.asarray(part) for part in (covariance, start.weights, start.sites))
    factor = _factor(K, sites)
    spread = scipy.linalg.solve_triangular(factor, np.sqrt(sites)[:, None] * K, lower=True, check_finite=False)
    variance = np.maximum(np.diagonal(K) - np.sum(spread**2, axis=0), np.finfo(float).eps * np.diagonal(K))
    parts = K @ weights, variance, weights, sites, 2 * np.sum(np.log(np.diagonal(factor)))
    return Implicit(*map(jnp.asarray, parts))


def _factor(covariance: np.ndarray, sites: np.ndarray) -> np.ndarray:
    """The Cholesky factor of B = I + √sites·K·√sites."""
    root = np.sqrt(sites)
    scaled = root[:, None] * covariance * root
    scaled[np.diag_indices(len(root))] += 1
    return scipy.linalg.cholesky(scaled.T, lower=True, overwrite_a=True, check_finite=False)


@eqx.filter_jit
def _loss(oracle: ExpectedLikelihood, q: Implicit) -> Array:
    return oracle.value(q) + q.kl_to_prior()


def infer(
    kernel: Kernel,
    problem: Problem,
    settings: ClassifierSettings,
    seed: int,
    start: Implicit | None = None,
    progress: bool = False,
) -> Found:
    """Find the posterior for a kernel: exact natural-gradient steps, or steps from mini-batches.

    ``start`` has the weights and sites to begin with; by default those of the prior.
    """
    covariance, q = _prior(kernel, problem.inputs, problem.real, settings.jitter)
    q = q if start is None else _resumed(covariance, start)
    rows = problem.rows
    batch_size = None if settings.batch_size is None else min(settings.batch_size, rows)
    oracle = ExpectedLikelihood(
        settings.likelihood,
        problem.targets,
        weights=problem.weights,
        batch_size=batch_size,
        # Padding would be wasted work in a batch. (Where all rows are used their number is not compiled in.)
        examples=None if batch_size is None else rows,
    )
    method: dict[str, Any]
    if batch_size is None:
        # Few and dear steps: a program for each of them compiles sooner than one for all.
        method = {
            "engine": "host",
            "stride": 1,
            "step": Monotone(settings.step if start is None else _NEARBY * settings.step),
            "steps": settings.max_iter,
            "tol": Tolerance(0, settings.tol) | Stagnation(),
        }
    else:
        share = batch_size / rows
        method = {
            "step": Polynomial(settings.step * share, power=0.7, scale=2 / share),
            "steps": max(int(settings.max_iter / share), 1),
            "key": jax.random.key(seed),
        }
    result = minimize(
        oracle,
        q,
        term=KLToProcess(covariance),
        divergence=GaussianKL(),
        progress=progress,
        compiler_options=quick_options() if _few(problem) else None,
        **method,
    )
    if result.status is Status.INTERRUPTED and not result.steps:
        raise KeyboardInterrupt
    last = result.history.last
    recorded = batch_size is None and last["step"] == result.steps
    loss = last["value"] if recorded else float(_loss(oracle, result.x))
    return Found(-loss, result, covariance)

"""The Gaussian posterior of a latent process given targets, for one kernel, and its bound.

Everything here runs in float64, inside a scope. Logistic labels are left to the host where there is nothing else, or
rows are few (:mod:`thalweg.processes.sites`). Elsewhere rows are padded to a few lengths with examples of weight zero
that are independent of all others under the prior, so that data sets of about the same size share one compiled
function; they change neither the posterior of the others nor the bound.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float
from scipy.linalg.lapack import dpotri

from thalweg.compiling import quick_jit, quick_options
from thalweg.descent import History, Monotone, Polynomial, Stagnation, Status, Tolerance, minimize
from thalweg.gaussian.divergence import GaussianKL, KLToProcess
from thalweg.gaussian.likelihood import Likelihood
from thalweg.gaussian.likelihoods import BernoulliLogit
from thalweg.gaussian.oracle import ExpectedLikelihood
from thalweg.gaussian.posteriors import Implicit, site_factor
from thalweg.kernels import Kernel
from thalweg.padding import padded, padded_size
from thalweg.processes import covariance as covariances
from thalweg.processes.exact import computes_on_device
from thalweg.processes.sites import Labels, State, climb, factor

_FEW = 2048
"""Rows up to which a posterior is found in less time than XLA would take to make that fast."""

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


def on_device(array: Any, rows: int) -> Array:
    """The array, padded to the length of so many rows."""
    return jax.device_put(padded(array, length(rows)))


class Padded(NamedTuple):
    """Rows on the device: inputs, targets, weights (0 for padding) and which rows are real."""

    inputs: Float[Array, "n d"]
    targets: Float[Array, " n"]
    weights: Float[Array, " n"]
    real: Float[Array, " n"]


@dataclass(frozen=True)
class Problem:
    """Rows, what was seen there, and how often each counts."""

    inputs: np.ndarray
    targets: np.ndarray
    weights: np.ndarray

    @classmethod
    def of(cls, inputs: np.ndarray, targets: np.ndarray, weights: np.ndarray | None) -> "Problem":
        """With weights of 1 if there are none."""
        return cls(inputs, targets, np.ones(len(targets)) if weights is None else weights)

    @property
    def rows(self) -> int:
        """How many."""
        return len(self.targets)

    @cached_property
    def padded(self) -> Padded:
        """The same on the device."""
        arrays = (self.inputs, self.targets, self.weights, np.ones(self.rows))
        return Padded(*(on_device(array, self.rows) for array in arrays))


@dataclass(frozen=True)
class Found:
    """A posterior, its bound, how it was found, and the prior covariance, which may be padded and on the device."""

    bound: float
    weights: np.ndarray
    sites: np.ndarray
    steps: int
    history: History
    status: Status
    covariance: Any
    state: State | None = None
    """What the host knows of it."""

    @property
    def factor(self) -> np.ndarray:
        """The Cholesky factor of B = I + √sites·K·√sites."""
        rows = len(self.sites)
        if self.state is None and rows > _FEW:
            return np.asarray(site_factor(self.covariance, on_device(self.sites, rows))[:rows, :rows])
        return factor(np.asarray(self.covariance)[:rows, :rows], self.sites)

    @property
    def precision(self) -> np.ndarray:
        """The lower triangle of S·B⁻¹·S = (K + S⁻²)⁻¹, that of targets with Gaussian noise of the sites' size."""
        if self.state is not None:
            return self.state.precision()
        rows = len(self.sites)
        if rows > _FEW:
            return np.tril(np.asarray(_precision(self.covariance, on_device(self.sites, rows)))[:rows, :rows])
        root = np.sqrt(self.sites)
        return root[:, None] * dpotri(self.factor, lower=1)[0] * root


def _few(*arguments: Any) -> bool:
    return max(np.shape(leaf)[0] for leaf in jax.tree.leaves(arguments) if np.ndim(leaf)) <= _FEW


def length(rows: int) -> int:
    return padded_size(max(rows, 64), 16) if rows <= _FEW else rows


def _covariance(kernel: Kernel, inputs: Array, real: Array, jitter: Array) -> Float[Array, "n n"]:
    """K + jitter·I, with padding independent of everything."""
    among = kernel(inputs) * real[:, None] * real[None]
    return among + jnp.diag(jnp.where(real > 0, jitter, 1.0))


@quick_jit(_few)
def _prior(kernel: Kernel, inputs: Array, real: Array, jitter: Array) -> tuple[Float[Array, "n n"], Implicit]:
    """The covariance, and the process that has it."""
    covariance = _covariance(kernel, inputs, real, jitter)
    return covariance, Implicit.prior(covariance)


_from_sites = quick_jit(_few)(Implicit.from_sites)


@jax.jit
def _precision(covariance: Array, sites: Array) -> Float[Array, "n n"]:
    spread = solve_triangular(site_factor(covariance, sites), jnp.diag(jnp.sqrt(sites)), lower=True)
    return spread.T @ spread


@eqx.filter_jit
def _loss(oracle: ExpectedLikelihood, q: Implicit) -> Array:
    return oracle.value(q) + q.kl_to_prior()


def infer(
    kernel: Kernel,
    problem: Problem,
    settings: ClassifierSettings,
    seed: int,
    start: Found | None = None,
    progress: bool = False,
) -> Found:
    """Find the posterior for a kernel: exact natural-gradient steps, or steps from mini-batches.

    ``start`` has the weights and sites to begin with; by default those of the prior.
    """
    exact = settings.batch_size is None
    if exact and type(settings.likelihood) is BernoulliLogit and not computes_on_device(problem.rows):
        return _on_host(kernel, problem, settings, start)
    rows, data = problem.rows, problem.padded
    covariance, q = _prior(kernel, data.inputs, data.real, settings.jitter)
    if start is not None:
        q = _from_sites(covariance, *(on_device(part, rows) for part in (start.weights, start.sites)))
    batch_size = None if settings.batch_size is None else min(settings.batch_size, rows)
    oracle = ExpectedLikelihood(
        settings.likelihood,
        data.targets,
        weights=data.weights,
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
        compiler_options=quick_options() if _few(data) else None,
        **method,
    )
    if result.status is Status.INTERRUPTED and not result.steps:
        raise KeyboardInterrupt
    last = result.history.last
    recorded = exact and last["step"] == result.steps
    loss = last["value"] if recorded else float(_loss(oracle, result.x))
    weights, sites = (np.array(part)[:rows] for part in (result.x.weights, result.x.sites))
    return Found(-loss, weights, sites, result.steps, result.history, result.status, covariance)


def _on_host(kernel: Kernel, problem: Problem, settings: ClassifierSettings, start: Found | None) -> Found:
    settings.likelihood.check(problem.targets)
    covariance = covariances.matrix(kernel, problem.inputs)
    covariance[np.diag_indices_from(covariance)] += settings.jitter
    labels = Labels(problem.targets, problem.weights)
    near = None if start is None else start.state
    found = climb(covariance, labels, near, settings.step, settings.tol, settings.max_iter)
    state, how = found.state, (found.steps, found.history, found.status)
    return Found(-state.loss, state.weights, state.sites, *how, covariance, state)

"""The posterior of a latent Gaussian process given labels, its bound, and the kernel that makes the bound highest.

Everything here runs in float64, inside a scope. Rows are padded to a few lengths with examples of weight zero that are
independent of all others under the prior, so that data sets of about the same size share one compiled function; they
change neither the posterior of the others nor the bound.
"""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg
import scipy.optimize
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float

from thalweg import trees
from thalweg.codec import storable
from thalweg.compiling import quick_jit, quick_options
from thalweg.descent import History, Monotone, Polynomial, Result, Stagnation, Status, Tolerance, minimize
from thalweg.gaussian.divergence import GaussianKL, KLToProcess
from thalweg.gaussian.likelihood import Likelihood
from thalweg.gaussian.oracle import ExpectedLikelihood
from thalweg.gaussian.posteriors import Implicit, Marginals, site_factor
from thalweg.kernels import Gaussian, Kernel, median_distance
from thalweg.padding import padded, padded_size
from thalweg.threads import enough_threads

_FURTHEST = np.log(1e4)
"""How far learning may take a parameter of the kernel from where it starts, as a logarithm."""

_RESTART_SPREAD = np.log(4.0)
"""Standard deviation of the logarithm of the parameters at a restart."""

_FEW = 2048
"""Rows up to which a posterior is found in less time than XLA would take to make that fast."""

_LEAST, _GRAIN = 64, 16
"""Rows are padded to as many at least, and to a multiple."""

_STRIP = 1024
"""Rows of a prediction that exist at a time."""


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


@storable
@dataclass(frozen=True)
class ProcessPosterior:
    """The posterior of a process, its kernel and its bound; arrays of NumPy, without padding.

    Examples
    --------
    >>> from thalweg.gaussian import BernoulliLogit
    >>> inputs, labels = np.array([[-1.0], [1.0]]), np.array([0.0, 1.0])
    >>> posterior = fit_classifier(inputs, labels, ClassifierSettings(BernoulliLogit(), learn=False))
    >>> posterior.predict(np.array([[100.0]])).variance.round(4)  # that of the prior, far away
    array([10.])
    """

    kernel: Kernel
    inputs: np.ndarray
    weights: np.ndarray
    sites: np.ndarray
    factor: np.ndarray
    """The Cholesky factor of B, which variances of predictions need."""
    bound: float
    steps: int
    history: History
    status: Status

    @property
    def residual(self) -> float:
        """The length of the natural gradient at the last step; NaN if there was none."""
        return self.history.last["residual"]

    def predict(self, new: np.ndarray) -> Marginals:
        """The latent means and variances at new inputs, a strip of rows at a time."""
        with jax.enable_x64(True):
            fixed = [jnp.asarray(array) for array in (self.inputs, self.weights, self.sites, self.factor)]
            strips = [new[first : first + _STRIP] for first in range(0, len(new), _STRIP)]
            found = [_predict(self.kernel, _device(strip, _length(len(strip))), *fixed) for strip in strips]
            parts = [[np.asarray(part)[: len(strip)] for part in f] for f, strip in zip(found, strips, strict=True)]
        return Marginals(*(np.concatenate(column) for column in zip(*parts, strict=True)))  # type: ignore[arg-type]


def default_kernel(inputs: np.ndarray) -> Kernel:
    """A Gaussian kernel with the median distance between rows as lengthscale, and variance 10.

    Examples
    --------
    >>> default_kernel(np.array([[0.0], [2.0], [2.0]]))
    Gaussian(lengthscale=2, variance=10)
    """
    # Of rows that differ, so that a row given twice and a row of weight two lead to the same kernel.
    rows = np.unique(inputs, axis=0)
    with jax.enable_x64(True):
        distance = median_distance(rows, jax.random.key(0)) if len(rows) > 1 else 1.0
        return Gaussian(lengthscale=trees.scalar(distance), variance=trees.scalar(10.0))


def fit_classifier(
    inputs: np.ndarray,
    targets: np.ndarray,
    settings: ClassifierSettings,
    kernel: Kernel | None = None,
    weights: np.ndarray | None = None,
    seed: int = 0,
) -> ProcessPosterior:
    """The posterior given targets of the likelihood at the inputs, and the kernel if it is to be learned.

    Parameters
    ----------
    inputs, targets, weights
        The rows, what was seen there, and how often each counts (1 by default).
    settings
        How to look for the posterior.
    kernel
        The kernel, or the one to start from; by default :func:`default_kernel` of the rows that count.
    seed
        Seeds batches and restarts.

    Examples
    --------
    >>> from thalweg.gaussian import BernoulliLogit
    >>> inputs = np.array([[-1.0], [1.0]])
    >>> found = fit_classifier(inputs, np.array([0.0, 1.0]), ClassifierSettings(BernoulliLogit(), learn=False))
    >>> np.sign(found.predict(inputs).mean)
    array([-1.,  1.])
    """
    if kernel is None:
        kernel = default_kernel(inputs if weights is None else inputs[weights > 0])
    with jax.enable_x64(True), enough_threads(len(inputs)):
        # In the precision of the scope: kernels made outside it may hold float32.
        kernel = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), kernel)
        problem = _Problem.padded(inputs, targets, weights)
        if settings.learn:
            kernel, (bound, result) = _learn(kernel, problem, settings, seed)
        else:
            bound, result = _infer(kernel, problem, settings, seed)
        weights, sites = (np.asarray(part)[: len(inputs)] for part in (result.x.weights, result.x.sites))
        factor = _factor(kernel, problem, settings, result.x.sites)
        kernel = jax.tree.map(np.asarray, kernel)
        how = result.steps, result.history, result.status
        return ProcessPosterior(kernel, inputs, weights, sites, factor, bound, *how)


def _length(rows: int) -> int:
    return padded_size(max(rows, _LEAST), _GRAIN)


def _device(array: Any, length: int) -> Array:
    return jax.device_put(padded(array, length))


class _Problem(NamedTuple):
    """Padded data: inputs, targets, weights (0 for padding) and which rows are real."""

    inputs: Float[Array, "n d"]
    targets: Float[Array, " n"]
    weights: Float[Array, " n"]
    real: Float[Array, " n"]

    @classmethod
    def padded(cls, inputs: np.ndarray, targets: np.ndarray, weights: np.ndarray | None) -> "_Problem":
        ones = np.ones(len(targets))
        arrays = (inputs, targets, ones if weights is None else weights, ones)
        return cls(*(_device(array, _length(len(targets))) for array in arrays))


class _Found(NamedTuple):
    """A posterior, padded as the problem is, and its bound."""

    bound: float
    result: Result


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


_resumed = quick_jit(_few)(Implicit.from_sites)


@eqx.filter_jit
def _loss(oracle: ExpectedLikelihood, q: Implicit) -> Array:
    return oracle.value(q) + q.kl_to_prior()


@eqx.filter_jit
def _slope(
    kernel: Kernel, problem: _Problem, likelihood: Likelihood, jitter: Array, weights: Array, sites: Array
) -> Kernel:
    """The derivative of −bound in the kernel's parameters, the weights and sites of the posterior held fixed.

    At the optimal posterior that is the derivative of the best bound itself: the posterior's own part vanishes.
    """

    def loss(kernel: Kernel) -> Array:
        covariance = _covariance(kernel, problem.inputs, problem.real, jitter)
        moved = Implicit.from_sites(covariance, weights, sites)
        return _loss(ExpectedLikelihood(likelihood, problem.targets, weights=problem.weights), moved)

    return eqx.filter_grad(loss)(kernel)


def _infer(
    kernel: Kernel, problem: _Problem, settings: ClassifierSettings, seed: int, start: _Found | None = None
) -> _Found:
    """Find the posterior for a kernel: exact natural-gradient steps, or steps from mini-batches."""
    covariance, q = _prior(kernel, problem.inputs, problem.real, settings.jitter)
    rows = int(np.sum(np.asarray(problem.real)))
    if start is not None:
        q = _resumed(covariance, start.result.x.weights, start.result.x.sites)
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
            "step": Monotone(settings.step),
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
        progress=settings.verbose,
        compiler_options=quick_options() if _few(problem) else None,
        **method,
    )
    if result.status is Status.INTERRUPTED and not result.steps:
        raise KeyboardInterrupt
    last = result.history.last
    recorded = batch_size is None and last["step"] == result.steps
    loss = last["value"] if recorded else float(_loss(oracle, result.x))
    return _Found(-loss, result)


def _learn(kernel: Kernel, problem: _Problem, settings: ClassifierSettings, seed: int) -> tuple[Kernel, _Found]:
    """Maximise the bound over the logarithms of the kernel's parameters too, from several starting points.

    An interruption keeps the best that was found before.
    """
    leaves, structure = jax.tree.flatten(kernel)
    shapes = [leaf.shape for leaf in leaves]
    first = np.concatenate([np.log(leaf).ravel() for leaf in leaves])
    jitter = trees.scalar(settings.jitter)
    best: tuple[Kernel, _Found] | None = None
    latest: _Found | None = None
    rng = np.random.default_rng(seed)

    def with_parameters(logs: np.ndarray) -> Kernel:
        parts = np.split(np.exp(logs), np.cumsum([int(np.prod(shape)) for shape in shapes])[:-1])
        return jax.tree.unflatten(structure, [jnp.asarray(p.reshape(s)) for p, s in zip(parts, shapes, strict=True)])

    def loss(logs: np.ndarray) -> tuple[float, np.ndarray]:
        nonlocal best, latest
        proposed = with_parameters(logs)
        latest = _infer(proposed, problem, settings, seed, latest)
        if best is None or latest.bound > best[1].bound:
            best = proposed, latest
        if latest.result.status is Status.INTERRUPTED:
            raise KeyboardInterrupt
        x = latest.result.x
        slope = _slope(proposed, problem, settings.likelihood, jitter, x.weights, x.sites)
        flat = np.concatenate([np.asarray(leaf).ravel() for leaf in jax.tree.leaves(slope)])
        return -latest.bound, flat * np.exp(logs)

    bounds = scipy.optimize.Bounds(first - _FURTHEST, first + _FURTHEST)
    try:
        for attempt in range(settings.restarts + 1):
            begin = first if attempt == 0 else first + _RESTART_SPREAD * rng.standard_normal(first.shape)
            latest = None
            options = {"maxiter": 50, "ftol": 1e-7}
            begin = np.clip(begin, bounds.lb, bounds.ub)
            scipy.optimize.minimize(loss, begin, jac=True, bounds=bounds, method="L-BFGS-B", options=options)
    except KeyboardInterrupt:
        if best is None:
            raise
        kernel, (bound, result) = best
        return kernel, _Found(bound, replace(result, status=Status.INTERRUPTED))
    assert best is not None
    return best


def _factor(kernel: Kernel, problem: _Problem, settings: ClassifierSettings, sites: Array) -> np.ndarray:
    """The Cholesky factor of B, without padding, which comes last and leaves the rows before it alone."""
    covariance, _ = _prior(kernel, problem.inputs, problem.real, settings.jitter)
    rows = int(np.sum(np.asarray(problem.real)))
    if rows > _FEW:
        return np.asarray(site_factor(covariance, sites)[:rows, :rows])
    # The same on the host, where nothing is compiled for it.
    root = np.sqrt(np.asarray(sites)[:rows])
    scaled = root[:, None] * np.asarray(covariance)[:rows, :rows] * root
    scaled[np.diag_indices(rows)] += 1
    return scipy.linalg.cholesky(scaled, lower=True, overwrite_a=True, check_finite=False)


@jax.jit
def _predict(kernel: Kernel, new: Array, inputs: Array, weights: Array, sites: Array, factor: Array) -> Marginals:
    cross = kernel(inputs, new)
    spread = solve_triangular(factor, jnp.sqrt(sites)[:, None] * cross, lower=True)
    prior = kernel.diagonal(new)
    variance = jnp.maximum(prior - jnp.sum(spread**2, axis=0), jnp.finfo(prior.dtype).eps * prior)
    return Marginals(weights @ cross, variance)

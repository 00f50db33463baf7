"""The Gaussian posterior of a latent process given targets, for one kernel, and its bound (PG-SVI).

Exact steps are those of :func:`~thalweg.gaussian.ascent.maximise_bound`, in NumPy or, if there is an accelerator and
rows are many, on it; steps from mini-batches are those of the paper. Everything is in float64.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np

from thalweg.descent import History, Polynomial, Status, minimize
from thalweg.gaussian.ascent import AscentResult, maximise_bound
from thalweg.gaussian.divergence import GaussianKL, KLToProcess
from thalweg.gaussian.likelihood import Likelihood
from thalweg.gaussian.oracle import ExpectedLikelihood, WeightLikelihood
from thalweg.gaussian.posteriors import Implicit, factorise_sites
from thalweg.kernels import Kernel
from thalweg.linalg import Factor, namespace
from thalweg.linalg.arrays import ratio
from thalweg.processes.covariance import matrix
from thalweg.processes.exact import computes_on_device
from thalweg.trees import as_device_arrays

__all__ = ["ClassifierSettings"]


@dataclass(frozen=True)
class ClassifierSettings:
    """How to find a posterior, and the kernel.

    Examples
    --------
    >>> from thalweg.gaussian import BernoulliLogit
    >>> ClassifierSettings(BernoulliLogit(), learn=False).max_iter
    200
    """

    likelihood: Likelihood
    jitter: float = 1e-6
    """Added to the diagonal of the covariance of the training rows."""
    learn: bool = True
    """Whether to maximise the bound over the kernel's parameters."""
    batch_size: int | None = None
    step: float = 1.0
    """β of the first step from all rows' worth of batches."""
    tol: float = 1e-2
    max_iter: int = 200
    verbose: bool = False


class LatentRows(NamedTuple):
    """Inputs of a latent process, the targets seen there, and how often each counts."""

    inputs: np.ndarray
    targets: np.ndarray
    weights: np.ndarray

    def subset(self, indices: np.ndarray) -> "LatentRows":
        """Return some of the rows."""
        return LatentRows(*(part[indices] for part in self))


class LatentPosterior(NamedTuple):
    """A posterior, its bound, how it was found, and the prior covariance."""

    q: Implicit
    bound: float
    steps: int
    history: History
    status: Status
    covariance: Any

    @property
    def factor(self) -> Factor:
        """That of B = I + √sites·K·√sites."""
        return factorise_sites(self.covariance, self.q.sites)

    @property
    def precision(self) -> np.ndarray:
        """(K + diag(1/sites))⁻¹, that of targets with Gaussian noise of the sites' size."""
        root = np.sqrt(np.asarray(self.q.sites))
        return root[:, None] * np.asarray(self.factor.inverse()) * root


def infer(
    kernel: Kernel, rows: LatentRows, settings: ClassifierSettings, seed: int, start: LatentPosterior | None = None
) -> LatentPosterior:
    """Return the posterior for a kernel, by steps that begin at the prior or at the posterior for a similar kernel."""
    settings.likelihood.check(rows.targets)
    exact, points = settings.batch_size is None, rows.inputs
    if not exact or computes_on_device(len(points)):
        kernel, points = as_device_arrays((kernel, points))
    covariance, xp = matrix(kernel, points), namespace(points)
    covariance = covariance + settings.jitter * xp.eye(len(covariance), dtype=covariance.dtype)
    q = Implicit.prior(covariance) if start is None else _with_same_sites(covariance, start.q)
    if exact:
        oracle = WeightLikelihood(settings.likelihood, xp.asarray(rows.targets), xp.asarray(rows.weights), 0.0, None)
        result = maximise_bound(oracle, KLToProcess(covariance), q, tol=settings.tol, max_iter=settings.max_iter)
    else:
        result = _steps_from_batches(rows, settings, seed, covariance, q)
    return LatentPosterior(result.x, -result.loss, result.steps, result.history, result.status, covariance)


def _with_same_sites(covariance: Any, q: Implicit) -> Implicit:
    """Return the posterior of normal targets m + weights/sites, whose noise has the variance 1/sites."""
    root = namespace(covariance).sqrt(q.sites)
    factor = factorise_sites(covariance, q.sites)
    weights = root * factor.solve(root * q.mean + ratio(q.weights, root))
    return Implicit.from_sites(covariance, weights, q.sites, factor)


def _steps_from_batches(
    rows: LatentRows, settings: ClassifierSettings, seed: int, covariance: Any, q: Implicit
) -> AscentResult:
    count = len(rows.targets)
    batch_size = min(settings.batch_size or count, count)
    share = batch_size / count
    oracle = ExpectedLikelihood(settings.likelihood, rows.targets, weights=rows.weights, batch_size=batch_size)
    term = KLToProcess(covariance)
    result = minimize(
        oracle,
        q,
        term=term,
        divergence=GaussianKL(),
        step=Polynomial(settings.step * share, power=0.7, scale=2 / share),
        steps=max(int(settings.max_iter / share), 1),
        key=jax.random.key(seed),
    )
    if result.status is Status.INTERRUPTED and not result.steps:
        raise KeyboardInterrupt
    loss = float(oracle.value(result.x) + term.value(result.x))
    return AscentResult(result.x, loss, result.steps, result.status, result.history)

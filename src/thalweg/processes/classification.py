"""Classification by a latent Gaussian process: rows and settings in, a posterior that predicts out."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array

from thalweg.codec import storable
from thalweg.descent import History, Status
from thalweg.gaussian.likelihood import Likelihood, mean_targets
from thalweg.gaussian.likelihoods import BernoulliLogit
from thalweg.gaussian.linear.observations import check_numbers
from thalweg.gaussian.posteriors import Marginals
from thalweg.kernels import Gaussian, Kernel, kernel_or_class
from thalweg.processes import covariance
from thalweg.processes.exact import computes_on_device
from thalweg.processes.inference import ClassifierSettings, Problem, infer, on_device
from thalweg.processes.learning import Learned, learn, starting_kernels
from thalweg.processes.sites import logistic
from thalweg.threads import enough_threads

_STRIP = 1024
"""Rows of a prediction that exist at a time."""


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

    def check_stored(self) -> None:
        """Refuse arrays that do not fit one another, or that no fit leaves."""
        count = len(self.inputs)
        check_numbers("inputs", self.inputs, self.inputs.shape[:2])
        check_numbers("weights", self.weights, (count,))
        check_numbers("precisions of sites", self.sites, (count,))
        check_numbers("factors", self.factor, (count, count))
        if np.any(self.sites < 0):
            raise ValueError("negative precisions of sites")

    @property
    def residual(self) -> float:
        """The length of the natural gradient at the last step; NaN if there was none."""
        return self.history.last["residual"]

    def predict(self, new: np.ndarray) -> Marginals:
        """The latent means and variances at new inputs, a strip of rows at a time."""
        strips = [new[first : first + _STRIP] for first in range(0, len(new), _STRIP)]
        with jax.enable_x64(True), enough_threads(len(self.inputs)):
            if not computes_on_device(len(self.inputs)):
                parts: list = [self._on_host(strip) for strip in strips]
            else:
                fixed = [jnp.asarray(array) for array in (self.inputs, self.weights, self.sites, self.factor)]
                found = [_predict(self.kernel, on_device(strip, len(strip)), *fixed) for strip in strips]
                parts = [[np.asarray(part)[: len(strip)] for part in f] for f, strip in zip(found, strips, strict=True)]
        return Marginals(*(np.concatenate(column) for column in zip(*parts, strict=True)))  # type: ignore[arg-type]

    def _on_host(self, new: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        cross, prior = covariance.matrix(self.kernel, self.inputs, new), covariance.diagonal(self.kernel, new)
        scaled = np.sqrt(self.sites)[:, None] * cross
        spread = scipy.linalg.solve_triangular(self.factor, scaled, lower=True, overwrite_b=True, check_finite=False)
        return self.weights @ cross, np.maximum(prior - np.sum(spread**2, axis=0), np.finfo(float).eps * prior)


def probabilities(likelihood: Likelihood, mean: np.ndarray, variance: np.ndarray) -> np.ndarray:
    """Those of a label 1 where the latent number is N(mean, variance).

    Examples
    --------
    >>> from thalweg.gaussian import BernoulliLogit
    >>> probabilities(BernoulliLogit(), np.zeros(1), np.ones(1)).round(4)
    array([0.5])
    """
    if type(likelihood) is BernoulliLogit:
        return logistic(mean, variance)
    with jax.enable_x64(True):
        return mean_targets(likelihood, mean, variance)


def fit_classifier(
    inputs: np.ndarray,
    targets: np.ndarray,
    settings: ClassifierSettings,
    kernel: Kernel | type[Kernel] | str | None = None,
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
        The kernel, or the one to start from; or its class or name, :class:`~thalweg.kernels.Gaussian` by default. Of a
        class the lengthscale is at first the median distance between rows, as they are or with standardised features,
        whichever has the higher bound, and the variance is 10; lengthscales of features then keep their proportions.
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
    counted = inputs if weights is None else inputs[weights > 0]
    given = kernel_or_class(Gaussian if kernel is None else kernel)
    if isinstance(given, Kernel):
        given.check_dimension("X", inputs.shape[1])
    with jax.enable_x64(True), enough_threads(len(inputs)):
        kernels = [given] if isinstance(given, Kernel) else starting_kernels(counted, given)
        # In the precision of the scope: kernels made outside it may hold float32.
        kernels = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), kernels)
        if settings.learn or len(kernels) > 1:
            learned = learn(kernels, (inputs, targets, weights), settings, seed, tied=not isinstance(given, Kernel))
        else:
            everything = Problem.of(inputs, targets, weights)
            found = infer(kernels[0], everything, settings, seed, progress=settings.verbose)
            learned = Learned(kernels[0], found, np.arange(len(inputs)))
        used, found, rows = learned
        if not isinstance(given, Kernel) and len(np.unique(used.lengthscale)) == 1:
            used = given(np.ravel(used.lengthscale)[0], used.variance)  # a number, if features have one
        used = jax.tree.map(np.array, used)
        how = found.steps, found.history, found.status
        return ProcessPosterior(used, inputs[rows], found.weights, found.sites, found.factor, found.bound, *how)


@jax.jit
def _predict(kernel: Kernel, new: Array, inputs: Array, weights: Array, sites: Array, factor: Array) -> Marginals:
    cross = kernel(inputs, new)
    spread = solve_triangular(factor, jnp.sqrt(sites)[:, None] * cross, lower=True)
    prior = kernel.diagonal(new)
    variance = jnp.maximum(prior - jnp.sum(spread**2, axis=0), jnp.finfo(prior.dtype).eps * prior)
    return Marginals(weights @ cross, variance)

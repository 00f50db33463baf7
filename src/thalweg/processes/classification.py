"""Classification by a latent Gaussian process: rows and settings in, a posterior that predicts out."""

from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from thalweg.codec import storable
from thalweg.descent import History, Status
from thalweg.gaussian.likelihood import Likelihood, mean_targets
from thalweg.gaussian.linear.observations import check_numbers
from thalweg.gaussian.posteriors import Marginals
from thalweg.kernels import Gaussian, Kernel, kernel_or_class
from thalweg.linalg import Factor, namespace
from thalweg.processes.covariance import TILE_ROWS, diagonal, matrix
from thalweg.processes.exact import computes_on_device
from thalweg.processes.inference import ClassifierSettings, LatentRows, infer
from thalweg.processes.learning import learn, starting_kernels
from thalweg.rows import find_duplicates
from thalweg.rows.split import CHANCE
from thalweg.threads import enough_threads
from thalweg.trees import as_device_arrays, as_host_arrays

__all__ = ["ProcessPosterior", "fit_classifier", "probabilities"]


@storable
@dataclass(frozen=True)
class ProcessPosterior:
    """The posterior of a process, its kernel and its bound; arrays of NumPy.

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
    """The Cholesky factor of B = I + √sites·K·√sites, which variances of predictions need."""
    bound: float
    steps: int
    history: History
    status: Status

    def check_stored(self) -> None:
        """Refuse arrays that do not fit one another, or that no fit leaves."""
        rows = (len(self.inputs),)
        check_numbers(self, inputs=self.inputs.shape[:2], weights=rows, sites=rows, factor=2 * rows)
        if np.any(self.sites < 0):
            raise ValueError("negative precisions of sites")

    @property
    def residual(self) -> float:
        """The length of the natural gradient at the last step; NaN if there was none."""
        return self.history.last["residual"]

    def predict(self, new: np.ndarray) -> Marginals:
        """Return the latent means and variances at new inputs, made a tile of rows at a time."""
        with jax.enable_x64(True), enough_threads(len(self.inputs)):
            given: Any = self.kernel, new, self.inputs, self.weights, self.sites, self.factor
            kernel, points, *arrays = as_device_arrays(given) if computes_on_device(len(self.inputs)) else given
            tiles = [points[begin : begin + TILE_ROWS] for begin in range(0, len(new), TILE_ROWS)]
            parts = [_marginals(kernel, tile, *arrays) for tile in tiles]
        mean, variance = (np.concatenate(column) for column in zip(*parts, strict=True))
        return Marginals(mean, variance)  # type: ignore[arg-type]


def _marginals(kernel: Kernel, new: Any, inputs: Any, weights: Any, sites: Any, lower: Any) -> tuple[Any, Any]:
    xp = namespace(inputs)
    cross, prior = matrix(kernel, inputs, new), diagonal(kernel, new)
    spread = Factor(lower, 0.0).half_solve(xp.sqrt(sites)[:, None] * cross)
    return weights @ cross, xp.maximum(prior - xp.sum(spread**2, axis=0), xp.finfo(prior.dtype).eps * prior)


def probabilities(likelihood: Likelihood, mean: np.ndarray, variance: np.ndarray) -> np.ndarray:
    """Return those of a label 1 where the latent number is N(mean, variance).

    Examples
    --------
    >>> from thalweg.gaussian import BernoulliLogit
    >>> probabilities(BernoulliLogit(), np.zeros(1), np.ones(1)).round(4)
    array([0.5])
    """
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
    """Return the posterior given targets of the likelihood at the inputs, and the kernel if it is to be learned.

    Rows with equal inputs and targets are merged. Copies of a row are all as it predicts, and would make a kernel
    likely that follows single rows: then the kernel is learned from each row counted once.

    Parameters
    ----------
    inputs, targets, weights
        The rows, what was seen there, and how often each counts (1 by default).
    settings
        How to find the posterior.
    kernel
        The kernel, or the one to start from; or its class or name, :class:`~thalweg.kernels.Gaussian` by default. Of a
        class the lengthscale is at first the median distance between rows, as they are or with standardised features,
        whichever has the higher bound, and the variance is 10; lengthscales of features then keep their proportions,
        unless one for each gains more than it would by chance.
    seed
        Seeds batches, and the rows that starting points are compared on.

    Examples
    --------
    >>> from thalweg.gaussian import BernoulliLogit
    >>> inputs = np.array([[-1.0], [1.0]])
    >>> fitted = fit_classifier(inputs, np.array([0.0, 1.0]), ClassifierSettings(BernoulliLogit(), learn=False))
    >>> np.sign(fitted.predict(inputs).mean)
    array([-1.,  1.])
    """
    given: Any = kernel_or_class(Gaussian if kernel is None else kernel)
    if isinstance(given, Kernel):
        given.check_dimension("X", inputs.shape[1])
    rows = _merged(LatentRows(inputs, targets, np.ones(len(targets)) if weights is None else weights))
    with jax.enable_x64(True), enough_threads(len(rows.inputs)):
        tied = not isinstance(given, Kernel)
        kernels = as_host_arrays(starting_kernels(rows.inputs, given) if tied else [given])
        once = rows._replace(weights=np.minimum(rows.weights, 1.0))
        counted = once if settings.learn and _are_copies(rows) else rows
        fitted = learn(kernels, counted, settings, seed, tied)
        learned, posterior = fitted.kernel, fitted.posterior
        if posterior.status is Status.INTERRUPTED:
            rows = fitted.rows
        elif settings.learn:
            posterior = infer(learned, rows, settings, seed, posterior if fitted.rows is rows else None)
        if tied and len(np.unique(learned.lengthscale)) == 1:
            learned = given(np.ravel(learned.lengthscale)[0], learned.variance)  # a number, if features have one
        weights, sites, lower = map(np.array, (posterior.q.weights, posterior.q.sites, posterior.factor.lower))
        how = posterior.bound, posterior.steps, posterior.history, posterior.status
        return ProcessPosterior(as_host_arrays(learned), rows.inputs, weights, sites, lower, *how)


def _merged(rows: LatentRows) -> LatentRows:
    """Return the rows that count, with those of equal inputs and targets made one, of their weight."""
    rows = rows.subset(np.flatnonzero(rows.weights > 0))
    duplicates = find_duplicates(np.column_stack([rows.inputs, rows.targets]))
    merged = rows.subset(duplicates.first)
    return merged._replace(weights=np.bincount(duplicates.group, rows.weights))


def _are_copies(rows: LatentRows) -> bool:
    """Whether merged rows count more than once and hardly ever differ in their targets, as repeats would at times."""
    group = find_duplicates(rows.inputs).group
    order = np.lexsort([-rows.weights, group])
    first = np.unique(group[order], return_index=True)[1]
    totals, most = np.bincount(group, rows.weights), rows.weights[order][first]
    further = np.maximum(totals - 1, 0)
    return bool(np.sum((totals - most)[further > 0]) < CHANCE * np.sum(further))

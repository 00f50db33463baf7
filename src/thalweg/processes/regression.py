"""Gaussian process regression: the learning of a kernel and of the noise, and predictions that carry their error.

Kernels are in the units of the data. What makes a search independent of units is where it starts, at lengthscales of
√d standard deviations of each feature and at a share of the variance of the targets, and that it moves logarithms.
Everything here runs in float64, inside a scope.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg

from thalweg import trees
from thalweg.codec import storable
from thalweg.descent import Status
from thalweg.kernels import Gaussian, Kernel, Matern32, Matern52
from thalweg.processes import exact
from thalweg.processes.exact import Observations, Parameters, Solution
from thalweg.processes.learning import Search, search
from thalweg.threads import enough_threads

FAMILIES: tuple[type[Kernel], ...] = (Matern32, Matern52, Gaussian)
"""The kernels that are compared where none is given."""

MEANS = ("zero", "constant", "linear")

_LEVELS = (400, 2_000)
"""Rows on which parameters are looked for before all rows are taken."""

_LAST_STEPS = 10
"""Steps of the search on all rows, where they are more than these levels."""

_STARTING_NOISE = 0.1
"""The share of the targets' variance that is noise, where a search starts."""

_LEAST_NOISE = 1e-8
"""The least share of it that a search may find: below it, rounding decides."""

_RESTART_SPREAD = 1.0
"""Standard deviation of the logarithm of the parameters at a restart."""

_STRIP = 1024
"""Rows of a prediction that exist at a time."""


@dataclass(frozen=True)
class RegressorSettings:
    """How to look for the parameters.

    Examples
    --------
    >>> RegressorSettings(learn=False).restarts
    1
    """

    learn: bool = True
    """Whether to maximise the marginal likelihood over the kernel's parameters and the noise."""
    mean: str = "constant"
    """One of :data:`MEANS`: what the function returns to far from the rows. Coefficients have a flat prior."""
    restarts: int = 1
    """How many more starting points to search from, on the first share of the rows."""
    max_iter: int = 100
    """How many steps a search takes at most."""


@storable
@dataclass(frozen=True)
class RegressionPosterior:
    """The posterior of a function, its kernel and its noise; arrays of NumPy, without padding.

    Examples
    --------
    >>> inputs = np.linspace(0, 6, 30)[:, None]
    >>> found = fit_regressor(inputs, np.sin(inputs), RegressorSettings())
    >>> mean, variance = found.predict(np.array([[3.0], [50.0]]))
    >>> bool(abs(mean[0, 0] - np.sin(3.0)) < 0.01), bool(variance[1] > 100 * variance[0])
    (True, True)
    """

    kernel: Kernel
    noise: float
    inputs: np.ndarray
    arrays: tuple[np.ndarray, ...]
    """The solution on the rows: :class:`~thalweg.processes.exact.Solution` without its loss."""
    mean: str
    units: tuple[np.ndarray, np.ndarray]
    """Centre and scale of the features in the mean."""
    log_marginal_likelihood: float
    steps: int
    status: Status

    def predict(self, new: np.ndarray, full: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """Means of the function at new inputs, and variances or, if ``full``, the covariance, without the noise."""
        strip = len(new) if full else _STRIP
        with jax.enable_x64(True), enough_threads(len(self.inputs)):
            parameters = Parameters(self.kernel, jnp.asarray(self.noise))
            inputs, arrays = jnp.asarray(self.inputs), [jnp.asarray(array) for array in self.arrays]
            solution = Solution(*arrays, loss=jnp.asarray(0.0))
            parts = []
            for first in range(0, len(new), strip):
                rows = new[first : first + strip]
                basis = basis_of(self.mean, rows, self.units)
                rows, basis = (exact.to_length(array, len(rows)) for array in (rows, basis))
                mean, spread = exact.predictions(parameters, inputs, solution, rows, basis, full)
                kept = len(new[first : first + strip])
                parts.append((np.asarray(mean)[:kept], np.asarray(spread)[:kept, :kept] if full else np.asarray(spread)[:kept]))
        means, spreads = zip(*parts, strict=True)
        return np.concatenate(means), spreads[0] if full else np.concatenate(spreads)


def fit_regressor(
    inputs: np.ndarray,
    targets: np.ndarray,
    settings: RegressorSettings,
    kernel: Kernel | type[Kernel] | None = None,
    noise: float | None = None,
    known: np.ndarray | None = None,
    weights: np.ndarray | None = None,
    seed: int = 0,
) -> RegressionPosterior:
    """The posterior of a function given noisy values of it, and its kernel and noise if they are to be learned.

    Parameters
    ----------
    inputs, targets
        The rows, and one column or more of what was seen there; all columns have the same kernel.
    settings
        How to look for the parameters.
    kernel
        The kernel or the one to start from, or a class of which one is made with a lengthscale for each feature. By
        default the class in :data:`FAMILIES` that makes the data most probable.
    noise
        The variance of the noise; learned by default.
    known
        Variances of noise that is known, a row each, beside ``noise``.
    weights
        How often each row counts (1 by default).
    seed
        Seeds the order of the rows and restarts.

    Examples
    --------
    >>> inputs = np.linspace(0, 6, 30)[:, None]
    >>> found = fit_regressor(inputs, np.sin(inputs), RegressorSettings(), kernel=Gaussian)
    >>> bool(1 < found.kernel.lengthscale[0] < 5)
    True
    """
    if weights is not None:
        counted = weights > 0
        inputs, targets, weights = inputs[counted], targets[counted], weights[counted]
        known = None if known is None else known[counted]
    rows = len(inputs)
    units = _units(inputs)
    arrays = (
        inputs,
        targets,
        basis_of(settings.mean, inputs, units),
        np.zeros(rows) if known is None else known,
        np.ones(rows) if weights is None else 1 / weights,
    )
    with jax.enable_x64(True), enough_threads(rows):
        starts = _starts(inputs, targets, kernel, noise)
        if settings.learn:
            found = _learn(starts, arrays, settings, noise is None, seed)
        else:
            found = Search(starts[0], np.nan, 0, Status.CONVERGED)
        solution = exact.posterior(found.parameters, Observations.padded(*arrays))
        loss = float(solution.loss)
        if not np.isfinite(loss):
            raise ValueError(
                "the covariance of the rows is not positive definite in float64: rows that are equal, or nearly so, "
                f"with a noise variance of {float(found.parameters.noise):.3g} leave it singular; give a larger noise"
            )
        kernel = jax.tree.map(np.asarray, found.parameters.kernel)
        return RegressionPosterior(
            kernel=kernel,
            noise=float(found.parameters.noise),
            inputs=inputs,
            arrays=tuple(exact.without_padding(solution, rows)),
            mean=settings.mean,
            units=units,
            log_marginal_likelihood=-loss,
            steps=found.steps,
            status=found.status,
        )


def basis_of(mean: str, inputs: np.ndarray, units: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    """The columns of the mean at the inputs."""
    ones = np.ones((len(inputs), 1))
    match mean:
        case "zero":
            return ones[:, :0]
        case "constant":
            return ones
        case _:
            return np.concatenate([ones, (inputs - units[0]) / units[1]], axis=1)


def _units(inputs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The centre and the standard deviation of each feature; 1 for one that is constant up to rounding."""
    centre = inputs[0] + np.mean(inputs - inputs[0], axis=0)
    scale = np.std(inputs - centre, axis=0)
    return centre, np.where(scale > 1e-12 * np.maximum(np.abs(centre), 1e-290), scale, 1.0)


def _starts(
    inputs: np.ndarray, targets: np.ndarray, kernel: Kernel | type[Kernel] | None, noise: float | None
) -> list[Parameters]:
    """Where to start: kernels in the units of the data."""
    spread = float(np.var(targets - targets[:1]))
    variance = spread if spread > (1e-14 * np.max(np.abs(targets), initial=0.0)) ** 2 and spread > 0 else 1.0
    families = FAMILIES if kernel is None else (kernel,) if isinstance(kernel, type) else ()
    lengthscales = _units(inputs)[1] * np.sqrt(inputs.shape[1])
    kernels = [family(lengthscales, variance) for family in families] or [kernel]
    begun = trees.scalar(_STARTING_NOISE * variance if noise is None else noise)
    # In the precision of the scope: kernels made outside it may hold float32.
    return [Parameters(jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float64), one), begun) for one in kernels]


def _learn(
    starts: list[Parameters], arrays: tuple[np.ndarray, ...], settings: RegressorSettings, free: bool, seed: int
) -> Search:
    """Search from all starts on few rows, and from the best of what they found on more and on all."""
    rng = np.random.default_rng(seed)
    rows = len(arrays[0])
    order = rng.permutation(rows)
    sizes = [size for size in _LEVELS if 2 * size < rows] + [rows]
    scale = float(np.mean(np.asarray(starts[0].noise))) / _STARTING_NOISE
    steps = 0
    best: Search | None = None
    for size in sizes:
        data = Observations.padded(*(array[np.sort(order[:size])] for array in arrays))
        if best is None:
            begun = [(start, start) for start in starts]
            begun += [(start, _moved(start, rng)) for _ in range(settings.restarts) for start in starts]
        else:
            begun = [(best.origin, best.parameters)]
        limit = settings.max_iter if size <= _LEVELS[-1] * 2 else min(settings.max_iter, _LAST_STEPS)
        found = []
        for origin, start in begun:
            found.append(search(lambda p: exact.loss_and_slope(p, data), start, origin, limit, free, _LEAST_NOISE * scale))
            steps += found[-1].steps
            if found[-1].status is Status.INTERRUPTED:
                break
        best = min(found, key=lambda one: one.loss)
        if found[-1].status is Status.INTERRUPTED:
            best = best._replace(status=Status.INTERRUPTED)
            break
    assert best is not None
    return best._replace(steps=steps)


def _moved(start: Parameters, rng: np.random.Generator) -> Parameters:
    return jax.tree.map(lambda leaf: leaf * np.exp(_RESTART_SPREAD * rng.standard_normal(np.shape(leaf))), start)

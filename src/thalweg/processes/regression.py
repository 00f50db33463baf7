"""Gaussian process regression: which way to go, and the learning of the kernel and of the noise.

Kernels are in the units of the data. What makes a search independent of units is where it starts, at lengthscales of
√d standard deviations of each feature and at a share of the variance of the targets, and that it moves logarithms.
Everything here runs in float64, inside a scope.
"""

from dataclasses import dataclass
from typing import ClassVar

import jax
import numpy as np

from thalweg.codec import storable
from thalweg.descent import Status
from thalweg.kernels import Gaussian, Kernel, Matern12, Matern32, Matern52, Stationary
from thalweg.processes import grid, iterative
from thalweg.processes.choosing import LEAST_NOISE, STARTING_NOISE, Choice, Levels, where_computed
from thalweg.processes.evidence import Landscape, Optimum, maximise, plausible, settled, varying
from thalweg.processes.exact import Parameters
from thalweg.processes.given import Given
from thalweg.processes.grid import GridPosterior
from thalweg.processes.host import HostRows, of_family
from thalweg.processes.iterative import PathwisePosterior
from thalweg.processes.learning import line_of_progress
from thalweg.processes.means import KINDS, Mean
from thalweg.processes.posterior import ExactPosterior, MixedPosterior
from thalweg.processes.scan import Start, starts_by_periodogram
from thalweg.threads import enough_threads

_FAMILIES: tuple[type[Kernel], ...] = (Matern32, Matern52, Gaussian, Matern12)
"""The kernels that are compared where none is given."""

_EXACT_ON_CPU = 12_000
"""Rows up to which factorising on a CPU takes less time than solving."""

_FEW = 1_000
"""Rows up to which a plane or a space is not laid out in a grid: it has many nodes for each row, and solves take as
many steps as there are rows."""

_MATRICES = 4
"""Matrices of n² numbers that exist at a time in a step of the exact way."""

_UNCERTAIN, _DRAWS = 480, (16, 64)
"""Rows up to which the uncertainty of parameters is counted, and how many are drawn: more where rows are few."""

_TOGETHER, _APART = 300, 4
"""Rows from which on each step of the chain is a draw, and the most steps from one to the next: of few rows some make
all of their scatter noise and some none, and the way between them is long."""

_MIDDLE, _FAR_OUT = 1.35, 10.0
"""Standard deviations that the middle half of normal values spans, and how many times as many all of them span where
some are far out."""


@dataclass(frozen=True)
class RegressorSettings:
    """How to find the posterior and its parameters.

    Examples
    --------
    >>> RegressorSettings(learn=False).restarts
    1
    """

    methods: ClassVar[tuple[str, ...]] = ("auto", "exact", "iterative", "grid")
    means: ClassVar[tuple[str, ...]] = KINDS

    method: str = "auto"
    """One of ``methods``."""
    learn: bool = True
    """Whether to maximise the marginal likelihood over the kernel's parameters and the noise."""
    mean: str = "constant"
    """One of ``means``: what the function returns to far from the rows."""
    restarts: int = 1
    """How many more starting points to search the best kernel from, on the first share of the rows."""
    max_iter: int = 100
    """How many steps a search takes at most."""
    verbose: bool = False
    """Whether to show how searches go on."""


@storable
@dataclass(frozen=True)
class Regression:
    """A posterior, and how it was found.

    Examples
    --------
    >>> fit_regressor(np.zeros((1, 1)), np.ones((1, 1)), RegressorSettings()).solved
    True
    """

    posterior: ExactPosterior | MixedPosterior | PathwisePosterior | GridPosterior
    method: str
    log_marginal_likelihood: float
    """Of all rows."""
    error: float
    """Its standard error; 0 where it is exact."""
    steps: int
    """How often the likelihood was evaluated."""
    status: Status

    @property
    def solved(self) -> bool:
        """Whether all solves came to their tolerance."""
        return self.posterior.residual <= iterative.TOLERANCE


def fit_regressor(
    inputs: np.ndarray,
    targets: np.ndarray,
    settings: RegressorSettings,
    kernel: Kernel | type[Kernel] | None = None,
    noise: float | None = None,
    known: np.ndarray | None = None,
    weights: np.ndarray | None = None,
    seed: int = 0,
) -> Regression:
    """The posterior of a function given noisy values of it, and its kernel and noise if they are to be learned.

    Parameters
    ----------
    inputs, targets
        The rows, and one column or more of what was seen there; all columns have the same kernel.
    settings
        How to find them.
    kernel
        The kernel or the one to start from, or a class of which one is made with a lengthscale for each feature. By
        default the class among Gaussian, Matern12, Matern32 and Matern52 that makes the data most probable, or the sum
        of two.
    noise
        The variance of the noise; learned by default.
    known
        Variances of noise that is known, one per row, beside ``noise``.
    weights
        What the noise of each row is divided by (1 by default); rows of weight 0 do not count.
    seed
        Seeds the order of the rows, restarts and samples.

    Examples
    --------
    >>> inputs = np.linspace(0, 6, 30)[:, None]
    >>> found = fit_regressor(inputs, np.sin(inputs), RegressorSettings())
    >>> mean, variance = found.posterior.predict(np.array([[3.0], [50.0]]))
    >>> bool(abs(mean[0, 0] - np.sin(3.0)) < 0.01), bool(variance[1] > 100 * variance[0])
    (True, True)
    """
    if isinstance(kernel, Kernel):
        kernel.check_dimension("X", inputs.shape[1])
    ones = np.ones(len(inputs))
    given = Given.of(inputs, targets, 0 * ones if known is None else known, ones if weights is None else weights)
    mean = Mean.of(settings.mean, given.inputs, given.weights)
    separate = isinstance(kernel, Kernel) and not kernel.stationary  # each row has its own white noise
    rows = given.merged(mean, separate)
    method = _way(len(rows.inputs)) if settings.method in ("auto", "grid") else settings.method
    with jax.enable_x64(True), enough_threads(len(rows.inputs)):
        starts = _starts(rows, mean, kernel, noise)
        on_grid = _on_grid(starts, rows, mean, settings, noise is None, seed)
        if on_grid is not None:
            return on_grid
        flat = noise is None and not isinstance(kernel, Kernel) and not (np.any(rows.targets) or np.any(rows.scatter))
        found = Optimum(_least(starts[0]) if flat else starts[0], np.nan, 0, Status.CONVERGED, starts[0])
        if settings.learn and not flat:
            levels = Levels(given, mean, separate, rows, method == "exact", seed)
            with line_of_progress(settings.verbose) as note:
                options = (settings.restarts, settings.max_iter, kernel is None, varying(rows.inputs), seed)
                found = Choice(starts, noise is None, *options, note).made(levels)
        if method == "exact":
            solution = where_computed(rows).solution(found.parameters)
            loss, error = float(solution.loss), 0.0
            if not np.isfinite(loss):
                raise ValueError(
                    "the covariance of the rows is singular in float64: rows that are equal, or nearly so, need "
                    f"a noise above {float(found.parameters.noise):.3g}; raise noise"
                )
            posterior: ExactPosterior | MixedPosterior | PathwisePosterior
            posterior = ExactPosterior.of(found.parameters, mean, rows.inputs, solution)
            if settings.learn and not flat and found.status is not Status.INTERRUPTED:
                try:
                    if len(rows.inputs) > _UNCERTAIN:
                        posterior = posterior.calibrated()
                    else:
                        found, posterior = _with_doubt(found, rows, mean, settings.max_iter, noise is None, seed)
                        loss = float(rows.solution(found.parameters).loss)
                except KeyboardInterrupt:
                    found = found._replace(status=Status.INTERRUPTED)
        else:
            posterior = iterative.posterior(found.parameters, mean, rows, seed)
            loss, error = posterior.loss, posterior.loss_error
            found = found._replace(status=Status.INTERRUPTED) if posterior.interrupted else found
    return Regression(posterior, method, -loss, error, found.steps, found.status)


def _with_doubt(
    found: Optimum, rows: HostRows, mean: Mean, max_iter: int, free: bool, seed: int
) -> tuple[Optimum, MixedPosterior]:
    """The posterior with what rows leave uncertain of the parameters, and the ones that make the rows most probable."""
    landscape = Landscape(rows, found.origin, free)
    count = int(np.clip(_DRAWS[0] * _UNCERTAIN // len(rows.inputs), *_DRAWS))
    every = int(np.clip(_TOGETHER // len(rows.inputs), 1, _APART))
    draw = lambda: plausible(landscape, found.parameters, count, np.random.default_rng([seed, 1]), every)
    drawn = draw()
    least_noise = LEAST_NOISE / STARTING_NOISE * float(found.origin.noise)
    least, better = min(drawn, key=lambda one: one[0])
    if least < landscape.integrated(landscape.logs(found.parameters)) - 1:
        # The chain came upon what the search had missed.
        found = maximise(rows, better, found.origin, max_iter, free, least_noise)._replace(steps=found.steps)
        drawn = draw()
    # Parameters were drawn with their prior; those that are shown make the rows most probable.
    best = settled(rows, found, max_iter, free, least_noise)
    found = best._replace(steps=found.steps + best.steps)
    return found, MixedPosterior.of(found.parameters, mean, rows, [one for _, one in drawn]).calibrated()


def _way(rows: int) -> str:
    """The exact way while the matrices fit into memory and, on a CPU, while it is the faster one."""
    device = jax.devices()[0]
    limit = (device.memory_stats() or {}).get("bytes_limit") if device.platform != "cpu" else None
    if limit is None:
        return "exact" if rows <= _EXACT_ON_CPU else "iterative"
    return "exact" if _MATRICES * 8 * rows**2 < 0.9 * limit else "iterative"


def _on_grid(
    starts: list[Parameters], rows: HostRows, mean: Mean, settings: RegressorSettings, free: bool, seed: int
) -> Regression | None:
    """The posterior on a grid; None where that was not asked for, or is not the cheapest way by far."""
    if settings.method == "auto":
        many = len(rows.inputs) > _EXACT_ON_CPU and rows.inputs.shape[1] <= grid.AUTOMATIC
        if not many or not isinstance(starts[0].kernel, Stationary) or np.any(starts[0].noise + rows.known <= 0):
            return None
    elif settings.method != "grid":
        return None
    grid.check(starts, rows)
    if rows.inputs.shape[1] > grid.AUTOMATIC and len(rows.inputs) <= _FEW:
        return None
    begun = starts_by_periodogram(starts, rows, free) if settings.learn else [Start(starts[0], np.nan)]
    if settings.method == "auto" and not grid.suits(begun, rows.inputs):
        return None
    least_noise = LEAST_NOISE / STARTING_NOISE * float(starts[0].noise)
    found, problem = grid.learn(begun, rows, settings.max_iter if settings.learn else 0, free, least_noise, seed)
    posterior = grid.posterior(found.parameters, mean, problem, seed)
    loss, error = problem.loss_and_error(found.parameters)
    return Regression(posterior, "grid", -loss, error, found.steps, found.status)


def _starts(rows: HostRows, mean: Mean, kernel: Kernel | type[Kernel] | None, noise: float | None) -> list[Parameters]:
    """Where to start: kernels in the units of the data."""
    scatter, variance = _variances(rows)
    families = (kernel,) if isinstance(kernel, type) else _FAMILIES
    # A value far out must not say what is far for the others.
    middle = (np.quantile(rows.inputs, 0.75, axis=0) - np.quantile(rows.inputs, 0.25, axis=0)) / _MIDDLE
    scale = np.where((middle > 0) & (mean.scale > _FAR_OUT * middle), middle, mean.scale)
    lengthscales = scale * np.sqrt(max(1, np.sum(varying(rows.inputs))))
    kernels = [kernel] if isinstance(kernel, Kernel) else [family(lengthscales, variance) for family in families]
    begun = np.asarray(STARTING_NOISE * scatter if noise is None else noise)
    # In the precision of the scope, since kernels made outside it may hold float32, and on the host.
    return [Parameters(jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), one), begun) for one in kernels]


def _least(start: Parameters) -> Parameters:
    """What a search would end with where there is nothing to account for: next to no variance, and no noise."""
    least = np.asarray(LEAST_NOISE / STARTING_NOISE * float(start.noise))
    lengthscale, _, *rest = jax.tree.leaves(start.kernel)
    return Parameters(of_family(start.kernel, lengthscale, least, *rest), least)


def _variances(rows: HostRows) -> tuple[float, float]:
    """Mean squares of what noise and kernel have to account for: targets less the best mean, which may be a constant
    where the process has none, and less one that it has.

    Of targets that follow a plane up to rounding they are those about a constant, of those that follow that the ones
    between values at one place, and 1 if there are none.
    """
    square = lambda left: float(np.mean(np.average(left**2, axis=0, weights=rows.weights)))
    away = rows.targets - rows.targets[:1]  # near which nothing is lost to rounding
    away = away - np.average(away, axis=0, weights=rows.weights)
    root = np.sqrt(rows.weights)[:, None]
    left = away - rows.basis @ np.linalg.lstsq(root * rows.basis, root * away, rcond=None)[0]
    least = (1e-12 * float(np.max(np.abs(rows.targets)))) ** 2
    within = float(np.sum(rows.scatter)) / (np.sum(rows.weights) * rows.targets.shape[1])
    scatter = next((found for found in (square(left), square(away), within) if found > least), 1.0)
    return scatter, scatter if rows.basis.shape[1] else square(rows.targets) or 1.0

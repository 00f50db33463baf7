"""Gaussian process regression: which method, the learning of the kernel and of the noise, and the posterior.

Everything here runs in float64, inside a scope.
"""

from dataclasses import dataclass, replace

import jax
import numpy as np
from sklearn.base import clone

from thalweg.codec import storable
from thalweg.descent import Status
from thalweg.kernels import Kernel, Stationary
from thalweg.linalg import NotPositiveDefinite
from thalweg.processes import grid, iterative
from thalweg.processes.choose import learn
from thalweg.processes.covariance import TILE_ROWS
from thalweg.processes.evidence import TOLERANCE_NATS, Optimum, maximise, sample_parameters
from thalweg.processes.exact import ExactEvidence, Parameters
from thalweg.processes.grid import GridPosterior
from thalweg.processes.iterative import SOLVE_TOLERANCE, PathwisePosterior, SolveFailed
from thalweg.processes.observations import ProcessMean, RegressionRows
from thalweg.processes.posterior import ExactPosterior
from thalweg.processes.problem import (
    STARTING_NOISE_SHARE,
    RegressionProblem,
    RegressorSettings,
    starting_parameters,
    subset_rows,
)
from thalweg.runs import Run
from thalweg.threads import enough_threads
from thalweg.trees import as_host_arrays

__all__ = ["Regression", "fit_regressor"]

MAX_EXACT_ROWS = 12_000
"""Rows up to which factorising on a CPU takes less time than solving."""

EXACT_MATRICES = 4
"""Matrices of n² numbers that a step of the exact method holds at a time."""

MAX_UNCERTAIN_ROWS, MIXTURE_DRAWS = 480, (8, 64)
"""Rows up to which the uncertainty of parameters is counted, and how many are drawn: more where rows are fewer. With
twice the rows intervals hardly change, and with twice the draws neither."""


@storable
@dataclass(frozen=True)
class Regression:
    """A posterior, and how it was found.

    Examples
    --------
    >>> from thalweg.kernels import Gaussian
    >>> fit_regressor(np.zeros((1, 1)), np.ones((1, 1)), RegressorSettings(learn=False), Gaussian(1.0)).solved
    True
    """

    posterior: ExactPosterior | PathwisePosterior | GridPosterior
    method: str
    log_marginal_likelihood: float
    """Of the rows that count, copies once."""
    error: float
    """Its standard error; 0 where it is exact."""
    steps: int
    """How often the likelihood was evaluated."""
    status: Status
    rows: float
    """How many rows that is of."""

    @property
    def solved(self) -> bool:
        """Whether all solves came to their tolerance."""
        return self.posterior.residual <= 2 * SOLVE_TOLERANCE


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
    """Return the posterior of a function given noisy values of it, and its kernel and noise if they are learned.

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
    >>> inputs = np.linspace(0, 6, 12)[:, None]
    >>> found = fit_regressor(inputs, np.sin(inputs), RegressorSettings())
    >>> mean, variance = found.posterior.predict(np.array([[3.0], [50.0]]))
    >>> bool(abs(mean[0, 0] - np.sin(3.0)) < 0.01), bool(variance[1] > 100 * variance[0])
    (True, True)
    """
    if isinstance(kernel, Kernel):
        kernel.check_dimension("X", inputs.shape[1])
    ones = np.ones(len(inputs))
    known, weights = 0 * ones if known is None else known, ones if weights is None else weights
    mean = ProcessMean.of(settings.mean, inputs[weights > 0])
    given = RegressionRows.of(inputs, targets, known, weights, mean)
    given = given.without_copies() if settings.learn and noise is None else given
    # Of a kernel that is not stationary each row may have its own white noise.
    rows = given if isinstance(kernel, Kernel) and not kernel.stationary else given.merged()
    with jax.enable_x64(True), enough_threads(len(rows.inputs)):
        starts = starting_parameters(rows, kernel, noise)
        problem = RegressionProblem(rows, mean, starts, kernel, noise is None, settings, seed)
        method = method_for(problem)
        if method == "grid":
            fitted = _fit_on_grid(problem)
            if fitted is not None:
                return fitted
            method = method_by_size(len(rows.inputs))
        return _fit_exactly(problem) if method == "exact" else _fit_by_solves(problem)


def method_for(problem: RegressionProblem) -> str:
    """Return the method that is asked for, or that is cheapest for so many rows and features on this device."""
    wanted, (rows, features) = problem.settings.method, problem.rows.inputs.shape
    if wanted == "grid":
        grid.check(problem.starts, problem.rows)
        # Few rows of a plane have many nodes of a grid for each, and solves take as many steps as there are rows.
        return method_by_size(rows) if features > 1 and rows <= subset_rows()[-2] else "grid"
    if wanted != "auto":
        return wanted
    start = problem.starts[0]
    can_be_interpolated = isinstance(start.kernel, Stationary) and np.all(start.noise + problem.rows.known > 0)
    return "grid" if features == 1 and rows > MAX_EXACT_ROWS and can_be_interpolated else method_by_size(rows)


def method_by_size(rows: int) -> str:
    """Return "exact" while the matrices fit into memory and, on a CPU, while it is the faster method."""
    device = jax.devices()[0]
    limit = (device.memory_stats() or {}).get("bytes_limit") if device.platform != "cpu" else None
    if limit is None:
        return "exact" if rows <= MAX_EXACT_ROWS else "iterative"
    return "exact" if EXACT_MATRICES * 8 * rows**2 < limit else "iterative"


def _fit_exactly(problem: RegressionProblem) -> Regression:
    with Run("Gaussian process", bar=problem.settings.verbose) as run:
        run.keep(learn(problem, run, len(problem.rows.inputs)))
    return _posterior(problem, run.kept, run.interrupted)


def _posterior(problem: RegressionProblem, optimum: Optimum, interrupted: bool) -> Regression:
    """Return the exact posterior: after an interrupt of some of the rows that the parameters are of, in no time."""
    size = min(len(optimum.losses), subset_rows()[-2]) if interrupted else len(problem.rows.inputs)
    evidence = problem.subset(size, problem.order)
    try:
        solution = evidence.solution(optimum.parameters)
    except NotPositiveDefinite:
        noise = float(optimum.parameters.noise)
        raise ValueError(
            "the covariance of the rows is singular in float64: rows that are equal, or nearly so, need a noise above "
            f"{noise:.3g}; raise noise"
        ) from None
    posterior = ExactPosterior.of(optimum.parameters, problem.mean, evidence.rows, solution)
    loss = float(np.sum(solution.losses))
    if problem.learns and not interrupted:
        with Run("uncertainty of parameters") as run:
            run.keep((optimum, posterior))
            if len(problem.rows.inputs) <= MAX_UNCERTAIN_ROWS:
                run.keep(_with_uncertain_parameters(problem, optimum))
            elif len(problem.rows.inputs) <= TILE_ROWS:
                run.keep((optimum, posterior.calibrated()))
        (optimum, posterior), interrupted = run.kept, run.interrupted
        loss = optimum.loss
    status = Status.INTERRUPTED if interrupted else optimum.status
    return Regression(posterior, "exact", -loss, 0.0, optimum.evaluations, status, float(np.sum(evidence.rows.counts)))


def _with_uncertain_parameters(problem: RegressionProblem, optimum: Optimum) -> tuple[Optimum, ExactPosterior]:
    """Return the parameters that make rows most probable, and a mixture over others that are plausible."""
    rows, settings = problem.rows, problem.settings
    evidence = ExactEvidence(rows)
    posterior = problem.log_posterior(evidence, optimum.origin)
    count = int(np.clip(MIXTURE_DRAWS[0] * (MAX_UNCERTAIN_ROWS / len(rows.inputs)) ** 1.5, *MIXTURE_DRAWS))
    # Of few rows some draws make all of the scatter noise and some none, and the way between them is long.
    stride = 1 + (count - 1) // 16
    draws = sample_parameters(posterior, optimum.parameters, count, np.random.default_rng([problem.seed, 1]), stride)
    # Parameters were drawn with their prior; those that are shown make the rows most probable.
    here = posterior.integrated(posterior.point(optimum.parameters)), optimum.parameters
    best = optimum._replace(parameters=min([here, *draws], key=lambda one: one[0])[1])
    likelihood = problem.log_posterior(evidence, optimum.origin, deviation=np.inf)
    further = maximise(likelihood, best.parameters, max_iter=settings.max_iter, tolerance=TOLERANCE_NATS / 10)
    best = further._replace(evaluations=best.evaluations + further.evaluations, status=optimum.status)
    mixture = ExactPosterior.of(best.parameters, problem.mean, rows, mixture=[one for _, one in draws])
    return best, mixture.calibrated()


def _fit_by_solves(problem: RegressionProblem) -> Regression:
    posterior: PathwisePosterior | None = None
    with Run("Gaussian process", bar=problem.settings.verbose) as run:
        optimum = learn(problem, run, subset_rows()[-1])
        if problem.learns:
            run.keep(optimum)
        if not run.interrupted:
            posterior = _solve(problem, optimum.parameters)
    if posterior is None:
        return _posterior(problem, run.kept, True)
    loss, error = posterior.loss, posterior.loss_error
    rows = float(np.sum(problem.rows.counts))
    return Regression(posterior, "iterative", -loss, error, optimum.evaluations, optimum.status, rows)


def _solve(problem: RegressionProblem, parameters: Parameters) -> PathwisePosterior:
    """Return the posterior by solves, with as much more noise as they need if the noise was not given."""
    while True:
        try:
            return iterative.posterior(parameters, problem.mean, problem.rows, problem.seed)
        except SolveFailed:
            if not problem.learn_noise:
                raise
            parameters = parameters._replace(noise=10 * parameters.noise)


def _fit_on_grid(problem: RegressionProblem) -> Regression | None:
    """Return the posterior on a grid; None if it was not asked for, and no grid that memory holds is fine enough."""
    rows, settings = problem.rows, problem.settings
    with Run("Gaussian process on a patch of rows", bar=settings.verbose) as run:
        run.keep(_learn_on_patch(problem, run) if problem.learns else learn(problem, run, 0))
    start, interrupted = run.kept.parameters, run.interrupted
    if problem.learns and problem.learn_noise:
        # With less noise, solves for a rough kernel do not end.
        start = start._replace(noise=np.maximum(start.noise, STARTING_NOISE_SHARE**2 * float(start.kernel.variance)))
    fine = grid.is_fine(grid.lattice(start.kernel, rows.inputs), start.kernel, rows.inputs)
    if settings.method == "auto" and not fine:
        return None
    with Run("Gaussian process on a grid", bar=settings.verbose) as run:
        max_iter = settings.max_iter if problem.learns and not interrupted else 0
        run.keep(grid.learn(problem, start, max_iter, run))
    optimum, evidence = run.kept
    posterior = grid.posterior(optimum.parameters, problem.mean, evidence, problem.seed)
    loss, error = evidence.loss_and_error(optimum.parameters)
    status = Status.INTERRUPTED if interrupted or run.interrupted else optimum.status
    return Regression(posterior, "grid", -loss, error, optimum.evaluations, status, float(np.sum(rows.counts)))


def _learn_on_patch(problem: RegressionProblem, run: Run) -> Optimum:
    """Return the best parameters for rows that lie together."""
    rows, kernel = problem.rows.subset(grid.patch(problem.rows.inputs, subset_rows()[1])), problem.kernel
    noise = None if problem.learn_noise else float(problem.starts[0].noise)
    starts = starting_parameters(rows, kernel, noise)
    if isinstance(kernel, Stationary):  # its lengthscale may be in any units
        lengthscale = np.asarray(kernel.lengthscale)
        natural = starting_parameters(rows, type(kernel), noise)[0].kernel.lengthscale
        factor = np.exp(np.mean(np.log(natural / lengthscale)))
        starts = [
            Parameters(as_host_arrays(clone(kernel).set_params(lengthscale=factor * lengthscale)), starts[0].noise)
        ]
    part = replace(problem, rows=rows, starts=starts)
    return learn(part, run, len(rows.inputs), np.arange(len(rows.inputs)), sums=False)

"""Gaussian process regression: which method, the learning of the kernel and of the noise, and the posterior.

Kernels are in the units of the data. What makes a search independent of units is where it starts, at lengthscales of
√d standard deviations of each feature and at a share of the variance of the targets, and that it moves logarithms.
Everything here runs in float64, inside a scope.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import jax
import numpy as np

from thalweg.codec import storable
from thalweg.descent import Status
from thalweg.kernels import Gaussian, Kernel, Matern12, Matern32, Matern52, Stationary
from thalweg.linalg import NotPositiveDefinite
from thalweg.processes import grid, iterative
from thalweg.processes.choose import LEAST_NOISE_SHARE, TOLERANCE_NATS, KernelChoice, KernelRung, with_parameters
from thalweg.processes.covariance import TILE_ROWS, as_host_arrays
from thalweg.processes.evidence import LogPosterior, Optimum, maximise, sample_parameters
from thalweg.processes.exact import ExactEvidence, Parameters
from thalweg.processes.grid import GridPosterior
from thalweg.processes.iterative import SOLVE_TOLERANCE, PathwisePosterior, SolveFailed
from thalweg.processes.observations import MEANS, ProcessMean, RegressionRows, varying
from thalweg.processes.posterior import ExactPosterior
from thalweg.rows import fit_frame
from thalweg.rows.scale import standard_scales
from thalweg.runs import Run
from thalweg.threads import enough_threads

FAMILIES: tuple[type[Kernel], ...] = (Matern32, Matern52, Gaussian, Matern12)
"""The kernels that are compared where none is given."""

STARTING_NOISE_SHARE = 0.1
"""The share of the targets' variance that searches start with as noise."""

MAX_EXACT_ROWS = 12_000
"""Rows up to which factorising on a CPU takes less time than solving."""

EXACT_MATRICES = 4
"""Matrices of n² numbers that a step of the exact method holds at a time."""

SUBSET_ROWS = {"cpu": (150, 400, 1200, 4000), "gpu": (150, 400, 4000, 16_000)}
"""Rows that kernels are compared on, and at last those that the best one is fitted to on the way to all rows, or instead
of them. Of two families that so many rows do not tell apart either will do."""

MAX_UNCERTAIN_ROWS, MIXTURE_DRAWS = 480, (16, 64)
"""Rows up to which the uncertainty of parameters is counted, and how many are drawn: more where rows are fewer. With
twice the rows intervals hardly change."""


@dataclass(frozen=True)
class RegressorSettings:
    """How to find the posterior and its parameters.

    Examples
    --------
    >>> RegressorSettings(learn=False).restarts
    1
    """

    methods: ClassVar[tuple[str, ...]] = ("auto", "exact", "iterative", "grid")
    means: ClassVar[tuple[str, ...]] = MEANS

    method: str = "auto"
    """One of ``methods``."""
    learn: bool = True
    """Whether to maximise the marginal likelihood over the kernel's parameters and the noise."""
    mean: str = "constant"
    """One of ``means``: what the function returns to far from the rows."""
    restarts: int = 1
    """How many more starting points to search the best kernel from, on the smallest subset of the rows."""
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

    posterior: ExactPosterior | PathwisePosterior | GridPosterior
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
        return self.posterior.residual <= 2 * SOLVE_TOLERANCE


@dataclass(frozen=True)
class RegressionProblem:
    """Rows, where searches start, and what is to be learned."""

    given: RegressionRows
    """Rows as they were given."""
    rows: RegressionRows
    """Those with equal inputs merged."""
    mean: ProcessMean
    starts: list[Parameters]
    kernel: Kernel | type[Kernel] | None
    learn_noise: bool
    settings: RegressorSettings
    seed: int

    @property
    def least_noise(self) -> float:
        """The least noise that a search may find."""
        return LEAST_NOISE_SHARE * float(self.starts[0].noise)

    @property
    def learns(self) -> bool:
        """Whether there is anything to learn: not from targets that are all the same."""
        free = self.learn_noise and not isinstance(self.kernel, Kernel)
        constant = not (np.any(self.rows.targets) or np.any(self.rows.scatter))
        return self.settings.learn and not (free and constant)

    def subset(self, size: int, indices: np.ndarray) -> ExactEvidence:
        """Return the evidence of the first of some rows; that of all of them if they are no more."""
        if size >= len(indices):
            return ExactEvidence(self.rows)
        some = self.given.subset(np.sort(indices[:size]))
        return ExactEvidence(some.merged() if len(self.rows.inputs) < len(self.given.inputs) else some)

    def learn(self, run: Run, most: int, indices: np.ndarray | None = None, sums: bool = True) -> Optimum:
        """Return the best parameters on at most so many rows: the first of some, by default in a random order."""
        if not self.learns:
            free = self.learn_noise and not isinstance(self.kernel, Kernel)
            start = self._least() if self.settings.learn and free else self.starts[0]
            return Optimum(start, np.full(1, np.nan), 0, Status.CONVERGED, self.starts[0])
        if indices is None:
            indices = np.random.default_rng(self.seed).permutation(len(self.given.inputs))
        sizes = subset_sizes(min(most, len(indices)))
        evidences = [self.subset(size, indices) for size in sizes]
        for evidence in evidences:
            evidence.prepare(self.starts[0].kernel)
        raced = sum(size < 2 * _subsets()[-2] for size in sizes)
        settings = self.settings
        choice = KernelChoice(
            self.starts,
            rows=len(self.rows.inputs),
            learn_noise=self.learn_noise,
            sums=sums and self.kernel is None,
            restarts=settings.restarts,
            max_iter=settings.max_iter,
            seed=self.seed,
            run=run,
        )
        winner = choice.best(evidences[:raced])
        for evidence in dict.fromkeys([*evidences[raced:], evidences[-1]]):
            if not run.interrupted:
                choice.fit(winner, KernelRung(evidence, settings.max_iter))
        assert winner.optimum is not None
        return winner.optimum._replace(evaluations=choice.evaluations)

    def _least(self) -> Parameters:
        """What a search would end with where there is nothing to account for: next to no variance, and no noise."""
        least = np.asarray(self.least_noise)
        lengthscale, _, *rest = jax.tree.leaves(self.starts[0].kernel)
        return Parameters(with_parameters(self.starts[0].kernel, lengthscale, least, *rest), least)


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
    >>> inputs = np.linspace(0, 6, 30)[:, None]
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
    # Of a kernel that is not stationary each row may have its own white noise.
    rows = given if isinstance(kernel, Kernel) and not kernel.stationary else given.merged()
    with jax.enable_x64(True), enough_threads(len(rows.inputs)):
        starts = starting_parameters(rows, kernel, noise)
        problem = RegressionProblem(given, rows, mean, starts, kernel, noise is None, settings, seed)
        method = method_for(problem)
        if method == "grid":
            fitted = _fit_on_grid(problem)
            if fitted is not None:
                return fitted
            method = method_by_size(len(rows.inputs))
        return _fit_exactly(problem) if method == "exact" else _fit_by_solves(problem)


def _subsets() -> tuple[int, ...]:
    return SUBSET_ROWS["cpu" if jax.default_backend() == "cpu" else "gpu"]


def subset_sizes(rows: int) -> list[int]:
    """Return the numbers of rows that are learned from one after another, the last of them all."""
    return [size for size in _subsets() if 2 * size <= rows] + [rows]


def method_for(problem: RegressionProblem) -> str:
    """Return the method that is asked for, or that is cheapest for so many rows and features on this device."""
    wanted, (rows, features) = problem.settings.method, problem.rows.inputs.shape
    if wanted == "grid":
        grid.check(problem.starts, problem.rows)
        # Few rows of a plane have many nodes of a grid for each, and solves take as many steps as there are rows.
        return method_by_size(rows) if features > 1 and rows <= _subsets()[-2] else "grid"
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
    with Run("Gaussian process", bar=problem.settings.verbose, warns=False) as run:
        run.keep(problem.learn(run, len(problem.given.inputs)))
    optimum, interrupted = run.kept, run.interrupted
    try:
        solution = ExactEvidence(problem.rows).solution(optimum.parameters)
    except NotPositiveDefinite:
        noise = float(optimum.parameters.noise)
        raise ValueError(
            "the covariance of the rows is singular in float64: rows that are equal, or nearly so, need a noise above "
            f"{noise:.3g}; raise noise"
        ) from None
    posterior = ExactPosterior.of(optimum.parameters, problem.mean, problem.rows, solution)
    loss = float(np.sum(solution.losses))
    if problem.learns and not interrupted:
        with Run("uncertainty of parameters", warns=False) as run:
            run.keep((optimum, posterior))
            if len(problem.rows.inputs) <= MAX_UNCERTAIN_ROWS:
                run.keep(_with_uncertain_parameters(problem, optimum))
            elif len(problem.rows.inputs) <= TILE_ROWS:
                run.keep((optimum, posterior.calibrated()))
        (optimum, posterior), interrupted = run.kept, run.interrupted
        loss = optimum.loss
    status = Status.INTERRUPTED if interrupted else optimum.status
    return Regression(posterior, "exact", -loss, 0.0, optimum.evaluations, status)


def _with_uncertain_parameters(problem: RegressionProblem, optimum: Optimum) -> tuple[Optimum, ExactPosterior]:
    """Return the parameters that make rows most probable, and a mixture over others that are plausible."""
    rows, settings = problem.rows, problem.settings
    evidence = ExactEvidence(rows)
    fixed = 0 if problem.learn_noise else 1
    options = {"max_iter": settings.max_iter, "fixed": fixed}
    options["least_noise"] = problem.least_noise if problem.learn_noise else None
    posterior = LogPosterior(evidence, optimum.origin, fixed=fixed)
    count = int(np.clip(MIXTURE_DRAWS[0] * MAX_UNCERTAIN_ROWS // len(rows.inputs), *MIXTURE_DRAWS))
    # Of few rows some draws make all of the scatter noise and some none, and the way between them is long.
    stride = count // MIXTURE_DRAWS[0]
    draws = sample_parameters(posterior, optimum.parameters, count, np.random.default_rng([problem.seed, 1]), stride)
    # Parameters were drawn with their prior; those that are shown make the rows most probable.
    here = posterior.integrated(posterior.point(optimum.parameters)), optimum.parameters
    best = optimum._replace(parameters=min([here, *draws], key=lambda one: one[0])[1])
    evaluations = best.evaluations
    for by_gradients in (False, True):  # the information may be far above the curvature along a ridge
        settle = {"tolerance": TOLERANCE_NATS / 10, "deviation": np.inf, "by_gradients": by_gradients}
        best = maximise(evidence, best.parameters, optimum.origin, **settle, **options)
        evaluations += best.evaluations
    best = best._replace(evaluations=evaluations, status=optimum.status)
    mixture = ExactPosterior.of(best.parameters, problem.mean, rows, mixture=[one for _, one in draws])
    return best, mixture.calibrated()


def _fit_by_solves(problem: RegressionProblem) -> Regression:
    with Run("Gaussian process", bar=problem.settings.verbose, warns=False) as run:
        run.keep(problem.learn(run, _subsets()[-1]))
        optimum = run.kept
        posterior = _solve(problem, optimum.parameters)
    status = Status.INTERRUPTED if run.interrupted else optimum.status
    loss = posterior.loss
    return Regression(posterior, "iterative", -loss, posterior.loss_error, optimum.evaluations, status)


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
    least = problem.least_noise if problem.learn_noise else None
    with Run("Gaussian process on a patch of rows", bar=settings.verbose, warns=False) as run:
        run.keep(_learn_on_patch(problem, run) if problem.learns else problem.learn(run, 0))
    start, interrupted = run.kept.parameters, run.interrupted
    if problem.learns and problem.learn_noise:
        # With less noise, solves for a rough kernel do not end.
        start = start._replace(noise=np.maximum(start.noise, STARTING_NOISE_SHARE**2 * float(start.kernel.variance)))
    if settings.method == "auto" and not grid.lattice(start.kernel, rows.inputs).is_fine:
        return None
    with Run("Gaussian process on a grid", bar=settings.verbose, warns=False) as run:
        max_iter = settings.max_iter if problem.learns and not interrupted else 0
        run.keep(grid.learn(start, rows, max_iter, least, problem.seed, run))
    optimum, evidence = run.kept
    posterior = grid.posterior(optimum.parameters, problem.mean, evidence, problem.seed)
    loss, error = evidence.loss_and_error(optimum.parameters)
    status = Status.INTERRUPTED if interrupted or run.interrupted else optimum.status
    return Regression(posterior, "grid", -loss, error, optimum.evaluations, status)


def _learn_on_patch(problem: RegressionProblem, run: Run) -> Optimum:
    """Return the best parameters for rows that lie together."""
    patch = problem.given.subset(grid.patch(problem.given.inputs, _subsets()[1]))
    rows, kernel = patch.merged(), problem.kernel
    noise = None if problem.learn_noise else float(problem.starts[0].noise)
    starts = starting_parameters(rows, kernel, noise)
    if isinstance(kernel, Stationary):  # its lengthscale may be in any units
        lengthscale = np.asarray(kernel.lengthscale)
        natural = starting_parameters(rows, type(kernel), noise)[0].kernel.lengthscale
        factor = np.exp(np.mean(np.log(natural / lengthscale)))
        starts = [Parameters(as_host_arrays(kernel._with(lengthscale=factor * lengthscale)), starts[0].noise)]
    part = replace(problem, given=patch, rows=rows, starts=starts)
    return part.learn(run, len(patch.inputs), np.arange(len(patch.inputs)), sums=False)


def starting_parameters(
    rows: RegressionRows, kernel: Kernel | type[Kernel] | None, noise: float | None
) -> list[Parameters]:
    """Return where searches start: kernels in the units of the data, one for each family."""
    noise_variance, variance = _variances(rows)
    families = (kernel,) if isinstance(kernel, type) else FAMILIES
    # Values far out are drawn in, so that they do not say what is far for the others.
    scales = standard_scales(fit_frame(rows.inputs).apply(rows.inputs))
    lengthscales = scales * np.sqrt(max(1, np.sum(varying(rows.inputs))))
    kernels = [kernel] if isinstance(kernel, Kernel) else [family(lengthscales, variance) for family in families]
    start = np.asarray(STARTING_NOISE_SHARE * noise_variance if noise is None else noise)
    return [Parameters(as_host_arrays(one), start) for one in kernels]


def _variances(rows: RegressionRows) -> tuple[float, float]:
    """Return the mean squares that noise and kernel have to account for.

    They are those of the targets less the best mean, which for the noise has a constant in any case. Where nothing but
    rounding is left they are those about a constant, then those between merged targets, and 1 if there are none.
    """
    square = lambda left: float(np.mean(np.average(left**2, axis=0, weights=rows.weights)))
    away = rows.targets - rows.targets[:1]  # near which nothing is lost to rounding
    away = away - np.average(away, axis=0, weights=rows.weights)
    root = np.sqrt(rows.weights)[:, None]
    left = away - rows.basis @ np.linalg.lstsq(root * rows.basis, root * away, rcond=None)[0]
    rounding = (np.finfo(float).eps ** 0.75 * float(np.max(np.abs(rows.targets)))) ** 2
    within = float(np.sum(rows.scatter)) / (np.sum(rows.weights) * rows.outputs)
    noise = next((one for one in (square(left), square(away), within) if one > rounding), 1.0)
    return noise, noise if rows.basis.shape[1] else square(rows.targets) or 1.0

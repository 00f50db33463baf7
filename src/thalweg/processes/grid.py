"""Gaussian process regression on a grid: which grid, the search for its parameters, and the posterior on its nodes.

The grid follows the kernel: it is fine enough for its shortest correlations and reaches as far beyond the rows as its
longest, so that opposite ends of the torus do not meet. A search that leaves what its grid was made for begins again on
another grid, from where it is. It starts from what a patch of rows that lie together has found exactly.
"""

from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import scipy.fft
from jaxtyping import Array, Float

from thalweg.codec import storable
from thalweg.compiling import quick_jit
from thalweg.descent import Status
from thalweg.errors import IncompatiblePartsError
from thalweg.kernels import Grid, Kernel
from thalweg.linalg import log_trace
from thalweg.processes import circulant
from thalweg.processes.circulant import MAX_DIMENSIONS, GridMoments
from thalweg.processes.covariance import matrix
from thalweg.processes.evidence import Optimum, maximise
from thalweg.processes.exact import EvidenceEvaluation, Parameters
from thalweg.processes.iterative import POSTERIOR_SAMPLES, PROBES, SampledPosterior
from thalweg.processes.observations import ProcessMean, RegressionRows
from thalweg.processes.problem import RegressionProblem
from thalweg.runs import Run
from thalweg.trees import flattened

MAX_NODES = 2**18
"""The most nodes of a grid: with them a step of a search takes a second."""

NEAR_CORRELATION, FAR_CORRELATION = 0.9, 1e-3
"""Correlations that the fine and the coarse scale of a kernel are measured at."""

NODES_PER_FINE_SCALE, LEAST_NODES_PER_FINE_SCALE = 1.5, 0.9
"""Nodes within the fine scale: by choice, and at least, since from fewer a function comes out too smooth."""

TOLERANCES = 4e-6, 2e-3
"""Residuals of solves for the targets and for probes or samples: gradients of a search err by about as much."""


def lattice(kernel: Kernel, inputs: np.ndarray) -> Grid:
    """Return the grid for a kernel around some rows."""
    low, extent = inputs.min(axis=0), _extent(inputs)
    near, far = _scales(kernel, extent)
    nodes = NODES_PER_FINE_SCALE
    while True:
        spacing = np.minimum(near / nodes, extent / 4)
        box = np.ceil(extent / spacing) + 5
        margin = np.clip(np.ceil(far / spacing), 4, np.maximum(box, 4))
        # Sizes that are products of small primes are transformed quickly.
        shape = [scipy.fft.next_fast_len(int(min(size, 1e12)), real=True) for size in box + 2 * margin]
        if np.prod(np.array(shape, float)) <= MAX_NODES:
            return Grid(low - (np.array(shape) - box + 4) / 2 * spacing, spacing, shape)
        nodes *= 0.9


def _extent(inputs: np.ndarray) -> np.ndarray:
    extent = np.ptp(inputs, axis=0)
    return np.where(extent > 0, extent, 1.0)


def _scales(kernel: Kernel, extent: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the distances along each feature at which correlations become small first, and for good."""
    dimensions = len(extent)
    shares = 10 ** np.linspace(-6, 1.5, 300)
    points = np.concatenate([np.zeros((1, dimensions)), *(share * np.diag(extent) for share in shares)])
    values = matrix(kernel, points[:1], points)[0]
    correlations = np.abs(values[1:].reshape(-1, dimensions) / values[0])
    below = correlations < NEAR_CORRELATION
    near = np.where(below.any(axis=0), shares[np.argmax(below, axis=0)], shares[-1])
    above = correlations >= FAR_CORRELATION
    far = np.where(above.any(axis=0), shares[len(shares) - 1 - np.argmax(above[::-1], axis=0)], shares[0])
    return near * extent, far * extent


def is_fine(grid: Grid, kernel: Kernel, inputs: np.ndarray) -> bool:
    """Whether a kernel can be interpolated from a grid: enough nodes are within its fine scale in every feature."""
    return bool(np.min(_scales(kernel, _extent(inputs))[0] / grid.spacing) >= LEAST_NODES_PER_FINE_SCALE)


def suits(grid: Grid, kernel: Kernel, inputs: np.ndarray) -> bool:
    """Whether a grid does for another kernel than it was made for, or no grid would be much better."""
    wanted = lattice(kernel, inputs)
    beyond = lambda grid: (np.array(grid.shape) - 1) * grid.spacing - np.ptp(inputs, axis=0)
    fine = is_fine(grid, kernel, inputs) or np.all(wanted.spacing > 0.8 * grid.spacing)
    return bool(fine and np.all(2.2 * beyond(grid) >= beyond(wanted)))


class GridEvidence:
    """−log p(y) of rows on a grid as a function of the parameters."""

    def __init__(
        self, rows: RegressionRows, grid: Grid, seed: int, tolerances: tuple[float, float] = TOLERANCES
    ) -> None:
        self.rows, self.grid, self.inputs, self.tolerances = rows, grid, rows.inputs, tolerances
        self.interpolation = grid.interpolation(rows.inputs)
        # An offset costs digits; the first column of a basis takes it.
        self.offset = np.average(rows.targets, axis=0, weights=rows.weights) * (rows.basis.shape[1] > 0)
        columns = np.concatenate([rows.targets - self.offset, rows.basis], axis=1)
        signs = np.random.default_rng([seed, 7]).integers(0, 2, size=(PROBES, *grid.shape))
        # Unlike jnp.asarray this compiles nothing.
        self.columns, self.spacing, self.probes = map(jax.device_put, (columns, grid.spacing, 2.0 * signs - 1.0))
        self.unit = None if np.any(rows.known) else self._add_up(rows.weights)

    def tolerances_with(self, others: int) -> np.ndarray:
        """Return those of solves for the targets, the basis and other columns."""
        return np.repeat(self.tolerances, (self.columns.shape[1], others))

    def _add_up(self, scales: np.ndarray) -> GridMoments:
        return circulant.moments(self.interpolation, self.columns, jax.device_put(scales), self.rows.outputs)

    def moments(self, noise: float) -> tuple[GridMoments, GridMoments]:
        """Return those for 1/D, and for its share that grows with the noise."""
        if self.unit is not None:
            given = circulant.scaled(self.unit, np.asarray(1 / noise))
            return given, given
        total = noise + self.rows.known
        return self._add_up(self.rows.weights / total), self._add_up(self.rows.weights * noise / total**2)

    def evaluate(self, parameters: Parameters) -> EvidenceEvaluation:
        """Return the loss and its gradient in the logarithms of the parameters; their information is not known."""
        loss, _, gradient = self._evaluate(parameters)
        return EvidenceEvaluation(np.array([loss]), gradient, None)

    def loss_and_error(self, parameters: Parameters) -> tuple[float, float]:
        """Return −log p(y), and its standard error."""
        return self._evaluate(parameters)[:2]

    def _evaluate(self, parameters: Parameters) -> tuple[float, float, np.ndarray]:
        rows, outputs, noise = self.rows, self.rows.outputs, float(parameters.noise)
        fixed = parameters.kernel, self.spacing, *self.moments(noise), self.probes
        misfit, determinant, solves, by_kernel, by_noise = circulant.evaluate(*fixed, self.tolerances_with(PROBES))
        sizes, ratios = (np.asarray(part)[:, -PROBES:] for part in (solves.sizes, solves.ratios))
        trace, error = log_trace(sizes, ratios, np.full(PROBES, self.probes[0].size, float))
        known = float(determinant) + float(np.sum(np.log(2 * np.pi * rows.variances(noise))))
        loss = (float(misfit) + outputs * (known + trace)) / 2 + float(np.sum(rows.repeat_losses(noise)))
        by_diagonal = float(np.sum(outputs * noise / (noise + rows.known) / 2))
        by_noise = float(by_noise) + by_diagonal + rows.repeat_derivatives(noise)[0]
        return loss, outputs / 2 * error, np.append(flattened(by_kernel), by_noise)


def check(starts: list[Parameters], rows: RegressionRows) -> None:
    """Refuse what a grid cannot do."""
    if rows.inputs.shape[1] > MAX_DIMENSIONS:
        raise ValueError(
            f"method='grid' takes up to {MAX_DIMENSIONS} features, found {rows.inputs.shape[1]}: take 'iterative'"
        )
    if not starts[0].kernel.stationary:
        raise IncompatiblePartsError(
            f"method='grid' needs a stationary kernel such as Gaussian(1.0), found {starts[0].kernel}"
        )
    if np.min(float(starts[0].noise) + rows.known) <= 0:
        raise ValueError("method='grid' needs noise in every row: give a noise above 0, or take method='exact'")


def patch(inputs: np.ndarray, count: int) -> np.ndarray:
    """Return the indices of some rows that lie together, as densely as they are, nearest to their middle first."""
    places = inputs / _extent(inputs)
    distances = lambda place: np.sum((places - place) ** 2, axis=1)
    middle = places[np.argmin(distances(np.median(places, axis=0)))]
    return np.argsort(distances(middle), kind="stable")[:count]


def learn(problem: RegressionProblem, start: Parameters, max_iter: int, run: Run) -> tuple[Optimum, GridEvidence]:
    """Make the rows most probable, from a start, on as many grids as it takes; no steps, no search."""
    rows = problem.rows
    made, evaluations, nothing = lattice(start.kernel, rows.inputs), 0, np.full(1, np.nan)
    while True:
        evidence = GridEvidence(rows, made, problem.seed)
        run.keep((Optimum(start, nothing, evaluations, Status.INTERRUPTED, start), evidence))
        keep = lambda optimum: run.keep((optimum, evidence))  # noqa: B023
        optimum = maximise(problem.log_posterior(evidence, start), start, max_iter=max_iter, keep=keep)
        evaluations += optimum.evaluations
        if evaluations >= max_iter or suits(made, optimum.parameters.kernel, rows.inputs):
            return optimum._replace(evaluations=evaluations), evidence
        start, made = optimum.parameters, lattice(optimum.parameters.kernel, rows.inputs)


@storable
@dataclass(frozen=True)
class GridPosterior(SampledPosterior):
    """The posterior by its mean and samples on the nodes of a grid; beyond the grid it is the prior."""

    grid: Grid
    values: np.ndarray
    """The mean of the function without Hβ, a column for each target."""
    samples: np.ndarray
    """What differs from the mean, in float32, a column for each sample."""

    def functions(self, new: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return means and samples, interpolated from the nodes."""
        inside = self.grid.contains(new)
        both = np.concatenate([self.values, self.samples.astype(np.float64)], axis=1)
        found = np.zeros((len(new), both.shape[1]))
        if np.any(inside):
            with jax.enable_x64(True):
                found[inside] = np.asarray(_at_points(self.grid.interpolation(new[inside]), both))
        return found, inside


@quick_jit(lambda *_: True)
def _at_points(interpolation: Any, values: Float[Array, "nodes m"]) -> Float[Array, "points m"]:
    return interpolation.mv(values)


def posterior(parameters: Parameters, mean: ProcessMean, evidence: GridEvidence, seed: int) -> GridPosterior:
    """Solve for the mean and for samples of the posterior on the grid."""
    rows, grid, noise = evidence.rows, evidence.grid, float(parameters.noise)
    given, _ = evidence.moments(noise)
    rng = np.random.default_rng([seed, 11])
    errors = np.sqrt(rows.variances(noise))[:, None] * rng.standard_normal((len(rows.inputs), POSTERIOR_SAMPLES))
    white = rng.standard_normal((POSTERIOR_SAMPLES, *grid.shape))
    fixed = parameters.kernel, evidence.spacing, given, evidence.interpolation, rows.basis
    found = circulant.posterior_paths(*fixed, errors, white, evidence.tolerances_with(POSTERIOR_SAMPLES))
    values, coefficients, samples, updated, residual = (np.array(part) for part in found)
    coefficients[:1] += evidence.offset
    return GridPosterior(
        kernel=jax.tree.map(np.asarray, parameters.kernel),
        noise=noise,
        mean=mean,
        grid=grid,
        values=values,
        coefficients=coefficients,
        samples=samples.astype(np.float32),
        updated=updated,
        residual=float(np.max(residual)),
        coarse=not is_fine(grid, parameters.kernel, rows.inputs),
    )

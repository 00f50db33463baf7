"""Gaussian process regression on a grid: which grid, the search for its parameters, and the posterior on its nodes.

The grid follows the kernel: it is fine enough for its shortest correlations and reaches as far beyond the rows as its
longest, so that opposite ends of the torus do not meet. A search that leaves what its grid was made for begins again on
another grid, from where it is.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.fft
from jaxtyping import Array, Float

from thalweg.codec import storable
from thalweg.compiling import Prepared, quick_jit
from thalweg.descent import Status
from thalweg.errors import IncompatiblePartsError
from thalweg.kernels import Grid, Kernel
from thalweg.processes import host, torus
from thalweg.processes.evidence import Optimum, maximise
from thalweg.processes.exact import Parameters
from thalweg.processes.host import HostRows
from thalweg.processes.iterative import refuse
from thalweg.processes.means import Mean
from thalweg.processes.scan import Start
from thalweg.processes.torus import Coordinates, Layout, Moments, flat

DIMENSIONS, AUTOMATIC = 3, 1
"""The most features that a grid can have, and up to which it is the cheapest way for many rows."""

_LEAST_NODES, _MOST_NODES, _NODES_A_ROW = 2**12, 2**18, 16
"""A grid has no more nodes than this number for each row, between two limits."""

_NEAR, _FAR = 0.9, 1e-3
"""Correlations that the fine and the coarse scale of a kernel are measured at."""

_FINE, _COARSE = 1.5, 0.9
"""Nodes within the fine scale: so many by choice, and so many at least."""

_PROBES, _SAMPLES = 8, 64
_DIGITS, _PROBE_DIGITS, _LAST_DIGITS, _SAMPLE_DIGITS = 1e-6, 1e-3, 1e-8, 3e-4
"""Residuals of solves for the targets and for probes in a search, and for the targets and samples at its end, in the
norm of the preconditioner."""

_GRIDS = 4
"""Grids that a search may go through."""

_ALIKE = 0.002
"""Nats a row by which a family may be behind the best, by the periodogram, and be tried too."""

_FIRST_STEP = 3.0
"""How far the first step goes: so many times the slope a row, in logarithms."""

_FIRST_STEPS = 12
"""Steps of the search for a family that is tried."""


class Lattice(NamedTuple):
    """A grid made for a kernel, and how fine it is: nodes within the fine scale."""

    grid: Grid
    fineness: float

    @property
    def fine(self) -> bool:
        """Whether the kernel can be interpolated from it."""
        return self.fineness >= _COARSE

    def suits(self, kernel: Kernel, inputs: np.ndarray) -> bool:
        """Whether it does for another kernel too, or no grid would be much better."""
        wanted = lattice(kernel, inputs).grid
        beyond = lambda grid: (np.array(grid.shape) - 1) * grid.spacing - np.ptp(inputs, axis=0)
        fine = fineness_of(self.grid, kernel, inputs) >= _COARSE or np.all(wanted.spacing > 0.8 * self.grid.spacing)
        return bool(fine and np.all(2.2 * beyond(self.grid) >= beyond(wanted)))


def lattice(kernel: Kernel, inputs: np.ndarray) -> Lattice:
    """The grid for a kernel around some rows."""
    low, extent = inputs.min(axis=0), np.ptp(inputs, axis=0)
    extent = np.where(extent > 0, extent, 1.0)
    near, far = _scales(kernel, extent)
    fineness = _FINE
    most = np.clip(_NODES_A_ROW * len(inputs), _LEAST_NODES, _MOST_NODES)
    while True:
        spacing = np.minimum(near / fineness, extent / 4)
        box = np.ceil(extent / spacing) + 5
        margin = np.clip(np.ceil(far / spacing), 4, np.maximum(box, 4))
        # Sizes that are products of small primes are transformed quickly.
        shape = [scipy.fft.next_fast_len(int(min(size, 1e12)), real=True) for size in box + 2 * margin]
        if np.prod(np.array(shape, float)) <= most:
            origin = low - (np.array(shape) - box + 4) / 2 * spacing
            return Lattice(Grid(origin, spacing, shape), fineness)
        fineness *= 0.9


def _scales(kernel: Kernel, extent: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The distances along each feature at which correlations fall below 0.9 first, and below 0.001 for good."""
    dimensions = len(extent)
    shares = 10 ** np.linspace(-6, 1.5, 300)
    places = np.concatenate([np.zeros((1, dimensions)), *(share * np.diag(extent) for share in shares)])
    values = host.matrix(kernel, places[:1], places)[0]
    correlations = np.abs(values[1:].reshape(-1, dimensions) / values[0])
    below = correlations < _NEAR
    near = np.where(below.any(axis=0), shares[np.argmax(below, axis=0)], shares[-1])
    above = correlations >= _FAR
    far = np.where(above.any(axis=0), shares[len(shares) - 1 - np.argmax(above[::-1], axis=0)], shares[0])
    return near * extent, far * extent


def fineness_of(grid: Grid, kernel: Kernel, inputs: np.ndarray) -> float:
    """Nodes within the fine scale of a kernel, in the feature that has fewest."""
    extent = np.ptp(inputs, axis=0)
    return float(np.min(_scales(kernel, np.where(extent > 0, extent, 1.0))[0] / grid.spacing))


class GridProblem:
    """The marginal likelihood of rows on a grid, as a function of the parameters."""

    def __init__(self, rows: HostRows, grid: Grid, seed: int) -> None:
        self.rows, self.grid = rows, grid
        self.targets = rows.targets.shape[1]
        self.interpolation = grid.interpolation(rows.inputs)
        # An offset costs digits; the first column of a basis takes it.
        self.offset = np.average(rows.targets, axis=0, weights=rows.weights) * (rows.basis.shape[1] > 0)
        columns = np.concatenate([rows.targets - self.offset, rows.basis], axis=1)
        signs = np.random.default_rng([seed, 7]).integers(0, 2, size=(_PROBES, *grid.shape))
        # Unlike jnp.asarray this compiles nothing.
        self.columns, self.spacing, self.probes = map(jax.device_put, (columns, grid.spacing, 2.0 * signs - 1.0))
        self.layout = Layout(grid.shape, self.targets)
        self.plain = not np.any(rows.known)
        self.unit = self._add_up(rows.weights) if self.plain else None

    def prepare(self, kernel: Kernel) -> None:
        """Begin to make the program of the posterior, which is needed once the search has ended."""
        if self.unit is not None:
            sizes = (len(self.rows.inputs), _SAMPLES), (_SAMPLES, *self.grid.shape)
            paths.prepare(*self.for_paths(kernel, self.unit, *(jax.ShapeDtypeStruct(size, float) for size in sizes)))

    def for_paths(self, kernel: Kernel, given: Moments, errors: Any, white: Any) -> tuple:
        """What :data:`paths` needs."""
        tolerance = np.array([_LAST_DIGITS] * self.columns.shape[1] + [_SAMPLE_DIGITS] * _SAMPLES)
        fixed = self.layout, kernel, self.spacing, given, self.interpolation, self.rows.basis
        return *fixed, errors, white, tolerance

    @property
    def inputs(self) -> np.ndarray:
        """Of the rows."""
        return self.rows.inputs

    def _add_up(self, scales: np.ndarray) -> Moments:
        return torus.moments(self.interpolation, self.columns, jax.device_put(scales))

    def moments(self, noise: float) -> tuple[Moments, Moments]:
        """Those for 1/D, and for its share that grows with the noise."""
        if self.unit is not None:
            given = torus.scaled(self.unit, np.asarray(1 / noise))
            return given, given
        total = noise + self.rows.known
        return self._add_up(self.rows.weights / total), self._add_up(self.rows.weights * noise / total**2)

    def evaluate(self, parameters: Parameters) -> torus.Evaluation:
        """Solve for targets and probes."""
        given, shares = self.moments(float(parameters.noise))
        tolerance = np.array([_DIGITS] * self.columns.shape[1] + [_PROBE_DIGITS] * _PROBES)
        return torus.evaluate(self.layout, parameters.kernel, self.spacing, given, shares, self.probes, tolerance)

    def loss_and_slope(self, parameters: Parameters) -> tuple[float, Parameters]:
        """−log p(y), and its derivative in the logarithms of the parameters."""
        noise = float(parameters.noise)
        found = self.evaluate(parameters)
        variances = noise + self.rows.known
        grows = noise / variances * (self.targets * self.rows.copies - self.rows.scatter / variances)
        slope = Parameters(found.kernel_slope, np.asarray(found.noise_slope) + np.sum(grows) / 2)
        return self._loss(found, noise)[0], slope

    def loss_and_error(self, parameters: Parameters) -> tuple[float, float]:
        """−log p(y), and its standard error."""
        return self._loss(self.evaluate(parameters), float(parameters.noise))

    def _loss(self, found: torus.Evaluation, noise: float) -> tuple[float, float]:
        rest = torus.left_of_determinant(found.solves, np.asarray(self.probes))
        known = float(found.known_determinant) + float(np.sum(np.log(self.rows.variances(noise))))
        loss = (float(found.misfit) + self.targets * (known + float(np.mean(rest)))) / 2 + self.rows.constant(noise)
        return loss, self.targets / 2 * float(np.std(rest, ddof=1) / np.sqrt(len(rest)))


def check(starts: list[Parameters], rows: HostRows) -> None:
    """Refuse what a grid cannot do."""
    if rows.inputs.shape[1] > DIMENSIONS:
        raise ValueError(
            f"method='grid' takes up to {DIMENSIONS} features, found {rows.inputs.shape[1]}: take 'iterative'"
        )
    if not starts[0].kernel.stationary:
        raise IncompatiblePartsError(
            f"method='grid' needs a stationary kernel such as Gaussian(1.0), found {starts[0].kernel}"
        )
    if np.min(float(starts[0].noise) + rows.known) <= 0:
        raise ValueError("method='grid' needs noise in every row: give a noise above 0, or take method='exact'")


def suits(starts: list[Start], inputs: np.ndarray) -> bool:
    """Whether a grid that memory holds is fine enough for the best start."""
    return lattice(starts[0].parameters.kernel, inputs).fine


def learn(
    starts: list[Start], rows: HostRows, max_iter: int, learn_noise: bool, least_noise: float, seed: int
) -> tuple[Optimum, GridProblem]:
    """Make the rows most probable, from the best start and from one that is close to it; no steps, no search."""
    if not max_iter:
        problem = GridProblem(rows, lattice(starts[0].parameters.kernel, rows.inputs).grid, seed)
        loss, _ = problem.loss_and_slope(starts[0].parameters)
        return Optimum(starts[0].parameters, loss, 1, Status.CONVERGED, starts[0].parameters), problem
    close = [start for start in starts if start.loss <= starts[0].loss + _ALIKE * len(rows.inputs)][:2]
    search = lambda begun, steps: _search(begun, rows, steps, learn_noise, least_noise, seed)
    tried = [search(start.parameters, max_iter if len(close) == 1 else min(max_iter, _FIRST_STEPS)) for start in close]
    steps = sum(found.steps for found, _ in tried)
    best, problem = min(tried, key=lambda one: one[0].loss)
    if len(close) > 1 and max_iter > _FIRST_STEPS and best.status is not Status.INTERRUPTED:
        best, problem = search(best.parameters, max_iter - _FIRST_STEPS)
        steps += best.steps
    return best._replace(steps=steps), problem


def _search(
    start: Parameters, rows: HostRows, max_iter: int, learn_noise: bool, least_noise: float, seed: int
) -> tuple[Optimum, GridProblem]:
    steps, made = 0, lattice(start.kernel, rows.inputs)
    for _ in range(_GRIDS):
        problem = GridProblem(rows, made.grid, seed)
        problem.prepare(start.kernel)
        unit = len(rows.inputs) / _FIRST_STEP
        found = maximise(problem, start, start, max_iter, learn_noise, least_noise, unit=unit)
        steps += found.steps
        if found.status is Status.INTERRUPTED or made.suits(found.parameters.kernel, rows.inputs):
            break
        start, made = found.parameters, lattice(found.parameters.kernel, rows.inputs)
    return found._replace(steps=steps), problem


@storable
@dataclass(frozen=True)
class GridPosterior:
    """The posterior of a function by its mean on the nodes of a grid, and by samples of what differs from it."""

    kernel: Kernel
    noise: float
    mean: Mean
    grid: Grid
    values: np.ndarray
    """The mean of the function without Hβ, a column per target."""
    coefficients: np.ndarray
    samples: np.ndarray
    """What differs from the mean, in float32, a column per sample."""
    updated: np.ndarray
    """The coefficients of the mean in each sample."""
    residual: float
    """The largest residual of a solve against its right side."""
    fineness: float
    """Nodes of the grid within the distance at which correlations fall to 0.9."""

    @property
    def coarse(self) -> bool:
        """Whether the grid is too coarse for the kernel, so that the function is smoother than it should be."""
        return self.fineness < _COARSE

    @property
    def observation_noise(self) -> float:
        """The variance of an observation around the function."""
        return self.noise

    def predict(self, new: np.ndarray, full: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """Means of the function at new inputs, a column per target, and its variances from the samples."""
        refuse(full, _SAMPLES)
        mean, differences, inside = self._parts(new)
        variances = np.mean(differences**2, axis=1)
        return mean, np.where(inside, variances, variances + float(self.kernel.variance))

    def sample(self, new: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
        """Functions drawn from the posterior, at new inputs: (points, targets, count); as many as were solved."""
        refuse(False, _SAMPLES, count)
        mean, differences, inside = self._parts(new)
        if not np.all(inside):
            raise ValueError(
                f"samples reach from {self.grid.origin} to {self.grid.last}, as far as the rows tell anything; "
                f"{np.sum(~inside)} points lie beyond"
            )
        return mean[:, :, None] + differences[:, None, rng.permutation(_SAMPLES)[:count]]

    def _parts(self, new: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Means, what samples differ from them by, and which points the grid covers: beyond it is the prior."""
        inside = self.grid.contains(new)
        targets, basis = self.values.shape[1], self.mean.basis(new)
        found = np.zeros((len(new), targets + self.samples.shape[1]))
        if np.any(inside):
            with jax.enable_x64(True):
                both = np.concatenate([self.values, self.samples.astype(np.float64)], axis=1)
                found[inside] = np.asarray(_at_points(self.grid.interpolation(new[inside]), both))
        return found[:, :targets] + basis @ self.coefficients, found[:, targets:] - basis @ self.updated, inside


@quick_jit(lambda *_: True)
def _at_points(interpolation: Any, values: Float[Array, "nodes m"]) -> Float[Array, "points m"]:
    return interpolation.mv(values)


def posterior(parameters: Parameters, mean: Mean, problem: GridProblem, seed: int) -> GridPosterior:
    """Solve for the mean and for samples of the posterior on the grid."""
    rows, grid = problem.rows, problem.grid
    noise = float(parameters.noise)
    given, _ = problem.moments(noise)
    variances = (noise + rows.known) / rows.weights
    rng = np.random.default_rng([seed, 11])
    errors = np.sqrt(variances)[:, None] * rng.standard_normal((len(variances), _SAMPLES))
    found = paths(*problem.for_paths(parameters.kernel, given, errors, rng.standard_normal((_SAMPLES, *grid.shape))))
    values, coefficients, samples, updated, residual = (np.array(part) for part in found)
    coefficients[:1] += problem.offset
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
        fineness=fineness_of(grid, parameters.kernel, rows.inputs),
    )


def _paths(
    layout: Layout,
    kernel: Kernel,
    spacing: Array,
    given: Moments,
    interpolation: Any,
    basis: Float[Array, "n p"],
    errors: Float[Array, "n s"],
    white: Float[Array, " s *nodes"],
    tolerance: Float[Array, " r+s"],
) -> tuple[Array, ...]:
    """Means on the grid with their coefficients, samples of what differs, with theirs, and residuals."""
    nodes, targets = layout.nodes, layout.targets
    coordinates = Coordinates(torus.spectrum(kernel, spacing, nodes), nodes)
    preconditioner = 1 + given.gram.symbol(nodes) * coordinates.eigenvalues
    scaled = given.gram.scales[:, None] * errors
    drawn = interpolation.rmv(scaled).T.reshape(-1, *nodes)
    width, extra = len(given.sums), len(white)
    every = coordinates.white(jnp.concatenate([given.sums, white, drawn]))
    start = every[width : width + extra]
    right = jnp.concatenate([coordinates.rooted(every[:width]), start - coordinates.rooted(every[width + extra :])])
    found = torus.solve(given.gram, coordinates, preconditioner, right, tolerance)
    coefficients = torus.mean_coefficients(given, right[:width], found.x[:width], targets)
    fields = coordinates.synthesis(jnp.concatenate([found.x, start]))
    prior, fields = fields[width + extra :], flat(fields[: width + extra])
    values, levels, paths = fields[:targets], fields[targets:width], fields[width:]
    # β of each sample, by generalised least squares on its own values at the rows: A⁻¹H = D⁻¹(H − W z_H).
    inverse = given.squares - (jnp.conj(flat(right[:width])) @ flat(found.x[:width]).T).real
    seen = flat(given.sums[targets:]) @ flat(prior).T - levels @ flat(given.gram(prior)).T
    seen = seen + basis.T @ scaled - levels @ flat(drawn).T
    if width > targets:
        updated = jnp.linalg.solve((inverse + inverse.T)[targets:, targets:] / 2, seen)
    else:
        updated = jnp.zeros((0, extra), spacing.dtype)
    samples = paths + updated.T @ levels
    return values.T - levels.T @ coefficients, coefficients, samples.T, updated, found.residual


paths = Prepared(_paths, lambda *_: False, tuned=False)

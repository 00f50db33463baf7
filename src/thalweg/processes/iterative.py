"""Gaussian process regression by solves, for more rows than a factorisation can serve.

A sample of the posterior is f(x) = φ(x)ᵀw + k(x, X)·A⁻¹(y − Φw − ε), with random features φ, weights w and noise ε
drawn once (Wilson et al., 2020): one solve each, and variances that are never negative. Solves are conjugate gradients
on A = K + diag(noise), preconditioned by the same matrix with K replaced by its Nyström approximation from a few rows.
The kernel matrix is never stored: its products are made a tile of rows at a time, in float32, and added up in float64.
Where float32 is not enough, since the noise is small against the largest eigenvalue of K, products are in float64.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial
from jaxtyping import Array, Float, Key

from thalweg.codec import storable
from thalweg.compiling import quick_jit
from thalweg.kernels import Kernel
from thalweg.linalg import CGResult, LowRank, conjugate_gradients, factorise, fold_tiles, log_trace, low_rank
from thalweg.linalg.arrays import ratio
from thalweg.processes.covariance import compiles_quickly
from thalweg.processes.exact import Parameters
from thalweg.processes.observations import ProcessMean, RegressionRows
from thalweg.runs import Run
from thalweg.trees import as_host_arrays

SOLVE_TOLERANCE, MAX_PRODUCTS = 0.02, 400
"""A solve ends where ⟨r, A⁻¹r⟩ of its residual is at most the square of this share of that of its right side, or after
so many products: predictions are then off by hundredths of a standard deviation, less than 64 samples leave open. Half
of it takes a few more products."""

POSTERIOR_SAMPLES, FREQUENCIES = 64, 2048
"""Samples of the posterior that variances are made of, which errs by a tenth in a standard deviation, and random
frequencies of each. Twice as many samples take twice the memory."""

PROBES = 8
"""Vectors that the logarithm of the determinant is made of; four times as many halve its error."""

PIVOTS = {"cpu": 512, "gpu": 2048}
"""Rows that the preconditioner is made of: on either device a factorisation of about a second. Twice as many take twice
the memory, and eight times the factorisation."""

TILE_ENTRIES = {"cpu": 2**26, "gpu": 2**28}
"""Entries of the kernel matrix that exist at a time, after which interrupts are heard."""


@dataclass(frozen=True)
class SampledPosterior:
    """The posterior of a function by its mean and a few samples of what differs from it; arrays of NumPy."""

    kernel: Kernel
    noise: float
    mean: ProcessMean
    coefficients: np.ndarray
    """Those of the mean of the process, a column for each target."""
    updated: np.ndarray
    """The same in each sample."""
    residual: float
    """The largest residual of a solve as a share of its right side, in the norm of A⁻¹."""
    coarse: bool
    """Whether it is interpolated from a grid that is too coarse for the kernel: the function is then too smooth."""

    @property
    def observation_noise(self) -> float:
        """The variance of an observation around the function."""
        return self.noise

    def functions(self, new: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return means and samples at new inputs, without the mean of the process, and where there are any."""
        raise NotImplementedError

    def predict(self, new: np.ndarray, full: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """Return means of the function at new inputs, a column for each target, and its variances from the samples."""
        if full:
            raise ValueError(
                f"the covariance between points needs method='exact': here variances come from {POSTERIOR_SAMPLES} "
                "samples, which sample_y gives"
            )
        mean, differences, inside = self._parts(new)
        variances = np.mean(differences**2, axis=1)
        return mean, np.where(inside, variances, variances + float(self.kernel.variance))

    def sample(self, new: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
        """Draw functions from the posterior, at new inputs: (points, targets, count); there are only so many."""
        if count > POSTERIOR_SAMPLES:
            raise ValueError(
                f"n_samples must be at most {POSTERIOR_SAMPLES} where the fit was not exact, found {count}"
            )
        mean, differences, inside = self._parts(new)
        if not np.all(inside):
            raise ValueError(
                f"samples reach as far as the rows tell anything: {np.sum(~inside)} points lie beyond the grid"
            )
        return mean[:, :, None] + differences[:, None, rng.permutation(POSTERIOR_SAMPLES)[:count]]

    def _parts(self, new: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        functions, inside = self.functions(new)
        targets, basis = self.coefficients.shape[1], self.mean.basis(new)
        mean = functions[:, :targets] + basis @ self.coefficients
        return mean, functions[:, targets:] - basis @ self.updated, inside


@storable
@dataclass(frozen=True)
class PathwisePosterior(SampledPosterior):
    """The posterior by weights of the rows, and by samples made of random features and of weights of the rows."""

    inputs: np.ndarray
    weights: np.ndarray
    """A⁻¹(y − Hβ̂), and A⁻¹ times each sample's own values at the rows, in the precision that products need."""
    frequencies: np.ndarray
    prior: np.ndarray
    """Weights of the random features of each sample."""
    loss: float
    """−log p(y) of all rows, estimated."""
    loss_error: float
    """Its standard error."""

    def functions(self, new: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return products with the weights, from which those of samples are subtracted."""
        with jax.enable_x64(True):
            rows = [(rows - self.mean.centre).astype(self.weights.dtype) for rows in (new, self.inputs)]
            points, inputs, weights = map(jax.device_put, (*rows, self.weights))
            kernel = as_host_arrays(self.kernel)
            products = np.array(_compiled_product(kernel, points, inputs, weights), np.float64)
            features = np.asarray(_compiled_functions(kernel, self.frequencies, self.prior, points), np.float64)
        targets = self.coefficients.shape[1]
        products[:, targets:] = features - products[:, targets:]
        return products, np.ones(len(new), bool)


def posterior(parameters: Parameters, mean: ProcessMean, rows: RegressionRows, seed: int) -> PathwisePosterior:
    """Solve for the mean, for samples of the posterior, and for vectors that the marginal likelihood is made of."""
    kernel, noise = as_host_arrays(parameters.kernel), float(parameters.noise)
    points = jax.device_put(rows.inputs - mean.centre)  # before anything is cast to float32
    variances = jax.device_put(rows.variances(noise))
    first, second, third, key = jax.random.split(jax.random.key(seed), 4)
    frequencies, prior = _draw_prior(kernel, (first, second), points.shape[1])
    right = _right_sides(kernel, frequencies, prior, points, variances, rows.targets, rows.basis, third)
    solves = solve(kernel, points, variances, right, key)
    outputs, columns = rows.outputs, rows.basis.shape[1]
    width = outputs + POSTERIOR_SAMPLES
    right, solutions = (np.asarray(block)[:, : width + columns] for block in (solves.columns, solves.solved.x))
    solutions, whitened = np.split(solutions, [width], axis=1)
    # Coefficients of the mean by generalised least squares, for the targets and for each sample.
    coefficients = np.linalg.solve(rows.basis.T @ whitened, whitened.T @ right[:, :width])
    solutions = solutions - whitened @ coefficients
    determinant, error = solves.log_determinant()
    left = rows.targets - rows.basis @ coefficients[:, :outputs]
    quadratic = float(np.sum(left * solutions[:, :outputs]))
    constant = outputs * len(points) * np.log(2 * np.pi) / 2 + float(np.sum(rows.repeat_losses(noise)))
    return PathwisePosterior(
        kernel=jax.tree.map(np.asarray, kernel),
        noise=noise,
        mean=mean,
        coefficients=coefficients[:, :outputs],
        updated=coefficients[:, outputs:],
        residual=float(np.max(solves.solved.residuals)),
        coarse=False,
        inputs=rows.inputs,
        weights=solutions.astype(solves.dtype),
        frequencies=np.asarray(frequencies),
        prior=np.asarray(prior),
        loss=(quadratic + outputs * determinant) / 2 + constant,
        loss_error=outputs * error / 2,
    )


@quick_jit(lambda *_: True, static_argnums=2)
def _draw_prior(kernel: Kernel, keys: tuple[Key[Array, ""], ...], features: int) -> tuple[Array, Array]:
    """Return random frequencies, and the weights of their cosines and sines in each sample."""
    weights = jax.random.normal(keys[1], (2 * FREQUENCIES, POSTERIOR_SAMPLES)).astype(jnp.float32)
    return kernel.frequencies(keys[0], FREQUENCIES, features), weights


@quick_jit(lambda kernel, frequencies, prior, points, *_: compiles_quickly(points))
def _right_sides(
    kernel: Kernel,
    frequencies: Array,
    prior: Array,
    points: Float[Array, "n d"],
    variances: Float[Array, " n"],
    targets: Float[Array, "n t"],
    basis: Float[Array, "n p"],
    key: Key[Array, ""],
) -> Float[Array, "n t+s+p"]:
    """Return the targets, noisy values of the samples at the rows, and the basis of the mean."""
    drawn = _functions(kernel, frequencies, prior, points)
    drawn = drawn + jnp.sqrt(variances)[:, None] * jax.random.normal(key, drawn.shape)
    return jnp.concatenate([targets, drawn, basis], axis=1)


class SolveFailed(ValueError):
    """Conjugate gradients broke down, since the noise is too small for float64."""


class Solves(NamedTuple):
    """A⁻¹ times columns, the last of which are probes of N(0, P), P the preconditioner."""

    solved: CGResult
    columns: Float[Array, "n m"]
    energies: np.ndarray
    """⟨c, P⁻¹c⟩ of each column c."""
    preconditioner_log_determinant: float
    dtype: Any
    """That of products with A."""

    def log_determinant(self) -> tuple[float, float]:
        """log det A = log det P + tr log(P^(−½) A P^(−½)), the trace from solves for the probes; and its error."""
        sizes, ratios = (part[:, -PROBES:] for part in (self.solved.sizes, self.solved.ratios))
        trace, error = log_trace(sizes, ratios, self.energies[-PROBES:])
        return self.preconditioner_log_determinant + trace, error


def solve(
    kernel: Kernel, points: Float[Array, "n d"], variances: Float[Array, " n"], right: Float[Array, "n m"], key: Array
) -> Solves:
    """Return A⁻¹ times columns and probes.

    Probes are columns of N(0, P). Conjugate gradients in float32 may break down, or end with another residual than they
    think. Then float64 begins anew, so that the coefficients of its steps belong to one solve. An interrupt keeps what
    was reached.
    """
    size, backend, least = len(points), jax.default_backend(), float(np.min(np.asarray(variances)))
    # Fewer pivots for so many rows that their features would take more memory than two tiles.
    rank = min(PIVOTS[backend], size, 2 * TILE_ENTRIES[backend] // size)
    preconditioner, columns, determinant, *sizes = _precondition(kernel, points, variances, right, key, rank)
    energies, norms = map(np.asarray, sizes)
    # ‖r‖²/noise bounds ⟨r, A⁻¹r⟩, which is what errors of samples are made of.
    scales, none = np.sqrt(least * energies), np.zeros((0, columns.shape[1]))
    # Rounding of K in float32, against the noise, is how near a solve can come.
    wide = SOLVE_TOLERANCE * least < np.finfo(np.float32).eps * np.sqrt(size) * float(kernel.variance)
    for dtype in (jnp.float64,) if wide else (jnp.float32, jnp.float64):
        with Run("solves", total=MAX_PRODUCTS) as run:
            solved = conjugate_gradients(
                Partial(_covariance_product, *_compiled_as_type((kernel, points), dtype), preconditioner.diagonal),
                columns,
                precondition=Partial(LowRank.solve, preconditioner),
                tol=SOLVE_TOLERANCE * ratio(scales, norms),
                max_iter=MAX_PRODUCTS,
                watch=lambda x, iterations: run.keep(CGResult(x, iterations, none, none, none)),
                at_once=max(1, TILE_ENTRIES[backend] // size**2),
            )
            run.keep(solved)
        solved = run.kept
        residuals = np.asarray(_residual_norms(kernel, points, preconditioner.diagonal, solved.x, columns))
        solved = solved._replace(residuals=ratio(residuals, scales))
        if run.interrupted or np.max(solved.residuals) < 2 * SOLVE_TOLERANCE:
            break
    if not (run.interrupted or np.max(solved.residuals) < 1):
        raise SolveFailed(
            f"conjugate gradients broke down: a noise variance of {least:.3g} is too small for them. Give a larger "
            "noise, or take method='exact'"
        )
    return Solves(solved, columns, energies, float(determinant), dtype)


def _norms(block: Array) -> Array:
    return jnp.sqrt(jnp.sum(block**2, axis=0))


def _as_type(tree: Any, dtype: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf.astype(dtype), tree)


def _covariance_product(kernel: Kernel, points: Array, diagonal: Array, vectors: Array) -> Array:
    """A times columns, with K in the precision of the points."""
    return _product(kernel, points, points, vectors).astype(vectors.dtype) + diagonal * vectors


def _product(kernel: Kernel, left: Array, right: Array, vectors: Array) -> Float[Array, "m t"]:
    """k(left, right) times columns, in the precision of the points."""
    kernel, vectors = _as_type((kernel, vectors), left.dtype)
    # On a GPU three products of halves are as exact as one in float32, whose sums are what rounds, and faster.
    halves = left.dtype == jnp.float32 and jax.default_backend() == "gpu"
    precision = jax.lax.DotAlgorithmPreset.BF16_BF16_F32_X3 if halves else "highest"
    make = lambda part: jnp.matmul(kernel(part, right), vectors, precision=precision)
    return _by_tiles(make, left, len(right), vectors.shape[1])


def _functions(kernel: Kernel, frequencies: Array, prior: Array, points: Array) -> Float[Array, "n s"]:
    """Functions drawn from the prior at some points, as sums of random features."""
    frequencies, prior, variance = _as_type((frequencies, prior, kernel.variance), points.dtype)
    scaled = prior * jnp.sqrt(variance / len(frequencies))

    def make(part: Array) -> Array:
        angles = jnp.matmul(part, frequencies.T, precision="highest")
        features = jnp.concatenate([jnp.cos(angles), jnp.sin(angles)], axis=1)
        return jnp.matmul(features, scaled, precision="highest")

    return _by_tiles(make, points, 2 * len(frequencies), prior.shape[1])


def _by_tiles(make: Callable[[Array], Array], points: Array, width: int, columns: int) -> Array:
    """Rows that are made of those of some points, of which each takes so many entries in between."""
    rows = int(np.clip(TILE_ENTRIES[jax.default_backend()] // width, 16, len(points)))
    fill = lambda block, tile: tile.put(block, make(tile.take(points)))
    return fold_tiles(fill, jnp.zeros((len(points), columns), points.dtype), len(points), rows, jnp)


def nystrom(
    kernel: Kernel, points: Float[Array, "n d"], noise: Float[Array, " n"], key: Key[Array, ""], rank: int
) -> LowRank:
    """Return the preconditioner of K + diag(noise) from rows taken at random.

    A ridge on the pivots' matrix is an error of its own, and rounding that it does not damp is another: they are
    balanced at eps^(2/3) of the variance.
    """
    pivots = points[jax.random.choice(key, len(points), (rank,), replace=False)]
    root = factorise(kernel(pivots), np.cbrt(np.finfo(float).eps) ** 2 * kernel.variance)
    make = lambda part: root.half_solve(kernel(part, pivots).T).T
    return low_rank(_by_tiles(make, points, len(pivots), len(pivots)), noise[:, None])


@quick_jit(lambda kernel, points, *_: compiles_quickly(points), static_argnums=5)
def _precondition(
    kernel: Kernel,
    points: Float[Array, "n d"],
    variances: Float[Array, " n"],
    right: Float[Array, "n m"],
    key: Key[Array, ""],
    rank: int,
) -> tuple[LowRank, Array, Array, Array, Array]:
    """Return P, the columns with probes of N(0, P) beside them, log det P, and ⟨c, P⁻¹c⟩ and ‖c‖ of each column."""
    keys = jax.random.split(key, 3)
    preconditioner = nystrom(kernel, points, variances, keys[0], rank)
    inner, outer = (jax.random.normal(key, (n, PROBES)) for key, n in zip(keys[1:], (rank, len(points)), strict=True))
    columns = jnp.concatenate([right, preconditioner.draw(inner, outer)], axis=1)
    energies = jnp.sum(columns * preconditioner.solve(columns), axis=0)
    return preconditioner, columns, preconditioner.log_determinant(), energies, _norms(columns)


@quick_jit(compiles_quickly)
def _residual_norms(kernel: Kernel, points: Array, diagonal: Array, solution: Array, columns: Array) -> Array:
    return _norms(columns - _covariance_product(kernel, points, diagonal, solution))


_compiled_product = quick_jit(compiles_quickly)(_product)
_compiled_functions = quick_jit(lambda kernel, frequencies, prior, points: compiles_quickly(points))(_functions)
_compiled_as_type = jax.jit(_as_type, static_argnums=1)

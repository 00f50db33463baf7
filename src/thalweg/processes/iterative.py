"""Gaussian process regression by solves, for more rows than a factorisation can serve.

A sample of the posterior is f(x) = φ(x)ᵀw + k(x, X)·A⁻¹(y − Φw − ε), with random features φ, weights w and noise ε
drawn once (Wilson et al., 2020): one solve each, and variances that are never negative. Solves are conjugate gradients
on A = K + diag(noise), preconditioned by the same matrix with K replaced by its Nyström approximation from a few rows.
The kernel matrix is never stored: its products are made a tile of rows at a time, in float32, and added up in float64.
Where float32 is not enough, since the noise is small against the largest eigenvalue of K, products are in float64.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial
from jaxtyping import Array, Float, Key

from thalweg.codec import storable
from thalweg.compiling import quick_jit
from thalweg.kernels import Kernel
from thalweg.linalg import (
    CGResult,
    LowRank,
    TiledFeatures,
    conjugate_gradients,
    factorise,
    fold_tiles,
    log_quadrature,
    low_rank,
)
from thalweg.processes.covariance import as_device_arrays, compiles_quickly
from thalweg.processes.exact import Parameters
from thalweg.processes.observations import ProcessMean, RegressionRows
from thalweg.runs import Run

SOLVE_TOLERANCE, MAX_PRODUCTS = 2e-3, 400
"""A solve ends where residuals are this small against their right sides, which is a fiftieth of what samples leave
uncertain, or after so many products."""

POSTERIOR_SAMPLES, FREQUENCIES = 64, 2048
"""Samples of the posterior that variances are made of, which errs by a tenth in a standard deviation, and random
frequencies of each. Twice as many samples take twice the memory."""

PROBES = 8
"""Vectors that the logarithm of the determinant is made of."""

PIVOTS = {"cpu": 512, "gpu": 2048}
"""Rows that the preconditioner is made of: on either device a factorisation of about a second."""

TILE_ENTRIES = {"cpu": 2**26, "gpu": 2**28}
"""Entries of the kernel matrix that exist at a time, after which interrupts are heard."""


def refuse(covariance: bool, count: int = 0) -> None:
    """Say what a posterior that is known by samples cannot give."""
    if covariance:
        raise ValueError(
            f"the covariance between points needs method='exact': here variances come from {POSTERIOR_SAMPLES} "
            "samples, which sample_y gives"
        )
    if count > POSTERIOR_SAMPLES:
        raise ValueError(f"n_samples must be at most {POSTERIOR_SAMPLES} where the fit was not exact, found {count}")


@storable
@dataclass(frozen=True)
class PathwisePosterior:
    """The posterior of a function by its mean and a few samples of what differs from it; arrays of NumPy."""

    kernel: Kernel
    noise: float
    mean: ProcessMean
    inputs: np.ndarray
    weights: np.ndarray
    """A⁻¹(y − Hβ̂), in the precision that products with the kernel matrix need."""
    coefficients: np.ndarray
    frequencies: np.ndarray
    prior: np.ndarray
    """Weights of the random features of each sample."""
    updates: np.ndarray
    """A⁻¹ times each sample's own values at the rows."""
    updated: np.ndarray
    """The coefficients of the mean in each sample."""
    residual: float
    """The largest residual of a solve against its right side."""
    loss: float
    """−log p(y) of all rows, estimated."""
    loss_error: float
    """Its standard error."""

    coarse: ClassVar[bool] = False

    @property
    def observation_noise(self) -> float:
        """The variance of an observation around the function."""
        return self.noise

    def predict(self, new: np.ndarray, full: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """Return means of the function at new inputs, a column for each target, and its variances from the samples."""
        refuse(full)
        mean, differences = self._parts(new)
        return mean, np.mean(differences**2, axis=1)

    def sample(self, new: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
        """Return functions drawn from the posterior, at new inputs: (points, targets, count); as many as were solved."""
        refuse(False, count)
        mean, differences = self._parts(new)
        return mean[:, :, None] + differences[:, None, rng.permutation(POSTERIOR_SAMPLES)[:count]]

    def _parts(self, new: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        with jax.enable_x64(True):
            points = [jnp.asarray(rows - self.mean.centre, self.weights.dtype) for rows in (self.inputs, new)]
            both = jnp.asarray(np.concatenate([self.weights, self.updates], axis=1))
            arrays = jax.tree.map(jnp.asarray, (self.frequencies, self.prior))
            kernel = as_device_arrays(self.kernel)
            products, features = (
                _compiled_product(kernel, *points[::-1], both),
                _compiled_functions(kernel, *arrays, points[1]),
            )
        targets, basis = self.weights.shape[1], self.mean.basis(new)
        products = np.asarray(products, np.float64)
        mean = products[:, :targets] + basis @ self.coefficients
        return mean, np.asarray(features, np.float64) - products[:, targets:] - basis @ self.updated


def posterior(parameters: Parameters, mean: ProcessMean, rows: RegressionRows, seed: int) -> PathwisePosterior:
    """Solve for the mean, for samples of the posterior, and for vectors that the marginal likelihood is made of."""
    kernel, noise = as_device_arrays(parameters.kernel), float(parameters.noise)
    variances = jnp.asarray(rows.variances(noise))
    keys = jax.random.split(jax.random.key(seed), 6)
    points = jnp.asarray(rows.inputs - mean.centre)  # before anything is cast to float32
    frequencies = kernel.frequencies(keys[0], FREQUENCIES, points.shape[1])
    prior = _normal(keys[1], (2 * FREQUENCIES, POSTERIOR_SAMPLES)).astype(jnp.float32)
    drawn = _compiled_functions(kernel, frequencies, prior, points.astype(jnp.float32)).astype(points.dtype)
    drawn = drawn + jnp.sqrt(variances)[:, None] * _normal(keys[2], drawn.shape)
    preconditioner = nystrom(kernel, points, variances, keys[3], PIVOTS[jax.default_backend()])
    inner = _normal(keys[4], (len(preconditioner.features.root.lower), PROBES))
    probes = _compiled_draw(preconditioner, inner, _normal(keys[5], (len(points), PROBES)))
    outputs, columns = rows.outputs, rows.basis.shape[1]
    width = outputs + POSTERIOR_SAMPLES
    right = jnp.concatenate([jnp.asarray(rows.targets), drawn, jnp.asarray(rows.basis), probes], axis=1)
    del drawn  # of a million rows half a gigabyte, while they are solved for
    solved, dtype = solve(kernel, points, preconditioner, right)
    solutions, whitened = np.asarray(solved.x[:, :width]), np.asarray(solved.x[:, width : width + columns])
    # Coefficients of the mean by generalised least squares, for the targets and for each sample.
    coefficients = np.linalg.solve(rows.basis.T @ whitened, whitened.T @ np.asarray(right[:, :width]))
    solutions = solutions - whitened @ coefficients
    determinant, error = _log_determinant(solved, preconditioner, probes, slice(width + columns, None))
    left = rows.targets - rows.basis @ coefficients[:, :outputs]
    quadratic = float(np.sum(left * solutions[:, :outputs]))
    constant = outputs * len(points) * np.log(2 * np.pi) / 2 + float(np.sum(rows.repeat_losses(noise)))
    return PathwisePosterior(
        kernel=jax.tree.map(np.asarray, kernel),
        noise=noise,
        mean=mean,
        inputs=rows.inputs,
        weights=solutions[:, :outputs].astype(dtype),
        coefficients=coefficients[:, :outputs],
        frequencies=np.asarray(frequencies),
        prior=np.asarray(prior),
        updates=solutions[:, outputs:].astype(dtype),
        updated=coefficients[:, outputs:],
        residual=float(np.max(solved.residuals)),
        loss=(quadratic + outputs * determinant) / 2 + constant,
        loss_error=outputs * error / 2,
    )


def solve(
    kernel: Kernel, points: Float[Array, "n d"], preconditioner: LowRank, right: Float[Array, "n m"]
) -> tuple[CGResult, Any]:
    """Return A⁻¹ times columns, and the precision that products with the kernel matrix needed for it.

    Conjugate gradients in float32 may break down, or end with another residual than they think. Then float64 begins
    anew, so that the coefficients of its steps belong to one solve. An interrupt keeps what was reached.
    """
    per_look = max(1, TILE_ENTRIES[jax.default_backend()] // len(points) ** 2)
    none = np.zeros((0, right.shape[1]))
    for dtype in (jnp.float32, jnp.float64):
        with Run("solves", total=MAX_PRODUCTS) as run:
            solved = conjugate_gradients(
                Partial(_covariance_product, *_as_type((kernel, points), dtype), preconditioner.diagonal),
                right,
                precondition=Partial(LowRank.solve, preconditioner),
                tol=SOLVE_TOLERANCE,
                max_iter=MAX_PRODUCTS,
                watch=lambda x, iterations: run.keep(CGResult(x, iterations, none, none, none)),
                at_once=per_look,
            )
            run.keep(solved)
        solved = run.kept
        residual = right - _compiled_covariance_product(kernel, points, preconditioner.diagonal, solved.x)
        solved = solved._replace(residuals=np.asarray(_norms(residual) / jnp.maximum(_norms(right), _TINY)))
        if run.interrupted or np.max(solved.residuals) < 2 * SOLVE_TOLERANCE:
            break
    if not (run.interrupted or np.max(solved.residuals) < 1):
        least = float(jnp.min(preconditioner.diagonal))
        raise ValueError(
            f"conjugate gradients broke down: a noise variance of {least:.3g} is too small for them. Give a larger "
            "noise, or take method='exact'"
        )
    return solved, dtype


_TINY = np.finfo(np.float64).tiny


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


def _columns(kernel: Kernel, pivots: Array, points: Array) -> Array:
    return kernel(points, pivots)


@quick_jit(lambda kernel, points, noise, key, pivots: compiles_quickly(points), static_argnums=4)
def nystrom(
    kernel: Kernel, points: Float[Array, "n d"], noise: Float[Array, " n"], key: Key[Array, ""], rank: int
) -> LowRank:
    """Return the preconditioner of K + diag(noise) from rows taken at random."""
    pivots = points[jax.random.choice(key, len(points), (min(rank, len(points)),), replace=False)]
    # With a smaller ridge, rounding in products with the inverse root would outweigh small noise.
    root = factorise(kernel(pivots), np.cbrt(np.finfo(float).eps) * kernel.variance)
    features = TiledFeatures(Partial(_columns, kernel, pivots), points, root)
    return low_rank(features, noise[:, None])


def _log_determinant(solved: CGResult, preconditioner: LowRank, probes: Array, columns: slice) -> tuple[float, float]:
    """log det A = log det P + tr log(P^(−½) A P^(−½)), the trace from solves for columns of N(0, P); and its error."""
    lengths = np.asarray(jnp.sum(probes * _compiled_precondition(preconditioner, probes), axis=0))
    steps = zip(solved.sizes.T[columns], solved.ratios.T[columns], strict=True)
    values = lengths * np.array([log_quadrature(*one) for one in steps])
    error = np.std(values, ddof=1) / np.sqrt(len(values))
    return float(preconditioner.log_determinant()) + float(np.mean(values)), float(error)


@quick_jit(lambda key, shape: shape[0] <= 2 * FREQUENCIES, static_argnums=1)
def _normal(key: Array, shape: tuple[int, int]) -> Array:
    return jax.random.normal(key, shape, jnp.float64)


_compiled_product = quick_jit(compiles_quickly)(_product)
_compiled_covariance_product = quick_jit(compiles_quickly)(_covariance_product)
_compiled_functions = quick_jit(lambda kernel, frequencies, prior, points: compiles_quickly(points))(_functions)
_compiled_precondition = quick_jit(compiles_quickly)(LowRank.solve)
_compiled_draw = quick_jit(compiles_quickly)(LowRank.draw)

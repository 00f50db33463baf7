"""Solves with the covariance of more rows than a factorisation can serve, and posterior samples made of them.

Conjugate gradients on A = K + diag(noise), for several right sides at once, preconditioned by the same matrix with K
replaced by its Nyström approximation from a few rows. The kernel matrix is never stored: its products are made of
strips, in float32, and added up in the precision of the vectors.

A sample of the posterior is f(x) = φ(x)ᵀw + k(x, X)·A⁻¹(y − Φw − ε), with random features φ, weights w and noise ε
drawn once (Wilson et al., 2020): one solve each, and variances that are never negative.
"""

from dataclasses import dataclass
from functools import partial
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import cho_solve, solve_triangular
from jaxtyping import Array, Float, Key

from thalweg.codec import storable
from thalweg.kernels import Kernel
from thalweg.processes.exact import Parameters
from thalweg.processes.means import Mean

_STRIP_ENTRIES = 2**26
"""Entries of the kernel matrix that exist at a time."""

_NYSTROM_STRIP = 4096

_RANK = 512
"""Rows that the preconditioner is made of."""

TOLERANCE, _PRODUCTS = 3e-4, 400
"""A solve ends where residuals are this small against their right sides, or after so many products."""

_SAMPLES, _FREQUENCIES = 64, 2048
"""Samples of the posterior that variances are made of, and random frequencies of each."""

_SINGLE = jnp.float32


class Solves(NamedTuple):
    """A⁻¹ times the right sides, how many products it took, and the largest relative residual at the end."""

    x: Float[Array, "n m"]
    products: int
    residual: float


class Nystrom(NamedTuple):
    """(U Uᵀ + D)⁻¹ by Woodbury's identity: a preconditioner for K + D."""

    scaled: Float[Array, "n r"]
    """D⁻¹U."""
    factor: Float[Array, "r r"]
    """The Cholesky factor of I + UᵀD⁻¹U."""
    noise: Float[Array, " n"]

    def __call__(self, right: Float[Array, "n m"]) -> Float[Array, "n m"]:
        """Apply it."""
        inner = cho_solve((self.factor, True), self.scaled.T @ right.astype(self.scaled.dtype))
        return right / self.noise[:, None] - (self.scaled @ inner).astype(right.dtype)


@jax.jit
def nystrom(
    kernel: Kernel, inputs: Float[Array, "n d"], noise: Float[Array, " n"], pivots: Float[Array, "r d"]
) -> Nystrom:
    """The preconditioner made of k(x, pivots), a strip of rows at a time.

    What is added up is added in the precision of the inputs, since I + UᵀD⁻¹U is as badly conditioned as A; what is
    stored is float32.
    """
    among = kernel(pivots)
    among = among + 1e-6 * jnp.mean(jnp.diag(among)) * jnp.eye(len(among), dtype=among.dtype)
    root = jnp.linalg.cholesky(among)

    def strip(total: Array, part: tuple[Array, Array]) -> tuple[Array, Array]:
        points, variances = part
        low_rank = solve_triangular(root, kernel(pivots, points), lower=True)
        scaled = low_rank / variances[None]
        return total + scaled @ low_rank.T, scaled.T.astype(jnp.float32)

    count, size = len(inputs), min(_NYSTROM_STRIP, len(inputs))
    strips = -(-count // size)
    # Padded rows have so much noise that they add nothing.
    points = jnp.pad(inputs, ((0, strips * size - count), (0, 0)), mode="edge").reshape(strips, size, -1)
    variances = jnp.pad(noise, (0, strips * size - count), constant_values=jnp.inf).reshape(strips, size)
    gram, scaled = jax.lax.scan(strip, jnp.zeros_like(among), (points, variances))
    factor = jnp.linalg.cholesky(gram + jnp.eye(len(gram), dtype=gram.dtype))
    return Nystrom(scaled.reshape(strips * size, -1)[:count], factor.astype(jnp.float32), noise)


def product(
    kernel: Kernel, left: Float[Array, "m d"], right: Float[Array, "n d"], vectors: Float[Array, "n t"]
) -> Array:
    """k(left, right)·vectors, a strip of rows at a time, in the precision of the points."""
    count = len(left)
    strip = int(np.clip(_STRIP_ENTRIES // len(right), 16, count))
    strips = -(-count // strip)
    rows = jnp.pad(left, ((0, strips * strip - count), (0, 0))).reshape(strips, strip, -1)
    vectors = vectors.astype(left.dtype)
    found = jax.lax.map(lambda part: jnp.matmul(kernel(part, right), vectors, precision="highest"), rows)
    return found.reshape(strips * strip, -1)[:count]


class _State(NamedTuple):
    x: Array
    residual: Array
    direction: Array
    energy: Array
    lengths: Array
    products: Array


@partial(jax.jit, static_argnames="max_iter")
def _conjugate_gradients(
    kernel: Kernel,
    inputs: Array,
    noise: Array,
    precondition: Nystrom,
    right: Array,
    start: Array,
    tol: Array,
    max_iter: int,
) -> _State:
    apply = lambda v: product(kernel, inputs, inputs, v).astype(v.dtype) + noise[:, None].astype(v.dtype) * v
    lengths = lambda v: jnp.sqrt(jnp.sum(v**2, axis=0))
    goal = tol * jnp.maximum(lengths(right), jnp.finfo(right.dtype).tiny)

    def begin(x: Array) -> _State:
        residual = right - apply(x)
        z = precondition(residual)
        return _State(x, residual, z, jnp.sum(residual * z, axis=0), lengths(residual), jnp.asarray(1))

    def go_on(state: _State) -> Array:
        return jnp.any(state.lengths > goal) & (state.products < max_iter)

    def step(state: _State) -> _State:
        image = apply(state.direction)
        slope = jnp.sum(state.direction * image, axis=0)
        # A column that has ended stands still: rounding would take it away again.
        live = (state.lengths > goal) & (slope > 0)
        size = jnp.where(live, state.energy / jnp.where(slope > 0, slope, 1), 0)
        x, residual = state.x + size[None] * state.direction, state.residual - size[None] * image
        z = precondition(residual)
        energy = jnp.sum(residual * z, axis=0)
        ratio = jnp.where(live, energy / jnp.where(state.energy > 0, state.energy, 1), 0)
        return _State(x, residual, z + ratio[None] * state.direction, energy, lengths(residual), state.products + 1)

    return jax.lax.while_loop(go_on, step, begin(start))


def solve(
    kernel: Kernel,
    inputs: Float[Array, "n d"],
    noise: Float[Array, " n"],
    right: Float[Array, "n m"],
    key: Key[Array, ""],
    rank: int,
    tol: float,
    max_iter: int,
    start: Float[Array, "n m"] | None = None,
) -> Solves:
    """Solve A x = right, each column to a residual of ``tol`` times its length."""
    single = lambda tree: jax.tree.map(lambda leaf: leaf.astype(jnp.float32), tree)
    chosen = jax.random.choice(key, len(inputs), (min(rank, len(inputs)),), replace=False)
    preconditioner = nystrom(kernel, inputs, noise, inputs[chosen])
    begun = jnp.zeros_like(right) if start is None else start
    state = _conjugate_gradients(single(kernel), single(inputs), noise, preconditioner, right, begun, tol, max_iter)
    worst = jnp.max(state.lengths / jnp.maximum(jnp.sqrt(jnp.sum(right**2, axis=0)), jnp.finfo(right.dtype).tiny))
    return Solves(state.x, int(state.products), float(worst))


@storable
@dataclass(frozen=True)
class PathwisePosterior:
    """The posterior of a function by its mean and a few samples of what differs from it; arrays of NumPy."""

    kernel: Kernel
    noise: float
    mean: Mean
    inputs: np.ndarray
    weights: np.ndarray
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
    products: int

    coarse: ClassVar[bool] = False

    def predict(self, new: np.ndarray, full: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """Means of the function at new inputs, a column per target, and its variances from the samples."""
        if full:
            raise ValueError(
                "the covariance between points needs method='exact': here variances come from "
                f"{_SAMPLES} samples, which sample_y gives"
            )
        mean, differences = self._parts(new)
        return mean, np.mean(differences**2, axis=1)

    def sample(self, new: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
        """Functions drawn from the posterior, at new inputs: (points, targets, count); as many as were solved."""
        if count > _SAMPLES:
            raise ValueError(f"n_samples must be at most {_SAMPLES} where the fit was iterative, found {count}")
        mean, differences = self._parts(new)
        return mean[:, :, None] + differences[:, None, rng.permutation(_SAMPLES)[:count]]

    def _parts(self, new: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        with jax.enable_x64(True):
            both = jnp.asarray(np.concatenate([self.weights, self.updates], axis=1))
            points = self.inputs - self.mean.centre, new - self.mean.centre
            arrays = (self.kernel, *points, both, self.frequencies, self.prior)
            found, features = _evaluate(*jax.tree.map(jnp.asarray, arrays))
        targets, basis = self.weights.shape[1], self.mean.basis(new)
        found = np.asarray(found, np.float64)
        mean = found[:, :targets] + basis @ self.coefficients
        return mean, np.asarray(features, np.float64) - found[:, targets:] - basis @ self.updated


@jax.jit
def _evaluate(kernel: Kernel, inputs: Array, new: Array, weights: Array, frequencies: Array, prior: Array) -> tuple:
    kernel, inputs, new = jax.tree.map(lambda leaf: leaf.astype(_SINGLE), (kernel, inputs, new))
    return product(kernel, new, inputs, weights), _functions(kernel, frequencies, prior, new)


def _functions(kernel: Kernel, frequencies: Array, prior: Array, points: Array) -> Array:
    """Functions drawn from the prior at some points, as sums of random features."""
    angles = points @ frequencies.T.astype(points.dtype)
    half = prior.astype(points.dtype) * jnp.sqrt(kernel.variance.astype(points.dtype) / len(frequencies))
    return jnp.cos(angles) @ half[: len(frequencies)] + jnp.sin(angles) @ half[len(frequencies) :]


def posterior(
    parameters: Parameters,
    mean: Mean,
    inputs: np.ndarray,
    targets: np.ndarray,
    variances: np.ndarray,
    seed: int,
) -> PathwisePosterior:
    """Solve for the mean and for samples of the posterior.

    ``variances`` are those of the noise at the rows.
    """
    kernel = parameters.kernel
    keys = jax.random.split(jax.random.key(seed), 4)
    rows = jnp.asarray(inputs - mean.centre)  # before anything is cast to float32
    frequencies = kernel.frequencies(keys[0], _FREQUENCIES, inputs.shape[1])
    prior = jax.random.normal(keys[1], (2 * _FREQUENCIES, _SAMPLES), _SINGLE)
    drawn = _functions(kernel, frequencies, prior, rows.astype(_SINGLE))
    noise = jnp.sqrt(jnp.asarray(variances))[:, None] * jax.random.normal(keys[2], drawn.shape)
    basis = jnp.asarray(mean.basis(inputs))
    right = jnp.concatenate([jnp.asarray(targets), drawn.astype(noise.dtype) + noise, basis], axis=1)
    found = solve(kernel, rows, jnp.asarray(variances), right, keys[3], _RANK, TOLERANCE, _PRODUCTS)
    if not np.isfinite(found.residual):
        raise ValueError(
            f"conjugate gradients broke down: a noise variance of {parameters.noise:.3g} is too small for products in "
            "float32. Give a larger noise, or take method='exact'"
        )
    width = targets.shape[1] + _SAMPLES
    solved, whitened = np.asarray(found.x[:, :width]), np.asarray(found.x[:, width:])
    # Coefficients of the mean by generalised least squares, for the targets and for each sample.
    coefficients = np.linalg.solve(np.asarray(basis).T @ whitened, whitened.T @ np.asarray(right[:, :width]))
    solved = solved - whitened @ coefficients
    split = targets.shape[1]
    return PathwisePosterior(
        kernel=jax.tree.map(np.asarray, kernel),
        noise=float(parameters.noise),
        mean=mean,
        inputs=inputs,
        weights=solved[:, :split],
        coefficients=coefficients[:, :split],
        frequencies=np.asarray(frequencies),
        prior=np.asarray(prior),
        updates=solved[:, split:],
        updated=coefficients[:, split:],
        residual=found.residual,
        products=found.products,
    )

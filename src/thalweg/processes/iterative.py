"""Gaussian process regression by solves: learning on all rows, and posterior samples.

A sample of the posterior is f(x) = φ(x)ᵀw + k(x, X)·A⁻¹(y − Φw − ε), with random features φ, weights w and noise ε
drawn once (Wilson et al., 2020): one solve each, and variances that are never negative.
"""

from dataclasses import dataclass, field
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from thalweg.codec import storable
from thalweg.compiling import quick_jit
from thalweg.kernels import Kernel
from thalweg.processes.exact import Parameters, few
from thalweg.processes.host import HostRows
from thalweg.processes.means import Mean
from thalweg.processes.solves import NystromInverse, Solves, cut, kernel_slope, nystrom, product, solve, strip_rows

TOLERANCE, _PRODUCTS = 2e-3, 400
"""A solve ends where residuals are this small against their right sides, or after so many products."""

_LOOSE = 1e-2
"""The tolerance while parameters are learned, which moves a slope by about as much of itself."""

_SAMPLES, _FREQUENCIES = 64, 2048
"""Samples of the posterior that variances are made of, and random frequencies of each."""

_PROBES = 8
"""Vectors that slopes, and the logarithm of the determinant, are made of."""

_SINGLE = jnp.float32


def _rank() -> int:
    """Rows that the preconditioner is made of."""
    return 512 if jax.default_backend() == "cpu" else 2048


@dataclass
class Climb:
    """−log p(y) of all rows as a search sees it: slopes by solves, values by what the slopes add up to.

    tr(A⁻¹∂A) is the mean of zᵀA⁻¹∂A z over a few z ~ N(0, I), drawn once: with equal z, solutions move only as far as
    the parameters did, so each solve starts from the last one. A value is that at the nearest point seen before plus
    the mean of both slopes times the way between. Slopes are unbiased but for what solves leave, a share ``_LOOSE`` of
    their right sides.
    """

    rows: HostRows
    mean: Mean
    seed: int
    _seen: list[tuple[np.ndarray, np.ndarray, float]] = field(default_factory=list)
    _solved: Array | None = None

    @property
    def inputs(self) -> np.ndarray:
        """Of the rows."""
        return self.rows.inputs

    def loss(self, parameters: Parameters) -> float:
        """The value."""
        return self.loss_and_slope(parameters)[0]

    def loss_and_slope(self, parameters: Parameters) -> tuple[float, Parameters]:
        """The value, and the derivative in the logarithms of all parameters."""
        slope = self.slope(parameters)
        flat = lambda tree: np.concatenate([np.ravel(np.asarray(leaf, np.float64)) for leaf in jax.tree.leaves(tree)])
        place, rise = np.log(flat(parameters)), flat(slope)
        value = 0.0
        if self._seen:
            nearest, before, value = min(self._seen, key=lambda one: float(np.sum((one[0] - place) ** 2)))
            value += float((rise + before) @ (place - nearest)) / 2
        self._seen.append((place, rise, value))
        return value, slope

    def slope(self, parameters: Parameters) -> Parameters:
        """The derivative in the logarithms of all parameters."""
        rows, kernel, noise = self.rows, parameters.kernel, float(parameters.noise)
        drawn, picked = jax.random.split(jax.random.key(self.seed))
        points = jnp.asarray(rows.inputs - self.mean.centre)
        probes = _normal(drawn, (len(points), _PROBES))
        targets, basis = jnp.asarray(rows.targets), jnp.asarray(rows.basis)
        right = jnp.concatenate([targets, basis, probes], axis=1)
        preconditioner = nystrom(kernel, points, jnp.asarray(rows.variances(noise)), picked, _rank())
        found = solve(kernel, points, preconditioner, right, _LOOSE, _PRODUCTS, self._solved)
        if found.interrupted:
            raise KeyboardInterrupt
        self._solved = found.x
        outputs, columns = targets.shape[1], basis.shape[1]
        solved, whitened, sides = jnp.split(found.x, [outputs, outputs + columns], axis=1)
        if columns:
            solved = solved - whitened @ jnp.linalg.solve(basis.T @ whitened, basis.T @ solved)
        left = jnp.concatenate([outputs / _PROBES * sides, -solved], axis=1)
        right = jnp.concatenate([probes, solved], axis=1)
        by_noise = jnp.sum(jnp.sum(left * right, axis=1) / rows.weights + rows.repeats_slope(noise))
        both = Parameters(kernel_slope(kernel, points, left, right), by_noise)
        return jax.tree.map(lambda one, parameter: one * parameter / 2, both, parameters)


def refuse(covariance: bool, samples: int, count: int = 0) -> None:
    """Say what a posterior that is known by some samples cannot give."""
    if covariance:
        raise ValueError(
            f"the covariance between points needs method='exact': here variances come from {samples} samples, which "
            "sample_y gives"
        )
    if count > samples:
        raise ValueError(f"n_samples must be at most {samples} where the fit was not exact, found {count}")


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
    interrupted: bool
    """Whether the solves were ended by Ctrl-C."""
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
        """Means of the function at new inputs, a column per target, and its variances from the samples."""
        refuse(full, _SAMPLES)
        mean, differences = self._parts(new)
        return mean, np.mean(differences**2, axis=1)

    def sample(self, new: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
        """Functions drawn from the posterior, at new inputs: (points, targets, count); as many as were solved."""
        refuse(False, _SAMPLES, count)
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


@quick_jit(lambda kernel, inputs, new, *_: few(inputs, new))
def _evaluate(kernel: Kernel, inputs: Array, new: Array, weights: Array, frequencies: Array, prior: Array) -> tuple:
    kernel, inputs, new = jax.tree.map(lambda leaf: leaf.astype(_SINGLE), (kernel, inputs, new))
    return product(kernel, new, inputs, weights), _functions(kernel, frequencies, prior, new)


def _functions(kernel: Kernel, frequencies: Array, prior: Array, points: Array) -> Array:
    """Functions drawn from the prior at some points, as sums of random features, a strip of points at a time."""
    half = prior.astype(points.dtype) * jnp.sqrt(kernel.variance.astype(points.dtype) / len(frequencies))

    def strip(part: Array) -> Array:
        angles = jnp.matmul(part, frequencies.T.astype(points.dtype), precision="highest")
        features = jnp.concatenate([jnp.cos(angles), jnp.sin(angles)], axis=1)
        return jnp.matmul(features, half, precision="highest")

    strips = cut(points, strip_rows(len(points), 2 * len(frequencies)))
    return jax.lax.map(strip, strips).reshape(-1, prior.shape[1])[: len(points)]


_drawn = quick_jit(lambda kernel, frequencies, prior, points: few(points))(_functions)


@quick_jit(lambda key, shape: shape[0] <= 2 * _FREQUENCIES, static_argnums=1)
def _normal(key: Array, shape: tuple[int, int]) -> Array:
    return jax.random.normal(key, shape, jnp.float64)


def posterior(parameters: Parameters, mean: Mean, rows: HostRows, seed: int) -> PathwisePosterior:
    """Solve for the mean, for samples of the posterior, and for vectors that the marginal likelihood is made of."""
    kernel, variances = parameters.kernel, jnp.asarray(rows.variances(float(parameters.noise)))
    keys = jax.random.split(jax.random.key(seed), 5)
    points = jnp.asarray(rows.inputs - mean.centre)  # before anything is cast to float32
    frequencies = kernel.frequencies(keys[0], _FREQUENCIES, points.shape[1])
    prior = _normal(keys[1], (2 * _FREQUENCIES, _SAMPLES)).astype(_SINGLE)
    drawn = _drawn(kernel, frequencies, prior, points.astype(_SINGLE))
    drawn = drawn.astype(variances.dtype) + jnp.sqrt(variances)[:, None] * _normal(keys[2], drawn.shape)
    preconditioner = nystrom(kernel, points, variances, keys[3], _rank())
    probes, basis = preconditioner.draw(keys[4], _PROBES), jnp.asarray(rows.basis)
    outputs = rows.targets.shape[1]
    width = outputs + _SAMPLES
    right = jnp.concatenate([jnp.asarray(rows.targets), drawn, basis, probes], axis=1)
    del drawn  # of a million rows half a gigabyte, while they are solved for
    found = solve(kernel, points, preconditioner, right, TOLERANCE, _PRODUCTS)
    if not found.residual < 1 and not found.interrupted:
        raise ValueError(
            f"conjugate gradients broke down: a noise variance of {parameters.noise:.3g} is too small for products in "
            "float32. Give a larger noise, or take method='exact'"
        )
    solved, whitened = np.asarray(found.x[:, :width]), np.asarray(found.x[:, width : width + basis.shape[1]])
    # Coefficients of the mean by generalised least squares, for the targets and for each sample.
    coefficients = np.linalg.solve(np.asarray(basis).T @ whitened, whitened.T @ np.asarray(right[:, :width]))
    solved = solved - whitened @ coefficients
    determinant, error = _log_determinant(found, preconditioner, probes, slice(width + basis.shape[1], None))
    left = rows.targets - rows.basis @ coefficients[:, :outputs]
    quadratic = float(np.sum(left * solved[:, :outputs]))
    loss = (quadratic + outputs * determinant) / 2 + rows.constant(float(parameters.noise))
    return PathwisePosterior(
        kernel=jax.tree.map(np.asarray, kernel),
        noise=float(parameters.noise),
        mean=mean,
        inputs=rows.inputs,
        weights=solved[:, :outputs],
        coefficients=coefficients[:, :outputs],
        frequencies=np.asarray(frequencies),
        prior=np.asarray(prior),
        updates=solved[:, outputs:],
        updated=coefficients[:, outputs:],
        residual=found.residual,
        products=found.products,
        interrupted=found.interrupted,
        loss=loss,
        loss_error=outputs * error / 2,
    )


def _log_determinant(
    found: Solves, preconditioner: NystromInverse, probes: Array, columns: slice
) -> tuple[float, float]:
    """log det A = log det P + tr log(P^(−½) A P^(−½)), the trace from solves for columns of N(0, P); and its error."""
    lengths = np.asarray(jnp.sum(probes * preconditioner(probes), axis=0))
    values = lengths * found.log_quadratures(columns)
    error = np.std(values, ddof=1) / np.sqrt(len(values))
    return float(preconditioner.log_determinant()) + float(np.mean(values)), float(error)

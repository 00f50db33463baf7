"""SGD of Han et al. (2018) for a GP on a grid, with unbiased log-determinants, and Lanczos quadrature beside it.

They minimise 2·(−log p(y)) = yᵀA⁻¹y + log det A (up to a constant) over the logarithms of lengthscale, variance and
noise, A = W K Wᵀ + σ²I with a Toeplitz K, as the paper has it. The data term is solved by conjugate gradients: its
value errs by the square of the residual and its gradient by about the residual, which bounds the bias that an
incomplete solve leaves. Every few steps the interval of the spectrum is bounded anew, σ² ≤ λ ≤ σ² + ‖W‖²·max|FFT|, with
a margin for as far as the parameters may move until then: the steps are projected onto a box of that size.
"""

import time
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from papers._lanczos import LanczosOracle
from thalweg import arguments
from thalweg.descent import Box, Polynomial, minimize
from thalweg.kernels import Grid, Interpolation, Kernel
from thalweg.spectral import InterpolatedOperator, ShiftedOperator, SpectralOracle, ToeplitzOperator

METHODS = ("sgd", "lanczos")

_MAX_MOVE_PER_ROUND = 0.5
"""How far a logarithm may move before the interval is bounded anew. Twice as far makes the interval e times wider."""

_MAX_MOVE = np.log(1e4)
"""How far a logarithm may move in all."""

_STEPS_PER_ROUND = 5
"""Steps until the interval is bounded anew."""

_RESIDUAL = 1e-4
"""The relative residual at which the solve of the data term ends: the gradient is off by about as much."""

_PROBES, _LANCZOS_STEPS = 8, 20
"""Probes of an estimate, and Lanczos steps for each of them."""


class HyperParameters(NamedTuple):
    """A kernel and the variance of the noise, or the logarithms of both."""

    kernel: Kernel
    noise: Float[Array, ""]


class PathPoint(NamedTuple):
    """Parameters along a descent, and the seconds until then."""

    seconds: float
    parameters: HyperParameters


class GridRows(eqx.Module):
    """Rows on a grid: a map from parameters to the covariance A of the rows."""

    offsets: Float[Array, "nodes d"]
    """The nodes of the grid, from the first."""
    interpolation: Interpolation
    targets: Float[Array, " n"]
    max_products: int = eqx.field(static=True, default=500)
    """Products with A after which a solve ends. More would not help where rounding stops it."""

    @classmethod
    def on(cls, grid: Grid, inputs: np.ndarray, targets: np.ndarray) -> "GridRows":
        """Return rows on a grid; the targets must have a mean of 0."""
        return cls(jnp.asarray(grid.offsets()), grid.interpolation(inputs), jnp.asarray(targets))

    def among_nodes(self, logs: HyperParameters) -> ToeplitzOperator:
        """Return K."""
        kernel = jax.tree.map(jnp.exp, logs.kernel)
        column = kernel(jnp.zeros((1, self.offsets.shape[1])), self.offsets)
        return ToeplitzOperator(column.reshape(self.interpolation.nodes))

    def __call__(self, logs: HyperParameters) -> ShiftedOperator:
        """Return A."""
        return ShiftedOperator(InterpolatedOperator(self.interpolation, self.among_nodes(logs)), jnp.exp(logs.noise))

    def solve(self, A: Any) -> Float[Array, " n"]:
        """Return A⁻¹y by conjugate gradients, without a derivative."""
        product = lambda vector: A @ vector
        alpha, _ = jax.scipy.sparse.linalg.cg(product, self.targets, tol=_RESIDUAL, maxiter=self.max_products)
        return jax.lax.stop_gradient(alpha)

    def predict(self, parameters: HyperParameters, new: Interpolation) -> np.ndarray:
        """Return the posterior mean at points to which the same grid is interpolated."""
        return np.asarray(_posterior_mean(self, jax.tree.map(jnp.log, parameters), new))


class DataTerm(eqx.Module):
    """yᵀA⁻¹y, with the gradient −αᵀ(∂A)α of the solution α."""

    rows: GridRows

    def __call__(self, logs: HyperParameters) -> Float[Array, ""]:
        """Return the value; its error is of the order of the residual squared."""
        A, y = self.rows(logs), self.rows.targets
        alpha = self.rows.solve(jax.lax.stop_gradient(A))
        return 2 * alpha @ y - alpha @ (A @ alpha)


@jax.jit
def _posterior_mean(rows: GridRows, logs: HyperParameters, new: Interpolation) -> Float[Array, " points"]:
    weights = rows.interpolation.rmv(rows.solve(rows(logs))[:, None])
    return new.mv(rows.among_nodes(logs).mv(weights))[:, 0]


@jax.jit
def _relative_residual(rows: GridRows, logs: HyperParameters) -> Float[Array, ""]:
    A = rows(logs)
    return jnp.linalg.norm(rows.targets - A @ rows.solve(A)) / jnp.linalg.norm(rows.targets)


def descend(
    start: HyperParameters,
    rows: GridRows,
    method: str,
    key: Key[Array, ""],
    *,
    rounds: int,
    seconds: float = np.inf,
    count_compiling: bool = True,
    clock: Callable[[], float] = time.perf_counter,
) -> list[PathPoint]:
    """Follow "sgd" (Algorithm 1) or "lanczos" from a start, and return the parameters after each round.

    A round is a few steps with one interval, fewer where the seconds end. Unless compiling counts, a round that needs
    new programs begins again after its first step. All arithmetic is in float64: call it within ``jax.enable_x64``.
    """
    arguments.one_of("method", method, METHODS)
    data_term = DataTerm(rows)
    logs = jax.tree.map(jnp.log, start)
    least = jax.tree.map(lambda leaf: leaf - _MAX_MOVE, logs)
    most = jax.tree.map(lambda leaf: leaf + _MAX_MOVE, logs)
    # The lower end of the spectrum moves with the noise, the upper one with the variance and the lengthscales.
    margins = np.exp([_MAX_MOVE_PER_ROUND, _MAX_MOVE_PER_ROUND * (1 + rows.offsets.shape[1])])

    def make_oracle(logs: HyperParameters, key: Array) -> Any:
        if method == "lanczos":
            return LanczosOracle(rows, g=data_term, probes=_PROBES, steps=_LANCZOS_STEPS)
        lower, upper = rows(logs).bounds()
        options = {"probes": _PROBES, "interval": (lower / margins[0], margins[1] * upper), "slack": 1.0}
        return SpectralOracle("log", rows, logs, key, g=data_term, **options)

    path, elapsed, turn, compiled = [PathPoint(0.0, start)], 0.0, 0, set()
    while turn < rounds and elapsed <= seconds:
        began, plan_key, steps_key = clock(), *jax.random.split(jax.random.fold_in(key, turn))
        oracle = make_oracle(logs, plan_key)
        box = Box(
            jax.tree.map(lambda leaf, end: jnp.maximum(leaf - _MAX_MOVE_PER_ROUND, end), logs, least),
            jax.tree.map(lambda leaf, end: jnp.minimum(leaf + _MAX_MOVE_PER_ROUND, end), logs, most),
        )
        step = Polynomial(float((1 + turn * _STEPS_PER_ROUND / 20) ** -0.5) / len(rows.targets), scale=20.0)
        shapes = tuple(np.shape(leaf) for leaf in jax.tree.leaves(oracle))
        counts = count_compiling or shapes in compiled
        is_over = lambda _: not counts or elapsed + clock() - began > seconds  # noqa: B023
        result = minimize(
            oracle, logs, term=box, step=step, steps=_STEPS_PER_ROUND, key=steps_key, stride=1, callback=is_over
        )
        compiled.add(shapes)
        if not counts:
            continue
        logs = jax.block_until_ready(result.x)
        elapsed, turn = elapsed + clock() - began, turn + 1
        path.append(PathPoint(elapsed, jax.tree.map(jnp.exp, logs)))
    residual = float(_relative_residual(rows, logs))
    if not residual <= 2 * _RESIDUAL:
        warnings.warn(
            f"{rows.max_products} products left a residual of {residual:.2g} in the solve of the data term, and the "
            "gradient is off by about as much of itself: start from more noise, or take GPRegressor, which "
            "preconditions its solves",
            RuntimeWarning,
            stacklevel=2,
        )
    return path

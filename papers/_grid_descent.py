"""The paper's SGD on a grid, with unbiased log-determinants, and Lanczos quadrature beside it.

They minimise 2·(−log p(y)) = yᵀA⁻¹y + log det A (up to a constant) over the logarithms of lengthscale, variance and
noise, A = W K Wᵀ + σ²I with a Toeplitz K, as the paper has it. The data term is solved by conjugate gradients: its
value errs by the square of the residual and its gradient by about the residual, which bounds the bias that a solve cut
short leaves. Every few steps the interval of the spectrum is bounded anew, σ² ≤ λ ≤ σ² + ‖W‖²·max|FFT|, with room for
as far as the parameters may move until then: the steps are projected onto a box of that size.
"""

import time
import warnings
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from thalweg import arguments
from thalweg.descent import Box, Polynomial, minimize
from thalweg.kernels import Grid, Interpolation
from thalweg.processes.exact import Parameters
from thalweg.spectral import InterpolatedOperator, LanczosOracle, ShiftedOperator, SpectralOracle, ToeplitzOperator

METHODS = ("sgd", "lanczos")

_ROOM = 0.5
"""How far a logarithm may move before the interval is bounded anew."""

_FURTHEST = np.log(1e4)
"""How far in all."""

_STEPS = 5
"""Steps until then."""

_RESIDUAL, _PRODUCTS = 1e-4, 500
"""Where the solve of the data term ends."""

_PROBES, _LANCZOS_STEPS = 8, 20
"""Of an estimate, and of the quadrature of each."""


class Visit(NamedTuple):
    """Parameters on the way, and the seconds until then."""

    seconds: float
    parameters: Parameters


class Interpolated(eqx.Module):
    """Rows on a grid: the covariance of parameters, and the objective's data term."""

    offsets: Float[Array, "nodes d"]
    """The nodes of the grid, from the first."""
    interpolation: Interpolation
    targets: Float[Array, " n"]

    @classmethod
    def of(cls, grid: Grid, inputs: np.ndarray, targets: np.ndarray) -> "Interpolated":
        """Rows, and targets without a mean."""
        return cls(jnp.asarray(grid.offsets()), grid.interpolation(inputs), jnp.asarray(targets))

    def among_nodes(self, logs: Parameters) -> ToeplitzOperator:
        """K."""
        kernel = jax.tree.map(jnp.exp, logs.kernel)
        column = kernel(jnp.zeros((1, self.offsets.shape[1])), self.offsets)
        return ToeplitzOperator(column.reshape(self.interpolation.nodes))

    def __call__(self, logs: Parameters) -> ShiftedOperator:
        """A."""
        return ShiftedOperator(InterpolatedOperator(self.interpolation, self.among_nodes(logs)), jnp.exp(logs.noise))

    def predict(self, parameters: Parameters, new: Interpolation) -> np.ndarray:
        """The posterior mean at points that the same grid is interpolated to."""
        return np.asarray(_mean(self, jax.tree.map(jnp.log, parameters), new))


class Misfit(eqx.Module):
    """yᵀA⁻¹y, with the gradient −αᵀ(∂A)α of the solution α."""

    rows: Interpolated

    def __call__(self, logs: Parameters) -> Float[Array, ""]:
        """The value; its error is of the order of the residual squared."""
        A, y = self.rows(logs), self.rows.targets
        alpha = solve(jax.lax.stop_gradient(A), y)
        return 2 * alpha @ y - alpha @ (A @ alpha)


def solve(A: Any, right: Float[Array, " n"]) -> Float[Array, " n"]:
    """A⁻¹ times a vector by conjugate gradients; no derivative is taken of it."""
    found, _ = jax.scipy.sparse.linalg.cg(lambda vector: A @ vector, right, tol=_RESIDUAL, maxiter=_PRODUCTS)
    return jax.lax.stop_gradient(found)


@jax.jit
def _mean(rows: Interpolated, logs: Parameters, new: Interpolation) -> Float[Array, " points"]:
    weights = rows.interpolation.rmv(solve(rows(logs), rows.targets)[:, None])
    return new.mv(rows.among_nodes(logs).mv(weights))[:, 0]


@jax.jit
def _left(rows: Interpolated, logs: Parameters) -> Float[Array, ""]:
    """The residual of the solve, against its right side."""
    A = rows(logs)
    return jnp.linalg.norm(rows.targets - A @ solve(A, rows.targets)) / jnp.linalg.norm(rows.targets)


def descend(
    start: Parameters,
    rows: Interpolated,
    method: str,
    key: Key[Array, ""],
    *,
    rounds: int,
    seconds: float = np.inf,
    compiling: bool = True,
) -> list[Visit]:
    """Follow "sgd" (Algorithm 1) or "lanczos" from a start: where they were after each round.

    A round is a few steps with one interval, fewer where the seconds end. Unless ``compiling`` counts, a round that
    needs new programs begins again after its first step. Everything is arithmetic in float64: call it within
    ``jax.enable_x64``.
    """
    arguments.one_of("method", method, METHODS)
    count, misfit = len(rows.targets), Misfit(rows)
    logs = jax.tree.map(jnp.log, start)
    least = jax.tree.map(lambda leaf: leaf - _FURTHEST, logs)
    most = jax.tree.map(lambda leaf: leaf + _FURTHEST, logs)
    # The lower end moves with the noise, the upper one with the variance and the lengthscales.
    below, above = float(np.exp(_ROOM)), float(np.exp(_ROOM * (1 + rows.offsets.shape[1])))

    def oracle_at(logs: Parameters, key: Array) -> Any:
        if method == "lanczos":
            return LanczosOracle(rows, g=misfit, probes=_PROBES, steps=_LANCZOS_STEPS)
        lower, upper = rows(logs).bounds()
        options = {"probes": _PROBES, "interval": (lower / below, above * upper), "slack": 1.0}
        return SpectralOracle("log", rows, logs, key, g=misfit, **options)

    visits, clock, turn, known = [Visit(0.0, start)], 0.0, 0, set()
    while turn < rounds and clock <= seconds:
        begun, key_of_plan, key_of_steps = time.perf_counter(), *jax.random.split(jax.random.fold_in(key, turn))
        oracle = oracle_at(logs, key_of_plan)
        box = Box(
            jax.tree.map(lambda leaf, end: jnp.maximum(leaf - _ROOM, end), logs, least),
            jax.tree.map(lambda leaf, end: jnp.minimum(leaf + _ROOM, end), logs, most),
        )
        step = Polynomial(float((1 + turn * _STEPS / 20) ** -0.5) / count, scale=20.0)
        programs = tuple(np.shape(leaf) for leaf in jax.tree.leaves(oracle))
        counts = compiling or programs in known
        late = lambda _: not counts or clock + time.perf_counter() - begun > seconds  # noqa: B023
        result = minimize(oracle, logs, term=box, step=step, steps=_STEPS, key=key_of_steps, stride=1, callback=late)
        known.add(programs)
        if not counts:
            continue
        logs = jax.block_until_ready(result.x)
        clock, turn = clock + time.perf_counter() - begun, turn + 1
        visits.append(Visit(clock, jax.tree.map(jnp.exp, logs)))
    left = float(_left(rows, logs))
    if not left <= 2 * _RESIDUAL:
        warnings.warn(
            f"{_PRODUCTS} products left a residual of {left:.2g} in the solve of the data term, and the slope is off "
            "by about as much of itself: start from more noise, or take GPRegressor, which preconditions its solves",
            RuntimeWarning,
            stacklevel=2,
        )
    return visits

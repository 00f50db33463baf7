"""SGD and Lanczos quadrature on a grid: gradients against dense algebra, and a descent that lowers the objective."""

import itertools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from papers._grid_descent import METHODS, DataTerm, GridRows, HyperParameters, descend
from thalweg.kernels import Gaussian, Grid, Matern32
from thalweg.spectral import SpectralOracle

RNG = np.random.default_rng(0)
X = np.sort(RNG.uniform(size=(60, 1)), axis=0)
Y = np.sin(9 * X[:, 0]) + 0.2 * RNG.normal(size=60)
GRID = Grid([0.0], [1 / 23], (24,))
ROWS = GridRows.on(GRID, X, Y)


def start(kernel=Gaussian, length=0.1):
    return HyperParameters(kernel(jnp.asarray(length), jnp.asarray(0.6)), jnp.asarray(0.1))


def dense(logs):
    """Return yᵀA⁻¹y + log det A from dense matrices."""
    W = ROWS.interpolation.mv(jnp.eye(GRID.size))
    kernel, noise = jax.tree.map(jnp.exp, (logs.kernel, logs.noise))
    A = W @ kernel(jnp.asarray(GRID.offsets())) @ W.T + noise * jnp.eye(60)
    return Y @ jnp.linalg.solve(A, Y) + jnp.linalg.slogdet(A)[1]


@pytest.mark.slow
@pytest.mark.parametrize("kernel", [Gaussian, Matern32])
def test_stochastic_gradients_are_unbiased(kernel):
    logs = jax.tree.map(jnp.log, start(kernel))
    oracle = SpectralOracle("log", ROWS, logs, jax.random.key(0), g=DataTerm(ROWS), probes=4)
    estimate = jax.jit(jax.vmap(lambda key: oracle.estimate(logs, (), key)[0].gradient))
    drawn = jax.tree.leaves(estimate(jax.random.split(jax.random.key(1), 300)))
    for estimates, exact in zip(drawn, jax.tree.leaves(jax.grad(dense)(logs)), strict=True):
        estimates = np.asarray(estimates)
        # The data term errs by its residual, a ten-thousandth.
        error = 5 * estimates.std() / np.sqrt(len(estimates)) + 1e-3 * abs(float(exact))
        assert abs(estimates.mean() - float(exact)) < error


@pytest.mark.slow
def test_a_solve_that_does_not_converge_warns():
    rows = replace(ROWS, max_products=1)
    with pytest.warns(RuntimeWarning, match="1 products left a residual of"):
        descend(start(), rows, "lanczos", jax.random.key(0), rounds=1)


@pytest.mark.slow
def test_a_descent_ends_with_its_seconds_and_compiling_does_not_count():
    ticks = itertools.count()
    # Reading the clock takes a second, and it is read after each step.
    limits = {"rounds": 3, "seconds": 8.0, "clock": lambda: float(next(ticks))}
    path = descend(start(), ROWS, "sgd", jax.random.key(0), **limits, count_compiling=False)
    assert [point.seconds for point in path] == [0.0, 6.0, 10.0]
    assert next(ticks) > 10 + 3  # and compiling took some
    counted = descend(start(), ROWS, "sgd", jax.random.key(0), **limits)
    assert [point.parameters.noise for point in counted] == [point.parameters.noise for point in path]


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_a_descent_lowers_the_objective(method):
    path = descend(start(length=0.6), ROWS, method, jax.random.key(0), rounds=6)
    assert len(path) == 7
    loss = [float(dense(jax.tree.map(jnp.log, point.parameters))) for point in path]
    assert loss[-1] < loss[0] - 10
    assert np.all(np.diff([point.seconds for point in path]) > 0)
    mean = ROWS.predict(path[-1].parameters, GRID.interpolation(X))
    assert np.sqrt(np.mean((mean - np.sin(9 * X[:, 0])) ** 2)) < 0.15

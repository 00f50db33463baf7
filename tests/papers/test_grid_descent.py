"""The paper's algorithms on a grid: gradients against dense algebra, and a descent that gains."""

import itertools
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from thalweg.kernels import Gaussian, Grid, Matern32
from thalweg.processes import paths
from thalweg.processes.exact import Parameters
from thalweg.processes.paths import METHODS, Interpolated, Misfit, descend
from thalweg.spectral import SpectralOracle

RNG = np.random.default_rng(0)
X = np.sort(RNG.uniform(size=(60, 1)), axis=0)
Y = np.sin(9 * X[:, 0]) + 0.2 * RNG.normal(size=60)
GRID = Grid([0.0], [1 / 23], (24,))
ROWS = Interpolated.of(GRID, X, Y)


def start(kernel=Gaussian, length=0.1):
    return Parameters(kernel(jnp.asarray(length), jnp.asarray(0.6)), jnp.asarray(0.1))


def dense(logs):
    """yᵀA⁻¹y + log det A, entry by entry."""
    W = ROWS.interpolation.mv(jnp.eye(GRID.size))
    kernel, noise = jax.tree.map(jnp.exp, (logs.kernel, logs.noise))
    A = W @ kernel(jnp.asarray(GRID.offsets())) @ W.T + noise * jnp.eye(60)
    return Y @ jnp.linalg.solve(A, Y) + jnp.linalg.slogdet(A)[1]


@pytest.mark.slow
@pytest.mark.parametrize("kernel", [Gaussian, Matern32])
def test_stochastic_gradients_are_unbiased(kernel):
    logs = jax.tree.map(jnp.log, start(kernel))
    oracle = SpectralOracle("log", ROWS, logs, jax.random.key(0), g=Misfit(ROWS), probes=4)
    estimate = jax.jit(jax.vmap(lambda key: oracle.estimate(logs, (), key)[0].gradient))
    drawn = jax.tree.leaves(estimate(jax.random.split(jax.random.key(1), 300)))
    for mine, exact in zip(drawn, jax.tree.leaves(jax.grad(dense)(logs)), strict=True):
        mine = np.asarray(mine)
        # The data term errs by its residual, a ten-thousandth.
        assert abs(mine.mean() - float(exact)) < 5 * mine.std() / np.sqrt(len(mine)) + 1e-3 * abs(float(exact))


@pytest.mark.slow
def test_a_solve_that_does_not_come_to_its_end_says_so(monkeypatch):
    monkeypatch.setattr(paths, "_PRODUCTS", 1)
    jax.clear_caches()  # the number is part of the programs
    with pytest.warns(RuntimeWarning, match="1 products left a residual of"):
        descend(start(), ROWS, "lanczos", jax.random.key(0), rounds=1)
    jax.clear_caches()


@pytest.mark.slow
def test_a_descent_ends_with_its_seconds_and_compiling_does_not_count(monkeypatch):
    ticks = itertools.count()
    monkeypatch.setattr(paths, "time", SimpleNamespace(perf_counter=lambda: float(next(ticks))))
    limits = {"rounds": 3, "seconds": 8.0}  # a look at the clock takes a second, and there is one after each step
    visits = descend(start(), ROWS, "sgd", jax.random.key(0), **limits, compiling=False)
    assert [visit.seconds for visit in visits] == [0.0, 6.0, 10.0]
    assert next(ticks) > 10 + 3  # and compiling took some
    counted = descend(start(), ROWS, "sgd", jax.random.key(0), **limits)
    assert [visit.parameters.noise for visit in counted] == [visit.parameters.noise for visit in visits]


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_a_descent_gains(method):
    begun = start(length=0.6)
    visits = descend(begun, ROWS, method, jax.random.key(0), rounds=6)
    assert len(visits) == 7
    loss = [float(dense(jax.tree.map(jnp.log, visit.parameters))) for visit in visits]
    assert loss[-1] < loss[0] - 10
    assert np.all(np.diff([visit.seconds for visit in visits]) > 0)
    mean = ROWS.predict(visits[-1].parameters, GRID.interpolation(X))
    assert np.sqrt(np.mean((mean - np.sin(9 * X[:, 0])) ** 2)) < 0.15

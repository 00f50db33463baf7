"""Lanczos quadrature: exact once it has taken as many steps as there are eigenvalues, and biased one way before."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from papers._lanczos import LanczosOracle
from papers._lanczos import quadrature as eager_quadrature
from thalweg.spectral import FunctionOperator, as_operator

quadrature = eqx.filter_jit(eager_quadrature)
RNG = np.random.default_rng(0)
SIZE = 30
BASIS = np.linalg.qr(RNG.normal(size=(SIZE, SIZE)))[0]
MATRIX = BASIS * np.geomspace(1e-3, 1, SIZE) @ BASIS.T
VECTORS = RNG.choice([-1.0, 1.0], size=(SIZE, 4))
LOGARITHM = BASIS * np.log(np.geomspace(1e-3, 1, SIZE)) @ BASIS.T


def forms(steps):
    """The quadrature of log and of 1/x for each probe."""
    operator = as_operator(MATRIX)
    values = [quadrature(operator, VECTORS[:, i : i + 1], steps) for i in range(VECTORS.shape[1])]
    logs = np.array([float(value) for value, _ in values])
    inverse = np.array([float(VECTORS[:, i] @ solved[:, 0]) for i, (_, solved) in enumerate(values)])
    return logs, inverse


def test_all_steps_are_exact_and_an_exhausted_subspace_stops():
    value, solved = quadrature(as_operator(MATRIX), VECTORS, SIZE)
    assert float(value) == pytest.approx(np.mean(np.sum(VECTORS * (LOGARITHM @ VECTORS), axis=0)), rel=1e-9)
    np.testing.assert_allclose(solved, np.linalg.solve(MATRIX, VECTORS), rtol=1e-7, atol=1e-6)
    value, solved = quadrature(as_operator(2.0 * np.eye(SIZE)), VECTORS, 5)
    assert float(value) == pytest.approx(SIZE * np.log(2))
    np.testing.assert_allclose(solved, VECTORS / 2)


@pytest.mark.slow
def test_few_steps_overstate_the_logarithm_and_understate_the_inverse():
    steps = 2
    logs, inverse = forms(steps)
    exact = np.sum(VECTORS * (LOGARITHM @ VECTORS), axis=0)
    solved = np.sum(VECTORS * np.linalg.solve(MATRIX, VECTORS), axis=0)
    assert np.all(logs > exact)
    assert np.all(inverse < solved)
    more = forms(steps + 3)
    assert np.all(more[0] < logs)
    assert np.all(more[1] > inverse)


@pytest.mark.slow
def test_the_gradient_is_biased_by_that_and_g_is_added():
    shifted = lambda theta: FunctionOperator(lambda t, v: MATRIX @ v + t * v, theta, dimension=SIZE)
    exact = np.trace(np.linalg.inv(MATRIX + 0.01 * np.eye(SIZE))) + 2 * 0.01
    gradient = lambda steps, key: (
        LanczosOracle(shifted, g=lambda t: t**2, probes=8, steps=steps).estimate(jnp.asarray(0.01), (), key)[0].gradient
    )
    for steps, biased in ((3, True), (SIZE, False)):
        drawn = np.asarray(
            jax.vmap(lambda key, steps=steps: gradient(steps, key))(jax.random.split(jax.random.key(0), 200))
        )
        error = drawn.std() / np.sqrt(len(drawn))
        assert (drawn.mean() < exact - 5 * error) == biased
        assert (abs(drawn.mean() - exact) < 5 * error) == (not biased)

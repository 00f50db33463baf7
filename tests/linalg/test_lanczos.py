"""Lanczos' method against eigenvalues, with and without reorthogonalisation, and from conjugate gradients."""

from functools import partial

import jax
import numpy as np
import pytest

from thalweg.linalg import conjugate_gradients
from thalweg.linalg.lanczos import LanczosState, lanczos, log_quadrature, ritz

RNG = np.random.default_rng(0)
SIZE = 20
BASIS = np.linalg.qr(RNG.normal(size=(SIZE, SIZE)))[0]
EIGENVALUES = np.geomspace(0.01, 1.0, SIZE)
MATRIX = BASIS * EIGENVALUES @ BASIS.T
VECTORS = RNG.normal(size=(SIZE, 3))
VECTORS /= np.linalg.norm(VECTORS, axis=0)


@partial(jax.jit, static_argnames=("steps", "reorthogonalise"))
def run(matrix, state, steps, reorthogonalise=False):
    return lanczos(lambda block: matrix @ block, state, steps, reorthogonalise=reorthogonalise)


def coefficients(steps, matrix=MATRIX, **options):
    return run(matrix, LanczosState.start(VECTORS), steps, **options)


def test_reorthogonalised_vectors_turn_the_matrix_into_its_tridiagonal_matrix():
    _, alphas, betas, basis = coefficients(SIZE, reorthogonalise=True)
    for column in range(3):
        q = np.asarray(basis[:, :, column])
        np.testing.assert_allclose(q @ q.T, np.eye(SIZE), atol=1e-12)
        beside = np.asarray(betas[:-1, column])
        tridiagonal = np.diag(alphas[:, column]) + np.diag(beside, 1) + np.diag(beside, -1)
        np.testing.assert_allclose(q @ MATRIX @ q.T, tridiagonal, atol=1e-12)


def test_steps_can_be_taken_in_chunks():
    _, whole, _, _ = coefficients(8)
    state, first, _, _ = coefficients(4)
    _, second, _, _ = run(MATRIX, state, 4)
    np.testing.assert_allclose(np.concatenate([first, second]), whole, rtol=1e-12)


def test_the_quadrature_is_exact_for_polynomials_of_twice_the_degree():
    _, alphas, betas, _ = coefficients(4)
    for column in range(3):
        values = ritz(np.asarray(alphas[:, column]), np.asarray(betas[:, column]), 1e-15)
        assert not values.complete
        v = VECTORS[:, column]
        for power in range(8):
            exact = v @ np.linalg.matrix_power(MATRIX, power) @ v
            assert values.weights @ values.nodes**power == pytest.approx(exact, rel=1e-10)


def test_residuals_bound_the_distance_to_an_eigenvalue():
    _, alphas, betas, _ = coefficients(8)
    values = ritz(np.asarray(alphas[:, 0]), np.asarray(betas[:, 0]), 1e-15)
    distances = np.min(np.abs(values.nodes[:, None] - EIGENVALUES[None]), axis=1)
    assert np.all(distances <= values.residuals + 1e-14)


@pytest.mark.parametrize("reorthogonalise", [False, True])
def test_an_exhausted_space_is_recognised(reorthogonalise):
    three = BASIS * np.repeat([1.0, 2.0, 5.0], [10, 5, 5]) @ BASIS.T
    _, alphas, betas, _ = coefficients(8, three, reorthogonalise=reorthogonalise)
    assert np.all(np.asarray(betas[3:]) == 0)
    values = ritz(np.asarray(alphas[:, 0]), np.asarray(betas[:, 0]), 1e-13)
    assert values.complete
    np.testing.assert_allclose(values.nodes, [1.0, 2.0, 5.0], rtol=1e-10)


def test_conjugate_gradients_hand_out_the_same_quadrature():
    result = conjugate_gradients(lambda block: MATRIX @ block, VECTORS, tol=1e-13, max_iter=60)
    logarithm = BASIS * np.log(EIGENVALUES) @ BASIS.T
    for column in range(3):
        found = log_quadrature(result.sizes[:, column], result.ratios[:, column])
        assert found == pytest.approx(VECTORS[:, column] @ logarithm @ VECTORS[:, column], rel=1e-8)


def test_no_steps_are_a_logarithm_of_0():
    assert log_quadrature(np.zeros(3), np.zeros(3)) == 0.0

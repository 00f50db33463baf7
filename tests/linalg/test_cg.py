"""Conjugate gradients: solutions of many columns, on host and device, and the Lanczos coefficients they hand out."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg

from thalweg.linalg import conjugate_gradients, factorise, joint_inner, low_rank, nystrom_features


@pytest.fixture
def system():
    x = np.random.default_rng(0).uniform(0, 5, size=(120, 2))
    K = np.exp(-((x[:, None] - x) ** 2).sum(-1) / 2)
    return K, K + 0.01 * np.eye(120), np.random.default_rng(1).normal(size=(120, 3))


def _times(matrix, block):
    return matrix @ block


@pytest.mark.parametrize("xp", [np, jnp], ids=["host", "device"])
def test_every_column_is_solved_to_its_tolerance(system, xp):
    _, A, right = system
    right[:, 1] *= 1e6
    apply = jax.tree_util.Partial(_times, xp.asarray(A)) if xp is jnp else lambda block: A @ block
    result = conjugate_gradients(apply, xp.asarray(right), tol=1e-8, at_once=50)
    residuals = np.linalg.norm(right - A @ np.asarray(result.x), axis=0) / np.linalg.norm(right, axis=0)
    assert np.all(residuals < 2e-8)
    assert np.all(result.residuals <= 1e-8)


def test_host_and_device_make_the_same_steps(system):
    _, A, right = system
    host = conjugate_gradients(lambda block: A @ block, right, max_iter=8)
    device = conjugate_gradients(
        jax.tree_util.Partial(_times, jnp.asarray(A)), jnp.asarray(right), max_iter=8, at_once=7
    )
    assert host.iterations == device.iterations == 8
    assert np.allclose(host.sizes, device.sizes, rtol=1e-6)


def test_preconditioner_of_low_rank_saves_iterations_and_changes_nothing_else(system):
    K, A, right = system
    features, left = nystrom_features(lambda chosen: K[:, chosen], np.diagonal(K), 60, np.random.default_rng(0))
    assert np.all(left >= 0)
    assert np.min(np.linalg.eigvalsh(K - features @ features.T)) > -1e-8
    P = low_rank(features, np.full((120, 1), 0.01) + np.mean(left))
    plain = conjugate_gradients(lambda block: A @ block, right, tol=1e-8)
    helped = conjugate_gradients(lambda block: A @ block, right, precondition=P.solve, tol=1e-8)
    assert helped.iterations < plain.iterations / 3
    assert np.allclose(plain.x, helped.x, rtol=1e-4, atol=1e-6)


def test_factor_of_a_raised_matrix_refines_to_the_exact_solution(system):
    K, _, right = system
    A = K + 1e-6 * np.eye(120)
    raised = factorise(A, 1e-3)
    found = conjugate_gradients(lambda block: A @ block, right, precondition=raised.solve, tol=1e-10)
    assert np.allclose(found.x, np.linalg.solve(A, right), rtol=1e-4)


def test_coefficients_are_those_of_lanczos(system):
    _, A, right = system
    result = conjugate_gradients(lambda block: A @ block, right[:, :1], tol=0, max_iter=6)
    sizes, ratios = result.sizes[:, 0], result.ratios[:-1, 0]
    diagonal = 1 / sizes
    diagonal[1:] += ratios / sizes[:-1]
    ritz = scipy.linalg.eigvalsh_tridiagonal(diagonal, np.sqrt(ratios) / sizes[:-1])
    krylov = np.linalg.qr(np.column_stack([np.linalg.matrix_power(A, k) @ right[:, 0] for k in range(6)]))[0]
    assert np.allclose(ritz, np.linalg.eigvalsh(krylov.T @ A @ krylov), rtol=1e-6)


def test_operator_that_mixes_columns_is_solved_with_joint_inner_products(system):
    _, A, right = system
    mix = np.array([[2.0, 0.5, 0.0], [0.5, 1.0, 0.3], [0.0, 0.3, 1.5]])
    result = conjugate_gradients(lambda block: A @ block @ mix, right, tol=1e-10, inner=joint_inner, max_iter=500)
    assert np.allclose(A @ result.x @ mix, right, atol=1e-6)


def test_watch_ends_the_iteration(system):
    _, A, right = system
    result = conjugate_gradients(lambda block: A @ block, right, tol=0, watch=lambda x, iterations: iterations == 4)
    assert result.iterations == 4


def test_direction_of_no_curvature_ends_its_column_alone():
    A = np.diag([1.0, 2.0, 0.0])
    right = np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    result = conjugate_gradients(lambda block: A @ block, right, max_iter=50)
    assert result.iterations < 50
    assert np.allclose(result.x[:, 0], [1.0, 0.5, 0.0])
    assert result.residuals[1] == 1

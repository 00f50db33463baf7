"""Cholesky factors on host and device: solutions, determinants, leave-one-out, and the law of raising a diagonal."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from thalweg.linalg import NotPositiveDefinite, cholesky, factorise, leave_one_out


@pytest.fixture
def covariance():
    root = np.random.default_rng(0).normal(size=(30, 40))
    return root @ root.T


@pytest.mark.parametrize("xp", [np, jnp], ids=["host", "device"])
def test_solution_determinant_and_inverse_agree_with_numpy(covariance, xp):
    right = np.random.default_rng(1).normal(size=(30, 3))
    factor = factorise(xp.asarray(covariance))
    read = lambda factor, right: (factor.solve(right), factor.log_determinant(), factor.inverse_diagonal())
    solution, log_determinant, inverse_diagonal = (jax.jit(read) if xp is jnp else read)(factor, right)
    assert float(factor.raised) == 0
    assert np.allclose(solution, np.linalg.solve(covariance, right), rtol=1e-9, atol=1e-12)
    assert np.isclose(float(log_determinant), np.linalg.slogdet(covariance)[1], rtol=1e-12)
    assert np.allclose(inverse_diagonal, np.diagonal(np.linalg.inv(covariance)), rtol=1e-9)


@pytest.mark.parametrize("xp", [np, jnp], ids=["host", "device"])
def test_leave_one_out_residuals_are_those_of_refitted_models(covariance, xp):
    y = np.random.default_rng(2).normal(size=(30, 2))
    factor = factorise(xp.asarray(covariance), 0.5)
    leave_out = lambda factor, y: leave_one_out(y, factor.solve(y), factor.inverse_diagonal()[:, None], 0)
    residuals = y - (jax.jit(leave_out) if xp is jnp else leave_out)(factor, y)
    ridged = covariance + 0.5 * np.eye(30)
    refitted = []
    for i in range(30):
        rest = np.arange(30) != i
        refitted.append(y[i] - covariance[i, rest] @ np.linalg.solve(ridged[np.ix_(rest, rest)], y[rest]))
    assert np.allclose(residuals, refitted, rtol=1e-8, atol=1e-11)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("xp", [np, jnp], ids=["host", "device"])
def test_diagonal_is_raised_by_the_least_power_of_ten_that_factorises(xp, dtype):
    x = np.linspace(0, 1, 200)
    smooth = np.exp(-((x[:, None] - x) ** 2) / 2).astype(dtype)
    factor = factorise(xp.asarray(smooth))
    raised, eps = float(factor.raised), float(np.finfo(dtype).eps)
    assert 0 < raised < 1e-2
    k = np.log10(raised / eps)
    assert np.isclose(k, round(k), atol=1e-3)
    less = smooth + np.asarray(raised / 10 if k > 1.5 else 0, dtype) * np.eye(200, dtype=dtype)
    assert not np.all(np.isfinite(jnp.linalg.cholesky(less)))
    lower = np.asarray(factor.lower)
    assert np.allclose(lower @ lower.T, smooth + raised * np.eye(200), atol=200 * eps)


def test_host_refuses_what_is_no_covariance_and_device_gives_nan():
    with pytest.raises(NotPositiveDefinite, match="side 2 is not positive definite"):
        factorise(np.array([[1.0, 3.0], [3.0, 1.0]]) * np.array([[1e20, 1e20], [1e20, -1e30]]))
    with pytest.raises(NotPositiveDefinite, match="NaN or infinity"):
        factorise(np.array([[1.0, np.nan], [np.nan, 1.0]]))
    assert not np.isfinite(factorise(jax.device_put(np.array([[1.0, np.nan], [np.nan, 1.0]]))).lower[-1, -1])


def test_matrix_is_left_alone_unless_it_may_be_overwritten(covariance):
    before = covariance.copy()
    factorise(covariance, np.ones(30))
    assert np.array_equal(covariance, before)


def test_matrices_that_do_not_fit_are_refused():
    factor = factorise(np.eye(2))
    for side, matrix in ((2, np.ones((3, 2))), (3, np.ones((2, 3)))):
        with pytest.raises(ValueError, match=f"must be square, of one size, .* found \\({side}, "):
            cholesky(matrix)
    with pytest.raises(ValueError, match=r"found \(2, 2\) of float64, \(3, 1\) of float64"):
        factor.solve(np.ones(3))

"""Kernel matrices by NumPy are those of the kernels."""

from functools import cache

import jax
import numpy as np
import pytest

from thalweg.kernels import Gaussian, Laplacian, Matern12, Matern32, Matern52
from thalweg.kernels.host import kernel_tiles, summands

RADIAL = [Gaussian, Matern12, Matern32, Matern52]
RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(70, 3)), RNG.normal(size=(9, 3))


FAMILIES = {family: family(np.array([0.75, 1.0, 2.0]), 1.5) for family in (*RADIAL, Laplacian)}


@cache
def by_the_kernels(dtype):
    """The matrices of X with itself and of X with Y by each kernel, in one program."""
    every = jax.jit(lambda kernels, x, y: [(kernel(x), kernel(x, y)) for kernel in kernels])
    return dict(zip(FAMILIES, every(list(FAMILIES.values()), X.astype(dtype), Y.astype(dtype)), strict=True))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_matrices_are_those_of_the_kernel(family, dtype):
    kernel, x, y = FAMILIES[family], X.astype(dtype), Y.astype(dtype)
    close = {"rtol": 1e-6, "atol": 1e-12} if dtype == np.float64 else {"rtol": 2e-5, "atol": 1e-6}
    matrices = kernel_tiles(kernel, x), kernel_tiles(kernel, x, y)
    for matrix, exact in zip(matrices, by_the_kernels(dtype)[family], strict=True):
        found = matrix.to_dense()
        assert found.dtype == dtype
        np.testing.assert_allclose(found, np.asarray(exact), **close)


@pytest.mark.parametrize("family", RADIAL)
def test_the_diagonal_is_the_variance_to_the_last_digit(family):
    matrix = kernel_tiles(family(1e-3, 1.7), 1e6 + X, stored=True).apply(np.eye(70))
    np.testing.assert_array_equal(np.diagonal(matrix), 1.7)
    np.testing.assert_allclose(matrix, matrix.T, rtol=1e-12)


def test_rows_near_one_another_keep_their_distance_in_float32_beside_others_far_away():
    """Squared distances of 1e6 lengthscales would leave nothing of those of 0.01."""
    near = np.linspace(0, 0.1, 20)[:, None]
    x = np.concatenate([near, 1000 + near]).astype(np.float32)
    exact = kernel_tiles(Matern32(0.1), x.astype(float)).to_dense()
    np.testing.assert_allclose(kernel_tiles(Matern32(0.1), x).to_dense(), exact, atol=1e-5)


def test_an_offset_of_the_rows_changes_nothing():
    exact = kernel_tiles(Gaussian(0.5), X, Y).to_dense()
    np.testing.assert_allclose(kernel_tiles(Gaussian(0.5), X + 2.0**20, Y + 2.0**20).to_dense(), exact, rtol=1e-6)


def test_products_are_those_of_the_matrix():
    weights = RNG.normal(size=(9, 2))
    exact = np.asarray(Matern52(0.8)(X, Y)) @ weights
    np.testing.assert_allclose(kernel_tiles(Matern52(0.8), X, Y).apply(weights), exact, rtol=1e-8, atol=1e-12)


def test_which_kernels_numpy_can_compute():
    assert all(len(summands(family(1.0))) == 1 for family in RADIAL)
    assert [len(summands(kernel)) for kernel in (Gaussian() + Matern12(), Gaussian() + Laplacian(), Matern52())] == [
        2,
        0,
        1,
    ]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_matrix_is_the_same_however_threads_take_turns(dtype):
    x = RNG.normal(size=(700, 3)).astype(dtype)
    first = kernel_tiles(Matern32(0.8), x).to_dense()
    below = np.tril_indices(700, -64)
    np.testing.assert_array_equal(first[below], first.T[below])
    for _ in range(3):
        np.testing.assert_array_equal(kernel_tiles(Matern32(0.8), x).to_dense(), first)

"""Kernels by NumPy are the kernels."""

import numpy as np
import pytest

from thalweg.kernels import Gaussian, Matern12, Matern32, Matern52
from thalweg.machines import folds, metric

rng = np.random.default_rng(0)
X, Y = rng.normal(size=(7, 3)), rng.normal(size=(5, 3))


@pytest.mark.parametrize("family", [Gaussian, Matern12, Matern32, Matern52])
def test_values_and_slopes_are_those_of_the_kernel(family):
    kernel = family(lengthscale=np.array([0.75, 1.0, 2.0]), variance=1.5)
    np.testing.assert_allclose(folds.kernel_matrix(kernel, X, Y), kernel(X, Y), rtol=1e-6)
    np.testing.assert_allclose(folds.kernel_matrix(kernel, X), kernel(X), rtol=1e-6)
    kernel = family(lengthscale=0.75, variance=1.5)
    np.testing.assert_allclose(folds.Distances(X, Y).kernel(kernel, 2.0), family(1.5, 1.5)(X, Y), rtol=1e-5)
    summed = kernel + kernel
    np.testing.assert_allclose(folds.Distances(X).kernel(summed, 2.0), summed(X / 2), rtol=1e-5)
    dual, weights = rng.normal(size=(7, 2)), rng.uniform(0.5, 2, size=7)
    by_autodiff = metric.differentiated(kernel, X, dual, weights, X)
    np.testing.assert_allclose(metric.mean_squared_slopes(weights, kernel, X, dual), by_autodiff, rtol=1e-4)

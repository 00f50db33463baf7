"""Sums and products of kernels, words for them, and what scikit-learn asks of their parameters."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.base import clone

from thalweg import KernelRegressor, codec
from thalweg.kernels import (
    Bias,
    Gaussian,
    Linear,
    Matern32,
    Periodic,
    Product,
    RandomFeatures,
    Sum,
    White,
    as_kernel,
    kernel_or_class,
)

X = np.random.default_rng(0).normal(size=(5, 3))
Y = np.random.default_rng(1).normal(size=(4, 3))
RICH = 2.0 * Gaussian([0.7, 1.3, 2.9]) * Periodic(1.5) + Linear([1.0, 2.0, 3.0]) + White(0.1) + 0.5


def formula(x, y, same):
    difference = x[:, None] - y[None]
    gaussian = np.exp(-np.sum((difference / [0.7, 1.3, 2.9]) ** 2, -1) / 2)
    periodic = np.exp(-2 * np.sum(np.sin(np.pi * difference / 1.5) ** 2, -1))
    return 2 * gaussian * periodic + (x * [1, 2, 3]) @ y.T + 0.5 + (0.1 * np.eye(len(x)) if same else 0)


def test_sums_and_products_are_those_of_the_matrices():
    matrix, diagonal = map(np.asarray, (RICH(X), jax.jit(lambda kernel: kernel.diagonal(X))(RICH)))
    np.testing.assert_allclose(matrix, formula(X, X, True), rtol=1e-12)
    np.testing.assert_allclose(RICH(X, Y), formula(X, Y, False), rtol=1e-12)
    np.testing.assert_allclose(diagonal, np.diag(formula(X, X, True)), rtol=1e-12)
    np.testing.assert_array_equal(matrix, matrix.T)
    single = jax.eval_shape(lambda x: (RICH(x), RICH.diagonal(x)), X.astype(np.float32))
    assert {part.dtype for part in single} == {np.dtype(np.float32)}


def test_a_number_times_a_kernel_is_one_of_the_same_class():
    assert repr(3 * Gaussian(2.0, 5.0)) == repr(Gaussian(2.0, 5.0) * np.float64(3)) == repr(Gaussian(2.0, 15.0))
    assert repr(2 * (Gaussian() + Linear())) == "Gaussian(lengthscale=1, variance=2) + Linear(variance=2)"
    assert repr(2 * (Gaussian() * Linear())) == "Gaussian(lengthscale=1, variance=2) * Linear(variance=1)"
    assert repr(1 + Gaussian()) == "Bias(variance=1) + Gaussian(lengthscale=1, variance=1)"
    assert repr(jnp.asarray(2.0) * Bias()) == "Bias(variance=2)"


@pytest.mark.parametrize("other", [0, -1.0, np.nan, "2", True, None, [1.0, 2.0]])
def test_what_is_no_kernel_is_refused(other):
    for operation in (lambda: Gaussian() * other, lambda: Gaussian() + other, lambda: other + Gaussian()):
        with pytest.raises((TypeError, ValueError), match="must be a finite number above 0, found"):
            operation()


def test_parameters_are_leaves_and_compile_nothing_again():
    compiled = jax.jit(lambda kernel: kernel(X).sum())
    slopes = jax.jit(jax.grad(lambda kernel: kernel(X).sum()))(RICH)
    for other in (RICH, 2 * RICH):
        compiled(other)
    assert compiled._cache_size() == 1
    assert isinstance(slopes, Sum)
    up, down = RICH.__sklearn_clone__(), RICH.__sklearn_clone__()
    up.set_params(k1__k1__k1__k2__period=1.5 + 1e-6)
    down.set_params(k1__k1__k1__k2__period=1.5 - 1e-6)
    expected = (compiled(up) - compiled(down)) / 2e-6
    np.testing.assert_allclose(slopes.get_params()["k1__k1__k1__k2__period"], expected, rtol=1e-6)


def test_random_features_of_sums_and_products_have_no_bias():
    """Of a product within a sum, whose parts draw for themselves."""
    kernel = 1.7 * Gaussian(0.7) * Matern32(2.0) + 3 * Matern32(2.0) + 0.5

    @jax.jit
    def estimates(kernel, keys):
        features = jax.vmap(lambda key: RandomFeatures(kernel, key, dimension=3, block_size=16)(X, 2))(keys)
        return features @ features.transpose(0, 2, 1), kernel(X)

    words = np.random.default_rng(1).integers(2**32, size=(2000, 2), dtype=np.uint32)
    found, exact = map(np.asarray, estimates(kernel, jax.random.wrap_key_data(words)))
    error = found.std(0, ddof=1) / np.sqrt(len(found))
    assert (np.abs(found.mean(0) - exact) < 5 * error + 1e-12).all()


def test_periodic_repeats_and_is_a_correlation():
    kernel = Periodic([2.0, 3.0, 5.0], [1.0, 2.0, 0.5], 4.0)
    np.testing.assert_allclose(kernel(X, Y), kernel(X, Y + np.array([2.0, -3.0, 10.0])), rtol=1e-10)
    np.testing.assert_allclose(kernel.diagonal(X), np.diag(kernel(X)), rtol=1e-12)
    assert np.linalg.eigvalsh(kernel(X)).min() > 0


def test_a_clone_is_equal_and_its_own():
    for kernel in (Gaussian([1.0, 2.0]), RICH):
        copy = clone(kernel)
        assert copy == kernel
        assert copy is not kernel
    copy.set_params(k2__variance=9.0)
    assert float(RICH.k2.variance) == 0.5


def test_parameters_as_scikit_learn_has_them():
    kernel = Gaussian(2.0) + White(0.1)
    assert {name: float(value) for name, value in kernel.get_params().items() if "__" in name} == pytest.approx(
        {"k1__lengthscale": 2.0, "k1__variance": 1.0, "k2__variance": 0.1}
    )
    first = kernel.k1
    assert kernel.set_params(k1__lengthscale=[3.0, 4.0], k2=Linear()) is kernel
    assert repr(kernel) == "Gaussian(lengthscale=[3, 4], variance=1) + Linear(variance=1)"
    assert float(first.lengthscale) == 2.0
    with pytest.raises(ValueError, match=r"'scale' is no parameter of Gaussian\(.*\): it has lengthscale, v"):
        kernel.set_params(k1__scale=1.0, k2__variance=3.0)
    with pytest.raises(ValueError, match="lengthscale of Gaussian must be a finite number above 0, found -1"):
        kernel.set_params(k2__variance=3.0, k1__lengthscale=-1.0)
    assert repr(kernel) == "Gaussian(lengthscale=[3, 4], variance=1) + Linear(variance=1)"


def test_sums_survive_a_file():
    arrays = {}
    again = codec.decode(json.loads(json.dumps(codec.encode(RICH, (), arrays))), (), arrays)
    assert again == RICH


def test_a_word_is_a_kernel():
    assert kernel_or_class("rbf") is kernel_or_class("gaussian") is kernel_or_class(Gaussian) is Gaussian
    assert as_kernel("matern32") == Matern32()
    assert kernel_or_class(RICH) is RICH
    assert RandomFeatures("rbf", jax.random.key(0), 3, 4).kernel == Gaussian()


@pytest.mark.parametrize("bad", ["RBF2", "", None, 3, int, Sum, Product])
def test_a_word_that_is_none_is_answered_with_the_list(bad):
    with pytest.raises((TypeError, ValueError), match=r"kernel must be one of 'rbf', .*'matern52'.*, found"):
        kernel_or_class(bad)


def test_kernel_machines_take_sums_and_reach_their_parameters():
    kernel = Gaussian(1.0) + 0.5 * Matern32(2.0)
    model = KernelRegressor(kernel, alpha=1e-3)
    other = clone(model).set_params(kernel__k1__lengthscale=3.0)
    assert float(other.kernel.k1.lengthscale) == 3.0
    assert float(kernel.k1.lengthscale) == 1.0
    rows = np.random.default_rng(2).normal(size=(64, 3))
    K = np.asarray(kernel(rows))
    targets = np.sin(rows[:, 0])
    found = model.fit(rows, targets).predict(rows)
    centred = targets - targets.mean()
    ridge = targets.mean() + K @ np.linalg.solve(K + 1e-3 * np.eye(64), centred)
    np.testing.assert_allclose(found, ridge, atol=0.02)


def test_points_far_from_the_origin_keep_their_digits_in_float32():
    seconds = np.arange(0, 600, 60.0)[:, None]
    with jax.enable_x64(False):
        near, far = (Gaussian(np.float32(120))(points) for points in (seconds, 1.7e9 + seconds))
        np.testing.assert_allclose(far, near, atol=1e-6)

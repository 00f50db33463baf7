"""Blocks of coordinates: unbiased for the kernel, the same again, compiled once; errors."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from thalweg.errors import IncompatiblePartsError
from thalweg.kernels import (
    Cauchy,
    Gaussian,
    Laplacian,
    Linear,
    Matern12,
    Matern32,
    Matern52,
    RandomFeatures,
)

KERNELS = [Gaussian, Matern12, Matern32, Matern52, Laplacian, Cauchy]
POINTS = np.random.default_rng(0).normal(size=(5, 3))
LENGTHS = np.array([0.7, 1.3, 2.9])
KEY = jax.random.key(7)


def random_keys(count):
    """Return independent keys made by NumPy: nothing is compiled."""
    words = np.random.default_rng(1).integers(2**32, size=(count, 2), dtype=np.uint32)
    return jax.random.wrap_key_data(words)


@pytest.mark.parametrize(
    ("mode", "kinds"),
    [
        ("random", KERNELS),
        ("orthogonal", [Gaussian, Matern32]),
        ("quasi", [Matern32, Laplacian]),
        pytest.param("orthogonal", [Matern12, Matern52], marks=pytest.mark.slow),
        pytest.param("quasi", [Gaussian, Matern12, Matern52, Cauchy], marks=pytest.mark.slow),
    ],
)
def test_features_estimate_the_kernel_without_bias(mode, kinds):
    draws = 2000
    kernels = [kind(LENGTHS, 1.7) for kind in kinds]

    @jax.jit
    def estimates(kernels, keys, i):
        def one(key):
            blocks = [
                RandomFeatures(kernel, key, dimension=3, block_size=7, kind=mode)(POINTS, i) for kernel in kernels
            ]
            return jnp.stack([phi @ phi.T for phi in blocks])

        return jax.vmap(one)(keys), jnp.stack([kernel(POINTS) for kernel in kernels])

    found, exact = map(np.asarray, estimates(kernels, random_keys(draws), 5))
    error = found.std(0, ddof=1) / np.sqrt(draws)
    # On the diagonal cos² + sin² = 1 leaves no noise but rounding.
    assert (np.abs(found.mean(0) - exact) < 5 * error + 1e-12).all()
    assert error.max() < 0.02
    np.testing.assert_allclose(np.diagonal(found, axis1=2, axis2=3), 1.7, rtol=1e-12)


def test_quasi_random_frequencies_have_less_variance():
    exact = Gaussian()(POINTS[:, :2])

    @jax.jit
    def squared_errors(keys):
        def one(key, mode):
            phi = RandomFeatures(Gaussian(), key, dimension=2, block_size=256, kind=mode)(POINTS[:, :2], 3)
            return jnp.mean((phi @ phi.T - exact) ** 2)

        return [jnp.mean(jax.vmap(lambda key, mode=mode: one(key, mode))(keys)) for mode in ("random", "quasi")]

    independent, quasi = map(float, squared_errors(random_keys(50)))
    assert quasi < 0.3 * independent


@pytest.mark.parametrize("mode", ["random", "orthogonal", "quasi"])
def test_blocks_are_the_same_again_in_any_precision(mode):
    features = RandomFeatures(Matern32(LENGTHS), KEY, dimension=3, block_size=8, kind=mode)
    block = features.block(5)
    np.testing.assert_array_equal(features.block(jnp.asarray(5)), block)
    assert np.abs(np.asarray(block) - np.asarray(features.block(4))).min() > 0
    with jax.enable_x64(False):
        single = RandomFeatures(Matern32(LENGTHS), KEY, dimension=3, block_size=8, kind=mode).block(5)
        assert single.dtype == jnp.float32
    np.testing.assert_allclose(single, block, rtol=2e-4)


def test_features_are_cosines_and_sines_in_the_dtype_of_the_points():
    features = RandomFeatures(Gaussian(LENGTHS, 1.7), KEY, dimension=3, block_size=8)
    phases = POINTS @ np.asarray(features.block(2)).T
    expected = np.sqrt(1.7 / 8) * np.hstack([np.cos(phases), np.sin(phases)])
    np.testing.assert_allclose(features(POINTS, 2), expected, rtol=1e-12)
    np.testing.assert_array_equal(features.evaluate(POINTS, features.block(2)), features(POINTS, 2))
    single = features(POINTS.astype(np.float32), 2)
    assert single.dtype == jnp.float32
    assert single.shape == (5, features.width)
    np.testing.assert_allclose(single, expected, atol=1e-5)


def test_one_compiled_function_serves_all_blocks():
    features = RandomFeatures(Gaussian(LENGTHS, 1.7), KEY, dimension=3, block_size=8)
    compiled = jax.jit(lambda features, x, i: features(x, i))
    for i in range(3):
        phases = POINTS @ np.asarray(features.block(i)).T
        expected = np.sqrt(1.7 / 8) * np.hstack([np.cos(phases), np.sin(phases)])
        np.testing.assert_allclose(compiled(features, POINTS, i), expected, rtol=1e-10, atol=1e-12)
    assert compiled._cache_size() == 1


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"kernel": "rbff"}, ValueError, "kernel must be one of 'rbf', .*, a kernel such as .*, found 'rbff'"),
        ({"kernel": Linear()}, IncompatiblePartsError, "Linear has no random features: use a stationary kernel"),
        ({"kernel": Gaussian() + Linear()}, IncompatiblePartsError, "Sum has no random features"),
        ({"kernel": Gaussian() * Gaussian(), "kind": "quasi"}, IncompatiblePartsError, "Product has no quasi"),
        ({"key": 3}, TypeError, "key must be one JAX random key such as .*, found 3"),
        ({"block_size": 0}, ValueError, "block_size must be a whole number of at least 1, found 0"),
        ({"dimension": 2}, ValueError, "the data has 2 features and the kernel 3 lengthscales"),
        ({"kind": "sobol"}, ValueError, "kind must be one of"),
        ({"kernel": Laplacian(), "kind": "orthogonal"}, IncompatiblePartsError, "Laplacian has no orthogonal"),
    ],
)
def test_bad_random_features(change, error, message):
    arguments = {"kernel": Gaussian(LENGTHS), "key": KEY, "dimension": 3, "block_size": 4, **change}
    with pytest.raises(error, match=message):
        RandomFeatures(**arguments)


def test_bad_blocks_and_rows():
    features = RandomFeatures(Gaussian(), KEY, dimension=3, block_size=4)
    with pytest.raises(ValueError, match="i must be a whole number of at least 0, found -1"):
        features(POINTS, -1)
    with pytest.raises(ValueError, match="x must have the 3 features of the blocks, found 2"):
        features(POINTS[:, :2], 0)

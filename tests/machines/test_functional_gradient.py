"""The doubly stochastic functional gradient: unbiased over batches and features, and weighted as it says."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from thalweg.kernels import Gaussian, RandomFeatures
from thalweg.machines import Batch, FunctionalGradient, LogisticLoss, SquaredLoss

rng = np.random.default_rng(0)
N, D, B, KEYS = 12, 2, 4, 4000
X = rng.normal(size=(N, D))
POINTS = rng.normal(size=(5, D))
KERNEL = Gaussian(0.9, 1.6)


@pytest.mark.parametrize(
    "loss", [SquaredLoss(), pytest.param(LogisticLoss(), marks=pytest.mark.slow)], ids=["squared", "logistic"]
)
def test_the_functional_gradient_is_unbiased(loss):
    """E over batches and features of φ(x)ᵀ mean_b φ(x_b) g_b is the mean over examples of g·k(x_b, x)."""
    y = rng.normal(size=(N, 1)) if isinstance(loss, SquaredLoss) else rng.integers(0, 2, size=(N, 1)).astype(float)
    f = rng.normal(size=(N, 1))

    @jax.jit
    @jax.vmap
    def estimate(key):
        key_features, key_batch = jax.random.split(key)
        features = RandomFeatures(KERNEL, key_features, D, block_size=3)
        oracle = FunctionalGradient(features.evaluate, loss)
        chosen = jax.random.randint(key_batch, (B,), 0, N)
        batch = Batch(jnp.asarray(X)[chosen], jnp.asarray(y)[chosen], jnp.ones(B))
        gradients = oracle.gradients(jnp.asarray(f)[chosen], batch)
        _, along = oracle.along(features.block(2), batch, gradients)
        return (features(jnp.asarray(POINTS), 2) @ along)[:, 0]

    found = np.asarray(estimate(jax.random.split(jax.random.key(0), KEYS)))
    gradient = np.asarray(loss.gradient(jnp.asarray(f), jnp.asarray(y)))
    exact = np.asarray(KERNEL(POINTS, X)) @ gradient[:, 0] / N
    error = found.std(axis=0, ddof=1) / np.sqrt(KEYS)
    assert (np.abs(found.mean(axis=0) - exact) < 5 * error).all()
    # The test would see a bias of a tenth, such as that of √2[cos, sin], which is of the size of the gradient itself.
    assert (5 * error).max() < np.abs(exact).max()
    assert np.abs(found.mean(axis=0) * 2 - exact).max() > 10 * error.max()


def test_weights_are_repetitions_and_padding_is_nothing():
    features = RandomFeatures(KERNEL, jax.random.key(1), D, block_size=3)
    oracle = FunctionalGradient(features.evaluate, SquaredLoss())
    x, y, f = X[:7], rng.normal(size=(7, 2)), rng.normal(size=(7, 2))
    times = np.array([1, 3, 2, 0, 1, 0, 0])  # seven in all, so that one program serves both
    weighted = Batch(x, y, times.astype(float))
    repeated = Batch(np.repeat(x, times, axis=0), np.repeat(y, times, axis=0), np.ones(7))
    parts = jax.jit(lambda f, batch: (out := oracle.gradients(f, batch), oracle.along(features.block(0), batch, out)))
    one, (seen, along) = jax.tree.map(np.asarray, parts(f, weighted))
    two, (_, same) = jax.tree.map(np.asarray, parts(np.repeat(f, times, axis=0), repeated))
    np.testing.assert_allclose(one.mean, two.mean, rtol=1e-12)
    np.testing.assert_allclose(one.mean, ((f - y) * times[:, None]).sum(axis=0) / 7, rtol=1e-12)
    assert float(one.value) == pytest.approx(float(two.value), rel=1e-12)
    assert float(one.value) == pytest.approx((times * ((f - y) ** 2).sum(axis=1)).sum() / 14, rel=1e-12)
    np.testing.assert_allclose(along, same, rtol=1e-10)
    np.testing.assert_allclose(along, seen.T @ (times[:, None] * (f - y)) / 7, rtol=1e-10)

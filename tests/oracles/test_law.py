"""The law of oracles: the same (state, key) gives the same noise, whatever x; and what every oracle owes."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from thalweg.oracles import (
    SVRG,
    Exact,
    FiniteDifferences,
    LooplessSVRG,
    MiniBatch,
    Reparameterised,
    ScoreFunction,
)

rng = np.random.default_rng(0)
N, D = 24, 3
A, b = rng.normal(size=(N, D)), rng.normal(size=N)
WEIGHTS = rng.permutation(np.geomspace(0.2, 5.0, N))


def losses(x, batch):
    return 0.5 * (batch[0] @ x - batch[1]) ** 2


def mini(**options):
    return MiniBatch(losses, (A, b), batch_size=4, **options)


def least_squares(x):
    return 0.5 * jnp.mean((A @ x - b) ** 2)


def mean_loss(weights=None):
    """The exact value and gradient, in NumPy."""

    def exact(x):
        errors = A @ x - b
        return np.average(errors**2 / 2, weights=weights), np.average(A * errors[:, None], axis=0, weights=weights)

    return exact


def distance_to_one(x):
    """E[‖z − 1‖²] under N(x, I) and its gradient."""
    return np.sum((x - 1) ** 2) + D, 2 * (x - 1)


def gaussian_sample(x, key):
    return x + jax.random.normal(key, x.shape)


def gaussian_log_prob(x, z):
    return -0.5 * jnp.sum((z - x) ** 2)


# Each oracle, and the exact value and gradient that it estimates.
ORACLES = {
    "exact": (Exact(least_squares), mean_loss()),
    "finite differences": (FiniteDifferences(least_squares), mean_loss()),
    "mini-batch": (mini(), mean_loss()),
    "mini-batch by epochs": (mini(replacement=False), mean_loss()),
    "mini-batch weighted": (mini(weights=WEIGHTS), mean_loss(WEIGHTS)),
    "mini-batch by epochs, weighted": (mini(weights=WEIGHTS, replacement=False), mean_loss(WEIGHTS)),
    "reparameterised": (
        Reparameterised(lambda x, key: jnp.sum((gaussian_sample(x, key) - 1) ** 2), samples=4),
        distance_to_one,
    ),
    "score function": (
        ScoreFunction(lambda x, z: jnp.sum((z - 1) ** 2), gaussian_sample, gaussian_log_prob, samples=8),
        distance_to_one,
    ),
    "score function of an integrand that knows x": (
        ScoreFunction(lambda x, z: jnp.sum(x * z), gaussian_sample, gaussian_log_prob, samples=8),
        lambda x: (np.sum(x**2), 2 * x),
    ),
    "score function without baseline": (
        ScoreFunction(lambda x, z: jnp.sum((z - 1) ** 2), gaussian_sample, gaussian_log_prob, baseline=False),
        distance_to_one,
    ),
    "svrg": (SVRG(mini(), period=10), mean_loss()),
    "svrg by epochs": (SVRG(mini(replacement=False), period=10), mean_loss()),
    "loopless svrg": (LooplessSVRG(mini(), probability=0.3), mean_loss()),
    "svrg weighted": (SVRG(mini(weights=WEIGHTS), period=5), mean_loss(WEIGHTS)),
}
every = pytest.mark.parametrize("name", ORACLES)

KEYS = jax.random.split(jax.random.key(11), 5_000)
# Three points on a line.
POINTS = [0.3, -0.7, 1.1] + np.arange(3.0)[:, None] * [1.0, -2.0, 0.5]


@cache
def start(name):
    """The state at the start of a run, in NumPy, so that a later one is of the same types."""
    oracle, _ = ORACLES[name]
    init = jax.jit(lambda x: oracle.init(x)) if "svrg" in name else oracle.init
    return jax.tree.map(np.asarray, init(np.zeros(D)))


@cache
def estimates(name):
    """One program per oracle: what it returns for every key at every point, from a state.

    All tests share it, since compiling is most of their time.
    """
    oracle, _ = ORACLES[name]
    at_points = jax.vmap(oracle.estimate, in_axes=(0, None, None))
    return jax.jit(lambda state: jax.vmap(lambda key: at_points(POINTS, state, key))(KEYS))


@cache
def from_start(name):
    """What an oracle returns at the start of a run, for every key and point."""
    return jax.tree.map(np.asarray, estimates(name)(start(name)))


@every
def test_the_same_state_and_key_give_the_same_program(name):
    """Asked twice, the second time at another point, the oracle computes the same: it keeps no hidden state."""
    oracle, _ = ORACLES[name]
    key, state = KEYS[0], start(name)
    # What is traced is all that is computed: a hidden state would show in the next trace.
    first, again = (jax.make_jaxpr(oracle.estimate)(np.full(D, x), state, key) for x in (0.0, 1.0))
    assert str(first) == str(again)
    for mine, other in zip(first.consts, again.consts, strict=True):
        np.testing.assert_array_equal(mine, other)


IDS = np.arange(float(N))
NOISE_ALONE = {
    "mini-batch": MiniBatch(lambda x, batch: batch + 0 * x[0], IDS, 4),
    "mini-batch by epochs": MiniBatch(lambda x, batch: batch + 0 * x[0], IDS, 4, replacement=False),
    "mini-batch weighted": MiniBatch(lambda x, batch: batch + 0 * x[0], IDS, 4, weights=WEIGHTS),
    "reparameterised": Reparameterised(lambda x, key: jnp.sum(jax.random.normal(key, (D,))) + 0 * x[0], samples=4),
    "score function": ScoreFunction(lambda x, z: jnp.sum(z - x), gaussian_sample, gaussian_log_prob, samples=8),
}


@pytest.mark.parametrize("name", NOISE_ALONE)
def test_what_is_drawn_does_not_depend_on_x(name):
    """The value of these oracles is their noise alone: the ids of the batch, the normals of the samples."""
    oracle = NOISE_ALONE[name]
    value = lambda x, key: oracle.estimate(x, oracle.init(np.zeros(D)), key)[0].value
    points = np.array([[0.0, 0.0, 0.0], [0.7, 0.7, 0.7], [5.0, -3.0, 100.0]])
    at_points = jax.vmap(jax.vmap(value, in_axes=(0, None)), in_axes=(None, 0))
    drawn = jax.jit(lambda points: at_points(points, KEYS[:10]))(points)
    np.testing.assert_allclose(drawn, np.broadcast_to(drawn[:, :1], drawn.shape), rtol=1e-9, atol=1e-9)
    assert len(set(np.round(drawn[:, 0], 6).tolist())) > 5


def test_the_coin_of_loopless_svrg_does_not_depend_on_x():
    _, state = from_start("loopless svrg")
    moved = np.all(state.anchor.x == POINTS, axis=-1)
    assert 0 < moved.mean() < 1
    np.testing.assert_array_equal(moved, np.broadcast_to(moved[:, :1], moved.shape))


LINEAR = ["mini-batch", "mini-batch by epochs", "mini-batch weighted", "reparameterised", "svrg", "svrg by epochs"]


@pytest.mark.parametrize("name", LINEAR)
def test_the_noise_is_shared_between_points(name):
    """For a quadratic the noisy gradient is affine in x under one key, so three points on a line say if it was one.

    From the start, and from a state such as a run would have.
    """
    out, after = from_start(name)
    later, _ = estimates(name)(jax.tree.map(lambda leaf: leaf[0, 1], after))
    for gradient in (out.gradient, np.asarray(later.gradient)):
        g = np.moveaxis(gradient, 1, 0)
        np.testing.assert_allclose(g[2] - g[1], g[1] - g[0], rtol=1e-9, atol=1e-10)


def is_biased(estimate, exact):
    """Whether a mean over keys is more than five standard errors off, in any component; the noise is really there."""
    error = np.std(estimate, axis=0, ddof=1) / np.sqrt(len(estimate))
    assert np.all(error > 0)
    return np.any(np.abs(np.mean(estimate, axis=0) - exact) > 5 * error)


@every
def test_unbiased_over_keys(name):
    """Value and every component of the gradient. An oracle that calls itself deterministic has no noise."""
    oracle, exactly = ORACLES[name]
    out, _ = from_start(name)
    value, gradient = exactly(POINTS[0])
    for estimate, exact in ((out.gradient[:, 0], gradient), (out.value[:, 0], value)):
        if oracle.deterministic:
            np.testing.assert_allclose(estimate, np.broadcast_to(exact, estimate.shape), rtol=1e-5, atol=1e-8)
        else:
            assert not is_biased(estimate, exact)


def test_the_unbiasedness_test_can_fail():
    """A gradient that forgets the weights is caught by the same measure."""
    out, _ = from_start("mini-batch")
    assert is_biased(out.gradient[:, 0], ORACLES["mini-batch weighted"][1](POINTS[0])[1])


@pytest.mark.parametrize("name", ["mini-batch", "score function", "svrg"])
def test_eager_and_compiled_agree(name):
    oracle, _ = ORACLES[name]
    eager, _ = oracle.estimate(POINTS[0], start(name), KEYS[0])
    compiled, _ = from_start(name)
    np.testing.assert_allclose(eager.gradient, compiled.gradient[0, 0], rtol=1e-10, atol=1e-12)
    assert eager.gradient.shape == POINTS[0].shape

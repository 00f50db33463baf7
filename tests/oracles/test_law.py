"""The law of oracles: the same (state, key) gives the same noise, whatever x; and what every oracle owes."""

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
A = jnp.asarray(rng.normal(size=(N, D)))
b = jnp.asarray(rng.normal(size=N))
WEIGHTS = rng.uniform(0.5, 2.0, size=N)


def losses(x, batch):
    return 0.5 * (batch[0] @ x - batch[1]) ** 2


def mini(**options):
    return MiniBatch(losses, (A, b), batch_size=4, **options)


def least_squares(x):
    return 0.5 * jnp.mean((A @ x - b) ** 2)


def gaussian_sample(x, key):
    return x + jax.random.normal(key, x.shape)


def gaussian_log_prob(x, z):
    return -0.5 * jnp.sum((z - x) ** 2)


# Each oracle, and the exact objective whose gradient it estimates.
ORACLES = {
    "exact": (Exact(least_squares), least_squares),
    "finite differences": (FiniteDifferences(least_squares), least_squares),
    "mini-batch": (mini(), least_squares),
    "mini-batch by epochs": (mini(replacement=False), least_squares),
    "mini-batch weighted": (mini(weights=WEIGHTS), lambda x: jnp.average(losses(x, (A, b)), weights=WEIGHTS)),
    "mini-batch by epochs, weighted": (
        mini(weights=WEIGHTS, replacement=False),
        lambda x: jnp.average(losses(x, (A, b)), weights=WEIGHTS),
    ),
    # E[(z − 1)²] under N(x, I) is ‖x − 1‖² + D.
    "reparameterised": (
        Reparameterised(lambda x, key: jnp.sum((gaussian_sample(x, key) - 1) ** 2), samples=4),
        lambda x: jnp.sum((x - 1) ** 2) + D,
    ),
    "score function": (
        ScoreFunction(lambda x, z: jnp.sum((z - 1) ** 2), gaussian_sample, gaussian_log_prob, samples=8),
        lambda x: jnp.sum((x - 1) ** 2) + D,
    ),
    "score function of an integrand that knows x": (
        ScoreFunction(lambda x, z: jnp.sum(x * z), gaussian_sample, gaussian_log_prob, samples=8),
        lambda x: jnp.sum(x**2),
    ),
    "score function without baseline": (
        ScoreFunction(lambda x, z: jnp.sum((z - 1) ** 2), gaussian_sample, gaussian_log_prob, baseline=False),
        lambda x: jnp.sum((x - 1) ** 2) + D,
    ),
    "svrg": (SVRG(mini(), period=10), least_squares),
    "svrg by epochs": (SVRG(mini(replacement=False), period=10), least_squares),
    "loopless svrg": (LooplessSVRG(mini(), probability=0.3), least_squares),
    "svrg weighted": (
        SVRG(mini(weights=WEIGHTS), period=5),
        lambda x: jnp.average(losses(x, (A, b)), weights=WEIGHTS),
    ),
}
# Each alone is there without the other.
COMBINED = "mini-batch by epochs, weighted", "score function without baseline", "svrg by epochs", "svrg weighted"
NAMES = [pytest.param(name, marks=pytest.mark.slow) if name in COMBINED else name for name in ORACLES]
every = pytest.mark.parametrize("name", NAMES)
compiled = {name: jax.jit(lambda x, s, k, o=oracle: o.estimate(x, s, k)) for name, (oracle, _) in ORACLES.items()}


def state_after(name, steps, seed):
    """A state such as a run would have: some estimates at moving points after the start."""
    oracle, _ = ORACLES[name]
    x = jnp.zeros(D)
    state = oracle.init(x)
    for k in range(steps):
        _, state = compiled[name](x, state, jax.random.key(seed + k))
        x = x + 0.1
    return state


@every
def test_same_state_and_key_give_the_same_answer(name):
    """Asked twice, also with another point in between, the oracle answers alike: it keeps no hidden state."""
    oracle, _ = ORACLES[name]
    x, key = jnp.zeros(D), jax.random.key(3)
    state = oracle.init(x)
    # What is traced is all that is computed: a hidden state would show in the next trace.
    first, _, again = (jax.make_jaxpr(oracle.estimate)(point, state, key) for point in (x, x + 1, x))
    assert str(first) == str(again)
    for mine, other in zip(first.consts, again.consts, strict=True):
        np.testing.assert_array_equal(mine, other)
    # And what was compiled has none.
    answers = [compiled[name](point, state, key)[0] for point in (x, x + 1, x)]
    np.testing.assert_array_equal(answers[0].gradient, answers[2].gradient)


IDS = jnp.arange(float(N))
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
    state = oracle.init(jnp.zeros(D))
    value = jax.jit(lambda x, key: oracle.estimate(x, state, key)[0].value)
    draws = set()
    for seed in range(10):
        drawn = [
            float(value(x, jax.random.key(seed)))
            for x in (jnp.zeros(D), jnp.full(D, 0.7), jnp.asarray([5.0, -3.0, 100.0]))
        ]
        np.testing.assert_allclose(drawn, drawn[0], rtol=1e-9, atol=1e-9)
        draws.add(round(drawn[0], 6))
    assert len(draws) > 5


def test_the_coin_of_loopless_svrg_does_not_depend_on_x():
    oracle = LooplessSVRG(mini(), probability=0.5)
    state = oracle.init(jnp.zeros(D))
    anchor = jax.jit(lambda x, key: oracle.estimate(x, state, key)[1].anchor.x)
    for seed in range(10):
        moved = [bool(jnp.array_equal(anchor(x, jax.random.key(seed)), x)) for x in (jnp.ones(D), jnp.full(D, -2.0))]
        assert moved[0] == moved[1]


LINEAR = ["mini-batch", "mini-batch by epochs", "mini-batch weighted", "reparameterised", "svrg", "svrg by epochs"]


@pytest.mark.parametrize("name", LINEAR)
def test_the_noise_is_shared_between_points(name):
    """For a quadratic the noisy gradient is affine in x under one key, so three points on a line say if it was one."""
    state = state_after(name, 3, 5)
    for seed in range(20):
        key = jax.random.key(seed)
        x, step = jnp.zeros(D), jnp.asarray([1.0, -2.0, 0.5])
        g = [compiled[name](x + t * step, state, key)[0].gradient for t in (0.0, 1.0, 2.0)]
        np.testing.assert_allclose(g[2] - g[1], g[1] - g[0], rtol=1e-9, atol=1e-10)


def estimates(oracle, objective):
    """What an oracle says for many keys, and the truth."""
    x = jnp.asarray([0.3, -0.7, 1.1])
    state = oracle.init(jnp.zeros(D))
    many = lambda keys: jax.vmap(lambda key: oracle.estimate(x, state, key)[0])(keys)
    both = jax.jit(lambda keys: (many(keys), jax.value_and_grad(objective)(x)))
    return jax.tree.map(np.asarray, both(jax.random.split(jax.random.key(11), 10_000)))


@every
def test_unbiased_over_keys(name):
    """Mean over keys within five standard errors, value and every component; and the noise is really there.

    An oracle that calls itself deterministic has none, whatever the key.
    """
    oracle, objective = ORACLES[name]
    out, (value, gradient) = estimates(oracle, objective)
    for estimate, exact in ((out.gradient, gradient), (out.value[:, None], value[None])):
        if oracle.deterministic:
            np.testing.assert_allclose(estimate, np.broadcast_to(exact, estimate.shape), rtol=1e-5, atol=1e-8)
            continue
        error = np.std(estimate, axis=0, ddof=1) / np.sqrt(len(estimate))
        assert np.all(error > 0)
        assert np.all(np.abs(np.mean(estimate, axis=0) - exact) <= 5 * error)


def test_the_unbiasedness_test_can_fail():
    """A gradient that forgets the weights is caught by the same measure."""
    out, (_, gradient) = estimates(mini(), ORACLES["mini-batch weighted"][1])
    error = np.std(out.gradient, axis=0, ddof=1) / np.sqrt(len(out.gradient))
    assert np.any(np.abs(np.mean(out.gradient, axis=0) - gradient) > 5 * error)


@pytest.mark.slow
@every
def test_jit_and_eager_agree_and_the_gradient_keeps_the_tree(name):
    oracle, _ = ORACLES[name]
    x = jnp.asarray([0.3, -0.7, 1.1])
    state, key = oracle.init(x), jax.random.key(2)
    eager, _ = oracle.estimate(x, state, key)
    fast, _ = compiled[name](x, state, key)
    np.testing.assert_allclose(eager.gradient, fast.gradient, rtol=1e-10, atol=1e-12)
    assert eager.gradient.shape == x.shape


@every
def test_exactness_is_declared_truly(name):
    oracle, objective = ORACLES[name]
    x = jnp.asarray([0.3, -0.7, 1.1])
    state = oracle.init(jnp.zeros(D))
    gradients = [compiled[name](x, state, jax.random.key(k))[0].gradient for k in (0, 1)]
    if oracle.deterministic:
        np.testing.assert_allclose(gradients[0], jax.grad(objective)(x), rtol=1e-6)
    else:
        assert not jnp.array_equal(*gradients)

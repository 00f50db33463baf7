"""The general iteration equals a plain NumPy version of each named method, iterate by iterate, to rounding.

One test per row of the table in equations.md §0 that the foundation covers.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from thalweg.descent import (
    FISTA,
    L1,
    BernoulliFamily,
    Box,
    Descent,
    Euclidean,
    GaussianFamily,
    HeavyBall,
    KLFromCentre,
    KLToCentre,
    KLToPrior,
    Moments,
    NaturalGradient,
    NegativeEntropy,
    Nesterov,
    Simplex,
    minimize,
)
from thalweg.oracles import SVRG, Exact, MiniBatch

STEPS = 40
rng = np.random.default_rng(7)
A = rng.normal(size=(30, 8))
b = rng.normal(size=30)
x0 = rng.normal(size=8)
beta = 0.9 / np.linalg.norm(A, 2) ** 2


def loss(x):
    return 0.5 * jnp.sum((A @ x - b) ** 2)


def gradient(x):
    return A.T @ (A @ x - b)


def soft(x, t):
    return np.sign(x) * np.maximum(np.abs(x) - t, 0)


def iterates(descent, x, steps=STEPS, key=None):
    """All iterates of a descent, with the loop's own keys."""
    key = jax.random.key(0) if key is None else key

    def step(state, k):
        state, _ = descent.update(state, jax.random.fold_in(key, k))
        return state, state.x

    run = jax.jit(lambda x, counts: jax.lax.scan(step, descent.init(x), counts)[1])
    xs = jax.tree.map(np.asarray, run(x, np.arange(steps)))
    return [jax.tree.map(lambda leaf, k=k: leaf[k], xs) for k in range(steps)]


def assert_same(ours, plain, rtol=1e-10):
    assert len(ours) == len(plain) > 0
    for mine, theirs in zip(ours, plain, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=rtol, atol=1e-12)


def test_gradient_descent():
    x, plain = x0, []
    for _ in range(STEPS):
        x = x - beta * gradient(x)
        plain.append(x)
    assert_same(iterates(Descent(loss, step=beta), x0), plain)


def test_proximal_gradient():
    x, plain = x0, []
    for _ in range(STEPS):
        x = soft(x - beta * gradient(x), beta * 0.7)
        plain.append(x)
    assert_same(iterates(Descent(loss, term=L1(0.7), step=beta), x0), plain)
    assert np.any(plain[-1] == 0)


def test_projected_gradient():
    x, plain = x0, []
    for _ in range(STEPS):
        x = np.clip(x - beta * gradient(x), -0.1, 0.05)
        plain.append(x)
    assert_same(iterates(Descent(loss, term=Box(-0.1, 0.05), step=beta), x0), plain)


def test_heavy_ball():
    x = previous = x0
    plain = []
    for _ in range(STEPS):
        x, previous = x - beta * gradient(x) + 0.5 * (x - previous), x
        plain.append(x)
    assert_same(iterates(Descent(loss, step=beta, momentum=HeavyBall(0.5)), x0), plain)


@pytest.mark.parametrize("mu", [None, 0.6])
def test_nesterov(mu):
    x = previous = x0
    plain = []
    for k in range(STEPS):
        y = x + (k / (k + 3) if mu is None else mu) * (x - previous)
        x, previous = y - beta * gradient(y), x
        plain.append(x)
    assert_same(iterates(Descent(loss, step=beta, momentum=Nesterov(mu)), x0), plain)


def test_fista():
    x = y = x0
    t, plain = 1.0, []
    for _ in range(STEPS):
        following = soft(y - beta * gradient(y), beta * 0.7)
        t_next = (1 + np.sqrt(1 + 4 * t**2)) / 2
        y = following + (t - 1) / t_next * (following - x)
        x, t = following, t_next
        plain.append(x)
    assert_same(iterates(Descent(loss, term=L1(0.7), step=beta, momentum=FISTA()), x0), plain)


def test_subgradient_method():
    x, plain = x0, []
    for k in range(STEPS):
        x = x - 0.1 / np.sqrt(k + 1) * (A.T @ np.sign(A @ x - b))
        plain.append(x)
    absolute = lambda x: jnp.sum(jnp.abs(A @ x - b))
    assert_same(iterates(Descent(absolute, step=lambda k: 0.1 / jnp.sqrt(k.astype(float) + 1.0)), x0), plain)


def batches():
    return MiniBatch(lambda x, batch: 0.5 * (batch[0] @ x - batch[1]) ** 2, (A, b), batch_size=4)


def batch_gradient(x, indices):
    return A[indices].T @ (A[indices] @ x - b[indices]) / len(indices)


@jax.jit
def all_drawn(key):
    """The rows of every batch."""
    return jax.vmap(lambda k: jax.random.randint(jax.random.fold_in(key, k), (4,), 0, 30))(jnp.arange(STEPS))


def test_stochastic_gradient():
    key = jax.random.key(3)
    x, plain = x0, []
    for indices in np.asarray(all_drawn(key)):
        x = x - 0.05 * batch_gradient(x, indices)
        plain.append(x)
    assert_same(iterates(Descent(batches(), step=0.05), x0, key=key), plain)


def test_svrg_is_algorithm_2():
    key, period = jax.random.key(4), 10
    snapshot, x, plain = x0, x0, []
    for batches_drawn in np.asarray(all_drawn(key)).reshape(4, period, 4):
        full = gradient(snapshot) / 30
        x, inner = snapshot, []
        for indices in batches_drawn:
            estimate = batch_gradient(x, indices) - batch_gradient(snapshot, indices) + full
            x = soft(x - 0.05 * estimate, 0.05 * 0.02)
            inner.append(x)
        plain += inner
        snapshot = np.mean(inner, axis=0)
    ours = []
    watch = {"stride": 1, "callback": lambda snapshot: ours.append(snapshot.x), "engine": "host"}
    minimize(SVRG(batches(), period), x0, term=L1(0.02), step=0.05, steps=STEPS, key=key, **watch)
    assert_same(ours, plain)


def test_mirror_descent_on_the_simplex():
    cost = rng.normal(size=8)
    x = np.full(8, 1 / 8)
    plain = []
    for _ in range(STEPS):
        x = x * np.exp(-0.3 * (cost + x))
        x = x / x.sum()
        plain.append(x)
    f = lambda x: x @ cost + 0.5 * x @ x
    descent = Descent(f, term=Simplex(), divergence=NegativeEntropy(), step=0.3)
    assert_same(iterates(descent, np.full(8, 1 / 8)), plain)


def test_natural_gradient_and_the_two_kl_steps():
    target = rng.normal(size=5)
    f = lambda natural: 0.5 * jnp.sum((natural - target) ** 2)
    sigmoid = lambda x: 1 / (1 + np.exp(-x))
    start = np.zeros(5)
    x, natural_plain = start, []
    for _ in range(STEPS):
        mean = sigmoid(x)
        x = x - 0.05 * (x - target) / (mean * (1 - mean))
        natural_plain.append(x)
    assert_same(iterates(Descent(f, divergence=NaturalGradient(BernoulliFamily()), step=0.05), start), natural_plain)

    x, mirror_plain = start, []
    for _ in range(STEPS):
        mean = sigmoid(x) - 0.05 * (x - target)
        x = np.log(mean / (1 - mean))
        mirror_plain.append(x)
    assert_same(iterates(Descent(f, divergence=KLFromCentre(BernoulliFamily()), step=0.05), start), mirror_plain)

    # KL[q‖q_k] with the gradient in mean parameters is the natural gradient step itself.
    class MeanGradient(Exact):
        def estimate(self, x, state, key):
            out, state = super().estimate(x, state, key)
            return out._replace(gradient=BernoulliFamily().inverse_fisher(x, out.gradient)), state

    assert_same(
        iterates(Descent(MeanGradient(f), divergence=KLToCentre(BernoulliFamily()), step=0.05), start), natural_plain
    )


def test_kl_proximal_step_to_a_gaussian_prior():
    """PG-SVI's step (83) in natural parameters: λ⁺ = rλ + (1−r)(λ_p − ∇_μ f)."""
    family = GaussianFamily()
    # N(0, 2I) in natural parameters.
    prior = Moments(np.zeros(3), -np.eye(3) / 4)
    site = Moments(rng.normal(size=3), -0.5 * np.diag([1.0, 2.0, 3.0]))

    class Conjugate(Exact):
        """f linear in the mean parameters: its gradient is minus the site's natural parameters, everywhere."""

        def estimate(self, x, state, key):
            out, state = super().estimate(x, state, key)
            return out._replace(gradient=jax.tree.map(jnp.negative, site)), state

    f = lambda x: -sum(jnp.sum(u * v) for u, v in zip(site, family.mean(x), strict=True))
    descent = Descent(Conjugate(f), term=KLToPrior(family, prior), divergence=KLToCentre(family), step=0.5)
    ours = iterates(descent, prior, steps=30)
    x = prior
    r = 1 / 1.5
    for mine in ours:
        x = jax.tree.map(lambda c, p, s: r * c + (1 - r) * (p + s), x, prior, site)
        for a, b in zip(mine, x, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)
    # The limit is the exact posterior: prior times site.
    np.testing.assert_allclose(ours[-1].second, prior.second + site.second, rtol=1e-4)


def test_euclidean_is_the_default_geometry():
    explicit = iterates(Descent(loss, step=beta, divergence=Euclidean()), x0)
    assert_same(iterates(Descent(loss, step=beta), x0), explicit, rtol=0)

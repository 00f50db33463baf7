"""The baselines optimise the same bound: its value and gradient in (m, L), and the proximal point."""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from papers._factored import Factored, NegativeBound, ProximalPoint
from thalweg.descent import Descent, Tolerance, minimize
from thalweg.gaussian import (
    BernoulliLogit,
    ExpectedLikelihood,
    Full,
    GaussianKL,
    Implicit,
    KLToNormal,
    KLToProcess,
    ScoreSamples,
)

rng = np.random.default_rng(0)
N = 10
INPUTS = rng.normal(size=(N, 2))
K = jnp.asarray(4 * np.exp(-((INPUTS[:, None] - INPUTS) ** 2).sum(axis=-1)) + 0.1 * np.eye(N))
LABELS = rng.integers(0, 2, size=N)
LIKELIHOOD = ExpectedLikelihood(BernoulliLogit(), LABELS)
SITES = rng.normal(size=N), rng.uniform(0, 2, size=N)
implicit = cache(lambda: jax.jit(Implicit.from_sites)(K, *SITES))
full_from_moments = jax.jit(Full.from_moments)


# Compiled once for all tests with the same shapes.
value = jax.jit(lambda oracle, x: oracle.value(x))
full = jax.jit(lambda oracle, x: oracle.full(x))


def factored(x):
    """The same distribution by its mean and Cholesky factor."""
    V = np.linalg.inv(np.linalg.inv(K) + np.diag(x.sites))
    return Factored(np.asarray(x.mean), np.linalg.cholesky(V))


def test_the_bound_is_that_of_the_implicit_posterior():
    bound = NegativeBound(LIKELIHOOD, K)
    wanted = jax.jit(lambda x: LIKELIHOOD.value(x) + x.kl_to_prior())(implicit())
    np.testing.assert_allclose(value(bound, factored(implicit())), wanted, rtol=1e-11)
    to_itself = jax.jit(lambda K: Factored.prior(K).kl_to_prior(jnp.linalg.cholesky(K)))
    np.testing.assert_allclose(to_itself(K), 0, atol=1e-12)


def test_the_gradient_is_that_of_the_bound_and_stays_lower_triangular():
    bound, x = NegativeBound(LIKELIHOOD, K), factored(implicit())
    out = full(bound, x)
    wanted = jax.jit(jax.grad(bound.value))(x)
    jax.tree.map(lambda g, w: np.testing.assert_allclose(g, w, rtol=1e-9, atol=1e-10), out.gradient, wanted)
    np.testing.assert_array_equal(np.triu(out.gradient.factor, 1), 0)
    np.testing.assert_allclose(out.value, value(bound, x), rtol=1e-12)


def test_noisy_gradients_of_the_bound_are_unbiased():
    noisy = ExpectedLikelihood(BernoulliLogit(), LABELS, expectation=ScoreSamples(4, shared=True), batch_size=3)
    bound, x, runs = NegativeBound(noisy, K), factored(implicit()), 4000
    draw = jax.jit(jax.vmap(lambda key: bound.estimate(x, bound.init(x), key)[0].gradient))
    found, wanted = draw(jax.random.split(jax.random.key(1), runs)), full(bound, x).gradient
    for leaf, truth in zip(map(np.asarray, found), map(np.asarray, wanted), strict=True):
        error = np.std(leaf, axis=0) / np.sqrt(runs)
        assert np.all(np.abs(np.mean(leaf, axis=0) - truth) <= 5 * error + 1e-12)


@pytest.mark.slow
def test_adam_on_the_factor_and_proximal_steps_find_the_same_bound():
    ours = minimize(
        LIKELIHOOD,
        Implicit.prior(K),
        term=KLToProcess(K),
        divergence=GaussianKL(),
        step=0.5,
        tol=Tolerance(0, 1e-8),
    )
    # Optax promotes counts to floats.
    with jax.numpy_dtype_promotion("standard"):
        theirs = minimize(NegativeBound(LIKELIHOOD, K), Factored.prior(K), step=optax.adam(0.02), steps=4000)
    best = float(value(LIKELIHOOD, ours.x) + ours.x.kl_to_prior())
    assert 0 <= float(value(NegativeBound(LIKELIHOOD, K), theirs.x)) - best < 1e-4


# (82) is linear in fewer coordinates, and its inner iterations converge for shorter steps only.
@pytest.mark.parametrize(("coordinates", "beta"), [("mean", 0.4), ("moments", 0.1)])
def test_the_proximal_point_minimises_f_itself(coordinates, beta):
    """In m and V, where f, h and D are smooth, the gradient of f + h + D(· ‖ x)/β vanishes there."""
    d = 3
    design, spread = rng.normal(size=(N, d)), rng.normal(size=(d, d))
    likelihood = ExpectedLikelihood(BernoulliLogit(), LABELS, design)
    prior = full_from_moments(rng.normal(size=d), np.eye(d))
    start = full_from_moments(rng.normal(size=d), spread @ spread.T + np.eye(d))
    term, divergence = KLToNormal(prior), GaussianKL(coordinates)

    @partial(jax.jit, static_argnums=0)
    def ahead(inner):
        oracle = ProximalPoint(likelihood, term, divergence, beta, inner)
        out, _ = oracle.estimate(start, (), jax.random.key(0))
        return divergence.step(start, out.gradient, beta, term), out.work

    @jax.jit
    @partial(jax.value_and_grad, argnums=(0, 1))
    def objective(mean, covariance):
        x = Full.from_moments(mean, covariance)
        return likelihood.value(x) + x.kl(prior) + x.kl(start) / beta

    x, work = ahead(100)
    least, slopes = objective(x.mean, x.covariance)
    assert max(np.abs(slope).max() for slope in map(np.asarray, slopes)) < 1e-9
    assert work == 100 * N
    once = jax.jit(lambda: divergence.step(start, likelihood.full(start).gradient, beta, term))()
    assert float(least) < float(objective(once.mean, once.covariance)[0])
    if coordinates == "mean":
        # One iteration is the proximal-gradient step, whatever the coordinates.
        jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-14, atol=1e-14), ahead(1)[0], once)


def test_the_proximal_point_method_descends_to_the_optimum_of_the_process():
    term, divergence, beta = KLToProcess(K), GaussianKL(), 1.0
    outer = Descent(ProximalPoint(LIKELIHOOD, term, divergence, beta), term=term, divergence=divergence, step=beta)
    keys = jax.random.split(jax.random.key(0), 60)
    _, info = jax.jit(lambda K: jax.lax.scan(outer.update, outer.init(Implicit.prior(K)), keys))(K)
    assert np.all(np.diff(info.value) <= 1e-12)
    assert np.asarray(info.residual)[-1] < 1e-9


def test_a_noisy_oracle_has_no_proximal_point():
    noisy = ExpectedLikelihood(BernoulliLogit(), LABELS, batch_size=2)
    with pytest.raises(ValueError, match="oracle of ProximalPoint must be exact, found a noisy ExpectedLikelihood"):
        ProximalPoint(noisy, KLToProcess(K), GaussianKL(), 1.0)

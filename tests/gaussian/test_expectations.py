"""Expectations against quadrature by brute force, itself checked by mpmath, and unbiasedness of the samplers."""

from functools import lru_cache

import equinox as eqx
import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from scipy import stats
from scipy.special import erfcx, expit, logsumexp

from thalweg.gaussian import (
    BernoulliLogit,
    BernoulliProbit,
    Expectation,
    GaussianNoise,
    Likelihood,
    MonteCarlo,
    NegativeBinomial,
    Poisson,
    Quadrature,
    ScoreSamples,
    StudentT,
)

VARIANCES = 10.0 ** np.arange(-2, 6)


class Sech(Likelihood):
    """A user's own: the hyperbolic secant distribution around z, by its log_prob alone."""

    def log_prob(self, y, z):
        return -jnp.logaddexp(y - z, z - y) - jnp.log(jnp.pi / 2)


def probit_slope(y, z):
    sign = 2 * y - 1
    return sign * np.sqrt(2 / np.pi) / erfcx(-sign * z / np.sqrt(2))


# Each with targets, log p and its derivative in z written without JAX, and where and how widely log p bends.
CASES = {
    "logit": (
        BernoulliLogit(),
        [0.0, 1.0],
        lambda y, z: -np.logaddexp(0, (1 - 2 * y) * z),
        lambda y, z: y - expit(z),
        lambda y: (0.0, 1.0),
    ),
    "probit": (
        BernoulliProbit(),
        [0.0, 1.0],
        lambda y, z: stats.norm.logcdf((2 * y - 1) * z),
        probit_slope,
        lambda y: (0.0, 1.0),
    ),
    "negative binomial": (
        NegativeBinomial(0.5),
        [0.0, 3.0, 200.0],
        lambda y, z: (
            stats.nbinom.logpmf(y, 2, 0.5)
            + (y + 2) * np.log(2)
            + y * (z - np.log(2))
            - (y + 2) * np.logaddexp(0, z - np.log(2))
        ),
        lambda y, z: y - (y + 2) * expit(z - np.log(2)),
        lambda y: (np.log(2), 1.0),
    ),
    "gaussian": (
        GaussianNoise(0.3),
        [-20.0, 0.3],
        lambda y, z: stats.norm.logpdf(y, z, np.sqrt(0.3)),
        lambda y, z: (y - z) / 0.3,
        lambda y: (y, 1.0),
    ),
    "student": (
        StudentT(4.0, 0.5),
        [-20.0, 0.3],
        lambda y, z: stats.t.logpdf(y, 4.0, z, 0.5),
        lambda y, z: 5 * (y - z) / (1 + (y - z) ** 2),
        lambda y: (y, 0.5),
    ),
    "cauchy": (
        StudentT(1.0, 0.1),
        [-20.0, 0.3],
        lambda y, z: stats.cauchy.logpdf(y, z, 0.1),
        lambda y, z: 2 * (y - z) / (0.01 + (y - z) ** 2),
        lambda y: (y, 0.1),
    ),
    "user's own": (
        Sech(),
        [0.0, 3.0],
        lambda y, z: -np.logaddexp(y - z, z - y) - np.log(np.pi / 2),
        lambda y, z: np.tanh(y - z),
        lambda y: (y, 1.0),
    ),
}
every_case = pytest.mark.parametrize("name", CASES)


@lru_cache
def grid(name):
    """Targets, means near, far and on either side, and variances from narrow to wide."""
    targets = CASES[name][1]
    y, v, shift = (part.ravel() for part in np.meshgrid(targets, VARIANCES, [-10, -5, -1, 0, 0.3, 3, 8]))
    return np.tile(y, 2), np.concatenate([np.sqrt(v) * shift, (np.sqrt(v) + 5) * shift]), np.tile(v, 2)


def quadrature_and_gradients(likelihood, y, m, v):
    return jax.tree.map(np.asarray, compiled_quadrature(likelihood, y, m, v))


@eqx.filter_jit
def compiled_quadrature(likelihood, y, m, v):
    def total(m, v):
        found = Quadrature()(likelihood, y, m, v)
        return jnp.sum(found.value), found

    gradients, found = jax.grad(total, (0, 1), has_aux=True)(m, v)
    return found, gradients


@lru_cache
def quadrature_on_grid(name):
    return quadrature_and_gradients(CASES[name][0], *grid(name))


log_predictive = eqx.filter_jit(lambda likelihood, y, m, v: likelihood.log_predictive(y, m, v))


def panels(m, v, place, width, reach=11.0):
    """Gauss–Legendre nodes and weights on many panels: even over the Gaussian, geometric around the bend."""
    deviation = np.sqrt(v)
    low, high = m - reach * deviation, m + reach * deviation
    ladder = width * 1.6 ** np.arange(-6, 34)[:, None]
    breaks = np.concatenate([np.linspace(low, high, 61), place + ladder, place - ladder, place[None]])
    breaks = np.sort(np.clip(breaks, low, high), axis=0)
    nodes, weights = np.polynomial.legendre.leggauss(16)
    half = np.diff(breaks, axis=0)[:, None] / 2
    z = (breaks[:-1, None] + half + half * nodes[:, None]).reshape(-1, m.size)
    return z, (half * weights[:, None]).reshape(-1, m.size) * stats.norm.pdf(z, m, deviation)


@lru_cache
def brute_force_on_grid(name):
    return brute_force(name, *grid(name))


def brute_force(name, y, m, v):
    """E log p and the expectations of its derivatives; the second by Stein's identity E f″ = E[f′·(z − m)]/v."""
    _, _, log_prob, slope, bend = CASES[name]
    place, width = np.broadcast_arrays(*bend(y), y)[:2]
    z, weights = panels(m, v, place, width)
    slopes = slope(y, z)
    return np.array([np.sum(weights * part, axis=0) for part in (log_prob(y, z), slopes, slopes * (z - m) / v)])


def errors(found, exact):
    """Absolute errors, relative where the exact value exceeds one."""
    return np.abs(np.asarray(found) - exact) / np.maximum(1, np.abs(exact))


@every_case
def test_quadrature_is_accurate_from_narrow_to_wide_gaussians(name):
    found, _ = quadrature_on_grid(name)
    assert errors(found, brute_force_on_grid(name)).max() < 1e-9


def test_gauss_hermite_would_fail():
    y, m, v = grid("logit")
    nodes, weights = np.polynomial.hermite_e.hermegauss(20)
    value = weights / np.sqrt(2 * np.pi) @ CASES["logit"][2](y, m + np.sqrt(v) * nodes[:, None])
    assert errors(value, brute_force_on_grid("logit")[0]).max() > 1e-3


@pytest.mark.parametrize(
    ("name", "log_prob", "y", "m", "v"),
    [
        ("logit", lambda y, z: -mpmath.log1p(mpmath.exp(-z)), 1.0, -30.0, 1e5),
        ("probit", lambda y, z: mpmath.log(mpmath.ncdf(z)), 1.0, 10.0, 100.0),
        ("user's own", lambda y, z: -mpmath.log(mpmath.pi * mpmath.cosh(z - y)), 3.0, 2.0, 1e3),
        ("cauchy", lambda y, z: -mpmath.log(mpmath.pi * (0.1 + 10 * (z - y) ** 2)), 0.3, 5.0, 1e4),
    ],
)
def test_brute_force_agrees_with_mpmath(name, log_prob, y, m, v):
    with mpmath.workdps(16):
        deviation = mpmath.sqrt(v)
        ends = [m + k * deviation for k in (-9, -5, -2, 0, 2, 5, 9)] + [y + k for k in (-20, -4, -1, 0, 1, 4, 20)]
        density = lambda z: mpmath.npdf(z, m, deviation)
        # Both integrals at once, as real and imaginary part. Stein's identity: the derivative in m needs log p alone.
        both_at = lambda z: log_prob(y, z) * density(z) * mpmath.mpc(1, (z - m) / v)
        both = mpmath.quad(both_at, sorted(ends), method="gauss-legendre")
        exact = np.array([both.real, both.imag], dtype=float)
    found = brute_force(name, np.array([y]), np.array([m]), np.array([v]))[:2, 0]
    assert errors(found, exact).max() < 1e-11


def test_poisson_is_exact_where_it_is_finite_and_infinite_where_it_overflows():
    y, m, v = (part.ravel() for part in np.meshgrid([0.0, 3.0, 200.0], [-50.0, -1.0, 2.0], VARIANCES))
    with np.errstate(over="ignore"):
        rate = np.exp(m + v / 2)
    found = Quadrature()(Poisson(), y, m, v)
    np.testing.assert_allclose(found.value, y * m - rate - _log_factorial(y))
    np.testing.assert_allclose(found.first, y - rate)
    np.testing.assert_allclose(found.second, -rate)
    narrow = v <= 1
    z, weights = panels(m[narrow], v[narrow], m[narrow], np.ones(narrow.sum()))
    by_force = np.sum(weights * stats.poisson.logpmf(y[narrow], np.exp(z)), axis=0)
    np.testing.assert_allclose(found.value[narrow], by_force, rtol=1e-9)


def _log_factorial(y):
    return np.array([np.sum(np.log(np.arange(1, count + 1))) for count in y])


@every_case
def test_a_gaussian_of_no_width_gives_the_likelihood_itself(name):
    likelihood, targets, log_prob, slope, _ = CASES[name]
    cases = np.meshgrid(targets, [-3.0, 0.0, 0.3, 40.0], [0.0, 1e-12])
    # As many as in the other tests, so that nothing is compiled again.
    y, m, v = (np.resize(part, grid(name)[0].shape) for part in cases)
    found, _ = quadrature_and_gradients(likelihood, y, m, v)
    np.testing.assert_allclose(found.value, log_prob(y, m), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(found.first, slope(y, m), rtol=1e-9, atol=1e-9)


@every_case
def test_second_is_never_positive_for_log_concave_likelihoods(name):
    likelihood = CASES[name][0]
    found, _ = quadrature_on_grid(name)
    assert not likelihood.log_concave or np.all(found.second <= 0)


@every_case
def test_gradients_are_those_of_bonnet_and_price(name):
    found, (of_m, of_v) = quadrature_on_grid(name)
    np.testing.assert_allclose(of_m, found.first, rtol=1e-13)
    np.testing.assert_allclose(of_v, found.second / 2, rtol=1e-13)


def test_first_is_differentiable_too():
    likelihood = CASES["student"][0]
    y, m, v = grid("student")
    first = lambda m: Quadrature()(likelihood, y, m, v).first
    _, slope = jax.jit(lambda m: jax.jvp(first, (m,), (jnp.ones_like(m),)))(m)
    found, _ = quadrature_on_grid("student")
    np.testing.assert_allclose(slope, found.second, rtol=1e-8, atol=1e-9)


def test_gradients_reach_the_parameters_of_a_likelihood():
    y, m, v, h = np.array([2.0, -1.0]), np.array([0.3, 5.0]), np.array([1.0, 100.0]), 1e-4
    total = lambda likelihood: jnp.sum(Quadrature()(likelihood, jnp.asarray(y), m, v).value)
    value_and_gradient = eqx.filter_jit(eqx.filter_value_and_grad(total))
    (below, _), (_, gradient), (above, _) = (value_and_gradient(StudentT(4.0, 0.5 + step)) for step in (-h, 0, h))
    np.testing.assert_allclose(gradient.scale, (float(above) - float(below)) / (2 * h), rtol=1e-6)


def test_quadrature_maps_and_broadcasts():
    y, m, v = np.array([0, 1]), np.array([[0.2], [3.0], [-1.0]]), np.array([1.0, 50.0])
    likelihood = StudentT(4.0, 0.5)
    at = lambda m: Quadrature()(likelihood, y, m, v)
    whole, rows = jax.jit(lambda m: (at(m), jax.vmap(at)(m)))(m)
    for part, other in zip(whole, rows, strict=True):
        assert part.shape == (3, 2)
        np.testing.assert_allclose(part, other, rtol=1e-12)


@pytest.mark.parametrize("name", ["logit", "probit", "student"])
def test_float32_is_good_to_float32(name):
    likelihood = CASES[name][0]
    y, m, v = grid(name)
    found = jax.jit(Quadrature())(likelihood, y, m.astype(np.float32), v.astype(np.float32))
    assert {part.dtype for part in found} == {jnp.dtype(jnp.float32)}
    exact = brute_force(name, y, *(part.astype(np.float32).astype(float) for part in (m, v)))
    assert errors(found, exact).max() < 3e-5


@every_case
def test_log_predictive_is_the_log_of_an_average(name):
    likelihood, targets, log_prob, _, bend = CASES[name]
    y, v, shift = (part.ravel() for part in np.meshgrid(targets, VARIANCES, [-4, -1, 0, 0.3, 3]))
    place, width = np.broadcast_arrays(*bend(y), y)[:2]
    m = place + shift * np.sqrt(v)
    z, weights = panels(m, v, place, width, reach=30.0)
    with np.errstate(divide="ignore"):
        exact = logsumexp(log_prob(y, z) + np.log(weights), axis=0)
    np.testing.assert_allclose(log_predictive(likelihood, y, m, v), exact, rtol=1e-9, atol=1e-9)


def test_log_predictive_of_a_great_surprise():
    # Far in the tails of both; the sum of the two normals is known.
    noise = GaussianNoise(0.3)
    y, m, v = np.array([30.0, 3.0, -40.0]), np.asarray(0.0), np.array([1.0, 0.01, 100.0])
    both = jax.jit(lambda *arrays: (Likelihood.log_predictive(noise, *arrays), noise.log_predictive(*arrays)))
    by_quadrature, exact = both(y, m, v)
    np.testing.assert_allclose(by_quadrature, exact, rtol=1e-8)


SAMPLED = {
    "derivatives": MonteCarlo(3),
    "derivatives, shared": MonteCarlo(3, shared=True),
    "score": ScoreSamples(3),
    "score, shared": ScoreSamples(3, shared=True),
}


@lru_cache
def compiled_samples():
    sample = lambda y, m, v, key: {name: way(BernoulliLogit(), y, m, v, key) for name, way in SAMPLED.items()}
    return jax.jit(jax.vmap(sample, (None, None, None, 0)))


def samples(y, m, v):
    """Expectations of logistic labels by every sampler, from 5,000 keys."""
    words = np.random.default_rng(0).integers(2**32, size=(5_000, 2), dtype=np.uint32)
    return jax.tree.map(np.asarray, compiled_samples()(y, m, v, jax.random.wrap_key_data(words)))


def test_sampled_expectations_are_unbiased():
    y, m, v = np.array([0.0, 1.0, 1.0]), np.array([0.3, -1.0, 2.0]), np.array([0.5, 1.5, 0.2])
    exact = Quadrature()(BernoulliLogit(), y, m, v)
    for draws in samples(y, m, v).values():
        for draw, wanted in zip(draws, exact, strict=True):
            standard_error = np.std(draw, axis=0) / np.sqrt(len(draw))
            assert np.all(np.abs(np.mean(draw, axis=0) - wanted) < 5 * standard_error)


def test_shared_normals_are_the_same_for_every_element_and_scores_can_make_second_positive():
    found = samples(np.ones(3), np.zeros(3), np.ones(3))
    for name in ("derivatives", "score"):
        assert np.all(np.ptp(found[f"{name}, shared"].first, axis=1) == 0)
        assert np.all(np.ptp(found[name].first, axis=1) > 0)
    assert np.any(found["score"].second > 0)
    assert np.all(found["derivatives"].second <= 0)


def test_what_needs_a_key_says_so():
    assert Quadrature().deterministic
    for sampled in SAMPLED.values():
        assert not sampled.deterministic
        with pytest.raises(TypeError, match=r"key of .* must be one JAX random key .* found None"):
            sampled(BernoulliLogit(), np.ones(1), np.ones(1), np.ones(1))
    with pytest.raises(ValueError, match="samples must be a whole number of at least 1, found 0"):
        MonteCarlo(0)
    with pytest.raises(NotImplementedError, match="must define __call__"):
        Expectation()(BernoulliLogit(), np.ones(1), np.ones(1), np.ones(1))

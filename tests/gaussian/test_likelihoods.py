"""Likelihoods against scipy.stats and against the definitions of their predictions."""

from functools import lru_cache

import equinox as eqx
import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from scipy import stats
from scipy.special import expit

from thalweg.gaussian import (
    BernoulliLogit,
    BernoulliProbit,
    GaussianNoise,
    Likelihood,
    NegativeBinomial,
    Poisson,
    Quadrature,
    StudentT,
)
from thalweg.gaussian.special import expected_softplus, log_normal_cdf, logistic_mixture

LABELS, COUNTS, REALS = np.array([0.0, 1.0]), np.array([0.0, 1.0, 7.0, 300.0]), np.array([-20.0, 0.3, 4.0])
Z = np.concatenate([np.linspace(-6, 6, 25), [-500.0, -30.0, -8.001, -7.999, 30.0, 500.0]])

# Each with targets, the log-density of SciPy, and the mean and variance of a target given z.
CASES = {
    "logit": (
        BernoulliLogit(),
        LABELS,
        lambda y, z: -np.logaddexp(0, (1 - 2 * y) * z),
        expit,
        lambda z: expit(z) * expit(-z),
    ),
    "probit": (
        BernoulliProbit(),
        LABELS,
        lambda y, z: stats.norm.logcdf((2 * y - 1) * z),
        stats.norm.cdf,
        lambda z: stats.norm.cdf(z) * stats.norm.sf(z),
    ),
    "poisson": (Poisson(), COUNTS, lambda y, z: stats.poisson.logpmf(y, np.exp(z)), np.exp, np.exp),
    "negative binomial": (
        NegativeBinomial(0.4),
        COUNTS,
        lambda y, z: stats.nbinom.logpmf(y, 2.5, 2.5 / (2.5 + np.exp(z))),
        np.exp,
        lambda z: np.exp(z) + 0.4 * np.exp(2 * z),
    ),
    "gaussian": (
        GaussianNoise(0.3),
        REALS,
        lambda y, z: stats.norm.logpdf(y, z, np.sqrt(0.3)),
        lambda z: z,
        lambda z: 0.3 + 0 * z,
    ),
    "student": (
        StudentT(3.5, 0.2),
        REALS,
        lambda y, z: stats.t.logpdf(y, 3.5, z, 0.2),
        lambda z: z,
        lambda z: 0.2**2 * 3.5 / 1.5 + 0 * z,
    ),
}
every_case = pytest.mark.parametrize("name", CASES)


@lru_cache
def derivatives(name):
    likelihood, y, *_ = CASES[name]
    found = eqx.filter_jit(likelihood.derivatives)(*np.broadcast_arrays(y[:, None], Z))
    return [np.asarray(part) for part in found]


log_prob = eqx.filter_jit(lambda likelihood, y, z: likelihood.log_prob(y, z))
predict = eqx.filter_jit(lambda likelihood, m, v: likelihood.predict(m, v))


@every_case
def test_log_prob_is_that_of_scipy(name):
    _, y, by_scipy, *_ = CASES[name]
    # SciPy's own counts lose their digits where the rate over- or underflows.
    kept = np.abs(Z) < 10 if name in ("poisson", "negative binomial") else np.isfinite(Z)
    exact = by_scipy(y[:, None], Z[kept])
    np.testing.assert_allclose(derivatives(name)[0][:, kept], exact, rtol=1e-11, atol=1e-11)


@every_case
def test_derivatives_are_those_of_finite_differences(name):
    _, y, by_scipy, *_ = CASES[name]
    kept, h = np.abs(Z) < 4, 1e-3
    below, at, above = (by_scipy(y[:, None], Z[kept] + step) for step in (-h, 0, h))
    _, first, second = (part[:, kept] for part in derivatives(name))
    scale = 1 + np.abs(at).max()
    np.testing.assert_allclose(first, (above - below) / (2 * h), atol=1e-4 * scale)
    np.testing.assert_allclose(second, (above - 2 * at + below) / h**2, atol=1e-4 * scale)


@every_case
def test_log_concave_says_whether_second_derivatives_are_never_positive(name):
    assert bool(np.all(derivatives(name)[2] <= 0)) == CASES[name][0].log_concave


@every_case
def test_predictions_are_the_mean_and_variance_of_a_target(name):
    likelihood, _, _, mean, variance = CASES[name]
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    average = lambda function: function(m[:, None] + np.sqrt(v) * nodes) @ weights / np.sqrt(2 * np.pi)
    m, v = np.array([-2.0, 0.0, 1.5]), 0.5
    found = predict(likelihood, m, np.asarray(v))
    np.testing.assert_allclose(found.mean, average(mean), rtol=1e-10, atol=1e-12)
    spread = average(lambda z: mean(z) ** 2) - average(mean) ** 2
    np.testing.assert_allclose(found.variance, average(variance) + spread, rtol=1e-9)


@every_case
def test_float32_stays_float32_beside_whole_targets(name):
    """Whole numbers are promoted wherever float32 would be, and by more besides."""
    likelihood, y, *_ = CASES[name]

    def everything(y, m, v):
        expected, log_predictive = Quadrature()(likelihood, y, m, v), likelihood.log_predictive(y, m, v)
        return likelihood.log_prob(y, m), log_predictive, likelihood.predict(m, v), expected

    # Labels and counts may be integers: users have JAX's own promotion.
    with jax.numpy_dtype_promotion("standard"):
        shapes = jax.eval_shape(everything, y.astype(np.int64), np.float32(0.5), np.float32(2.0))
    assert {part.dtype for part in jax.tree.leaves(shapes)} == {jnp.dtype(jnp.float32)}


def test_rates_are_taken_where_they_are_meant():
    for likelihood in (Poisson(whole=False), NegativeBinomial(0.5, whole=False)):
        likelihood.check([0.0, 1.5])
        with pytest.raises(ValueError, match=r"y must be finite numbers of at least 0, found -0\.5"):
            likelihood.check([-0.5])


@pytest.mark.parametrize(
    ("name", "y"),
    [
        ("logit", [0, -1]),
        ("logit", [0.5]),
        ("probit", [2]),
        ("probit", [np.nan]),
        ("poisson", [-1.0]),
        ("poisson", [1.5]),
        ("poisson", [np.inf]),
        ("negative binomial", [-3]),
        ("negative binomial", [np.nan]),
        ("gaussian", [np.nan]),
        ("student", [np.inf]),
        ("student", ["a"]),
    ],
)
def test_targets_outside_the_support_are_refused(name, y):
    likelihood, good, *_ = CASES[name]
    likelihood.check(good)
    with pytest.raises(ValueError, match=f"{type(likelihood).__name__}: y must be .*found"):
        likelihood.check(np.asarray(y))


def test_the_error_says_which_target_is_wrong():
    with pytest.raises(ValueError, match=r"found -1 at index 1, 0 \(1 of 4 wrong\)"):
        Poisson().check(np.array([[0, 2], [-1, 5]]))


def test_traced_targets_are_not_looked_at():
    jax.jit(lambda y: Poisson().check(y))(jnp.array([-1.0]))


@pytest.mark.parametrize(
    ("make", "argument"),
    [
        (lambda: GaussianNoise(0.0), "variance"),
        (lambda: StudentT(-1.0, 1.0), "degrees"),
        (lambda: StudentT(3.0, np.nan), "scale"),
        (lambda: NegativeBinomial(0), "dispersion"),
    ],
)
def test_parameters_outside_their_range_are_refused(make, argument):
    with pytest.raises(ValueError, match=f"{argument} of .* must be a finite number above 0, found"):
        make()


def test_a_likelihood_without_log_prob_or_predict_says_so():
    with pytest.raises(NotImplementedError, match="must define log_prob"):
        Likelihood().log_prob(jnp.zeros(1), jnp.zeros(1))
    with pytest.raises(NotImplementedError, match="must define predict"):
        Likelihood().predict(jnp.zeros(1), jnp.ones(1))


def test_student_moments_that_do_not_exist():
    zeros, one = np.zeros(3), np.asarray(1.0)
    assert np.all(np.isinf(np.asarray(predict(StudentT(1.5, 1.0), zeros, one).variance)))
    assert np.all(np.isnan(np.asarray(predict(StudentT(1.0, 1.0), zeros, one).mean)))


def test_few_dispersed_counts_become_poisson():
    y, z = np.array([0.0, 1.0, 3.0, 7.0]), np.full(4, 0.7)
    found = log_prob(NegativeBinomial(1e-5), y, z)
    np.testing.assert_allclose(found, CASES["poisson"][2](y, z), atol=1e-3)


@pytest.mark.parametrize("dispersion", [1e-3, 0.5, 20.0])
def test_large_dispersed_counts_keep_their_digits(dispersion):
    """Seen: from counts of 1e15 with a dispersion of 0.5 one of 5.3 was learned, since their factorials are rounded."""
    y = np.array([9e3, 2e4, 1e9, 1e15])
    z = np.log(y) + 0.1
    found = log_prob(NegativeBinomial(dispersion), y, z)
    with mpmath.workdps(50):
        size = 1 / mpmath.mpf(dispersion)
        gamma = lambda count: (
            mpmath.loggamma(count + size) - mpmath.loggamma(size) - mpmath.loggamma(mpmath.mpf(count) + 1)
        )
        share = lambda place: size / mpmath.exp(mpmath.mpf(place))
        density = lambda count, place: (
            gamma(count) - count * mpmath.log1p(share(place)) - size * mpmath.log1p(1 / share(place))
        )
        exact = [float(density(*pair)) for pair in zip(y.tolist(), z.tolist(), strict=True)]
    np.testing.assert_allclose(found, exact, rtol=1e-10)


def test_log_normal_cdf_keeps_its_digits_far_to_the_left():
    z = np.concatenate([-np.logspace(-2, 4, 40), [-6.001, -5.999, 0.5, 5.0]])
    derivatives = [log_normal_cdf, jax.grad(log_normal_cdf), jax.grad(jax.grad(log_normal_cdf))]
    found = jax.jit(jax.vmap(lambda z: [function(z) for function in derivatives]))(z)
    with mpmath.workdps(40):
        exact = np.array([_log_normal_cdf(mpmath.mpf(float(place))) for place in z], dtype=float)
    np.testing.assert_allclose(np.transpose(found), exact, rtol=1e-12)


def _log_normal_cdf(z):
    cdf = mpmath.ncdf(z)
    hazard = mpmath.npdf(z) / cdf
    return mpmath.log(cdf), hazard, -hazard * (hazard + z)


def test_the_logistic_distribution_is_a_mixture_of_normals():
    scales, weights = logistic_mixture(20)
    assert np.all(weights > 0)
    # The variance and the fourth moment of the logistic distribution.
    np.testing.assert_allclose([weights @ scales**2, 3 * weights @ scales**4], [np.pi**2 / 3, 7 * np.pi**4 / 15])
    z = np.linspace(-60, 60, 4001)
    found, _ = jax.jit(expected_softplus)(z, np.zeros_like(z))
    for part, exact in zip(found, (np.logaddexp(0, z), expit(z), expit(z) * expit(-z)), strict=True):
        np.testing.assert_allclose(part, exact, rtol=0, atol=1e-12)


@pytest.mark.parametrize("largest", [0.0, 0.05, 0.06])
def test_many_numbers_are_averaged_as_a_few_are(largest):
    m = np.linspace(-60, 60, 2**14)
    v = largest * np.linspace(0, 1, len(m))
    average = jax.jit(expected_softplus, static_argnums=2)
    averages = lambda m, v: jax.tree.map(np.asarray, average(m, v, 32))
    many = averages(m, v)
    for part in np.array_split(np.arange(len(m)), 4):
        for side, wanted in zip(many, averages(m[part], v[part]), strict=True):
            for found, exact in zip(side, wanted, strict=True):
                np.testing.assert_allclose(found[part], exact, rtol=0, atol=1e-13)


def test_many_averages_have_a_slope_in_a_variance_of_nothing():
    m = np.linspace(-4, 4, 2**14)
    slope = jax.jit(jax.grad(lambda v: jnp.sum(expected_softplus(m, v)[0].value)))(np.zeros_like(m))
    np.testing.assert_allclose(slope, expit(m) * expit(-m) / 2, atol=1e-7)

"""Posteriors: KL from the textbook, samples, marginals, and a covariance whatever the curvature."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from thalweg.gaussian.divergence import GaussianKL, KLToNormal, KLToProcess
from thalweg.gaussian.likelihoods import StudentT
from thalweg.gaussian.oracle import ExpectedLikelihood
from thalweg.gaussian.posteriors import Diagonal, Full, Implicit, symmetric_kl

rng = np.random.default_rng(0)
D = 4


def covariance(d=D):
    factor = rng.normal(size=(d, d))
    return factor @ factor.T / d + 0.2 * np.eye(d)


def textbook_kl(m, V, mean, other):
    inverse = np.linalg.inv(other)
    ahead = m - mean
    quadratic = np.trace(inverse @ V) + ahead @ inverse @ ahead
    return (quadratic - len(m) + np.linalg.slogdet(other)[1] - np.linalg.slogdet(V)[1]) / 2


K, OTHER = covariance(), covariance()
MEAN, OTHER_MEAN = rng.normal(size=(2, D))
VARIANCES, OTHER_VARIANCES = rng.uniform(0.2, 3, size=(2, D))
WEIGHTS, OTHER_WEIGHTS = rng.normal(size=(2, D))
SITES, OTHER_SITES = rng.uniform(0, 3, size=(2, D))


def from_sites(weights, sites):
    return K @ weights, np.linalg.inv(np.linalg.inv(K) + np.diag(sites))


# Pairs of a posterior, on the host where nothing is compiled, and its mean and covariance.
PAIRS = {
    "full": [(Full.from_moments(m, V), (m, V)) for m, V in [(MEAN, K), (OTHER_MEAN, OTHER)]],
    "full from precision": [
        (Full.from_precision(m, np.linalg.inv(V)), (m, V)) for m, V in [(MEAN, K), (OTHER_MEAN, OTHER)]
    ],
    "diagonal": [
        (Diagonal.from_moments(m, v), (m, np.diag(v))) for m, v in [(MEAN, VARIANCES), (OTHER_MEAN, OTHER_VARIANCES)]
    ],
    "implicit": [
        (Implicit.from_sites(K, a, s), from_sites(a, s)) for a, s in [(WEIGHTS, SITES), (OTHER_WEIGHTS, OTHER_SITES)]
    ],
}
every = pytest.mark.parametrize("kind", PAIRS)


@every
def test_kl_is_that_of_the_textbook(kind):
    (x, moments), (y, others) = PAIRS[kind]
    np.testing.assert_allclose(x.kl(y), textbook_kl(*moments, *others), rtol=1e-11)
    np.testing.assert_allclose(y.kl(x), textbook_kl(*others, *moments), rtol=1e-11)
    np.testing.assert_allclose(x.kl(x), 0, atol=1e-13)
    np.testing.assert_allclose(symmetric_kl(x, y), x.kl(y) + y.kl(x), rtol=1e-11)
    assert symmetric_kl(x, x) == 0
    compiled = jax.jit(lambda x, y: (x.kl(y), symmetric_kl(x, y)))(x, y)
    np.testing.assert_allclose(compiled, (x.kl(y), symmetric_kl(x, y)), rtol=1e-11)


@cache
def samples():
    """Of every kind, by one program."""
    count, posteriors = 20_000, {kind: pair[0][0] for kind, pair in PAIRS.items()}
    draw = lambda kind, x, key: x.sample(key, count, *([K] if kind == "implicit" else []))
    together = jax.jit(lambda posteriors, key: {kind: draw(kind, x, key) for kind, x in posteriors.items()})
    return jax.tree.map(np.asarray, together(posteriors, jax.random.key(1)))


@every
def test_samples_have_the_moments(kind):
    (_, (mean, V)), _ = PAIRS[kind]
    count, drawn = 20_000, samples()[kind]
    assert drawn.shape == (count, D)
    assert np.all(np.abs(drawn.mean(axis=0) - mean) < 5 * np.sqrt(np.diag(V) / count))
    # The variance of (z_i − m_i)(z_j − m_j) under a Gaussian is V_ii·V_jj + V_ij².
    error = np.sqrt((np.outer(np.diag(V), np.diag(V)) + V**2) / count)
    assert np.all(np.abs((drawn - mean).T @ (drawn - mean) / count - V) < 5 * error)


@pytest.mark.parametrize("kind", ["full", "diagonal"])
def test_marginals_are_those_of_the_design(kind):
    (x, (mean, V)), _ = PAIRS[kind]
    design = rng.normal(size=(6, D))
    seen = x.marginals(design)
    np.testing.assert_allclose(seen.mean, design @ mean, rtol=1e-12)
    np.testing.assert_allclose(seen.variance, np.diag(design @ V @ design.T), rtol=1e-12)


def test_the_implicit_posterior_without_sites_is_the_prior():
    prior = Implicit.prior(K)
    made = Implicit.from_sites(K, np.zeros(D), np.zeros(D))
    jax.tree.map(np.testing.assert_array_equal, prior, made)
    assert prior.kl_to_prior() == 0
    assert prior.proper


def test_a_singular_kernel_is_no_trouble():
    """Two equal inputs: K has no inverse, and sites of 1e6 leave next to nothing of the prior."""
    twice = K[[0, 1, 1]][:, [0, 1, 1]]
    q = Implicit.from_sites(twice, np.ones(3), np.array([0.0, 1e6, 1e6]))
    assert q.proper
    np.testing.assert_allclose(q.variance[1:], 1 / (2e6 + 1 / K[1, 1]), rtol=1e-6)
    drawn = np.asarray(jax.jit(lambda q, key: q.sample(key, 1000, twice))(q, jax.random.key(0)))
    assert np.all(np.isfinite(drawn))
    np.testing.assert_allclose(drawn[:, 1], drawn[:, 2], atol=1e-5)


@pytest.mark.parametrize("family", [Full, Diagonal])
def test_what_is_no_covariance_is_not_proper(family):
    spread = np.array([1.0, -1.0])
    moments = np.diag(spread) if family is Full else spread
    improper = lambda xp: [
        make(xp.zeros(2), xp.asarray(moments)).proper for make in (family.from_moments, family.from_precision)
    ]
    assert not np.any(improper(np))
    assert not np.any(jax.jit(lambda: improper(jnp))())


def test_the_divergence_refuses_what_is_no_gaussian():
    with pytest.raises(TypeError, match=r"gaussian\.Full, Diagonal or Implicit, found"):
        GaussianKL().check(np.zeros(2))
    with pytest.raises(ValueError, match="positive definite covariance"):
        GaussianKL().check(Diagonal.from_moments(np.zeros(2), np.array([1.0, -1.0])))
    with pytest.raises(ValueError, match=r"coordinates of GaussianKL must be one of .* found 'natural'"):
        GaussianKL("natural")
    with pytest.raises(ValueError, match=r"guard of GaussianKL must be one of .* found 'hope'"):
        GaussianKL(guard="hope")


def test_the_terms_refuse_other_families_and_dimensions():
    (full, _), (implicit, _) = PAIRS["full"][0], PAIRS["implicit"][0]
    with pytest.raises(ValueError, match="must be a Full of 4 dimensions, as the prior"):
        KLToNormal(full).check(Diagonal.from_moments(np.zeros(4), np.ones(4)))
    with pytest.raises(ValueError, match="must be an Implicit posterior over the 3 rows of KLToProcess"):
        KLToProcess(np.eye(3)).check(implicit)
    with pytest.raises(TypeError, match=r"Implicit steps with term=KLToProcess\(covariance\) only"):
        GaussianKL().step(implicit, implicit, 1.0, KLToNormal(full))


@jax.jit
def guarded_step(divergence, term, centre, gradient, beta):
    """The step at the admissible size, that size, and the step at twice the size."""
    size = divergence.admissible(centre, gradient, beta, term)
    return *(divergence.step(centre, gradient, s, term) for s in (size, 2 * size)), size


numbers = arrays(np.float64, D, elements=st.floats(-1e3, 1e3))
sizes = st.floats(1e-3, 1e3)


# A guard is of the sites, coordinates of the mean: two pairs show all of both.
ways = st.sampled_from([("clip", "mean"), ("absolute", "moments")])


@settings(max_examples=50, deadline=None, derandomize=True)
@given(numbers, numbers, sizes, ways)
def test_no_curvature_makes_an_implicit_posterior_improper(alpha, gamma, beta, way):
    guard, coordinates = way
    (centre, _), _ = PAIRS["implicit"]
    gradient = jax.tree.map(np.zeros_like, centre)._replace(mean=alpha, variance=gamma / 2)
    taken = guarded_step(GaussianKL(coordinates, guard), KLToProcess(K), centre, gradient, beta)
    x, _, size = jax.tree.map(np.asarray, taken)
    assert x.proper
    assert np.all(np.isfinite(x.mean))
    assert size == beta
    wanted = SITES / (1 + beta) + gamma * beta / (1 + beta)
    wanted = np.maximum(wanted, 0) if guard == "clip" else np.abs(wanted)
    np.testing.assert_allclose(x.sites, wanted, rtol=1e-12, atol=1e-13)
    assert np.linalg.eigvalsh(from_sites(x.weights, x.sites)[1]).min() > 0


@settings(max_examples=50, deadline=None, derandomize=True)
@given(numbers, numbers, sizes, st.sampled_from(["mean", "moments"]), st.sampled_from(["full", "diagonal"]))
def test_no_curvature_makes_a_full_or_diagonal_posterior_improper(alpha, gamma, beta, coordinates, kind):
    (centre, _), (prior, _) = PAIRS[kind]
    spread, turn = gamma / 2, np.linalg.qr(OTHER)[0]
    spread = turn @ np.diag(spread) @ turn.T if kind == "full" else spread
    gradient = type(centre)(alpha, spread, np.zeros_like(spread))
    taken = guarded_step(GaussianKL(coordinates), KLToNormal(prior), centre, gradient, beta)
    x, twice_as_far, size = jax.tree.map(np.asarray, taken)
    V = np.asarray(x.covariance) if kind == "full" else np.diag(x.variance)
    assert x.proper
    assert np.all(np.isfinite(x.mean))
    assert np.linalg.eigvalsh(V).min() > 0
    halvings = np.log2(beta / size)
    assert halvings == round(float(halvings))
    # No more halvings than needed.
    assert size == beta or not twice_as_far.proper


def test_a_likelihood_that_is_not_log_concave_keeps_a_covariance_at_any_step():
    n = 20
    x = np.linspace(-2, 2, n)
    y = np.sin(3 * x) + 10 * (np.arange(n) % 5 == 0)
    process = np.exp(-((x[:, None] - x) ** 2) / 0.5) + 1e-6 * np.eye(n)
    oracle, term = ExpectedLikelihood(StudentT(3.0, 0.1), y), KLToProcess(jax.device_put(process))

    @jax.jit
    def follow(x):
        def step(x, guard):
            x = GaussianKL(guard=guard).step(x, oracle.full(x).gradient, 100.0, term)
            return x, (x.proper, x.mean)

        guards = "clip", "absolute"
        return {guard: jax.lax.scan(lambda x, _: step(x, guard), x, length=50)[1] for guard in guards}  # noqa: B023

    for guard, (proper, means) in follow(Implicit.prior(process)).items():
        assert np.all(proper), guard
        assert np.all(np.isfinite(means)), guard


def test_a_precision_that_is_not_positive_is_that_of_no_posterior():
    """Its diagonal is not raised: the point would seem to be a solution, as far away as it is."""
    q = Full.from_precision(np.zeros(2), np.diag([-2.0, 1e4]))
    assert np.all(np.isnan(q.covariance))


def test_variances_have_their_digits_whatever_the_sites_say():
    """Those that say nothing, next to nothing, and nearly all; K is not far from singular."""
    x = np.linspace(0, 3, 12)
    K = 20 * np.exp(-((x[:, None] - x) ** 2) / 2) + 1e-3 * np.eye(12)
    sites = np.array([0, 1e-14, 1e-9, 1e-7, 1e-5, 1e-3, 0.1, 0.25, 1.0, 10.0, 1e3, 1e5])
    expected = np.diagonal(np.linalg.inv(np.linalg.inv(K) + np.diag(sites)))
    found = Implicit.from_sites(K, np.zeros(12), sites)
    np.testing.assert_allclose(found.variance, expected, rtol=1e-8)

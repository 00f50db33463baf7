"""The closed-form steps against brute force, against each other, and against exact posteriors."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize as scipy_minimize
from threadpoolctl import threadpool_limits

from thalweg.descent import Descent, GaussianFamily, KLToCentre, KLToPrior, Moments, NaturalGradient, Zero
from thalweg.gaussian.divergence import GaussianKL, KLToNormal, KLToProcess
from thalweg.gaussian.likelihoods import BernoulliLogit, GaussianNoise, Poisson
from thalweg.gaussian.oracle import ExpectedLikelihood
from thalweg.gaussian.posteriors import Diagonal, Full, Implicit

COORDINATES = ("mean", "moments")
D = 3


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Brute force on matrices this small waits for threads longer than it computes."""
    with threadpool_limits(1, user_api="blas"):
        yield


# Compiled once for all tests with the same shapes.
admissible = jax.jit(
    lambda divergence, term, centre, gradient, beta: divergence.admissible(centre, gradient, beta, term)
)
take = jax.jit(lambda divergence, term, centre, gradient, size: divergence.step(centre, gradient, size, term))
full = jax.jit(lambda oracle, x: oracle.full(x))
value = jax.jit(lambda oracle, x: oracle.value(x))


def gaussian(mean, covariance):
    """What Full.from_moments makes, by NumPy."""
    return Full(mean, covariance, np.linalg.inv(covariance))


def host(tree):
    return jax.tree.map(np.asarray, tree)


def random_covariance(rng, d):
    factor = rng.normal(size=(d, d))
    return factor @ factor.T / d + 0.3 * np.eye(d)


def random_full(rng, d):
    return gaussian(rng.normal(size=d), random_covariance(rng, d))


def random_diagonal(rng, d):
    return Diagonal.from_moments(rng.normal(size=d), rng.uniform(0.3, 2, size=d))


def random_implicit(rng, covariance):
    n = len(covariance)
    weights, sites = rng.normal(size=n), rng.uniform(0, 2, size=n)
    return Implicit.from_sites(covariance, weights, sites)


def dense(implicit, covariance):
    """The same distribution, with V by inverting K."""
    precision = np.linalg.inv(covariance) + np.diag(implicit.sites)
    return gaussian(covariance @ np.asarray(implicit.weights), np.linalg.inv(precision))


def kl(m, V, mean, covariance):
    """KL[N(m, V) ‖ N(mean, covariance)], from the textbook."""
    ahead = m - mean
    trace = jnp.trace(jnp.linalg.solve(covariance, V))
    determinants = jnp.linalg.slogdet(covariance)[1] - jnp.linalg.slogdet(V)[1]
    return (trace + ahead @ jnp.linalg.solve(covariance, ahead) - len(m) + determinants) / 2


def from_flat(flat, d=D):
    """m and V, V by its Cholesky factor with the logarithms of its diagonal."""
    lower = jnp.zeros((d, d)).at[np.tril_indices(d)].set(flat[d:])
    factor = jnp.tril(lower, -1) + jnp.diag(jnp.exp(jnp.diagonal(lower)))
    return flat[:d], factor @ factor.T


def iteration(flat, squares, alpha, Gamma, centre, prior, beta, prior_weight):
    """The objective of (1); f is linear in (m, V), or with ``squares`` = 1 in (m, V + mmᵀ)."""
    m, V = from_flat(flat)
    slope = alpha - squares * Gamma @ centre[0]
    linear = slope @ m + jnp.sum(Gamma * (V + squares * jnp.outer(m, m))) / 2
    return linear + prior_weight * kl(m, V, *prior) + kl(m, V, *centre) / beta


VALUE_AND_GRADIENT, MOMENTS = jax.jit(jax.value_and_grad(iteration)), jax.jit(from_flat)


def brute_force(coordinates, alpha, Gamma, centre, prior, beta, prior_weight=1.0):
    """The minimiser of (1) over all m and all covariances V."""
    args = (float(coordinates == "mean"), alpha, Gamma, centre, prior, float(beta), prior_weight)
    start = np.zeros(D + D * (D + 1) // 2)
    result = scipy_minimize(VALUE_AND_GRADIENT, start, args=args, jac=True, method="BFGS", options={"gtol": 1e-9})
    assert np.linalg.norm(result.jac) < 1e-6
    return host(MOMENTS(result.x))


@pytest.mark.parametrize("coordinates", COORDINATES)
@pytest.mark.parametrize(("seed", "beta"), [(0, 0.05), (1, 1.0), (2, 20.0)])
def test_the_full_step_minimises_the_iteration(coordinates, seed, beta):
    rng = np.random.default_rng(seed)
    centre, prior = random_full(rng, D), random_full(rng, D)
    alpha, low_rank = rng.normal(size=D), rng.normal(size=(D, 2))
    Gamma = low_rank @ low_rank.T - 0.5 * np.asarray(prior.precision)  # not positive semi-definite
    gradient = Full(alpha, Gamma / 2, np.zeros((D, D)))
    step = host(take(GaussianKL(coordinates), KLToNormal(prior), centre, gradient, beta))
    m, V = brute_force(coordinates, alpha, Gamma, centre[:2], prior[:2], beta)
    np.testing.assert_allclose(step.mean, m, atol=1e-6)
    np.testing.assert_allclose(step.covariance, V, atol=1e-6)
    np.testing.assert_allclose(step.precision @ step.covariance, np.eye(D), atol=1e-12)


@pytest.mark.parametrize("coordinates", COORDINATES)
@pytest.mark.parametrize(("seed", "beta"), [(3, 0.1), (4, 5.0)])
def test_the_diagonal_step_minimises_the_iteration(coordinates, seed, beta):
    rng = np.random.default_rng(seed)
    centre, prior = random_diagonal(rng, D), random_diagonal(rng, D)
    alpha, gamma = rng.normal(size=D), rng.uniform(-0.3, 2, size=D)
    gradient = Diagonal(alpha, gamma / 2, np.zeros(D))
    step = host(take(GaussianKL(coordinates), KLToNormal(prior), centre, gradient, beta))
    spread = lambda q: (q.mean, np.diag(q.variance))
    # Nothing couples the entries: the best of all covariances is diagonal.
    m, V = brute_force(coordinates, alpha, np.diag(gamma), spread(centre), spread(prior), beta)
    np.testing.assert_allclose(step.mean, m, atol=1e-6)
    np.testing.assert_allclose(np.diag(step.variance), V, atol=1e-6)


@pytest.mark.parametrize("coordinates", COORDINATES)
@pytest.mark.parametrize(("seed", "beta"), [(5, 0.1), (6, 5.0)])
def test_the_implicit_step_minimises_the_iteration_over_all_covariances(coordinates, seed, beta):
    rng = np.random.default_rng(seed)
    K = random_covariance(rng, D)
    centre = random_implicit(rng, K)
    alpha, gamma = rng.normal(size=D), rng.uniform(0, 2, size=D)
    gradient = jax.tree.map(np.zeros_like, centre)._replace(mean=alpha, variance=gamma / 2)
    step = host(take(GaussianKL(coordinates), KLToProcess(K), centre, gradient, beta))
    m, V = brute_force(coordinates, alpha, np.diag(gamma), dense(centre, K)[:2], (np.zeros(D), K), beta)
    np.testing.assert_allclose(step.mean, m, atol=1e-6)
    np.testing.assert_allclose(dense(step, K).covariance, V, atol=1e-6)


@pytest.mark.parametrize("coordinates", COORDINATES)
@pytest.mark.parametrize("beta", [0.05, 0.3])
def test_without_a_term_the_step_minimises_the_iteration_too(coordinates, beta):
    rng = np.random.default_rng(7)
    centre = random_full(rng, D)
    alpha, Gamma = rng.normal(size=D), rng.normal(size=(D, D))
    Gamma = Gamma + Gamma.T
    gradient = Full(alpha, Gamma / 2, np.zeros((D, D)))
    divergence = GaussianKL(coordinates)
    size = float(admissible(divergence, Zero(), centre, gradient, beta))
    step = take(divergence, Zero(), centre, gradient, size)
    m, V = brute_force(coordinates, alpha, Gamma, centre[:2], centre[:2], size, prior_weight=0.0)
    np.testing.assert_allclose(step.mean, m, atol=1e-6)
    np.testing.assert_allclose(step.covariance, V, atol=1e-6)


@pytest.mark.parametrize("coordinates", COORDINATES)
def test_the_implicit_form_is_the_dense_one(coordinates):
    rng = np.random.default_rng(8)
    n, beta = 12, 0.7
    K = random_covariance(rng, n)
    y = rng.integers(0, 2, size=n)
    divergence, process = GaussianKL(coordinates), KLToProcess(jax.device_put(K))
    normal = KLToNormal(gaussian(np.zeros(n), K))
    thin = Descent(ExpectedLikelihood(BernoulliLogit(), y), term=process, divergence=divergence, step=beta)
    thick = Descent(ExpectedLikelihood(BernoulliLogit(), y, np.eye(n)), term=normal, divergence=divergence, step=beta)
    start = random_implicit(rng, K)
    states = thin.init(start), thick.init(dense(start, K))

    @jax.jit
    def ahead(states):
        """Both forms a step further, and what must be equal there."""
        following = thin.update(states[0], jax.random.key(0))[0], thick.update(states[1], jax.random.key(0))[0]
        (x, full), (last, last_full) = ((state[0].x, state[1].x) for state in (following, states))
        of_prior = jnp.linalg.slogdet(K @ full.precision)[1]
        return following, [
            (x.mean, full.mean),
            (K @ x.weights, full.mean),
            (x.variance, jnp.diagonal(full.covariance)),
            (x.log_determinant, of_prior),
            (x.kl_to_prior(), full.kl(normal.prior)),
            (process.value(x), normal.value(full)),
            (divergence.value(x, last), divergence.value(full, last_full)),
            (divergence.value(last, x), divergence.value(last_full, full)),
            (thin.objective(x), thick.objective(full)),
        ]

    for _ in range(5):
        states, pairs = ahead(states)
        for ours, theirs in pairs:
            np.testing.assert_allclose(ours, theirs, rtol=1e-10, atol=1e-11)


@jax.jit
def three_steps(oracle, centre, prior, beta):
    """The natural parameters after a step of ours, of natural gradients, and of the conjugate computation."""
    family = GaussianFamily()
    natural = lambda q: Moments(q.precision @ q.mean, -q.precision / 2)
    gradient = oracle.full(centre).gradient
    ours = natural(GaussianKL().step(centre, gradient, beta, KLToNormal(prior)))

    def objective(parameters):
        first, second = family.mean(parameters)
        q = Full(first, second - jnp.outer(first, first), None)
        return oracle.value(q) + family.kl(parameters, natural(prior))

    start = natural(centre)
    whole = NaturalGradient(family).step(start, jax.grad(objective)(start), beta / (1 + beta), Zero())
    in_mean = Moments(gradient.mean - 2 * gradient.covariance @ centre.mean, gradient.covariance)
    return ours, whole, KLToCentre(family).step(start, in_mean, beta, KLToPrior(family, natural(prior)))


@pytest.mark.parametrize("beta", [0.01, 1.0, 50.0])
def test_the_mean_step_is_the_conjugate_and_the_natural_gradient_step(beta):
    rng = np.random.default_rng(9)
    centre, prior = random_full(rng, D), random_full(rng, D)
    oracle = ExpectedLikelihood(Poisson(), rng.poisson(2.0, size=6), rng.normal(size=(6, D)) / 2)
    ours, *others = three_steps(oracle, centre, prior, beta)
    for other in others:
        jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-12, atol=1e-12), ours, other)


def exact_regression(K, y, noise):
    gain = np.linalg.solve(K + noise * np.eye(len(y)), K).T
    return gain @ y, K - gain @ K


@pytest.mark.parametrize("seed", range(3))
def test_on_gaussian_noise_one_long_mean_step_is_the_exact_posterior_from_anywhere(seed):
    rng = np.random.default_rng(seed)
    n, noise = 8, 0.4
    K, y = random_covariance(rng, n), rng.normal(size=n)
    m, V = exact_regression(K, y, noise)
    oracle = ExpectedLikelihood(GaussianNoise(noise), y)
    start = random_implicit(rng, K)
    step = host(take(GaussianKL(), KLToProcess(K), start, full(oracle, start).gradient, 1e12))
    np.testing.assert_allclose(step.mean, m, rtol=1e-9, atol=1e-10)
    np.testing.assert_allclose(step.variance, np.diag(V), rtol=1e-9)
    # −ELBO is then −log p(y), the marginal likelihood.
    bound = float(value(oracle, step)) + step.kl_to_prior()
    covariance = K + noise * np.eye(n)
    evidence = -(y @ np.linalg.solve(covariance, y) + np.linalg.slogdet(2 * np.pi * covariance)[1]) / 2
    np.testing.assert_allclose(bound, -evidence, rtol=1e-10)


@pytest.mark.parametrize("seed", range(3))
def test_on_gaussian_noise_a_long_moments_step_tends_to_minus_K_alpha(seed):
    rng = np.random.default_rng(seed)
    n, noise = 8, 0.4
    K, y = random_covariance(rng, n), rng.normal(size=n)
    oracle = ExpectedLikelihood(GaussianNoise(noise), y)
    start = random_implicit(rng, K)
    gradient = full(oracle, start).gradient
    step = host(take(GaussianKL("moments"), KLToProcess(K), start, gradient, 1e12))
    alpha = (start.mean - y) / noise
    np.testing.assert_allclose(step.mean, -K @ alpha, rtol=1e-9, atol=1e-9)
    m, V = exact_regression(K, y, noise)
    np.testing.assert_allclose(step.variance, np.diag(V), rtol=1e-9)
    assert np.abs(step.mean - m).max() > 0.1


def test_in_weights_one_long_mean_step_is_bayesian_linear_regression():
    rng = np.random.default_rng(10)
    X, y, noise = rng.normal(size=(20, D)), rng.normal(size=20), 0.5
    prior, start = random_full(rng, D), random_full(rng, D)
    oracle = ExpectedLikelihood(GaussianNoise(noise), y, X)
    step = take(GaussianKL(), KLToNormal(prior), start, full(oracle, start).gradient, 1e12)
    precision = prior.precision + X.T @ X / noise
    mean = np.linalg.solve(precision, prior.precision @ prior.mean + X.T @ y / noise)
    np.testing.assert_allclose(step.mean, mean, rtol=1e-9)
    np.testing.assert_allclose(step.precision, precision, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize(("coordinates", "n"), [("mean", 15), ("moments", 4)])
def test_a_linear_model_is_the_same_in_weights_and_in_examples(coordinates, n):
    """K = XSXᵀ is singular where there are more examples than weights."""
    rng = np.random.default_rng(11)
    d = 7
    X, S = rng.normal(size=(n, d)), random_covariance(rng, d)
    y = rng.integers(0, 2, size=n)
    prior, K = gaussian(np.zeros(d), S), jax.device_put(X @ S @ X.T)
    divergence = GaussianKL(coordinates)
    weights = Descent(
        ExpectedLikelihood(BernoulliLogit(), y, X), term=KLToNormal(prior), divergence=divergence, step=0.4
    )
    examples = Descent(ExpectedLikelihood(BernoulliLogit(), y), term=KLToProcess(K), divergence=divergence, step=0.4)
    states = weights.init(prior), examples.init(Implicit.prior(K))

    @jax.jit
    def ahead(states):
        following = weights.update(states[0], jax.random.key(0))[0], examples.update(states[1], jax.random.key(0))[0]
        w, z = following[0].x, following[1].x
        of_examples = w.marginals(X)
        return following, [
            (z.mean, of_examples.mean),
            (z.variance, of_examples.variance),
            ((S @ X.T) @ z.weights, w.mean),
            (examples.objective(z), weights.objective(w)),
        ]

    for _ in range(6):
        states, pairs = ahead(states)
        for ours, theirs in pairs:
            np.testing.assert_allclose(ours, theirs, rtol=1e-8, atol=1e-9)

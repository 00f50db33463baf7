"""Algorithms 1 and 2 of SCGD, and Lemma 4, Theorem 5 and Theorem 6 on a strongly convex instance.

tr A(θ)⁻¹ + g(θ), A(θ) = I + Σ θᵢ uᵢuᵢᵀ on the box [0, 1]³, is convex, and g makes it strongly so. ψ is (12):
M probes that share one degree, drawn by Theorem 3's law, and the derivative of the series itself.
"""

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
from spectral_matrices import masses_of

from thalweg.descent import Box, Constant, Descent, Polynomial, minimize
from thalweg.oracles import SVRG
from thalweg.spectral import FunctionOperator, SpectralOracle
from thalweg.spectral.chebyshev import series
from thalweg.spectral.degrees import poisson, theorem3

D, PARAMETERS = 6, 3
U = np.random.default_rng(0).normal(size=(PARAMETERS, D)) / 2
ALPHA = 0.5
CENTRE = np.array([0.9, -0.4, 0.5])
INTERVAL = (0.95, 1.05 + float(np.linalg.eigvalsh(U.T @ U)[-1]))
KAPPA = INTERVAL[1] / INTERVAL[0]
RHO = (np.sqrt(KAPPA) + 1) / (np.sqrt(KAPPA) - 1)
M, N = 4, 3.0
THETA = np.array([0.5, 0.2, 0.8])


class A(eqx.Module):
    """θ ↦ I + Σ θᵢ uᵢuᵢᵀ."""

    u: jax.Array

    def __call__(self, theta):
        return FunctionOperator(_multiply, theta, self.u, dimension=D)


def _multiply(theta, u, block):
    return block + u.T @ (theta[:, None] * (u @ block))


class G(eqx.Module):
    """α/2·‖θ − centre‖²."""

    centre: jax.Array

    def __call__(self, theta):
        return ALPHA / 2 * jnp.sum((theta - self.centre) ** 2)


def matrix(theta):
    return np.eye(D) + (U.T * theta) @ U


def objective(theta):
    return np.trace(np.linalg.inv(matrix(theta))) + ALPHA / 2 * np.sum((theta - CENTRE) ** 2)


OPTIMUM = scipy.optimize.minimize(
    objective, THETA, bounds=[(0, 1)] * PARAMETERS, method="L-BFGS-B", options={"ftol": 1e-15, "gtol": 1e-12}
).x


@pytest.fixture(scope="module")
def oracle():
    options = {"probes": M, "group": M, "degree": N, "law": "theorem3", "rho": RHO, "gradient": "paper"}
    return SpectralOracle(
        "inverse",
        A(jnp.asarray(U)),
        jnp.asarray(THETA),
        jax.random.key(0),
        g=G(jnp.asarray(CENTRE)),
        interval=INTERVAL,
        slack=1.0,
        **options,
    )


def test_the_optimum_is_at_an_edge_of_the_box_and_the_problem_strongly_convex():
    assert np.any((OPTIMUM < 1e-9) | (OPTIMUM > 1 - 1e-9))
    assert np.any((OPTIMUM > 0.01) & (OPTIMUM < 0.99))
    gradient = scipy.optimize.approx_fprime(OPTIMUM, objective, 1e-7)
    assert np.all(np.where(OPTIMUM < 1e-9, gradient > -1e-4, np.abs(gradient) < 1e-4) | (OPTIMUM > 1 - 1e-9))


@pytest.fixture(scope="module")
def sgd_errors(oracle):
    """‖θ⁽ᵗ⁾ − θ*‖², t = 1 … T, from 60 seeds, with η_t = 1/(αt) and projection: Algorithm 1."""
    descent = Descent(oracle, term=Box(0.0, 1.0), step=Polynomial(1 / ALPHA, power=1.0))

    @jax.jit
    def errors(keys):
        def one(key):
            def advance(state, key):
                state, _ = descent.update(state, key)
                return state, jnp.sum((state.x - jnp.asarray(OPTIMUM)) ** 2)

            return jax.lax.scan(advance, descent.init(jnp.asarray(THETA)), jax.random.split(key, 800))[1]

        return jax.vmap(one)(keys)

    return np.asarray(errors(jax.random.split(jax.random.key(1), 60)))


def papers_gradients():
    """ψ of one probe for all 2^D probes (rows) and every degree, by the recurrence (6) on matrices; and Pr(n)."""
    low, high = INTERVAL
    b = series(lambda x: 1 / x, low, high)
    scale, shift = 2 / (high - low), (high + low) / (high - low)
    signs = np.array(list(itertools.product([-1.0, 1.0], repeat=D)))
    slopes = np.einsum("ij,ik->ijk", U, U)

    def at(theta):
        near = scale * matrix(theta) - shift * np.eye(D)
        t = [np.eye(D), near]
        dt = [np.zeros((PARAMETERS, D, D)), scale * slopes]
        for _ in range(2, b.size):
            dt.append(2 * scale * slopes @ t[-1] + 2 * near @ dt[-1] - dt[-2])
            t.append(2 * near @ t[-1] - t[-2])
        return np.einsum("vi,jpik,vk->vjp", signs, np.array(dt), signs)

    return b, at


B, TERMS = papers_gradients()
GRID = [np.array(theta) for theta in itertools.product([0.0, 0.5, 1.0], repeat=PARAMETERS)]
TERMS_ON_GRID = [TERMS(theta) for theta in GRID]


def second_moment(law, probes, terms):
    """E‖ψ‖² exactly: M probes share a degree, so that E = E‖ψ₁‖²/M + (1 − 1/M)·E_n‖E_v ψ₁‖²."""
    weights = np.where(np.isneginf(law.log_survival), 0, B * np.exp(-np.maximum(law.log_survival, -700)))
    psi = np.cumsum(weights[:, None] * terms, axis=1)
    single = np.mean(np.sum(psi**2, axis=2), axis=0) @ masses_of(law)
    shared = np.sum(np.mean(psi, axis=0) ** 2, axis=1) @ masses_of(law)
    return single / probes + (1 - 1 / probes) * shared


def largest(law, probes):
    """The supremum over θ, on a grid."""
    return max(second_moment(law, probes, terms) for terms in TERMS_ON_GRID)


@pytest.mark.slow
def test_the_oracle_s_second_moment_is_that_of_formula_12(oracle):
    keys = jax.random.split(jax.random.key(2), 4000)
    drawn = jax.jit(jax.vmap(lambda key: oracle.estimate(jnp.asarray(THETA), (), key)[0].gradient))(keys)
    psi = np.asarray(drawn) - ALPHA * (THETA - CENTRE)
    squares = np.sum(psi**2, axis=1)
    wanted = second_moment(theorem3(B, N, RHO), M, TERMS(THETA))
    assert abs(squares.mean() - wanted) < 5 * squares.std() / np.sqrt(len(keys))


def test_lemma_4_bounds_the_second_moment_for_all_probes_and_degrees():
    """E‖ψ‖² ≤ (2L_A²/M + d′L_nuc²)(C₁ + C₂N⁴ρ^(−2N)), C₁ and C₂ from the largest and the smallest N with one probe."""
    lengths = np.sum(U**2, axis=1)
    # uuᵀ has one eigenvalue: ‖·‖_F and ‖·‖_nuc of Σ tᵢuᵢuᵢᵀ are at most these times ‖t‖.
    frobenius = float(np.sqrt(np.linalg.eigvalsh((U @ U.T) ** 2)[-1]))
    nuclear = float(np.linalg.norm(lengths))
    factor = lambda probes: 2 * frobenius**2 / probes + PARAMETERS * nuclear**2
    tail = lambda mean: mean**4 * RHO ** (-2 * mean)
    means = np.arange(1.0, 16.0)
    c1 = largest(theorem3(B, means[-1], RHO), 1) / factor(1)
    c2 = max(0.0, largest(theorem3(B, means[0], RHO), 1) / factor(1) - c1) / tail(means[0])
    assert c2 > 0
    bound = lambda mean, probes: factor(probes) * (c1 + c2 * tail(mean)) * (1 + 1e-9)
    for probes in (1, 2, 8, 64):
        assert all(largest(theorem3(B, mean, RHO), probes) <= bound(mean, probes) for mean in means)
    # The law is what makes it true: Poisson's of the same mean breaks the bound.
    assert all(largest(poisson(B, mean), 1) > bound(mean, 1) for mean in (8.0, 12.0))


@pytest.mark.slow
def test_theorem_5_sgd_with_steps_1_over_alpha_t_converges_as_1_over_t(sgd_errors):
    second = largest(theorem3(B, N, RHO), M)
    corners = np.array([[0.0] * PARAMETERS, [1.0] * PARAMETERS])
    lipschitz = ALPHA * np.linalg.norm(np.max(np.abs(corners - CENTRE), axis=0))
    steps = np.arange(1, sgd_errors.shape[1] + 1)
    mean = sgd_errors.mean(axis=0)
    assert np.all(mean <= 4 / (ALPHA**2 * steps) * max(lipschitz**2, second))
    # And not faster by much: four times the steps leave about a quarter.
    for early in (50, 200):
        assert 0.1 < mean[4 * early - 1] / mean[early - 1] < 0.5


def test_algorithm_1_in_minimize(oracle):
    found = minimize(
        oracle,
        jnp.asarray(THETA),
        term=Box(0.0, 1.0),
        step=Polynomial(1 / ALPHA, power=1.0),
        steps=1600,
        key=jax.random.key(3),
    )
    x = np.asarray(found.x)
    assert np.all((x >= 0) & (x <= 1))
    np.testing.assert_allclose(x, OPTIMUM, atol=0.1)


@pytest.mark.slow
def test_theorem_6_svrg_converges_linearly_where_sgd_with_the_same_step_stands_still(oracle):
    """Algorithm 2: a snapshot at the mean of each inner loop of T steps."""
    inner, outer, step = 100, 8, Constant(0.05)

    def follow(oracle):
        errors = []
        minimize(
            oracle,
            jnp.asarray(THETA),
            term=Box(0.0, 1.0),
            step=step,
            steps=inner * outer,
            stride=inner,
            key=jax.random.key(4),
            callback=lambda seen: errors.append(float(np.sum((np.asarray(seen.x) - OPTIMUM) ** 2))),
        )
        return np.array(errors)

    reduced, plain = follow(SVRG(oracle, period=inner)), follow(oracle)
    start = np.sum((THETA - OPTIMUM) ** 2)
    assert np.all(reduced <= start * 0.2 ** np.arange(1, outer + 1))
    assert plain[-4:].mean() > 1e-5 * start

"""Hard cases: every answer is right, or its error bar is wide enough, or the message says what it could not see."""

import re
from typing import ClassVar

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import scipy.linalg
import scipy.sparse
from jax.experimental.sparse import BCOO
from spectral_matrices import random_keys, rbf, with_spectrum

import thalweg.spectral as sp
from thalweg.kernels import Gaussian
from thalweg.spectral.chebyshev import series

KEY = jax.random.key(0)
RNG = np.random.default_rng(0)
X = RNG.standard_normal((20, 12))
SINGULAR = np.linalg.svd(X, compute_uv=False)
FEW_PROBES = {"probes": 8, "method": "stochastic"}


def bump(centre, width):
    return lambda x: jnp.exp(-(((x - centre) / width) ** 2))


@pytest.mark.parametrize("width", [3e-3, 1e-3, 3e-4])
def test_a_bump_that_no_first_grid_meets_is_resolved(width):
    centre = 0.28731
    b = series(bump(centre, width), 0.0, 1.0)
    # ∫ f = w√π; in Chebyshev's coefficients b_0 = (1/π) ∫ f(cos θ) dθ.
    t = 2 * centre - 1
    assert b[0] == pytest.approx(2 * width * np.sqrt(np.pi) / (np.pi * np.sqrt(1 - t**2)), rel=1e-2)


@pytest.mark.slow
def test_a_bump_on_an_eigenvalue_that_lanczos_finds_is_resolved():
    A = np.diag(np.append(np.linspace(0.0, 0.5, 59), 1.0))
    e = sp.spectral_sum(bump(1.0, 3e-5), A, KEY, method="stochastic", probes=4)
    assert abs(float(e.value) - 1.0) < 5 * float(e.standard_error) + 1e-12


def test_a_bump_that_nothing_can_see_is_said():
    A = np.diag(np.linspace(0.0, 1.0, 30))
    e = sp.spectral_sum(bump(0.500003, 1e-9), A, KEY, method="stochastic", probes=4)
    assert "f is 0 wherever it was tried" in e.message


class Diagonal(sp.Operator):
    """A diagonal matrix, which is as good as factorised."""

    scales: jax.Array
    materialised: ClassVar[bool] = True
    dimension = property(lambda self: len(self.scales))

    def mv(self, block):
        return self.scales[:, None] * block

    def eigenvalues(self, xp=np):
        return np.sort(np.asarray(self.scales)), np.zeros(len(self.scales))


def test_what_cannot_be_expanded_is_factorised_with_a_warning_where_that_takes_minutes():
    A = Diagonal(np.linspace(0.0, 1.0, 8000))
    with pytest.warns(UserWarning, match="side 8,000 is factorised instead, which takes minutes") as caught:
        e = sp.spectral_sum(lambda x: jnp.where(x > 0.5, 1.0, 0.0), A, KEY)
    assert float(e.value) == 4000
    assert "factorisation" in e.message
    (warning,) = caught
    message = str(warning.message)
    assert "could not be expanded" in message
    assert re.search(r"it is singular at or very near x = 0\.(5|49999)", message)


def test_what_is_too_ill_conditioned_is_factorised_without_a_warning_where_that_takes_seconds():
    eigenvalues = np.linspace(0.0, 1.0, 2400)
    e = sp.entropy(Diagonal(eigenvalues), KEY)  # a warning would be an error here
    assert float(e.value) == pytest.approx(-np.sum(eigenvalues[1:] * np.log(eigenvalues[1:])))
    assert "factorisation" in e.message


def hilbert_logdet(n):
    logs = np.cumsum(np.log(np.arange(1, 2 * n, dtype=np.longdouble)))
    return float(4 * np.sum(logs[: n - 1]) - np.sum(logs))


@pytest.mark.parametrize("n", range(4, 14))
def test_error_bars_of_factorisations_hold_what_rounding_costs(n):
    """Hilbert's matrices, κ = 1e4 to 1e18."""
    H = scipy.linalg.hilbert(n)
    try:
        log, inverse = sp.logdet(H, KEY), sp.trace_inverse(H, KEY)
    except sp.NotPositiveDefiniteError:  # beyond 1e16 rounding may leave nothing, on some processors
        assert n > 11
        return
    assert abs(float(log.value) - hilbert_logdet(n)) < 4 * float(log.standard_error)
    assert abs(float(inverse.value) - np.trace(scipy.linalg.invhilbert(n))) < 4 * float(inverse.standard_error)
    if n < 8:  # and no wider than they need be
        assert float(log.standard_error) < 10 * n * np.finfo(float).eps * np.linalg.cond(H)


def test_numbers_keep_their_digits_where_jax_works_in_float32():
    A = X.T @ X / 200
    with jax.enable_x64(False):
        found = sp.trace_exp(A, KEY, time=0.1)
        assert float(found.value) == pytest.approx(np.sum(np.exp(0.1 * np.linalg.eigvalsh(A))), rel=1e-14)
        for p in (0.3, 1.1, 3.0):
            norm = sp.schatten_norm(X, KEY, p=p)
            assert float(norm.value) == pytest.approx(np.sum(SINGULAR**p) ** (1 / p), rel=1e-13)
        smooth = sp.nuclear_norm(X, KEY, smoothing=0.1)
        assert float(smooth.value) == pytest.approx(np.sum(np.sqrt(SINGULAR**2 + 0.1)), rel=1e-14)


@pytest.mark.parametrize(
    "scale", [1e-280, *(pytest.param(s, marks=pytest.mark.slow) for s in (1e-155, 1e-30, 1e155)), 1e300]
)
def test_norms_of_large_and_small_matrices(scale):
    for given in (X * scale, scipy.sparse.csr_matrix(X * scale)):
        assert float(sp.nuclear_norm(given, KEY).value) == pytest.approx(scale * np.sum(SINGULAR), rel=1e-13)
    cubes = sp.schatten_norm(X * scale, KEY, p=3)
    assert float(cubes.value) == pytest.approx(scale * np.sum(SINGULAR**3) ** (1 / 3), rel=1e-13)
    assert 0 < float(cubes.standard_error) < 1e-13 * scale
    estimate = sp.nuclear_norm(X * scale, KEY, method="stochastic", probes=4)
    assert abs(float(estimate.value) / scale - np.sum(SINGULAR)) < 8 * float(estimate.standard_error) / scale


@pytest.mark.slow
@pytest.mark.parametrize("given", [pytest.param(np.float64, marks=pytest.mark.slow), np.float32])
def test_high_powers_do_not_overflow(given):
    eps = float(np.finfo(given).eps)
    for p in (10, 200, 1000):
        truth = SINGULAR[0] * np.sum((SINGULAR / SINGULAR[0]) ** p) ** (1 / p)
        norm = sp.schatten_norm(X.astype(given), KEY, p=p)
        assert float(norm.value) == pytest.approx(truth, rel=4 * eps)
        # That of rounding the norm itself, too.
        assert 0.4 * eps * truth < float(norm.standard_error) < 4 * eps * truth
    estimate = sp.schatten_norm(X.astype(given), KEY, p=200, method="stochastic", probes=64)
    assert abs(float(estimate.value) - SINGULAR[0]) < 4 * float(estimate.standard_error) < 0.05 * SINGULAR[0]


def test_a_sum_of_powers_drowned_in_its_error_has_no_root():
    wide = (0.5 * SINGULAR[-1] ** 2, 1.05 * SINGULAR[0] ** 2)
    for options in ({}, {"rtol": 0.01}):
        with pytest.raises(ValueError, match="too little is known of it for its root"):
            sp.schatten_norm(X.astype(np.float32), KEY, p=1000, interval=wide, **options, **FEW_PROBES)


def test_a_high_power_finds_an_interval_that_it_does_not_grow_beyond():
    """x⁵⁰⁰ is larger by twenty orders in an interval with the usual room beyond the Ritz values."""
    e = sp.schatten_norm(X.astype(np.float32), KEY, p=1000, **FEW_PROBES)
    assert abs(float(e.value) - SINGULAR[0]) < 4 * float(e.standard_error) < 0.01 * SINGULAR[0]


@pytest.mark.slow
@pytest.mark.parametrize("p", [1, *(pytest.param(p, marks=pytest.mark.slow) for p in (2, 3))])
def test_norms_of_low_rank_have_finite_subgradients(p):
    norm = lambda X: sp.schatten_norm(X, KEY, p=p).value
    for gradient in (jax.grad(norm), jax.jit(jax.grad(norm))):
        assert np.array_equal(gradient(jnp.zeros((4, 3))), np.zeros((4, 3)))
        np.testing.assert_allclose(gradient(jnp.ones((4, 3))), np.full((4, 3), 12**-0.5), rtol=1e-5)
    sparse = BCOO.fromdense(jnp.outer(jnp.arange(1.0, 5.0), jnp.arange(1.0, 4.0)))
    entries = lambda data: norm(BCOO((data, sparse.indices), shape=sparse.shape))
    np.testing.assert_allclose(jax.grad(entries)(sparse.data), sparse.data / np.sqrt(30 * 14), rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("scale", [1e-3, *(pytest.param(scale, marks=pytest.mark.slow) for scale in (1.0, 10.0))])
def test_high_powers_do_not_overflow_under_jit(scale):
    norm = lambda X: sp.schatten_norm(X, KEY, p=200).value
    low = jnp.outer(jnp.arange(1.0, 5.0), jnp.arange(1.0, 4.0))
    for given in (scale * low, jnp.asarray(scale * X[:6])):
        assert float(jax.jit(norm)(given)) == pytest.approx(np.linalg.norm(given, 2), rel=0.02)
        np.testing.assert_allclose(jax.jit(jax.grad(norm))(given), jax.grad(norm)(given), rtol=1e-4, atol=1e-6)
    assert np.array_equal(jax.jit(jax.grad(norm))(jnp.zeros((4, 3))), np.zeros((4, 3)))


@jax.jit
def many_estimates(p, B, keys):
    return jax.lax.map(lambda key: p.estimate(B, key), keys)


@pytest.mark.parametrize("f", ["log", *(pytest.param(f, marks=pytest.mark.slow) for f in ("inverse", jnp.sqrt))])
def test_bars_of_nearly_diagonal_matrices_are_narrow_and_true(f):
    """Random signs have no variance for a diagonal matrix, so that the degrees make all of the error."""
    diagonal = np.linspace(1.0, 5.0, 30)
    noise = RNG.standard_normal((30, 30)) / 8
    for off, most in ((0.0, 1e-6), (0.0015, 0.003)):
        B = np.diag(diagonal) + off * (noise + noise.T) / 2
        p = sp.plan(f, B, KEY, probes=8)
        function = {"log": np.log, "inverse": np.reciprocal}.get(f, np.sqrt)
        truth = np.sum(function(np.linalg.eigvalsh(B)))
        e = jax.tree.map(np.asarray, many_estimates(p, B, random_keys(200)))
        low, high = e.interval(0.95)
        assert np.max(e.standard_error) < most
        assert np.mean((low <= truth) & (truth <= high)) >= 0.91


def test_the_bar_of_a_norm_of_low_rank_is_small():
    """√x has no finite slope at 0."""
    e = sp.nuclear_norm(np.ones((4, 3)), KEY)
    assert abs(float(e.value) - np.sqrt(12.0)) < 4 * float(e.standard_error) < 1e-13


def test_the_entropy_of_pure_and_mixed_states():
    v = X[0] / np.linalg.norm(X[0])
    assert abs(float(sp.entropy(np.outer(v, v), KEY).value)) < 1e-13
    assert float(sp.entropy(np.diag([0.5, 0.5, 0.0]), KEY).value) == pytest.approx(np.log(2.0), rel=1e-14)
    with pytest.raises(sp.NotPositiveDefiniteError, match=r"positive semi-definite.*-0\.1"):
        sp.entropy(np.diag([0.6, 0.5, -0.1]), KEY)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16])
def test_half_precision_is_computed_in_float32_and_more(dtype):
    points = jnp.asarray(RNG.uniform(size=(40, 2)).astype(dtype))
    rbf_of = lambda theta, x, y: jnp.exp(-0.5 * jnp.sum((x[:, None] - y[None]) ** 2, -1) / theta**2)
    A = sp.kernel_operator(rbf_of, jnp.asarray(0.5, dtype), points, 0.5)
    wide = np.asarray(points, np.float64)
    truth = np.linalg.slogdet(np.asarray(rbf_of(0.5, wide, wide)) + 0.5 * np.eye(40))[1]
    for options in ({}, {"method": "stochastic", "probes": 4, "preconditioner": sp.PivotedCholesky()}):
        e = sp.logdet(A, KEY, **options)
        assert abs(float(e.value) - truth) < 8 * float(e.standard_error) + 1e-5


def test_a_sum_whose_square_is_too_large_for_float32_has_an_error_bar():
    A = with_spectrum(np.linspace(40.0, 64.0, 16))
    e = sp.trace_exp(jnp.asarray(A, jnp.float32), KEY, method="stochastic", probes=4)
    assert 0 < float(e.standard_error) < 1e28
    assert abs(float(e.value) - np.sum(np.exp(np.linspace(40.0, 64.0, 16)))) < 8 * float(e.standard_error)


def test_rounding_is_never_left_out_of_the_bar():
    eigenvalues = np.linspace(0.0, 1.0, 30)
    e = sp.spectral_sum(bump(0.5, 0.05), np.diag(eigenvalues), KEY, method="stochastic", probes=4)
    truth = np.sum(np.exp(-(((eigenvalues - 0.5) / 0.05) ** 2)))
    assert abs(float(e.value) - truth) < 5 * float(e.standard_error)
    assert float(sp.logdet(rbf(12, noise=0.5), KEY).standard_error) > 0


def test_a_kernel_in_float32_is_factorised_in_float64_entries_and_all():
    """At κ = 1e7, where entries in float32 would be off by ten standard errors."""
    points = RNG.uniform(size=(60, 1)).astype(np.float32)
    with jax.enable_x64(False):
        A = sp.ShiftedOperator(sp.KernelOperator(Gaussian(lengthscale=0.5), jnp.asarray(points)), 1e-5)
        found = sp.logdet(A, KEY)
        products = sp.logdet(lambda block: A @ block, KEY, dimension=60)
    K = np.asarray(Gaussian(lengthscale=0.5)(*2 * [jnp.asarray(points, jnp.float64)]))
    truth = np.linalg.slogdet(K + float(A.noise) * np.eye(60))[1]
    assert abs(float(found.value) - truth) < 2 * float(found.standard_error) < 1e-6 * abs(truth)
    assert abs(float(products.value) - truth) < 5 * float(products.standard_error)


@pytest.mark.slow
def test_an_end_that_takes_more_steps_to_settle_is_not_refused():
    """κ = 2e5, one eigenvalue apart from the rest, which takes more than 200 products."""
    eigenvalues = np.append(10.0**-5.2, np.logspace(-3, 0, 399))
    A = sp.FunctionOperator(lambda s, v: s[:, None] * v, jnp.asarray(eigenvalues), dimension=400)
    e = sp.logdet(A, KEY, method="stochastic", probes=4)
    assert abs(float(e.value) - np.sum(np.log(eigenvalues))) < 8 * float(e.standard_error)


def test_the_noise_of_a_kernel_is_a_proven_lower_end():
    K = sp.KernelOperator(Gaussian(lengthscale=0.3), jnp.asarray(RNG.uniform(size=(60, 2))))
    low, high = sp.ShiftedOperator(K, 1e-2).bounds()
    eigenvalues = np.linalg.eigvalsh(np.asarray(K.to_dense()) + 1e-2 * np.eye(60))
    assert 0.999e-2 < low <= eigenvalues[0]
    assert eigenvalues[-1] <= high
    p = sp.plan("log", sp.ShiftedOperator(K, 1e-2), KEY, probes=4)
    assert 0.9e-2 < float(p.lower) <= eigenvalues[0]


@pytest.mark.slow
def test_a_function_that_is_huge_beside_the_spectrum_has_a_bar_that_says_so():
    """exp(−x/3) on an interval that reaches far below the eigenvalues."""
    eigenvalues = np.append(np.ones(23), 1e6)
    e = sp.trace_exp(with_spectrum(eigenvalues), KEY, time=-0.3, method="stochastic", probes=8)
    assert abs(float(e.value) - np.sum(np.exp(-0.3 * eigenvalues))) < 5 * float(e.standard_error)

"""The first call, without options, is right, or refused with the way out."""

from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg
import scipy.sparse
import scipy.sparse.linalg
from spectral_matrices import rbf, with_spectrum

import thalweg
import thalweg.spectral as sp
from thalweg.kernels import Matern32
from thalweg.linalg.operators.matrices import DenseOperator
from thalweg.spectral import NotPositiveDefiniteError
from thalweg.spectral.bounds import IllConditionedError

KEY = jax.random.key(0)
SIDE = 30
"""The side of most matrices here, so that their estimates share one program."""
FEW_PROBES = {"method": "stochastic", "probes": 4}
BLAMED = {
    "2 I + 0.01": 2.0 * np.eye(SIDE) + 0.01,
    "compound symmetry": 0.7 * np.eye(SIDE) + 0.3,
    "three-fold compound symmetry": np.kron(np.eye(3), 0.2 * np.eye(SIDE // 3) + 0.8),
    "diag(logspace(-8, 0, 30))": np.diag(np.logspace(-8, 0, SIDE)),
}


@pytest.mark.parametrize("name", BLAMED)
def test_logdet_does_not_blame_an_interval_nobody_gave(name):
    A = BLAMED[name]
    truth = np.linalg.slogdet(A)[1]
    assert float(thalweg.logdet(A, KEY).value) == pytest.approx(truth, rel=1e-12)
    if "logspace" not in name:
        e = sp.logdet(A, KEY, **FEW_PROBES)
        assert abs(float(e.value) - truth) < 8 * float(e.standard_error)


@pytest.mark.parametrize("exponent", [9, 10, 12])
def test_an_ill_conditioned_matrix_is_exact_or_refused(exponent):
    A = with_spectrum(np.logspace(-exponent, 0, SIDE))
    e = thalweg.logdet(A, KEY)
    truth = -exponent * SIDE / 2 * np.log(10)
    assert abs(float(e.value) - truth) < 1e-13 * 10**exponent
    assert abs(float(e.value) - truth) < 20 * float(e.standard_error) + 1e-9
    with pytest.raises(IllConditionedError, match="method='exact'"):
        sp.logdet(A, KEY, **FEW_PROBES)


def test_float64_of_numpy_is_computed_in_float64_without_touching_the_users_setting():
    A = with_spectrum(np.logspace(-9, 0, 40))
    X = np.random.default_rng(0).standard_normal((20, 30))
    truth = -9 * 20 * np.log(10)
    with jax.enable_x64(False):
        for found in (sp.logdet(A, KEY), sp.logdet(A.tolist(), KEY), sp.logdet(scipy.sparse.csr_matrix(A), KEY)):
            assert found.value.dtype == np.float64
            assert float(found.value) == pytest.approx(truth, rel=1e-8)
        stochastic = sp.logdet(rbf(SIDE, noise=0.5), KEY, **FEW_PROBES)
        norm = sp.nuclear_norm(X, KEY)
        assert stochastic.value.dtype == stochastic.standard_error.dtype == norm.value.dtype == np.float64
        assert float(norm.value) == pytest.approx(np.sum(np.linalg.svd(X, compute_uv=False)), rel=1e-13)
        assert not jax.config.read("jax_enable_x64")
        assert sp.logdet(jnp.asarray(rbf(40, noise=0.5), jnp.float32), KEY).value.dtype == jnp.float32


def test_large_and_small_scales_are_right_or_refused_by_their_right_name():
    A = rbf(30, noise=0.5)
    truth = np.linalg.slogdet(A)[1]
    for scale in (1e30, 1e-30, 1e150):
        assert float(sp.logdet(A * scale, KEY).value) == pytest.approx(truth + 30 * np.log(scale), rel=1e-12)
    with jax.enable_x64(False):
        single = jnp.asarray(A * 1e30, jnp.float32)
        assert float(sp.logdet(single, KEY).value) == pytest.approx(truth + 30 * np.log(1e30), rel=1e-6)
        with pytest.raises(ValueError, match=r"of the order of .*too large.*float32"):
            sp.logdet(single, KEY, method="stochastic")


class KernelByProducts(sp.KernelOperator):
    """A kernel matrix that is not factorised above 1,000 rows, as if it were too large for memory."""

    materialised: ClassVar[bool] = False


class DenseByProducts(DenseOperator):
    """A dense matrix that is not factorised at once above 1,000 rows, as if it were larger."""

    materialised: ClassVar[bool] = False


@pytest.mark.slow
def test_a_matern_kernel_too_ill_conditioned_for_float32_takes_more_digits():
    points = np.random.default_rng(0).uniform(size=(1001, 8))
    with jax.enable_x64(False):
        K = KernelByProducts(Matern32(lengthscale=2.0), jnp.asarray(points, jnp.float32))
        A = sp.ShiftedOperator(K, 1e-4)
        e = sp.logdet(A, KEY, rtol=0.005)
        assert e.value.dtype == jnp.float32
    dense = Matern32(lengthscale=2.0)(*2 * [jnp.asarray(points.astype(np.float32), jnp.float64)])
    truth = np.linalg.slogdet(np.asarray(dense) + float(A.noise) * np.eye(1001))[1]
    low, high = e.interval(0.999)
    assert float(low) <= truth <= float(high)
    low, high = e.interval(0.95)
    assert float(high - low) <= 0.01 * abs(float(e.value))


def test_a_function_of_numpy_is_understood_or_refused():
    A = rbf(20, noise=0.5)
    assert float(sp.spectral_sum(np.log, A, KEY).value) == pytest.approx(np.linalg.slogdet(A)[1])
    with pytest.raises(TypeError, match=r"f must be .*jax\.numpy"):
        sp.spectral_sum(lambda x: np.log(x) + 1.0, A, KEY)


def test_a_wrong_dimension_and_an_unknown_option_are_named():
    A = rbf(20, noise=0.5)
    for method in ("auto", "exact", "stochastic"):
        with pytest.raises(ValueError, match="dimension must be that of A, 20, or left out, found 7"):
            sp.logdet(A, KEY, dimension=7, method=method)
        with pytest.raises(TypeError, match=r"no option 't', found t=2\.0; it has"):
            sp.trace_exp(A, KEY, t=2.0, method=method)


def test_a_covariance_matrix_of_side_300_is_exact_and_compiles_nothing_again(caplog):
    C = np.cov(np.random.default_rng(0).standard_normal((900, 300)).T)
    assert float(thalweg.logdet(C, KEY).value) == pytest.approx(np.linalg.slogdet(C)[1], rel=1e-13)
    with jax.log_compiles():
        thalweg.logdet(C[:299, :299], KEY)
    assert not [record for record in caplog.records if "Finished" in record.getMessage()]


def test_a_large_kernel_matrix_finds_its_preconditioner_and_noise():
    A = rbf(1001, noise=0.01)
    e = sp.logdet(DenseByProducts(jnp.asarray(A)), KEY, method="auto")
    truth = np.linalg.slogdet(A)[1]
    assert 0 < float(e.products) < 2000
    assert abs(float(e.value) / truth - 1) < 1e-3
    low, high = e.interval(0.999)
    assert float(low) <= truth <= float(high)


def test_a_large_matrix_that_no_preconditioner_helps_is_factorised():
    A = np.cov(np.random.default_rng(0).standard_normal((3003, 1001)).T)
    assert "factorisation" in sp.logdet(DenseByProducts(jnp.asarray(A)), KEY).message


@pytest.mark.slow
def test_a_sparse_matrix_of_a_new_size_makes_three_programs(caplog):
    """Products to look at it, Lanczos' method, the estimate: all else is done on the host."""
    line = lambda side: scipy.sparse.diags(
        [np.full(side - 1, -1.0), np.full(side, 3.0), np.full(side - 1, -1.0)], [-1, 0, 1]
    )
    sp.logdet(line(5001).tocsr(), KEY)
    with jax.log_compiles():
        sp.logdet(line(5002).tocsr(), KEY)
    words = (
        word for record in caplog.records for word in record.getMessage().split() if "Finished" in record.getMessage()
    )
    made = {word for word in words if word.startswith("jit(_")}
    assert made == {"jit(_product)", "jit(_lanczos)", "jit(_estimate)"}


def test_a_small_matrix_needs_no_plan_under_jit():
    A = rbf(12, noise=0.5)
    truth = np.linalg.slogdet(A)[1]
    assert float(jax.jit(lambda a: sp.logdet(a, KEY).value)(A)) == pytest.approx(truth)
    bad = jax.jit(lambda a: sp.logdet(a, KEY))(-A)
    assert bad.outcome is sp.EstimateStatus.NOT_FINITE
    bad = jax.jit(lambda a: sp.trace_inverse(a, KEY))(-A)
    assert bad.outcome is sp.EstimateStatus.NOT_FINITE
    assert "positive definite" in bad.message


SUMS = {
    "logdet": sp.logdet,
    "trace_inverse": sp.trace_inverse,
    "trace_exp": sp.trace_exp,
    "nuclear_norm": sp.nuclear_norm,
    "schatten_norm": lambda A, key: sp.schatten_norm(A, key, p=3.0),
}


@pytest.mark.parametrize("name", SUMS)
def test_the_error_bar_of_a_factorisation_under_jit_holds_what_float32_costs(name):
    compiled = jax.jit(lambda a: SUMS[name](a, KEY))
    worse, better = scipy.linalg.hilbert(5), np.eye(5)
    better[:3, :3] = scipy.linalg.hilbert(3)
    for A in (worse.astype(np.float32), better.astype(np.float32)):
        truth = float(SUMS[name](np.asarray(A, np.float64), KEY).value)
        e = compiled(A)
        assert e.outcome is sp.EstimateStatus.OK
        assert 0 < float(e.standard_error) < 0.1 * abs(truth)
        assert abs(float(e.value) - truth) < 4 * float(e.standard_error)


def test_the_trace_of_an_inverse_that_float32_cannot_tell_is_void_under_jit():
    A = jnp.asarray(scipy.linalg.hilbert(7), jnp.float32)
    e = jax.jit(lambda a: sp.trace_inverse(a, KEY))(A)
    truth = float(sp.trace_inverse(np.asarray(A, np.float64), KEY).value)
    assert not np.isfinite(e.value) or abs(float(e.value) - truth) < 4 * float(e.standard_error)


@pytest.mark.slow
@pytest.mark.parametrize("compiled", [lambda f: f, pytest.param(jax.jit, marks=pytest.mark.slow)])
def test_a_float32_density_matrix_without_full_rank_has_an_entropy(compiled):
    """Its zero eigenvalues come out as −6e-9, which is rounding in float32."""
    X = np.random.default_rng(0).standard_normal((6, 3))
    A = X @ X.T / np.sum(X**2)
    positive = np.linalg.eigvalsh(A)[3:]
    e = compiled(lambda a: sp.entropy(a, KEY))(jnp.asarray(A, jnp.float32))
    truth = -np.sum(positive * np.log(positive))
    assert abs(float(e.value) - truth) < 4 * float(e.standard_error) < 1e-3
    gradient = compiled(jax.grad(lambda a: sp.entropy(a, KEY).value))(jnp.asarray(A, jnp.float32))
    assert np.all(np.isfinite(gradient))


def test_error_bars_of_very_large_and_very_small_matrices_are_finite():
    A = rbf(12, noise=0.5)
    for e in (sp.trace_inverse(1e-200 * A, KEY), sp.entropy(1e200 * A, KEY)):
        assert 0 < float(e.standard_error) < 1e-12 * abs(float(e.value))


@pytest.mark.slow
def test_the_error_bar_holds_the_rounding_of_what_a_preconditioner_knows():
    scales = np.geomspace(1e-8, 1e8, 500)
    e = sp.trace_inverse(scipy.sparse.diags(scales).tocsr(), KEY, method="stochastic", preconditioner=sp.Jacobi())
    assert abs(float(e.value) - np.sum(1 / scales)) <= 4 * float(e.standard_error)
    assert 1e-16 < float(e.standard_error) / float(e.value) < 1e-13


def test_an_estimate_shows_its_value_and_its_error():
    e = sp.logdet(np.diag([1.0, 2.0, 4.0]), KEY)
    assert repr(e).startswith("Estimate(2.079441542 ± ")
    assert "factorisation" in repr(e)
    batch = jax.jit(jax.vmap(lambda a: sp.logdet(a, KEY)))(np.stack([np.eye(2)] * 3))
    assert "f64[3]" in repr(batch)


@pytest.mark.parametrize(
    ("side", "time_"),
    [pytest.param(200, -0.1, marks=pytest.mark.slow), (SIDE, -1.0), pytest.param(400, -1.0, marks=pytest.mark.slow)],
)
def test_a_heat_trace_is_estimated_where_one_eigenvalue_is_far_above(side, time_):
    """Below the spectrum exp(−tx) is huge: the usual room beyond the Ritz values would be too much."""
    eigenvalues = np.append(1e4, np.random.default_rng(0).uniform(1, 2, side - 1))
    A = with_spectrum(eigenvalues)
    truth = np.sum(np.exp(time_ * eigenvalues))
    for key in jax.random.split(KEY, 2):
        e = sp.trace_exp(A, key, time=time_, **FEW_PROBES)
        assert abs(float(e.value) - truth) < 5 * float(e.standard_error) < truth


@pytest.mark.slow
def test_rounding_in_float32_is_no_proof_that_a_matrix_is_not_positive():
    """A Ritz value comes out as −12 beside 1e6, though the smallest eigenvalue is 1."""
    A = jnp.asarray(with_spectrum(np.append(1e6, np.random.default_rng(0).uniform(1, 4, 299))), jnp.float32)
    truth = np.linalg.slogdet(np.asarray(A, np.float64))[1]
    for seed in (7, 12):
        e = sp.logdet(A, jax.random.key(seed), method="stochastic", probes=12)
        assert abs(float(e.value) - truth) < 0.1 * truth


def test_a_lower_end_that_lanczos_does_not_settle_is_refused_not_trusted():
    """Eigenvalues from 1e-8 evenly in the logarithm."""
    A = sp.FunctionOperator(lambda s, v: s[:, None] * v, np.logspace(-8, 0, 1001), dimension=1001)
    with pytest.raises(IllConditionedError, match="only known to be below"):
        sp.logdet(A, KEY)


def _grid_laplacian(side):
    """Return the Laplacian of a grid without a boundary: its rows add up to 0."""
    ends = np.r_[1.0, np.full(side - 2, 2.0), 1.0]
    line = scipy.sparse.diags([-np.ones(side - 1), ends, -np.ones(side - 1)], [-1, 0, 1])
    return (scipy.sparse.kron(line, scipy.sparse.eye(side)) + scipy.sparse.kron(scipy.sparse.eye(side), line)).tocsr()


@pytest.mark.parametrize("sum_of", [sp.logdet, sp.trace_inverse])
def test_the_laplacian_of_a_graph_is_refused_at_once_as_singular(sum_of):
    A = _grid_laplacian(72)  # of too many rows to be factorised at once
    with pytest.raises(NotPositiveDefiniteError, match="constant vector"):
        sum_of(A, KEY)
    with jax.enable_x64(False), pytest.raises(NotPositiveDefiniteError, match="constant vector"):
        sum_of(A.astype(np.float32), KEY)


def test_the_laplacian_of_a_graph_has_an_entropy_and_shifted_a_log_determinant():
    A = _grid_laplacian(10) / 360.0
    eigenvalues = np.linalg.eigvalsh(A.toarray())
    positive = eigenvalues[1:]
    with pytest.raises(IllConditionedError, match="constant vector"):
        sp.entropy(A, KEY, method="stochastic")
    assert float(sp.entropy(A, KEY).value) == pytest.approx(-np.sum(positive * np.log(positive)), rel=1e-10)
    shifted = sp.logdet(A + 1e-6 * scipy.sparse.eye(100), KEY, **FEW_PROBES)
    assert abs(float(shifted.value) - np.sum(np.log(eigenvalues + 1e-6))) < 6 * float(shifted.standard_error)


def test_products_of_a_rectangle_or_of_no_symmetry_point_to_the_gram_matrix():
    X = np.random.default_rng(0).standard_normal((6, 9))
    with pytest.raises(ValueError, match=r"spectral_sum\(jnp.sqrt, XᵀX"):
        sp.nuclear_norm(scipy.sparse.linalg.aslinearoperator(X), KEY)
    with pytest.raises(ValueError, match=r"spectral_sum\(jnp.sqrt, AᵀA"):
        sp.nuclear_norm(scipy.sparse.linalg.aslinearoperator(X[:, :6]), KEY)
    gram = scipy.sparse.linalg.aslinearoperator(X.T[:, :4])
    found = sp.spectral_sum(jnp.sqrt, gram.T @ gram, KEY)
    assert float(found.value) == pytest.approx(np.sum(np.linalg.svd(X[:4], compute_uv=False)))


def test_a_matrix_too_small_for_squares_is_not_advised_to_be_what_it_is():
    with pytest.raises(ValueError, match=r"divide it by that$"):
        sp.logdet(1e-200 * scipy.sparse.eye(9000).tocsr(), KEY)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_products_whose_square_alone_is_symmetric_are_refused(smoothing):
    A = scipy.sparse.block_diag(
        [scipy.sparse.coo_array([[0.0, 2.0], [0.5, 0.0]])] * 20
    )  # A² = I, and singular values 2 and 0.5
    with pytest.raises(ValueError, match="A must be symmetric"):
        sp.nuclear_norm(
            scipy.sparse.linalg.aslinearoperator(A), KEY, method="stochastic", probes=4, smoothing=smoothing
        )


def test_an_inverse_too_large_for_its_numbers_is_refused():
    with pytest.raises(ValueError, match="too large for float64: multiply A"):
        sp.trace_inverse(1e-310 * np.eye(3), KEY)

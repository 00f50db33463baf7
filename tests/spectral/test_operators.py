import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
import pytest
import scipy.sparse
from jax.experimental import sparse as jsparse
from spectral_matrices import laplacian, rbf

from thalweg.spectral import (
    Nystrom,
    Operator,
    PivotedCholesky,
    as_operator,
    estimate,
    gram_operator,
    kernel_operator,
    logdet,
    plan,
    sparse,
)
from thalweg.spectral.operators import diagonal, entries_bounds
from thalweg.spectral.precondition import _low_rank_parts
from thalweg.spectral.setup import make_preconditioner
from thalweg.spectral.sparse import sparse_parts

A = laplacian(6)
DENSE = A.toarray()


def kinds():
    return {
        "numpy": DENSE,
        "jax": jnp.asarray(DENSE),
        "csr": A,
        "coo": A.tocoo(),
        "bcoo": jsparse.BCOO.from_scipy_sparse(A),
        "lineax": lx.MatrixLinearOperator(jnp.asarray(DENSE), lx.symmetric_tag),
        "function": Operator(lambda theta, v: theta @ v, jnp.asarray(DENSE), dimension=36),
    }


@pytest.mark.parametrize("kind", kinds())
def test_every_kind_multiplies_a_block(kind):
    operator = as_operator(kinds()[kind])
    block = np.random.default_rng(0).standard_normal((36, 5))
    assert operator @ jnp.asarray(block) == pytest.approx(DENSE @ block)
    assert operator @ jnp.asarray(block[:, 0]) == pytest.approx(DENSE @ block[:, 0])
    assert operator.to_dense() == pytest.approx(DENSE)


@pytest.mark.parametrize("kind", ["csr", "bcoo", "lineax", "function"])
def test_every_kind_has_a_log_determinant(kind):
    e = logdet(kinds()[kind], jax.random.key(0), probes=4)
    assert abs(e.value - np.linalg.slogdet(DENSE)[1]) < 6 * e.standard_error


def test_a_plain_function_needs_a_dimension():
    e = logdet(lambda v: 2.0 * v, jax.random.key(0), dimension=7, probes=4)
    assert e.value == pytest.approx(7 * np.log(2.0), rel=1e-6)
    with pytest.raises(ValueError, match="pass dimension="):
        logdet(lambda v: 2.0 * v, jax.random.key(0))


def test_hubs_of_a_graph_are_scattered():
    star = scipy.sparse.lil_matrix((50, 50))
    star[0, 1:] = 1.0
    star[1:, 0] = 1.0
    (values, _), (rest, positions) = sparse_parts(star)
    assert values.shape[0] < 10
    assert rest.size == positions.shape[0] == 49 - values.shape[0]
    block = np.random.default_rng(0).standard_normal((50, 3))
    assert as_operator(star) @ jnp.asarray(block) == pytest.approx(star @ block)
    assert diagonal(as_operator(star), as_operator(star).theta) == pytest.approx(np.zeros(50))


@pytest.mark.parametrize("width", [3, 16])
def test_a_step_in_strips_is_the_step(monkeypatch, width):
    monkeypatch.setattr(sparse, "_MOST_ROWS", 64)
    monkeypatch.setattr(sparse, "_STRIP_BYTES", 2**12)
    monkeypatch.setattr(sparse, "_PARTIAL_SUMS", 100)
    monkeypatch.setattr(sparse, "_STRIPS_FROM", 1)
    A = laplacian(13)
    operator = as_operator(A)
    assert operator.multiply.in_strips(operator.theta)
    older, newer = np.random.default_rng(0).standard_normal((2, A.shape[0], width))
    product = operator.multiply
    padded = product.padded(operator.theta, jnp.asarray(newer))
    assert padded.shape[0] % 64 == 0
    extra = padded.shape[0] - A.shape[0]
    before = jnp.pad(jnp.asarray(older), ((0, extra), (0, 0)))
    latest, cross, size = product.advance(operator.theta, operator.data, 0.7, 0.3, before, padded)
    expected = 0.7 * (A @ newer) - 0.3 * newer - older
    assert latest[: A.shape[0]] == pytest.approx(expected)
    assert latest[A.shape[0] :] == pytest.approx(0)
    assert cross == pytest.approx(np.sum(newer * expected, axis=0))
    assert size == pytest.approx(np.sum(expected**2, axis=0))


def test_values_do_not_depend_on_the_strips(monkeypatch):
    A = laplacian(13)
    operator = as_operator(A)
    p = plan("log", operator, jax.random.key(0), probes=8)
    whole = estimate(p, operator, jax.random.key(1))
    monkeypatch.setattr(sparse, "_STRIPS_FROM", 1)
    monkeypatch.setattr(sparse, "_MOST_ROWS", 64)
    operator = as_operator(A)
    assert operator.multiply.in_strips(operator.theta)
    assert diagonal(operator, operator.theta) == pytest.approx(A.diagonal())
    strips = estimate(p, operator, jax.random.key(1))
    assert float(strips.value) == pytest.approx(float(whole.value), rel=1e-12)
    assert float(strips.standard_error) == pytest.approx(float(whole.standard_error), rel=1e-9)
    gradient = jax.grad(lambda t: estimate(p, eqx.tree_at(lambda o: o.theta, operator, t), jax.random.key(1)).value)
    assert bool(jnp.all(jnp.isfinite(gradient(operator.theta)[0])))


def test_kernel_products_do_not_depend_on_the_strips():
    points = jnp.asarray(np.random.default_rng(0).uniform(size=(23, 2)))
    rbf_kernel = lambda t, X, Y: jnp.exp(-0.5 * jnp.sum((X[:, None] - Y[None]) ** 2, -1) / t**2)
    whole = kernel_operator(rbf_kernel, jnp.array(0.2), points, 0.05)
    strips = kernel_operator(rbf_kernel, jnp.array(0.2), points, 0.05, rows=5)
    assert strips.to_dense() == pytest.approx(whole.to_dense())
    assert diagonal(strips, strips.theta) == pytest.approx(jnp.diagonal(whole.to_dense()))


@pytest.mark.parametrize("matrix", [rbf(20), laplacian(5)])
def test_bounds_from_entries_hold(matrix):
    dense = matrix.toarray() if scipy.sparse.issparse(matrix) else matrix
    low, high = entries_bounds(as_operator(matrix))
    values = np.linalg.eigvalsh(dense)
    assert low <= values[0]
    assert values[-1] <= high


@pytest.mark.parametrize("shape", [(7, 4), (4, 7), (5, 5)])
@pytest.mark.parametrize("sparse", [False, True])
def test_gram_operators_square_the_singular_values(shape, sparse):
    X = np.random.default_rng(1).standard_normal(shape)
    gram = gram_operator(scipy.sparse.csr_matrix(X) if sparse else X, 0.5)
    assert gram.dimension == min(shape)
    expected = np.sort(np.linalg.svd(X, compute_uv=False) ** 2 + 0.5)
    assert np.linalg.eigvalsh(gram.to_dense()) == pytest.approx(expected)


def test_the_square_of_a_function_has_its_squared_eigenvalues():
    scaled = Operator(lambda theta, v: theta[:, None] * v, jnp.array([1.0, -2.0, 3.0]), dimension=3)
    assert np.diagonal(gram_operator(scaled, 0.5).to_dense()) == pytest.approx([1.5, 4.5, 9.5])
    assert np.diagonal(gram_operator(lambda v: 2 * v, 0.0, 3).to_dense()) == pytest.approx([4.0] * 3)


@pytest.mark.parametrize("matrix", [A.astype(int) + scipy.sparse.eye(36, dtype=int), A.astype(np.float32)])
def test_integer_and_float32_matrices_keep_a_floating_precision(matrix):
    operator = as_operator(matrix)
    assert operator.dtype == (jnp.float32 if matrix.dtype == np.float32 else jnp.float64)
    with jax.enable_x64(False):  # no warning about a dtype nobody asked for
        assert as_operator(A).dtype == jnp.float32


def test_the_matrix_given_is_left_as_it_is():
    """Also where an entry is given in parts, which SciPy would add up in place."""
    twice = scipy.sparse.csr_matrix((np.array([1.0, 2.0, 3.0]), np.array([0, 0, 1]), np.array([0, 2, 3])), (2, 2))
    operator = as_operator(twice)
    assert np.asarray(operator.to_dense()) == pytest.approx(np.diag([3.0, 3.0]))
    assert twice.data.tolist() == [1.0, 2.0, 3.0]


@pytest.mark.parametrize("request_", [PivotedCholesky(rank=4), Nystrom(rank=4)])
def test_another_matrix_of_the_same_size_compiles_nothing(request_):
    """Also where the preconditioner's σ² is found from the matrix."""
    matrix = jnp.asarray(A.toarray() + np.eye(36))
    for factor in (1.0, 1.1, 1.2):
        before = _low_rank_parts._cached._cache_size()
        make_preconditioner(request_, as_operator(factor * matrix), jax.random.key(0), 16)
    assert _low_rank_parts._cached._cache_size() == before

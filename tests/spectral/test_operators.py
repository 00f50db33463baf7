import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
import pytest
import scipy.sparse
from jax.experimental import sparse as jsparse
from spectral_matrices import laplacian, rbf

from thalweg.spectral import Operator, as_operator, gram_operator, kernel_operator, logdet
from thalweg.spectral.operators import diagonal, entries_bounds
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


@pytest.mark.parametrize("matrix", [A.astype(int) + scipy.sparse.eye(36, dtype=int), A.astype(np.float32)])
def test_integer_and_float32_matrices_keep_a_floating_precision(matrix):
    operator = as_operator(matrix)
    assert operator.dtype == (jnp.float32 if matrix.dtype == np.float32 else jnp.float64)
    with jax.enable_x64(False):  # no warning about a dtype nobody asked for
        assert as_operator(A).dtype == jnp.float32

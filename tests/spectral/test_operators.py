from concurrent.futures import ThreadPoolExecutor
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse
import scipy.sparse.linalg
from jax.experimental import sparse as jsparse
from spectral_matrices import laplacian, random_keys, rbf

from thalweg.kernels import Gaussian
from thalweg.linalg.operators.matrices import DenseOperator, SparseOperator
from thalweg.spectral import (
    FunctionOperator,
    KernelOperator,
    Nystrom,
    PivotedCholesky,
    ShiftedOperator,
    as_operator,
    gram_operator,
    kernel_operator,
    logdet,
    plan,
    spectral_sum,
    trace_exp,
)

A = laplacian(6)
DENSE = A.toarray()
KEY = jax.random.key(0)
slow = pytest.mark.slow


def of_lineax():
    lineax = pytest.importorskip("lineax")
    return lineax.MatrixLinearOperator(jax.device_put(DENSE), lineax.symmetric_tag)


KINDS = {
    "numpy": lambda: DENSE,
    "jax": lambda: jax.device_put(DENSE),
    "csr": lambda: A,
    "coo": lambda: A.tocoo(),
    "bcoo": lambda: jsparse.BCOO(jax.device_put((A.tocoo().data, np.argwhere(DENSE))), shape=A.shape),
    "scipy": lambda: scipy.sparse.linalg.aslinearoperator(A),
    "shifted": lambda: ShiftedOperator(as_operator(A - 0.5 * scipy.sparse.eye(36)), 0.5),
    "sum": lambda: as_operator(0.25 * A) + as_operator(0.75 * DENSE),
    "function": lambda: FunctionOperator(lambda theta, v: theta @ v, DENSE, dimension=36),
    "lineax": of_lineax,
}


@eqx.filter_jit
def products(operator, block):
    """Products with a block and with a vector, all entries, and two columns, by one program."""
    return operator @ block, operator @ block[:, 0], operator.to_dense(), operator.columns(jnp.array([3, 0]))


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_multiplies_a_block(kind):
    operator = as_operator(KINDS[kind]())
    block = np.random.default_rng(0).standard_normal((36, 5))
    expected = (DENSE @ block, DENSE @ block[:, 0], DENSE, DENSE[:, [3, 0]])
    for found, exact in zip(products(operator, block), expected, strict=True):
        assert np.asarray(found) == pytest.approx(exact)
    assert operator.shape == (36, 36)
    lower, upper = operator.bounds()
    assert lower <= np.linalg.eigvalsh(DENSE)[0]
    assert upper >= np.linalg.eigvalsh(DENSE)[-1]
    if kind in ("lineax", "scipy", "function"):
        with pytest.raises(NotImplementedError, match="products only, not its diagonal"):
            operator.diagonal()
    else:
        assert np.asarray(operator.diagonal()) == pytest.approx(np.diagonal(DENSE))


def test_products_on_the_host_keep_float64_in_a_thread_that_has_not_enabled_it():
    operator = as_operator(scipy.sparse.linalg.aslinearoperator(A))
    block = np.random.default_rng(0).standard_normal((36, 5))
    given = jnp.asarray(block)
    compiled = jax.jit(operator.mv).lower(given).compile()

    def in_float32():
        with jax.enable_x64(False):
            return np.asarray(compiled(given))

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(in_float32).result() == pytest.approx(DENSE @ block, rel=1e-13)


def test_products_on_the_host_are_not_differentiated():
    operator = as_operator(scipy.sparse.linalg.aslinearoperator(A))
    with pytest.raises(TypeError, match="cannot be differentiated"):
        jax.jit(jax.grad(lambda scale: jnp.sum(operator @ (scale * np.ones(36)))))(2.0)


@pytest.mark.parametrize(
    "kind", ["scipy", *(pytest.param(k, marks=slow) for k in ("csr", "bcoo", "lineax", "function", "shifted", "sum"))]
)
def test_every_kind_has_a_log_determinant(kind):
    e = logdet(KINDS[kind](), KEY, probes=4, degree=12, interval=(0.09, 8.2))
    assert abs(float(e.value) - np.linalg.slogdet(DENSE)[1]) < 6 * float(e.standard_error)


def test_a_plain_function_needs_a_dimension():
    e = logdet(lambda v: 2.0 * v, jax.random.key(0), dimension=7, probes=4)
    assert float(e.value) == pytest.approx(7 * np.log(2.0), rel=1e-6)
    with pytest.raises(ValueError, match="pass dimension="):
        logdet(lambda v: 2.0 * v, jax.random.key(0))


def test_hubs_of_a_graph_are_scattered():
    star = scipy.sparse.lil_matrix((50, 50))
    star[0, 1:] = 1.0
    star[1:, 0] = 1.0
    operator = as_operator(star)
    width = len(operator.gathered)
    assert width < 10
    assert operator.values.size == len(operator.coordinates) == 49 - width
    block = np.random.default_rng(0).standard_normal((50, 3))
    assert jax.jit(SparseOperator.mv)(operator, block) == pytest.approx(star @ block)
    assert operator.diagonal() == pytest.approx(np.zeros(50))
    assert operator.bounds()[1] >= 7  # √49, the largest eigenvalue


def test_kernel_products_do_not_depend_on_the_tiles():
    points = np.random.default_rng(0).uniform(size=(23, 2))
    rbf_kernel = lambda t, X, Y: jnp.exp(-0.5 * jnp.sum((X[:, None] - Y[None]) ** 2, -1) / t**2)
    whole = kernel_operator(rbf_kernel, 0.2, points, 0.05)
    tiled = kernel_operator(rbf_kernel, 0.2, points, 0.05, rows=5)

    @eqx.filter_jit
    def parts(whole, tiled):
        return whole.to_dense(), tiled.mv(np.eye(23)), tiled.diagonal(), tiled.columns(np.array([7, 2]))

    dense, by_tiles, diagonal, columns = map(np.asarray, parts(whole, tiled))
    assert by_tiles == pytest.approx(dense)
    assert diagonal == pytest.approx(np.diagonal(dense))
    assert columns == pytest.approx(dense[:, [7, 2]])


def test_kernels_of_the_library_are_kernels():
    points = np.random.default_rng(0).uniform(size=(23, 2))
    kernel = Gaussian(lengthscale=0.2)
    operator = lambda kernel: ShiftedOperator(KernelOperator(kernel, points), 0.1)

    @jax.jit
    def matrix_and_gradient(kernel):
        return operator(kernel).to_dense(), jax.grad(lambda k: jnp.sum(operator(k).mv(points)))(kernel)

    matrix, gradient = matrix_and_gradient(kernel)
    assert np.asarray(matrix) == pytest.approx(np.asarray(kernel(points)) + 0.1 * np.eye(23))
    assert float(gradient.lengthscale) != 0


@pytest.mark.parametrize("rule", ["series", pytest.param("paper", marks=slow)])
def test_gradients_reach_whatever_is_differentiated(rule):
    """Parameters, noise and points alike, against the exact derivative."""
    points = np.random.default_rng(0).uniform(size=(6, 2))
    rbf_kernel = lambda t, X, Y: jnp.exp(-0.5 * jnp.sum((X[:, None] - Y[None]) ** 2, -1) / t**2)
    operator = lambda t: kernel_operator(rbf_kernel, t[0], t[1], lambda _: t[2])
    theta = (np.asarray(0.3), points, np.asarray(0.5))
    exact = jax.jit(jax.grad(lambda t: jnp.linalg.slogdet(operator(t).to_dense())[1]))(theta)
    p = plan("log", operator(theta), KEY, probes=2, gradient=rule)
    run = jax.jit(jax.vmap(jax.grad(lambda t, key: p.estimate(operator(t), key).value), (None, 0)))
    gradients = jax.tree.map(np.asarray, run(theta, random_keys(2000)))
    for found, truth in zip(jax.tree.leaves(gradients), jax.tree.leaves(exact), strict=True):
        assert np.all(np.abs(found.mean(0) - truth) < 5 * found.std(0) / np.sqrt(2000) + 1e-9)


@pytest.mark.parametrize("matrix", [rbf(20), laplacian(5)])
def test_bounds_from_entries_hold(matrix):
    dense = matrix.toarray() if scipy.sparse.issparse(matrix) else matrix
    low, high = as_operator(matrix).bounds()
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
    assert np.linalg.eigvalsh(jax.jit(type(gram).to_dense)(gram)) == pytest.approx(expected)


def test_the_square_of_a_function_has_its_squared_eigenvalues():
    scaled = FunctionOperator(lambda theta, v: theta[:, None] * v, np.array([1.0, -2.0, 3.0]), dimension=3)
    squares = gram_operator(scaled, 0.5), gram_operator(lambda v: 2 * v, 0.0, 3)
    of_scaled, of_function = eqx.filter_jit(lambda operators: [each.to_dense() for each in operators])(squares)
    assert np.diagonal(of_scaled) == pytest.approx([1.5, 4.5, 9.5])
    assert np.diagonal(of_function) == pytest.approx([4.0] * 3)


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
    assert operator.entries() == pytest.approx(np.diag([3.0, 3.0]))
    assert twice.data.tolist() == [1.0, 2.0, 3.0]


class Counted(DenseOperator):
    """Counts how often its products and columns are traced."""

    traced: ClassVar[list] = []

    def mv(self, block):
        self.traced.append("mv")
        return super().mv(block)

    def columns(self, indices):
        self.traced.append("columns")
        return super().columns(indices)


@pytest.mark.parametrize(
    "use",
    [
        lambda operator: PivotedCholesky(rank=4).build(operator, KEY, 16),
        lambda operator: Nystrom(rank=4).build(operator, KEY, 16),
        lambda operator: trace_exp(operator, KEY, time=0.5, probes=4),
        lambda operator: spectral_sum(lambda x: x**3, operator, KEY, probes=4),
    ],
)
def test_another_matrix_of_the_same_size_compiles_nothing(use):
    """Also where σ² is found from the matrix, and where the function is new but alike."""
    use(Counted(jnp.asarray(DENSE + np.eye(36))))
    before = len(Counted.traced)
    use(Counted(jnp.asarray(1.1 * (DENSE + np.eye(36)))))
    assert len(Counted.traced) == before > 0


def test_a_function_that_cannot_multiply_says_why():
    with pytest.raises(ValueError, match=r"cannot multiply a block of shape \(30, 2\)"):
        logdet(lambda block: jnp.asarray(DENSE) @ block, KEY, dimension=30)
    with pytest.raises(TypeError, match="function written in jax"):
        logdet(lambda block: DENSE @ np.asarray(block), KEY, dimension=36)

"""Grid interpolation against its definition: products, rates, stencils, kernels interpolated."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from thalweg.kernels import Gaussian, Grid, Interpolation, Matern52, Periodic, stencil_product
from thalweg.spectral import InterpolatedOperator, ShiftedOperator, ToeplitzOperator

RNG = np.random.default_rng(0)
SHAPES = [(9,), pytest.param((7, 6), marks=pytest.mark.slow), (5, 4, 6)]
KERNELS = {
    "Gaussian": Gaussian(0.5, 2.0),
    "Matern52": Matern52(0.5),
    "sum": Gaussian(0.3) + Matern52(1.0),
    "product": Periodic(2.0) * Gaussian(1.0),
}


def grid_and_points(shape, points=12):
    grid = Grid(RNG.normal(size=len(shape)), RNG.uniform(0.5, 2, size=len(shape)), shape)
    inside = grid.origin + RNG.uniform(size=(points, len(shape))) * (grid.last - grid.origin)
    inside[0], inside[1] = grid.origin, grid.last
    return grid, inside


entries = jax.jit(lambda W: (W.indices, W.weights))


def dense(W):
    """W entry by entry."""
    matrix = np.zeros(W.shape)
    indices, weights = map(np.asarray, entries(W))
    np.add.at(matrix, (np.arange(W.shape[0])[:, None], indices), weights)
    return matrix


def interpolated(kernel, grid, points):
    column = kernel(jnp.zeros((1, len(grid.shape))), jnp.asarray(grid.offsets())).reshape(grid.shape)
    return InterpolatedOperator(grid.interpolation(points), ToeplitzOperator(column))


interpolate = jax.jit(Interpolation.mv)
to_dense = jax.jit(lambda operator: operator.to_dense())


@pytest.mark.parametrize("shape", SHAPES)
def test_products_are_those_of_the_dense_matrix(shape):
    grid, points = grid_and_points(shape)
    W = grid.interpolation(points)
    v, u = RNG.normal(size=(grid.size, 3)), RNG.normal(size=(len(points), 3))
    product, transposed, bound = jax.jit(lambda W, v, u: (W.mv(v), W.rmv(u), W.norm_bound()))(W, v, u)
    np.testing.assert_allclose(product, dense(W) @ v, atol=1e-12)
    np.testing.assert_allclose(transposed, dense(W).T @ u, atol=1e-12)
    assert float(bound) >= np.linalg.norm(dense(W), 2) ** 2


@pytest.mark.parametrize("shape", SHAPES)
def test_quadratics_are_met_everywhere_and_the_nodes_exactly(shape):
    grid, points = grid_and_points(shape)
    nodes = grid.origin + grid.offsets()
    quadratic = lambda x: np.prod(1 + x + 0.5 * x**2, axis=1)
    found = np.asarray(interpolate(grid.interpolation(points), quadratic(nodes)[:, None]))[:, 0]
    np.testing.assert_allclose(found, quadratic(points), rtol=1e-10)
    np.testing.assert_allclose(dense(grid.interpolation(nodes)), np.eye(grid.size), atol=1e-9)


@pytest.mark.parametrize("dimension", [1, 2])
def test_the_error_falls_as_the_third_power_of_the_spacing_up_to_the_boundary(dimension):
    function = lambda x: np.sin(3 * x[:, 0]) * np.exp(x[:, -1])
    points = RNG.uniform(size=(400, dimension))
    grids = [Grid([0.0] * dimension, [1 / (nodes - 1)] * dimension, (nodes,) * dimension) for nodes in (33, 65, 129)]
    values = [function(grid.offsets())[:, None] for grid in grids]
    every = jax.jit(lambda Ws, values: [W.mv(block)[:, 0] for W, block in zip(Ws, values, strict=True)])
    found = np.asarray(every([grid.interpolation(points) for grid in grids], values))
    errors = np.max(np.abs(found - function(points)), axis=1)
    rates = np.log2(errors[:-1]) - np.log2(errors[1:])
    assert np.all(rates > 2.8), rates


@pytest.mark.parametrize("name", ["Gaussian", pytest.param("Matern52", marks=pytest.mark.slow)])
def test_an_interpolated_kernel_comes_to_the_kernel_at_that_rate(name):
    points, kernel = np.random.default_rng(0).uniform(size=(400, 1)), KERNELS[name]
    grids = [Grid([0.0], [1 / (nodes - 1)], (nodes,)) for nodes in (17, 33, 65)]
    every = jax.jit(lambda kernel: [interpolated(kernel, grid, points).to_dense() for grid in grids])
    errors = np.max(np.abs(np.asarray(every(kernel)) - np.asarray(kernel(points))), axis=(1, 2))
    rates = np.log2(errors[:-1]) - np.log2(errors[1:])
    # Matérn-5/2 has four derivatives at 0, the fourth one being its last: cubic interpolation sees three.
    assert np.all(rates > 2.9), rates


@pytest.mark.parametrize("shape", [(9,), (7, 6)])
def test_a_gram_stencil_is_the_gram_matrix(shape):
    grid, points = grid_and_points(shape)
    W, scales = grid.interpolation(points), RNG.uniform(size=len(points))
    fields = RNG.normal(size=(3, *shape))
    found = jax.jit(lambda W, s, f: stencil_product(W.gram(s), f))(W, scales, fields).reshape(3, -1)
    np.testing.assert_allclose(found, fields.reshape(3, -1) @ (dense(W).T * scales @ dense(W)), atol=1e-12)


MORE = [("sum", (7, 6)), ("sum", (5, 4, 6)), ("product", (9,))]
CASES = [("sum", (9,)), *(pytest.param(*case, marks=pytest.mark.slow) for case in MORE)]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "shape"), CASES)
def test_kernel_operators_are_the_dense_interpolated_kernel(name, shape):
    grid, points = grid_and_points(shape)
    kernel, nodes = KERNELS[name], grid.origin + grid.offsets()
    among = np.asarray(kernel(nodes))
    W = dense(grid.interpolation(points))
    A = interpolated(kernel, grid, points)
    expected = W @ among @ W.T
    scale = np.abs(expected).max()
    np.testing.assert_allclose(A.operator.to_dense(), among, atol=1e-11 * np.abs(among).max())
    np.testing.assert_allclose(A.to_dense(), expected, atol=1e-11 * scale)
    np.testing.assert_allclose(A.diagonal(), np.diag(expected), atol=1e-11 * scale)
    chosen = jnp.array([2, 0])
    np.testing.assert_allclose(A.columns(chosen), expected[:, [2, 0]], atol=1e-11 * scale)
    np.testing.assert_allclose(A.operator.columns(chosen), among[:, [2, 0]], atol=1e-11 * np.abs(among).max())
    for operator, matrix in ((A.operator, among), (ShiftedOperator(A, 0.1), expected + 0.1 * np.eye(len(points)))):
        lower, upper = operator.bounds()
        eigenvalues = np.linalg.eigvalsh(matrix)
        assert lower <= eigenvalues[0] + 1e-9 * scale
        assert upper >= eigenvalues[-1]
    assert ShiftedOperator(A, 0.1).bounds()[0] == pytest.approx(0.1)


def test_a_kronecker_product_is_a_column_that_is_an_outer_product():
    first, second = np.exp(-np.arange(5.0)), np.exp(-(np.arange(4.0) ** 2))
    K = ToeplitzOperator(jnp.asarray(np.outer(first, second)))
    toeplitz = lambda column: column[np.abs(np.subtract.outer(np.arange(len(column)), np.arange(len(column))))]
    np.testing.assert_allclose(to_dense(K), np.kron(toeplitz(first), toeplitz(second)), atol=1e-12)


def test_operators_are_differentiable_in_the_parameters_of_the_kernel():
    grid, points = grid_and_points((9,))
    u, v = jnp.asarray(RNG.normal(size=(2, len(points), 1)))
    W, nodes = jnp.asarray(dense(grid.interpolation(points))), jnp.asarray(grid.origin + grid.offsets())
    mine = lambda kernel: jnp.sum(u * interpolated(kernel, grid, points).mv(v))
    theirs = lambda kernel: jnp.sum((W.T @ u) * (kernel(nodes) @ (W.T @ v)))
    slopes = jax.jit(lambda kernel: (jax.grad(mine)(kernel), jax.grad(theirs)(kernel)))(Matern52(0.7, 1.5))
    for one, other in zip(*map(jax.tree.leaves, slopes), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9)


@pytest.mark.parametrize(
    ("grid", "words"),
    [
        (lambda: Grid([0.0] * 4, [1.0] * 4, (4,) * 4), "1 to 3 dimensions"),
        (lambda: Grid([0.0], [1.0], (3,)), "shape of Grid"),
        (lambda: Grid([0.0, 1.0], [1.0], (4,)), "a number for each of 1"),
        (lambda: Grid([0.0], [0.0], (4,)), "spacing of Grid must be positive"),
        (lambda: Grid([0.0], [1.0], (4,)).interpolation(np.array([[3.1]])), "between the first and the last node"),
        (lambda: Grid([0.0], [1.0], (4,)).interpolation(np.zeros((2, 2))), "must have 1 columns"),
    ],
)
def test_what_is_no_grid_is_refused(grid, words):
    with pytest.raises(ValueError, match=words):
        grid()


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (
            lambda: ToeplitzOperator(np.zeros(0)),
            ValueError,
            r"column of ToeplitzOperator must have .* found shape \(0,\)",
        ),
        (lambda: ToeplitzOperator([1.0, np.nan]), ValueError, "column of ToeplitzOperator must hold finite numbers"),
        (lambda: ToeplitzOperator("a"), TypeError, "column of ToeplitzOperator must be .* found 'a'"),
        (lambda: ToeplitzOperator(2.0), ValueError, "an axis for each dimension"),
        (lambda: ToeplitzOperator([2.0, 1.0]) @ np.ones(3), ValueError, r"must have 2 rows, found shape \(3,\)"),
    ],
)
def test_bad_operators_and_vectors_are_named(call, error, words):
    with pytest.raises(error, match=words):
        call()

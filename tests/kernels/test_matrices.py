"""Kernel matrices: the formulas, exact symmetry, offsets, precision, derivatives, and errors."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from thalweg.kernels import Cauchy, Gaussian, Laplacian, Matern12, Matern32, Matern52
from thalweg.kernels.distances import product_in_halves, squared_distances

KERNELS = [Gaussian, Matern12, Matern32, Matern52, Laplacian, Cauchy]
LENGTHS = np.array([0.7, 1.3, 2.9])
# More features, whose distances go through a product of matrices and not through differences.
MANY = np.array([0.7, 1.3, 2.9, 1.1, 0.9, 1.9])


def euclidean(u):
    return np.sqrt((u**2).sum(-1))


FORMULAS = {
    Gaussian: lambda u: np.exp(-(euclidean(u) ** 2) / 2),
    Matern12: lambda u: np.exp(-euclidean(u)),
    Matern32: lambda u: (1 + np.sqrt(3) * euclidean(u)) * np.exp(-np.sqrt(3) * euclidean(u)),
    Matern52: lambda u: (
        (1 + np.sqrt(5) * euclidean(u) + 5 * euclidean(u) ** 2 / 3) * np.exp(-np.sqrt(5) * euclidean(u))
    ),
    Laplacian: lambda u: np.exp(-np.abs(u).sum(-1)),
    Cauchy: lambda u: np.prod(1 / (1 + u**2), axis=-1),
}


def plain(kind, x, y, lengthscale=LENGTHS, variance=1.7):
    differences = np.asarray(x, float)[:, None] - np.asarray(y, float)[None]
    return variance * FORMULAS[kind](differences / lengthscale)


def points(seed, rows, dimension=3):
    return np.random.default_rng(seed).normal(size=(rows, dimension))


@jax.jit
def evaluate(kernels, x, y):
    """Matrices of x with itself, and of x with y."""
    return [kernel(x) for kernel in kernels], [kernel(x, y) for kernel in kernels]


@jax.jit
def diagonals(kernels, x):
    return [kernel.diagonal(x) for kernel in kernels]


def every(*arguments):
    return [kind(*arguments) for kind in KERNELS]


@pytest.mark.parametrize("lengths", [LENGTHS, MANY], ids=["differences", "product"])
def test_matrices_equal_the_formulas(lengths):
    x, y = points(0, 9, len(lengths)), points(1, 5, len(lengths))
    kernels = every(lengths, 1.7)
    for kind, *found in zip(KERNELS, *evaluate(kernels, x, y), diagonals(kernels, x), strict=True):
        np.testing.assert_allclose(found[0], plain(kind, x, x, lengths), rtol=1e-12, err_msg=kind.__name__)
        np.testing.assert_allclose(found[1], plain(kind, x, y, lengths), rtol=1e-12, err_msg=kind.__name__)
        np.testing.assert_array_equal(found[2], np.diag(found[0]))


@settings(deadline=None, max_examples=6)
@given(st.integers(0, 2**32 - 1), st.sampled_from([(1, "float64"), (6, "float32")]))
def test_a_matrix_is_symmetric_to_the_last_digit_and_positive_semidefinite(seed, form):
    rows, (dimension, dtype) = 67, form
    x = (10 * points(seed, rows, dimension) - 3).astype(dtype)
    for matrix in map(np.asarray, evaluate(every(MANY[:dimension], 1.7), x, x[:1])[0]):
        assert matrix.dtype == dtype
        np.testing.assert_array_equal(matrix, matrix.T)
        np.testing.assert_array_equal(np.diag(matrix), np.asarray(1.7, dtype))
        assert np.linalg.eigvalsh(matrix.astype(float)).min() > -100 * rows * jnp.finfo(dtype).eps


def test_a_large_offset_costs_no_digits():
    # Multiples of 1/8 stay exact beside the offset, so the kernels must not notice it.
    # As many as above, whose program serves again.
    x, y = (np.round(8 * points(seed, rows, 6)).astype(np.float32) / 8 for seed, rows in ((2, 67), (3, 1)))
    offset = np.float32(2**18)
    for near, far in zip(evaluate(every(MANY), x, y), evaluate(every(MANY), x + offset, y + offset), strict=True):
        for kind, a, b in zip(KERNELS, near, far, strict=True):
            np.testing.assert_allclose(a, b, atol=2e-6, err_msg=kind.__name__)


@pytest.mark.parametrize("kind", [Gaussian, Laplacian])
def test_the_matrix_of_x_with_x(kind):
    x = np.repeat(points(4, 3), 2, axis=0)
    kernel = kind(LENGTHS)
    np.testing.assert_array_equal(kernel(x, x), kernel(x))
    np.testing.assert_allclose(kernel(x)[0, 1], 1.0, rtol=1e-7)


def test_the_dtype_of_the_points_is_that_of_the_matrix():
    single = points(5, 4).astype(np.float32)
    kernel = Gaussian(LENGTHS)
    dtype_of = lambda *rows: jax.eval_shape(lambda: kernel(*rows)).dtype
    assert dtype_of(single) == jax.eval_shape(lambda: kernel.diagonal(single)).dtype == jnp.float32
    assert dtype_of(single, points(5, 4)) == jnp.float64
    assert dtype_of(np.arange(6).reshape(2, 3)) == jnp.float64


@jax.jit
def gradients(kernels, x, weights, y):
    """Derivatives of weighted sums of entries, in the parameters of each kernel and, of all together, in x."""
    return jax.grad(lambda ks, x: sum(jnp.sum(weights * k(x, y)) for k in ks), (0, 1))(kernels, x)


def test_derivatives_in_the_parameters():
    x, y = points(6, 6), points(7, 4)
    weights = np.cos(np.arange(24)).reshape(6, 4)
    step = 1e-6 * np.eye(3)
    for kind, found in zip(KERNELS, gradients(every(LENGTHS, 1.7), x, weights, y)[0], strict=True):
        value = lambda lengths, kind=kind: np.sum(weights * plain(kind, x, y, lengths))
        slopes = [(value(LENGTHS + e) - value(LENGTHS - e)) / 2e-6 for e in step]
        np.testing.assert_allclose(found.lengthscale, slopes, rtol=1e-6, atol=1e-8, err_msg=kind.__name__)
        np.testing.assert_allclose(found.variance, value(LENGTHS) / 1.7, rtol=1e-10, err_msg=kind.__name__)


@pytest.mark.parametrize(
    ("dtype", "precision"), [("float32", 1e-2), pytest.param("float64", 1e-6, marks=pytest.mark.slow)]
)
def test_pairs_that_coincide_have_no_derivative_in_the_lengthscales(dtype, precision):
    x = np.repeat(points(8, 4, 6), 2, axis=0).astype(dtype)
    weights = np.kron(np.eye(4), np.array([[1.0, 3.0], [-0.5, -2.0]])).astype(dtype)
    total = lambda kernel: jnp.sum(weights * kernel(x)) + jnp.sum(weights * kernel(x, x + 0))
    in_lengthscales = jax.jit(jax.grad(lambda kernels: sum(map(total, kernels))))
    for kind, found in zip(KERNELS, in_lengthscales(every(MANY)), strict=True):
        np.testing.assert_allclose(found.lengthscale, 0, atol=precision, err_msg=kind.__name__)


@pytest.mark.parametrize("lengths", [LENGTHS, MANY], ids=["differences", "product"])
def test_derivatives_in_points_that_coincide(lengths):
    """Each of the first two points pulls at the other, and not at itself; the others have no weight."""
    x, weights = points(10, 6, len(lengths)), np.zeros((6, 4))
    weights[:2, :2] = 1
    gradient = np.asarray(gradients(every(lengths, 1.7), x, weights, x[:4])[1])
    np.testing.assert_allclose(gradient[0], -gradient[1], atol=1e-6)
    assert np.isfinite(gradient).all()
    assert np.all(gradient[:2] != 0)
    np.testing.assert_array_equal(gradient[2:], 0)


def test_second_derivatives_where_points_meet():
    # ∂²k/∂x∂y = −ρ''(0)/lengthscale² is the covariance of the derivatives of the process.
    curvatures = {Gaussian: 1.0, Matern32: 3.0, Matern52: 5 / 3, Cauchy: 2.0}
    value = lambda x, y, kernel: kernel(x[None], y[None])[0, 0]
    mixed = jax.jit(lambda x, kernels: [jax.jacfwd(jax.grad(value), 1)(x, x, kernel) for kernel in kernels])
    found = mixed(np.array([0.3, -0.1]), [kind(2.0) for kind in curvatures])
    for kind, matrix in zip(curvatures, found, strict=True):
        np.testing.assert_allclose(matrix, curvatures[kind] / 4 * np.eye(2), atol=1e-12, err_msg=kind.__name__)


@pytest.mark.parametrize("kind", [Gaussian, Laplacian])
def test_parameters_are_leaves_that_compile_nothing_again(kind):
    compiled = jax.jit(lambda kernel, x: kernel(x))
    singles = [compiled(kind(length), points(9, 3)) for length in (0.5, 2.0)]
    assert compiled._cache_size() == 1
    np.testing.assert_allclose(singles[1], plain(kind, points(9, 3), points(9, 3), 2.0, 1.0), rtol=1e-12)
    stacked = jax.jit(jax.vmap(lambda length: kind(length)(points(9, 3))))(np.array([0.5, 2.0]))
    np.testing.assert_allclose(stacked, singles, rtol=1e-12)


def test_the_derivative_of_a_product_kernel_keeps_no_matrix_for_each_feature():
    rows, dimension = 200, 128
    gradient = jax.jit(jax.grad(lambda kernel, x: jnp.sum(kernel(x))))
    compiled = gradient.lower(Laplacian(np.ones(dimension)), np.zeros((rows, dimension))).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < dimension / 8 * (8 * rows**2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"lengthscale": 0.0}, "lengthscale of Gaussian must be a finite number above 0, found 0"),
        ({"lengthscale": [1.0, -2.0]}, "must hold finite numbers above 0, found -2 at index 1"),
        ({"lengthscale": np.nan}, "found nan"),
        ({"lengthscale": [1.0, np.inf]}, "found inf at index 1"),
        ({"lengthscale": np.ones((2, 2))}, r"found shape \(2, 2\)"),
        ({"lengthscale": []}, r"found shape \(0,\)"),
        ({"lengthscale": "wide"}, "found 'wide'"),
        ({"lengthscale": None}, "found None"),
        ({"variance": -1.0}, "variance of Gaussian must be a finite number above 0, found -1.0"),
    ],
)
def test_bad_parameters(arguments, message):
    with pytest.raises((TypeError, ValueError), match=message):
        Gaussian(**arguments)


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (np.zeros((4, 2)), None, "x has 2 features and the kernel 3 lengthscales"),
        (np.zeros((4, 3)), np.zeros((4, 2)), "y has 2 features and the kernel 3 lengthscales"),
        (np.zeros(4), None, r"x must be a matrix with one point per row, found shape \(4,\); write points on a line"),
        (np.zeros((4, 3), complex), None, "x must be float32 or float64, found complex128"),
        (np.zeros((4, 3), np.float16), None, "x must be float32 or float64, found float16"),
        (np.zeros((0, 3)), None, r"found shape \(0, 3\)"),
    ],
)
def test_bad_points(x, y, message):
    with pytest.raises((TypeError, ValueError), match=message):
        Gaussian(LENGTHS)(x, y)


def test_points_of_different_dimension():
    with pytest.raises(ValueError, match="x and y must have as many features, found 2 and 3"):
        Gaussian()(np.zeros((4, 2)), np.zeros((4, 3)))


def test_products_in_halves_lose_hardly_a_digit():
    rng = np.random.default_rng(0)
    x, y = (rng.normal(size=(rows, 100)).astype(np.float32) for rows in (40, 30))
    exact = x.astype(float) @ y.astype(float).T
    size = np.linalg.norm(x, axis=1)[:, None] * np.linalg.norm(y, axis=1)
    lengthscale = np.float32(10)
    distances = lambda x, y, length: squared_distances(x, y, length, by=product_in_halves)
    both = jax.jit(lambda x, y, length: (product_in_halves(x, y), distances(x, y, length)))
    found, squares = map(np.asarray, both(x, y, lengthscale))
    assert found.dtype == np.float32
    assert np.max(np.abs(found - exact) / size) < 2.0**-21
    np.testing.assert_allclose(squares, np.sum(((x[:, None] - y[None]) / 10.0) ** 2, axis=2), rtol=1e-5)

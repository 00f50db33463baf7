"""One interface over every kind of symmetric operator: multiply a block of vectors.

``multiply(theta, data, block)`` is the whole of it: θ holds what may be differentiated (entries, kernel parameters),
``data`` the arrays that may not (sparsity patterns, points). The function itself is static, so that a compiled
estimate is compiled once per kind of operator, not once per matrix.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
import scipy.sparse
from jaxtyping import Array, Float, PyTree

from thalweg.spectral.sparse import SparseProduct, sparse_parts


class Operator(eqx.Module):
    """A symmetric operator A(θ), known by its products with blocks of vectors.

    Parameters
    ----------
    function
        ``function(theta, vectors) -> vectors``, linear in ``vectors``, an array with one vector a column.
    theta
        The parameters, any pytree of arrays: gradients are taken with respect to these. Use ``()`` if there are none.
    dimension
        The number of rows.
    data
        Arrays the function needs and nobody differentiates; if given, the function is called as
        ``function(theta, data, vectors)``. Pass large arrays here rather than closing over them: they are then
        arguments of the compiled estimate and not constants in it.

    Examples
    --------
    >>> import jax, jax.numpy as jnp
    >>> A = Operator(lambda theta, v: theta * v, jnp.full((3, 1), 2.0), dimension=3)
    >>> A @ jnp.ones(3)
    Array([2., 2., 2.], dtype=float...)
    """

    theta: PyTree[Array]
    data: PyTree
    multiply: Any = eqx.field(static=True)
    dimension: int = eqx.field(static=True)
    kind: str = eqx.field(static=True)

    def __init__(
        self,
        function: Callable[..., Any],
        theta: PyTree[Array] = (),
        *,
        dimension: int,
        data: PyTree = None,
        kind: str = "function",
    ) -> None:
        if not callable(function):
            raise TypeError(f"function must be callable as (theta, vectors), found {type(function).__name__}")
        if not isinstance(dimension, int | np.integer) or dimension < 1:
            raise ValueError(f"dimension must be a positive integer, found {dimension!r}")
        self.multiply = _WithoutData(function) if data is None else function
        self.theta = jax.tree.map(jnp.asarray, theta)
        self.data = data
        self.dimension = int(dimension)
        self.kind = kind

    def __matmul__(self, vectors: Float[Array, " d *m"]) -> Float[Array, " d *m"]:
        """A v for one vector, or for a block with one vector a column."""
        if vectors.ndim == 1:
            return self.multiply(self.theta, self.data, vectors[:, None])[:, 0]
        return self.multiply(self.theta, self.data, vectors)

    @property
    def dtype(self) -> np.dtype:
        """The floating dtype in which products are made."""
        leaves = [leaf for leaf in jax.tree.leaves((self.theta, self.data)) if _is_float(leaf)]
        # At least float32: a recurrence in half precision is all rounding.
        return jnp.promote_types(jnp.result_type(*leaves), jnp.float32) if leaves else jnp.result_type(float)

    def frozen(self) -> "Operator":
        """The same operator with its parameters held constant under differentiation."""
        return eqx.tree_at(lambda op: op.theta, self, jax.lax.stop_gradient(self.theta), is_leaf=lambda x: x is None)

    def concrete(self) -> bool:
        """Whether every array is known now, so that a plan can be made."""
        leaves = jax.tree.leaves((jax.lax.stop_gradient(self.theta), self.data))
        return not any(isinstance(leaf, jax.core.Tracer) for leaf in leaves)

    def check_closed(self) -> None:
        """Refuse a function that reaches for a value being differentiated or traced: it would count as a constant."""
        if self.kind in ("dense", "sparse", "bcoo"):
            return
        block = jax.ShapeDtypeStruct((self.dimension, 2), self.dtype)
        constants = jax.make_jaxpr(self.multiply)(self.theta, self.data, block).consts
        if any(isinstance(constant, jax.core.Tracer) for constant in constants):
            raise TypeError(
                "A is a function that closes over a value being traced by grad, jit or vmap: pass that value as "
                "theta, Operator(lambda theta, vectors: ..., theta, dimension=...)"
            )

    def to_dense(self) -> Float[Array, "d d"]:
        """All d² entries, by a product with the identity."""
        return self @ jnp.eye(self.dimension, dtype=self.dtype)


class _WithoutData:
    """Drop the data argument; equal whenever the user's function is, so that nothing is compiled twice."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __call__(self, theta: Any, data: Any, block: Any) -> Any:
        return self.function(theta, block)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _WithoutData) and other.function == self.function

    def __hash__(self) -> int:
        return hash((_WithoutData, self.function))


def kernel_operator(
    kernel: Callable[..., Any],
    theta: PyTree[Array],
    points: Float[Array, "n p"],
    noise: Callable[[Any], Any] | float,
    *,
    rows: int = 1024,
) -> Operator:
    """Return K(θ) + σ²(θ) I for a kernel function, never forming the n × n matrix.

    Parameters
    ----------
    kernel
        ``kernel(theta, X, Y) -> K``, the matrix of kernel values between two sets of points.
    theta
        Kernel parameters.
    points
        The n points, one a row.
    noise
        σ²: a number, or a function of θ.
    rows
        How many rows of the matrix exist at a time.

    Examples
    --------
    >>> import jax, jax.numpy as jnp
    >>> rbf = lambda scale, X, Y: jnp.exp(-0.5 * jnp.sum((X[:, None] - Y[None]) ** 2, -1) / scale**2)
    >>> A = kernel_operator(rbf, jnp.array(1.0), jnp.array([[0.0], [100.0]]), 0.5)
    >>> A @ jnp.ones(2)
    Array([1.5, 1.5], dtype=float...)
    """
    points = jnp.asarray(points)
    if points.ndim != 2:
        raise ValueError(f"points must have one point a row, found an array of shape {points.shape}")
    function = KernelProduct(kernel, noise if callable(noise) else _Constant(float(noise)), int(rows))
    return Operator(function, theta, dimension=points.shape[0], data=points, kind="kernel")


class _Constant:
    """σ² as a function of θ that does not depend on it."""

    def __init__(self, value: float) -> None:
        self.value = value

    def __call__(self, theta: Any) -> Any:
        return jnp.asarray(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Constant) and other.value == self.value

    def __hash__(self) -> int:
        return hash((_Constant, self.value))


class KernelProduct:
    """(K(θ) + σ²(θ) I) V, a strip of rows at a time."""

    def __init__(self, kernel: Callable[..., Any], noise: Callable[[Any], Any], rows: int) -> None:
        self.kernel, self.noise, self.rows = kernel, noise, rows

    def __call__(self, theta: Any, points: Any, block: Any) -> Any:
        """Multiply a block."""
        count = points.shape[0]
        shift = jnp.asarray(self.noise(theta), block.dtype) * block
        if count <= self.rows:
            return self.kernel(theta, points, points) @ block + shift
        strips = -(-count // self.rows)
        padded = jnp.pad(points, ((0, strips * self.rows - count), (0, 0)), mode="edge")
        strip = jax.checkpoint(lambda x: self.kernel(theta, x, points) @ block)
        products = jax.lax.map(strip, padded.reshape(strips, self.rows, -1))
        return products.reshape(strips * self.rows, -1)[:count] + shift

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash((self.kernel, self.noise, self.rows))


def as_operator(A: Any, dimension: int | None = None) -> Operator:
    """Coerce ``A`` into an :class:`Operator`.

    Dense arrays, SciPy sparse matrices, JAX ``BCOO`` matrices, lineax operators, operators themselves, and plain
    functions ``vectors -> vectors`` together with a ``dimension`` are understood.
    """
    if isinstance(A, Operator):
        return A
    if scipy.sparse.issparse(A):
        _check_square(A.shape)
        return _sparse(A)
    if is_bcoo(A):
        _check_square(A.shape)
        return Operator(_bcoo_product, as_array(A.data), dimension=A.shape[0], data=A.indices, kind="bcoo")
    if isinstance(A, lx.AbstractLinearOperator):
        _check_square((A.out_size(), A.in_size()))
        theta, rest = eqx.partition(A, eqx.is_inexact_array)
        for leaf in jax.tree.leaves(theta):
            _check_real(leaf.dtype)
        arrays, static = eqx.partition(rest, eqx.is_array)
        return Operator(_LineaxProduct(static), theta, dimension=A.in_size(), data=arrays, kind="lineax")
    if callable(A) and not hasattr(A, "shape"):
        if dimension is None:
            raise ValueError("A is a function: pass dimension=, the length of the vectors it multiplies")
        return Operator(_Function(A), (), dimension=dimension)
    array = as_array(A)
    _check_square(array.shape)
    return Operator(_dense_product, array, dimension=array.shape[0], data=(), kind="dense")


def is_bcoo(A: Any) -> bool:
    """Whether ``A`` is a BCOO matrix of JAX; one with dimensions for batches or dense parts is refused."""
    # By name, so that JAX's experimental module is not imported for those who do not use it.
    if type(A).__name__ != "BCOO" or not hasattr(A, "indices"):
        return False
    if A.n_batch or A.n_dense:
        raise ValueError(f"a BCOO matrix must be plain, found n_batch={A.n_batch} and n_dense={A.n_dense}")
    return True


def as_array(A: Any) -> Array:
    """Coerce a dense matrix into a real floating array."""
    try:
        array = jnp.asarray(A)
    except (TypeError, ValueError, NotImplementedError) as error:
        raise TypeError(
            f"A must be a dense array, a SciPy sparse matrix, a BCOO matrix of JAX, a lineax operator, an Operator, or "
            f"a function with dimension=; found {type(A).__name__}"
        ) from error
    _check_real(array.dtype)
    return array if jnp.issubdtype(array.dtype, jnp.floating) else array.astype(jnp.result_type(float))


def _check_real(dtype: Any) -> None:
    if jnp.issubdtype(dtype, jnp.complexfloating):
        raise TypeError(f"A must be real and symmetric, found dtype {dtype}")


def _check_square(shape: tuple[int, ...]) -> None:
    if len(shape) != 2 or shape[0] != shape[1]:
        raise ValueError(f"A must be square, found shape {tuple(shape)}")
    if shape[0] == 0:
        raise ValueError("A is empty: it must have at least one row")


def _dense_product(theta: Any, data: Any, block: Any) -> Any:
    return theta @ block


def _bcoo_product(theta: Any, data: Any, block: Any) -> Any:
    # Padding of a BCOO matrix points one past the end: such entries are dropped.
    terms = theta[:, None] * block.at[data[:, 1]].get(mode="fill", fill_value=0)
    return jnp.zeros_like(block).at[data[:, 0]].add(terms, mode="drop")


class _Function:
    """A plain function of vectors: there is nothing to differentiate."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __call__(self, theta: Any, block: Any) -> Any:
        return self.function(block)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Function) and other.function == self.function

    def __hash__(self) -> int:
        return hash((_Function, self.function))


class _LineaxProduct:
    """Products with a lineax operator whose arrays are passed in and whose structure is static."""

    def __init__(self, static: Any) -> None:
        self.leaves: list
        self.structure: Any
        self.leaves, self.structure = jax.tree.flatten(static)

    def __call__(self, theta: Any, data: Any, block: Any) -> Any:
        static = jax.tree.unflatten(self.structure, self.leaves)
        operator = eqx.combine(theta, data, static)
        return jax.vmap(operator.mv, in_axes=1, out_axes=1)(block)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _LineaxProduct):
            return False
        return bool(self.structure == other.structure) and self.leaves == other.leaves

    def __hash__(self) -> int:
        return hash(self.structure)


def _sparse(A: Any) -> Operator:
    _check_real(A.dtype)
    (values, columns), (rest, positions) = sparse_parts(A if np.issubdtype(A.dtype, np.floating) else A.astype(float))
    theta = (jnp.asarray(values), jnp.asarray(rest))
    data = (jnp.asarray(columns), jnp.asarray(positions))
    return Operator(SparseProduct(), theta, dimension=A.shape[0], data=data, kind="sparse")


def _sparse_entries(operator: Operator, theta: Any) -> tuple[Array, Array, Array, Array]:
    """Values and places of a sparse operator, without the padding."""
    (values, rest), (columns, positions) = theta, operator.data
    return values[:, : operator.dimension], rest, columns[:, : operator.dimension], positions


def _is_float(leaf: Any) -> bool:
    return jnp.issubdtype(jnp.result_type(leaf), jnp.floating)


def entries_bounds(operator: Operator) -> tuple[float, float] | None:
    """Return proven bounds of the spectrum from the entries (Gershgorin's discs), or None if there are none."""
    theta = jax.lax.stop_gradient(operator.theta)
    if operator.kind == "dense":
        diagonal = jnp.diagonal(theta)
        radius = jnp.sum(jnp.abs(theta), axis=1) - jnp.abs(diagonal)
    elif operator.kind == "sparse":
        values, rest, columns, positions = _sparse_entries(operator, theta)
        own = columns == jnp.arange(operator.dimension)
        total = jnp.sum(jnp.abs(values), axis=0).at[positions[:, 0]].add(jnp.abs(rest))
        loop = positions[:, 0] == positions[:, 1]
        diagonal = jnp.sum(jnp.where(own, values, 0), axis=0).at[positions[:, 0]].add(jnp.where(loop, rest, 0))
        radius = total - jnp.abs(diagonal)
    else:
        return None
    slack = 4 * float(jnp.finfo(operator.dtype).eps) * float(jnp.max(jnp.abs(diagonal) + radius))
    return float(jnp.min(diagonal - radius)) - slack, float(jnp.max(diagonal + radius)) + slack


def diagonal(operator: Operator, theta: Any) -> Array | None:
    """Return the diagonal of A(θ), differentiable in θ, or None if only products are known."""
    if operator.kind == "dense":
        return jnp.diagonal(theta)
    if operator.kind == "sparse":
        values, rest, columns, positions = _sparse_entries(operator, theta)
        own = jnp.where(columns == jnp.arange(operator.dimension), values, 0)
        loop = jnp.where(positions[:, 0] == positions[:, 1], rest, 0)
        return jnp.sum(own, axis=0).at[positions[:, 0]].add(loop)
    if operator.kind == "kernel":
        product = operator.multiply
        points = operator.data
        kernel = jax.vmap(lambda x: product.kernel(theta, x[None], x[None])[0, 0])(points)
        return kernel + product.noise(theta)
    return None

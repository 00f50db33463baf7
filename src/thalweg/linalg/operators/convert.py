"""Make an operator of a matrix, a function, or an operator of another library."""

import sys
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse
from jaxtyping import Array

from thalweg import arguments
from thalweg.linalg.operators.base import Operator, ShiftedOperator
from thalweg.linalg.operators.function import FunctionOperator, SciPyOperator
from thalweg.linalg.operators.matrices import (
    CoordinateOperator,
    DenseOperator,
    GramOperator,
    SparseGramOperator,
    SparseOperator,
    SquaredOperator,
)

__all__ = ["as_operator", "gram_operator"]


def as_operator(A: Any, dimension: int | None = None) -> Operator:
    """Coerce ``A`` into an :class:`Operator`.

    ``A`` may be a dense array, a SciPy sparse matrix or linear operator, a JAX ``BCOO`` matrix, a lineax operator, an
    operator already, or a plain function ``vectors -> vectors`` together with a ``dimension``.

    Examples
    --------
    >>> import numpy as np
    >>> as_operator(np.eye(3)).shape, as_operator(lambda v: 2.0 * v, 5).shape
    ((3, 3), (5, 5))
    """
    if _has_products_only(A):
        return _by_products(A, dimension)
    matrix: Any = A if scipy.sparse.issparse(A) or _is_bcoo(A) else as_array(A)
    _check_square(matrix.shape)
    if scipy.sparse.issparse(matrix):
        return SparseOperator(_as_floating(matrix))
    if _is_bcoo(matrix):
        return CoordinateOperator(as_array(matrix.data), matrix.indices, matrix.shape[0])
    return DenseOperator(matrix)


def check_dimension(operator: Operator, dimension: Any) -> Operator:
    """Return the operator, and refuse a dimension that is not its own."""
    if dimension is not None and arguments.whole("dimension", dimension) != operator.dimension:
        raise ValueError(f"dimension must be that of A, {operator.dimension}, or left out, found {dimension}")
    return operator


def gram_operator(X: Any, smoothing: float = 0.0, dimension: int | None = None) -> Operator:
    """Return XᵀX + εI or XXᵀ + εI, whichever is smaller: its eigenvalues are the squared singular values of X plus ε.

    A symmetric operator given by products alone is squared, A² + εI.

    Examples
    --------
    >>> import numpy as np
    >>> gram_operator(np.array([[3.0, 4.0]]), 0.5) @ np.ones(1)
    Array([25.5], dtype=float...)
    """
    epsilon = arguments.number("smoothing", smoothing, least=0)
    gram = check_dimension(_gram(X, dimension), dimension)
    # A shift of 0 would tell preconditioners that there is noise.
    return gram if not isinstance(epsilon, jax.core.Tracer) and epsilon == 0 else ShiftedOperator(gram, epsilon)


def _gram(X: Any, dimension: int | None) -> Operator:
    if _has_products_only(X):
        if len(set(getattr(X, "shape", ()))) == 2:
            raise ValueError(
                f"X is known by its products alone and must be symmetric, found shape {X.shape}: for its singular "
                "values take spectral_sum(jnp.sqrt, XᵀX, key)"
            )
        return SquaredOperator(_by_products(X, dimension))
    if scipy.sparse.issparse(X):
        coo = _as_floating(X).tocoo()
        values, rows, columns = jax.device_put(coo.data), coo.row.astype(np.int32), coo.col.astype(np.int32)
    elif _is_bcoo(X):
        values, rows, columns = as_array(X.data), X.indices[:, 0], X.indices[:, 1]
    else:
        array = as_array(X)
        if array.ndim != 2:
            raise ValueError(f"X must be a matrix, found an array of shape {array.shape}")
        _check_nonempty("X", array.shape)
        return GramOperator(array)
    _check_nonempty("X", X.shape)
    if X.shape[0] < X.shape[1]:
        rows, columns = columns, rows
    return SparseGramOperator(values, jax.device_put(rows), jax.device_put(columns), max(X.shape), min(X.shape))


def _has_products_only(A: Any) -> bool:
    """Whether ``A`` is an operator or a function, and no matrix."""
    is_function = callable(A) and not hasattr(A, "shape")
    return isinstance(A, Operator) or is_function or _is_lineax(A) or _is_scipy(A)


def _by_products(A: Any, dimension: int | None) -> Operator:
    """Return the operator of something known by its products."""
    if isinstance(A, Operator):
        return A
    if _is_lineax(A):
        _check_square((A.out_size(), A.in_size()))
        for leaf in jax.tree.leaves(eqx.filter(A, eqx.is_inexact_array)):
            _check_real(leaf.dtype)
        return FunctionOperator(_multiply_by_lineax, A, dimension=A.out_size())
    if _is_scipy(A):
        _check_square(A.shape)
        _check_real(A.dtype)
        return SciPyOperator(A)
    if dimension is None:
        raise ValueError("A is a function: pass dimension=, the length of the vectors it multiplies")
    return FunctionOperator(A, dimension=dimension)


def _multiply_by_lineax(operator: Any, block: Array) -> Array:
    return jax.vmap(operator.mv, in_axes=1, out_axes=1)(block)


def is_wide(A: Any) -> bool:
    """Whether ``A`` holds numbers of the host that float32 would cut short: NumPy's float64, whole numbers, lists."""
    if isinstance(A, list | tuple):
        return not _is_of_jax(A)
    if isinstance(A, jax.Array | eqx.Module) or not hasattr(A, "shape"):
        return False
    dtype = A.dtype if hasattr(A, "dtype") else np.asarray(A).dtype
    return isinstance(dtype, np.dtype) and dtype.kind in "iubf" and dtype not in (np.float32, np.float16)


def as_array(A: Any) -> Array:
    """Coerce a dense matrix into a real floating array."""
    if isinstance(A, np.ma.MaskedArray) and np.ma.getmaskarray(A).any():
        raise ValueError("A must have no masked entries: fill them in first")
    try:
        # Not by jnp.asarray, which compiles a program to copy an array of the host.
        array = jnp.asarray(A) if _is_of_jax(A) else jax.device_put(_native(A))
    except (TypeError, ValueError, NotImplementedError) as error:
        raise TypeError(
            f"A must be a dense array, a SciPy sparse matrix or LinearOperator, a BCOO matrix of JAX, a lineax "
            f"operator, an Operator, or a function with dimension=; found {type(A).__name__}"
        ) from error
    return _as_floating(array)


def _is_of_jax(A: Any) -> bool:
    return any(isinstance(leaf, jax.Array) for leaf in (A if isinstance(A, list | tuple) else [A]))


def _native(A: Any) -> np.ndarray:
    """Return an array in this machine's byte order, no longer than float64."""
    host = np.asarray(np.ma.getdata(A))
    if host.dtype.kind in "USOMm" or host.dtype.names:
        raise TypeError(f"found dtype {host.dtype}")
    wide = host.dtype.kind in "biu" or host.dtype == np.longdouble
    return host.astype(np.float64 if wide else host.dtype.newbyteorder("="), copy=False)


def _as_floating(A: Any) -> Any:
    _check_real(A.dtype)
    return A if jnp.issubdtype(A.dtype, jnp.floating) else A.astype(jnp.result_type(float))


def _is_bcoo(A: Any) -> bool:
    """Whether ``A`` is a BCOO matrix of JAX; refuse one with batch or dense dimensions."""
    if not _is_instance(A, "jax.experimental.sparse", "BCOO"):
        return False
    if A.n_batch or A.n_dense:
        raise ValueError(f"a BCOO matrix must be plain, found n_batch={A.n_batch} and n_dense={A.n_dense}")
    return True


def _is_instance(A: Any, module: str, name: str) -> bool:
    """Whether ``A`` is of a class of a module, which is not imported for it: then there would be no instance."""
    return module in sys.modules and isinstance(A, getattr(sys.modules[module], name))


def _is_lineax(A: Any) -> bool:
    return _is_instance(A, "lineax", "AbstractLinearOperator")


def _is_scipy(A: Any) -> bool:
    return _is_instance(A, "scipy.sparse.linalg", "LinearOperator")


def _check_real(dtype: Any) -> None:
    if jnp.issubdtype(dtype, jnp.complexfloating):
        raise TypeError(f"A must be real and symmetric, found dtype {dtype}")


def _check_square(shape: tuple[int, ...]) -> None:
    if len(shape) != 2 or shape[0] != shape[1]:
        raise ValueError(f"A must be square, found shape {tuple(shape)}")
    _check_nonempty("A", shape)


def _check_nonempty(name: str, shape: tuple[int, ...]) -> None:
    if 0 in shape:
        raise ValueError(f"{name} is empty: found shape {tuple(shape)}")

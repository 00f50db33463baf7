"""Whatever people have, as an operator."""

import sys
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse
from jaxtyping import Array

from thalweg import arguments
from thalweg.linalg.operators.base import Operator, ShiftedOperator, is_traced
from thalweg.linalg.operators.dense import BCOOOperator, DenseOperator
from thalweg.linalg.operators.function import FunctionOperator, LineaxOperator, SciPyOperator
from thalweg.linalg.operators.gram import GramOperator, SparseGramOperator, SquaredOperator
from thalweg.linalg.operators.sparse import SparseOperator


def as_operator(A: Any, dimension: int | None = None) -> Operator:
    """Coerce ``A`` into an :class:`Operator`.

    Dense arrays, SciPy sparse matrices and linear operators, JAX ``BCOO`` matrices, lineax operators, operators
    themselves, and plain functions ``vectors -> vectors`` together with a ``dimension`` are understood.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> as_operator(jnp.eye(3)).shape, as_operator(lambda v: 2.0 * v, 5).shape
    ((3, 3), (5, 5))
    """
    if isinstance(A, Operator):
        return A
    if scipy.sparse.issparse(A):
        _check_square(A.shape)
        return SparseOperator(_floating(A))
    if _is_bcoo(A):
        _check_square(A.shape)
        return BCOOOperator(as_array(A.data), A.indices, A.shape[0])
    if _is_instance(A, "lineax", "AbstractLinearOperator"):
        _check_square((A.out_size(), A.in_size()))
        for leaf in jax.tree.leaves(eqx.filter(A, eqx.is_inexact_array)):
            _check_real(leaf.dtype)
        return LineaxOperator(A)
    if _is_instance(A, "scipy.sparse.linalg", "LinearOperator"):
        _check_square(A.shape)
        _check_real(A.dtype)
        return SciPyOperator(A)
    if callable(A) and not hasattr(A, "shape"):
        if dimension is None:
            raise ValueError("A is a function: pass dimension=, the length of the vectors it multiplies")
        return FunctionOperator(A, dimension=dimension)
    array = as_array(A)
    _check_square(array.shape)
    return DenseOperator(array)


def check_dimension(operator: Operator, dimension: Any) -> None:
    """Refuse a dimension that is not the operator's."""
    if dimension is not None and arguments.whole("dimension", dimension) != operator.dimension:
        raise ValueError(f"dimension must be that of A, {operator.dimension}, or left out, found {dimension}")


def is_wide(A: Any) -> bool:
    """Whether ``A`` holds numbers of the host that float32 would cut short: NumPy's float64, whole numbers, lists."""
    if isinstance(A, list | tuple):
        return not _of_jax(A)
    if isinstance(A, jax.Array | eqx.Module) or not hasattr(A, "shape"):
        return False
    dtype = A.dtype if hasattr(A, "dtype") else np.asarray(A).dtype
    return isinstance(dtype, np.dtype) and dtype.kind in "iubf" and dtype not in (np.float32, np.float16)


def gram_operator(X: Any, smoothing: float = 0.0, dimension: int | None = None) -> Operator:
    """Return XᵀX + εI or XXᵀ + εI, whichever is smaller: its eigenvalues are the squared singular values of X plus ε.

    A symmetric operator given by products alone is squared, A² + εI.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> gram_operator(jnp.array([[3.0, 4.0]]), 0.5) @ jnp.ones(1)
    Array([25.5], dtype=float...)
    """
    epsilon = arguments.number("smoothing", smoothing, least=0)
    gram = _gram(X, dimension)
    check_dimension(gram, dimension)
    # What has no noise must not be taken for an operator that knows its own.
    return gram if not isinstance(epsilon, jax.core.Tracer) and epsilon == 0 else ShiftedOperator(gram, epsilon)


_MODERATE = 2.0**16


def unit_of(X: Any, smoothing: float) -> float:
    """A power of two of the size of a matrix whose entries are so large or small that powers of them are not safe."""
    entries = X.data if scipy.sparse.issparse(X) else X
    if is_traced(entries) or not isinstance(entries, np.ndarray | jax.Array) or entries.dtype.kind not in "fV":
        return 1.0
    largest = max(float(np.max(np.abs(np.asarray(entries, np.float64)), initial=0.0)), smoothing**0.5)
    if not 0 < largest < np.inf or 1 / _MODERATE < largest < _MODERATE:
        return 1.0
    return float(np.exp2(np.round(np.log2(largest))))


def _gram(X: Any, dimension: int | None) -> Operator:
    if scipy.sparse.issparse(X):
        coo = _floating(X).tocoo()
        return _sparse_gram(jnp.asarray(coo.data), (coo.row.astype(np.int32), coo.col.astype(np.int32)), X.shape)
    if _is_bcoo(X):
        return _sparse_gram(as_array(X.data), (X.indices[:, 0], X.indices[:, 1]), X.shape)
    foreign = _is_instance(X, "lineax", "AbstractLinearOperator") or _is_instance(
        X, "scipy.sparse.linalg", "LinearOperator"
    )
    if isinstance(X, Operator) or foreign or (callable(X) and not hasattr(X, "shape")):
        if len(set(getattr(X, "shape", ()))) == 2:
            raise ValueError(
                f"X is known by its products alone and must be symmetric, found shape {X.shape}: for its singular "
                "values take spectral_sum(jnp.sqrt, XᵀX, key)"
            )
        return SquaredOperator(as_operator(X, dimension))
    array = as_array(X)
    if array.ndim != 2:
        raise ValueError(f"X must be a matrix, found an array of shape {array.shape}")
    _check_nonempty(array.shape)
    return GramOperator(array)


def _sparse_gram(entries: Array, places: tuple[Any, Any], shape: tuple[int, int]) -> Operator:
    _check_nonempty(shape)
    rows, columns = (jnp.asarray(place) for place in (places if shape[0] >= shape[1] else places[::-1]))
    return SparseGramOperator(entries, rows, columns, max(shape), min(shape))


def as_array(A: Any) -> Array:
    """Coerce a dense matrix into a real floating array."""
    if isinstance(A, np.ma.MaskedArray) and np.ma.getmaskarray(A).any():
        raise ValueError("A must have no masked entries: fill them in first")
    try:
        array = jnp.asarray(A if _of_jax(A) else _of_host(A))
    except (TypeError, ValueError, NotImplementedError) as error:
        raise TypeError(
            f"A must be a dense array, a SciPy sparse matrix or LinearOperator, a BCOO matrix of JAX, a lineax "
            f"operator, an Operator, or a function with dimension=; found {type(A).__name__}"
        ) from error
    _check_real(array.dtype)
    return array if jnp.issubdtype(array.dtype, jnp.floating) else array.astype(jnp.result_type(float))


def _of_jax(A: Any) -> bool:
    return any(isinstance(leaf, jax.Array) for leaf in (A if isinstance(A, list | tuple) else [A]))


def _of_host(A: Any) -> np.ndarray:
    """The array in a form that JAX knows: of this machine's byte order, and no longer than float64."""
    host = np.asarray(np.ma.getdata(A))
    if host.dtype.kind in "USOMm" or host.dtype.names:
        raise TypeError(f"found dtype {host.dtype}")
    wide = host.dtype.kind in "biu" or host.dtype == np.longdouble
    return host.astype(np.float64 if wide else host.dtype.newbyteorder("="), copy=False)


def _floating(A: Any) -> Any:
    _check_real(A.dtype)
    return A if np.issubdtype(A.dtype, np.floating) else A.astype(float)


def _is_bcoo(A: Any) -> bool:
    """Whether ``A`` is a BCOO matrix of JAX; one with dimensions for batches or dense parts is refused."""
    if not _is_instance(A, "jax.experimental.sparse", "BCOO"):
        return False
    if A.n_batch or A.n_dense:
        raise ValueError(f"a BCOO matrix must be plain, found n_batch={A.n_batch} and n_dense={A.n_dense}")
    return True


def _is_instance(A: Any, module: str, name: str) -> bool:
    """Whether ``A`` is of a class of a module: one that nobody has imported has no instances, and stays unimported."""
    return module in sys.modules and isinstance(A, getattr(sys.modules[module], name))


def _check_real(dtype: Any) -> None:
    if jnp.issubdtype(dtype, jnp.complexfloating):
        raise TypeError(f"A must be real and symmetric, found dtype {dtype}")


def _check_square(shape: tuple[int, ...]) -> None:
    if len(shape) != 2 or shape[0] != shape[1]:
        raise ValueError(f"A must be square, found shape {tuple(shape)}")
    if shape[0] == 0:
        raise ValueError("A is empty: it must have at least one row")


def _check_nonempty(shape: tuple[int, ...]) -> None:
    if 0 in shape:
        raise ValueError(f"X is empty: found shape {tuple(shape)}")

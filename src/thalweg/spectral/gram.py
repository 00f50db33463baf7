"""Squares as operators: XᵀX + εI of a rectangular matrix X, and A² + εI of a symmetric operator."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import lineax as lx
import numpy as np
import scipy.sparse

from thalweg.spectral.operators import Operator, as_array, as_operator, is_bcoo


def gram_operator(X: Any, smoothing: float, dimension: int | None = None) -> Operator:
    """Return XᵀX + εI or XXᵀ + εI, whichever is smaller: its eigenvalues are the squared singular values of X plus ε.

    A symmetric operator given by products alone is squared, A² + εI.
    """
    epsilon = float(smoothing)
    if scipy.sparse.issparse(X):
        X = X.tocoo()
        if np.issubdtype(X.dtype, np.complexfloating):
            raise TypeError(f"X must be real, found dtype {X.dtype}")
        X = X.T.tocoo() if X.shape[1] > X.shape[0] else X
        X = X if np.issubdtype(X.dtype, np.floating) else X.astype(float)
        positions = (jnp.asarray(X.row, jnp.int32), jnp.asarray(X.col, jnp.int32))
        _check_nonempty(X.shape)
        return Operator(
            _SparseGram(X.shape[0], epsilon),
            jnp.asarray(X.data),
            dimension=X.shape[1],
            data=positions,
            kind="gram",
        )
    if is_bcoo(X):
        rows, columns = (X.indices[:, axis] for axis in ((0, 1) if X.shape[0] >= X.shape[1] else (1, 0)))
        _check_nonempty(X.shape)
        product = _SparseGram(max(X.shape), epsilon)
        return Operator(product, as_array(X.data), dimension=min(X.shape), data=(rows, columns), kind="gram")
    if isinstance(X, Operator | lx.AbstractLinearOperator) or (callable(X) and not hasattr(X, "shape")):
        inner = as_operator(X, dimension)
        data = () if inner.data is None else inner.data
        return Operator(
            _Squared(inner.multiply, epsilon), inner.theta, dimension=inner.dimension, data=data, kind="gram"
        )
    array = as_array(X)
    if array.ndim != 2:
        raise ValueError(f"X must be a matrix, found an array of shape {array.shape}")
    _check_nonempty(array.shape)
    tall = array.shape[0] >= array.shape[1]
    return Operator(_DenseGram(tall, epsilon), array, dimension=min(array.shape), data=(), kind="gram")


def _check_nonempty(shape: tuple[int, ...]) -> None:
    if 0 in shape:
        raise ValueError(f"X is empty: found shape {tuple(shape)}")


@dataclass(frozen=True)
class _DenseGram:
    """V ↦ XᵀXV + εV, or XXᵀV + εV if X is wide."""

    tall: bool
    smoothing: float

    def __call__(self, theta: Any, data: Any, block: Any) -> Any:
        first, second = (theta, theta.T) if self.tall else (theta.T, theta)
        return second @ (first @ block) + self.smoothing * block


@dataclass(frozen=True)
class _SparseGram:
    """V ↦ XᵀXV + εV for a sparse X with the given number of rows."""

    rows: int
    smoothing: float

    def __call__(self, theta: Any, data: Any, block: Any) -> Any:
        row, column = data
        inner = jnp.zeros((self.rows, block.shape[1]), block.dtype).at[row].add(theta[:, None] * block[column])
        return jnp.zeros_like(block).at[column].add(theta[:, None] * inner[row]) + self.smoothing * block


@dataclass(frozen=True)
class _Squared:
    """V ↦ A(AV) + εV."""

    multiply: Callable[..., Any]
    smoothing: float

    def __call__(self, theta: Any, data: Any, block: Any) -> Any:
        return self.multiply(theta, data, self.multiply(theta, data, block)) + self.smoothing * block

"""Stationary kernels on regular grids, whose products are fast Fourier transforms, and interpolated from them."""

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import scipy.fft
from jaxtyping import Array, Float, Int

from thalweg.arguments import numbers
from thalweg.linalg.operators.base import Operator

__all__ = ["InterpolatedOperator", "ToeplitzOperator"]


class ToeplitzOperator(Operator):
    """The symmetric matrix with entries c(|i − j|) between the nodes i and j of a regular grid.

    In one dimension it is a symmetric Toeplitz matrix. In more, c has an axis for each dimension; if c is the outer
    product of one-dimensional columns, the matrix is the Kronecker product of their Toeplitz matrices, and no such
    product is needed: any kernel k(x − y) that does not change when a coordinate of x − y changes its sign will do.

    Parameters
    ----------
    column
        c, the kernel between the first node and every node: an array of the shape of the grid.

    Examples
    --------
    >>> import jax, numpy as np
    >>> K = ToeplitzOperator(np.array([2.0, 1.0, 0.0]))
    >>> np.abs(jax.jit(ToeplitzOperator.to_dense)(K)).round(6)
    array([[2., 1., 0.],
           [1., 2., 1.],
           [0., 1., 2.]]...)
    """

    column: Float[Array, "*nodes"]
    has_columns: ClassVar[bool] = True

    def __init__(self, column: Any) -> None:
        column = np.asarray(column) if isinstance(column, list | tuple) else column
        self.column = numbers("column of ToeplitzOperator", column, ndim=3)
        if not self.column.ndim:
            raise ValueError(
                "column of ToeplitzOperator must have an axis for each dimension of the grid, found a number"
            )

    dimension = property(lambda self: int(np.prod(self.column.shape)))

    @property
    def _lengths(self) -> tuple[int, ...]:
        """The shape of a circulant matrix of which K is a corner, of lengths that are quickly transformed."""
        return tuple(scipy.fft.next_fast_len(2 * nodes - 1, real=True) for nodes in self.column.shape)

    def spectrum(self) -> Float[Array, "*frequencies"]:
        """Return the eigenvalues of the circulant matrix, half of them: the others are the same by symmetry."""
        around = self.column
        for axis, (nodes, length) in enumerate(zip(self.column.shape, self._lengths, strict=True)):
            index = np.arange(length)
            index = np.minimum(index, length - index)
            # Lags beyond the matrix may be anything; the last one keeps the spectrum smooth.
            around = jnp.take(around, jnp.asarray(np.minimum(index, nodes - 1)), axis=axis)
        return jnp.fft.rfftn(around).real

    def mv(self, block: Array) -> Array:
        """Multiply by the circulant matrix, and keep the corner."""
        shape, lengths = self.column.shape, self._lengths
        axes = tuple(range(1, len(shape) + 1))
        fields = block.T.reshape(-1, *shape)
        transformed = jnp.fft.rfftn(fields, lengths, axes)
        product = jnp.fft.irfftn(transformed * self.spectrum().astype(transformed.dtype)[None], lengths, axes)
        return product[(slice(None), *(slice(nodes) for nodes in shape))].reshape(-1, self.dimension).T

    def diagonal(self) -> Array:
        """Return c(0) for every node."""
        return jnp.broadcast_to(self.column.ravel()[0], (self.dimension,))

    def between(self, rows: Int[Array, " n"], columns: Int[Array, " k"]) -> Array:
        """Return c(|i − j|) for some nodes i and j."""
        left, right = (jnp.unravel_index(indices, self.column.shape) for indices in (rows, columns))
        return self.column[tuple(jnp.abs(i[:, None] - j[None]) for i, j in zip(left, right, strict=True))]

    def columns(self, indices: Int[Array, " k"]) -> Array:
        """Return c(|i − j|) for some nodes j."""
        return self.between(jnp.arange(self.dimension), indices)

    def bounds(self) -> tuple[float, float]:
        """Return the bounds of the circulant matrix of which K is a corner: eigenvalues interlace."""
        spectrum = jax.lax.stop_gradient(self.spectrum())
        slack = 8 * float(jnp.finfo(spectrum.dtype).eps) * float(jnp.max(jnp.abs(spectrum)))
        return float(jnp.min(spectrum)) - slack, float(jnp.max(spectrum)) + slack


class InterpolatedOperator(Operator):
    """W K Wᵀ, a kernel matrix interpolated from the nodes of a grid (Wilson and Nickisch, 2015).

    Parameters
    ----------
    interpolation
        W, with products ``mv`` and ``rmv`` and a ``norm_bound()`` of ‖W‖², as
        :meth:`thalweg.kernels.Grid.interpolation` makes it.
    operator
        K, a :class:`ToeplitzOperator` that is positive semi-definite, as a matrix of kernel values is.

    Examples
    --------
    >>> import jax, numpy as np
    >>> from thalweg.kernels import Gaussian, Grid
    >>> grid, points = Grid([0.0], [0.1], (11,)), np.array([[0.23], [0.71]])
    >>> column = np.asarray(Gaussian(0.5)(np.zeros((1, 1)), grid.offsets())).reshape(grid.shape)
    >>> A = InterpolatedOperator(grid.interpolation(points), ToeplitzOperator(column))
    >>> np.allclose(jax.jit(InterpolatedOperator.to_dense)(A), Gaussian(0.5)(points), atol=1e-3)
    True
    """

    interpolation: Any
    operator: ToeplitzOperator

    dimension = property(lambda self: self.interpolation.shape[0])

    def mv(self, block: Array) -> Array:
        """W(K(WᵀV))."""
        return self.interpolation.mv(self.operator.mv(self.interpolation.rmv(block)))

    def diagonal(self) -> Array:
        """Return wᵀKw for each row w of W, from the entries of K among its nodes."""
        return jax.lax.map(self._entry, jnp.arange(self.dimension))

    def _entry(self, row: Array) -> Array:
        indices, weights = self.interpolation.indices[row], self.interpolation.weights[row].astype(self.dtype)
        return weights @ self.operator.between(indices, indices) @ weights

    def bounds(self) -> tuple[float, float]:
        """Return 0, and ‖W‖² times the bound of K."""
        norm = float(jax.lax.stop_gradient(self.interpolation.norm_bound()))
        return 0.0, norm * max(self.operator.bounds()[1], 0.0)

"""Kernel matrices: stored if they fit, else computed anew for each product, a tile of rows at a time."""

from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from thalweg import trees
from thalweg.arguments import whole
from thalweg.linalg.operators.base import Operator, ShiftedOperator
from thalweg.linalg.operators.function import check_closed

__all__ = ["KernelOperator", "kernel_operator"]


class KernelOperator(Operator):
    """K, the matrix of k(x_i, x_j); :class:`ShiftedOperator` adds noise to it.

    Parameters
    ----------
    kernel
        ``kernel(X, Y) -> K``, the matrix of kernel values between two sets of points: a kernel of
        :mod:`thalweg.kernels`, any other module, or a function.
    points
        The n points, one per row.
    rows
        How many rows of the matrix exist at a time, where it is not stored.
    store_bytes
        Store the matrix if it takes at most so many bytes: products are then several times faster.

    Examples
    --------
    >>> import numpy as np
    >>> from thalweg.kernels import Gaussian
    >>> K = KernelOperator(Gaussian(lengthscale=1.0), np.array([[0.0], [100.0]]))
    >>> ShiftedOperator(K, 0.5) @ np.ones(2)
    Array([1.5, 1.5], dtype=float...)
    """

    kernel: Callable[..., Any]
    points: Float[Array, "n p"]
    stored: Float[Array, "n n"] | None
    rows: int = eqx.field(static=True)
    materialised: ClassVar[bool] = True
    has_columns: ClassVar[bool] = True

    def __init__(
        self, kernel: Callable[..., Any], points: Float[Array, "n p"], *, rows: int = 1024, store_bytes: int = 0
    ) -> None:
        if getattr(kernel, "stationary", False):
            (points,) = trees.near_the_origin(points)
        points = jnp.asarray(points)
        if points.ndim != 2:
            raise ValueError(f"points must have one point per row, found an array of shape {points.shape}")
        kernel = kernel if isinstance(kernel, eqx.Module) else ParametricKernel(kernel, ())
        self.kernel, self.points = _at_least_float32(kernel), _at_least_float32(points)
        self.rows, self.stored = whole("rows", rows), None
        check_closed(self)
        if self.points.dtype.itemsize * len(points) ** 2 <= whole("store_bytes", store_bytes, least=0):
            self.stored = self.kernel(self.points, self.points)

    dimension = property(lambda self: len(self.points))
    calls_library = property(lambda self: self.stored is not None)

    def mv(self, block: Array) -> Array:
        """KV, a tile of rows at a time."""
        points, count = self.points, self.points.shape[0]
        if self.stored is not None or count <= self.rows:
            return self.to_dense() @ block
        tiles = -(-count // self.rows)
        padded = jnp.pad(points, ((0, tiles * self.rows - count), (0, 0)), mode="edge")
        multiply = jax.checkpoint(lambda x: self.kernel(x, points) @ block)
        products = jax.lax.map(multiply, padded.reshape(tiles, self.rows, -1))
        return products.reshape(tiles * self.rows, -1)[:count]

    def bounds(self) -> tuple[float, float]:
        """Return zero, less rounding, and the trace, for a kernel that is known to be positive semi-definite."""
        if not getattr(self.kernel, "stationary", False):
            return super().bounds()
        trace = float(np.sum(np.asarray(jax.lax.stop_gradient(self.diagonal()))))
        return -float(jnp.finfo(self.dtype).eps) * trace, trace * (1 + 1e-6)

    def to_dense(self) -> Array:
        """Return the matrix."""
        return self.kernel(self.points, self.points) if self.stored is None else self.stored

    @eqx.filter_jit  # operations one by one would make a dozen programs
    def diagonal(self) -> Array:
        """Return k(x_i, x_i)."""
        return jax.vmap(lambda x: self.kernel(x[None], x[None])[0, 0])(self.points)

    def columns(self, indices: Array) -> Array:
        """Return k(x_i, x_j) for the chosen j."""
        return self.kernel(self.points, self.points[indices])


class ParametricKernel(eqx.Module):
    """A function of parameters and two sets of points, as a kernel: ``function(*parameters, X, Y)``."""

    function: Callable[..., Any] = eqx.field(static=True)
    parameters: tuple[PyTree[Array], ...]

    def __call__(self, x: Array, y: Array) -> Array:
        """Return the matrix of kernel values."""
        return self.function(*self.parameters, x, y)


def kernel_operator(
    kernel: Callable[..., Any],
    theta: PyTree[Array],
    points: Float[Array, "n p"],
    noise: Callable[[Any], Any] | float,
    **options: int,
) -> ShiftedOperator:
    """Return K(θ) + σ²(θ) I for a function of parameters.

    Parameters
    ----------
    kernel
        ``kernel(theta, X, Y) -> K``, the matrix of kernel values between two sets of points.
    theta
        Kernel parameters.
    points
        The n points, one per row.
    noise
        σ²: a number, or a function of θ.
    **options
        ``rows`` and ``store_bytes`` of :class:`KernelOperator`.

    Examples
    --------
    >>> import jax, jax.numpy as jnp
    >>> rbf = lambda scale, X, Y: jnp.exp(-0.5 * jnp.sum((X[:, None] - Y[None]) ** 2, -1) / scale**2)
    >>> A = kernel_operator(rbf, jnp.array(1.0), jnp.array([[0.0], [100.0]]), 0.5)
    >>> A @ jnp.ones(2)
    Array([1.5, 1.5], dtype=float...)
    """
    theta = jax.tree.map(jnp.asarray, theta)
    inner = KernelOperator(ParametricKernel(kernel, (theta,)), points, **options)
    return ShiftedOperator(inner, noise(theta) if callable(noise) else noise)


def _at_least_float32(tree: Any) -> Any:
    """Widen arrays of half precision: kernels of them are exact to float32, not to half."""
    half = lambda leaf: eqx.is_inexact_array(leaf) and leaf.dtype.itemsize < 4
    return jax.tree.map(lambda leaf: leaf.astype(jnp.float32) if half(leaf) else leaf, tree)

"""Kernel matrices, a strip of rows at a time: the n × n matrix never exists."""

from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from thalweg import trees
from thalweg.arguments import whole
from thalweg.linalg.operators.base import Operator, ShiftedOperator, at_least_float32
from thalweg.linalg.operators.function import check_closed


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
        How many rows of the matrix exist at a time.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from thalweg.kernels import Gaussian
    >>> K = KernelOperator(Gaussian(lengthscale=1.0), jnp.array([[0.0], [100.0]]))
    >>> ShiftedOperator(K, 0.5) @ jnp.ones(2)
    Array([1.5, 1.5], dtype=float...)
    """

    kernel: Callable[..., Any]
    points: Float[Array, "n p"]
    rows: int = eqx.field(static=True)
    materialised: ClassVar[bool] = True
    has_columns: ClassVar[bool] = True

    def __init__(self, kernel: Callable[..., Any], points: Float[Array, "n p"], *, rows: int = 1024) -> None:
        if getattr(kernel, "stationary", False):
            (points,) = trees.near_the_origin(points)
        points = jnp.asarray(points)
        if points.ndim != 2:
            raise ValueError(f"points must have one point per row, found an array of shape {points.shape}")
        kernel = kernel if isinstance(kernel, eqx.Module) else Parametric(kernel, ())
        self.kernel, self.points, self.rows = at_least_float32(kernel), at_least_float32(points), whole("rows", rows)
        check_closed(self)

    @property
    def dimension(self) -> int:
        """The number of points."""
        return self.points.shape[0]

    def mv(self, block: Array) -> Array:
        """KV, a strip of rows at a time."""
        points, count = self.points, self.points.shape[0]
        if count <= self.rows:
            return self.kernel(points, points) @ block
        strips = -(-count // self.rows)
        padded = jnp.pad(points, ((0, strips * self.rows - count), (0, 0)), mode="edge")
        strip = jax.checkpoint(lambda x: self.kernel(x, points) @ block)
        products = jax.lax.map(strip, padded.reshape(strips, self.rows, -1))
        return products.reshape(strips * self.rows, -1)[:count]

    def bounds(self) -> tuple[float, float]:
        """Zero, less rounding, and the trace, for a kernel that is known to be positive semi-definite."""
        if not getattr(self.kernel, "stationary", False):
            return super().bounds()
        trace = float(jnp.sum(jax.lax.stop_gradient(self.diagonal())))
        return -float(jnp.finfo(self.dtype).eps) * trace, trace * (1 + 1e-6)

    def to_dense(self) -> Array:
        """The matrix."""
        return self.kernel(self.points, self.points)

    def diagonal(self) -> Array:
        """k(x_i, x_i)."""
        return jax.vmap(lambda x: self.kernel(x[None], x[None])[0, 0])(self.points)

    def columns(self, indices: Array) -> Array:
        """k(x_i, x_j) for the chosen j."""
        return self.kernel(self.points, self.points[indices])


class Parametric(eqx.Module):
    """A function of parameters and two sets of points, as a kernel: ``function(*parameters, X, Y)``."""

    function: Callable[..., Any] = eqx.field(static=True)
    parameters: tuple[PyTree[Array], ...]

    def __call__(self, x: Array, y: Array) -> Array:
        """The matrix of kernel values."""
        return self.function(*self.parameters, x, y)


def kernel_operator(
    kernel: Callable[..., Any],
    theta: PyTree[Array],
    points: Float[Array, "n p"],
    noise: Callable[[Any], Any] | float,
    *,
    rows: int = 1024,
) -> ShiftedOperator:
    """Return K(θ) + σ²(θ) I for a function of parameters, never forming the n × n matrix.

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
    theta = jax.tree.map(jnp.asarray, theta)
    inner = KernelOperator(Parametric(kernel, (theta,)), points, rows=rows)
    return ShiftedOperator(inner, noise(theta) if callable(noise) else noise)

"""Distances between the rows of two matrices, in n·m memory: by one product, or feature by feature."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

# Features summed in one pass over the n·m matrix: the pass is bound by memory, not by arithmetic.
_FEATURES_AT_ONCE = 4


def product(x: Float[Array, "n d"], y: Float[Array, "m d"]) -> Float[Array, "n m"]:
    """x yᵀ in the precision of both."""
    return jnp.matmul(x, y.T, precision="highest")


def product_in_halves(x: Float[Array, "n d"], y: Float[Array, "m d"]) -> Float[Array, "n m"]:
    """x yᵀ in float32 from the leading and the trailing digits of either, up to 2⁻²²·‖x_i‖‖y_j‖.

    A GPU takes such halves on its tensor cores: three times the multiplications, and sooner for many features.
    Derivatives have the precision of one half.

    Examples
    --------
    >>> x = jnp.array([[1.0, 1 + 2**-20]], dtype="float32")
    >>> float(jax.jit(product_in_halves)(x, x)[0, 0] - 2) * 2**19
    1.0
    """
    leading = lambda rows: jax.lax.reduce_precision(rows, exponent_bits=8, mantissa_bits=10)
    (x, more), (y, rest) = ((leading(rows), rows - leading(rows)) for rows in (x, y))
    return jnp.matmul(jnp.hstack([x, x, more]), jnp.hstack([y, rest, y]).T, precision="default")


def squared_distances(
    x: Float[Array, "n d"],
    y: Float[Array, "m d"] | None,
    lengthscale: Float[Array, "*d"],
    by: Callable[[Array, Array], Array] = product,
) -> Float[Array, "n m"]:
    """‖(x_i − y_j)/lengthscale‖², never below 0; no ``y`` means ``x`` again: exactly symmetric, and 0 on the diagonal.

    Few features are summed by differences. More of them go through one product of matrices, as ‖x_i‖² + ‖y_j‖² −
    2·x_iᵀy_j of the centred and scaled rows, whose absolute error is the rounding of ‖x_i‖² + ‖y_j‖².

    Examples
    --------
    >>> squared_distances(jnp.array([[9.0], [10.0], [11.0]]), None, jnp.array(1.0))
    Array([[0., 1., 4.],
           [1., 0., 1.],
           [4., 1., 0.]], dtype=float...)
    """
    if x.shape[1] <= _FEATURES_AT_ONCE:
        return sum_over_features(jnp.square, x, y, lengthscale)
    # The mean of the rows, by a sum near the first, since that of large numbers loses digits. Distances do not depend
    # on it, so no derivative passes through it.
    rows = x if y is None else y
    origin = jax.lax.stop_gradient(rows[:1] + jnp.mean(rows - rows[:1], axis=0, keepdims=True))
    # Centred before the division, which would round off what differs behind a large offset.
    scaled = lambda rows: (rows - origin) / jnp.broadcast_to(lengthscale, rows.shape)
    x = scaled(x)
    squares = jnp.sum(x * x, axis=1)
    if y is None:
        products = by(x, x)
        # Sums of what is symmetric, and no product: compilers fuse 2·xᵀy with one side of a sum.
        found = _not_negative(squares[:, None] + squares[None, :] - (products + products.T))
        return jnp.where(jnp.eye(len(x), dtype=bool), 0, found)
    y = scaled(y)
    return _not_negative(squares[:, None] + jnp.sum(y * y, axis=1)[None, :] - 2 * by(x, y))


def _not_negative(found: Array) -> Array:
    """Raise to 0 what rounding took below it, and leave the derivatives as they are."""
    return found + jax.lax.stop_gradient(jnp.maximum(found, 0) - found)


def sum_over_features(
    term: Callable[[Array], Array],
    x: Float[Array, "n d"],
    y: Float[Array, "m d"] | None,
    lengthscale: Float[Array, "*d"],
) -> Float[Array, "n m"]:
    """Σ_k term((x_ik − y_jk)/lengthscale_k) by differences, so that nothing cancels.

    No ``y`` means ``x`` again: exactly symmetric if the term is even. The derivative, too, needs n·m memory.

    Examples
    --------
    >>> sum_over_features(jnp.abs, jnp.array([[0.0, 1.0]]), jnp.array([[2.0, -1.0], [0.0, 1.0]]), jnp.array(2.0))
    Array([[2., 0.]], dtype=float...)
    """
    other = x if y is None else y
    # Differences are computed anew in the derivative: kept, they would take n·m·d. They come before the division, for
    # of two quotients that are rounded apart, |·| would give equal points a slope.
    terms = jax.checkpoint(lambda a, b, length: term((a[:, None] - b[None, :]) / length))
    add = lambda total, columns: (total + terms(*columns), None)
    columns = x.T, other.T, jnp.broadcast_to(lengthscale, x.shape[1:])
    start = jnp.zeros((len(x), len(other)), x.dtype)
    return jax.lax.scan(add, start, columns, unroll=min(_FEATURES_AT_ONCE, x.shape[1]))[0]

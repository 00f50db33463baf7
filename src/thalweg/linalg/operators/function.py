"""Operators given by products: functions, and SciPy's ``LinearOperator``."""

from collections.abc import Callable
from functools import partial
from operator import attrgetter
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from thalweg.arguments import whole
from thalweg.linalg.operators.base import Operator, is_traced, working_dtype

__all__ = ["FunctionOperator"]


class FunctionOperator(Operator):
    """A symmetric operator A(θ) given by a function.

    Parameters
    ----------
    function
        ``function(*arguments, vectors) -> vectors``, linear in ``vectors``, an array with one vector per column.
    *arguments
        What else the function needs: any pytrees of arrays, which gradients can reach. Pass arrays here rather than
        closing over them: they are then arguments of compiled programs and not constants in them.
    dimension
        The number of rows.

    Examples
    --------
    >>> import jax, numpy as np
    >>> A = FunctionOperator(lambda theta, v: theta * v, np.full((3, 1), 2.0), dimension=3)
    >>> A @ np.ones(3)
    Array([2., 2., 2.], dtype=float...)
    """

    function: Callable[..., Any] = eqx.field(static=True)
    arguments: tuple[PyTree[Array], ...]
    size: int = eqx.field(static=True)

    def __init__(self, function: Callable[..., Any], *arguments: PyTree[Array], dimension: int) -> None:
        if not callable(function):
            raise TypeError(f"function must be callable as (*arguments, vectors), found {function!r}")
        self.function = function
        self.arguments = jax.tree.map(jnp.asarray, arguments)
        self.size = whole("dimension", dimension)
        check_closed(self)

    dimension = property(attrgetter("size"))

    def mv(self, block: Array) -> Array:
        """Call the function."""
        return self.function(*self.arguments, block)


class SciPyOperator(Operator):
    """A ``LinearOperator`` of SciPy: products are made by SciPy on the host, also from compiled code.

    It cannot be differentiated, and every product waits for Python: right for expensive products.

    Examples
    --------
    >>> import numpy as np, scipy.sparse.linalg
    >>> SciPyOperator(scipy.sparse.linalg.aslinearoperator(2.0 * np.eye(2))) @ np.ones(2)
    Array([2., 2.], dtype=float...)
    """

    operator: Any = eqx.field(static=True)

    dimension = property(lambda self: self.operator.shape[0])

    @property
    def dtype(self) -> np.dtype:
        """That of SciPy's operator, if it is a floating one."""
        return working_dtype(self.operator.dtype)

    def mv(self, block: Array) -> Array:
        """Multiply on the host."""
        return _on_host(self.operator.matmat, block)


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _on_host(product: Callable[[np.ndarray], Any], block: Array) -> Array:
    # JAX may call from a thread that knows nothing of ``enable_x64`` and would cut float64 to float32: bits pass whole.
    bits = jax.lax.bitcast_convert_type(block, jnp.uint32)

    def of_bits(given: Array) -> np.ndarray:
        result = product(np.asarray(given).view(block.dtype).reshape(block.shape))
        return np.ascontiguousarray(result, block.dtype).view(np.uint32).reshape(bits.shape)

    result = jax.pure_callback(of_bits, jax.ShapeDtypeStruct(bits.shape, bits.dtype), bits, vmap_method="sequential")
    return jax.lax.bitcast_convert_type(result, block.dtype)


@_on_host.defjvp
def _refuse(product: Callable[[np.ndarray], Any], primals: tuple, tangents: tuple) -> tuple:
    raise TypeError(
        "a LinearOperator of SciPy cannot be differentiated: its products are made on the host. Write it as "
        "FunctionOperator(function, *arguments, dimension=...) in jax.numpy"
    )


def check_closed(operator: Operator) -> None:
    """Refuse a function that fails, or that closes over a traced value, which would count as a constant."""
    arrays, rest = eqx.partition(operator, eqx.is_array)
    block = jax.ShapeDtypeStruct((operator.dimension, 2), operator.dtype)
    try:
        constants = jax.make_jaxpr(lambda arrays, block: eqx.combine(arrays, rest).mv(block))(arrays, block).consts
    except jax.errors.TracerArrayConversionError as error:
        raise TypeError(
            "A must be a function written in jax.numpy; one of NumPy's arrays goes in as a LinearOperator of SciPy"
        ) from error
    except (TypeError, ValueError) as error:
        raise ValueError(f"A cannot multiply a block of shape {block.shape}, one vector a column: {error}") from error
    if is_traced(constants):
        raise TypeError(
            "A is a function that closes over a value being traced by grad, jit or vmap: pass that value as an "
            "argument, FunctionOperator(lambda theta, vectors: ..., theta, dimension=...)"
        )

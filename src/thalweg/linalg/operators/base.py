"""What every operator knows of itself.

An operator is a module: its arrays are leaves, so that they are arguments of compiled programs and not constants in
them, and any of them may be differentiated. Callers ask an operator for its products and, where that helps, for its
diagonal, its columns, bounds of its spectrum or its eigenvalues; nobody asks what kind of operator it is.
"""

from abc import abstractmethod
from collections.abc import Callable
from operator import attrgetter
from typing import Any, ClassVar, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from thalweg.compiling import host_jit

__all__ = ["Operator", "ShiftedOperator"]

Tree = TypeVar("Tree")

SMALL_ROWS = 256
"""Rows up to which loops over elements take microseconds: to compile them well would add 0.7 s to a first estimate and
take a few milliseconds from each. At twice as many it would pay after fifty estimates."""

FUSED_ROWS = 2**16
"""Rows from which a block of vectors exceeds the cache, so that fused loops earn their compile time (1 s); at twice as
many, repeated estimates of matrices in between would take a seventh longer."""


class Operator(eqx.Module):
    """A symmetric operator A, known by its products with blocks of vectors.

    A subclass defines its ``dimension`` and its products, :meth:`mv`. It may define more: its :meth:`diagonal`, its
    :meth:`columns`, :meth:`bounds` of its spectrum. Its arrays are fields, and gradients reach every one of them.

    Examples
    --------
    >>> import numpy as np
    >>> class Scaled(Operator):
    ...     scales: jax.Array
    ...
    ...     @property
    ...     def dimension(self):
    ...         return self.scales.size
    ...
    ...     def mv(self, block):
    ...         return self.scales[:, None] * block
    >>> Scaled(np.array([1.0, 2.0])) @ np.ones(2)
    Array([1., 2.], dtype=float...)
    """

    materialised: ClassVar[bool] = False
    """Whether all entries can be computed without products, as a factorisation needs them."""

    calls_library: ClassVar[bool] = False
    """Whether products are library calls, as fast in a quickly compiled program."""

    has_columns: ClassVar[bool] = False
    """Whether a column costs less than a product."""

    stride: ClassVar[int] = 1
    """Steps of a recurrence per turn of its loop. With two the newer vector overwrites the older one; with one the
    compiler copies a block in each step, which counts where a product is as cheap as a copy."""

    column_group: ClassVar[int | None] = None
    """How many columns are multiplied at a time; None: all of them."""

    @property
    @abstractmethod
    def dimension(self) -> int:
        """The number of rows d."""

    @abstractmethod
    def mv(self, block: Float[Array, "d m"]) -> Float[Array, "d m"]:
        """Multiply a block with one vector per column."""

    def diagonal(self) -> Float[Array, " d"]:
        """Return the diagonal of A."""
        raise NotImplementedError(
            f"{type(self).__name__} knows its products only, not its diagonal: give it a method diagonal(), or use "
            "what needs products only (of the preconditioners, Nystrom())"
        )

    def columns(self, indices: Int[Array, " k"]) -> Float[Array, "d k"]:
        """Return columns of A: products with unit vectors, unless an operator knows better."""
        rows = jnp.arange(self.dimension, dtype=indices.dtype)
        return self.mv((rows[:, None] == indices[None, :]).astype(self.dtype))

    def bounds(self) -> tuple[float, float]:
        """Return proven bounds of the spectrum, (−∞, ∞) if there are none."""
        return -np.inf, np.inf

    def split(self) -> "tuple[Operator, Array | None]":
        """Return K and σ² of A = K + σ²I if A is known in that form, else A and None."""
        return self, None

    @property
    def symmetric_factor(self) -> "Operator":
        """The operator that must be symmetric too: B, where A is B² (or B² + σ²I), else A."""
        return self

    @property
    def shape(self) -> tuple[int, int]:
        """(d, d)."""
        return self.dimension, self.dimension

    @property
    def dtype(self) -> np.dtype:
        """The floating dtype of products."""
        return working_dtype(*(leaf.dtype for leaf in jax.tree.leaves(self) if eqx.is_inexact_array(leaf)))

    def __matmul__(self, vectors: Float[Array, " d *m"]) -> Float[Array, " d *m"]:
        """Multiply one vector, or a block with one vector per column."""
        vectors = jnp.asarray(vectors)
        if vectors.ndim not in (1, 2) or len(vectors) != self.dimension:
            raise ValueError(f"vectors must have {self.dimension} rows, found shape {vectors.shape}")
        return self.mv(vectors[:, None])[:, 0] if vectors.ndim == 1 else self.mv(vectors)

    def __add__(self, other: Any) -> "Operator":
        """Return the sum of two operators of the same shape."""
        return SumOperator((self, other)) if isinstance(other, Operator) else NotImplemented

    def to_dense(self) -> Float[Array, "d d"]:
        """Return all d² entries, by a product with the identity."""
        return self.mv(jnp.eye(self.dimension, dtype=self.dtype))

    def entries(self, xp: Any = np) -> Any:
        """Return all d² entries: by NumPy in float64 and checked for symmetry, or by JAX as they are traced."""
        if xp is not np:
            return self.to_dense()
        dense = self._entries_on_host()
        block = np.random.default_rng(0).standard_normal((self.dimension, 4))
        with np.errstate(invalid="ignore", over="ignore"):
            product = dense @ block
        check_products(block, product, self.dtype)
        return dense

    def _entries_on_host(self) -> np.ndarray:
        if self.materialised:
            return np.asarray(self.to_dense(), np.float64)
        # A few columns at a time: what a product needs in between may be much larger than A.
        size, width, multiply = self.dimension, 64, self.compile(type(self).mv)
        units = (np.eye(size, width, -start, dtype=self.dtype) for start in range(0, size, width))
        return np.concatenate([np.asarray(multiply(self, unit), np.float64) for unit in units], axis=1)[:, :size]

    def eigenvalues(self, xp: Any = np) -> tuple[Any, Any]:
        """Return all eigenvalues, and how far rounding is expected to have moved each.

        By NumPy in float64, of an operator whose arrays are known; or by JAX, to be traced and differentiated.
        """
        values = xp.linalg.eigvalsh(self.entries(xp))
        return values, xp.full_like(values, self.rounding * xp.max(xp.abs(values)))

    @property
    def rounding(self) -> float:
        """The relative rounding error of an entry."""
        return float(jnp.finfo(self.dtype).eps)

    def compile(self, function: Callable[..., Any], repeated: bool = False) -> Callable[..., Any]:
        """Compile a function of this operator for calls from the host: quickly, and fused if it is worth it.

        ``repeated`` says that the program runs long, or often.
        """
        loops = not self.calls_library and self.dimension > SMALL_ROWS
        return host_jit(function, loops=loops, fused=loops and repeated and self.dimension >= FUSED_ROWS)


def inherit(trait: str) -> Any:
    """Return a property that is the same property of the field ``operator``."""
    return property(attrgetter(f"operator.{trait}"))


class SumOperator(Operator):
    """A + B + …

    Examples
    --------
    >>> import numpy as np
    >>> from thalweg.linalg.operators import as_operator
    >>> total = as_operator(np.eye(2)) + as_operator(2.0 * np.eye(2))
    >>> total @ np.ones(2), total.diagonal()
    (Array([3., 3.], dtype=float...), Array([3., 3.], dtype=float...))
    """

    terms: tuple[Operator, ...]

    def __check_init__(self) -> None:
        shapes = {term.shape for term in self.terms}
        if len(shapes) != 1:
            raise ValueError(f"terms of SumOperator must have one shape, found {sorted(shapes)}")

    def _total(self, method: str, *arguments: Any) -> Any:
        return sum(getattr(term, method)(*arguments) for term in self.terms)

    dimension = property(lambda self: self.terms[0].dimension)
    materialised = property(lambda self: all(term.materialised for term in self.terms))

    def to_dense(self) -> Array:
        """Add up entries."""
        return self._total("to_dense")

    def mv(self, block: Array) -> Array:
        """Add up products."""
        return self._total("mv", block)

    def diagonal(self) -> Array:
        """Add up diagonals."""
        return self._total("diagonal")

    def columns(self, indices: Array) -> Array:
        """Add up columns."""
        return self._total("columns", indices)

    def bounds(self) -> tuple[float, float]:
        """Add up bounds."""
        lower, upper = zip(*(term.bounds() for term in self.terms), strict=True)
        return sum(lower), sum(upper)


class ShiftedOperator(Operator):
    """K + σ²I.

    Parameters
    ----------
    operator
        K.
    noise
        σ², a number or a scalar array.

    Examples
    --------
    >>> import numpy as np
    >>> from thalweg.linalg.operators import as_operator
    >>> A = ShiftedOperator(as_operator(np.ones((2, 2))), 0.5)
    >>> A.diagonal(), A.bounds()
    (Array([1.5, 1.5], dtype=float...), (0.49..., 2.50...))
    """

    operator: Operator
    noise: Float[Array, ""]

    stride, column_group, materialised, has_columns, calls_library, dimension, symmetric_factor = map(
        inherit,
        ("stride", "column_group", "materialised", "has_columns", "calls_library", "dimension", "symmetric_factor"),
    )

    def __init__(self, operator: Operator, noise: Any) -> None:
        self.operator = operator
        self.noise = jnp.asarray(noise, operator.dtype)
        if self.noise.ndim:
            raise ValueError(f"noise of ShiftedOperator must be one number, found an array of shape {self.noise.shape}")

    def to_dense(self) -> Array:
        """Add σ² to the diagonal of K."""
        dense = self.operator.to_dense()
        return dense + self.noise.astype(dense.dtype) * jnp.eye(self.dimension, dtype=dense.dtype)

    def _entries_on_host(self) -> np.ndarray:
        dense = np.array(self.operator._entries_on_host())
        dense[np.diag_indices(self.dimension)] += float(self.noise)
        return dense

    def eigenvalues(self, xp: Any = np) -> tuple[Any, Any]:
        """Add σ² to the eigenvalues of K."""
        inner, moved = self.operator.eigenvalues(xp)
        values = inner + (float(self.noise) if xp is np else self.noise)
        return values, moved + self.rounding * xp.abs(values)

    def mv(self, block: Array) -> Array:
        """KV + σ²V."""
        return self.operator.mv(block) + self.noise.astype(block.dtype) * block

    def diagonal(self) -> Array:
        """Add σ² to the diagonal of K."""
        return self.operator.diagonal() + self.noise

    def columns(self, indices: Array) -> Array:
        """Add σ² where columns of K meet the diagonal."""
        return self.operator.columns(indices).at[indices, jnp.arange(indices.size)].add(self.noise)

    def bounds(self) -> tuple[float, float]:
        """Add σ² to the bounds of K."""
        lower, upper = self.operator.bounds()
        return lower + float(self.noise), upper + float(self.noise)

    def split(self) -> tuple[Operator, Array | None]:
        """Return K and σ²."""
        return self.operator, self.noise


def square(values: Any, moved: Any, xp: Any) -> tuple[Any, Any]:
    """Return the squares of eigenvalues or singular values in ascending order, and how far rounding has moved them."""
    squares, moved = values**2, (2 * xp.abs(values) + moved) * moved
    order = xp.argsort(squares)
    return squares[order], moved[order]


def frozen(operator: Tree) -> Tree:
    """Return the same operator, or any module, with its arrays held constant under differentiation."""
    arrays, rest = eqx.partition(operator, eqx.is_array)
    return eqx.combine(jax.lax.stop_gradient(arrays), rest)


def is_concrete(operator: Operator) -> bool:
    """Whether every array is known now (it may be differentiated), so that a plan can be made."""
    return not is_traced(frozen(operator))


def is_traced(tree: Any) -> bool:
    """Whether an array in the tree is traced."""
    return any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(tree))


def gershgorin(diagonal: Array | np.ndarray, radius: Array | np.ndarray) -> tuple[float, float]:
    """Bound a spectrum by discs of the given centres and radii, with room for rounding."""
    # On the host: nothing to compile.
    centre, reach = map(np.asarray, jax.lax.stop_gradient((diagonal, radius)))
    slack = 4 * float(jnp.finfo(centre.dtype).eps) * float(np.max(np.abs(centre) + reach))
    return float(np.min(centre - reach)) - slack, float(np.max(centre + reach)) + slack


def working_dtype(*dtypes: Any) -> np.dtype:
    """Return the widest floating dtype, at least float32, since a recurrence in half precision is all rounding."""
    floating = [jnp.dtype(dtype) for dtype in dtypes if jnp.issubdtype(dtype, jnp.floating)]
    widest = max(floating, key=lambda dtype: dtype.itemsize, default=jnp.result_type(float))
    return jnp.result_type(widest if widest.itemsize >= 4 else jnp.float32)


def in_float64(operator: Operator) -> Operator:
    """Return the same operator in float64; to be called within ``jax.enable_x64``."""
    return jax.tree.map(lambda leaf: leaf.astype(np.float64) if eqx.is_inexact_array(leaf) else leaf, operator)


def check_products(block: np.ndarray, product: Any, dtype: Any) -> None:
    """Refuse products of A with a block of four that change its shape, are not finite, or show that A ≠ Aᵀ."""
    if product.shape != block.shape:
        raise ValueError(f"A must map a block of shape {block.shape} to the same shape, found {product.shape}")
    product = np.asarray(product, np.float64)
    scale = np.max(np.abs(product)) or 1.0
    if not np.isfinite(scale):
        raise ValueError("A holds NaN or infinity: a product with a finite vector is not finite")
    (u, v), (left, right) = np.split(block, 2, axis=1), np.split(product / scale, 2, axis=1)
    norms = np.linalg.norm(u, axis=0) * np.linalg.norm(right, axis=0)
    gap = np.max(np.abs(np.sum(v * left, axis=0) - np.sum(u * right, axis=0)) / np.where(norms > 0, norms, 1.0))
    if gap > 1e3 * float(jnp.finfo(dtype).eps):
        raise ValueError(
            f"A must be symmetric: uᵀAv and vᵀAu differ by {gap:.2g} of ‖u‖‖Av‖ for random u, v. "
            "Symmetrise it, (A + Aᵀ)/2, or for singular values use nuclear_norm or schatten_norm of a dense or sparse "
            "matrix, or spectral_sum(jnp.sqrt, AᵀA, key)."
        )

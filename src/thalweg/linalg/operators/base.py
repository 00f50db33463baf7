"""What every operator knows of itself.

An operator is a module: its arrays are leaves, so that they are arguments of what is compiled and not constants in it,
and any of them that is differentiated is a parameter. The rest of the floor asks an operator for its products and,
where that helps, for its diagonal, its columns and bounds of its spectrum; nobody asks what kind of operator it is.
"""

from abc import abstractmethod
from collections.abc import Callable
from operator import attrgetter
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg
from jaxtyping import Array, Float, Int

EPS = float(np.finfo(np.float64).eps)


class Strips(NamedTuple):
    """A faster way through the recurrence: ``advance(u, w) -> (w⁺, w·w⁺, ‖w⁺‖²)`` on blocks padded to ``rows``."""

    rows: int
    advance: Callable[[Array, Array], tuple[Array, Array, Array]]


class Operator(eqx.Module):
    """A symmetric operator A, known by its products with blocks of vectors.

    A subclass says its ``dimension`` and its products, :meth:`mv`. It may say more: its :meth:`diagonal`, its
    :meth:`columns`, :meth:`bounds` of its spectrum. Its arrays are fields; gradients are taken with respect to those
    that depend on what is differentiated.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> class Scaled(Operator):
    ...     scales: jax.Array
    ...
    ...     @property
    ...     def dimension(self):
    ...         return self.scales.size
    ...
    ...     def mv(self, block):
    ...         return self.scales[:, None] * block
    >>> Scaled(jnp.array([1.0, 2.0])) @ jnp.ones(2)
    Array([1., 2.], dtype=float...)
    """

    materialised: ClassVar[bool] = False
    """Whether all entries can be had without products, so that a factorisation needs no more."""

    calls_library: ClassVar[bool] = False
    """Whether products are calls of a library, as fast in a program that was compiled quickly."""

    has_columns: ClassVar[bool] = False
    """Whether columns can be had without a product each."""

    stride: ClassVar[int] = 1
    """Steps of the recurrence per turn of its loop. With two the newer vector overwrites the older in place; with one
    the compiler copies a block every step, which counts where a product is as cheap as a copy."""

    together: ClassVar[int | None] = None
    """How many columns are best multiplied together, where that is no gain beyond them; None: all there are."""

    @property
    @abstractmethod
    def dimension(self) -> int:
        """The number of rows d."""

    @abstractmethod
    def mv(self, block: Float[Array, "d m"]) -> Float[Array, "d m"]:
        """A times a block with one vector per column."""

    def diagonal(self) -> Float[Array, " d"]:
        """The diagonal of A."""
        raise NotImplementedError(
            f"{type(self).__name__} knows its products only, not its diagonal: give it a method diagonal(), or use "
            "what needs products only (of the preconditioners, Nystrom())"
        )

    def columns(self, indices: Int[Array, " k"]) -> Float[Array, "d k"]:
        """Columns of A: products with unit vectors, unless an operator knows better."""
        return self.mv(
            (jnp.arange(self.dimension, dtype=indices.dtype)[:, None] == indices[None, :]).astype(self.dtype)
        )

    def bounds(self) -> tuple[float, float]:
        """Proven bounds of the spectrum, (−∞, ∞) if there are none."""
        return -np.inf, np.inf

    def split(self) -> "tuple[Operator, Array | None]":
        """K and σ² of A = K + σ²I, where A is known in that form; A itself and None where it is not."""
        return self, None

    def strips(self, scale: Array, shift: Array) -> Strips | None:
        """A faster way to w⁺ = (scale·A − shift)w − w⁻ and its inner products, or None."""
        return None

    @property
    def shape(self) -> tuple[int, int]:
        """(d, d)."""
        return self.dimension, self.dimension

    @property
    def dtype(self) -> np.dtype:
        """The floating dtype in which products are made."""
        return working_dtype(*(leaf.dtype for leaf in jax.tree.leaves(self) if eqx.is_inexact_array(leaf)))

    def __matmul__(self, vectors: Float[Array, " d *m"]) -> Float[Array, " d *m"]:
        """A v for one vector, or for a block with one vector per column."""
        vectors = jnp.asarray(vectors)
        if vectors.ndim not in (1, 2) or len(vectors) != self.dimension:
            raise ValueError(f"vectors must have {self.dimension} rows, found shape {vectors.shape}")
        return self.mv(vectors[:, None])[:, 0] if vectors.ndim == 1 else self.mv(vectors)

    def __add__(self, other: Any) -> "Operator":
        """The sum of two operators of the same shape."""
        return SumOperator((self, other)) if isinstance(other, Operator) else NotImplemented

    def to_dense(self) -> Float[Array, "d d"]:
        """All d² entries, by a product with the identity."""
        return self.mv(jnp.eye(self.dimension, dtype=self.dtype))

    def on_host(self) -> np.ndarray:
        """All d² entries in float64, of an operator whose arrays are known."""
        dense = self._entries()
        block = np.random.default_rng(0).standard_normal((self.dimension, 4))
        with np.errstate(invalid="ignore", over="ignore"):
            product = dense @ block
        check_products(block, product, self.dtype)
        return dense

    def _entries(self) -> np.ndarray:
        if self.materialised:
            return np.asarray(self.to_dense(), np.float64)
        # A few columns at a time: what a product needs in between may be much larger than A.
        size, width = self.dimension, 64
        units = (jnp.eye(size, width, -start, dtype=self.dtype) for start in range(0, size, width))
        return np.concatenate([np.asarray(self.mv(unit), np.float64) for unit in units], axis=1)[:, :size]

    def eigenvalues(self) -> np.ndarray:
        """All eigenvalues in float64, of an operator whose arrays are known, in ascending order."""
        return scipy.linalg.eigvalsh(self.on_host(), check_finite=False)

    def traced_sum(self, f: Callable[[Any], Any]) -> tuple[Array, Array]:
        """Σ f(λ) over all eigenvalues, and what rounding costs it.

        By a factorisation of JAX's own, which can be differentiated.
        """
        eigenvalues = jnp.linalg.eigvalsh(self.to_dense())
        moved = jnp.finfo(eigenvalues.dtype).eps * jnp.max(jnp.abs(eigenvalues))
        lost = (jnp.abs(eigenvalues) <= eigenvalues.size * moved) & ~jnp.isfinite(jax.vmap(f)(eigenvalues))
        return _sum_with_error(f, eigenvalues, lost, moved)

    def moved(self, eigenvalues: np.ndarray) -> np.ndarray:
        """By how much rounding is expected to have moved each of those :meth:`eigenvalues`."""
        return np.full(eigenvalues.shape, self.rounding * np.max(np.abs(eigenvalues)))

    @property
    def rounding(self) -> float:
        """That of float64 for entries that can be had in it; of products, where they are all there is."""
        return EPS if self.materialised else float(jnp.finfo(self.dtype).eps)


class SumOperator(Operator):
    """A + B + …: what each term knows, added up.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from thalweg.spectral import as_operator
    >>> total = as_operator(jnp.eye(2)) + as_operator(2.0 * jnp.eye(2))
    >>> total @ jnp.ones(2), total.diagonal()
    (Array([3., 3.], dtype=float...), Array([3., 3.], dtype=float...))
    """

    terms: tuple[Operator, ...]

    @property
    def materialised(self) -> bool:  # type: ignore[override]
        """If every term is."""
        return all(term.materialised for term in self.terms)

    def to_dense(self) -> Array:
        """The sum of the terms' entries."""
        return sum(term.to_dense() for term in self.terms)  # type: ignore[return-value]

    def __check_init__(self) -> None:
        shapes = {term.shape for term in self.terms}
        if len(shapes) != 1:
            raise ValueError(f"terms of SumOperator must have one shape, found {sorted(shapes)}")

    @property
    def dimension(self) -> int:
        """That of every term."""
        return self.terms[0].dimension

    def mv(self, block: Array) -> Array:
        """AV + BV + …"""
        return sum(term.mv(block) for term in self.terms)  # type: ignore[return-value]

    def diagonal(self) -> Array:
        """The sum of the diagonals."""
        return sum(term.diagonal() for term in self.terms)  # type: ignore[return-value]

    def columns(self, indices: Array) -> Array:
        """The sum of the columns."""
        return sum(term.columns(indices) for term in self.terms)  # type: ignore[return-value]

    def bounds(self) -> tuple[float, float]:
        """The sums of the bounds."""
        lower, upper = zip(*(term.bounds() for term in self.terms), strict=True)
        return sum(lower), sum(upper)


def as_inner(trait: str) -> Any:
    """A trait of an operator that is that of the operator which it is made of."""
    return as_own(f"operator.{trait}")


def as_own(field: str) -> Any:
    """A trait of an operator that is a field of it."""
    return property(attrgetter(field))


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
    >>> import jax.numpy as jnp
    >>> from thalweg.spectral import as_operator
    >>> A = ShiftedOperator(as_operator(jnp.ones((2, 2))), 0.5)
    >>> A.diagonal(), A.bounds()
    (Array([1.5, 1.5], dtype=float...), (0.49..., 2.50...))
    """

    operator: Operator
    noise: Float[Array, ""]

    def __init__(self, operator: Operator, noise: Any) -> None:
        self.operator = operator
        self.noise = jnp.asarray(noise, operator.dtype)
        if self.noise.ndim:
            raise ValueError(f"noise of ShiftedOperator must be one number, found an array of shape {self.noise.shape}")

    stride, together, materialised, has_columns, calls_library, dimension = map(
        as_inner, ("stride", "together", "materialised", "has_columns", "calls_library", "dimension")
    )

    def to_dense(self) -> Array:
        """The entries of K, and σ² on the diagonal."""
        dense = self.operator.to_dense()
        return dense + self.noise.astype(dense.dtype) * jnp.eye(self.dimension, dtype=dense.dtype)

    def eigenvalues(self) -> np.ndarray:
        """Those of K, and σ²."""
        return self.operator.eigenvalues() + float(self.noise)

    def traced_sum(self, f: Callable[[Any], Any]) -> tuple[Array, Array]:
        """That of K, with σ² added to each."""
        return self.operator.traced_sum(lambda x: f(x + self.noise))

    def moved(self, eigenvalues: np.ndarray) -> np.ndarray:
        """What moves those of K, and the addition."""
        return self.operator.moved(eigenvalues - float(self.noise)) + EPS * np.abs(eigenvalues)

    def mv(self, block: Array) -> Array:
        """KV + σ²V."""
        return self.operator.mv(block) + self.noise.astype(block.dtype) * block

    def diagonal(self) -> Array:
        """That of K, and σ²."""
        return self.operator.diagonal() + self.noise

    def columns(self, indices: Array) -> Array:
        """Those of K, and σ² on the diagonal."""
        return self.operator.columns(indices).at[indices, jnp.arange(indices.size)].add(self.noise)

    def bounds(self) -> tuple[float, float]:
        """Those of K, and σ²."""
        lower, upper = self.operator.bounds()
        return lower + float(self.noise), upper + float(self.noise)

    def split(self) -> tuple[Operator, Array | None]:
        """K and σ²."""
        return self.operator, self.noise

    def strips(self, scale: Array, shift: Array) -> Strips | None:
        """Those of K: scale·(K + σ²) − shift = scale·K − (shift − scale·σ²)."""
        return self.operator.strips(scale, shift - scale * self.noise)


def moved_squares(squares: Any, eps: float = EPS) -> Any:
    """By how much squares s² move where every s is off by eps of the largest."""
    each = eps * squares.max() ** 0.5
    return (2.0 * squares.clip(0.0) ** 0.5 + each) * each


def sum_of_squares(
    f: Callable[[Any], Any], squares: Array, rounding: float, moved: Any = moved_squares
) -> tuple[Array, Array]:
    """Σ f(s²), and what it is off by where each s² is ``moved``; at most ``rounding`` times the largest s² is 0."""
    zero = squares <= rounding * jnp.max(squares)
    return _sum_with_error(f, squares, zero, moved(squares, float(jnp.finfo(squares.dtype).eps)))


def _sum_with_error(f: Callable[[Any], Any], eigenvalues: Array, zero: Array, moved: Array) -> tuple[Array, Array]:
    """Σ f(λ), and what it is expected to be off by where each λ is ``moved``.

    A λ that counts as zero has no derivative: √(s²) has none at 0 that the chain rule could multiply by 0; as a
    subgradient of the norm 0 will do.
    """
    values = jnp.where(zero, f(jnp.zeros((), eigenvalues.dtype)), jax.vmap(f)(jnp.where(zero, 1.0, eigenvalues)))
    held, own = jax.lax.stop_gradient((eigenvalues, values))
    moved = jnp.where(zero, jnp.maximum(jnp.abs(held), moved), jax.lax.stop_gradient(moved))
    taken = jnp.where(zero, 0.0, held)
    beside = jnp.stack([jax.vmap(f)(taken + moved), jax.vmap(f)(taken - moved)])
    changes = jnp.max(jnp.where(jnp.isfinite(beside), jnp.abs(beside - own[None]), 0.0), axis=0)
    return jnp.sum(values), jnp.hypot(jnp.linalg.norm(changes), jnp.finfo(own.dtype).eps * jnp.linalg.norm(own))


def frozen(operator: Operator) -> Operator:
    """The same operator with its arrays held constant under differentiation."""
    arrays, rest = eqx.partition(operator, eqx.is_array)
    return eqx.combine(jax.lax.stop_gradient(arrays), rest)


def is_concrete(operator: Operator) -> bool:
    """Whether every array is known now, so that a plan can be made."""
    return not is_traced(frozen(operator))


def is_traced(tree: Any) -> bool:
    """Whether an array in the tree is traced."""
    return any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(tree))


def gershgorin(diagonal: Array | np.ndarray, radius: Array | np.ndarray) -> tuple[float, float]:
    """Bounds of the spectrum by discs of the given centres and radii, with room for rounding."""
    # On the host: nothing to compile.
    centre, reach = map(np.asarray, jax.lax.stop_gradient((diagonal, radius)))
    slack = 4 * float(jnp.finfo(centre.dtype).eps) * float(np.max(np.abs(centre) + reach))
    return float(np.min(centre - reach)) - slack, float(np.max(centre + reach)) + slack


def working_dtype(*dtypes: Any) -> np.dtype:
    """The widest floating dtype, at least float32 (a recurrence in half precision is all rounding); JAX's if none."""
    floating = [jnp.dtype(dtype) for dtype in dtypes if jnp.issubdtype(dtype, jnp.floating)]
    widest = max(floating, key=lambda dtype: dtype.itemsize, default=jnp.result_type(float))
    return jnp.result_type(widest if widest.itemsize >= 4 else jnp.float32)


def widened(operator: Operator) -> Operator:
    """The same operator in float64; within a scope that has it."""
    return jax.tree.map(lambda leaf: leaf.astype(np.float64) if eqx.is_inexact_array(leaf) else leaf, operator)


def at_least_float32(tree: Any) -> Any:
    """The same tree with arrays of half precision in float32: kernels of them are exact to float32, not to half."""
    half = lambda leaf: eqx.is_inexact_array(leaf) and leaf.dtype.itemsize < 4
    return jax.tree.map(lambda leaf: leaf.astype(jnp.float32) if half(leaf) else leaf, tree)


def check_products(block: np.ndarray, product: Any, dtype: Any) -> None:
    """Refuse products of A with a block of four that change its shape, are not finite, or tell that A ≠ Aᵀ."""
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

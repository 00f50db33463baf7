"""Matrices of kernels and their derivatives, by one formulation for the host and for a device.

The usual kernels are sums of radial terms v·κ(s) with s = Σ_j ((x_j − x′_j)/ℓ_j)². With the slope vκ′(s) of a term

    ∂K/∂log v = K,    ∂K/∂log ℓ_j = −2 vκ′(s) ((x_j − x′_j)/ℓ_j)²,

and the square of a difference opened up, x² − 2xx′ + x′², sums over all pairs of rows are products of matrices. On the
host a term is a kernel of which :mod:`thalweg.kernels.host` has a NumPy implementation, so that nothing is
compiled. On a device it is a :class:`DeviceTerm`, whose family is data, so that one program serves all families and
sums of two of them. Other kernels are differentiated by JAX.
"""

import operator
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int
from scipy.spatial.distance import cdist

from thalweg.compiling import quick_jit
from thalweg.kernels import Gaussian, Kernel, Matern12, Matern32, Matern52
from thalweg.kernels.distances import squared_distances
from thalweg.kernels.host import summands
from thalweg.kernels.profiles import profile, profile_slope
from thalweg.linalg import namespace
from thalweg.linalg.fold import Tile, fold_tiles
from thalweg.padding import padded, padded_size
from thalweg.trees import as_host_arrays, flattened

TILE_ROWS = 2048
"""Rows of a matrix that are made at a time: of 50,000 columns they take 0.8 GB. Half as many would take as long."""

RADIAL_FAMILIES = (Gaussian, Matern12, Matern32, Matern52)
"""Families that a device knows."""


class DeviceTerm(NamedTuple):
    """A radial term whose family is data; a variance of 0 means that there is none."""

    lengthscale: Float[Array | np.ndarray, " d"]
    variance: Float[Array | np.ndarray, ""]
    family: Int[Array | np.ndarray, ""]
    """Its index among ``RADIAL_FAMILIES``."""

    def value_and_slope(self, squared: Array) -> tuple[Array, Array]:
        """Return vκ(s) and vκ′(s)."""
        orders = [family.order for family in RADIAL_FAMILIES]
        both = [lambda s, order=order: (profile(order, s), profile_slope(order, s)) for order in orders]
        value, slope = jax.lax.switch(self.family, both, squared)
        return self.variance * value, self.variance * slope


def device_terms(kernel: Kernel, features: int) -> tuple[DeviceTerm, ...]:
    """Return a kernel as two terms for a device; none if it is no sum of one or two radial ones.

    Examples
    --------
    >>> from thalweg.kernels import Gaussian, Matern12
    >>> x, both = np.array([[0.0], [1.0]]), Gaussian(2.0) + Matern12(1.0)
    >>> bool(np.allclose(jax.jit(matrix)(device_terms(both, 1), x), both(x)))
    True
    """
    terms = summands(kernel)
    if not 1 <= len(terms) <= 2:
        return ()
    lengthscale = lambda term: np.broadcast_to(np.asarray(term.lengthscale, np.float64), (features,))
    family = lambda term: np.asarray(RADIAL_FAMILIES.index(type(term)), np.int32)
    made = [DeviceTerm(lengthscale(one), np.asarray(one.variance), family(one)) for one in terms]
    return (*made, made[0]._replace(variance=np.zeros(())))[:2]


def own_parameters(kernel: Kernel, features: int, terms: int) -> Float[np.ndarray, "q p"]:
    """Return which parameters of its terms, each with all lengthscales, and the noise are those of a kernel.

    A column for each parameter has ones where it stands.
    """
    unit = np.eye(terms * (features + 1) + 1)
    columns: list[np.ndarray] = []
    for index, term in enumerate(summands(kernel)):
        lengths = unit[:, index * (features + 1) :][:, :features]
        columns += list(lengths.T) if np.ndim(term.lengthscale) else [np.sum(lengths, axis=1)]
        columns.append(unit[:, (index + 1) * (features + 1) - 1])
    return np.stack([*columns, unit[:, -1]], axis=1)


Term = Kernel | DeviceTerm
Parts = list[tuple[Any, Any]]
"""The matrix of each term, and that of its slopes."""


def parts_of(terms: Sequence[Term], x: Any, y: Any = None) -> Parts:
    """Return the matrices of terms between rows, and of their slopes."""
    return [_parts(term, x, y) for term in terms]


def _parts(term: Term, x: Any, y: Any, slope: bool = True) -> tuple[Any, Any]:
    if isinstance(term, DeviceTerm):
        return term.value_and_slope(squared_distances(x, y, term.lengthscale))  # type: ignore[arg-type]
    lengths = np.asarray(term.lengthscale)
    scaled = (x - x[:1]) / lengths  # an offset that many lengthscales fit into would cost digits
    squared = cdist(scaled, scaled if y is None else (y - x[:1]) / lengths, "sqeuclidean")
    variance, order = float(term.variance), term.order
    return variance * profile(order, squared), variance * profile_slope(order, squared) if slope else None


def matrix(kernel: Kernel | tuple[Term, ...], x: Any, y: Any = None) -> Any:
    """Return k(x, y), or k(x, x) with what a kernel has on its diagonal alone."""
    terms = kernel if isinstance(kernel, tuple) else summands(kernel) if namespace(x) is np else ()
    if terms:
        return reduce(operator.iadd, (_parts(term, x, y, slope=False)[0] for term in terms))
    if namespace(x) is not np:
        return kernel(x, y)  # type: ignore[operator]
    shape = len(x), len(x if y is None else y)
    made = _compiled_matrix(as_host_arrays(kernel), _padded(x), None if y is None else _padded(y))
    return np.array(made)[: shape[0], : shape[1]]


def diagonal(kernel: Kernel | tuple[Term, ...], x: Any) -> Any:
    """Return k(x, x) of each row."""
    xp = namespace(x)
    if isinstance(kernel, tuple):
        return xp.full(len(x), sum(term.variance for term in kernel))
    if xp is np and kernel.stationary:
        return np.full(len(x), float(kernel.variance))
    if xp is not np:
        return kernel.diagonal(x)
    return np.asarray(_compiled_diagonal(as_host_arrays(kernel), _padded(x)))[: len(x)]


def matrix_by_tiles(kernel: Kernel | tuple[Term, ...], x: Any, tile_rows: int = TILE_ROWS) -> Any:
    """Return k(x, x), made a tile at a time: at once it would take the memory of several such matrices."""
    xp, size = namespace(x), len(x)
    if size <= tile_rows or (xp is np and not isinstance(kernel, tuple)):
        return matrix(kernel, x)
    own, every = diagonal(kernel, x), xp.arange(size)

    def fill(filled: Any, tile: Tile) -> Any:
        part = matrix(kernel, tile.take(x), x)
        on_diagonal = (tile.begin + xp.arange(tile.size))[:, None] == every[None]
        return tile.put(filled, xp.where(on_diagonal, own[None], part))

    return fold_tiles(fill, xp.zeros((size, size), own.dtype), size, tile_rows, xp)


Pull = Callable[[Callable[[Any], Any]], Any]
"""``pull(take)`` returns the rows that ``take`` takes of a matrix W, whose entries multiply those of ∂K."""


def gradient_and_products(
    terms: tuple[Term, ...], x: Any, pull: Pull, columns: Any, parts: Parts | None = None, tile_rows: int = TILE_ROWS
) -> tuple[Any, Any]:
    """Return the derivatives of Σ W∘K, and of K·columns (rows, parameters, columns), in logarithms.

    They are in the lengthscales and the variance of each term in turn. ``parts`` are those of all rows, if known.
    """
    xp, (size, features) = namespace(x), x.shape
    centred = x - (x[:1] + xp.mean(x - x[:1], axis=0, keepdims=True))
    scaled = [centred / xp.reshape(term.lengthscale, (1, -1)) for term in terms]
    count = len(terms) * (features + 1)

    def add(totals: tuple[Any, Any], tile: Tile) -> tuple[Any, Any]:
        weights = xp.where(tile.new[:, None], pull(tile.take), 0) if parts is None else pull(lambda array: array)
        here = parts_of(terms, tile.take(x), x) if parts is None else parts
        made = [
            _term_derivatives(tile.take(s), s, weights, columns, *part) for s, part in zip(scaled, here, strict=True)
        ]
        gradient, products = (
            xp.concatenate(one, axis=axis) for one, axis in zip(zip(*made, strict=True), (0, 1), strict=True)
        )
        return totals[0] + gradient, tile.put(totals[1], products)

    zeros = xp.zeros(count, x.dtype), xp.zeros((size, count, columns.shape[1]), x.dtype)
    return fold_tiles(add, zeros, size, tile_rows if parts is None else size, xp)


def _term_derivatives(x: Any, y: Any, weights: Any, columns: Any, value: Any, slope: Any) -> tuple[Any, Any]:
    """Those of one term between rows x and y, both in units of its lengthscales."""
    xp = namespace(x)
    part = weights * slope
    squares = xp.sum(part, axis=1) @ x**2 + xp.sum(part, axis=0) @ y**2
    lengths = -2 * (squares - 2 * xp.sum(x * (part @ y), axis=0))
    gradient = xp.append(lengths, xp.vdot(weights, value))
    powers = xp.concatenate([xp.ones_like(y[:, :1]), y, y**2], axis=1)
    moments = (slope @ (powers[:, :, None] * columns[:, None]).reshape(len(y), -1)).reshape(
        len(x), -1, columns.shape[1]
    )
    zeroth, first, second = xp.split(moments, [1, 1 + y.shape[1]], axis=1)
    x = x[:, :, None]
    return gradient, xp.concatenate([-2 * (x**2 * zeroth - 2 * x * first + second), (value @ columns)[:, None]], axis=1)


def kernel_gradient(kernel: Kernel, x: Array, pull: Pull, own: Array, tile_rows: int = TILE_ROWS) -> Kernel:
    """Return the derivatives of Σ W∘K in the parameters of any kernel, by JAX; ``own`` is the diagonal of W."""
    size = len(x)

    def add(total: Kernel, tile: Tile) -> Kernel:
        # The diagonal, where a kernel may hold white noise, is not in a tile.
        off_diagonal = (tile.begin + jnp.arange(tile.size))[:, None] != jnp.arange(size)[None]
        part = jnp.where(tile.new[:, None] & off_diagonal, pull(tile.take), 0)
        gradient = jax.vjp(lambda kernel: kernel(tile.take(x), x), kernel)[1](part.astype(x.dtype))[0]
        return jax.tree.map(lambda one, other: one + other.astype(one.dtype), total, gradient)

    start = jax.vjp(lambda kernel: kernel.diagonal(x), kernel)[1](own.astype(x.dtype))[0]
    return fold_tiles(add, start, size, tile_rows, jnp)


def log_gradient(kernel: Kernel, x: np.ndarray, weights: np.ndarray, columns: np.ndarray) -> tuple[np.ndarray, Any]:
    """Return the derivatives of Σ W∘K in the logarithms of a kernel's parameters, and those of K·columns if known."""
    terms = summands(kernel)
    if not terms:
        return gradient_on_host(kernel, x, weights), None
    own = own_parameters(kernel, x.shape[1], len(terms))[:-1, :-1]
    parts = parts_of(terms, x) if len(x) <= TILE_ROWS else None
    gradient, products = gradient_and_products(terms, x, lambda take: take(weights), columns, parts)
    return gradient @ own, np.einsum("npc,pq->nqc", products, own)


def gradient_on_host(kernel: Kernel, x: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return the derivatives of Σ W∘K in the logarithms of the parameters of any kernel, by a compiled program."""
    rows = _padded(x)
    weights = padded(padded(weights, len(rows)), len(rows), axis=1)
    found = _compiled_gradient(as_host_arrays(kernel), rows, weights)
    return flattened(jax.tree.map(lambda gradient, leaf: np.asarray(gradient) * leaf, found, kernel))


def compiles_quickly(*arguments: Any) -> bool:
    """Whether programs for such arguments run for less time than a compiler takes to optimise them."""
    return max(np.shape(leaf)[0] for leaf in jax.tree.leaves(arguments) if np.ndim(leaf)) <= TILE_ROWS


def _padded(rows: np.ndarray) -> np.ndarray:
    return padded(rows, padded_size(len(rows), 1))


_compiled_matrix = quick_jit(compiles_quickly)(lambda kernel, x, y: kernel.matrix(x, y))
_compiled_diagonal = quick_jit(compiles_quickly)(lambda kernel, x: kernel.diagonal(x))


@quick_jit(compiles_quickly)
def _compiled_gradient(kernel: Kernel, x: Array, weights: Array) -> Kernel:
    return kernel_gradient(kernel, x, lambda take: take(weights), jnp.diag(weights))

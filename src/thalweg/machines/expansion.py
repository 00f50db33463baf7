"""A function that grows, f(x) = scale · Σ_i φ_i(x) W_i + intercept, and its values."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Scalar

from thalweg.codec import storable
from thalweg.compiling import quick_jit
from thalweg.kernels import Kernel
from thalweg.kernels.profiles import written_out
from thalweg.machines.coordinates import Coordinates, Points
from thalweg.machines.rows import dense
from thalweg.machines.tiles import product
from thalweg.padding import padded, padded_size

# Rows of a prediction that have features at a time; fewer are padded to a multiple of the grain.
_ROWS_AT_ONCE, _GRAIN = 2048, 64
# On the host so many numbers of them, if those are more rows: to begin with some takes as long as some hundred.
_NUMBERS_AT_ONCE = 2**20
# Features of all rows that a GPU finds at once.
_FEATURES_AT_ONCE = 2**26
# Pairs of rows and landmarks up to which the host is done before a program is compiled.
_FEW_PAIRS = 2**25
# Numbers in blocks from which on room for them is made with care.
_LARGE = 2**20


@storable
class Expansion(NamedTuple):
    """The weights of the blocks so far, in arrays with room for more: one compiled step serves them all."""

    weights: Float[Array, "capacity width c"]
    blocks: Float[Array, "capacity rows d"]
    """What the features of each block are made from; no rows where it is made anew each time."""
    drift: Float[Array, "capacity c"]
    """β_i, the sum of the steps taken along block i: what the checked rule looks at."""
    used: Int[Array, ""]
    """The number of blocks so far."""
    scale: Scalar
    """Shrinkage of all weights and drifts, applied when they are read."""
    steps: Int[Array, ""]
    mean_square: Scalar
    """The running mean of ‖g_b‖²."""
    noise: Scalar
    """σ², the variance of φ(x)ᵀφ(y) − k(x, y) over y, from the first batch."""
    intercept: Any = 0.0
    """The value of f far from all data, a number for each output."""

    def check_stored(self) -> None:
        """Refuse arrays that do not belong together, as a file could hold them."""
        lengths = {len(part) for part in (self.weights, self.blocks, self.drift)}
        outputs = self.weights.shape[2], self.drift.shape[1]
        if len(lengths) != 1 or outputs[0] != outputs[1] or self.blocks.ndim != 3:
            raise ValueError("arrays of one expansion differ in their sizes")
        if np.shape(self.intercept) not in ((), outputs[:1]) or not np.all(np.isfinite(self.intercept)):
            raise ValueError("the intercept must be a finite number for each output")
        if not 0 <= int(self.used) <= self.capacity:
            raise ValueError(f"{int(self.used)} blocks in room for {self.capacity}")

    @property
    def capacity(self) -> int:
        """The number of blocks there is room for."""
        return len(self.weights)


def empty(coordinates: Coordinates, dimension: int, outputs: int, capacity: int, dtype: jnp.dtype) -> Expansion:
    """Return the function 0, with room for ``capacity`` blocks.

    Examples
    --------
    >>> from thalweg.kernels import Gaussian
    >>> from thalweg.machines import Points
    >>> empty(Points(Gaussian(), block_size=8), dimension=2, outputs=1, capacity=4, dtype=float).weights.shape
    (4, 8, 1)
    """
    put = jax.device_put  # jnp.asarray and jnp.zeros would compile a program for each shape
    zeros = lambda *shape: put(np.zeros(shape, dtype))
    return Expansion(
        weights=zeros(capacity, coordinates.width, outputs),
        blocks=zeros(capacity, coordinates.kept, dimension),
        drift=zeros(capacity, outputs),
        used=put(np.int32(0)),
        scale=put(np.ones((), dtype)),
        steps=put(np.int32(0)),
        mean_square=zeros(),
        noise=put(-np.ones((), dtype)),
        intercept=zeros(outputs),
    )


def with_room(expansion: Expansion, blocks: int, limit: int | None) -> Expansion:
    """Return it with room for as many blocks in all: capacity doubles, or more where blocks are small."""
    blocks = blocks if limit is None else min(blocks, limit)
    capacity = expansion.capacity
    if blocks <= capacity:
        return expansion
    grown = max(blocks, (2 if expansion.blocks.size > _LARGE else 4) * capacity)
    grown = grown if limit is None else min(grown, limit)
    pad = lambda array: jnp.pad(array, [(0, grown - capacity)] + [(0, 0)] * (array.ndim - 1))
    return expansion._replace(weights=pad(expansion.weights), blocks=pad(expansion.blocks), drift=pad(expansion.drift))


def evaluate(coordinates: Coordinates, expansion: Expansion, x: Float[Array, "n d"]) -> Float[Array, "n c"]:
    """f at the rows of ``x``, block by block: memory for one block of features at a time, or for some small ones."""
    together = _together(coordinates, expansion, len(x))

    def add(i: Array, total: Float[Array, "n c"]) -> Float[Array, "n c"]:
        features = coordinates.evaluate(x, coordinates.block(i, expansion.blocks).astype(x.dtype))
        return total + jnp.matmul(features, expansion.weights[i], precision="highest")

    def add_some(i: Array, total: Float[Array, "n c"]) -> Float[Array, "n c"]:
        wanted = i * together
        first = jnp.minimum(wanted, expansion.capacity - together)
        some = lambda array: jax.lax.dynamic_slice_in_dim(array, first, together)
        places = first + jnp.arange(together, dtype=first.dtype)
        new = (places >= wanted) & (places < expansion.used.astype(places.dtype))
        weights = jnp.where(new[:, None, None], some(expansion.weights), 0)
        points, weights = (part.reshape(-1, part.shape[2]) for part in (some(expansion.blocks), weights))
        return total + jnp.matmul(coordinates.evaluate(x, points), weights, precision="highest")

    start = jnp.zeros((len(x), expansion.weights.shape[2]), x.dtype)
    intercept = jnp.broadcast_to(jnp.asarray(expansion.intercept, x.dtype), start.shape)
    rounds, step = (expansion.used, add) if together == 1 else (-(-expansion.used // together), add_some)
    return intercept + expansion.scale * jax.lax.fori_loop(0, rounds, step, start)


def _together(coordinates: Coordinates, expansion: Expansion, rows: int) -> int:
    """Blocks of landmarks whose features are found at once: beginning a round takes a GPU as long as one of them."""
    if not isinstance(coordinates, Points) or jax.default_backend() == "cpu":
        return 1
    return max(min(_FEATURES_AT_ONCE // (rows * coordinates.width), expansion.capacity), 1)


@quick_jit(lambda *_: False, tuned=False)
def evaluated(coordinates: Coordinates, expansion: Expansion, x: Float[Array, "n d"]) -> Float[Array, "n c"]:
    """:func:`evaluate`, compiled."""
    return evaluate(coordinates, expansion, x)


def _on_host(kernel: Kernel, expansion: Expansion, x: Any, *frame: np.ndarray | None) -> np.ndarray:
    dtype, used = expansion.weights.dtype, int(expansion.used)
    weights = np.asarray(expansion.scale) * np.asarray(expansion.weights)[:used].reshape(-1, expansion.weights.shape[2])
    there = np.any(weights, axis=1)
    points = np.asarray(expansion.blocks)[:used].reshape(len(weights), expansion.blocks.shape[2])[there]
    found = np.zeros((x.shape[0], weights.shape[1]), dtype)
    at_once = max(_ROWS_AT_ONCE, _NUMBERS_AT_ONCE // max(x.shape[1], weights.shape[1]))
    for start in range(0, x.shape[0] if len(points) else 0, at_once):
        part = dense("X", x[start : start + at_once], dtype, *frame)
        found[start : start + len(part)] = product(kernel, part, points, weights[there])
    return found + np.asarray(expansion.intercept, dtype)


def predict(
    coordinates: Coordinates,
    expansion: Expansion,
    x: Any,
    *frame: np.ndarray | None,
) -> np.ndarray:
    """f at the rows of ``x`` in a frame of :class:`thalweg.machines.Rows`, some thousand rows at a time.

    They may be an array, a memory map or a sparse matrix, of which only those rows are read or made dense.

    Examples
    --------
    >>> from thalweg.kernels import Gaussian
    >>> from thalweg.machines import Points
    >>> points = Points(Gaussian(), block_size=2)
    >>> predict(points, empty(points, dimension=1, outputs=1, capacity=1, dtype=float), np.ones((3, 1))).shape
    (3, 1)
    """
    pairs = x.shape[0] * int(expansion.used) * coordinates.width
    soon = pairs and (pairs <= _FEW_PAIRS or jax.default_backend() == "cpu")
    if soon and isinstance(coordinates, Points) and written_out(coordinates.kernel):
        return _on_host(coordinates.kernel, expansion, x, *frame)
    size = min(_ROWS_AT_ONCE, padded_size(x.shape[0], _GRAIN))
    found = []
    for start in range(0, x.shape[0], size):
        part = dense("X", x[start : start + size], expansion.weights.dtype, *frame)
        found.append(np.asarray(evaluated(coordinates, expansion, padded(part, size)))[: len(part)])
    return np.concatenate(found)

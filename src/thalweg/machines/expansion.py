"""A function that grows block by block, f(x) = scale · Σ_i φ_i(x) W_i + intercept: its coordinates and its values.

Coordinates φ_i are blocks of random frequencies, or of training points (landmarks), under one interface.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Scalar

from thalweg.codec import storable
from thalweg.compiling import quick_jit
from thalweg.kernels import Kernel, RandomFeatures
from thalweg.kernels.distances import product_in_halves, squared_distances
from thalweg.kernels.draws import KINDS
from thalweg.kernels.forms import Radial
from thalweg.kernels.host import kernel_tiles
from thalweg.linalg import namespace
from thalweg.padding import padded, padded_size
from thalweg.rows import FeatureFrame, as_dense

__all__ = ["Coordinates", "Frequencies", "Points", "empty", "predict"]

PREDICTED_ROWS, ROW_GRAIN = 8192, 64
"""Rows whose features exist at a time; on a device fewer are padded to a multiple of the grain, so that one program
serves many sizes."""

DEVICE_FEATURES = 2**26
"""Features of rows that a GPU holds at a time: blocks are evaluated together up to so many, since the start of a round
costs a GPU as much as one of them."""


FEATURES = ("landmarks", *KINDS)
"""Kinds of coordinates."""

TENSOR_CORE_FEATURES = 32
"""From so many features on products of halves on a GPU's tensor cores are faster (on an H200, of 100 features, 0.43 ms
instead of 0.62 for a block of 4,096 landmarks and 16,384 rows)."""

NOISE_ROWS = 256
"""Rows that the variance of the features' products is estimated from, which is then known to a tenth."""


class Coordinates(eqx.Module):
    """Features φ_i(x) block by block; what a block is made from is a matrix with one column per feature of x.

    Examples
    --------
    >>> from thalweg.kernels import Gaussian
    >>> issubclass(Points, Coordinates), Points(Gaussian(), block_size=8).width
    (True, 8)
    """

    @property
    def kernel(self) -> Kernel:
        """The kernel that the features make up."""
        raise NotImplementedError

    @property
    def width(self) -> int:
        """The number of features in a block."""
        raise NotImplementedError

    @property
    def stored_rows(self) -> int:
        """The rows of a block that the machine stores; 0 where blocks are made anew each time."""
        raise NotImplementedError

    @property
    def largest(self) -> Array:
        """The largest ‖φ_i(x)‖² there can be."""
        raise NotImplementedError

    def fresh(self, i: Array, x: Float[Array, "b d"]) -> Float[Array, "rows d"]:
        """Make block i, which the batch ``x`` leads to."""
        raise NotImplementedError

    def block(self, i: Array, stored: Float[Array, "blocks rows d"]) -> Float[Array, "rows d"]:
        """Return block i, from what is stored of all blocks."""
        return jax.lax.dynamic_index_in_dim(stored, i, keepdims=False)

    def evaluate(self, x: Float[Array, "b d"], block: Float[Array, "rows d"]) -> Float[Array, "b width"]:
        """φ(x) for a block."""
        raise NotImplementedError

    def metric(self, block: Float[Array, "rows d"]) -> Float[Array, "width width"]:
        """The inner products of the features as functions."""
        raise NotImplementedError

    def noise(self, x: Float[Array, "b d"], there: Bool[Array, " b"], block: Float[Array, "rows d"]) -> Scalar:
        """σ², the variance of φ(x)ᵀφ(y) − k(x, y) over y, averaged over x, in units of k(x, x).

        Rows that are not ``there`` are padding.
        """
        x, there = x[:NOISE_ROWS], there[:NOISE_ROWS]
        features = self.evaluate(x, block) / jnp.sqrt(self.largest).astype(x.dtype)
        errors = features @ features.T - self.kernel(x) / self.kernel.variance.astype(x.dtype)
        return jnp.mean(jnp.var(errors, axis=1, where=there[None, :]), where=there)


@storable
class Frequencies(Coordinates):
    """Random Fourier features, regenerated from (key, i), or kept.

    Examples
    --------
    >>> from thalweg.kernels import Gaussian
    >>> Frequencies(RandomFeatures(Gaussian(), jax.random.key(0), dimension=2, block_size=8)).width
    16
    """

    features: RandomFeatures
    keep: bool = eqx.field(static=True, default=False)

    @property
    def kernel(self) -> Kernel:
        """The kernel of the features."""
        return self.features.kernel

    @property
    def width(self) -> int:
        """A cosine and a sine for each frequency."""
        return self.features.width

    @property
    def stored_rows(self) -> int:
        """The frequencies, if they are stored."""
        return self.features.block_size if self.keep else 0

    @property
    def largest(self) -> Array:
        """k(x, x): cos² + sin² = 1."""
        return self.features.kernel.variance

    def fresh(self, i: Array, x: Float[Array, "b d"]) -> Float[Array, "rows d"]:
        """The frequencies of block i, whatever the batch."""
        return self.features.block(i).astype(x.dtype)

    def block(self, i: Array, stored: Float[Array, "blocks rows d"]) -> Float[Array, "rows d"]:
        """The frequencies of block i."""
        return super().block(i, stored) if self.keep else self.features.block(i)

    def evaluate(self, x: Float[Array, "b d"], block: Float[Array, "rows d"]) -> Float[Array, "b width"]:
        """Cosines and sines."""
        return self.features.evaluate(x, block)

    def metric(self, block: Float[Array, "rows d"]) -> Float[Array, "width width"]:
        """The identity: features are orthonormal coordinates."""
        return jnp.eye(self.width, dtype=block.dtype)


@storable
class Points(Coordinates):
    """k(·, x_j) for training points x_j, which are kept: landmarks.

    Examples
    --------
    >>> from thalweg.kernels import Gaussian
    >>> Points(Gaussian(), block_size=8).stored_rows
    8
    """

    sections: Kernel
    block_size: int = eqx.field(static=True)

    @property
    def kernel(self) -> Kernel:
        """The kernel of the points."""
        return self.sections

    @property
    def width(self) -> int:
        """A feature for each point."""
        return self.block_size

    @property
    def stored_rows(self) -> int:
        """All points."""
        return self.block_size

    @property
    def largest(self) -> Array:
        """k(x, x_j)² ≤ k(x, x)² for each point."""
        return self.block_size * self.sections.variance**2

    def fresh(self, i: Array, x: Float[Array, "b d"]) -> Float[Array, "rows d"]:
        """The first rows of the batch."""
        return x[: self.block_size]

    def evaluate(self, x: Float[Array, "b d"], block: Float[Array, "rows d"]) -> Float[Array, "b width"]:
        """The kernel at the points."""
        kernel, block = self.sections, block.astype(x.dtype)
        many = x.dtype == jnp.float32 and x.shape[1] >= TENSOR_CORE_FEATURES
        if many and isinstance(kernel, Radial) and jax.default_backend() == "gpu":
            squares = squared_distances(x, block, kernel.lengthscale.astype(x.dtype), by=product_in_halves)
            return kernel.variance.astype(x.dtype) * kernel.profile(squares)
        return kernel(x, block)

    def metric(self, block: Float[Array, "rows d"]) -> Float[Array, "width width"]:
        """The kernel matrix of the points."""
        return self.sections(block)


@storable
class Expansion(NamedTuple):
    """The weights of the blocks so far, in arrays of JAX or of NumPy with room for more: one program serves many."""

    weights: Any
    """W_i, by capacity, width of a block and outputs."""
    blocks: Any
    """What the features of each block are made from; no rows where it is made anew each time."""
    drift: Any
    """β_i, the sum of the steps taken along block i, by capacity and outputs: what the checked rule is based on."""
    used: Any
    """The number of blocks so far."""
    scale: Any
    """Shrinkage of all weights and drifts, applied when they are read."""
    steps: Any
    """The number of steps so far."""
    mean_square: Any
    """The running mean of ‖g_b‖²."""
    noise: Any
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


def empty(coordinates: Coordinates, dimension: int, outputs: int, capacity: int, dtype: Any) -> Expansion:
    """Return the function 0, with room for ``capacity`` blocks.

    Examples
    --------
    >>> from thalweg.kernels import Gaussian
    >>> from thalweg.machines import Points
    >>> empty(Points(Gaussian(), block_size=8), dimension=2, outputs=1, capacity=4, dtype=float).weights.shape
    (4, 8, 1)
    """
    # Arrays of NumPy: those of JAX would compile a program for each shape.
    zeros = lambda *shape: np.zeros(shape, dtype)
    return Expansion(
        weights=zeros(capacity, coordinates.width, outputs),
        blocks=zeros(capacity, coordinates.stored_rows, dimension),
        drift=zeros(capacity, outputs),
        used=np.asarray(0, np.int32),
        scale=np.ones((), dtype),
        steps=np.asarray(0, np.int32),
        mean_square=zeros(),
        noise=-np.ones((), dtype),
        intercept=zeros(outputs),
    )


def with_capacity(expansion: Expansion, blocks: int, limit: int | None) -> Expansion:
    """Return the function with room for so many blocks in all: its capacity at least doubles.

    Examples
    --------
    >>> from thalweg.kernels import Gaussian
    >>> from thalweg.machines import Points
    >>> start = empty(Points(Gaussian(), block_size=8), dimension=2, outputs=1, capacity=4, dtype=float)
    >>> with_capacity(start, 5, None).capacity, with_capacity(start, 5, limit=6).capacity
    (8, 6)
    """
    blocks = blocks if limit is None else min(blocks, limit)
    capacity = expansion.capacity
    if blocks <= capacity:
        return expansion
    grown = max(blocks, 2 * capacity)
    grown = grown if limit is None else min(grown, limit)
    pad = lambda array: namespace(array).pad(array, [(0, grown - capacity)] + [(0, 0)] * (array.ndim - 1))
    return expansion._replace(weights=pad(expansion.weights), blocks=pad(expansion.blocks), drift=pad(expansion.drift))


def evaluate(coordinates: Coordinates, expansion: Expansion, x: Float[Array, "n d"]) -> Float[Array, "n c"]:
    """f at the rows of ``x``, some blocks at a time."""
    together = _together(coordinates, expansion, len(x))

    def add(i: Array, total: Float[Array, "n c"]) -> Float[Array, "n c"]:
        wanted = i * together
        first = jnp.minimum(wanted, expansion.capacity - together)
        some = lambda array: jax.lax.dynamic_slice_in_dim(array, first, together)
        numbers = first + jnp.arange(together, dtype=first.dtype)
        new = (numbers >= wanted) & (numbers < expansion.used.astype(numbers.dtype))
        weights = jnp.where(new[:, None, None], some(expansion.weights), 0)
        points, weights = (part.reshape(-1, part.shape[2]) for part in (some(expansion.blocks), weights))
        return total + jnp.matmul(coordinates.evaluate(x, points), weights, precision="highest")

    def add_one(i: Array, total: Float[Array, "n c"]) -> Float[Array, "n c"]:
        features = coordinates.evaluate(x, coordinates.block(i, expansion.blocks).astype(x.dtype))
        return total + jnp.matmul(features, expansion.weights[i], precision="highest")

    start = jnp.zeros((len(x), expansion.weights.shape[2]), x.dtype)
    intercept = jnp.broadcast_to(jnp.asarray(expansion.intercept, x.dtype), start.shape)
    rounds, step = (expansion.used, add_one) if together == 1 else (-(-expansion.used // together), add)
    return intercept + expansion.scale * jax.lax.fori_loop(0, rounds, step, start)


def _together(coordinates: Coordinates, expansion: Expansion, rows: int) -> int:
    if not isinstance(coordinates, Points) or jax.default_backend() == "cpu":
        return 1
    return max(min(DEVICE_FEATURES // (rows * coordinates.width), expansion.capacity), 1)


_evaluate_on_device = quick_jit(lambda *_: False, tuned=False)(evaluate)


def values_at(coordinates: Coordinates, expansion: Expansion, x: Any) -> Any:
    """Return f at rows: of landmarks on a CPU by NumPy, where nothing is compiled; else by JAX."""
    landmarks = isinstance(coordinates, Points) and isinstance(coordinates.kernel, Radial)
    if not (landmarks and jax.default_backend() == "cpu"):
        return _evaluate_on_device(coordinates, expansion, jnp.asarray(x))
    dtype, used = expansion.weights.dtype, int(expansion.used)
    weights, points = (
        np.asarray(part)[:used].reshape(-1, part.shape[2]) for part in (expansion.weights, expansion.blocks)
    )
    there = np.any(weights, axis=1)
    values = np.broadcast_to(np.asarray(expansion.intercept, dtype), (len(x), weights.shape[1]))
    if not np.any(there):
        return values
    scale = np.asarray(expansion.scale)
    return values + kernel_tiles(coordinates.kernel, np.asarray(x, dtype), points[there]).apply(scale * weights[there])


def predict(coordinates: Coordinates, expansion: Expansion, x: Any, frame: FeatureFrame | None = None) -> np.ndarray:
    """Return f at the rows of an array, a memory map or a sparse matrix, of which only some are dense at a time.

    Examples
    --------
    >>> from thalweg.kernels import Gaussian
    >>> from thalweg.machines import Points
    >>> points = Points(Gaussian(), block_size=2)
    >>> start = empty(points, dimension=1, outputs=1, capacity=1, dtype=float)
    >>> predict(points, start, np.ones((3, 1))).shape
    (3, 1)
    """
    found = np.zeros((x.shape[0], expansion.weights.shape[2]), expansion.weights.dtype)
    on_cpu = jax.default_backend() == "cpu"
    for start in range(0, x.shape[0], PREDICTED_ROWS):
        part = as_dense("X", x[start : start + PREDICTED_ROWS], found.dtype, frame)
        size = len(part) if on_cpu and isinstance(coordinates, Points) else padded_size(len(part), ROW_GRAIN)
        values = values_at(coordinates, expansion, padded(part, min(size, PREDICTED_ROWS)))
        found[start : start + len(part)] = np.asarray(values)[: len(part)]
    return found

"""Coordinates of a kernel in blocks: random Fourier features, regenerated from (key, block), or landmarks.

Both have one interface. ``features(x, i)`` are the features of block i, ``width`` of them; ``features.block(i)`` is
what they are made from, and ``features.evaluate(x, block)`` makes them of a block that was kept. The number of the
block may be traced: one compiled step serves all blocks.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from thalweg import arguments
from thalweg.kernels.base import Kernel


class RandomFeatures(eqx.Module):
    """Random Fourier features φ_i with E φ_i(x)ᵀφ_i(y) = k(x, y), block by block, without an end.

    φ_i(x) = √(variance/F)·[cos ω₁ᵀx, …, cos ω_Fᵀx, sin ω₁ᵀx, …, sin ω_Fᵀx], and the F frequencies of block i are
    regenerated from the key and i whenever they are needed.

    Parameters
    ----------
    kernel
        A kernel.
    key
        A random key. The same key gives the same features on every device and in every run, up to rounding.
    dimension
        The number of features of x.
    block_size
        F, the number of frequencies in a block.
    kind
        "random", "orthogonal" or "quasi": see :meth:`Kernel.frequencies`.

    Examples
    --------
    >>> from thalweg.kernels import Gaussian
    >>> features = RandomFeatures(Gaussian(), jax.random.key(0), dimension=2, block_size=2048)
    >>> x = jnp.array([[0.0, 0.0], [1.0, 0.0]])
    >>> phi = features(x, 0)
    >>> phi.shape
    (2, 4096)
    >>> bool(abs(phi @ phi.T - Gaussian()(x)).max() < 0.05)
    True
    """

    kernel: Kernel
    key: Key[Array, ""]
    dimension: int = eqx.field(static=True)
    block_size: int = eqx.field(static=True)
    kind: str = eqx.field(static=True)

    def __init__(
        self, kernel: Kernel, key: Key[Array, ""], dimension: int, block_size: int, kind: str = "random"
    ) -> None:
        self.kernel = _as_kernel(kernel)
        self.key = _as_key(key)
        self.dimension = arguments.whole("dimension", dimension)
        self.block_size = arguments.whole("block_size", block_size)
        self.kind = kind
        kernel.check_dimension("the data", dimension)
        kernel.check_kind(kind)

    @property
    def width(self) -> int:
        """The number of features in a block: a cosine and a sine for each frequency."""
        return 2 * self.block_size

    @property
    def blocks(self) -> int | None:
        """The number of blocks; None means that there is no end."""
        return None

    def block(self, i: Any) -> Float[Array, "block_size dimension"]:
        """Frequencies of block i."""
        return self.kernel.frequencies(self.key, self.block_size, self.dimension, self.kind, _index(i, None))

    def evaluate(self, x: Float[Array, "n d"], block: Float[Array, "f d"]) -> Float[Array, "n 2*f"]:
        """Features of the rows of ``x`` at the frequencies of a block."""
        x = _fitting(self.kernel, x, self.dimension)
        phases = jnp.matmul(x, block.T.astype(x.dtype), precision="highest")
        scale = jnp.sqrt(self.kernel.variance.astype(x.dtype) / len(block))
        return scale * jnp.concatenate([jnp.cos(phases), jnp.sin(phases)], axis=1)

    def __call__(self, x: Float[Array, "n d"], i: Any) -> Float[Array, "n 2*block_size"]:
        """Features of the rows of ``x`` in block i."""
        return self.evaluate(x, self.block(i))


class Landmarks(eqx.Module):
    """The kernel at given points, k(x, x_j), in blocks of points.

    Parameters
    ----------
    kernel
        A kernel.
    points
        The points, one a row; their number is a multiple of ``block_size``.
    block_size
        The number of points in a block.

    Examples
    --------
    >>> from thalweg.kernels import Gaussian
    >>> landmarks = Landmarks(Gaussian(), jnp.array([[0.0], [1.0], [2.0], [3.0]]), block_size=2)
    >>> landmarks.blocks
    2
    >>> landmarks(jnp.array([[2.0]]), 1).round(3)
    Array([[1.   , 0.607]], dtype=float...)
    """

    kernel: Kernel
    points: Float[Array, "p d"]
    block_size: int = eqx.field(static=True)

    def __init__(self, kernel: Kernel, points: Float[Array, "p d"], block_size: int) -> None:
        self.kernel = _as_kernel(kernel)
        self.points = kernel.rows("points", points)
        self.block_size = arguments.whole("block_size", block_size)
        if len(self.points) % block_size:
            raise ValueError(
                f"points must be a multiple of block_size={block_size} in number, found {len(self.points)}: "
                f"leave out {len(self.points) % block_size}, or choose another block_size"
            )

    @property
    def dimension(self) -> int:
        """The number of features of x."""
        return int(self.points.shape[1])

    @property
    def width(self) -> int:
        """The number of features in a block: one for each point."""
        return self.block_size

    @property
    def blocks(self) -> int:
        """The number of blocks."""
        return len(self.points) // self.block_size

    def block(self, i: Any) -> Float[Array, "block_size dimension"]:
        """Points of block i."""
        start = _index(i, self.blocks) * self.block_size
        return jax.lax.dynamic_slice_in_dim(self.points, start, self.block_size)

    def evaluate(self, x: Float[Array, "n d"], block: Float[Array, "f d"]) -> Float[Array, "n f"]:
        """k(x, ·) at the points of a block, in the dtype of ``x``."""
        x = _fitting(self.kernel, x, self.dimension)
        return self.kernel(x, block.astype(x.dtype))

    def __call__(self, x: Float[Array, "n d"], i: Any) -> Float[Array, "n block_size"]:
        """k(x, ·) at the points of block i."""
        return self.evaluate(x, self.block(i))


def _as_kernel(kernel: Any) -> Kernel:
    if not isinstance(kernel, Kernel):
        raise TypeError(f"kernel must be a Kernel such as Gaussian(1.0), found {kernel!r}")
    return kernel


def _as_key(key: Any) -> Key[Array, ""]:
    if isinstance(key, jax.Array) and jnp.issubdtype(key.dtype, jax.dtypes.prng_key) and key.ndim == 0:
        return key
    raise TypeError(f"key must be one JAX random key such as jax.random.key(0), found {key!r}")


def _fitting(kernel: Kernel, x: Any, dimension: int) -> Float[Array, "n d"]:
    x = kernel.rows("x", x)
    if x.shape[1] != dimension:
        raise ValueError(f"x must have the {dimension} features of the blocks, found {x.shape[1]}")
    return x


def _index(i: Any, blocks: int | None) -> Any:
    """Check the number of a block where it is known; a traced one is taken as it is."""
    if isinstance(i, int | np.integer):
        return arguments.whole("i", i, least=0, most=None if blocks is None else blocks - 1)
    return i

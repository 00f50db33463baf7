"""Random Fourier features of a kernel in blocks, regenerated from (key, block).

``features(x, i)`` are the features of block i, ``width`` of them; ``features.block(i)`` are the frequencies that they
are made from, and ``features.evaluate(x, block)`` makes them of a block that was kept. The number of the block may be
traced: one compiled step serves all blocks.
"""

from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from thalweg import arguments
from thalweg.codec import storable
from thalweg.kernels.base import Kernel
from thalweg.kernels.names import as_kernel

__all__ = ["RandomFeatures"]


@storable
class RandomFeatures(eqx.Module):
    """Random Fourier features φ_i with E φ_i(x)ᵀφ_i(y) = k(x, y), block by block, without an end.

    φ_i(x) = √(variance/F)·[cos ω₁ᵀx, …, cos ω_Fᵀx, sin ω₁ᵀx, …, sin ω_Fᵀx], and the F frequencies of block i are
    regenerated from the key and i whenever they are needed.

    Parameters
    ----------
    kernel
        A stationary kernel, a sum or product of them, or a word such as "rbf" for one of lengthscale 1.
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
    >>> import jax
    >>> from thalweg.kernels import Gaussian
    >>> features = RandomFeatures(Gaussian(), jax.random.key(0), dimension=2, block_size=2048)
    >>> x = np.array([[0.0, 0.0], [1.0, 0.0]])
    >>> phi = np.asarray(features(x, 0))
    >>> phi.shape
    (2, 4096)
    >>> bool(abs(phi @ phi.T - np.asarray(Gaussian()(x))).max() < 0.05)
    True
    """

    kernel: Kernel = eqx.field(converter=as_kernel)
    key: Key[Array, ""] = eqx.field(converter=partial(arguments.random_key, "key"))
    dimension: int = eqx.field(static=True, converter=partial(arguments.whole, "dimension"))
    block_size: int = eqx.field(static=True, converter=partial(arguments.whole, "block_size"))
    kind: str = eqx.field(static=True, default="random")

    def __check_init__(self) -> None:
        self.kernel.check_dimension("the data", self.dimension)
        self.kernel.check_kind(self.kind)

    @property
    def width(self) -> int:
        """The number of features in a block: a cosine and a sine for each frequency."""
        return 2 * self.block_size

    def block(self, i: Any) -> Float[Array, "block_size dimension"]:
        """Frequencies of block i."""
        # A traced number is taken as it is.
        index = arguments.whole("i", i, least=0) if isinstance(i, int | np.integer) else i
        return self.kernel.frequencies(self.key, self.block_size, self.dimension, self.kind, index)

    def evaluate(self, x: Float[Array, "n d"], block: Float[Array, "f d"]) -> Float[Array, "n 2*f"]:
        """Features of the rows of ``x`` at the frequencies of a block."""
        x = self.kernel.rows("x", x)
        if x.shape[1] != self.dimension:
            raise ValueError(f"x must have the {self.dimension} features of the blocks, found {x.shape[1]}")
        return _cosines_and_sines(self.kernel.variance, x, block)

    def __call__(self, x: Float[Array, "n d"], i: Any) -> Float[Array, "n 2*block_size"]:
        """Features of the rows of ``x`` in block i."""
        return self.evaluate(x, self.block(i))


# Compiled here, so that a call outside of jit makes one program and not one for each operation.
@jax.jit
def _cosines_and_sines(
    variance: Float[Array, ""], x: Float[Array, "n d"], block: Float[Array, "f d"]
) -> Float[Array, "n 2*f"]:
    phases = jnp.matmul(x, block.T.astype(x.dtype), precision="highest")
    scale = jnp.sqrt(jnp.asarray(variance, x.dtype) / len(block))
    return scale * jnp.concatenate([jnp.cos(phases), jnp.sin(phases)], axis=1)

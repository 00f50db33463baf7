"""Coordinates of a kernel machine: blocks of random frequencies or of training points, under one interface."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Scalar

from thalweg.codec import storable
from thalweg.kernels import Kernel, RandomFeatures
from thalweg.kernels.distances import product_in_halves, squared_distances
from thalweg.kernels.draws import KINDS
from thalweg.kernels.forms import Radial

FEATURES = ("landmarks", *KINDS)
"""Kinds of coordinates."""

# Rows of so many features are multiplied sooner on the tensor cores of a GPU (on an H200, of 100 features, a block of
# 4,096 landmarks takes 0.43 ms instead of 0.62 for 16,384 rows).
_WIDE = 32
# Rows that the noise of the features is estimated from.
_SAMPLE = 256


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
    def kept(self) -> int:
        """The rows of a block that the machine keeps; 0 where blocks are made anew each time."""
        raise NotImplementedError

    @property
    def largest(self) -> Array:
        """The largest ‖φ_i(x)‖² there can be."""
        raise NotImplementedError

    def fresh(self, i: Array, x: Float[Array, "b d"]) -> Float[Array, "rows d"]:
        """Make block i, which the batch ``x`` leads to."""
        raise NotImplementedError

    def block(self, i: Array, kept: Float[Array, "blocks rows d"]) -> Float[Array, "rows d"]:
        """Return block i, from what was kept of all blocks."""
        return jax.lax.dynamic_index_in_dim(kept, i, keepdims=False)

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
        x, there = x[:_SAMPLE], there[:_SAMPLE]
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
    def kept(self) -> int:
        """The frequencies, if they are kept."""
        return self.features.block_size if self.keep else 0

    @property
    def largest(self) -> Array:
        """k(x, x): cos² + sin² = 1."""
        return self.features.kernel.variance

    def fresh(self, i: Array, x: Float[Array, "b d"]) -> Float[Array, "rows d"]:
        """The frequencies of block i, whatever the batch."""
        return self.features.block(i).astype(x.dtype)

    def block(self, i: Array, kept: Float[Array, "blocks rows d"]) -> Float[Array, "rows d"]:
        """The frequencies of block i."""
        return super().block(i, kept) if self.keep else self.features.block(i)

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
    >>> Points(Gaussian(), block_size=8).kept
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
    def kept(self) -> int:
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
        wide = x.dtype == jnp.float32 and x.shape[1] >= _WIDE
        if wide and isinstance(kernel, Radial) and jax.default_backend() == "gpu":
            squares = squared_distances(x, block, kernel.lengthscale.astype(x.dtype), by=product_in_halves)
            return kernel.variance.astype(x.dtype) * kernel.profile(squares)
        return kernel(x, block)

    def metric(self, block: Float[Array, "rows d"]) -> Float[Array, "width width"]:
        """The kernel matrix of the points."""
        return self.sections(block)

"""Standard random numbers for frequencies, the same for the same (key, block) on every device, up to rounding.

All are drawn as 32-bit words or as float32, whatever JAX's precision is set to: a model fitted in float64 and loaded in
float32 finds its frequencies again.
"""

from dataclasses import dataclass, replace
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key, UInt32

KINDS = ("random", "orthogonal", "quasi")


@dataclass(frozen=True)
class Block:
    """The ``index``-th block of ``count`` draws of a kind that is generated from a key; the index may be traced."""

    kind: str
    key: Key[Array, ""]
    index: Array
    count: int

    def split(self, parts: int = 2) -> "list[Block]":
        """Return independent blocks of the same kind and index."""
        return [replace(self, key=key) for key in jax.random.split(self.key, parts)]

    def uniforms(self, columns: int) -> Float[Array, "count columns"]:
        """Draw numbers in the open interval (0, 1), independent or low-discrepancy."""
        if self.kind == "quasi":
            words = self._kronecker(columns)
        else:
            words = jax.random.bits(self._folded, (self.count, columns), jnp.uint32)
        # The middle of one of 2²³ cells: float32 holds it exactly, and it is neither 0 nor 1.
        return ((words >> 9).astype(jnp.float32) + 0.5) * np.float32(2.0**-23)

    def normals(self, columns: int) -> Float[Array, "count columns"]:
        """Draw standard normal numbers, independent or low-discrepancy."""
        if self.kind == "quasi":
            return jax.scipy.special.ndtri(self.uniforms(columns))
        return jax.random.normal(self._folded, (self.count, columns), jnp.float32)

    def orthogonal_directions(self, dimension: int) -> Float[Array, "count dimension"]:
        """Draw unit vectors, each uniform on the sphere: orthogonal in groups of ``dimension``, independent between.

        As in Yu, Suresh, Choromanski, Holtmann-Rice and Kumar (2016).
        """
        size = min(self.count, dimension)
        groups = -(-self.count // size)
        normal = jax.random.normal(self._folded, (groups, dimension, size), jnp.float32)
        frames, triangles = jnp.linalg.qr(normal)
        # The signs of R's diagonal make the frame uniform (Haar): without them QR's own convention shows.
        frames = frames * jnp.sign(jnp.diagonal(triangles, axis1=1, axis2=2))[:, None, :]
        return frames.transpose(0, 2, 1).reshape(groups * size, dimension)[: self.count]

    @property
    def _folded(self) -> Key[Array, ""]:
        return jax.random.fold_in(self.key, self.index)

    def _kronecker(self, columns: int) -> UInt32[Array, "count columns"]:
        """Return points t·√p mod 1 of the primes p, moved by one random shift, as fractions of 2³².

        Blocks continue one another. The shift makes each point uniform, so that means over keys are unbiased.
        Arithmetic on words is exact, where t·√p in floating point would lose its fraction as t grows.
        """
        shift = jax.random.bits(self.key, (columns,), jnp.uint32)
        start = jnp.asarray(self.index).astype(jnp.uint32) * np.uint32(self.count)
        points = start + jnp.arange(self.count, dtype=jnp.uint32)
        return points[:, None] * jnp.asarray(_roots_of_primes(columns))[None, :] + shift[None, :]


@cache
def _roots_of_primes(count: int) -> np.ndarray:
    """The fractions of √2, √3, √5, … in units of 2⁻³²."""
    most = 15 + int(1.5 * count * np.log(count + 1))  # above the prime of this number
    is_prime = np.ones(most, bool)
    is_prime[:2] = False
    for factor in range(2, int(np.sqrt(most)) + 1):
        is_prime[factor * factor :: factor] = False
    return np.floor((np.sqrt(np.flatnonzero(is_prime)[:count]) % 1) * 2.0**32).astype(np.uint32)

"""Random probes v with E[v vᵀ] = I, and the uniform numbers their degrees are drawn with."""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

KINDS = ("rademacher", "gaussian", "sphere", "orthogonal")


def draw_probes(
    probe: str, key: Key[Array, ""], dimension: int, units: int, group: int, dtype: np.dtype
) -> Float[Array, "d m"]:
    """Draw ``units`` independent groups of ``group`` probes, one probe per column.

    Rademacher probes have the least variance for the diagonal part; Gaussian and sphere probes are rotation
    invariant; orthogonal probes are orthogonal within a group (and uniform on the sphere), independent between groups.
    """
    count = units * group
    if probe == "rademacher":
        # Thirty-two signs from every random word: the generator is not free beside a sparse product.
        words = jax.random.bits(key, (dimension, -(-count // 32)), jnp.uint32)
        word, bit = np.divmod(np.arange(count), 32)
        set_bits = words[:, word] & jnp.asarray(2**bit, jnp.uint32)[None, :]
        return jnp.where(set_bits == 0, -1.0, 1.0).astype(dtype)
    normal = jax.random.normal(key, (dimension, count), dtype)
    if probe == "gaussian":
        return normal
    length = jnp.sqrt(jnp.asarray(dimension, dtype))
    if probe == "sphere":
        return normal * (length / jnp.linalg.norm(normal, axis=0, keepdims=True))
    frames, triangles = jnp.linalg.qr(normal.reshape(dimension, units, group).transpose(1, 0, 2))
    # The signs of R's diagonal make the frame uniform (Haar): without them QR's own convention shows.
    frames = frames * jnp.sign(jnp.diagonal(triangles, axis1=1, axis2=2))[:, None, :]
    return length * frames.transpose(1, 0, 2).reshape(dimension, count)


def draw_log_uniforms(key: Key[Array, ""], units: int, dtype: np.dtype) -> Float[Array, " units"]:
    """Draw log u for each unit, stratified in pairs: units 2i and 2i+1 fall into [i, i+1) · 2/units; one alone is free.

    A float32 uniform is a multiple of 2⁻²³ and is 0 once in 2²³ draws, so two are combined: u has 46 bits, and the
    logarithm of a u close to zero keeps its digits.
    """
    strata = max(1, units // 2)
    coarse, fine = jax.random.uniform(key, (2, units), dtype)
    bits = 23
    coarse = jnp.floor(coarse * 2**bits) * 2.0**-bits
    fine = jnp.maximum(fine, 2.0**-bits)
    within = jnp.where(coarse > 0, jnp.log(coarse + fine * 2.0**-bits), jnp.log(fine) - bits * math.log(2.0))
    stratum = jnp.arange(units) // 2
    rest = jnp.log((stratum.astype(dtype) + jnp.exp(within)) / strata)
    return jnp.where(stratum == 0, within - math.log(strata), rest)

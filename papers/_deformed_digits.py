"""An endless MNIST: digits shifted, turned and elastically deformed at random, made on the device in batches."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key

_SIDE = 28
_SMOOTHING, _ELASTIC = 4.0, 1.2
"""Simard's elastic fields: the pixels over which white noise is smoothed, and their standard deviation in pixels."""
_SHIFT, _TURN, _STRETCH = 1.0, 0.12, 0.10
"""Standard deviations of the shift in pixels, of the rotation in radians, and of the relative change of size."""


class DeformedDigits:
    """Draws deformed copies of training images, 28 × 28 from 0 to 1, and projects them on principal components."""

    def __init__(self, images: np.ndarray, labels: np.ndarray, components: int, key: Key[Array, ""]) -> None:
        self.images, self.labels = jnp.asarray(images, jnp.float32), jnp.asarray(labels)
        sample = deform(self.images, jnp.arange(len(images)), key).reshape(len(images), -1)
        self.mean = jnp.mean(sample, axis=0)
        centred = sample - self.mean
        _, vectors = np.linalg.eigh(np.asarray(jnp.matmul(centred.T, centred, precision="highest"), np.float64))
        self.basis = jnp.asarray(vectors[:, ::-1][:, :components].copy(), jnp.float32)

    def project(self, images: Float[Array, "n 28 28"]) -> np.ndarray:
        """Return the scores on the principal components."""
        return np.asarray(_project(jnp.asarray(images, jnp.float32), self.mean, self.basis))

    def draw(self, rows: int, key: Key[Array, ""]) -> tuple[np.ndarray, np.ndarray]:
        """Return the scores and labels of ``rows`` new images."""
        index_key, key = jax.random.split(key)
        chosen = jax.random.randint(index_key, (rows,), 0, len(self.images))
        return self.project(deform(self.images, chosen, key)), np.asarray(self.labels[chosen])


def draw_rows(
    draw: Callable[[int, Key[Array, ""]], tuple[np.ndarray, np.ndarray]],
    rows: int,
    features: int,
    rows_per_draw: int,
    key: Key[Array, ""],
) -> tuple[np.ndarray, np.ndarray]:
    """Return rows and their labels, drawn part by part."""
    x, labels, count = np.empty((rows, features), np.float32), np.empty(rows, np.int32), min(rows_per_draw, rows)
    for number, begin in enumerate(range(0, rows, count)):
        part, truth = draw(count, jax.random.fold_in(key, number))
        x[begin : begin + count], labels[begin : begin + count] = part[: rows - begin], truth[: rows - begin]
    return x, labels


@jax.jit
def _project(images: Float[Array, "n 28 28"], mean: Array, basis: Array) -> Float[Array, "n components"]:
    return jnp.matmul(images.reshape(len(images), -1) - mean, basis, precision="highest")


@jax.jit
def deform(images: Float[Array, "n 28 28"], chosen: Int[Array, " b"], key: Key[Array, ""]) -> Float[Array, "b 28 28"]:
    """Return each chosen image moved along a smooth random field, and shifted, turned and stretched a little."""
    keys = jax.random.split(key, 3)
    rows = len(chosen)
    pixels = jnp.arange(_SIDE, dtype=jnp.float32)
    smooth = jnp.exp(-((pixels[:, None] - pixels) ** 2) / (2 * _SMOOTHING**2))
    smooth = smooth / jnp.linalg.norm(smooth, axis=1, keepdims=True)
    noise = jax.random.normal(keys[0], (rows, 2, _SIDE, _SIDE))
    field = _ELASTIC * jnp.einsum("ij,bcjk,lk->bcil", smooth, noise, smooth)
    shift = _SHIFT * jax.random.normal(keys[1], (rows, 2, 1, 1))
    turn, slant, height, width = jax.random.normal(keys[2], (4, rows, 1, 1))
    y, x = jnp.meshgrid(pixels - (_SIDE - 1) / 2, pixels - (_SIDE - 1) / 2, indexing="ij")
    down = _STRETCH * height * y + _TURN * turn * x
    right = _STRETCH * width * x - _TURN * (turn + slant) * y
    field = field + shift + jnp.stack([down, right], axis=1)
    return jax.vmap(_interpolate)(images[chosen], y + (_SIDE - 1) / 2 + field[:, 0], x + (_SIDE - 1) / 2 + field[:, 1])


def _interpolate(image: Float[Array, "28 28"], y: Array, x: Array) -> Float[Array, "28 28"]:
    return jax.scipy.ndimage.map_coordinates(image, [y, x], order=1, mode="constant")

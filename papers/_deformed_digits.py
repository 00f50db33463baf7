"""MNIST without an end: digits shifted, turned and elastically deformed at random, made on the device in batches."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key

_SIDE = 28
# Simard's elastic fields: white noise smoothed over so many pixels, and their standard deviation in pixels.
_SMOOTHNESS, _ELASTIC = 4.0, 1.2
_SHIFT, _TURN, _STRETCH = 1.0, 0.12, 0.10


class DeformedDigits:
    """Draws deformed copies of training images, 28 × 28 from 0 to 1, and projects them on principal components."""

    def __init__(self, images: np.ndarray, labels: np.ndarray, components: int, key: Key[Array, ""]) -> None:
        self.images, self.labels = jnp.asarray(images, jnp.float32), jnp.asarray(labels)
        sample = deformed(self.images, jnp.arange(len(images)), key).reshape(len(images), -1)
        self.mean = jnp.mean(sample, axis=0)
        centred = sample - self.mean
        _, vectors = np.linalg.eigh(np.asarray(jnp.matmul(centred.T, centred, precision="highest"), np.float64))
        self.basis = jnp.asarray(vectors[:, ::-1][:, :components].copy(), jnp.float32)

    def project(self, images: Float[Array, "n 28 28"]) -> np.ndarray:
        """Scores on the principal components."""
        return np.asarray(_project(jnp.asarray(images, jnp.float32), self.mean, self.basis))

    def draw(self, rows: int, key: Key[Array, ""]) -> tuple[np.ndarray, np.ndarray]:
        """Scores and labels of ``rows`` new images."""
        key_of_rows, key = jax.random.split(key)
        chosen = jax.random.randint(key_of_rows, (rows,), 0, len(self.images))
        return self.project(deformed(self.images, chosen, key)), np.asarray(self.labels[chosen])


def drawn(
    draw: Callable[[int, Key[Array, ""]], tuple[np.ndarray, np.ndarray]],
    rows: int,
    features: int,
    at_once: int,
    key: Key[Array, ""],
) -> tuple[np.ndarray, np.ndarray]:
    """Rows and labels, as many as are asked for, drawn part by part."""
    x, labels, many = np.empty((rows, features), np.float32), np.empty(rows, np.int32), min(at_once, rows)
    for number, begin in enumerate(range(0, rows, many)):
        some, truth = draw(many, jax.random.fold_in(key, number))
        x[begin : begin + many], labels[begin : begin + many] = some[: rows - begin], truth[: rows - begin]
    return x, labels


@jax.jit
def _project(images: Float[Array, "n 28 28"], mean: Array, basis: Array) -> Float[Array, "n components"]:
    return jnp.matmul(images.reshape(len(images), -1) - mean, basis, precision="highest")


@jax.jit
def deformed(images: Float[Array, "n 28 28"], chosen: Int[Array, " b"], key: Key[Array, ""]) -> Float[Array, "b 28 28"]:
    """Return each chosen image moved along a smooth random field, and shifted, turned and stretched a little."""
    keys = jax.random.split(key, 3)
    rows = len(chosen)
    at = jnp.arange(_SIDE, dtype=jnp.float32)
    smooth = jnp.exp(-((at[:, None] - at) ** 2) / (2 * _SMOOTHNESS**2))
    smooth = smooth / jnp.linalg.norm(smooth, axis=1, keepdims=True)
    noise = jax.random.normal(keys[0], (rows, 2, _SIDE, _SIDE))
    field = _ELASTIC * jnp.einsum("ij,bcjk,lk->bcil", smooth, noise, smooth)
    shift = _SHIFT * jax.random.normal(keys[1], (rows, 2, 1, 1))
    turn, slant, high, wide = jax.random.normal(keys[2], (4, rows, 1, 1))
    y, x = jnp.meshgrid(at - (_SIDE - 1) / 2, at - (_SIDE - 1) / 2, indexing="ij")
    down = _STRETCH * high * y + _TURN * turn * x
    right = _STRETCH * wide * x - _TURN * (turn + slant) * y
    field = field + shift + jnp.stack([down, right], axis=1)
    return jax.vmap(_sampled)(images[chosen], y + (_SIDE - 1) / 2 + field[:, 0], x + (_SIDE - 1) / 2 + field[:, 1])


def _sampled(image: Float[Array, "28 28"], y: Array, x: Array) -> Float[Array, "28 28"]:
    return jax.scipy.ndimage.map_coordinates(image, [y, x], order=1, mode="constant")

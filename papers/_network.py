"""A small convolutional network for digits: its features, and how it is trained on deformed copies of them."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int, Key, Scalar

from thalweg.experiments._deformed_digits import deformed

FEATURES = 128
_BATCH = 512


class Body(eqx.Module):
    """Two convolutions with pooling and a full layer: 28 × 28 pixels to 128 features, as in LeCun et al. (1998)."""

    first: eqx.nn.Conv2d
    second: eqx.nn.Conv2d
    full: eqx.nn.Linear

    def __init__(self, key: Key[Array, ""], width: int = 32) -> None:
        keys = jax.random.split(key, 3)
        self.first = eqx.nn.Conv2d(1, width, 5, key=keys[0])
        self.second = eqx.nn.Conv2d(width, 2 * width, 5, key=keys[1])
        self.full = eqx.nn.Linear(2 * width * 16, FEATURES, key=keys[2])

    def __call__(self, image: Float[Array, "28 28"]) -> Float[Array, " features"]:
        """The features of one image."""
        seen = _pooled(jax.nn.relu(self.first(image[None])))
        return jax.nn.relu(self.full(_pooled(jax.nn.relu(self.second(seen))).ravel()))


def _pooled(x: Float[Array, "c h w"]) -> Float[Array, "c h/2 w/2"]:
    """The largest of each two by two."""
    return x.reshape(len(x), x.shape[1] // 2, 2, x.shape[2] // 2, 2).max(axis=(2, 4))


def new_head(key: Key[Array, ""], hidden: int = 1) -> eqx.nn.MLP:
    """Full layers on top of the features, one of them hidden, or none where the features are only to be found."""
    return eqx.nn.MLP(FEATURES, 10, FEATURES, hidden, key=key)


Net = tuple[Body | None, eqx.nn.MLP]
"""A body and a head; without a body the head sees features that were made before."""


def logits(net: Net, x: Float[Array, "n ..."]) -> Float[Array, "n classes"]:
    """Of several images, or of several rows of features."""
    body, head = net
    return jax.vmap(head if body is None else lambda image: head(body(image)))(x)


def cross_entropy(values: Float[Array, "n classes"], labels: Int[Array, " n"]) -> Scalar:
    """The mean negative log-likelihood."""
    return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(values, labels))


@eqx.filter_jit
def features_of(body: Body, images: Float[Array, "n 28 28"]) -> Float[Array, "n features"]:
    """Of many images."""
    return jax.vmap(body)(images)


def train(
    net: Net,
    x: Array,
    labels: Int[Array, " n"],
    key: Key[Array, ""],
    until: Callable[[Net], bool],
    begin: Callable[[], None] = lambda: None,
    rate: float = 1e-3,
) -> Net:
    """Adam on batches drawn with replacement, of deformed copies where ``x`` are images, until told to stop.

    ``begin`` is called once all is compiled.
    """
    adam = optax.adam(rate)
    state = adam.init(eqx.filter(net, eqx.is_array))
    jax.block_until_ready(eqx.filter(_step(net, state, x, labels, key, adam), eqx.is_array))
    begin()
    for number in range(10**8):
        net, state = _step(net, state, x, labels, jax.random.fold_in(key, number), adam)
        if until(net):
            break
    return net


# One step a call: in a scan XLA's convolutions on a CPU are fifty times slower.
@eqx.filter_jit
def _step(net: Net, state: Any, x: Array, labels: Array, key: Key[Array, ""], adam: Any) -> tuple[Net, Any]:
    moving, still = eqx.partition(net, eqx.is_array)

    def loss(moving: Any, batch: Array, truth: Array) -> Scalar:
        return cross_entropy(logits(eqx.combine(moving, still), batch), truth)

    pick, bend = jax.random.split(key)
    chosen = jax.random.randint(pick, (_BATCH,), 0, len(labels))
    batch = deformed(x, chosen, bend) if x.ndim == 3 else x[chosen]
    updates, state = adam.update(jax.grad(loss)(moving, batch, labels[chosen]), state, moving)
    return eqx.combine(optax.apply_updates(moving, updates), still), state


def stop_after(steps: int) -> Callable[[Net], bool]:
    """Stop after so many steps."""
    seen = iter(range(1, steps + 1))
    return lambda net: next(seen) == steps


def error_of(values: Array, labels: Any) -> float:
    """The part of labels that are missed."""
    return float(np.mean(np.argmax(np.asarray(values), axis=1) != np.asarray(labels)))

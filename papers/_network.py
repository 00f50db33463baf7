"""A small convolutional network for digits: its features, and how it is trained on deformed copies of them."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int, Key, Scalar

from papers._deformed_digits import deform

FEATURES = 128
BATCH_SIZE = 512


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
        """Return the features of one image."""
        hidden = _max_pool(jax.nn.relu(self.first(image[None])))
        return jax.nn.relu(self.full(_max_pool(jax.nn.relu(self.second(hidden))).ravel()))


def _max_pool(x: Float[Array, "c h w"]) -> Float[Array, "c h/2 w/2"]:
    """Return the largest of each two by two pixels."""
    return x.reshape(len(x), x.shape[1] // 2, 2, x.shape[2] // 2, 2).max(axis=(2, 4))


def new_head(key: Key[Array, ""], hidden: int = 1) -> eqx.nn.MLP:
    """Return full layers on top of the features, with one hidden layer, or none to train the features only."""
    return eqx.nn.MLP(FEATURES, 10, FEATURES, hidden, key=key)


Net = tuple[Body | None, eqx.nn.MLP]
"""A body and a head; without a body the input of the head is features."""


def logits(net: Net, x: Float[Array, "n ..."]) -> Float[Array, "n classes"]:
    """Return the logits of several images, or of several rows of features."""
    body, head = net
    return jax.vmap(head if body is None else lambda image: head(body(image)))(x)


def cross_entropy(values: Float[Array, "n classes"], labels: Int[Array, " n"]) -> Scalar:
    """Return the mean negative log-likelihood."""
    return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(values, labels))


@eqx.filter_jit
def features_of(body: Body, images: Float[Array, "n 28 28"]) -> Float[Array, "n features"]:
    """Return the features of many images."""
    return jax.vmap(body)(images)


def train(
    net: Net,
    x: Array,
    labels: Int[Array, " n"],
    key: Key[Array, ""],
    is_over: Callable[[Net], bool],
    on_start: Callable[[], None] = lambda: None,
    rate: float = 1e-3,
) -> Net:
    """Run Adam on batches drawn with replacement, of deformed copies where ``x`` are images, until ``is_over``.

    ``on_start`` is called once all is compiled.
    """
    adam = optax.adam(rate)
    state = adam.init(eqx.filter(net, eqx.is_array))
    jax.block_until_ready(eqx.filter(_step(net, state, x, labels, key, adam), eqx.is_array))
    on_start()
    for number in range(10**8):
        net, state = _step(net, state, x, labels, jax.random.fold_in(key, number), adam)
        if is_over(net):
            break
    return net


# One step a call: in a scan XLA's convolutions on a CPU are fifty times slower.
@eqx.filter_jit
def _step(net: Net, state: Any, x: Array, labels: Array, key: Key[Array, ""], adam: Any) -> tuple[Net, Any]:
    arrays, static = eqx.partition(net, eqx.is_array)

    def loss(arrays: Any, batch: Array, truth: Array) -> Scalar:
        return cross_entropy(logits(eqx.combine(arrays, static), batch), truth)

    index_key, deform_key = jax.random.split(key)
    chosen = jax.random.randint(index_key, (BATCH_SIZE,), 0, len(labels))
    batch = deform(x, chosen, deform_key) if x.ndim == 3 else x[chosen]
    updates, state = adam.update(jax.grad(loss)(arrays, batch, labels[chosen]), state, arrays)
    return eqx.combine(optax.apply_updates(arrays, updates), static), state


def stop_after(steps: int) -> Callable[[Net], bool]:
    """Return a rule that ends the training after so many steps."""
    counter = iter(range(1, steps + 1))
    return lambda net: next(counter) == steps


def error_of(values: Array, labels: Any) -> float:
    """Return the share of labels that are missed."""
    return float(np.mean(np.argmax(np.asarray(values), axis=1) != np.asarray(labels)))

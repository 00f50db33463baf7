"""Batches without replacement: each epoch a new random order of the examples, cut into batches."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, Key


class Epoch(NamedTuple):
    """The order of the examples in the current epoch, and how many of its batches were used."""

    order: Int[Array, " n"]
    used: Int[Array, ""]


def start_epoch(examples: int) -> Epoch:
    """An epoch that is about to begin."""
    return Epoch(jnp.arange(examples), jnp.zeros((), jnp.int32))


def draw_batch(epoch: Epoch, key: Key[Array, ""], batch_size: int) -> tuple[Int[Array, " b"], Epoch]:
    """Return the next batch's indices; n mod ``batch_size`` examples, others each time, are left out of an epoch."""
    examples = epoch.order.shape[0]
    shuffled = lambda: jax.random.permutation(key, examples).astype(epoch.order.dtype)
    order = jax.lax.cond(epoch.used == 0, shuffled, lambda: epoch.order)
    batch = jax.lax.dynamic_slice(order, (epoch.used * batch_size,), (batch_size,))
    return batch, Epoch(order, (epoch.used + 1) % (examples // batch_size))

"""Mini-batches: the mean over a random part of the examples instead of all of them."""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key, PyTree, Scalar

from thalweg.arguments import flag, function, whole
from thalweg.oracles.base import Oracle, Out, differentiate

__all__ = ["MiniBatch"]


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


class MiniBatch(Oracle):
    """The gradient of Σ wᵢ ℓᵢ(x) / Σ wᵢ, estimated from a random batch.

    Parameters
    ----------
    losses
        ``losses(x, batch) -> (B,)``: the loss of each example of a batch.
    data
        A pytree of arrays whose first axis runs over the n examples; ``batch`` has the same tree, B long.
    batch_size
        B. Work is counted in examples: B for an estimate, n for a full gradient.
    replacement
        True (default): every batch is drawn afresh from all examples. False: by epochs, each a new random order
        of the examples cut into batches; n mod B examples, others each time, are left out of an epoch.
    weights
        Non-negative weights wᵢ of the examples; equal by default.

    Examples
    --------
    >>> import equinox as eqx, jax, numpy as np
    >>> data = (np.arange(8.0)[:, None], np.arange(8.0))
    >>> oracle = MiniBatch(lambda x, batch: (batch[0] @ x - batch[1]) ** 2, data, batch_size=4)
    >>> out, _ = eqx.filter_jit(oracle.estimate)(np.zeros(1), oracle.init(np.zeros(1)), jax.random.key(0))
    >>> out.gradient.shape, float(out.work)
    ((1,), 4.0)
    """

    losses: Callable[[PyTree, PyTree], Float[Array, " b"]] = eqx.field(static=True)
    data: PyTree[Array]
    weights: Float[Array, " n"] | None
    batch_size: int = eqx.field(static=True)
    replacement: bool = eqx.field(static=True)

    def __init__(
        self,
        losses: Callable[[PyTree, PyTree], Any],
        data: PyTree,
        batch_size: int,
        *,
        replacement: bool = True,
        weights: Any = None,
    ) -> None:
        self.losses = function("losses of MiniBatch", losses)
        try:
            self.data = jax.tree.map(jnp.asarray, data)
        except (TypeError, ValueError) as error:
            raise TypeError(f"data must hold arrays of numbers, found {type(data).__name__}: {error}") from error
        count = _count_examples(self.data)
        self.batch_size = whole("batch_size", batch_size, most=count)
        self.replacement = flag("replacement of MiniBatch", replacement)
        self.weights = None if weights is None else _normalised(weights, count)

    @property
    def examples(self) -> int:
        """How many examples there are."""
        return jax.tree.leaves(self.data)[0].shape[0]

    def init(self, x: PyTree[Array]) -> PyTree:
        """Nothing with replacement; else an epoch that is about to begin."""
        return () if self.replacement else start_epoch(self.examples)

    def _mean(self, x: PyTree[Array], data: PyTree[Array], weights: Array | None) -> Scalar:
        losses = self.losses(x, data)
        wanted = (jax.tree.leaves(data)[0].shape[0],)
        if jnp.shape(losses) != wanted:
            raise ValueError(f"losses must return one loss per example, shape {wanted}, found {jnp.shape(losses)}")
        return jnp.mean(losses if weights is None else weights.astype(losses.dtype) * losses)

    def estimate(self, x: PyTree[Array], state: PyTree, key: Key[Array, ""]) -> tuple[Out, PyTree]:
        """Return mean loss and gradient over one batch."""
        if self.replacement:
            indices = jax.random.randint(key, (self.batch_size,), 0, self.examples)
        else:
            indices, state = draw_batch(state, key, self.batch_size)
        batch = jax.tree.map(lambda leaf: leaf[indices], self.data)
        weights = None if self.weights is None else self.weights[indices]
        return differentiate(lambda x: self._mean(x, batch, weights), x, float(self.batch_size)), state

    def value(self, x: PyTree[Array]) -> Scalar:
        """The mean loss over all examples."""
        return self._mean(x, self.data, self.weights)

    def full(self, x: PyTree[Array]) -> Out:
        """Return mean loss and exact gradient over all examples."""
        return differentiate(self.value, x, float(self.examples))


def _count_examples(data: PyTree[Array]) -> int:
    shapes = {jax.tree_util.keystr(path): leaf.shape for path, leaf in jax.tree_util.tree_leaves_with_path(data)}
    lengths = {shape[:1] for shape in shapes.values()}
    if len(lengths) != 1 or () in lengths:
        raise ValueError(f"data must hold arrays of one common length along the first axis, found the shapes {shapes}")
    if lengths == {(0,)}:
        raise ValueError("data must hold at least one example, found none")
    return lengths.pop()[0]


def _normalised(weights: Any, count: int) -> Float[Array, " n"]:
    """Scale to mean 1, so that the mean of wᵢℓᵢ is the weighted mean."""
    traced = isinstance(weights, jax.core.Tracer)
    try:
        array = (jnp if traced else np).asarray(weights, dtype=jnp.result_type(float))
    except (TypeError, ValueError):
        raise TypeError(f"weights must be numbers, one per example, found {weights!r}") from None
    if array.shape != (count,):
        raise ValueError(f"weights must have shape ({count},), one per example, found {array.shape}")
    if traced:
        return array / jnp.mean(array)
    if not np.all((array >= 0) & np.isfinite(array)) or not np.any(array):
        raise ValueError(f"weights must be finite, non-negative and not all 0, found {array}")
    return jax.device_put(array / np.mean(array))  # in NumPy, which compiles nothing

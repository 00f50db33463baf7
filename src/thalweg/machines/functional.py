"""The functional gradient of a loss along a block of coordinates: stochastic in the examples and in the features."""

from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, Scalar

from thalweg.machines.losses import Loss


class Batch(NamedTuple):
    """Examples, one per row. A row of weight 0 is padding.

    >>> Batch(jnp.zeros((4, 2)), jnp.ones((4, 1)), jnp.ones(4)).x.shape
    (4, 2)
    """

    x: Float[Array, "b d"]
    y: Float[Array, "b c"]
    weights: Float[Array, " b"]


class Slopes(NamedTuple):
    """What a batch says at the predictions f."""

    rows: Float[Array, "b c"]
    """w_b·∂ℓ(f(x_b), y_b)."""
    total: Scalar
    """The sum of the weights."""
    value: Scalar
    """The weighted mean of the losses."""

    @property
    def mean(self) -> Float[Array, " c"]:
        """ḡ, the weighted mean of the gradients."""
        return jnp.sum(self.rows, axis=0) / self.total


class FunctionalGradient(eqx.Module):
    """The doubly stochastic gradient of Dai et al. (2014).

    The gradient of E ℓ(f(x), y) in the function f is E g·k(x, ·) with g = ∂ℓ. For a batch and a block i of features
    with E φ_i(x)ᵀφ_i(x′) = k(x, x′) the function φ_i(·)ᵀ mean_b φ_i(x_b) g_bᵀ estimates it without bias.

    Parameters
    ----------
    evaluate
        ``evaluate(x, block)``, the features of the rows of x in a block.
    loss
        A loss.

    Examples
    --------
    >>> import jax
    >>> from thalweg.kernels import Gaussian, RandomFeatures
    >>> from thalweg.machines.losses import SquaredLoss
    >>> features = RandomFeatures(Gaussian(), jax.random.key(0), dimension=1, block_size=2)
    >>> oracle = FunctionalGradient(features.evaluate, SquaredLoss())
    >>> batch = Batch(jnp.array([[0.0], [1.0]]), jnp.array([[1.0], [0.0]]), jnp.ones(2))
    >>> slopes = oracle.slopes(jnp.zeros((2, 1)), batch)
    >>> oracle.along(features.block(0), batch, slopes)[1].shape
    (4, 1)
    """

    evaluate: Any
    loss: Loss

    def slopes(self, f: Float[Array, "b c"], batch: Batch) -> Slopes:
        """Return the gradients of the losses at the predictions ``f``."""
        total = jnp.sum(batch.weights)
        value = jnp.vdot(batch.weights, self.loss.value(f, batch.y)) / total
        return Slopes(batch.weights[:, None] * self.loss.gradient(f, batch.y), total, value)

    def along(
        self, block: Array, batch: Batch, slopes: Slopes
    ) -> tuple[Float[Array, "b width"], Float[Array, "width c"]]:
        """Return the features of the batch in a block, and mean_b φ(x_b) g_bᵀ."""
        features = self.evaluate(batch.x, block)
        return features, jnp.matmul(features.T, slopes.rows, precision="highest") / slopes.total

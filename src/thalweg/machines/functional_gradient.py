"""Doubly stochastic steps: the functional gradient along a block, one step, and a compiled scan of them.

The gradient of E ℓ(f(x), y) in the function f is E g·k(x, ·) with g = ∂ℓ. A batch and a block of features estimate it
without bias (Dai et al., 2014); a rule chooses the block of each step (Li and Póczos, 2017).
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key, Scalar

from thalweg.codec import storable
from thalweg.linalg import factorise
from thalweg.machines.doubly_stochastic import BlockChoice, Rule, StepContext
from thalweg.machines.expansion import Coordinates, Expansion, Points, evaluate, with_capacity
from thalweg.machines.losses import Loss
from thalweg.rows import Batch

__all__ = ["FunctionalGradient", "Machine", "ValidatedStep", "run"]

LEAST_SCALE = 1e-6
"""All weights are rescaled when the lazy shrinkage falls below this, long before it could underflow."""


class BatchGradients(NamedTuple):
    """The gradients of the losses of a batch at the predictions f."""

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
    >>> gradients = oracle.gradients(jnp.zeros((2, 1)), batch)
    >>> oracle.along(features.block(0), batch, gradients)[1].shape
    (4, 1)
    """

    evaluate: Any
    loss: Loss

    def gradients(self, f: Float[Array, "b c"], batch: Batch) -> BatchGradients:
        """Return the gradients of the losses at the predictions ``f``."""
        total = jnp.sum(batch.weights)
        value = jnp.vdot(batch.weights, self.loss.value(f, batch.y)) / total
        return BatchGradients(batch.weights[:, None] * self.loss.gradient(f, batch.y), total, value)

    def along(
        self, block: Array, batch: Batch, gradients: BatchGradients
    ) -> tuple[Float[Array, "b width"], Float[Array, "width c"]]:
        """Return the features of the batch in a block, and mean_b φ(x_b) g_bᵀ."""
        features = self.evaluate(batch.x, block)
        return features, jnp.matmul(features.T, gradients.rows, precision="highest") / gradients.total


@storable
class ValidatedStep(eqx.Module):
    """A step as long as it pays on rows that did not propose it.

    Every other row of a batch proposes a direction, and the rest validate how far to go along it: to the minimiser of
    their losses' quadratic bound, at most 1. The noise of the proposers is not followed.

    Examples
    --------
    >>> float(ValidatedStep().size(jnp.array(3)))  # the gradient_bound there may be
    1.0
    """

    def size(self, count: Int[Array, ""]) -> Scalar:
        """1, the size of a step that solves for its block on the batch."""
        return jnp.ones(())


@storable
class Machine(eqx.Module):
    """The parts of a method: coordinates, loss, rule, step, ridge, and whether blocks are preconditioned.

    Examples
    --------
    >>> from thalweg.kernels import Gaussian
    >>> from thalweg.machines import Capped, Points, SquaredLoss
    >>> Machine(Points(Gaussian(), 8), SquaredLoss(), Capped(4), ValidatedStep(), jnp.array(0.1)).precondition
    True
    """

    coordinates: Coordinates
    loss: Loss
    rule: Rule
    step: Any
    """:class:`ValidatedStep`, or a step rule of :mod:`thalweg.descent` whose size depends on the count alone."""
    ridge: Array
    """λ of E ℓ(f(x), y) + λ/2·‖f‖²."""
    precondition: bool = eqx.field(static=True, default=True)


class StepReport(NamedTuple):
    """What a step did."""

    value: Scalar
    """The mean loss of the batch before the step."""
    block: Int[Array, ""]
    size: Scalar


def run(
    machine: Machine, expansion: Expansion, batches: Batch, keys: Key[Array, " steps"]
) -> tuple[Expansion, StepReport]:
    """Take a step for each batch, after making room for the blocks that the rule may add.

    The arrays of ``batches`` have the steps as their first axis, and there is a key for each step.

    Examples
    --------
    >>> from thalweg.kernels import Gaussian
    >>> from thalweg.machines import Capped, Points, SquaredLoss, empty
    >>> points = Points(Gaussian(), block_size=2)
    >>> machine = Machine(points, SquaredLoss(), Capped(4), ValidatedStep(), jnp.array(0.1))
    >>> x = jnp.arange(8.0).reshape(2, 4, 1)
    >>> start = empty(points, dimension=1, outputs=1, capacity=1, dtype=x.dtype)
    >>> found, report = run(machine, start, Batch(x, jnp.sin(x), jnp.ones((2, 4))), jax.random.split(jax.random.key(0)))
    >>> int(found.used), report.value.shape
    (2, (2,))
    """
    steps, rows = batches.weights.shape
    if len(keys) != steps:
        raise ValueError(f"keys must be as many as the batches, {steps}, found {len(keys)}")
    if isinstance(machine.coordinates, Points) and rows < machine.coordinates.block_size:
        raise ValueError(
            f"batches must have at least block_size={machine.coordinates.block_size} rows, of which landmarks are "
            f"made, found {rows}"
        )
    return scanned(machine, with_capacity(expansion, int(expansion.used) + steps, machine.rule.limit), batches, keys)


@jax.jit
def scanned(
    machine: Machine, expansion: Expansion, batches: Batch, keys: Key[Array, " steps"]
) -> tuple[Expansion, StepReport]:
    """Do what :func:`run` does, for an expansion that has room."""

    def body(carry: Expansion, step: tuple[Batch, Key[Array, ""]]) -> tuple[Expansion, StepReport]:
        return take(machine, carry, *step)

    return jax.lax.scan(body, expansion, (batches, keys))


def take(machine: Machine, expansion: Expansion, batch: Batch, key: Key[Array, ""]) -> tuple[Expansion, StepReport]:
    """Take one step of the algorithms of Li and Póczos (2017), corrected; there must be room for a new block."""
    oracle = FunctionalGradient(machine.coordinates.evaluate, machine.loss)
    gradients = oracle.gradients(evaluate(machine.coordinates, expansion, batch.x), batch)
    fresh = machine.coordinates.fresh(expansion.used, batch.x)
    expansion = _update_moments(machine, expansion, batch, gradients, fresh)
    context = _context(machine, expansion, gradients)
    choice = machine.rule.choose(expansion, context, key)
    old = machine.coordinates.block(choice.block, expansion.blocks).astype(batch.x.dtype)
    block = jnp.where(choice.new, fresh, old)
    if isinstance(machine.step, ValidatedStep):
        proposing, weighed = _proposers(batch, gradients)
        features, gradient = oracle.along(block, proposing, weighed)
        half = Batch(*(part[::2] for part in proposing))  # of the others nothing would be left in the curvature
        direction = _direction(machine, block, features[::2], gradient, half, weighed)
        choice = choice._replace(
            size=_validated_size(machine, jnp.matmul(features, direction, precision="highest"), batch, gradients)
        )
    else:
        features, gradient = oracle.along(block, batch, gradients)
        direction = _direction(machine, block, features, gradient, batch, gradients)
    expansion = _move(machine, expansion, choice, context, block, direction)
    return expansion, StepReport(gradients.value, choice.block, choice.size)


def _direction(
    machine: Machine,
    block: Float[Array, "rows d"],
    features: Float[Array, "b width"],
    gradient: Float[Array, "width c"],
    batch: Batch,
    gradients: BatchGradients,
) -> Float[Array, "width c"]:
    """P_k times the gradient: P_k = (L·ZᵀZ/B + λR)⁻¹, or 1/‖φ‖² where blocks are not preconditioned."""
    if not machine.precondition:
        return gradient * (machine.coordinates.kernel.variance / machine.coordinates.largest).astype(gradient.dtype)
    # At full precision: TF32, which GPUs use unless told, would leave the matrix indefinite.
    curvature = jnp.matmul(features.T, batch.weights[:, None] * features, precision="highest")
    curvature *= machine.loss.curvature / gradients.total
    curvature += machine.ridge.astype(gradient.dtype) * machine.coordinates.metric(block)
    return factorise(curvature).solve(gradient)


def _proposers(batch: Batch, gradients: BatchGradients) -> tuple[Batch, BatchGradients]:
    """Return the batch with no weight on the rows of odd number."""
    proposes = jnp.arange(len(batch.weights)) % 2 == 0
    weights = jnp.where(proposes, batch.weights, 0)
    return batch._replace(weights=weights), gradients._replace(
        rows=jnp.where(proposes[:, None], gradients.rows, 0), total=jnp.sum(weights)
    )


def _validated_size(machine: Machine, change: Float[Array, "b c"], batch: Batch, gradients: BatchGradients) -> Scalar:
    """The step along −``change`` at which the rows of odd number bound their losses lowest, from 0 to 1."""
    judges = jnp.arange(len(batch.weights)) % 2 == 1
    gain = jnp.sum(jnp.where(judges[:, None], gradients.rows * change, 0))
    curvature = machine.loss.curvature * jnp.sum(jnp.where(judges, batch.weights * jnp.sum(change**2, axis=1), 0))
    return jnp.clip(gain / jnp.where(curvature > 0, curvature, 1), 0, 1)


def _update_moments(
    machine: Machine, expansion: Expansion, batch: Batch, gradients: BatchGradients, fresh: Array
) -> Expansion:
    """Keep up what the checked rule must know: σ² and the mean of ‖g_b‖²."""
    if not machine.rule.checks:
        return expansion
    noise = jax.lax.cond(
        expansion.noise < 0,
        lambda: machine.coordinates.noise(batch.x, batch.weights > 0, fresh),
        lambda: expansion.noise,
    )
    # Rows are w·g, and the mean is that of w·‖g‖²: a row of weight 2 counts as two rows.
    squares = jnp.sum(gradients.rows**2 / jnp.where(batch.weights > 0, batch.weights, 1)[:, None]) / gradients.total
    mean_square = expansion.mean_square + (squares - expansion.mean_square) / (expansion.steps + 1).astype(
        squares.dtype
    )
    return expansion._replace(noise=noise, mean_square=mean_square)


def _context(machine: Machine, expansion: Expansion, gradients: BatchGradients) -> StepContext:
    dtype = expansion.weights.dtype
    size = jnp.asarray(machine.step.size(expansion.steps), dtype)
    gradient_bound = machine.loss.gradient_bound(len(gradients.mean))
    noise = (
        (expansion.mean_square if gradient_bound is None else gradient_bound**2)
        * expansion.noise
        / (2 * gradients.total)
    )
    return StepContext(gradients.mean, noise, size, machine.ridge.astype(dtype))


def _move(
    machine: Machine,
    expansion: Expansion,
    choice: BlockChoice,
    context: StepContext,
    block: Float[Array, "rows d"],
    direction: Float[Array, "width c"],
) -> Expansion:
    """Shrink everything, lazily, and step along the block."""
    scale = expansion.scale * jnp.maximum(1 - choice.size * context.ridge, 0)
    fold = scale < LEAST_SCALE
    kept = jnp.where(fold, scale, 1)
    scale = jnp.where(fold, 1, scale)
    weights, drift = jax.lax.cond(
        fold, lambda: (kept * expansion.weights, kept * expansion.drift), lambda: (expansion.weights, expansion.drift)
    )
    k = choice.block
    blocks = (
        expansion.blocks.at[k].set(block.astype(expansion.blocks.dtype)) if machine.coordinates.stored_rows else None
    )
    return expansion._replace(
        weights=weights.at[k].add(-choice.size / scale * direction),
        drift=drift.at[k].add(-choice.size / scale * context.mean),
        blocks=expansion.blocks if blocks is None else blocks,
        used=expansion.used + choice.new.astype(expansion.used.dtype),
        scale=scale,
        steps=expansion.steps + 1,
    )

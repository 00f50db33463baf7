"""Coordinate rules: which block a step goes along, an old one or a new one, and how far."""

from typing import ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key, Scalar

from thalweg.arguments import number, whole
from thalweg.codec import storable
from thalweg.machines.expansion import Expansion

__all__ = ["Capped", "Checked", "New", "Rule", "Uniform"]


class BlockChoice(NamedTuple):
    """A block, the size of the step along it, and whether the block is new."""

    block: Int[Array, ""]
    size: Scalar
    new: Bool[Array, ""]


class StepContext(NamedTuple):
    """What a rule may base its choice on."""

    mean: Float[Array, " c"]
    """ḡ, the mean gradient of the batch."""
    noise: Scalar
    """v = 2M²σ²/((κ + φ)²B), with κ + φ = 2."""
    size: Scalar
    """γ, the step of the schedule."""
    ridge: Scalar
    """λ."""


class Rule(eqx.Module):
    """Chooses a block for each step; a subclass defines :meth:`choose`.

    Examples
    --------
    >>> New().limit, Capped(4).limit
    (None, 4)
    """

    checks: ClassVar[bool] = False
    """Whether the rule needs the noise, which must then be estimated."""

    @property
    def limit(self) -> int | None:
        """The most blocks there will be; None where there is no end."""
        return None

    def choose(self, expansion: Expansion, context: StepContext, key: Key[Array, ""]) -> BlockChoice:
        """Choose the block of one step."""
        raise NotImplementedError(f"{type(self).__name__} must define choose(expansion, context, key)")


@storable
class New(Rule):
    """Always a new block: DSG, Algorithm 1 of Li and Póczos (2017).

    Examples
    --------
    >>> New().checks
    False
    """

    def choose(self, expansion: Expansion, context: StepContext, key: Key[Array, ""]) -> BlockChoice:
        """The next block."""
        return BlockChoice(expansion.used, context.size, jnp.array(True))


@storable
class Uniform(Rule):
    """New blocks for G steps, then for U steps old ones, drawn uniformly: UDSG, Algorithm 3 with (i − 1) mod (G + U).

    Parameters
    ----------
    new
        G.
    old
        U.

    Examples
    --------
    >>> Uniform(new=2, old=3)
    Uniform(new=2, old=3)
    """

    new: int = eqx.field(static=True, default=1)
    old: int = eqx.field(static=True, default=1)

    def __check_init__(self) -> None:
        whole("new of Uniform", self.new)
        whole("old of Uniform", self.old, least=0)

    def choose(self, expansion: Expansion, context: StepContext, key: Key[Array, ""]) -> BlockChoice:
        """New or old by the count of steps."""
        new = expansion.steps % (self.new + self.old) < self.new
        return BlockChoice(jnp.where(new, expansion.used, _random_block(expansion, key)), context.size, new)


@storable
class Checked(Rule):
    """The old block with the longest safe step, if that is longer than γ, else a new one: CDSG, Algorithm 4 corrected.

    With A = ‖ḡ‖² + v and Δ_k = ⟨β_k, ḡ⟩² − A(‖β_k‖² − γ²‖ḡ‖²)/2 the step is s_k = (⟨β_k, ḡ⟩ + √Δ_k)/A where Δ_k ≥ 0,
    the longest s with 2‖β_k − sḡ‖² + 2s²v ≤ ‖β_k‖² + γ²‖ḡ‖², which is (9) of Li and Póczos (2017), corrected. That k is
    chosen by the data makes it a heuristic: the gradient is no longer unbiased.

    Parameters
    ----------
    stretch
        c: no step is longer than cγ. Infinite is the paper's: then s grows with β without limit, up to 1/λ.

    Examples
    --------
    >>> Checked(stretch=3.0).checks
    True
    """

    stretch: float = eqx.field(static=True, default=10.0)

    def __check_init__(self) -> None:
        number("stretch of Checked", self.stretch, least=1, finite=False)

    checks: ClassVar[bool] = True

    def choose(self, expansion: Expansion, context: StepContext, key: Key[Array, ""]) -> BlockChoice:
        """The longest safe step of (9)."""
        sizes = self.safe_sizes(expansion, context)
        best = jnp.argmax(sizes).astype(expansion.used.dtype)
        new = sizes[best] <= context.size
        longest = jnp.minimum(self.stretch * context.size, 1 / jnp.maximum(context.ridge, jnp.finfo(sizes.dtype).tiny))
        old_size = jnp.minimum(sizes[best], longest)
        return BlockChoice(jnp.where(new, expansion.used, best), jnp.where(new, context.size, old_size), new)

    def safe_sizes(self, expansion: Expansion, context: StepContext) -> Float[Array, " capacity"]:
        """s_k for each block, 0 where there is none."""
        drift = expansion.scale * expansion.drift
        square = jnp.vdot(context.mean, context.mean)
        along = drift @ context.mean
        a = square + context.noise
        discriminant = along**2 - a * (jnp.sum(drift**2, axis=1) - context.size**2 * square) / 2
        there = (
            (jnp.arange(expansion.capacity, dtype=expansion.used.dtype) < expansion.used)
            & (discriminant >= 0)
            & (a > 0)
        )
        return jnp.where(there, (along + jnp.sqrt(jnp.maximum(discriminant, 0))) / jnp.where(a > 0, a, 1), 0)


@storable
class Capped(Rule):
    """New blocks until there are ``blocks`` of them, then old ones, drawn uniformly.

    Parameters
    ----------
    blocks
        The cap.

    Examples
    --------
    >>> Capped(4).limit
    4
    """

    blocks: int = eqx.field(static=True)

    def __check_init__(self) -> None:
        whole("blocks of Capped", self.blocks)

    @property
    def limit(self) -> int:
        """The cap."""
        return self.blocks

    def choose(self, expansion: Expansion, context: StepContext, key: Key[Array, ""]) -> BlockChoice:
        """New while there is room."""
        new = expansion.used < self.blocks
        return BlockChoice(jnp.where(new, expansion.used, _random_block(expansion, key)), context.size, new)


def _random_block(expansion: Expansion, key: Key[Array, ""]) -> Int[Array, ""]:
    return jax.random.randint(key, (), 0, jnp.maximum(expansion.used, 1)).astype(expansion.used.dtype)

"""Averages of the iterates, for stochastic gradients: all in the coordinates of x and in O(1) memory."""

from functools import partial
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, PyTree

from thalweg import trees
from thalweg.arguments import flag, whole

__all__ = ["Averaging", "Last", "PolyakRuppert", "Suffix", "Weighted"]


class Averaging(trees.Part):
    """What the solution is, given all iterates.

    Examples
    --------
    >>> Last().solution(1.0, ())
    1.0
    """

    def init(self, x: PyTree[Array]) -> PyTree:
        """Return the state before any step."""
        return ()

    def update(self, x: PyTree[Array], state: PyTree) -> PyTree:
        """Take in one more iterate."""
        return ()

    def solution(self, x: PyTree[Array], state: PyTree) -> PyTree[Array]:
        """Return the average; ``x`` is the last iterate, which is the solution unless told otherwise."""
        return x


class Last(Averaging):
    """The last iterate: no averaging.

    Examples
    --------
    >>> Last().solution(1.0, ())
    1.0
    """


class RunningMean(NamedTuple):
    """A running mean and how many iterates it has seen."""

    mean: PyTree[Array]
    seen: Int[Array, ""]


def _wide(x: PyTree[Array]) -> PyTree[Array]:
    """In float32 at least: a long mean of half-precision numbers would stand still."""
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, trees.single(leaf.dtype)), x)


def _narrow(mean: PyTree[Array], x: PyTree[Array]) -> PyTree[Array]:
    return jax.tree.map(lambda part, leaf: part.astype(leaf.dtype), mean, x)


class _Running(Averaging):
    power: ClassVar[Any]

    def init(self, x: PyTree[Array]) -> PyTree:
        """The mean of nothing yet."""
        # Of zeros, so that the first iterate is taken in without rounding, however far the start.
        return RunningMean(jax.tree.map(jnp.zeros_like, _wide(x)), trees.scalar(0, jnp.int32))

    def update(self, x: PyTree[Array], state: PyTree) -> PyTree:
        """Give the k-th iterate the share (power+1)/(k+power) of all weights up to it."""
        count = state.seen + 1
        share = (self.power + 1) / (count + self.power).astype(trees.dtype(state.mean))
        return RunningMean(trees.add_scaled(state.mean, share, trees.subtract(_wide(x), state.mean)), count)

    def solution(self, x: PyTree[Array], state: PyTree) -> PyTree[Array]:
        """Return the mean."""
        return trees.where(state.seen == 0, x, _narrow(state.mean, x))


class PolyakRuppert(_Running):
    """The mean of all iterates, x_1 … x_k, or x_0 … x_k.

    Textbooks that call the start θ_1, and the bound CG/√M for the mean of θ_1 … θ_M with them, count it among the
    iterates: that is ``start=True``, after M − 1 steps. Without it the mean forgets a bad start sooner.

    Parameters
    ----------
    start
        Whether x_0 is one of them.

    Examples
    --------
    >>> import numpy as np
    >>> for average in (PolyakRuppert(), PolyakRuppert(start=True)):
    ...     state = average.init(np.full(1, 8.0))
    ...     for x in (np.ones(1), np.full(1, 3.0)):
    ...         state = average.update(x, state)
    ...     print(average.solution(x, state))
    [2.]
    [4.]
    """

    power: ClassVar[int] = 0
    start: bool = eqx.field(static=True, default=False, converter=partial(flag, "start of PolyakRuppert"))

    def init(self, x: PyTree[Array]) -> PyTree:
        """The mean of nothing yet, or of the start."""
        nothing = super().init(x)
        return self.update(x, nothing) if self.start else nothing


class Weighted(_Running):
    """The mean with weights that grow: the k-th iterate weighs k(k+1)…(k+power−1), about k^power.

    With power 1 and a 1/t step, strongly convex problems lose the log factor of the plain mean.

    Examples
    --------
    >>> Weighted(power=2)
    Weighted(power=2)
    """

    power: int = eqx.field(static=True, default=1, converter=partial(whole, "power of Weighted"))  # type: ignore[misc]


class SuffixBlocks(NamedTuple):
    """Means over the last complete block of iterates and over the one being filled."""

    complete: PyTree[Array]
    current: PyTree[Array]
    seen: Int[Array, ""]


class Suffix(Averaging):
    """The mean of the last iterates, between a half and three quarters of them, whenever one stops.

    Blocks end at the powers of two, so the number of steps need not be known: the mean is over the last complete
    block and the one being filled.

    Examples
    --------
    >>> import numpy as np
    >>> average, x = Suffix(), np.ones(1)
    >>> average.solution(x, average.init(x))
    Array([1.], dtype=float...)
    """

    def init(self, x: PyTree[Array]) -> PyTree:
        """No block yet."""
        return SuffixBlocks(_wide(x), _wide(x), trees.scalar(0, jnp.int32))

    def update(self, x: PyTree[Array], state: PyTree) -> PyTree:
        """Add to the current block; begin a new one after 1, 2, 4, 8, … iterates."""
        count, x = state.seen + 1, _wide(x)
        begins = count & (count - 1) == 0
        position = (count - _block_start(count) + 1).astype(trees.dtype(x))
        moved = trees.add_scaled(state.current, 1 / position, trees.subtract(x, state.current))
        complete = trees.where(begins, state.current, state.complete)
        return SuffixBlocks(complete, trees.where(begins, x, moved), count)

    @eqx.filter_jit
    def solution(self, x: PyTree[Array], state: PyTree) -> PyTree[Array]:
        """Return the mean over both blocks."""
        start = _block_start(jnp.maximum(state.seen, 1))
        # The current block holds the iterates start … count, the complete one start/2 … start − 1.
        filled = (state.seen - start + 1).astype(trees.dtype(state.current))
        share = filled / (filled + (start // 2).astype(filled.dtype))
        mean = trees.add_scaled(state.complete, share, trees.subtract(state.current, state.complete))
        return trees.where(state.seen == 0, x, _narrow(mean, x))


def _block_start(count: Int[Array, ""]) -> Int[Array, ""]:
    """The largest power of two that is at most ``count``."""
    return jnp.left_shift(1, 31 - jax.lax.clz(count)).astype(jnp.int32)

"""Variance reduction by a snapshot: ψ(x;ξ) − ψ(x̃;ξ) + μ̃, the same noise ξ in both, μ̃ the full gradient at x̃."""

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, Key, PyTree, Scalar

from thalweg import trees
from thalweg.arguments import instance, number, one_of, whole
from thalweg.oracles.base import Oracle, Out

__all__ = ["SVRG", "LooplessSVRG"]


class Anchor(NamedTuple):
    """A snapshot, and the full gradient there."""

    x: PyTree[Array]
    full: Out


class SnapshotMemory(NamedTuple):
    """What a variance-reduced oracle carries."""

    anchor: Anchor
    inner: PyTree
    """The state of the oracle it wraps."""
    seen: Int[Array, ""]
    """Estimates since the snapshot."""
    total: PyTree[Array]
    """The sum of the iterates since the snapshot, the snapshot itself left out."""


class _Snapshots(Oracle):
    # As x and the snapshot converge the two noisy gradients cancel.
    vanishing_noise: ClassVar[bool] = True

    oracle: Oracle

    def __check_init__(self) -> None:
        if instance("oracle", self.oracle, Oracle).full is None:
            raise TypeError(f"oracle={type(self.oracle).__name__} has no full(x), which a snapshot needs")

    @property
    def value(self) -> Callable[[PyTree[Array]], Scalar] | None:
        """The value of the oracle it wraps, if it has one."""
        return self.oracle.value

    def init(self, x: PyTree[Array]) -> PyTree:
        """Take the first snapshot at ``x``."""
        return self._memory(x, self.oracle.init(x))

    def _memory(self, x: PyTree[Array], inner: PyTree) -> SnapshotMemory:
        # A long sum of half-precision numbers would stand still: it is summed in float32 at least.
        nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, trees.single(leaf.dtype)), x)
        return SnapshotMemory(Anchor(x, self.oracle.full(x)), inner, jnp.zeros((), jnp.int32), nothing)

    def _corrected(self, x: PyTree[Array], memory: SnapshotMemory, key: Key[Array, ""]) -> tuple[Out, PyTree]:
        here, inner = self.oracle.estimate(x, memory.inner, key)
        there, _ = self.oracle.estimate(memory.anchor.x, memory.inner, key)
        full = memory.anchor.full
        gradient = trees.add(trees.subtract(here.gradient, there.gradient), full.gradient)
        # The snapshot's own work is counted with the first estimate that uses it.
        work = here.work + there.work + jnp.where(memory.seen == 0, full.work, 0.0)
        return Out(gradient, here.value - there.value + full.value, work), inner


class SVRG(_Snapshots):
    """Stochastic variance-reduced gradient: Algorithm 2 of the spectral paper, for any oracle.

    Every ``period`` steps the iterate is replaced by the mean of the iterates since the last snapshot, and the new
    snapshot is taken there. :func:`~thalweg.descent.minimize` does so by itself; your own loop around
    ``Descent.update`` must call ``Descent.renew``.

    Parameters
    ----------
    oracle
        An oracle that has ``full(x)``, e.g. :class:`~thalweg.oracles.MiniBatch`.
    period
        Steps between snapshots (the paper's T); about two passes over the data are usual.
    restart
        ``"mean"`` as above; ``"last"`` leaves the iterate where it is and takes the snapshot there.

    Examples
    --------
    >>> from thalweg.oracles import Exact
    >>> SVRG(Exact(lambda x: x**2), period=10).period
    10
    """

    period: int = eqx.field(static=True)  # type: ignore[misc]
    restart: str = eqx.field(static=True)

    def __init__(self, oracle: Oracle, period: int, *, restart: str = "mean") -> None:
        self.oracle = oracle
        self.period = whole("period of SVRG", period)
        self.restart = one_of("restart of SVRG", restart, ("mean", "last"))

    def estimate(self, x: PyTree[Array], state: PyTree, key: Key[Array, ""]) -> tuple[Out, PyTree]:
        """Return the corrected gradient, and remember ``x`` for the mean."""
        out, inner = self._corrected(x, state, key)
        total = trees.where(state.seen == 0, state.total, trees.add_scaled(state.total, 1, x))
        return out, state._replace(inner=inner, seen=state.seen + 1, total=total)

    def renew(self, x: PyTree[Array], state: PyTree) -> tuple[PyTree[Array], PyTree]:
        """Take the snapshot, and the iterate with it, to the mean of the last inner loop."""
        if self.restart == "mean":
            total = trees.add_scaled(state.total, 1, x)
            x = jax.tree.map(lambda t, leaf: (t / state.seen.astype(t.dtype)).astype(leaf.dtype), total, x)
        return x, self._memory(x, state.inner)


class LooplessSVRG(_Snapshots):
    """SVRG without an outer loop: after each estimate the snapshot moves to x with a small probability.

    Parameters
    ----------
    oracle
        An oracle that has ``full(x)``.
    probability
        Of a new snapshot at each step; about B/n is usual. Under ``vmap`` every step pays for a full gradient: use
        :class:`SVRG` there.

    Examples
    --------
    >>> from thalweg.oracles import Exact
    >>> LooplessSVRG(Exact(lambda x: x**2), 0.5).vanishing_noise
    True
    """

    probability: Any = eqx.field(converter=partial(number, "probability of LooplessSVRG", above=0, most=1))

    def estimate(self, x: PyTree[Array], state: PyTree, key: Key[Array, ""]) -> tuple[Out, PyTree]:
        """Return the corrected gradient; move the snapshot at random."""
        coin, noise = jax.random.split(key)
        out, inner = self._corrected(x, state, noise)
        moved = jax.lax.cond(
            jax.random.bernoulli(coin, self.probability),
            lambda: self._memory(x, inner),
            lambda: state._replace(inner=inner, seen=state.seen + 1),
        )
        return out, moved

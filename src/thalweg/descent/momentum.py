"""Momentum: chooses from the past where the gradient is taken (y) and where the step is centred (c)."""

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, PyTree, Scalar

from thalweg import trees
from thalweg.arguments import instance, number

__all__ = ["FISTA", "AdaptiveRestart", "HeavyBall", "Momentum", "Nesterov", "NoMomentum"]


class Momentum(trees.Part):
    """The two points of a step, and what is remembered for the next.

    Examples
    --------
    >>> from thalweg.descent import FISTA, NoMomentum
    >>> (FISTA().extrapolates, NoMomentum().extrapolates)
    (True, False)
    """

    extrapolates: ClassVar[bool] = True
    """Whether points leave the segment between iterates, which needs a linear geometry."""
    looks_ahead: ClassVar[bool] = True
    """Whether the gradient is taken away from the iterate."""

    def init(self, x: PyTree[Array]) -> PyTree:
        """Return the memory at the start."""
        return ()

    def points(self, x: PyTree[Array], memory: PyTree) -> tuple[PyTree[Array], PyTree[Array]]:
        """Return (y, c): (x, x) unless told otherwise."""
        return x, x

    def remember(self, x: PyTree[Array], x_next: PyTree[Array], centre: PyTree[Array], memory: PyTree) -> PyTree:
        """Return the memory after the step from ``x`` to ``x_next`` centred at ``centre``."""
        return ()


class NoMomentum(Momentum):
    """y = c = x_k.

    Examples
    --------
    >>> NoMomentum().points(1.0, ())
    (1.0, 1.0)
    """

    extrapolates: ClassVar[bool] = False
    looks_ahead: ClassVar[bool] = False


class HeavyBall(Momentum):
    """Polyak: y = x_k, c = x_k + μ(x_k − x_{k−1}).

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> HeavyBall(0.5).points(jnp.ones(1), jnp.zeros(1))
    (Array([1.], dtype=float...), Array([1.5], dtype=float...))
    """

    looks_ahead: ClassVar[bool] = False

    coefficient: Any = eqx.field(default=0.9, converter=partial(number, "coefficient of HeavyBall", least=0, below=1))

    def init(self, x: PyTree[Array]) -> PyTree:
        """x_{−1} = x_0."""
        return x

    def points(self, x: PyTree[Array], memory: PyTree) -> tuple[PyTree[Array], PyTree[Array]]:
        """Return (x_k, x_k + μ(x_k − x_{k−1}))."""
        return x, trees.add_scaled(x, self.coefficient, trees.subtract(x, memory))

    def remember(self, x: PyTree[Array], x_next: PyTree[Array], centre: PyTree[Array], memory: PyTree) -> PyTree:
        """x_k."""
        return x


class LookAheadMemory(NamedTuple):
    """Memory of the look-ahead methods: the next point y, and where the sequence of coefficients stands."""

    point: PyTree[Array]
    t: Scalar


class _LookAhead(Momentum):
    """y = c = x_k + μ_k(x_k − x_{k−1})."""

    _advance: ClassVar[Callable[..., tuple[Scalar, Scalar]]]
    """``_advance(t)`` is (μ of the next point, t of the one after)."""

    def init(self, x: PyTree[Array]) -> PyTree:
        """The first step is a plain one."""
        return LookAheadMemory(x, trees.scalar(1, trees.dtype(x)))

    def points(self, x: PyTree[Array], memory: PyTree) -> tuple[PyTree[Array], PyTree[Array]]:
        """Return (y, y)."""
        return memory.point, memory.point

    def remember(self, x: PyTree[Array], x_next: PyTree[Array], centre: PyTree[Array], memory: PyTree) -> PyTree:
        """The next point, x_{k+1} + μ(x_{k+1} − x_k)."""
        mu, t = self._advance(memory.t)
        return LookAheadMemory(trees.add_scaled(x_next, mu, trees.subtract(x_next, x)), t)


class Nesterov(_LookAhead):
    """Nesterov: y = c = x_k + μ_k(x_k − x_{k−1}), with μ_k = k/(k+3), or a constant.

    Parameters
    ----------
    coefficient
        ``None`` for the sequence k/(k+3), which has the 1/k² bound on smooth convex functions; a constant, best
        (√κ−1)/(√κ+1), for strongly convex ones.

    Examples
    --------
    >>> Nesterov()
    Nesterov(coefficient=None)
    """

    coefficient: Array | None

    def __init__(self, coefficient: Any = None) -> None:
        given = coefficient is not None
        self.coefficient = number("coefficient of Nesterov", coefficient, least=0, below=1) if given else None

    def _advance(self, t: Scalar) -> tuple[Scalar, Scalar]:
        return t / (t + 3) if self.coefficient is None else self.coefficient, t + 1


class FISTA(_LookAhead):
    """Beck and Teboulle: t_{k+1} = (1 + √(1 + 4t_k²))/2, μ = (t_k − 1)/t_{k+1}.

    Examples
    --------
    >>> import numpy as np
    >>> x = np.zeros(1)
    >>> FISTA().init(x).t
    Array(1., dtype=float...)
    """

    def _advance(self, t: Scalar) -> tuple[Scalar, Scalar]:
        t_next = (1 + jnp.sqrt(1 + 4 * t**2)) / 2
        return (t - 1) / t_next, t_next


class AdaptiveRestart(Momentum):
    """Forget the past whenever it points uphill: ⟨c_k − x_{k+1}, x_{k+1} − x_k⟩ > 0.

    Turns FISTA's and Nesterov's 1/k² into a linear rate on strongly convex functions without knowing κ, and
    removes their ripples. (The gradient scheme of O'Donoghue and Candès; no function value is needed.)

    Examples
    --------
    >>> AdaptiveRestart().momentum
    FISTA()
    """

    momentum: Momentum

    def __init__(self, momentum: Momentum | None = None) -> None:
        self.momentum = FISTA() if momentum is None else instance("momentum of AdaptiveRestart", momentum, Momentum)

    @property
    def looks_ahead(self) -> bool:  # type: ignore[override]
        """As the momentum it restarts."""
        return self.momentum.looks_ahead

    def init(self, x: PyTree[Array]) -> PyTree:
        """As the momentum it restarts."""
        return self.momentum.init(x)

    def points(self, x: PyTree[Array], memory: PyTree) -> tuple[PyTree[Array], PyTree[Array]]:
        """As the momentum it restarts."""
        return self.momentum.points(x, memory)

    def remember(self, x: PyTree[Array], x_next: PyTree[Array], centre: PyTree[Array], memory: PyTree) -> PyTree:
        """Restart at ``x_next`` if the last move went against the residual."""
        uphill = trees.inner(trees.subtract(centre, x_next), trees.subtract(x_next, x)) > 0
        onwards = self.momentum.remember(x, x_next, centre, memory)
        return trees.where(uphill, self.momentum.init(x_next), onwards)

"""The step β: numbers, schedules, and rules that look at the function."""

from collections.abc import Callable, Mapping
from functools import partial, reduce
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, PyTree, Scalar

from thalweg import trees
from thalweg.arguments import number, one_of
from thalweg.codec import storable
from thalweg.descent.terms import Zero
from thalweg.oracles.base import Out

__all__ = ["BarzilaiBorwein", "Constant", "InverseLipschitz", "InverseTime", "OptaxStep", "Polynomial", "Schedule"]
__all__ += ["StepRule"]

SIZE_RANGE_POWER = 0.9
"""Sizes lie between the smallest and the largest number to this power: f in units of 1e30 has sizes of 1e-30. Nearer to
1, in float32, steps would be lost to underflow."""


class Move(NamedTuple):
    """What a step rule knows when it takes one step."""

    descent: Any
    """The :class:`~thalweg.descent.Descent` that takes it."""
    steps: Int[Array, ""]
    """How many were taken before this one."""
    point: PyTree[Array]
    """y, where the gradient was taken."""
    centre: PyTree[Array]
    """c, the centre of the step."""
    out: Out
    """What the oracle returned at ``point``."""

    def reach(self, size: Scalar) -> PyTree[Array]:
        """Return the minimiser of the iteration for a step size."""
        return self.descent.divergence.step(self.centre, self.out.gradient, size, self.descent.term)

    def admit(self, size: Scalar) -> Scalar:
        """Return ``size``, shortened where there would be no minimiser."""
        return self.descent.divergence.admissible(self.centre, self.out.gradient, size, self.descent.term)


class Taken(NamedTuple):
    """A step that was taken: where it led, how long it was, and what it cost beside the gradient."""

    x: PyTree[Array]
    size: Scalar
    state: PyTree
    evaluations: Any
    value: Scalar | None = None
    """f(x), if the rule has evaluated it."""


class StepRule(trees.Part):
    """Chooses the size of each step and takes it.

    Examples
    --------
    >>> Constant(0.1).needs_value, Constant(0.1).needs_exact
    (False, False)
    """

    needs_exact: ClassVar[bool] = False
    """Whether the rule only makes sense with exact gradients."""
    needs_value: ClassVar[bool] = False
    """Whether the rule evaluates the function, which then has to be exact."""
    needs_euclidean: ClassVar[bool] = False
    """Whether the rule only makes sense in the plain Euclidean geometry."""
    compares_objective: ClassVar[bool] = False
    """Whether the rule compares f + h with its value where the step begins."""
    additive: ClassVar[bool] = False
    """Whether the rule replaces x⁺ = argmin … by an addition of its own, so that no other D or h fits."""

    def init(self, x: PyTree[Array]) -> PyTree:
        """Return the state the rule carries."""
        return ()

    def take(self, move: Move, state: PyTree) -> Taken:
        """Take one step."""
        raise NotImplementedError(f"{type(self).__name__} must define take(move, state)")

    def residual_norm(self, move: Move, taken: Taken) -> Scalar:
        """‖G_k‖ of the step taken; where y and c differ, the larger of the residuals from either.

        A heavy ball that passes the minimum has no gradient there, and yet it has not converged.
        """
        origins = [move.centre] if move.point is move.centre else [move.centre, move.point]
        norms = [move.descent.divergence.residual_norm(origin, taken.x, taken.size) for origin in origins]
        norm = reduce(jnp.maximum, norms)
        if not move.descent.divergence.linear:
            return norm
        # A step so short that rounding loses it has not converged: the gradient is its residual. Without a term it is
        # always, since differences of coordinates lose what is small beside them.
        lost = jnp.ones((), bool)
        if not isinstance(move.descent.term, Zero):
            moved = trees.add_scaled(move.centre, -taken.size, move.out.gradient)
            lost = reduce(jnp.logical_and, map(jnp.array_equal, *map(jax.tree.leaves, (moved, move.centre))))
        return jnp.where(lost, jnp.maximum(trees.norm(move.out.gradient).astype(norm.dtype), norm), norm)

    def untested(self, history: Mapping[str, np.ndarray], dtype: Any) -> str:
        """Return advice after a run in which rounding hid whether longer steps would do; else nothing."""
        return ""


class _Scheduled(StepRule):
    """A rule whose size depends on the count alone."""

    size: ClassVar[Callable[..., Scalar]]
    """``size(count)`` is the step size at step ``count``, counted from 0."""

    def take(self, move: Move, state: PyTree) -> Taken:
        """Step by ``size(count)``."""
        size = jnp.asarray(self.size(move.steps), trees.dtype(move.centre))
        # A schedule that has become negative would climb: NaN ends the run as diverged.
        size = move.admit(jnp.where(size >= 0, size, jnp.nan))
        return Taken(move.reach(size), size, state, jnp.zeros(()))


@storable
class Constant(_Scheduled):
    """β_k = size.

    Examples
    --------
    >>> Constant(0.1).size(0)
    Array(0.1, dtype=float...)
    """

    constant: Array

    def __init__(self, size: Any) -> None:
        self.constant = number("step", size, above=0)

    def stored(self) -> dict[str, Array]:
        """What a file keeps of it."""
        return {"size": self.constant}

    def size(self, count: Int[Array, ""]) -> Scalar:
        """The constant."""
        return self.constant


class InverseLipschitz(Constant):
    """β_k = 1/L, for a gradient that is Lipschitz with constant L (relative to D).

    Examples
    --------
    >>> InverseLipschitz(4.0).size(0)
    Array(0.25, dtype=float...)
    """

    def __init__(self, bound: Any) -> None:
        self.constant = 1 / number("bound of InverseLipschitz", bound, above=0)


@storable
class Polynomial(_Scheduled):
    """β_k = initial · (1 + k/scale)^(−power), k counted from 0.

    Examples
    --------
    >>> import numpy as np
    >>> Polynomial(1.0, power=0.5).size(np.asarray(3))
    Array(0.5, dtype=float...)
    """

    initial: Any = eqx.field(converter=partial(number, "initial of Polynomial", above=0))
    power: Any = eqx.field(default=0.5, converter=partial(number, "power of Polynomial", above=0))
    scale: Any = eqx.field(default=1.0, converter=partial(number, "scale of Polynomial", above=0))

    def size(self, count: Int[Array, ""]) -> Scalar:
        """initial · (1 + k/scale)^(−power)."""
        return self.initial * (1 + count.astype(self.scale.dtype) / self.scale) ** -self.power


class InverseTime(Polynomial):
    """β_k = initial / (1 + k/scale): the 1/t schedule of stochastic approximation.

    Examples
    --------
    >>> import numpy as np
    >>> InverseTime(1.0).size(np.asarray(3))
    Array(0.25, dtype=float...)
    """

    def __init__(self, initial: Any, scale: float = 1.0) -> None:
        super().__init__(initial, 1.0, scale)


class Schedule(_Scheduled):
    """β_k = function(k), any function of the count that JAX can trace: every Optax schedule is one.

    Examples
    --------
    >>> Schedule(lambda count: 0.5**count).size(2)
    0.25
    """

    function: Callable[[Any], Any] = eqx.field(static=True)

    def size(self, count: Int[Array, ""]) -> Scalar:
        """function(k)."""
        return self.function(count)


class BarzilaiBorwein(StepRule):
    """β_k = ⟨s,s⟩/⟨s,z⟩ ("long") or ⟨s,z⟩/⟨z,z⟩ ("short"), s and z the last changes of y and of the gradient.

    The first step is a small probe. Where the curvature ⟨s,z⟩ is not positive the last size is used again. The rule is
    not monotone; on a function far from quadratic it can diverge, where :class:`~thalweg.descent.Backtracking` cannot.

    Examples
    --------
    >>> BarzilaiBorwein("short")
    BarzilaiBorwein(kind='short')
    """

    # Differences of noisy gradients are noise.
    needs_exact: ClassVar[bool] = True
    # The secant formula measures in the Euclidean norm.
    needs_euclidean: ClassVar[bool] = True

    kind: str = eqx.field(
        static=True, default="long", converter=partial(one_of, "kind of BarzilaiBorwein", known=("long", "short"))
    )

    def init(self, x: PyTree[Array]) -> PyTree:
        """Carry the last point, gradient and size."""
        return x, jax.tree.map(jnp.zeros_like, x), trees.scalar(0, trees.dtype(x))

    def take(self, move: Move, state: PyTree) -> Taken:
        """Step by the secant size."""
        last_point, last_gradient, last_size = state
        s = trees.subtract(move.point, last_point)
        z = trees.subtract(move.out.gradient, last_gradient)
        curvature = trees.inner(s, z)
        # ⟨z,z⟩ would be 0 where z is small.
        change = trees.norm(z).astype(curvature.dtype)
        along = trees.inner(s, trees.scale(1 / change, z))
        quotients = {"long": (trees.inner(s, s), curvature), "short": (along, change)}
        top, bottom = quotients[self.kind]
        usable = (curvature > 0) & (bottom > 0)
        secant = jnp.where(usable, top / jnp.where(usable, bottom, 1), last_size)
        limits = jnp.finfo(secant.dtype)
        length = jnp.maximum(trees.norm(move.out.gradient), limits.tiny)
        probe = jnp.minimum(1e-3 * jnp.maximum(1, trees.norm(move.point)) / length, limits.max**SIZE_RANGE_POWER)
        size = move.admit(jnp.where(move.steps == 0, probe, secant).astype(last_size.dtype))
        return Taken(move.reach(size), size, (move.point, move.out.gradient, size), jnp.zeros(()))


class OptaxStep(StepRule):
    """An Optax optimiser as the step: AdaGrad, RMSprop, Adadelta, Adam, L-BFGS … come from there.

    The optimiser adds its own update to x, so only D = Euclidean and h = Zero fit. The size reported is NaN,
    and G_k is the gradient.

    Examples
    --------
    >>> import optax
    >>> OptaxStep(optax.sgd(0.1)).additive
    True
    """

    additive: ClassVar[bool] = True

    transformation: Any = eqx.field(static=True)

    def __init__(self, transformation: Any) -> None:
        import optax  # imported here, since only users of an Optax optimiser need it

        if not (hasattr(transformation, "init") and hasattr(transformation, "update")):
            raise TypeError(f"transformation of OptaxStep must be an Optax optimiser, found {transformation!r}")

        self.transformation = optax.with_extra_args_support(transformation)

    def init(self, x: PyTree[Array]) -> PyTree:
        """Return the optimiser's own state."""
        return self.transformation.init(x)

    def take(self, move: Move, state: PyTree) -> Taken:
        """Add the optimiser's update."""
        extra = {"value": move.out.value, "grad": move.out.gradient, "value_fn": move.descent.f}
        with jax.numpy_dtype_promotion("standard"):  # Optax multiplies counts by numbers, whatever the user's setting
            updates, state = self.transformation.update(move.out.gradient, state, move.point, **extra)
        size = jnp.full((), jnp.nan, trees.dtype(move.centre))
        return Taken(trees.add_scaled(move.centre, 1, updates), size, state, jnp.zeros(()))

    def residual_norm(self, move: Move, taken: Taken) -> Scalar:
        """‖gradient‖."""
        return trees.norm(move.out.gradient)


def _checked(schedule: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Refuse a function that is no schedule, before the first step."""
    try:
        first = jax.eval_shape(schedule, jax.ShapeDtypeStruct((), jnp.int32))
    except Exception as error:
        raise TypeError(f"step must be a schedule count -> size; calling it with a count failed: {error}") from error
    if jnp.shape(first) != ():
        raise TypeError(f"step must be a schedule count -> size; it returned {first!r}")
    return schedule


def as_step(step: Any) -> StepRule:
    """Return a rule: a number is a constant, a function a schedule, an Optax optimiser itself.

    Examples
    --------
    >>> as_step(0.1)
    Constant(constant=...)
    >>> as_step(-0.1)
    Traceback (most recent call last):
        ...
    ValueError: step must be a finite number above 0, found -0.1
    """
    if isinstance(step, StepRule):
        return step
    # By its shape, so that Optax is imported by those alone who use it.
    if isinstance(step, tuple) and hasattr(step, "init") and hasattr(step, "update"):
        return OptaxStep(step)
    if isinstance(step, (int, float, jax.Array)) or hasattr(step, "__float__"):
        return Constant(step)
    if isinstance(step, type):
        raise TypeError(f"step must be an instance, found the class {step.__name__}; call it first")
    if callable(step):
        return Schedule(_checked(step))
    raise TypeError(
        f"step must be a number, a schedule count -> size, a StepRule or an Optax optimiser, found {step!r}"
    )

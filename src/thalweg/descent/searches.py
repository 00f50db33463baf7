"""Step sizes found by looking at the function: longer while it goes well, shorter where it does not.

A search is written in small pieces: what a size is worth (:meth:`SearchedStep.merit`, of arrays), and arithmetic of a
few numbers, which the compiled engine traces into a loop inside the step and the host engine does in NumPy between two
attempts. Either way the sizes, the tests and the constants are these.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree, Scalar

from thalweg import trees
from thalweg.arguments import number
from thalweg.descent.steps import Move, StepRule, Taken

Number = Any
"""A scalar array, traced or of the host."""


class Trial(NamedTuple):
    """Where a search stands between two attempts."""

    size: Number
    """What to try next."""
    tried: Number
    """How many sizes were tried."""
    last: Number
    """The last of them."""
    passes: Number
    """Whether that one passed the test."""
    failed: Number
    """Whether any has failed."""
    told: Number
    """Whether the last test said anything: what the model adds to f is more than rounding."""
    far: Number
    """Whether a longer one might lead where x overflows."""
    over: Number
    """Whether nothing is left to try."""


def first_trial(size: Number) -> Trial:
    """A search that has tried nothing."""
    no = np.zeros((), bool)
    return Trial(size, np.zeros((), trees.single(size.dtype)), size, no, no, no, no, no)


def with_slack(level: Number, value: Number, largest: Number) -> tuple[Number, Number]:
    """A level with an allowance for rounding, and the largest |f| seen, now that f is ``value``.

    f may be a difference of large numbers, and its rounding error that of the largest of them: without the allowance
    rounding fails the test near the minimum, and the size is cut to nothing.
    """
    largest = trees.numpy_of(value).maximum(largest, abs(value))
    return level + 10 * jnp.finfo(largest.dtype).eps * largest, largest


def after_start(largest: Number, steps: Number) -> Number:
    """The largest |f| to carry on: without that at the start, which may lie where the term is infinite."""
    return largest * (steps > 0).astype(largest.dtype)


def is_short(distance: Number, length: Number, x: PyTree[Array]) -> Number:
    """Whether a step over some distance hardly moves the numbers of x, which has some length."""
    return distance < _SHORT * (trees.count(x) ** 0.5 + length)


def is_far(slope: Scalar, size: Scalar) -> Array:
    """Whether a step of some size, where the gradient has some length, would lead where no longer one should."""
    return ~(size * slope.astype(size.dtype) < jnp.finfo(size.dtype).max ** _FAR)


def next_trial(
    trial: Trial, passes: Number, told: Number, short: Number, far: Number, shrink: Number, expand: Number
) -> Trial:
    """What to try after the size of a trial has passed the test or not; ``expand`` says if the longest is looked for.

    A size that passes ends the search, unless the longest is looked for and none has failed yet. After one that fails
    the next is shorter; coming from a size that has passed, that is this one again.
    """
    size, limits = trial.size, jnp.finfo(trial.size.dtype)
    failed = trial.failed | ~passes
    # A test that says nothing is no reason to go beyond 1, from where a search begins unless told, as long as x moves.
    longer = expand & (told | short | (size < 1)) & ~failed & ~far & (size < limits.max**_EXTREME)
    over = (passes & ~longer) | ~(size > limits.tiny**_EXTREME)
    following = trees.numpy_of(size).where(passes, size / shrink, size * shrink)
    return Trial(following, trial.tried + 1, size, passes, failed, told, far, over)


def next_size(trial: Trial, grow: Number) -> Number:
    """The size that the step after a search begins with: the one found, longer if it truly passed at once."""
    xp, size = trees.numpy_of(trial.last), trial.last
    longer = (trial.tried == 1) & trial.told & ~trial.far
    return xp.minimum(xp.where(longer, size * grow, size), jnp.finfo(size.dtype).max ** _EXTREME)


_EXTREME = 0.9
"""Sizes lie between the least and the largest number to this power: f in units of 1e30 has sizes of 1e-30."""

_FAR = 0.4
"""The largest number to this power is as far as one step goes: an objective that falls for ever leads there."""

_SHORT = 1e-4
"""A step that moves the numbers of x by a smaller share of them, or of 1, is short whatever f says: it may be tiny, or
a mean over many numbers, which hardly changes."""

_GROW = 1.1
"""Backtracking's growth: about every eighth step tries a size too long, which costs one evaluation."""


class SearchedStep(StepRule):
    """A rule that tries sizes until one passes its test; the state is the next size and the largest |f| seen."""

    # A noisy test accepts any step.
    needs_exact: ClassVar[bool] = True
    needs_value: ClassVar[bool] = True
    searches: ClassVar[bool] = True
    compares_objective: ClassVar[bool]
    """Whether the test compares with f + h where the step begins, or with f."""
    expands: ClassVar[bool]
    """Whether the first step looks for the longest size that passes."""

    initial: Array
    shrink: Array
    grow: Array | None

    def growth(self, looks_ahead: bool) -> Array:
        """The factor by which a size is longer after it passed at once; ``looks_ahead`` is the momentum's trait."""
        if self.grow is None:
            return trees.scalar(1 if looks_ahead else _GROW)
        return self.grow

    def init(self, x: PyTree[Array]) -> PyTree:
        """Carry the size to begin with and the largest |f| seen."""
        dtype = trees.dtype(x)
        return self.initial.astype(dtype), trees.scalar(0, dtype)

    def merit(self, move: Move, size: Scalar, x: PyTree[Array], value: Scalar) -> Scalar:
        """What the test compares, for a size that leads to ``x``, where f is ``value``."""
        raise NotImplementedError

    def tells(self, merit: Number, value: Number, slack: Number) -> Number:
        """Whether a test says anything."""
        return abs(merit - value) > slack

    def take(self, move: Move, state: PyTree) -> Taken:
        """Search, then step."""
        last, largest = state
        shrink, grow = self.shrink.astype(last.dtype), self.growth(move.looks_ahead).astype(last.dtype)
        value = level = move.out.value.astype(last.dtype)
        if self.compares_objective:
            level = value + move.term.value(move.point).astype(last.dtype)
        allowed, largest = with_slack(level, value, largest)
        length, slope = trees.norm(move.point), trees.norm(move.out.gradient)

        def attempt(carry: tuple) -> tuple:
            trial = carry[0]
            x = move.reach(trial.size)
            value = jnp.asarray(move.f(x), last.dtype)
            merit = self.merit(move, trial.size, x, value)
            told = self.tells(merit, value, allowed - level)
            short = is_short(trees.norm(trees.subtract(x, move.point)), length, x).astype(bool)
            far = is_far(slope, trial.size)
            expand = (move.steps == 0) & self.expands
            return next_trial(trial, merit <= allowed, told, short, far, shrink, expand), x, value

        start = first_trial(move.admit(last)), move.centre, value
        trial, x, value = jax.lax.while_loop(lambda carry: ~carry[0].over, attempt, start)
        state = next_size(trial, grow), after_start(largest, move.steps)
        return Taken(_or_nan(trial.passes, x), trial.last, state, trial.tried, value)


def _or_nan(passed: Array, x: PyTree[Array]) -> PyTree[Array]:
    """The step, or one that ends the run where no size was accepted, as for a function that is NaN here."""
    leaves, structure = jax.tree.flatten(x)
    # NaN in one leaf does that: the smallest.
    smallest = min(range(len(leaves)), key=lambda i: leaves[i].size)
    leaves[smallest] = jnp.where(passed, leaves[smallest], jnp.nan)
    return jax.tree.unflatten(structure, leaves)


class Backtracking(SearchedStep):
    """The largest β in a geometric sequence for which the quadratic model lies above f.

    Accepts β when f(x⁺) ≤ f(y) + ⟨∇f(y), x⁺ − y⟩ + D(x⁺‖y)/β. The first step grows β by 1/shrink until the
    test fails, so the initial size need not be guessed. Afterwards β is shortened where the test fails, and ``grow``
    times as long in the step after one that passed at once, so that it recovers where the function is flatter.

    Parameters
    ----------
    initial
        The size tried first.
    shrink
        The factor by which a size that fails is shortened.
    grow
        At least 1. None is 1.1, or 1 with a momentum that looks ahead: FISTA's theorem wants sizes that never grow.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from thalweg.descent import minimize
    >>> float(minimize(lambda x: jnp.sum((x - 3.0) ** 2), jnp.zeros(1), step=Backtracking(), steps=50).x[0])
    3.0
    """

    compares_objective: ClassVar[bool] = False
    expands: ClassVar[bool] = True

    def __init__(self, initial: Any = 1.0, shrink: float = 0.5, grow: float | None = None) -> None:
        self.initial = number("initial of Backtracking", initial, above=0)
        self.shrink = number("shrink of Backtracking", shrink, above=0, below=1)
        self.grow = None if grow is None else number("grow of Backtracking", grow, least=1)

    def merit(self, move: Move, size: Scalar, x: PyTree[Array], value: Scalar) -> Scalar:
        """f(x) less what the model adds to f(y)."""
        return value - move.divergence.model(move.out.gradient, x, move.point, size).astype(value.dtype)

    def untested(self, history: Mapping[str, np.ndarray], dtype: Any) -> str:
        """What to say where no step changed f by more than rounding."""
        size, promised = history["size"][-1], history["size"] * history["residual"] ** 2
        rounding = 10 * float(jnp.finfo(dtype).eps) * np.abs(history["value"])
        if not (np.all(history["size"] == size) and np.all(promised < 2 * rounding)):
            return ""
        return (
            f"Steps of size {size:.3g} change the objective by less than its rounding in {dtype}, which does not tell "
            f"whether longer ones would do: try step=Backtracking({1000 * size:.3g}). "
        )


class Monotone(SearchedStep):
    """The size that last lowered f + h, longer by ``grow`` if it did so at once; shortened until it does.

    For geometries in which no bound on the curvature is known, or where the bound is far too careful: it only asks
    that the objective does not rise, and so recovers from an initial size that is too long or too short.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from thalweg.descent import minimize
    >>> result = minimize(lambda x: jnp.sum((x - 3.0) ** 2), jnp.zeros(1), step=Monotone(100.0), steps=50)
    >>> bool(abs(result.x[0] - 3.0) < 1e-3)
    True
    """

    compares_objective: ClassVar[bool] = True
    expands: ClassVar[bool] = False

    def __init__(self, initial: Any = 1.0, grow: float = 1.25, shrink: float = 0.5) -> None:
        self.initial = number("initial of Monotone", initial, above=0)
        self.grow = number("grow of Monotone", grow, least=1)
        self.shrink = number("shrink of Monotone", shrink, above=0, below=1)

    def tells(self, merit: Number, value: Number, slack: Number) -> Number:
        """It asks for no more than that nothing rises, and always tells."""
        return np.ones((), bool)

    def merit(self, move: Move, size: Scalar, x: PyTree[Array], value: Scalar) -> Scalar:
        """f + h."""
        return value + move.term.value(x).astype(value.dtype)

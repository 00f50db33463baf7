"""Line searches: step sizes that evaluating the function finds.

A search is a sequence of attempts. Each goes to where a size leads (:meth:`SearchedStep.measure` reduces its arrays to
a few numbers), and :meth:`SearchedStep.decide` says whether the size passes and which one to try next. The compiled
engine traces both into a loop inside the step; the host engine compiles the former and does the arithmetic of the
latter in NumPy.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree, Scalar

from thalweg import trees
from thalweg.arguments import number
from thalweg.descent.steps import SIZE_RANGE_POWER, Move, StepRule, Taken
from thalweg.linalg import namespace

__all__ = ["Backtracking", "Monotone"]

SHORT_STEP = 1e-4
"""A step that moves x by a smaller share of its largest number, or of 1, is short, whatever the test says: f may be
tiny, or a mean over many numbers, which hardly changes. Twice this share would lengthen a few more first steps."""

BACKTRACKING_GROWTH = 1.1
"""Backtracking's growth: about every eighth step tries a size too long, which costs one evaluation. At 1.2 every fourth
would."""


class SearchState(NamedTuple):
    """Where a search stands between two attempts; numbers, traced or of NumPy."""

    size: Any
    """What to try next."""
    tried: Any
    """How many sizes were tried."""
    last: Any
    """The last of them."""
    passes: Any
    """Whether that one passed the test."""
    failed: Any
    """Whether any has failed."""
    informative: Any
    """Whether the last test compared more than rounding errors."""
    far: Any
    """Whether a longer step might lead where x or f overflows."""
    over: Any
    """Whether nothing is left to try."""


class Measured(NamedTuple):
    """The numbers of an attempt that decide how a search goes on."""

    value: Any
    """f where it led."""
    merit: Any
    """What the test compares."""
    short: Any
    """Whether it hardly moved x."""
    far: Any
    """Whether a longer step might lead where x or f overflows."""


class SearchedStep(StepRule):
    """A rule that tries sizes until one passes its test; the state is the next size and the largest |f| seen."""

    # A noisy test accepts any step.
    needs_exact: ClassVar[bool] = True
    needs_value: ClassVar[bool] = True
    searches: ClassVar[bool] = True
    expands: ClassVar[bool]
    """Whether the first step looks for the longest size that passes."""

    initial: Array
    shrink: Array
    grow: Array | None

    def init(self, x: PyTree[Array]) -> PyTree:
        """Carry the size to begin with and the largest |f| seen."""
        dtype = trees.dtype(x)
        return self.initial.astype(dtype), trees.scalar(0, dtype)

    def merit(self, move: Move, size: Scalar, x: PyTree[Array], value: Scalar) -> Scalar:
        """Return what the test compares, for a size that leads to ``x``, where f is ``value``."""
        raise NotImplementedError

    def is_informative(self, merit: Any, value: Any, slack: Any) -> Any:
        """Return whether a test compares more than rounding errors: what the model adds to f is above the slack."""
        return abs(merit - value) > slack

    def begin(self, size: Any) -> SearchState:
        """Return a search that has tried nothing."""
        no = np.zeros((), bool)
        return SearchState(size, np.zeros((), trees.single(size.dtype)), size, no, no, no, no, no)

    def measure(self, move: Move, size: Scalar, x: PyTree[Array], value: Scalar) -> Measured:
        """Reduce an attempt that led to ``x``, where f is ``value``, to numbers."""
        short = trees.largest(trees.subtract(x, move.point)) < SHORT_STEP * (1 + trees.largest(move.point))
        # Beyond the cube root of the largest number products of three entries overflow, and projections lose digits.
        far = ~(size * trees.largest(move.out.gradient) < jnp.finfo(size.dtype).max ** (1 / 3))
        return Measured(value, self.merit(move, size, x, value), short, far)

    def decide(self, search: SearchState, measured: Measured, level: Any, largest: Any, first: Any) -> SearchState:
        """Return the search after an attempt, whose merit may not exceed ``level``; ``first`` if no step was taken.

        A size that passes ends the search, unless the longest is looked for and none has failed yet. After one that
        fails the next is shorter; coming from a size that has passed, that is this one again.
        """
        xp, size, limits = namespace(search.size), search.size, jnp.finfo(search.size.dtype)
        shrink = self.shrink.astype(size.dtype)
        # f may be a difference of large numbers, and its rounding error is theirs: without this allowance rounding
        # fails the test near the minimum, and the size is cut to nothing.
        slack = 10 * limits.eps * largest
        passes = measured.merit <= level + slack
        informative = trees.call(self, "is_informative", measured.merit, measured.value, slack)
        failed = search.failed | ~passes
        # An uninformative test is no reason to go beyond the usual first size of 1, as long as x moves.
        worthwhile = first & self.expands & (informative | measured.short | (size < 1))
        longer = worthwhile & ~failed & ~measured.far & (size < limits.max**SIZE_RANGE_POWER)
        over = (passes & ~longer) | ~(size > limits.tiny**SIZE_RANGE_POWER)
        following = xp.where(passes, size / shrink, size * shrink)
        return SearchState(following, search.tried + 1, size, passes, failed, informative, measured.far, over)

    def carry(self, search: SearchState, largest: Any, first: Any, looks_ahead: bool) -> PyTree:
        """Return the state after a search: the size found, longer if that truly passed at once, and the largest |f|.

        The start does not count for the latter, since it may lie where the term is infinite.
        """
        xp, size = namespace(search.last), search.last
        default = 1.0 if looks_ahead else BACKTRACKING_GROWTH
        grow = xp.asarray(default if self.grow is None else self.grow, size.dtype)
        longer = (search.tried == 1) & search.informative & ~search.far
        size = xp.minimum(xp.where(longer, size * grow, size), jnp.finfo(size.dtype).max ** SIZE_RANGE_POWER)
        return size, xp.where(first, 0, largest)

    def take(self, move: Move, state: PyTree) -> Taken:
        """Search, then step."""
        size, largest = state
        first, value = move.steps == 0, move.out.value.astype(size.dtype)
        level = value + move.term.value(move.point).astype(size.dtype) if self.compares_objective else value
        largest = jnp.maximum(largest, abs(value))

        def attempt(carry: tuple) -> tuple:
            search = carry[0]
            x = move.reach(search.size)
            value = jnp.asarray(move.f(x), size.dtype)
            measured = self.measure(move, search.size, x, value)
            return self.decide(search, measured, level, largest, first), x, value

        start = self.begin(move.admit(size)), move.centre, value
        search, x, value = jax.lax.while_loop(lambda carry: ~carry[0].over, attempt, start)
        state = self.carry(search, largest, first, move.looks_ahead)
        return Taken(_or_nan(search.passes, x), search.last, state, search.tried, value)


def _or_nan(passed: Array, x: PyTree[Array]) -> PyTree[Array]:
    """Return the step, or NaN, which ends the run, where no size was accepted, as for a function that is NaN here."""
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

    expands: ClassVar[bool] = True

    def __init__(self, initial: Any = 1.0, shrink: float = 0.5, grow: float | None = None) -> None:
        self.initial = number("initial of Backtracking", initial, above=0)
        self.shrink = number("shrink of Backtracking", shrink, above=0, below=1)
        self.grow = None if grow is None else number("grow of Backtracking", grow, least=1)

    def merit(self, move: Move, size: Scalar, x: PyTree[Array], value: Scalar) -> Scalar:
        """f(x) less what the model adds to f(y)."""
        return value - move.divergence.model(move.out.gradient, x, move.point, size).astype(value.dtype)

    def untested(self, history: Mapping[str, np.ndarray], dtype: Any) -> str:
        """Suggest a longer first size where no step changed f by more than rounding."""
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
    that the objective does not increase, and so recovers from an initial size that is too long or too short.

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

    def is_informative(self, merit: Any, value: Any, slack: Any) -> Any:
        """Return True: the test asks only that the objective does not increase."""
        return np.ones((), bool)

    def merit(self, move: Move, size: Scalar, x: PyTree[Array], value: Scalar) -> Scalar:
        """f + h."""
        return value + move.term.value(x).astype(value.dtype)

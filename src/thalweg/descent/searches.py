"""Line searches: step sizes that evaluating the function finds.

A search goes to where a size leads, tests what it finds there, and tries a shorter or a longer size.
"""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree, Scalar

from thalweg import trees
from thalweg.arguments import number
from thalweg.descent.steps import SIZE_RANGE_POWER, Move, StepRule, Taken

__all__ = ["Backtracking", "Monotone"]

SHORT_STEP = 1e-4
"""A step that moves x by a smaller share of its largest number, or of 1, is short, whatever the test says: f may be
tiny, or a mean over many numbers, which hardly changes. Twice this share would lengthen a few more first steps."""

BACKTRACKING_GROWTH = 1.1
"""Backtracking's growth: about every eighth step tries a size too long, which costs one evaluation. At 1.2 every fourth
would."""


class SearchState(NamedTuple):
    """Where a search stands between two sizes."""

    size: Scalar
    """What to try next."""
    tried: Scalar
    """How many sizes were tried."""
    last: Scalar
    """The last of them."""
    x: PyTree[Array]
    """Where it led."""
    value: Scalar
    """f there."""
    passes: Any
    """Whether it passed the test."""
    failed: Any
    """Whether any has failed."""
    informative: Any
    """Whether the last test compared more than rounding errors."""
    far: Any
    """Whether a longer step might lead where x or f overflows."""
    over: Any
    """Whether nothing is left to try."""


class SearchedStep(StepRule):
    """A rule that tries sizes until one passes its test; the state is the next size and the largest |f| seen."""

    # A noisy test accepts any step.
    needs_exact: ClassVar[bool] = True
    needs_value: ClassVar[bool] = True
    expands: ClassVar[bool]
    """Whether the first step looks for the longest size that passes."""
    merit: ClassVar[Callable[..., Scalar]]
    """``merit(move, size, x, value)`` is what the test compares, for a size that leads to x, where f is ``value``."""

    initial: Array
    shrink: Array
    grow: Array | None

    def init(self, x: PyTree[Array]) -> PyTree:
        """Carry the size to begin with and the largest |f| seen."""
        dtype = trees.dtype(x)
        return self.initial.astype(dtype), trees.scalar(0, dtype)

    def is_informative(self, merit: Any, value: Any, slack: Any) -> Any:
        """Return whether a test compares more than rounding errors: what the model adds to f is above the slack."""
        return abs(merit - value) > slack

    def take(self, move: Move, state: PyTree) -> Taken:
        """Search, then step.

        A size that passes ends the search, unless the longest is looked for, in the first step, and none has failed
        yet. After one that fails the next is shorter; coming from a size that has passed, that is this one again.
        """
        size, largest = state
        first, value, limits = move.steps == 0, move.out.value.astype(size.dtype), jnp.finfo(size.dtype)
        level = value + move.descent.term.value(move.point).astype(size.dtype) if self.compares_objective else value
        largest = jnp.maximum(largest, abs(value))
        # f may be a difference of large numbers, and its rounding error is theirs: without this allowance rounding
        # fails the test near the minimum, and the size is cut to nothing.
        slack, shrink = 10 * limits.eps * largest, self.shrink.astype(size.dtype)

        def attempt(search: SearchState) -> SearchState:
            size = search.size
            x = move.reach(size)
            value = jnp.asarray(move.descent.f(x), size.dtype)
            merit = self.merit(move, size, x, value)
            passes, informative = merit <= level + slack, self.is_informative(merit, value, slack)
            failed = search.failed | ~passes
            short = trees.largest(trees.subtract(x, move.point)) < SHORT_STEP * (1 + trees.largest(move.point))
            # Beyond the cube root of the largest number products of three entries overflow, and projections lose
            # digits.
            far = ~(size * trees.largest(move.out.gradient) < limits.max ** (1 / 3))
            # An uninformative test is no reason to go beyond the usual first size of 1, as long as x moves.
            worthwhile = first & self.expands & (informative | short | (size < 1))
            longer = worthwhile & ~failed & ~far & (size < limits.max**SIZE_RANGE_POWER)
            over = (passes & ~longer) | ~(size > limits.tiny**SIZE_RANGE_POWER)
            following = jnp.where(passes, size / shrink, size * shrink)
            return SearchState(following, search.tried + 1, size, x, value, passes, failed, informative, far, over)

        no, none = jnp.zeros((), bool), jnp.zeros((), trees.single(size.dtype))
        start = SearchState(move.admit(size), none, size, move.centre, value, no, no, no, no, no)
        search = jax.lax.while_loop(lambda search: ~search.over, attempt, start)
        # The next size is longer if this one truly passed at once.
        grow = (1.0 if move.descent.momentum.looks_ahead else BACKTRACKING_GROWTH) if self.grow is None else self.grow
        longer = (search.tried == 1) & search.informative & ~search.far
        following = jnp.where(longer, search.last * jnp.asarray(grow, size.dtype), search.last)
        # The start does not count for the largest |f|, since it may lie where the term is infinite.
        state = jnp.minimum(following, limits.max**SIZE_RANGE_POWER), jnp.where(first, 0, largest)
        return Taken(_or_nan(search.passes, search.x), search.last, state, search.tried, search.value)


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
        return value - move.descent.divergence.model(move.out.gradient, x, move.point, size).astype(value.dtype)

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
        return jnp.ones((), bool)

    def merit(self, move: Move, size: Scalar, x: PyTree[Array], value: Scalar) -> Scalar:
        """f + h."""
        return value + move.descent.term.value(x).astype(value.dtype)

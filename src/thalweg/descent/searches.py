"""Step sizes found by looking at the function: longer while it goes well, shorter where it does not.

A search is written as one attempt, :meth:`Search.attempt`, which tries a size and says what to try next. The compiled
engine repeats it in a loop of its own inside the step; the host engine compiles the attempt alone and repeats it from
Python. Either way the sizes, the tests and the constants are these.
"""

from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree, Scalar

from thalweg import trees
from thalweg.arguments import number
from thalweg.descent.steps import Move, StepRule, Taken
from thalweg.oracles.base import Out


class Candidate(NamedTuple):
    """Where a step of some size leads."""

    size: Scalar
    x: PyTree[Array]
    out: Out
    """What ``move.evaluate`` says of x."""


class Trial(NamedTuple):
    """Where a search stands between two attempts."""

    size: Scalar
    """What to try next."""
    tried: Scalar
    """How many sizes were tried."""
    best: Candidate
    """The last that passed the test; before one has, the centre of the step."""
    passed: Array
    """Whether any has."""
    failed: Array
    """Whether any has not."""
    over: Array
    """Whether nothing is left to try."""


class Search(StepRule):
    """A rule that tries sizes until one passes its test; the state is the next size and the largest |f| seen."""

    # A noisy test accepts any step.
    needs_exact: ClassVar[bool] = True
    searches: ClassVar[bool] = True

    initial: Array
    shrink: Array

    def init(self, x: PyTree[Array]) -> PyTree:
        """Carry the size to begin with and the largest |f| seen."""
        dtype = trees.dtype(x)
        return self.initial.astype(dtype), trees.scalar(0, dtype)

    def take(self, move: Move, state: PyTree) -> Taken:
        """Search, then step."""
        allowed, largest = self.allowance(move, state)
        start = self.start(move, move.admit(state[0]), Out((), move.out.value.astype(largest.dtype), ()))
        end = jax.lax.while_loop(lambda trial: ~trial.over, lambda trial: self.attempt(move, allowed, trial), start)
        return self.taken(end, largest)

    def allowance(self, move: Move, state: PyTree) -> tuple[Scalar, Scalar]:
        """The level that the test compares with, an allowance for rounding in it, and the largest |f| seen.

        f may be a difference of large numbers, and its rounding error that of the largest of them: without the
        allowance rounding fails the test near the minimum, and the size is cut to nothing.
        """
        largest = jnp.maximum(state[1], jnp.abs(move.out.value).astype(state[1].dtype))
        return self._level(move) + 10 * jnp.finfo(largest.dtype).eps * largest, largest

    def start(self, move: Move, size: Scalar, out: Out) -> Trial:
        """A search that has tried nothing; ``out`` is what is known of the centre, as ``move.evaluate`` says it."""
        no = jnp.zeros((), bool)
        return Trial(size, jnp.zeros((), trees.single(size.dtype)), Candidate(size, move.centre, out), no, no, no)

    def attempt(self, move: Move, allowed: Scalar, trial: Trial) -> Trial:
        """Try one size. A search is over when it knows one that passes, and one that fails if it wants the largest."""
        size = trial.size
        x = move.reach(size)
        out = move.evaluate(x)
        out = out._replace(value=jnp.asarray(out.value, size.dtype))
        # A step of size 0 stays where it is, and so does nothing wrong: engines use it to evaluate the centre.
        passes = (size == 0) | self._passes(move, size, x, out.value, allowed)
        best = trees.where(passes, Candidate(size, x, out), trial.best)
        passed, failed = trial.passed | passes, trial.failed | ~passes
        enough = ~failed & ~self._grows(move, size)
        hopeless = ~passed & ~(size > jnp.finfo(size.dtype).tiny ** 0.5)
        following = jnp.where(passes, size / self.shrink.astype(size.dtype), size * self.shrink.astype(size.dtype))
        return Trial(following, trial.tried + 1, best, passed, failed, (passed & failed) | enough | hopeless)

    def taken(self, trial: Trial, largest: Scalar) -> Taken:
        """The step that a search has ended with."""
        best = trial.best
        state = self._following(best.size, trial.tried), largest
        return Taken(_or_nan(trial.passed, best.x), best.size, state, trial.tried, best.out.value)

    def _level(self, move: Move) -> Scalar:
        """What the test compares with, but for rounding."""
        raise NotImplementedError

    def _passes(self, move: Move, size: Scalar, x: PyTree[Array], value: Scalar, allowed: Scalar) -> Array:
        """The test of a size that leads to ``x``, where f is ``value``."""
        raise NotImplementedError

    def _grows(self, move: Move, size: Scalar) -> Array:
        """Whether a longer step is to be tried after one that passed."""
        return jnp.zeros((), bool)

    def _following(self, size: Scalar, tried: Scalar) -> Scalar:
        """The size that the next step begins with."""
        return size


def _or_nan(passed: Array, x: PyTree[Array]) -> PyTree[Array]:
    """The step, or one that ends the run where no size was accepted, as for a function that is NaN here."""
    leaves, structure = jax.tree.flatten(x)
    # NaN in one leaf does that: the smallest.
    smallest = min(range(len(leaves)), key=lambda i: leaves[i].size)
    leaves[smallest] = jnp.where(passed, leaves[smallest], jnp.nan)
    return jax.tree.unflatten(structure, leaves)


class Backtracking(Search):
    """The largest β in a geometric sequence for which the quadratic model lies above f.

    Accepts β when f(x⁺) ≤ f(y) + ⟨∇f(y), x⁺ − y⟩ + D(x⁺‖y)/β. The first step grows β by 1/shrink until the
    test fails, so the initial size need not be guessed; afterwards β never grows, as FISTA's theorem wants.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from thalweg.descent import minimize
    >>> float(minimize(lambda x: jnp.sum((x - 3.0) ** 2), jnp.zeros(1), step=Backtracking(), steps=50).x[0])
    3.0
    """

    def __init__(self, initial: Any = 1.0, shrink: float = 0.5) -> None:
        self.initial = number("initial of Backtracking", initial, above=0)
        self.shrink = number("shrink of Backtracking", shrink, above=0, below=1)

    def _level(self, move: Move) -> Scalar:
        return move.out.value

    def _passes(self, move: Move, size: Scalar, x: PyTree[Array], value: Scalar, allowed: Scalar) -> Array:
        ahead = move.divergence.displacement(x, move.point)
        model = trees.inner(move.out.gradient, ahead) + move.divergence.value(x, move.point) / size
        return value <= allowed + model

    def _grows(self, move: Move, size: Scalar) -> Array:
        return (move.steps == 0) & (size < jnp.finfo(size.dtype).max ** 0.5)


class Monotone(Search):
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

    grow: Array

    def __init__(self, initial: Any = 1.0, grow: float = 1.25, shrink: float = 0.5) -> None:
        self.initial = number("initial of Monotone", initial, above=0)
        self.grow = number("grow of Monotone", grow, least=1)
        self.shrink = number("shrink of Monotone", shrink, above=0, below=1)

    def _level(self, move: Move) -> Scalar:
        return move.out.value + move.term.value(move.point)

    def _passes(self, move: Move, size: Scalar, x: PyTree[Array], value: Scalar, allowed: Scalar) -> Array:
        return value + move.term.value(x) <= allowed

    def _following(self, size: Scalar, tried: Scalar) -> Scalar:
        longer = jnp.where(tried == 1, size * self.grow.astype(size.dtype), size)
        return jnp.minimum(longer, jnp.finfo(size.dtype).max ** 0.25)

"""Step sizes found by looking at the function: longer while it goes well, shorter where it does not."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree, Scalar

from thalweg import trees
from thalweg.arguments import number
from thalweg.descent.steps import Move, StepRule, Taken


class _Search(StepRule):
    """A rule that tries sizes until one passes its test; the state is the last size and the largest |f| seen."""

    initial: Array
    shrink: Array

    @property
    def needs_exact(self) -> bool:
        """True: a noisy test accepts any step."""
        return True

    @property
    def searches(self) -> bool:
        """True."""
        return True

    def init(self, x: PyTree[Array]) -> PyTree:
        """Carry the last size accepted and the largest |f| seen."""
        dtype = trees.dtype(x)
        return self.initial.astype(dtype), trees.scalar(0, dtype)

    def _slack(self, move: Move, largest: Scalar) -> tuple[Scalar, Scalar]:
        """Return the largest |f| seen, and an allowance for its rounding.

        f may be a difference of large numbers, and its rounding error that of the largest of them: without the
        allowance rounding fails the test near the minimum, and the size is cut to nothing.
        """
        largest = jnp.maximum(largest, jnp.abs(move.out.value).astype(largest.dtype))
        return largest, 10 * jnp.finfo(largest.dtype).eps * largest

    def _cut(self, attempt: Any, first: tuple) -> tuple:
        """Shorten the step until it passes.

        ``attempt(size)`` returns (x, f(x), whether it passed); ``first`` is (size, tried, x, f(x), passed).
        """
        tiny = jnp.finfo(first[0].dtype).tiny ** 0.5

        def shorter(carry: tuple) -> tuple:
            size = carry[0] * self.shrink.astype(carry[0].dtype)
            return size, carry[1] + 1, *attempt(size)

        return jax.lax.while_loop(lambda carry: ~carry[4] & (carry[0] > tiny), shorter, first)


def _or_nan(passed: Array, x: PyTree[Array]) -> PyTree[Array]:
    """The step, or one that ends the run where no size was accepted, as for a function that is NaN here."""
    leaves, structure = jax.tree.flatten(x)
    # NaN in one leaf does that: the smallest.
    smallest = min(range(len(leaves)), key=lambda i: leaves[i].size)
    leaves[smallest] = jnp.where(passed, leaves[smallest], jnp.nan)
    return jax.tree.unflatten(structure, leaves)


class Backtracking(_Search):
    """The largest β in a geometric sequence for which the quadratic model lies above f.

    Accepts β when f(x⁺) ≤ f(y) + ⟨∇f(y), x⁺ − y⟩ + D(x⁺‖y)/β. The first step grows β by 1/shrink until the
    test fails, so the initial size need not be guessed; afterwards β never grows, as FISTA's theorem wants.
    """

    def __init__(self, initial: Any = 1.0, shrink: float = 0.5) -> None:
        self.initial = number("initial of Backtracking", initial, above=0)
        self.shrink = number("shrink of Backtracking", shrink, above=0, below=1)

    def take(self, move: Move, state: PyTree) -> Taken:
        """Search, then step."""
        last, largest = state
        huge = jnp.finfo(last.dtype).max ** 0.5
        shrink = self.shrink.astype(last.dtype)
        largest, slack = self._slack(move, largest)
        f = move.f
        assert f is not None  # Descent refuses an oracle without value when parts are put together

        def attempt(size: Scalar) -> tuple[PyTree, Scalar, Array]:
            x = move.reach(size)
            value = jnp.asarray(f(x), last.dtype)
            ahead = move.divergence.displacement(x, move.point)
            model = trees.inner(move.out.gradient, ahead) + move.divergence.value(x, move.point) / size
            return x, value, value <= move.out.value + model + slack

        def longer(carry: tuple) -> tuple:
            size, tried, *now, _ = carry
            *further, fits = attempt(size / shrink)
            return (
                jnp.where(fits, size / shrink, size),
                tried + 1,
                *trees.where(fits, further, now),
                fits & (size < huge),
            )

        size = move.admit(last)
        *reached, fits = attempt(size)
        grown = jax.lax.while_loop(lambda carry: carry[4], longer, (size, 1.0, *reached, fits & (move.steps == 0)))
        size, tried, x, value, fits = self._cut(attempt, (*grown[:4], fits))
        return Taken(_or_nan(fits, x), size, (size, largest), tried, value)


class Monotone(_Search):
    """The size that last lowered f + h, longer by ``grow`` if it did so at once; shortened until it does.

    For geometries in which no bound on the curvature is known, or where the bound is far too careful: it only asks
    that the objective does not rise, and so recovers from an initial size that is too long or too short.
    """

    grow: Array

    def __init__(self, initial: Any = 1.0, grow: float = 1.25, shrink: float = 0.5) -> None:
        self.initial = number("initial of Monotone", initial, above=0)
        self.grow = number("grow of Monotone", grow, least=1)
        self.shrink = number("shrink of Monotone", shrink, above=0, below=1)

    def take(self, move: Move, state: PyTree) -> Taken:
        """Search, then step."""
        last, largest = state
        largest, slack = self._slack(move, largest)
        f, h = move.f, move.term.value
        assert f is not None  # Descent refuses an oracle without value when parts are put together
        now = move.out.value + h(move.point)

        def attempt(size: Scalar) -> tuple[PyTree, Scalar, Array]:
            x = move.reach(size)
            value = jnp.asarray(f(x), last.dtype)
            return x, value, value + h(x) <= now + slack

        # The first size is tried inside the loop too: one copy of the step to compile instead of two.
        before = move.admit(last) / self.shrink.astype(last.dtype)
        nothing = (before, 0.0, move.centre, jnp.zeros((), last.dtype), jnp.zeros((), bool))
        size, tried, x, value, fits = self._cut(attempt, nothing)
        following = jnp.where(tried == 1, size * self.grow.astype(size.dtype), size)
        following = jnp.minimum(following, jnp.finfo(size.dtype).max ** 0.25)
        return Taken(_or_nan(fits, x), size, (following, largest), tried, value)

"""Terms made of one term: translated, dilated. (The scaled one is with the base: terms know how to be multiplied.)"""

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree, Scalar

from thalweg import trees
from thalweg.arguments import instance, number, numbers
from thalweg.descent.terms import _arrays
from thalweg.descent.terms.base import Term, Wrapper
from thalweg.descent.terms.indicator import feasible


class Translated(Wrapper):
    """x ↦ h(x − shift), with the prox shift + prox_h(x − shift).

    Parameters
    ----------
    term
        h.
    shift
        A number, an array that broadcasts to each leaf of x, or a tree of such (a prefix of x's tree).

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from thalweg.descent.terms import L1
    >>> Translated(L1(1.0), 10.0).prox(jnp.array([10.5, 13.0]), 1.0)
    Array([10., 12.], dtype=float...)
    """

    fitting: ClassVar[tuple[str, ...]] = ("shift",)

    shift: PyTree[Array]

    def __init__(self, term: Term, shift: PyTree) -> None:
        self.term = instance("term of Translated", term, Term)
        self.shift = numbers("shift of Translated", shift)

    def value(self, x: PyTree[Array]) -> Scalar:
        """h(x − shift)."""
        if self.indicator and self.proximable:
            # x − shift cancels: its rounding error is that of x and of the shift, not of the difference.
            scale = _arrays.largest(_arrays.spread(self.shift, x))
            inside = feasible(x, self.prox(x, 1.0), coupled=not self.separable, scale=scale, together=True)
            return jnp.where(inside, 0.0, jnp.inf).astype(trees.dtype(x))
        return self.term.value(trees.subtract(x, _arrays.spread(self.shift, x)))

    def prox(self, x: PyTree[Array], step: Any) -> PyTree[Array]:
        """shift + prox_h(x − shift)."""
        shift = _arrays.spread(self.shift, x)
        return trees.add(self.term.prox(trees.subtract(x, shift), step), shift)


class Dilated(Wrapper):
    """x ↦ h(factor·x), with the prox prox_h(factor·x, factor²·step) / factor.

    Parameters
    ----------
    term
        h.
    factor
        A number other than 0.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from thalweg.descent.terms import LInfBall
    >>> Dilated(LInfBall(1.0), 2.0).prox(jnp.array([3.0, 0.25]), 1.0)
    Array([0.5 , 0.25], dtype=float...)
    """

    factor: Array

    def __init__(self, term: Term, factor: Any) -> None:
        self.term = instance("term of Dilated", term, Term)
        self.factor = number("factor of Dilated", factor)
        if not _arrays.is_traced(self.factor) and self.factor == 0:
            raise ValueError("factor of Dilated must not be 0, found 0.0")

    def value(self, x: PyTree[Array]) -> Scalar:
        """h(factor·x)."""
        return self.term.value(trees.scale(self.factor, x))

    def prox(self, x: PyTree[Array], step: Any) -> PyTree[Array]:
        """prox_h(factor·x, factor²·step) / factor."""
        inner = self.term.prox(trees.scale(self.factor, x), _arrays.multiplied(step, jnp.square(self.factor), x))
        return jax.tree.map(lambda leaf: leaf / self.factor.astype(leaf.dtype), inner)

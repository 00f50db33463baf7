"""Terms made of terms: translated, dilated, one for each part of a tree. (The scaled one is with the base.)"""

import operator
from functools import partial, reduce
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree, Scalar

from thalweg import trees
from thalweg.arguments import number, numbers
from thalweg.descent.terms.base import Composite, Term, Wrapper, indicator_value, is_traced, multiplied, spread

__all__ = ["Dilated", "PerLeaf", "Translated"]


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
    >>> import numpy as np
    >>> from thalweg.descent.terms import L1
    >>> Translated(L1(1.0), 10.0).prox(np.array([10.5, 13.0]), 1.0)
    Array([10., 12.], dtype=float...)
    """

    fitting: ClassVar[tuple[str, ...]] = ("shift",)

    shift: PyTree[Array] = eqx.field(converter=partial(numbers, "shift of Translated"))

    def value(self, x: PyTree[Array]) -> Scalar:
        """h(x − shift)."""
        if self.indicator and self.proximable:
            # x − shift cancels: its rounding error is that of x and of the shift, not of the difference.
            scale = trees.largest(spread(self.shift, x))
            return indicator_value(x, self.prox(x, 1.0), coupled=not self.separable, scale=scale, together=True)
        return self.term.value(trees.subtract(x, spread(self.shift, x)))

    def prox(self, x: PyTree[Array], step: Any) -> PyTree[Array]:
        """shift + prox_h(x − shift)."""
        shift = spread(self.shift, x)
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
    >>> import numpy as np
    >>> from thalweg.descent.terms import LInfBall
    >>> Dilated(LInfBall(1.0), 2.0).prox(np.array([3.0, 0.25]), 1.0)
    Array([0.5 , 0.25], dtype=float...)
    """

    factor: Any = eqx.field(converter=partial(number, "factor of Dilated"))

    def __check_init__(self) -> None:
        if not is_traced(self.factor) and float(self.factor) == 0:
            raise ValueError("factor of Dilated must not be 0, found 0.0")

    def value(self, x: PyTree[Array]) -> Scalar:
        """h(factor·x)."""
        return self.term.value(trees.scale(self.factor, x))

    def prox(self, x: PyTree[Array], step: Any) -> PyTree[Array]:
        """prox_h(factor·x, factor²·step) / factor."""
        inner = self.term.prox(trees.scale(self.factor, x), multiplied(step, jnp.square(self.factor), x))
        return jax.tree.map(lambda leaf: leaf / self.factor.astype(leaf.dtype), inner)


def _is_term(node: Any) -> bool:
    return isinstance(node, Term)


class PerLeaf(Composite):
    """A sum of terms, each of its own part of the tree x.

    Parameters
    ----------
    terms
        A tree of terms that is a prefix of x's tree: a term at a node applies to all that is below.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from thalweg.descent.terms import L1, Zero
    >>> term = PerLeaf({"weights": L1(1.0), "intercept": Zero()})
    >>> term.prox({"weights": jnp.array([3.0, -0.5]), "intercept": jnp.array(0.5)}, 1.0)
    {'intercept': Array(0.5, dtype=float...), 'weights': Array([2., 0.], dtype=float...)}
    """

    terms: PyTree[Term]

    def __init__(self, terms: PyTree) -> None:
        leaves = jax.tree.leaves(terms, is_leaf=lambda node: isinstance(node, Term) or node is None)
        if not leaves:
            raise TypeError(f"terms of PerLeaf must hold at least one Term, found {terms!r}")
        for leaf in leaves:
            if not isinstance(leaf, Term):
                raise TypeError(f"terms of PerLeaf must hold only Term instances, found {leaf!r}; use Zero() for none")
        self.terms = terms

    def value(self, x: PyTree[Array]) -> Scalar:
        """The sum of the terms' values."""
        return reduce(operator.add, jax.tree.leaves(self.map(lambda term, part: term.value(part), x)))

    def prox(self, x: PyTree[Array], step: Any) -> PyTree[Array]:
        """Each term's prox of its own part; a tree of steps is divided as ``x`` is."""
        if jax.tree_util.all_leaves([step]):
            return self.map(lambda term, part: term.prox(part, step), x)
        return self.map(lambda term, part, steps: term.prox(part, steps), x, step)

    def check(self, x: PyTree[Array]) -> None:
        """Refuse a tree that does not begin as the tree of terms does, and what the terms refuse."""
        try:
            self.map(lambda term, part: None, x)
        except (ValueError, TypeError, KeyError) as error:
            expected = jax.tree.structure(self.terms, is_leaf=_is_term)
            raise ValueError(
                f"terms of PerLeaf must be a prefix of the tree x, with the structure {jax.tree.structure(x)}; "
                f"found the structure {expected}"
            ) from error
        self.map(lambda term, part: term.check(part), x)

    @property
    def parts(self) -> list[Term]:
        """The terms, one after the other."""
        return jax.tree.leaves(self.terms, is_leaf=_is_term)

    def map(self, function: Any, *parts: PyTree) -> PyTree:
        """Apply ``function(term, *parts)`` to each term and its own part of each tree."""
        return jax.tree.map(function, self.terms, *parts, is_leaf=_is_term)

"""Terms applied to chosen leaves: regularise the weights, leave the intercept alone."""

import operator
from functools import reduce
from typing import Any

import jax
from jaxtyping import Array, PyTree, Scalar

from thalweg.descent.terms.base import Term


def _is_term(node: Any) -> bool:
    return isinstance(node, Term)


def _all(trait: str) -> Any:
    """Whether all terms have a trait."""
    return property(lambda self: all(getattr(term, trait) for term in self.parts))


class PerLeaf(Term):
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

    convex = _all("convex")
    separable = _all("separable")
    indicator = _all("indicator")
    proximable = _all("proximable")
    factorises = property(lambda self: any(term.factorises for term in self.parts))

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

"""The divergence D of the iteration, and the table of pairs (D, h) whose step has a closed form.

A divergence owns the step: ``step(centre, gradient, size, term)`` is the exact minimiser of

    ⟨gradient, x⟩ + h(x) + D(x ‖ centre) / size

for the pairs in the table. A pair that is not in it is refused when the method is put together, never
approximated. Pairs are added, from inside the package or outside it, with :func:`closed_form`.
"""

from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, PyTree, Scalar

from thalweg import trees
from thalweg.descent.terms import Term
from thalweg.errors import IncompatiblePartsError

__all__ = ["Divergence", "closed_form", "closed_forms", "find_closed_form", "has_closed_form"]


class Divergence(trees.Part):
    """A distance-like function D(x ‖ y), convex in x, zero where x = y.

    A subclass defines :meth:`value` and :meth:`residual`, registers the pairs it can step with, and overrides
    the rest where the defaults do not hold for it.

    Examples
    --------
    >>> from thalweg.descent import Euclidean, NegativeEntropy
    >>> Euclidean().linear, NegativeEntropy().linear
    (True, False)
    """

    linear: ClassVar[bool] = False
    """Whether points may be extrapolated, as momentum does, without leaving the space."""
    factorises: ClassVar[bool] = False
    """Whether a step factorises a matrix as large as x, so that few expensive steps are to be expected."""

    swallows: ClassVar[bool] = False
    """Whether rounding can lose a step, so that one that does not move x need not have converged."""

    def value(self, x: PyTree[Array], y: PyTree[Array]) -> Scalar:
        """D(x ‖ y)."""
        raise NotImplementedError(f"{type(self).__name__} must define value(x, y)")

    def residual(self, centre: PyTree[Array], x: PyTree[Array], size: Scalar) -> PyTree[Array]:
        """G = (∇φ(centre) − ∇φ(x)) / size: the gradient itself when h = 0."""
        raise NotImplementedError(f"{type(self).__name__} must define residual(centre, x, size)")

    def displacement(self, x: PyTree[Array], y: PyTree[Array]) -> PyTree[Array]:
        """x − y in the coordinates in which the linear model of f is taken (those dual to the gradient)."""
        return trees.subtract(x, y)

    def model(self, gradient: PyTree[Array], x: PyTree[Array], y: PyTree[Array], size: Scalar) -> Scalar:
        """⟨gradient, x − y⟩ + D(x ‖ y)/size: what the model of f around y adds to f(y)."""
        return trees.inner(gradient, self.displacement(x, y)) + self.value(x, y) / size

    def residual_norm(self, centre: PyTree[Array], x: PyTree[Array], size: Scalar) -> Scalar:
        """‖G‖ in the local norm: √(⟨G, centre − x⟩ / size), which is the Euclidean norm for the Euclidean D.

        It needs no Hessian and vanishes where the iteration stands still, also at the boundary, where single
        entries of G do not vanish.
        """
        pairing = trees.inner(self.residual(centre, x, size), self.displacement(centre, x))
        return jnp.sqrt(jnp.maximum(pairing, 0) / size)

    def admissible(self, centre: PyTree[Array], gradient: PyTree[Array], size: Scalar, term: Term) -> Scalar:
        """Return the largest of size, size/2, size/4, … for which the step has a minimiser."""
        return size

    def check(self, x: PyTree[Array]) -> None:
        """Raise ``ValueError`` if ``x`` is not a point of this geometry; called before the first step."""

    def step(self, centre: PyTree[Array], gradient: PyTree[Array], size: Scalar, term: Term) -> PyTree[Array]:
        """Return the exact minimiser of ⟨gradient, x⟩ + h(x) + D(x ‖ centre) / size."""
        return find_closed_form(self, term)(self, term, centre, gradient, size)


def halve_until(inside: Callable[[Scalar], Bool[Array, ""]], size: Scalar) -> Scalar:
    """Return the first of size, size/2, … that is inside; the domains are convex and open, so there is one.

    A gradient that is not a number has none: the size is then given up where it is lost to rounding twice over.
    """
    least = size * jnp.finfo(jnp.result_type(size)).eps ** 2
    return jax.lax.while_loop(lambda size: ~inside(size) & (size > least), lambda size: size / 2, size)


Rule = Callable[[Any, Any, PyTree, PyTree, Any], PyTree]
Condition = Callable[[Any, Any], bool]


class _Entry(NamedTuple):
    divergence: type[Divergence]
    term: type[Term]
    rule: Rule
    when: Condition
    note: str


_table: list[_Entry] = []


def closed_form(
    divergence: type[Divergence], term: type[Term], *, when: Condition = lambda divergence, term: True, note: str = ""
) -> Callable[[Rule], Rule]:
    """Register the closed-form step of a pair (D, h).

    Parameters
    ----------
    divergence, term
        The classes of the pair; subclasses are covered too, the most specific entry wins.
    when
        ``when(divergence, term) -> bool``, a further condition on the instances.
    note
        The terms in words, for lists of what works, where the class's name does not say it.

    Examples
    --------
    A user's own term, stepped with the negative entropy:

    >>> from thalweg.descent import NegativeEntropy, Term, closed_form
    >>> class Cost(Term):
    ...     price: float
    >>> @closed_form(NegativeEntropy, Cost)
    ... def _(divergence, term, centre, gradient, size):
    ...     return centre * jnp.exp(-size * (gradient + term.price))
    >>> NegativeEntropy().step(jnp.array([1.0]), jnp.array([0.5]), 1.0, Cost(-0.5))
    Array([1.], dtype=float...)
    """

    def decorate(rule: Rule) -> Rule:
        _table.append(_Entry(divergence, term, rule, when, note))
        return rule

    return decorate


def closed_forms() -> list[tuple[str, str, str]]:
    """List the pairs that have a closed form: names of divergence and term, and the note on the terms if any.

    Examples
    --------
    >>> ("NegativeEntropy", "Simplex", "") in closed_forms()
    True
    """
    return [(entry.divergence.__name__, entry.term.__name__, entry.note) for entry in _table]


def _matches(divergence: Divergence, term: Term) -> list[_Entry]:
    # Not by isinstance, which asks abstract classes: a step on the host of few numbers would wait for it.
    is_pair = lambda entry: entry.divergence in type(divergence).__mro__ and entry.term in type(term).__mro__
    return [entry for entry in _table if is_pair(entry) and entry.when(divergence, term)]


def has_closed_form(divergence: Divergence, term: Term) -> bool:
    """Whether the pair can be stepped.

    Examples
    --------
    >>> from thalweg.descent import NegativeEntropy, NuclearNorm
    >>> has_closed_form(NegativeEntropy(), NuclearNorm())
    False
    """
    return bool(_matches(divergence, term))


def find_closed_form(divergence: Divergence, term: Term) -> Rule:
    """Return the step of the pair, or raise :class:`IncompatiblePartsError` listing the pairs that exist.

    Examples
    --------
    >>> from thalweg.descent import NegativeEntropy, Simplex
    >>> callable(find_closed_form(NegativeEntropy(), Simplex()))
    True
    """
    matches = _matches(divergence, term)
    if not matches:
        raise IncompatiblePartsError(_refusal(divergence, term))
    # Most specific first; among equals the one registered last, so that users can override ours.
    depth = [(len(e.divergence.__mro__), len(e.term.__mro__), i) for i, e in enumerate(matches)]
    return matches[depth.index(max(depth))].rule


def _refusal(divergence: Divergence, term: Term) -> str:
    name = type(divergence).__name__
    terms = [entry.note or entry.term.__name__ for entry in _table if isinstance(divergence, entry.divergence)]
    works = ", ".join(dict.fromkeys(terms)) or "no term yet"
    return (
        f"divergence={name} has no closed-form step with term={type(term).__name__}. "
        f"{name} works with: {works}. Euclidean works with every term that has a prox; "
        f"a new pair can be added with thalweg.descent.closed_form({name}, {type(term).__name__})."
    )

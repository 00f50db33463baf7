"""Terms made of one term: translated, scaled, dilated."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree, Scalar

from thalweg import trees
from thalweg.descent.terms import _arrays
from thalweg.descent.terms.base import Term
from thalweg.descent.terms.indicator import feasible


def _require_term(owner: str, term: Any) -> Term:
    if isinstance(term, type):
        raise TypeError(f"{owner}: term must be an instance, found the class {term.__name__}; call it first")
    if not isinstance(term, Term):
        raise TypeError(f"{owner}: term must be a Term, found {type(term).__name__}")
    return term


class _Wrapper(Term):
    """A term with the traits of the term it wraps."""

    term: Term

    @property
    def convex(self) -> bool:
        """As the wrapped term."""
        return self.term.convex

    @property
    def separable(self) -> bool:
        """As the wrapped term."""
        return self.term.separable

    @property
    def indicator(self) -> bool:
        """As the wrapped term."""
        return self.term.indicator

    @property
    def proximable(self) -> bool:
        """As the wrapped term."""
        return self.term.proximable


class Translated(_Wrapper):
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

    shift: PyTree[Array]

    def __init__(self, term: Term, shift: PyTree) -> None:
        self.term = _require_term("Translated", term)
        self.shift = _arrays.parameter("Translated", "shift", shift)

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

    def check(self, x: PyTree[Array]) -> None:
        """Refuse a shift that does not fit ``x``, and what the term refuses."""
        _arrays.fit("Translated", "shift", self.shift, x)
        self.term.check(x)


class Scaled(_Wrapper):
    """factor·h, with the prox of h at factor times the step; also written ``factor * h``.

    Parameters
    ----------
    term
        h.
    factor
        A number ≥ 0. At 0 the domain of h remains: 0 times infinity is infinity.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from thalweg.descent.terms import L1
    >>> (2.0 * L1(1.0)).prox(jnp.array([3.0, -1.0]), 1.0)
    Array([1., 0.], dtype=float...)
    """

    factor: Array

    def __init__(self, term: Term, factor: Any) -> None:
        self.term = _require_term("Scaled", term)
        self.factor = _arrays.scalar("Scaled", "factor", factor, minimum=0.0)

    def value(self, x: PyTree[Array]) -> Scalar:
        """factor·h(x)."""
        value = self.term.value(x)
        return jnp.where(jnp.isinf(value), value, self.factor.astype(value.dtype) * value)

    def prox(self, x: PyTree[Array], step: Any) -> PyTree[Array]:
        """prox_h(x, factor·step)."""
        return self.term.prox(x, _multiplied(step, self.factor, x))

    def check(self, x: PyTree[Array]) -> None:
        """Refuse what the term refuses."""
        self.term.check(x)


class Dilated(_Wrapper):
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
        self.term = _require_term("Dilated", term)
        self.factor = _arrays.scalar("Dilated", "factor", factor)
        if not _arrays.is_traced(self.factor) and self.factor == 0:
            raise ValueError("Dilated: factor must not be 0, found 0.0")

    def value(self, x: PyTree[Array]) -> Scalar:
        """h(factor·x)."""
        return self.term.value(trees.scale(self.factor, x))

    def prox(self, x: PyTree[Array], step: Any) -> PyTree[Array]:
        """prox_h(factor·x, factor²·step) / factor."""
        inner = self.term.prox(trees.scale(self.factor, x), _multiplied(step, jnp.square(self.factor), x))
        return jax.tree.map(lambda leaf: leaf / self.factor.astype(leaf.dtype), inner)

    def check(self, x: PyTree[Array]) -> None:
        """Refuse what the term refuses."""
        self.term.check(x)


def _multiplied(step: Any, factor: Array, x: PyTree[Array]) -> Any:
    """The step, a scalar or a tree, times the factor."""
    return jax.tree.map(lambda part: jnp.asarray(part) * factor.astype(trees.dtype(x)), step)

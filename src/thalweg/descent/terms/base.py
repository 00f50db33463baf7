"""The simple term h of the iteration: its contract, and how it is multiplied by a number."""

from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree, Scalar

from thalweg import trees
from thalweg.arguments import instance, number
from thalweg.descent.terms import _arrays


class Term(eqx.Module):
    """A function h simple enough that its proximal step is known in closed form.

    A subclass defines :meth:`value` and :meth:`prox`, for any pytree ``x``, and overrides the traits that do
    not hold for it. A term without ``prox`` sets ``prox = None``: it is then only usable with a divergence
    that knows it.

    A term is a pytree whose numbers are leaves, so a change of a weight or a bound does not recompile
    anything. Multiplication by a number scales the term: ``2.0 * L1(1.0)``.

    Examples
    --------
    >>> from thalweg.descent.terms import L1, L2
    >>> L1().separable, L2().separable
    (True, False)
    """

    # NumPy scalars would otherwise try to make an array of the term: with None they leave it to __rmul__.
    __array_ufunc__: ClassVar[Any] = None

    convex: ClassVar[bool] = True
    """Whether h is convex; averaging and the convergence theorems need it."""
    separable: ClassVar[bool] = False
    """Whether h is a sum over coordinates; ``prox`` then also takes one step size per coordinate."""
    indicator: ClassVar[bool] = False
    """Whether h is 0 on a set and infinite off it, so that ``prox`` is the projection."""
    factorises: ClassVar[bool] = False
    """Whether a step factorises a matrix as large as x, so that few dear steps are to be expected."""
    fitting: ClassVar[tuple[str, ...]] = ()
    """The parameters that must broadcast to x: arrays, or trees of them that are prefixes of x's tree."""
    axes: ClassVar[int] = 0
    """The least number of axes that each leaf of x must have."""

    @property
    def proximable(self) -> bool:
        """Whether ``prox`` can be called; false for ``prox = None`` and for what is built on such a term."""
        return type(self).prox is not None

    def value(self, x: PyTree[Array]) -> Scalar:
        """h(x); for an indicator 0 or infinity, with a tolerance of rounding error."""
        raise NotImplementedError(f"{type(self).__name__} must define value(x)")

    def prox(self, x: PyTree[Array], step: Any) -> PyTree[Array]:
        """argmin_u h(u) + ‖u − x‖² / (2·step).

        ``step`` is a positive scalar or, for a separable term, a pytree like ``x`` of positive arrays.
        """
        raise NotImplementedError(f"{type(self).__name__} must define prox(x, step)")

    def check(self, x: PyTree[Array]) -> None:
        """Raise ``ValueError`` if ``x`` and the term's parameters do not fit; called before the first step."""
        owner = type(self).__name__
        for name in self.fitting:
            _arrays.fit(owner, name, getattr(self, name), x)
        for path, leaf in jax.tree_util.tree_leaves_with_path(x):
            if jnp.ndim(leaf) < self.axes:
                kind = "a matrix" if self.axes == 2 else "a vector or an array of them"
                raise ValueError(f"{owner}: x{trees.path_name(path)} must be {kind}, found the shape {leaf.shape}")

    def __rmul__(self, factor: Any) -> "Term":
        return Scaled(self, factor)

    def __mul__(self, factor: Any) -> "Term":
        return self.__rmul__(factor)


def _as_wrapped(trait: str) -> Any:
    return property(lambda self: getattr(self.term, trait))


class Wrapper(Term):
    """A term with the traits of the term it wraps."""

    term: Term

    convex = _as_wrapped("convex")
    separable = _as_wrapped("separable")
    indicator = _as_wrapped("indicator")
    factorises = _as_wrapped("factorises")
    proximable = _as_wrapped("proximable")

    def check(self, x: PyTree[Array]) -> None:
        """Refuse what does not fit, and what the term refuses."""
        super().check(x)
        self.term.check(x)


class Scaled(Wrapper):
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
        self.term = instance("term of Scaled", term, Term)
        self.factor = number("factor of Scaled", factor, least=0)

    def value(self, x: PyTree[Array]) -> Scalar:
        """factor·h(x)."""
        value = self.term.value(x)
        return jnp.where(jnp.isinf(value), value, self.factor.astype(value.dtype) * value)

    def prox(self, x: PyTree[Array], step: Any) -> PyTree[Array]:
        """prox_h(x, factor·step)."""
        return self.term.prox(x, _arrays.multiplied(step, self.factor, x))


class Zero(Term):
    """h = 0, which is also the indicator of the whole space.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> Zero().prox(jnp.ones(1), 0.5)
    Array([1.], dtype=float...)
    """

    separable: ClassVar[bool] = True
    # Every point is feasible and its own projection.
    indicator: ClassVar[bool] = True

    def value(self, x: PyTree[Array]) -> Scalar:
        """0."""
        return jnp.zeros((), trees.dtype(x))

    def prox(self, x: PyTree[Array], step: Any) -> PyTree[Array]:
        """Return ``x`` itself."""
        return x

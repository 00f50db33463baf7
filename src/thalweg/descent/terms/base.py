"""The simple term h of the iteration: its contract, and the two ways terms combine with numbers."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, PyTree, Scalar


class Term(eqx.Module):
    """A function h simple enough that its proximal step is known in closed form.

    A subclass defines :meth:`value` and :meth:`prox`, for any pytree ``x``, and overrides the traits that do
    not hold for it. A term without ``prox`` sets ``prox = None``: it is then only usable with a divergence
    that knows it.
    """

    @property
    def convex(self) -> bool:
        """Whether h is convex; averaging and the convergence theorems need it."""
        return True

    @property
    def separable(self) -> bool:
        """Whether h is a sum over coordinates; ``prox`` then also takes one step size per coordinate."""
        return False

    @property
    def indicator(self) -> bool:
        """Whether h is 0 on a set and infinite off it, so that ``prox`` is the projection."""
        return False

    def value(self, x: PyTree[Array]) -> Scalar:
        """h(x); for an indicator 0 or infinity, with a tolerance of rounding error."""
        raise NotImplementedError(f"{type(self).__name__} must define value(x)")

    def prox(self, x: PyTree[Array], step: Any) -> PyTree[Array]:
        """argmin_u h(u) + ‖u − x‖² / (2·step).

        ``step`` is a positive scalar or, for a separable term, a pytree like ``x`` of positive arrays.
        """
        raise NotImplementedError(f"{type(self).__name__} must define prox(x, step)")

    def check(self, x: PyTree[Array]) -> None:
        """Raise ``ValueError`` if the term's parameters do not fit ``x``; called before the first step."""


class Zero(Term):
    """h = 0."""

    @property
    def separable(self) -> bool:
        """True."""
        return True

    def value(self, x: PyTree[Array]) -> Scalar:
        """0."""
        return jnp.zeros(())

    def prox(self, x: PyTree[Array], step: Any) -> PyTree[Array]:
        """Return ``x`` itself."""
        return x

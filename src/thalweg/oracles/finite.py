"""Gradients by finite differences: slow and approximate, for tests of the others."""

from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Key, PyTree, Scalar

from thalweg import arguments, trees
from thalweg.oracles.base import Oracle, Out

__all__ = ["FiniteDifferences"]


class FiniteDifferences(Oracle):
    """Central differences (f(x + δeᵢ) − f(x − δeᵢ))/2δ, for functions that cannot be differentiated otherwise.

    Parameters
    ----------
    function
        ``function(x) -> scalar``.
    spacing
        δ, relative to max(1, |xᵢ|); by default the cube root of the dtype's rounding unit, which balances
        truncation and rounding.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> oracle = FiniteDifferences(lambda x: jnp.sum(x**2))
    >>> bool(abs(oracle.estimate(jnp.ones(1), (), None)[0].gradient[0] - 2) < 1e-2)
    True
    """

    # The key is ignored.
    deterministic: ClassVar[bool] = True

    function: Callable[[PyTree], Any] = eqx.field(static=True)
    spacing: float | None = eqx.field(static=True)

    def __init__(self, function: Callable[[PyTree], Any], spacing: float | None = None) -> None:
        self.function = arguments.function("function of FiniteDifferences", function)
        if spacing is not None:
            arguments.number("spacing of FiniteDifferences", spacing, above=0)
        self.spacing = spacing

    def value(self, x: PyTree[Array]) -> Scalar:
        """Evaluate the function at ``x``."""
        return self.function(x)

    def estimate(self, x: PyTree[Array], state: PyTree, key: Key[Array, ""]) -> tuple[Out, PyTree]:
        """Evaluate at 2d points, one pair per entry of x."""
        flat, unravel = ravel_pytree(x)
        spacing = float(jnp.finfo(trees.dtype(x)).eps) ** (1 / 3) if self.spacing is None else self.spacing
        offsets = spacing * jnp.maximum(1, jnp.abs(flat))
        at = lambda point: jnp.asarray(self.function(unravel(point)))

        def derivative(i: Array) -> Array:
            ahead, behind = flat.at[i].add(offsets[i]), flat.at[i].add(-offsets[i])
            return (at(ahead) - at(behind)) / (ahead[i] - behind[i])

        gradient = jax.lax.map(derivative, jnp.arange(flat.size))
        return Out(unravel(gradient.astype(flat.dtype)), at(flat), jnp.asarray(2.0 * flat.size)), state

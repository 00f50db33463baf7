"""Solves with the factor of a matrix by its inverse."""

import jax.numpy as jnp
from jax.scipy.linalg import cho_solve, solve_triangular
from jaxtyping import Array, Float


class Inverted:
    """The solves of SciPy's twin, by the inverse of a factor that is needed anyway.

    On a GPU a triangular solve takes as long for few columns as for many, and a product a fraction of that.
    """

    def __init__(self, factor: Float[Array, "n n"]) -> None:
        self.inverse = solve_triangular(factor, jnp.eye(len(factor), dtype=factor.dtype), lower=True)

    def solve_triangular(self, factor: Array, right: Array, lower: bool, trans: int = 0) -> Array:
        """L⁻¹ right, or L⁻ᵀ right, of the factor that is inverted or of the small one of the mean."""
        if len(factor) == 1:
            return right / factor
        if len(factor) < len(self.inverse):
            return solve_triangular(factor, right, lower=lower, trans=trans)
        return (self.inverse.T if trans else self.inverse) @ right

    def cho_solve(self, factor: tuple[Array, bool], right: Array) -> Array:
        """(LLᵀ)⁻¹ right, of the small factor."""
        return right / factor[0] ** 2 if len(factor[0]) == 1 else cho_solve(factor, right)

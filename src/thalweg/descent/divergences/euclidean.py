"""Euclidean geometries: the plain one, a diagonal metric, a matrix metric."""

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree, Scalar

from thalweg import trees
from thalweg.arguments import numbers
from thalweg.descent.divergences.base import Divergence, closed_form
from thalweg.descent.terms import SquaredL2, Term, Zero
from thalweg.descent.terms.base import check_fit, spread

__all__ = ["DiagonalMetric", "Euclidean", "MatrixMetric"]


class QuadraticDivergence(Divergence):
    """D(x ‖ y) = ½⟨x − y, M(x − y)⟩ for a metric M that is the same everywhere."""

    linear: ClassVar[bool] = True
    metric: ClassVar[Callable[..., PyTree[Array]]]
    """``metric(vector)`` is M · vector."""

    def value(self, x: PyTree[Array], y: PyTree[Array]) -> Scalar:
        """½⟨x − y, M(x − y)⟩."""
        difference = trees.subtract(x, y)
        return trees.inner(self.metric(difference), difference) / 2

    def residual(self, centre: PyTree[Array], x: PyTree[Array], size: Scalar) -> PyTree[Array]:
        """M (centre − x) / size."""
        return trees.scale(1 / size, self.metric(trees.subtract(centre, x)))


class Euclidean(QuadraticDivergence):
    """D(x ‖ y) = ½‖x − y‖². Works with every term that has a prox.

    Examples
    --------
    >>> import numpy as np
    >>> Euclidean().step(np.ones(1), np.ones(1), 0.25, Zero())
    Array([0.75], dtype=float...)
    """

    def metric(self, vector: PyTree[Array]) -> PyTree[Array]:
        """Return the vector itself."""
        return vector

    def residual_norm(self, centre: PyTree[Array], x: PyTree[Array], size: Scalar) -> Scalar:
        """‖centre − x‖ / size."""
        norm = trees.norm(trees.subtract(*trees.joined(centre, x)))
        return norm / jnp.asarray(size, norm.dtype)

    def model(self, gradient: PyTree[Array], x: PyTree[Array], y: PyTree[Array], size: Scalar) -> Scalar:
        """⟨gradient, x − y⟩ + ½‖x − y‖²/size."""
        gradient, x, y = trees.joined(gradient, x, y)
        return super().model(gradient, x, y, size)


@closed_form(Euclidean, Term, when=lambda d, t: t.proximable, note="every term with a prox")
def _proximal_step(divergence, term, centre, gradient, size):
    return term.prox(trees.add_scaled(centre, -size, gradient), size)


class DiagonalMetric(QuadraticDivergence):
    """D(x ‖ y) = ½ Σ wᵢ (xᵢ − yᵢ)², a step scaled coordinate by coordinate. Works with separable terms.

    Parameters
    ----------
    weights
        A positive number, a positive array that broadcasts to each leaf of x, or a tree of such (a prefix of x's tree).

    Examples
    --------
    >>> import numpy as np
    >>> DiagonalMetric(2.0).step(np.ones(1), np.ones(1), 0.5, Zero())
    Array([0.75], dtype=float...)
    """

    weights: PyTree[Array] = eqx.field(converter=partial(numbers, "weights of DiagonalMetric", above=0))

    def check(self, x: PyTree[Array]) -> None:
        """Refuse weights that do not broadcast to ``x``."""
        check_fit("DiagonalMetric", "weights", self.weights, x)

    def metric(self, vector: PyTree[Array]) -> PyTree[Array]:
        """Return wᵢ vᵢ."""
        return jax.tree.map(jnp.multiply, spread(self.weights, vector), vector)


@closed_form(DiagonalMetric, Term, when=lambda d, t: t.proximable and t.separable, note="every separable term")
def _scaled_proximal_step(divergence, term, centre, gradient, size):
    weights = spread(divergence.weights, centre)
    sizes = jax.tree.map(lambda w, c: jnp.broadcast_to(jnp.asarray(size, c.dtype) / w, c.shape), weights, centre)
    return term.prox(jax.tree.map(lambda c, s, g: c - s * g, centre, sizes, gradient), sizes)


class MatrixMetric(QuadraticDivergence):
    """D(x ‖ y) = ½ (x − y)ᵀM(x − y), on all leaves of x laid end to end. Works with Zero and SquaredL2.

    Parameters
    ----------
    matrix
        Symmetric positive definite; factorised once, when the metric is made.

    Examples
    --------
    >>> import numpy as np
    >>> MatrixMetric(2 * np.eye(2)).value(np.ones(2), np.zeros(2))
    Array(2., dtype=float...)
    """

    eigenvalues: Float[Array, " n"]
    eigenvectors: Float[Array, "n n"]

    def __init__(self, matrix: Any) -> None:
        shape = np.shape(matrix)
        if len(shape) != 2 or shape[0] != shape[1]:
            raise ValueError(f"matrix of MatrixMetric must be square, found shape {shape}")
        matrix = numbers("matrix of MatrixMetric", matrix)
        concrete = not isinstance(matrix, jax.core.Tracer)
        rounding = 1e-6 * np.max(np.abs(matrix), initial=0) if concrete else 0.0
        if concrete and not np.allclose(matrix, np.transpose(matrix), rtol=0, atol=rounding):
            raise ValueError("matrix of MatrixMetric must be symmetric; found M different from its transpose")
        self.eigenvalues, self.eigenvectors = jnp.linalg.eigh(matrix)
        if concrete and not (least := float(self.eigenvalues[0])) > 0:
            raise ValueError(f"matrix of MatrixMetric must be positive definite, found the eigenvalue {least:.3g}")

    def check(self, x: PyTree[Array]) -> None:
        """Refuse a matrix whose side is not the number of entries of ``x``."""
        size = sum(jnp.size(leaf) for leaf in jax.tree.leaves(x))
        if size != self.eigenvalues.size:
            raise ValueError(f"matrix of MatrixMetric has side {self.eigenvalues.size}, x0 has {size} entries")

    def _apply(self, function: Any, x: PyTree[Array]) -> PyTree[Array]:
        """Apply the matrix with M's eigenvectors and the eigenvalues ``function(eigenvalues)``."""
        flat, unravel = ravel_pytree(x)
        vectors = self.eigenvectors.astype(flat.dtype)
        scaled = function(self.eigenvalues.astype(flat.dtype)) * (vectors.T @ flat)
        return unravel(vectors @ scaled)

    def metric(self, vector: PyTree[Array]) -> PyTree[Array]:
        """Return M · vector."""
        return self._apply(lambda m: m, vector)


@closed_form(MatrixMetric, Zero)
def _newton_like_step(divergence, term, centre, gradient, size):
    return trees.add_scaled(centre, -size, divergence._apply(lambda m: 1 / m, gradient))


def _one_weight(divergence: MatrixMetric, term: SquaredL2) -> bool:
    return trees.is_leaf(term.weight) and jnp.ndim(term.weight) == 0


@closed_form(MatrixMetric, SquaredL2, when=_one_weight, note="SquaredL2 with one weight")
def _ridge_step(divergence, term, centre, gradient, size):
    target = trees.add_scaled(divergence.metric(centre), -size, gradient)
    return divergence._apply(lambda m: 1 / (m + jnp.asarray(size * term.weight, m.dtype)), target)

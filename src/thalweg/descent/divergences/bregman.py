"""Bregman divergences D_φ(x ‖ y) = φ(x) − φ(y) − ⟨∇φ(y), x − y⟩: entropy, Burg entropy, and a φ of your own."""

from collections.abc import Callable
from functools import partial, reduce
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree, Scalar

from thalweg import trees
from thalweg.arguments import function
from thalweg.descent.divergences.base import Divergence, closed_form, has_closed_form
from thalweg.descent.terms import L1, Box, L1Ball, LogBarrier, NonNegative, PerLeaf, Simplex, Term, Zero

__all__ = ["Bregman", "BurgEntropy", "NegativeEntropy"]


class PositiveGeometry(Divergence):
    """A geometry of positive entries, a sum over them; a subclass defines it for arrays."""

    swallows: ClassVar[bool] = True
    reason: ClassVar[str]
    """Why entries must be positive."""

    leaf_value: ClassVar[Callable[..., Array]]
    """``leaf_value(u, v)`` is D(u ‖ v) of each entry."""
    leaf_residual: ClassVar[Callable[..., Array]]
    """``leaf_residual(c, u)`` is φ′(c) − φ′(u) of each entry."""
    leaf_step: ClassVar[Callable[..., Array]]
    """``leaf_step(c, g, size)`` minimises g·u + D(u ‖ c)/size for each entry; infinite where there is no minimiser."""

    def free_step(self, centre: PyTree[Array], gradient: PyTree[Array], size: Scalar) -> PyTree[Array]:
        """The step with h = 0."""
        return jax.tree.map(lambda c, g: self.leaf_step(c, g, jnp.asarray(size, c.dtype)), centre, gradient)

    def check(self, x: PyTree[Array]) -> None:
        """Refuse entries that are not positive."""
        for path, leaf in jax.tree_util.tree_leaves_with_path(x):
            if isinstance(leaf, jax.core.Tracer) or leaf.size == 0 or (smallest := np.min(np.asarray(leaf))) > 0:
                continue
            raise ValueError(
                f"x0{jax.tree_util.keystr(path)} must be positive for divergence={type(self).__name__}, {self.reason}; "
                f"found {smallest:.6g}"
            )

    def value(self, x: PyTree[Array], y: PyTree[Array]) -> Scalar:
        """The sum over entries."""
        return trees.total(jax.tree.map(lambda u, v: jnp.sum(self.leaf_value(u, v)), x, y))

    def residual(self, centre: PyTree[Array], x: PyTree[Array], size: Scalar) -> PyTree[Array]:
        """(φ′(centre) − φ′(x)) / size."""
        return jax.tree.map(lambda c, u: self.leaf_residual(c, u) / jnp.asarray(size, c.dtype), centre, x)

    def residual_norm(self, centre: PyTree[Array], x: PyTree[Array], size: Scalar) -> Scalar:
        """‖G‖ in the local norm, or ‖min(G, centre/size)‖ if that is larger.

        Near 0 steps hardly move, whatever the gradient. The second norm is that of a step that adds.
        """
        residual = self.residual(centre, x, size)
        natural = jax.tree.map(lambda g, c: jnp.minimum(g, c / jnp.asarray(size, c.dtype)), residual, centre)
        return jnp.maximum(super().residual_norm(centre, x, size), trees.norm(natural).astype(trees.dtype(centre)))


class NegativeEntropy(PositiveGeometry):
    """D(x ‖ y) = Σ xᵢ log(xᵢ/yᵢ) − xᵢ + yᵢ on x ≥ 0: the geometry of probabilities and of counts.

    The step is multiplicative, xᵢ exp(−β gᵢ), and on the simplex it is the exponentiated gradient. Terms:
    Zero, NonNegative, Simplex, L1, L1Ball, Box.

    Examples
    --------
    >>> import numpy as np
    >>> NegativeEntropy().step(np.ones(2), np.zeros(2), 0.1, Simplex())
    Array([0.5, 0.5], dtype=float...)
    """

    # An entry at zero stays there, wherever the minimum is.
    reason: ClassVar[str] = "whose steps multiply and never leave zero"

    def leaf_value(self, u: Array, v: Array) -> Array:
        """u log(u/v) − u + v."""
        return jnp.where(u > 0, u * self.leaf_residual(u, v), 0) - u + v

    def leaf_residual(self, c: Array, u: Array) -> Array:
        """log c − log u, and 0 where both are 0."""
        alike = (c == 0) & (u == 0)
        return jnp.where(alike, 0, jnp.log(jnp.where(alike, 1, c)) - jnp.log(jnp.where(alike, 1, u)))

    def leaf_step(self, c: Array, g: Array, size: Array) -> Array:
        """c·exp(−size·g)."""
        return _kept_positive(c * jnp.exp(-size * g), c)


def _kept_positive(x: Array, centre: Array) -> Array:
    """Keep an entry that underflows at the smallest positive number: from 0 it could never come back."""
    return jnp.where(centre > 0, jnp.maximum(x, jnp.finfo(x.dtype).tiny), x)


class BurgEntropy(PositiveGeometry):
    """D(x ‖ y) = Σ xᵢ/yᵢ − log(xᵢ/yᵢ) − 1 on x > 0 (Itakura–Saito): the geometry of scales and spectra.

    Terms: Zero, NonNegative, L1, Box, LogBarrier. A step so long that there is no minimiser is halved until
    there is one.

    Examples
    --------
    >>> import numpy as np
    >>> BurgEntropy().step(np.ones(1), np.ones(1), 1.0, Zero())
    Array([0.5], dtype=float...)
    """

    reason: ClassVar[str] = "which is infinite at zero"

    def leaf_value(self, u: Array, v: Array) -> Array:
        """u/v − log(u/v) − 1."""
        return u / v - jnp.log(u / v) - 1

    def leaf_residual(self, c: Array, u: Array) -> Array:
        """1/u − 1/c."""
        return 1 / u - 1 / c

    def leaf_step(self, c: Array, g: Array, size: Array) -> Array:
        """c / (1 + size·g·c); where the denominator is not positive the objective falls for ever."""
        denominator = 1 + size * g * c
        return jnp.where(denominator > 0, c / denominator, jnp.inf)

    def admissible(self, centre: PyTree[Array], gradient: PyTree[Array], size: Scalar, term: Any) -> Scalar:
        """Halve ``size`` until 1 + size·gᵢ·xᵢ > 0 for every entry that no upper bound holds."""
        if isinstance(term, PerLeaf):
            sizes = term.map(lambda part, c, g: self.admissible(c, g, size, part), centre, gradient)
            return reduce(jnp.minimum, jax.tree.leaves(sizes))
        if isinstance(term, L1):
            gradient = trees.add(gradient, *term.parameters(gradient))
        scaled = jax.tree.map(jnp.multiply, centre, gradient)
        if isinstance(term, Box):
            # Where there is an upper bound, clipping takes the place of a minimiser.
            upper = term.parameters(centre)[1]
            scaled = jax.tree.map(lambda s, upper: jnp.where(upper < jnp.inf, 0, s), scaled, upper)
        steepest = reduce(jnp.minimum, [jnp.min(leaf, initial=0.0) for leaf in jax.tree.leaves(scaled)])
        # 1 + size·steepest ≥ 1/16 keeps the step off the pole, where rounding decides the sign.
        halvings = jnp.ceil(jnp.log2(jnp.maximum(size * -steepest / (15 / 16), 1)))
        return jnp.ldexp(size, -halvings.astype(jnp.int32))


def _on_both(term: type[Term], **options: Any) -> Callable[[Any], Any]:
    """Register a step for the negative entropy and for Burg's."""
    return lambda rule: closed_form(NegativeEntropy, term, **options)(closed_form(BurgEntropy, term, **options)(rule))


@_on_both(Zero)
@_on_both(NonNegative)
def _free_step(divergence, term, centre, gradient, size):
    return divergence.free_step(centre, gradient, size)


@_on_both(L1)
def _l1_step(divergence, term, centre, gradient, size):
    # On x ≥ 0 the term is linear, so it is added to the gradient.
    return divergence.free_step(centre, trees.add(gradient, *term.parameters(gradient)), size)


@_on_both(Box)
def _box_step(divergence, term, centre, gradient, size):
    # The minimiser over an interval of a separable convex function is its free minimiser, clipped.
    return term.project(divergence.free_step(centre, gradient, size))


@_on_both(PerLeaf, when=lambda d, t: all(has_closed_form(d, part) for part in t.parts), note="PerLeaf of these")
def _leaf_by_leaf(divergence, term, centre, gradient, size):
    return term.map(lambda part, c, g: divergence.step(c, g, size, part), centre, gradient)


@closed_form(NegativeEntropy, Simplex)
def _exponentiated_gradient(divergence, term, centre, gradient, size):
    def leaf(c, g):
        # In the log domain, so that a large gradient neither overflows nor empties the simplex.
        shares = jax.nn.softmax(jnp.log(c) - jnp.asarray(size, c.dtype) * g, axis=-1)
        return _kept_positive(jnp.asarray(term.total, c.dtype) * shares, c)

    return jax.tree.map(leaf, centre, gradient)


@closed_form(NegativeEntropy, L1Ball)
def _entropy_l1_ball(divergence, term, centre, gradient, size):
    free = divergence.free_step(centre, gradient, size)
    total = sum(jnp.sum(leaf) for leaf in jax.tree.leaves(free))
    return trees.scale(jnp.minimum(1, term.radius / jnp.maximum(total, term.radius)), free)


@closed_form(BurgEntropy, LogBarrier)
def _burg_log_barrier(divergence, term, centre, gradient, size):
    free, (weight,) = divergence.free_step(centre, gradient, size), term.parameters(centre)
    return jax.tree.map(lambda x, w: (1 + jnp.asarray(size, x.dtype) * w) * x, free, weight)


class Bregman(Divergence):
    """The Bregman divergence of a potential of your own. Works with Zero.

    Parameters
    ----------
    potential
        ``potential(x) -> scalar``, strictly convex and differentiable.
    inverse
        ``inverse(z) -> x``, the inverse of the gradient map x ↦ ∇φ(x).

    Examples
    --------
    The geometry of ½‖x‖_p², here with p = 3/2, whose inverse map is the gradient of ½‖z‖_q², q = 3:

    >>> import jax, jax.numpy as jnp, numpy as np
    >>> half_square = lambda p: lambda x: 0.5 * jnp.sum(jnp.abs(x) ** p) ** (2 / p)
    >>> geometry = Bregman(half_square(1.5), inverse=jax.grad(half_square(3.0)))
    >>> x = np.array([1.0, 2.0])
    >>> np.allclose(jax.jit(geometry.step)(x, np.zeros(2), 0.1, Zero()), x, rtol=1e-5)
    True
    """

    swallows: ClassVar[bool] = True

    potential: Callable[[PyTree], Any] = eqx.field(static=True, converter=partial(function, "potential of Bregman"))
    inverse: Callable[[PyTree], Any] = eqx.field(static=True, converter=partial(function, "inverse of Bregman"))

    def value(self, x: PyTree[Array], y: PyTree[Array]) -> Scalar:
        """φ(x) − φ(y) − ⟨∇φ(y), x − y⟩."""
        (at_x, gradient_x), (at_y, gradient_y) = (jax.value_and_grad(self.potential)(point) for point in (x, y))
        apart = trees.subtract(x, y)
        plain = at_x - at_y - trees.inner(gradient_y, apart)
        # Where rounding hides the divergence of near points, the mean of both directions has its digits.
        hidden = plain <= 1e3 * jnp.finfo(at_x.dtype).eps * (abs(at_x) + abs(at_y))
        mean = trees.inner(trees.subtract(gradient_x, gradient_y), apart).astype(at_x.dtype) / 2
        return jnp.where(hidden, mean, plain)

    def residual(self, centre: PyTree[Array], x: PyTree[Array], size: Scalar) -> PyTree[Array]:
        """(∇φ(centre) − ∇φ(x)) / size."""
        gradient = jax.grad(self.potential)
        return trees.scale(1 / size, trees.subtract(gradient(centre), gradient(x)))


@closed_form(Bregman, Zero)
def _mirror_step(divergence, term, centre, gradient, size):
    return divergence.inverse(trees.add_scaled(jax.grad(divergence.potential)(centre), -size, gradient))

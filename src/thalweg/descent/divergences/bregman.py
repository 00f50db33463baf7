"""Bregman divergences D_φ(x ‖ y) = φ(x) − φ(y) − ⟨∇φ(y), x − y⟩: entropy, Burg entropy, and one's own φ."""

from collections.abc import Callable
from functools import reduce
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree, Scalar

from thalweg import trees
from thalweg.arguments import function
from thalweg.descent.divergences.base import Divergence, closed_form, find_closed_form, has_closed_form
from thalweg.descent.terms import L1, Box, L1Ball, LogBarrier, NonNegative, PerLeaf, Simplex, Zero
from thalweg.descent.terms._arrays import spread

__all__ = ["Bregman", "BurgEntropy", "NegativeEntropy"]


def _require_positive(x: PyTree[Array], name: str, why: str) -> None:
    for path, leaf in jax.tree_util.tree_leaves_with_path(x):
        if isinstance(leaf, jax.core.Tracer) or leaf.size == 0:
            continue
        smallest = float(jnp.min(leaf))
        if not smallest > 0:
            raise ValueError(
                f"x0{trees.path_name(path)} must be positive for divergence={name}, {why}; found {smallest:.6g}"
            )


class _OnPositive(Divergence):
    swallows: ClassVar[bool] = True

    def residual_norm(self, centre: PyTree[Array], x: PyTree[Array], size: Scalar) -> Scalar:
        """‖G‖ in the local norm, or ‖min(G, centre/size)‖ if that is larger.

        Steps multiply: near 0 they hardly move, whatever the slope. The second norm is that of a step that adds.
        """
        natural = jax.tree.map(
            lambda g, c: jnp.minimum(g, c / jnp.asarray(size, c.dtype)), self.residual(centre, x, size), centre
        )
        return jnp.maximum(super().residual_norm(centre, x, size), trees.norm(natural).astype(trees.dtype(centre)))


class NegativeEntropy(_OnPositive):
    """D(x ‖ y) = Σ xᵢ log(xᵢ/yᵢ) − xᵢ + yᵢ on x ≥ 0: the geometry of probabilities and of counts.

    The step is multiplicative, xᵢ exp(−β gᵢ), and on the simplex it is the exponentiated gradient. Terms:
    Zero, NonNegative, Simplex, L1, L1Ball, Box.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> NegativeEntropy().step(jnp.ones(2), jnp.zeros(2), 0.1, Simplex())
    Array([0.5, 0.5], dtype=float...)
    """

    def check(self, x: PyTree[Array]) -> None:
        """Refuse entries that are not positive: an entry at zero stays there, wherever the minimum is."""
        _require_positive(x, "NegativeEntropy", "whose steps multiply and never leave zero")

    def value(self, x: PyTree[Array], y: PyTree[Array]) -> Scalar:
        """Σ xᵢ log(xᵢ/yᵢ) − xᵢ + yᵢ."""
        return trees.total(jax.tree.map(lambda u, v: jnp.sum(_kl(u, v)), x, y))

    def residual(self, centre: PyTree[Array], x: PyTree[Array], size: Scalar) -> PyTree[Array]:
        """(log centre − log x) / size, and 0 where both are 0."""
        return jax.tree.map(lambda c, u: _log_ratio(c, u) / jnp.asarray(size, c.dtype), centre, x)


def _log_ratio(c: Array, u: Array) -> Array:
    """log c − log u, and 0 where both are 0."""
    alike = (c == 0) & (u == 0)
    return jnp.where(alike, 0, jnp.log(jnp.where(alike, 1, c)) - jnp.log(jnp.where(alike, 1, u)))


def _kl(u: Array, v: Array) -> Array:
    return jnp.where(u > 0, u * _log_ratio(u, v), 0) - u + v


def _kept_positive(x: Array, centre: Array) -> Array:
    """An entry that underflows to 0 could never come back: it stays at the smallest positive number."""
    return jnp.where(centre > 0, jnp.maximum(x, jnp.finfo(x.dtype).tiny), x)


def _multiplicative(centre: PyTree[Array], gradient: PyTree[Array], size: Scalar) -> PyTree[Array]:
    return jax.tree.map(lambda c, g: _kept_positive(c * jnp.exp(-jnp.asarray(size, c.dtype) * g), c), centre, gradient)


@closed_form(NegativeEntropy, Zero)
@closed_form(NegativeEntropy, NonNegative)
def _entropy_step(divergence, term, centre, gradient, size):
    return _multiplicative(centre, gradient, size)


@closed_form(NegativeEntropy, Simplex)
def _exponentiated_gradient(divergence, term, centre, gradient, size):
    def leaf(c, g):
        # In the log domain, so that a large gradient neither overflows nor empties the simplex.
        shares = jax.nn.softmax(jnp.log(c) - jnp.asarray(size, c.dtype) * g, axis=-1)
        return _kept_positive(jnp.asarray(term.total, c.dtype) * shares, c)

    return jax.tree.map(leaf, centre, gradient)


@closed_form(NegativeEntropy, L1Ball)
def _entropy_l1_ball(divergence, term, centre, gradient, size):
    free = _multiplicative(centre, gradient, size)
    total = sum(jnp.sum(leaf) for leaf in jax.tree.leaves(free))
    return trees.scale(jnp.minimum(1, term.radius / jnp.maximum(total, term.radius)), free)


def _plus_weight(gradient: PyTree[Array], weight: Any) -> PyTree[Array]:
    """On x ≥ 0, weight·‖x‖₁ is linear, so it is added to the gradient."""
    return trees.add(gradient, spread(weight, gradient))


def _clip(x: PyTree[Array], box: Box) -> PyTree[Array]:
    """The minimiser over an interval of a separable convex function is its free minimiser, clipped."""
    return box.prox(x, 1.0)


@closed_form(NegativeEntropy, L1)
def _entropy_l1(divergence, term, centre, gradient, size):
    return _multiplicative(centre, _plus_weight(gradient, term.weight), size)


@closed_form(NegativeEntropy, Box)
def _entropy_box(divergence, term, centre, gradient, size):
    return _clip(_multiplicative(centre, gradient, size), term)


class BurgEntropy(_OnPositive):
    """D(x ‖ y) = Σ xᵢ/yᵢ − log(xᵢ/yᵢ) − 1 on x > 0 (Itakura–Saito): the geometry of scales and spectra.

    Terms: Zero, NonNegative, L1, Box, LogBarrier. A step so long that there is no minimiser is halved until
    there is one.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> BurgEntropy().step(jnp.ones(1), jnp.ones(1), 1.0, Zero())
    Array([0.5], dtype=float...)
    """

    def check(self, x: PyTree[Array]) -> None:
        """Refuse entries that are not positive."""
        _require_positive(x, "BurgEntropy", "which is infinite at zero")

    def value(self, x: PyTree[Array], y: PyTree[Array]) -> Scalar:
        """Σ xᵢ/yᵢ − log(xᵢ/yᵢ) − 1."""
        terms = jax.tree.map(lambda u, v: jnp.sum(u / v - jnp.log(u / v) - 1), x, y)
        return trees.total(terms)

    def residual(self, centre: PyTree[Array], x: PyTree[Array], size: Scalar) -> PyTree[Array]:
        """(1/x − 1/centre) / size."""
        return jax.tree.map(lambda c, u: (1 / u - 1 / c) / jnp.asarray(size, c.dtype), centre, x)

    def admissible(self, centre: PyTree[Array], gradient: PyTree[Array], size: Scalar, term: Any) -> Scalar:
        """Halve ``size`` until 1 + size·gᵢ·xᵢ > 0 for every entry that no upper bound holds."""
        if isinstance(term, PerLeaf):
            sizes = term.map(lambda part, c, g: self.admissible(c, g, size, part), centre, gradient)
            return reduce(jnp.minimum, jax.tree.leaves(sizes))
        if isinstance(term, L1):
            gradient = _plus_weight(gradient, term.weight)
        slopes = jax.tree.map(jnp.multiply, centre, gradient)
        if isinstance(term, Box):
            # Where there is an upper bound, clipping takes the place of a minimiser.
            slopes = jax.tree.map(lambda s, upper: jnp.where(upper < jnp.inf, 0, s), slopes, spread(term.upper, centre))
        steepest = reduce(jnp.minimum, [jnp.min(slope, initial=0.0) for slope in jax.tree.leaves(slopes)])
        # 1 + size·steepest ≥ 1/16 keeps the step off the pole, where rounding decides the sign.
        halvings = jnp.ceil(jnp.log2(jnp.maximum(size * -steepest / (15 / 16), 1)))
        return jnp.ldexp(size, -halvings.astype(jnp.int32))


def _burg(centre, gradient, size, weight=0.0):
    def leaf(c, g, w):
        beta = jnp.asarray(size, c.dtype)
        denominator = 1 + beta * g * c
        # No free minimiser where the denominator is not positive: the objective falls for ever, hence ∞.
        return jnp.where(denominator > 0, (1 + beta * w) * c / denominator, jnp.inf)

    return jax.tree.map(leaf, centre, gradient, spread(weight, centre))


@closed_form(BurgEntropy, Zero)
@closed_form(BurgEntropy, NonNegative)
def _burg_step(divergence, term, centre, gradient, size):
    return _burg(centre, gradient, size)


@closed_form(BurgEntropy, L1)
def _burg_l1(divergence, term, centre, gradient, size):
    return _burg(centre, _plus_weight(gradient, term.weight), size)


@closed_form(BurgEntropy, Box)
def _burg_box(divergence, term, centre, gradient, size):
    return _clip(_burg(centre, gradient, size), term)


@closed_form(BurgEntropy, LogBarrier)
def _burg_log_barrier(divergence, term, centre, gradient, size):
    return _burg(centre, gradient, size, term.weight)


def _every_part_fits(divergence: Divergence, term: PerLeaf) -> bool:
    return all(has_closed_form(divergence, part) for part in term.parts)


@closed_form(NegativeEntropy, PerLeaf, when=_every_part_fits, note="PerLeaf of these")
@closed_form(BurgEntropy, PerLeaf, when=_every_part_fits, note="PerLeaf of these")
def _leaf_by_leaf(divergence, term, centre, gradient, size):
    return term.map(
        lambda part, c, g: find_closed_form(divergence, part)(divergence, part, c, g, size), centre, gradient
    )


class Bregman(Divergence):
    """The Bregman divergence of a potential of one's own. Works with Zero.

    Parameters
    ----------
    potential
        ``potential(x) -> scalar``, strictly convex and differentiable.
    inverse
        ``inverse(z) -> x``, the inverse of the gradient map x ↦ ∇φ(x).

    Examples
    --------
    The geometry of ½‖x‖_p², here with p = 3/2, whose inverse map is the gradient of ½‖z‖_q², q = 3:

    >>> import jax, jax.numpy as jnp
    >>> half_square = lambda p: lambda x: 0.5 * jnp.sum(jnp.abs(x) ** p) ** (2 / p)
    >>> geometry = Bregman(half_square(1.5), inverse=jax.grad(half_square(3.0)))
    >>> x = jnp.array([1.0, 2.0])
    >>> bool(jnp.allclose(geometry.step(x, jnp.zeros(2), 0.1, Zero()), x, rtol=1e-5))
    True
    """

    swallows: ClassVar[bool] = True

    potential: Callable[[PyTree], Any] = eqx.field(static=True)
    inverse: Callable[[PyTree], Any] = eqx.field(static=True)

    def __check_init__(self) -> None:
        function("potential of Bregman", self.potential)
        function("inverse of Bregman", self.inverse)

    def value(self, x: PyTree[Array], y: PyTree[Array]) -> Scalar:
        """φ(x) − φ(y) − ⟨∇φ(y), x − y⟩."""
        (at_x, steeper), (at_y, slope) = (jax.value_and_grad(self.potential)(point) for point in (x, y))
        apart = trees.subtract(x, y)
        plain = at_x - at_y - trees.inner(slope, apart)
        # Of points so near that rounding hides their divergence, the mean of both directions tells it.
        hidden = plain <= 1e3 * jnp.finfo(at_x.dtype).eps * (abs(at_x) + abs(at_y))
        return jnp.where(hidden, trees.inner(trees.subtract(steeper, slope), apart).astype(at_x.dtype) / 2, plain)

    def residual(self, centre: PyTree[Array], x: PyTree[Array], size: Scalar) -> PyTree[Array]:
        """(∇φ(centre) − ∇φ(x)) / size."""
        gradient = jax.grad(self.potential)
        return trees.scale(1 / size, trees.subtract(gradient(centre), gradient(x)))


@closed_form(Bregman, Zero)
def _mirror_step(divergence, term, centre, gradient, size):
    return divergence.inverse(trees.add_scaled(jax.grad(divergence.potential)(centre), -size, gradient))

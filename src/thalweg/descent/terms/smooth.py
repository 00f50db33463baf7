"""Smooth terms: Huber's function and the logarithmic barrier."""

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree, Scalar

from thalweg.arguments import numbers
from thalweg.descent.terms import _arrays
from thalweg.descent.terms.base import Term
from thalweg.descent.terms.norms import Weighted


class Huber(Term):
    """h(x) = Σ weight_i·φ(x_i), with φ(u) = u²/2 for |u| ≤ delta and delta·(|u| − delta/2) beyond.

    With t = step·weight the prox is x/(1 + t) where |x| ≤ delta·(1 + t), and x − t·delta·sign(x) elsewhere.

    Parameters
    ----------
    weight, delta
        Numbers, arrays that broadcast to each leaf of x, or trees of such (prefixes of x's tree); delta > 0.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> Huber(1.0, delta=1.0).prox(jnp.array([1.0, 5.0]), 1.0)
    Array([0.5, 4. ], dtype=float...)
    """

    separable: ClassVar[bool] = True
    fitting: ClassVar[tuple[str, ...]] = ("weight", "delta")

    weight: PyTree[Array]
    delta: PyTree[Array]

    def __init__(self, weight: PyTree = 1.0, delta: PyTree = 1.0) -> None:
        self.weight = numbers("weight of Huber", weight, least=0)
        self.delta = numbers("delta of Huber", delta, above=0)

    def value(self, x: PyTree[Array]) -> Scalar:
        """Σ weight_i·φ(x_i)."""

        def huber(leaf: Array, w: Array, d: Array) -> Array:
            inside = jnp.minimum(jnp.abs(leaf), d)
            return w * (jnp.square(inside) / 2 + d * (jnp.abs(leaf) - inside))

        return _arrays.sum_leaves(jax.tree.map(huber, x, *self._parameters(x)))

    def prox(self, x: PyTree[Array], step: Any) -> PyTree[Array]:
        """Divide by 1 + t near 0, move by t·delta towards 0 elsewhere."""

        def shrink(leaf: Array, w: Array, d: Array, t: Array) -> Array:
            t = t * w
            moved = leaf - jnp.clip(leaf, -t * d, t * d)
            return jnp.where(jnp.abs(leaf) <= d * (1 + t), leaf / (1 + t), moved)

        return jax.tree.map(shrink, x, *self._parameters(x), _arrays.steps(step, x))

    def _parameters(self, x: PyTree[Array]) -> tuple[PyTree[Array], PyTree[Array]]:
        return _arrays.spread(self.weight, x), _arrays.spread(self.delta, x)


class LogBarrier(Weighted):
    """h(x) = −Σ weight_i·log x_i for x > 0, and infinity elsewhere.

    The prox is (x + √(x² + 4·step·weight)) / 2, always positive.

    Parameters
    ----------
    weight
        A number, an array that broadcasts to each leaf of x, or a tree of such (a prefix of x's tree).

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> LogBarrier(2.0).prox(jnp.array([1.0, -1.0]), 1.0).round(3)
    Array([2., 1.], dtype=float...)
    """

    def value(self, x: PyTree[Array]) -> Scalar:
        """−Σ weight_i·log x_i, or infinity if any x_i ≤ 0."""

        def barrier(leaf: Array, w: Array) -> Array:
            inside = leaf > 0
            return jnp.where(inside, -w * jnp.log(jnp.where(inside, leaf, 1)), jnp.inf)

        return _arrays.sum_leaves(jax.tree.map(barrier, x, _arrays.spread(self.weight, x)))

    def prox(self, x: PyTree[Array], step: Any) -> PyTree[Array]:
        """(x + √(x² + 4·step·weight)) / 2, without cancellation or overflow."""

        def push(leaf: Array, w: Array, t: Array) -> Array:
            root = jnp.sqrt(t) * jnp.sqrt(w)
            half = jnp.hypot(leaf / 2, root)
            # For x < 0 the sum cancels; the product of the two roots of the quadratic is −step·weight.
            apart = half - jnp.minimum(leaf, 0) / 2
            other = root * (root / jnp.where(apart > 0, apart, 1))
            # A result that underflows would leave the domain.
            inside = jnp.maximum(jnp.where(leaf >= 0, leaf / 2 + half, other), jnp.finfo(leaf.dtype).tiny)
            return jnp.where(jnp.isnan(leaf), leaf, inside)

        return jax.tree.map(push, x, _arrays.spread(self.weight, x), _arrays.steps(step, x))

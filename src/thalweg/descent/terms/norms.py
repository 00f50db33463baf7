"""Norms and squares: L1, L2, squared L2, elastic net."""

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree, Scalar

from thalweg.arguments import number, numbers
from thalweg.descent.terms import _arrays
from thalweg.descent.terms.base import Term


def soft_threshold(x: Array, threshold: Array) -> Array:
    """sign(x)·max(|x| − threshold, 0), written so that an infinite threshold gives 0."""
    return x - jnp.clip(x, -threshold, threshold)


class Weighted(Term):
    """A sum over coordinates with a weight for each, or one for all."""

    separable: ClassVar[bool] = True
    fitting: ClassVar[tuple[str, ...]] = ("weight",)

    weight: PyTree[Array]

    def __init__(self, weight: PyTree = 1.0) -> None:
        self.weight = numbers(f"weight of {type(self).__name__}", weight, least=0)


class Multiple(Term):
    """A function of x as a whole, times a weight, which is a number."""

    weight: Array

    def __init__(self, weight: Any = 1.0) -> None:
        self.weight = number(f"weight of {type(self).__name__}", weight, least=0)


class L1(Weighted):
    """h(x) = Σ weight_i·|x_i|.

    The prox is the soft threshold, sign(x_i)·max(|x_i| − step·weight_i, 0).

    Parameters
    ----------
    weight
        A number, an array that broadcasts to each leaf of x, or a tree of such (a prefix of x's tree).

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> L1(1.0).prox(jnp.array([3.0, -0.5, -2.0]), 1.0)
    Array([ 2.,  0., -1.], dtype=float...)
    """

    def value(self, x: PyTree[Array]) -> Scalar:
        """Σ weight_i·|x_i|."""
        return _arrays.sum_leaves(jax.tree.map(lambda leaf, w: w * jnp.abs(leaf), x, _arrays.spread(self.weight, x)))

    def prox(self, x: PyTree[Array], step: Any) -> PyTree[Array]:
        """Soft-threshold at step·weight."""
        soften = lambda leaf, w, t: soft_threshold(leaf, t * w)
        return jax.tree.map(soften, x, _arrays.spread(self.weight, x), _arrays.steps(step, x))


class L2(Multiple):
    """h(x) = weight·‖x‖₂, the Euclidean norm (not squared) of all leaves together.

    The prox shortens x by step·weight, or gives 0: max(0, 1 − step·weight/‖x‖)·x.

    Parameters
    ----------
    weight
        A number.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> L2(2.5).prox(jnp.array([3.0, 4.0]), 1.0)
    Array([1.5, 2. ], dtype=float...)
    """

    def value(self, x: PyTree[Array]) -> Scalar:
        """weight·‖x‖."""
        length = _arrays.norm(x)
        return self.weight.astype(length.dtype) * length

    def prox(self, x: PyTree[Array], step: Any) -> PyTree[Array]:
        """Shorten ``x`` by step·weight."""
        step = _arrays.scalar_step("L2", step, x)
        factor = _arrays.shrinkage(_arrays.norm(x), step * self.weight.astype(step.dtype))
        return jax.tree.map(lambda leaf: factor.astype(leaf.dtype) * leaf, x)


class SquaredL2(Weighted):
    """h(x) = ½·Σ weight_i·x_i².

    The prox is x_i / (1 + step·weight_i).

    Parameters
    ----------
    weight
        A number, an array that broadcasts to each leaf of x, or a tree of such (a prefix of x's tree).

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> SquaredL2(1.0).prox(jnp.ones(1), 1.0)
    Array([0.5], dtype=float...)
    """

    def value(self, x: PyTree[Array]) -> Scalar:
        """½·Σ weight_i·x_i²."""
        half = lambda leaf, w: w * jnp.square(leaf) / 2
        return _arrays.sum_leaves(jax.tree.map(half, x, _arrays.spread(self.weight, x)))

    def prox(self, x: PyTree[Array], step: Any) -> PyTree[Array]:
        """Divide by 1 + step·weight."""
        shrink = lambda leaf, w, t: leaf / (1 + t * w)
        return jax.tree.map(shrink, x, _arrays.spread(self.weight, x), _arrays.steps(step, x))


class ElasticNet(Term):
    """h(x) = Σ l1_i·|x_i| + ½·Σ l2_i·x_i².

    The prox is the soft threshold at step·l1 divided by 1 + step·l2.

    Parameters
    ----------
    l1, l2
        Numbers, arrays that broadcast to each leaf of x, or trees of such (prefixes of x's tree).

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> ElasticNet(l1=1.0, l2=3.0).prox(jnp.array([3.0, -0.5]), 1.0)
    Array([0.5, 0. ], dtype=float...)
    """

    separable: ClassVar[bool] = True
    fitting: ClassVar[tuple[str, ...]] = ("l1", "l2")

    l1: PyTree[Array]
    l2: PyTree[Array]

    def __init__(self, l1: PyTree = 1.0, l2: PyTree = 1.0) -> None:
        self.l1 = numbers("l1 of ElasticNet", l1, least=0)
        self.l2 = numbers("l2 of ElasticNet", l2, least=0)

    def value(self, x: PyTree[Array]) -> Scalar:
        """Σ l1_i·|x_i| + ½·Σ l2_i·x_i²."""
        both = lambda leaf, a, b: a * jnp.abs(leaf) + b * jnp.square(leaf) / 2
        return _arrays.sum_leaves(jax.tree.map(both, x, _arrays.spread(self.l1, x), _arrays.spread(self.l2, x)))

    def prox(self, x: PyTree[Array], step: Any) -> PyTree[Array]:
        """Soft-threshold at step·l1, then divide by 1 + step·l2."""
        shrink = lambda leaf, a, b, t: soft_threshold(leaf, t * a) / (1 + t * b)
        weights = _arrays.spread(self.l1, x), _arrays.spread(self.l2, x)
        return jax.tree.map(shrink, x, *weights, _arrays.steps(step, x))

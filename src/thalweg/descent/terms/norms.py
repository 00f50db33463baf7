"""Norms, squares and smooth functions: L1, L2, squared L2, elastic net, Huber, logarithmic barrier, group lasso."""

from functools import partial
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree, Scalar

from thalweg import trees
from thalweg.arguments import number, numbers
from thalweg.descent.terms.base import Leafwise, Term, flatten, is_traced, leaf_steps, shrinkage

__all__ = ["L1", "L2", "ElasticNet", "GroupLasso", "Huber", "LogBarrier", "SquaredL2"]


def soft_threshold(x: Array, threshold: Array) -> Array:
    """sign(x)·max(|x| − threshold, 0), written so that an infinite threshold gives 0."""
    return x - jnp.clip(x, -threshold, threshold)


class Multiple(Term):
    """A function times a weight, which is a number, or, for a sum over coordinates, as many as there are."""

    fitting: ClassVar[tuple[str, ...]] = ("weight",)

    weight: PyTree[Array]

    def __init__(self, weight: PyTree = 1.0) -> None:
        check = numbers if self.separable else number
        self.weight = check(f"weight of {type(self).__name__}", weight, least=0)


class WeightedSum(Multiple, Leafwise):
    """A sum over coordinates with a weight for each, or one for all."""

    separable: ClassVar[bool] = True


class L1(WeightedSum):
    """h(x) = Σ weight_i·|x_i|.

    The prox is the soft threshold, sign(x_i)·max(|x_i| − step·weight_i, 0).

    Parameters
    ----------
    weight
        A number, an array that broadcasts to each leaf of x, or a tree of such (a prefix of x's tree).

    Examples
    --------
    >>> import numpy as np
    >>> L1(1.0).prox(np.array([3.0, -0.5, -2.0]), 1.0)
    Array([ 2.,  0., -1.], dtype=float...)
    """

    def leaf_value(self, leaf: Array, weight: Array) -> Array:
        """weight_i·|x_i|."""
        return weight * jnp.abs(leaf)

    def leaf_prox(self, leaf: Array, step: Array, weight: Array) -> Array:
        """Soft-threshold at step·weight."""
        return soft_threshold(leaf, step * weight)


class L2(Multiple):
    """h(x) = weight·‖x‖₂, the Euclidean norm (not squared) of all leaves together.

    The prox shortens x by step·weight, or gives 0: max(0, 1 − step·weight/‖x‖)·x.

    Parameters
    ----------
    weight
        A number.

    Examples
    --------
    >>> import numpy as np
    >>> L2(2.5).prox(np.array([3.0, 4.0]), 1.0)
    Array([1.5, 2. ], dtype=float...)
    """

    def value(self, x: PyTree[Array]) -> Scalar:
        """weight·‖x‖."""
        length = trees.norm(x).astype(trees.dtype(x))
        return self.weight.astype(length.dtype) * length

    def prox(self, x: PyTree[Array], step: Any) -> PyTree[Array]:
        """Shorten ``x`` by step·weight."""
        self.check_prox(x, step)
        length = trees.norm(x)
        factor = shrinkage(length, leaf_steps(step, length) * self.weight.astype(length.dtype))
        return jax.tree.map(lambda leaf: factor.astype(leaf.dtype) * leaf, x)


class SquaredL2(WeightedSum):
    """h(x) = ½·Σ weight_i·x_i².

    The prox is x_i / (1 + step·weight_i).

    Parameters
    ----------
    weight
        A number, an array that broadcasts to each leaf of x, or a tree of such (a prefix of x's tree).

    Examples
    --------
    >>> import numpy as np
    >>> SquaredL2(1.0).prox(np.ones(1), 1.0)
    Array([0.5], dtype=float...)
    """

    def leaf_value(self, leaf: Array, weight: Array) -> Array:
        """½·weight_i·x_i²."""
        return weight * jnp.square(leaf) / 2

    def leaf_prox(self, leaf: Array, step: Array, weight: Array) -> Array:
        """Divide by 1 + step·weight."""
        return leaf / (1 + step * weight)


class ElasticNet(Leafwise):
    """h(x) = Σ l1_i·|x_i| + ½·Σ l2_i·x_i².

    The prox is the soft threshold at step·l1 divided by 1 + step·l2.

    Parameters
    ----------
    l1, l2
        Numbers, arrays that broadcast to each leaf of x, or trees of such (prefixes of x's tree).

    Examples
    --------
    >>> import numpy as np
    >>> ElasticNet(l1=1.0, l2=3.0).prox(np.array([3.0, -0.5]), 1.0)
    Array([0.5, 0. ], dtype=float...)
    """

    separable: ClassVar[bool] = True
    fitting: ClassVar[tuple[str, ...]] = ("l1", "l2")

    l1: PyTree[Array] = eqx.field(default=1.0, converter=partial(numbers, "l1 of ElasticNet", least=0))
    l2: PyTree[Array] = eqx.field(default=1.0, converter=partial(numbers, "l2 of ElasticNet", least=0))

    def leaf_value(self, leaf: Array, l1: Array, l2: Array) -> Array:
        """l1_i·|x_i| + ½·l2_i·x_i²."""
        return l1 * jnp.abs(leaf) + l2 * jnp.square(leaf) / 2

    def leaf_prox(self, leaf: Array, step: Array, l1: Array, l2: Array) -> Array:
        """Soft-threshold at step·l1, then divide by 1 + step·l2."""
        return soft_threshold(leaf, step * l1) / (1 + step * l2)


class Huber(Leafwise):
    """h(x) = Σ weight_i·φ(x_i), with φ(u) = u²/2 for |u| ≤ delta and delta·(|u| − delta/2) beyond.

    With t = step·weight the prox is x/(1 + t) where |x| ≤ delta·(1 + t), and x − t·delta·sign(x) elsewhere.

    Parameters
    ----------
    weight, delta
        Numbers, arrays that broadcast to each leaf of x, or trees of such (prefixes of x's tree); delta > 0.

    Examples
    --------
    >>> import numpy as np
    >>> Huber(1.0, delta=1.0).prox(np.array([1.0, 5.0]), 1.0)
    Array([0.5, 4. ], dtype=float...)
    """

    separable: ClassVar[bool] = True
    fitting: ClassVar[tuple[str, ...]] = ("weight", "delta")

    weight: PyTree[Array] = eqx.field(default=1.0, converter=partial(numbers, "weight of Huber", least=0))
    delta: PyTree[Array] = eqx.field(default=1.0, converter=partial(numbers, "delta of Huber", above=0))

    def leaf_value(self, leaf: Array, weight: Array, delta: Array) -> Array:
        """weight_i·φ(x_i)."""
        inside = jnp.minimum(jnp.abs(leaf), delta)
        return weight * (jnp.square(inside) / 2 + delta * (jnp.abs(leaf) - inside))

    def leaf_prox(self, leaf: Array, step: Array, weight: Array, delta: Array) -> Array:
        """Divide by 1 + t near 0, move by t·delta towards 0 elsewhere."""
        t = step * weight
        return jnp.where(jnp.abs(leaf) <= delta * (1 + t), leaf / (1 + t), soft_threshold(leaf, t * delta))


class LogBarrier(WeightedSum):
    """h(x) = −Σ weight_i·log x_i for x > 0, and infinity elsewhere.

    The prox is (x + √(x² + 4·step·weight)) / 2, always positive.

    Parameters
    ----------
    weight
        A number, an array that broadcasts to each leaf of x, or a tree of such (a prefix of x's tree).

    Examples
    --------
    >>> import numpy as np
    >>> LogBarrier(2.0).prox(np.array([1.0, -1.0]), 1.0).round(3)
    Array([2., 1.], dtype=float...)
    """

    def leaf_value(self, leaf: Array, weight: Array) -> Array:
        """−weight_i·log x_i, or infinity if x_i ≤ 0."""
        inside = leaf > 0
        return jnp.where(inside, -weight * jnp.log(jnp.where(inside, leaf, 1)), jnp.inf)

    def leaf_prox(self, leaf: Array, step: Array, weight: Array) -> Array:
        """(x + √(x² + 4·step·weight)) / 2, without cancellation or overflow."""
        root = jnp.sqrt(step) * jnp.sqrt(weight)
        half = jnp.hypot(leaf / 2, root)
        # For x < 0 the sum cancels; the product of the two roots of the quadratic is −step·weight.
        apart = half - jnp.minimum(leaf, 0) / 2
        other = root * (root / jnp.where(apart > 0, apart, 1))
        # A result that underflows would leave the domain.
        inside = jnp.maximum(jnp.where(leaf >= 0, leaf / 2 + half, other), jnp.finfo(leaf.dtype).tiny)
        return jnp.where(jnp.isnan(leaf), leaf, inside)


class GroupLasso(Term):
    """h(x) = Σ_g weight_g·‖x_g‖₂, where x_g are the coordinates with label g.

    The prox shortens each group by step·weight_g, or sets it to 0.

    Parameters
    ----------
    groups
        Integer labels 0, …, G − 1 that broadcast to x: labels of the shape of x, or
        ``jnp.arange(n)[:, None]`` to make each row of an n-row matrix a group. For a tree, labels for each
        leaf; equal labels in two leaves are one group.
    weight
        One number for all groups, or an array of G numbers.
    count
        The number of groups G; by default the largest label plus one. Needed if the labels are traced.

    Examples
    --------
    >>> import numpy as np
    >>> GroupLasso([0, 0, 1], weight=2.5).prox(np.array([3.0, 4.0, 1.0]), 1.0)
    Array([1.5, 2. , 0. ], dtype=float...)
    """

    fitting: ClassVar[tuple[str, ...]] = ("groups",)

    groups: PyTree[Array]
    weight: Array
    count: int = eqx.field(static=True)

    def __init__(self, groups: PyTree, weight: Any = 1.0, count: int | None = None) -> None:
        # A list of plain numbers is one array of labels, not a tree of scalars.
        if isinstance(groups, list | tuple) and groups and all(isinstance(label, int | np.integer) for label in groups):
            groups = np.asarray(groups)
        labels = [_as_labels(leaf) for leaf in jax.tree.leaves(groups)]
        if not labels or any(label.size == 0 for label in labels):
            raise ValueError(f"groups of GroupLasso must hold at least one label, found {groups!r}")
        self.groups = jax.tree.map(_as_labels, groups)
        self.count = _count(labels, count)
        weight = np.asarray(weight) if isinstance(weight, list | tuple) else weight
        self.weight = numbers("weight of GroupLasso", weight, least=0)
        if not isinstance(self.weight, jax.Array) or self.weight.shape not in ((), (self.count,)):
            raise ValueError(
                f"weight of GroupLasso must be a number or an array of shape ({self.count},), one for each "
                f"group, found {jax.tree.map(jnp.shape, self.weight)}"
            )

    def value(self, x: PyTree[Array]) -> Scalar:
        """Σ_g weight_g·‖x_g‖."""
        lengths = self._lengths(x)
        return jnp.sum(self.weight.astype(lengths.dtype) * lengths)

    def prox(self, x: PyTree[Array], step: Any) -> PyTree[Array]:
        """Shorten each group by step·weight_g."""
        self.check_prox(x, step)
        lengths = self._lengths(x)
        threshold = leaf_steps(step, jnp.zeros((), lengths.dtype)) * self.weight.astype(lengths.dtype)
        factors = shrinkage(lengths, threshold)
        return jax.tree.map(lambda leaf, label: factors[label].astype(leaf.dtype) * leaf, x, self._labels(x))

    def _labels(self, x: PyTree[Array]) -> PyTree[Array]:
        broadcast = lambda label, leaf: jnp.broadcast_to(label, leaf.shape)
        return jax.tree.map(broadcast, jax.tree.broadcast(self.groups, x), x)

    def _lengths(self, x: PyTree[Array]) -> Array:
        """The norm of each group, scaled by its largest entry so that squares neither overflow nor vanish."""
        flat, labels = jnp.abs(flatten(x)[0]), flatten(self._labels(x))[0]
        top = jnp.zeros(self.count, trees.dtype(x)).at[labels].max(flat)
        safe = jnp.where(top > 0, top, 1)
        squares = jnp.square((flat / safe[labels]).astype(trees.single(flat.dtype)))
        return top * trees.root(jax.ops.segment_sum(squares, labels, self.count)).astype(top.dtype)


def _as_labels(leaf: Any) -> Array:
    if not is_traced(leaf):
        leaf = np.array(leaf)  # a copy, since device_put may share memory
    if not jnp.issubdtype(leaf.dtype, jnp.integer):
        raise TypeError(f"groups of GroupLasso must be integer labels, found the dtype {leaf.dtype}")
    return leaf if is_traced(leaf) else jax.device_put(leaf)


def _count(labels: list[Array], count: int | None) -> int:
    if any(is_traced(label) for label in labels):
        if count is None:
            raise ValueError("count of GroupLasso must be given where groups is traced, found None")
        return int(count)
    on_host = [np.asarray(label) for label in labels]
    lowest, highest = min(int(label.min()) for label in on_host), max(int(label.max()) for label in on_host)
    if lowest < 0:
        raise ValueError(f"groups of GroupLasso must be labels ≥ 0, found {lowest}")
    if count is not None and count <= highest:
        raise ValueError(f"count of GroupLasso must exceed the largest label {highest}, found {count}")
    return highest + 1 if count is None else int(count)

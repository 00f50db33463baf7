"""Group lasso: a Euclidean norm for each group of coordinates."""

from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree, Scalar

from thalweg import trees
from thalweg.arguments import numbers
from thalweg.descent.terms import _arrays
from thalweg.descent.terms.base import Term


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
    >>> import jax.numpy as jnp
    >>> GroupLasso([0, 0, 1], weight=2.5).prox(jnp.array([3.0, 4.0, 1.0]), 1.0)
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
        labels = [_labels(leaf) for leaf in jax.tree.leaves(groups)]
        if not labels or any(label.size == 0 for label in labels):
            raise ValueError(f"groups of GroupLasso must hold at least one label, found {groups!r}")
        self.groups = jax.tree.map(_labels, groups)
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
        step = _arrays.scalar_step("GroupLasso", step, x)
        lengths, threshold = self._lengths(x), step * self.weight.astype(step.dtype)
        factors = _arrays.shrinkage(lengths, threshold)
        return jax.tree.map(lambda leaf, label: factors[label].astype(leaf.dtype) * leaf, x, self._spread(x))

    def _spread(self, x: PyTree[Array]) -> PyTree[Array]:
        broadcast = lambda label, below: jax.tree.map(lambda leaf: jnp.broadcast_to(label, leaf.shape), below)
        return jax.tree.map(broadcast, self.groups, x)

    def _lengths(self, x: PyTree[Array]) -> Array:
        """The norm of each group, scaled by its largest entry so that squares neither overflow nor vanish."""
        flat = jnp.abs(_arrays.flatten(x))
        labels = jnp.concatenate([jnp.ravel(label) for label in jax.tree.leaves(self._spread(x))])
        top = jnp.zeros(self.count, trees.dtype(x)).at[labels].max(flat)
        safe = jnp.where(top > 0, top, 1)
        squares = jnp.square((flat / safe[labels]).astype(trees.single(flat.dtype)))
        return top * _arrays.root(jax.ops.segment_sum(squares, labels, self.count)).astype(top.dtype)


def _labels(leaf: Any) -> Array:
    if not _arrays.is_traced(leaf):
        leaf = np.asarray(leaf)
    if not jnp.issubdtype(leaf.dtype, jnp.integer):
        raise TypeError(f"groups of GroupLasso must be integer labels, found the dtype {leaf.dtype}")
    return jnp.asarray(leaf)


def _count(labels: list[Array], count: int | None) -> int:
    if any(_arrays.is_traced(label) for label in labels):
        if count is None:
            raise ValueError("count of GroupLasso must be given where groups is traced, found None")
        return int(count)
    lowest, highest = min(int(label.min()) for label in labels), max(int(label.max()) for label in labels)
    if lowest < 0:
        raise ValueError(f"groups of GroupLasso must be labels ≥ 0, found {lowest}")
    if count is None:
        return highest + 1
    if count <= highest:
        raise ValueError(f"count of GroupLasso must exceed the largest label {highest}, found {count}")
    return int(count)

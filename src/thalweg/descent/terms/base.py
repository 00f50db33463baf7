"""The simple term h of the iteration: its contract, sums over leaves, multiples, and indicators of sets.

Parameters are stored as floating arrays and cast to each leaf's dtype where they are used: a float32 leaf
stays float32 even if the parameter was made in float64.
"""

from collections.abc import Callable
from functools import partial, reduce
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, PyTree, Scalar

from thalweg import trees
from thalweg.arguments import instance, number, numbers
from thalweg.errors import IncompatiblePartsError

__all__ = ["Indicator", "Scaled", "Term", "Zero"]


def is_traced(value: Any) -> bool:
    """Whether the value is known only when compiled code runs, so that it cannot be checked now."""
    return isinstance(value, jax.core.Tracer)


def spread(value: PyTree, x: PyTree[Array]) -> PyTree[Array]:
    """Give every leaf of ``x`` its part of ``value`` (a pytree prefix of ``x``), in the leaf's dtype."""
    check_point(x)
    return jax.tree.map(lambda part, leaf: jnp.asarray(part).astype(leaf.dtype), jax.tree.broadcast(value, x), x)


def check_fit(owner: str, name: str, value: PyTree, x: PyTree[Array]) -> None:
    """Raise ``ValueError`` unless ``value`` is a prefix of ``x`` whose arrays broadcast to its leaves."""
    try:
        parts = jax.tree.leaves(jax.tree.broadcast(value, x))
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(
            f"{name} of {owner} must be one array or a tree like x, with the structure "
            f"{jax.tree.structure(x)}; found the structure "
            f"{jax.tree.structure(value)} (a list is a tree: pass numbers as one jnp.asarray([...]))"
        ) from error
    for (path, leaf), part in zip(jax.tree_util.tree_leaves_with_path(x), parts, strict=True):
        shape, target = jnp.shape(part), jnp.shape(leaf)
        if len(shape) > len(target) or any(a not in (1, b) for a, b in zip(shape[::-1], target[::-1], strict=False)):
            raise ValueError(
                f"{name} of {owner} must broadcast to the shape {target} of x{jax.tree_util.keystr(path)}, "
                f"found the shape {shape}"
            )


def check_point(x: PyTree[Array]) -> None:
    """Refuse points that are not made of arrays of real numbers."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(x):
        kind = getattr(leaf, "dtype", None)
        if kind is None or not jnp.issubdtype(kind, jnp.floating):
            found = type(leaf).__name__ if kind is None else f"the dtype {kind}"
            raise TypeError(f"x{jax.tree_util.keystr(path)} must be an array of real floating numbers, found {found}")


def leaf_steps(step: Any, x: PyTree[Array]) -> PyTree[Array]:
    """Give every leaf of ``x`` its step, in its dtype and finite, so that 0 · step is 0 and never NaN."""

    def finite(part: Any, leaf: Array) -> Array:
        part = jnp.asarray(part)
        part = part if jnp.issubdtype(part.dtype, jnp.floating) else part.astype(float)
        limit = min(float(jnp.finfo(kind).max) for kind in (part.dtype, leaf.dtype))
        return jnp.minimum(part, limit).astype(leaf.dtype)

    return jax.tree.map(finite, jax.tree.broadcast(step, x), x)


def shrinkage(length: Array, threshold: Array) -> Array:
    """max(0, 1 − threshold/length), with 0 at length 0: the factor of a block soft-threshold."""
    longer = length > threshold
    return jnp.where(longer, 1 - threshold / jnp.where(longer, length, 1), 0)


def flatten(x: PyTree[Array]) -> tuple[Array, Callable[[Array], PyTree[Array]]]:
    """All leaves as one vector in their widest dtype, and the function that puts it back."""
    with jax.numpy_dtype_promotion("standard"):
        return ravel_pytree(x)


class Term(trees.Part):
    """A function h simple enough that its proximal step is known in closed form.

    A subclass defines :meth:`value` and :meth:`prox`, for any pytree ``x``, and overrides the traits that do
    not hold for it. A term without ``prox`` sets ``prox = None``: it is then only usable with a divergence
    that knows it.

    A term is a pytree whose numbers are leaves, so a change of a weight or a bound does not recompile
    anything. Multiplication by a number scales the term: ``2.0 * L1(1.0)``.

    Examples
    --------
    >>> from thalweg.descent.terms import L1, L2
    >>> L1().separable, L2().separable
    (True, False)
    """

    # NumPy scalars would otherwise try to make an array of the term: with None they leave it to __rmul__.
    __array_ufunc__: ClassVar[Any] = None

    convex: ClassVar[bool] = True
    """Whether h is convex; averaging and the convergence theorems need it."""
    separable: ClassVar[bool] = False
    """Whether h is a sum over coordinates; ``prox`` then also takes one step size per coordinate."""
    indicator: ClassVar[bool] = False
    """Whether h is 0 on a set and infinite off it, so that ``prox`` is the projection."""
    factorises: ClassVar[bool] = False
    """Whether a step factorises a matrix as large as x, so that few expensive steps are to be expected."""
    fitting: ClassVar[tuple[str, ...]] = ()
    """The parameters that must broadcast to x: arrays, or trees of them that are prefixes of x's tree."""
    axes: ClassVar[int] = 0
    """The least number of axes that each leaf of x must have."""
    square: ClassVar[bool] = False
    """Whether the last two axes of each leaf must be of one length."""

    @property
    def proximable(self) -> bool:
        """Whether ``prox`` can be called; false for ``prox = None`` and for what is built on such a term."""
        return type(self).prox is not None

    def value(self, x: PyTree[Array]) -> Scalar:
        """h(x); for an indicator 0 or infinity, with a tolerance of rounding error."""
        raise NotImplementedError(f"{type(self).__name__} must define value(x)")

    def prox(self, x: PyTree[Array], step: Any) -> PyTree[Array]:
        """argmin_u h(u) + ‖u − x‖² / (2·step).

        ``step`` is a positive scalar or, for a separable term, a pytree like ``x`` of positive arrays.
        """
        raise NotImplementedError(f"{type(self).__name__} must define prox(x, step)")

    def check(self, x: PyTree[Array]) -> None:
        """Raise ``ValueError`` if ``x`` and the term's parameters do not fit; called before the first step."""
        owner = type(self).__name__
        for name in self.fitting:
            check_fit(owner, name, getattr(self, name), x)
        for path, leaf in jax.tree_util.tree_leaves_with_path(x):
            if jnp.ndim(leaf) < self.axes or (self.square and leaf.shape[-1] != leaf.shape[-2]):
                matrix = "a square matrix" if self.square else "a matrix"
                kind = matrix if self.axes == 2 else "a vector or an array of them"
                raise ValueError(f"{owner}: x{jax.tree_util.keystr(path)} must be {kind}, found the shape {leaf.shape}")

    def parameters(self, x: PyTree[Array]) -> list[PyTree[Array]]:
        """The parameters that must broadcast to x, given to its leaves."""
        return [spread(getattr(self, name), x) for name in self.fitting]

    def check_prox(self, x: PyTree[Array], step: Any) -> None:
        """Refuse points that are not real, and steps that are negative, NaN, no numbers or more than the term takes."""
        check_point(x)
        for part in jax.tree.leaves(step):
            if not is_traced(part):
                numbers("step", part, least=0, finite=False)
        if not self.separable and (not trees.is_leaf(step) or jnp.ndim(step)):
            shapes = jax.tree.map(jnp.shape, step)
            raise ValueError(f"{type(self).__name__} is not separable: step must be a scalar, found {shapes}")

    def __rmul__(self, factor: Any) -> "Term":
        return Scaled(self, factor)

    def __mul__(self, factor: Any) -> "Term":
        return self.__rmul__(factor)

    def __add__(self, other: Any) -> "Term":
        if not isinstance(other, Term) or hasattr(type(other), "__radd__"):  # bounds take many terms
            return NotImplemented
        raise IncompatiblePartsError(
            f"{type(self).__name__} + {type(other).__name__} has no closed-form step in general. ElasticNet is "
            f"L1 + SquaredL2, PerLeaf gives each leaf of x a term of its own, and what is smooth can be added to the "
            f"function"
        )


class Leafwise(Term):
    """A sum over leaves; a subclass defines the value and the prox of one leaf, with the parameters that fit it."""

    leaf_value: ClassVar[Callable[..., Array]]
    """``leaf_value(leaf, *parameters)`` is h of a leaf, or of each of its entries."""
    leaf_prox: ClassVar[Callable[..., Array]]
    """``leaf_prox(leaf, step, *parameters)`` is the prox of a leaf."""

    def value(self, x: PyTree[Array]) -> Scalar:
        """The sum over all leaves."""
        leaves = jax.tree.map(self.leaf_value, x, *self.parameters(x))
        return trees.total(jax.tree.map(jnp.sum, leaves))

    def prox(self, x: PyTree[Array], step: Any) -> PyTree[Array]:
        """The prox of each leaf."""
        self.check_prox(x, step)
        return jax.tree.map(self.leaf_prox, x, leaf_steps(step, x), *self.parameters(x))


def _all(trait: str) -> Any:
    return property(lambda self: all(getattr(part, trait) for part in self.parts))


class Composite(Term):
    """A term made of others, its ``parts``, with the traits that they have."""

    convex = _all("convex")
    separable = _all("separable")
    indicator = _all("indicator")
    proximable = _all("proximable")
    factorises = property(lambda self: any(part.factorises for part in self.parts))


class Wrapper(Composite):
    """A term made of one other."""

    term: Term
    parts = property(lambda self: [self.term])

    def __check_init__(self) -> None:
        instance(f"term of {type(self).__name__}", self.term, Term)

    def check(self, x: PyTree[Array]) -> None:
        """Refuse what does not fit, and what the term refuses."""
        super().check(x)
        self.term.check(x)


class Scaled(Wrapper):
    """factor·h, with the prox of h at factor times the step; also written ``factor * h``.

    Parameters
    ----------
    term
        h.
    factor
        A number ≥ 0. At 0 the domain of h remains: 0 times infinity is infinity.

    Examples
    --------
    >>> import numpy as np
    >>> from thalweg.descent.terms import L1
    >>> (2.0 * L1(1.0)).prox(np.array([3.0, -1.0]), 1.0)
    Array([1., 0.], dtype=float...)
    """

    factor: Any = eqx.field(converter=partial(number, "factor of Scaled", least=0))

    def value(self, x: PyTree[Array]) -> Scalar:
        """factor·h(x)."""
        value = self.term.value(x)
        return jnp.where(jnp.isinf(value), value, self.factor.astype(value.dtype) * value)

    def prox(self, x: PyTree[Array], step: Any) -> PyTree[Array]:
        """prox_h(x, factor·step)."""
        return self.term.prox(x, multiplied(step, self.factor, x))


def multiplied(step: Any, factor: Array, x: PyTree[Array]) -> Any:
    """The step, a scalar or a tree, times the factor."""
    return jax.tree.map(lambda part: jnp.asarray(part, trees.dtype(x)) * factor.astype(trees.dtype(x)), step)


class Zero(Term):
    """h = 0, which is also the indicator of the whole space.

    Examples
    --------
    >>> import numpy as np
    >>> Zero().prox(np.ones(1), 0.5)
    array([1.])
    """

    separable: ClassVar[bool] = True
    # Every point is feasible and its own projection.
    indicator: ClassVar[bool] = True

    def value(self, x: PyTree[Array]) -> Scalar:
        """0."""
        return jnp.zeros((), trees.dtype(x))

    def prox(self, x: PyTree[Array], step: Any) -> PyTree[Array]:
        """Return ``x`` itself."""
        return x


def indicator_value(
    x: PyTree[Array], projection: PyTree[Array], *, coupled: bool, scale: Any = 0.0, together: bool = False
) -> Scalar:
    """Return 0 if ``x`` is its own projection up to rounding error, else infinity.

    The tolerance is 8·eps of each leaf's dtype, relative to the largest entry of the leaf, its projection and
    ``scale``; it grows with the square root of the number of coordinates where these are ``coupled``. Leaves
    are compared ``together`` if the set joins them: the rounding error of the largest then reaches all.
    """
    pairs = list(zip(jax.tree.leaves(x), jax.tree.leaves(projection), strict=True))
    sizes = [jnp.maximum(trees.largest(leaf), trees.largest(image)) for leaf, image in pairs]
    counts = [leaf.size for leaf, _ in pairs]
    if together:
        sizes, counts = [reduce(jnp.maximum, sizes)] * len(pairs), [sum(counts)] * len(pairs)

    def near(leaf: Array, image: Array, size: Array, count: int) -> Array:
        tolerance = 8 * float(jnp.finfo(leaf.dtype).eps) * (count**0.5 if coupled else 1.0)
        return jnp.all(jnp.abs(leaf - image) <= tolerance * jnp.maximum(size, jnp.asarray(scale, size.dtype)))

    verdicts = [near(*pair, size, count) for pair, size, count in zip(pairs, sizes, counts, strict=True)]
    return jnp.where(reduce(jnp.logical_and, verdicts), 0.0, jnp.inf).astype(trees.dtype(x))


class Indicator(Term):
    """h(x) = 0 if x is in a set, else infinity. A subclass defines :meth:`project`, or :meth:`project_leaf`.

    Examples
    --------
    >>> from thalweg.descent.terms import NonNegative
    >>> isinstance(NonNegative(), Indicator)
    True
    """

    indicator: ClassVar[bool] = True

    # Whether the set joins the leaves of a tree (a ball) or holds for each leaf on its own (a box).
    _together: ClassVar[bool] = False

    project_leaf: ClassVar[Callable[..., Array]]
    """``project_leaf(leaf, *parameters)`` is the point nearest to a leaf, for sets that do not join leaves."""

    def project(self, x: PyTree[Array]) -> PyTree[Array]:
        """Return the point of the set nearest to ``x``."""
        return jax.tree.map(self.project_leaf, x, *self.parameters(x))

    def prox(self, x: PyTree[Array], step: Any) -> PyTree[Array]:
        """Project ``x`` on the set, whatever the step."""
        self.check_prox(x, step)
        return self.project(x)

    def value(self, x: PyTree[Array]) -> Scalar:
        """0 if ``x`` is its own projection up to rounding error, else infinity."""
        return indicator_value(x, self.project(x), coupled=not self.separable, together=self._together)

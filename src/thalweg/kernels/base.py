"""What every kernel shares: its matrix, its parameters, sums and products, and random frequencies where it has them."""

import dataclasses
import operator
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse
from jaxtyping import Array, Float, Key

from thalweg import arguments, trees
from thalweg.arguments import number
from thalweg.codec import storable
from thalweg.errors import IncompatiblePartsError
from thalweg.kernels.draws import KINDS, Block

__all__ = ["Bias", "Kernel", "Product", "Sum"]

# Lengthscales that a kernel's repr writes out.
_SHOWN = 5


class Kernel(eqx.Module):
    """A positive definite function k(x, y) of two points. ``k1 + k2``, ``k1 * k2`` and ``2.0 * k1`` are kernels too.

    The parameters are leaves: a change of them compiles nothing again, and ``jax.grad`` with respect to a kernel is a
    kernel that holds the derivatives. scikit-learn's ``clone`` and names such as ``kernel__lengthscale`` work.

    A subclass defines :meth:`matrix` and :meth:`diagonal`, and :meth:`draw` with :attr:`kinds` if it is stationary and
    has random features.

    Examples
    --------
    >>> from thalweg.kernels import Gaussian, Linear
    >>> kernel = 2.0 * Gaussian(lengthscale=[1.0, 2.0]) + Linear()
    >>> kernel
    Gaussian(lengthscale=[1, 2], variance=2) + Linear(variance=1)
    >>> kernel.get_params()["k1__variance"]
    Array(2., dtype=float...)
    """

    __array_ufunc__: ClassVar[None] = None  # so that a number of NumPy leaves its product with a kernel to the kernel
    kinds: ClassVar[tuple[str, ...]] = ()
    """The kinds of random frequencies that the kernel has."""

    stationary: ClassVar[bool] = True
    """Whether k(x, y) depends on x − y alone; k(x, x) is then ``variance``."""

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...  # the parameters of subclasses

    def matrix(self, x: Float[Array, "n d"], y: Float[Array, "m d"] | None) -> Float[Array, "n m"]:
        """k(x_i, y_j) for rows of one dtype; no ``y`` means ``x`` again."""
        raise NotImplementedError(f"{type(self).__name__} must define matrix(x, y)")

    def diagonal(self, x: Float[Array, "n d"]) -> Float[Array, " n"]:
        """k(x_i, x_i): the variance, if the kernel is stationary."""
        x = self.rows("x", x)
        return jnp.broadcast_to(jnp.asarray(self.variance, x.dtype), x.shape[:1])

    def draw(self, block: Block, dimension: int) -> Float[Array, "count dimension"]:
        """Frequencies ω with k(x, y) = variance · E cos(ωᵀ(x − y)), one per row of a block."""
        raise NotImplementedError(f"{type(self).__name__} must define draw(...)")

    def __call__(self, x: Float[Array, "n d"], y: Float[Array, "m d"] | None = None) -> Float[Array, "n m"]:
        """Return the matrix of k(x_i, y_j), in the dtype of the points.

        Without ``y`` it is the matrix of ``x`` with itself, exactly symmetric.
        """
        other = None if y is None or y is x else y
        if self.stationary:
            x, other = trees.near_the_origin(x, other)
        other = None if other is None else self.rows("y", other)
        x = self.rows("x", x)
        if other is not None and other.shape[1] != x.shape[1]:
            raise ValueError(f"x and y must have as many features, found {x.shape[1]} and {other.shape[1]}")
        dtype = x.dtype if other is None else np.promote_types(x.dtype, other.dtype)
        return _matrix(self, x.astype(dtype), None if other is None else other.astype(dtype))

    def frequencies(
        self, key: Key[Array, ""], count: int, dimension: int, kind: str = "random", block: Any = 0
    ) -> Float[Array, "count dimension"]:
        """Draw frequencies ω from the spectral density, one per row.

        Parameters
        ----------
        key
            A random key: the same key and block give the same frequencies, on every device, up to rounding.
        count
            The number of frequencies.
        dimension
            The number of features of the points.
        kind
            "random": independent. "orthogonal": orthogonal in groups of ``dimension`` (Yu et al., 2016), for kernels of
            the Euclidean distance. "quasi": a randomly shifted low-discrepancy sequence, which gains much for up to ten
            features or so, and next to nothing for a hundred. Sums and products have "random" ones.
        block
            Which ``count`` of them, from 0; it may be traced. Quasi-random blocks continue one another.

        Examples
        --------
        >>> from thalweg.kernels import Gaussian
        >>> Gaussian(lengthscale=0.5).frequencies(jax.random.key(0), count=100, dimension=3).shape
        (100, 3)
        """
        count, dimension = arguments.whole("count", count), arguments.whole("dimension", dimension)
        self.check_dimension("the data", dimension)
        self.check_kind(kind)
        return _frequencies(self, kind, arguments.random_key("key", key), jnp.asarray(block), count, dimension)

    def __add__(self, other: Any) -> "Kernel":
        return Sum(self, other if isinstance(other, Kernel) else Bias(other))

    def __radd__(self, other: Any) -> "Kernel":
        return Sum(Bias(other), self)

    def __mul__(self, other: Any) -> "Kernel":
        return Product(self, other) if isinstance(other, Kernel) else self.scaled(other)

    __rmul__ = __mul__

    def scaled(self, factor: Any) -> "Kernel":
        """The kernel times a positive number: one of the same class, with another variance."""
        factor = number("a factor of a kernel", factor, above=0)
        return type(self)(**(self.get_params(deep=False) | {"variance": factor * self.variance}))

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The parameters by name, as in scikit-learn; ``k1__lengthscale`` is one of a part."""
        own = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        parts = own.items() if deep else ()
        nested = [(f"{name}__{key}", value) for name, part in parts if isinstance(part, Kernel)
                  for key, value in part.get_params().items()]  # fmt: skip
        return own | dict(nested)

    def set_params(self, **parameters: Any) -> "Kernel":
        """Change parameters in place, as scikit-learn does, and return the kernel; its parts are replaced, not changed.

        Examples
        --------
        >>> from thalweg.kernels import Gaussian, White
        >>> (Gaussian() + White()).set_params(k1__lengthscale=3.0)
        Gaussian(lengthscale=3, variance=1) + White(variance=1)
        """
        own = self.get_params(deep=False)
        for path in sorted(parameters, key=lambda path: "__" in path):  # a part before what is within it
            name, _, rest = path.partition("__")
            if name not in own or (rest and not isinstance(own[name], Kernel)):
                raise ValueError(f"{path!r} is no parameter of {self}: it has {', '.join(self.get_params())}")
            value = parameters[path]
            own[name] = own[name].__sklearn_clone__().set_params(**{rest: value}) if rest else value
        vars(self).update(vars(type(self)(**own)))
        return self

    def __sklearn_clone__(self) -> "Kernel":
        return jax.tree.map(lambda leaf: leaf, self)

    def __repr__(self) -> str:
        shown = [f"{name}={_shown(value)}" for name, value in self.get_params(deep=False).items()]
        return f"{type(self).__name__}({', '.join(shown)})"

    def rows(self, name: str, points: Any) -> Float[Array, "n d"]:
        """Return points as a float array with one point per row, or say what is wrong with them."""
        if scipy.sparse.issparse(points):
            raise TypeError(f"{name} must be a dense matrix, found a sparse one: take rows of it and call .toarray()")
        if not isinstance(points, jax.Array):
            if np.ma.is_masked(points):
                raise ValueError(f"{name} must have no masked entries, found {np.ma.count_masked(points)}")
            points = np.asarray(points)
            if points.dtype.kind not in "biuf":
                raise TypeError(f"{name} must be float32 or float64, found {points.dtype}")
            # A copy of NumPy's, which compiles nothing: jnp.asarray makes a program for each shape.
            points = jax.device_put(points.astype(points.dtype.newbyteorder("=")))
        if points.ndim != 2 or 0 in points.shape:
            hint = "; write points on a line as a column, x[:, None]" if points.ndim == 1 else ""
            raise ValueError(f"{name} must be a matrix with one point per row, found shape {points.shape}{hint}")
        if jnp.issubdtype(points.dtype, jnp.integer) or points.dtype == bool:
            points = points.astype(jnp.result_type(float))
        if points.dtype not in (jnp.float32, jnp.float64):
            raise TypeError(f"{name} must be float32 or float64, found {points.dtype}")
        self.check_dimension(name, points.shape[1])
        return points

    def check_kind(self, kind: str) -> None:
        """Refuse a kind of frequencies that is unknown, or that this kernel does not have."""
        arguments.one_of("kind", kind, KINDS)
        if not self.kinds:
            raise IncompatiblePartsError(
                f"{type(self).__name__} has no random features: use a stationary kernel such as Gaussian"
            )
        if kind not in self.kinds:
            raise IncompatiblePartsError(
                f"{type(self).__name__} has no {kind} frequencies, for it is no function of the Euclidean distance: "
                f"use kind={' or '.join(map(repr, self.kinds))}"
            )

    def check_dimension(self, name: str, dimension: int) -> None:
        """Refuse a number of features that is not that of the parameters; ``name`` is what has the features."""
        for parameter, value in self.get_params(deep=False).items():
            if isinstance(value, Kernel):
                value.check_dimension(name, dimension)
            elif value.ndim and value.shape != (dimension,):
                raise ValueError(
                    f"{name} has {dimension} features and the kernel {value.size} {parameter}s: "
                    "give it one number, or one for each feature"
                )


@storable
class Bias(Kernel):
    """k(x, y) = variance: a level that is unknown. A kernel plus a number is its sum with one of these.

    Examples
    --------
    >>> Bias(3.0)(np.zeros((1, 2)))
    Array([[3.]], dtype=float...)
    """

    variance: Float[Array, ""] = eqx.field(default=1.0, converter=partial(number, "variance of Bias", above=0))
    kinds: ClassVar[tuple[str, ...]] = KINDS

    def matrix(self, x: Float[Array, "n d"], y: Float[Array, "m d"] | None) -> Float[Array, "n m"]:
        """The variance."""
        return jnp.full((len(x), len(x if y is None else y)), jnp.asarray(self.variance, x.dtype))

    def draw(self, block: Block, dimension: int) -> Float[Array, "count dimension"]:
        """0."""
        return jnp.zeros((block.count, dimension), jnp.result_type(self.variance))


class _Pair(Kernel):
    """Two kernels made one."""

    k1: Kernel
    k2: Kernel
    combine: ClassVar[Any]
    """What makes one number of those of both."""

    @property
    def variance(self) -> Array:
        """Made of those of the parts."""
        return self.combine(self.k1.variance, self.k2.variance)

    def matrix(self, x: Float[Array, "n d"], y: Float[Array, "m d"] | None) -> Float[Array, "n m"]:
        """Made of the matrices of the parts, entry by entry."""
        return self.combine(self.k1.matrix(x, y), self.k2.matrix(x, y))

    def diagonal(self, x: Float[Array, "n d"]) -> Float[Array, " n"]:
        """Made of the diagonals of the parts."""
        return self.combine(self.k1.diagonal(x), self.k2.diagonal(x))

    def __init__(self, k1: Kernel, k2: Kernel) -> None:
        name = type(self).__name__
        self.k1 = arguments.instance(f"k1 of {name}", k1, Kernel, "Gaussian(1.0)")
        self.k2 = arguments.instance(f"k2 of {name}", k2, Kernel, "Gaussian(1.0)")

    # Independent frequencies, if both have them.
    kinds = property(lambda self: ("random",) if "random" in self.k1.kinds and "random" in self.k2.kinds else ())
    stationary = property(lambda self: self.k1.stationary and self.k2.stationary)


@storable
class Sum(_Pair):
    """k1(x, y) + k2(x, y), written ``k1 + k2``: the kernel of the sum of two independent processes.

    Examples
    --------
    >>> from thalweg.kernels import Gaussian, Matern32
    >>> Gaussian(2.0) + Matern32(1.0)
    Gaussian(lengthscale=2, variance=1) + Matern32(lengthscale=1, variance=1)
    """

    combine: ClassVar[Any] = operator.add

    def scaled(self, factor: Any) -> Kernel:
        """Both parts times a positive number."""
        return Sum(self.k1.scaled(factor), self.k2.scaled(factor))

    def draw(self, block: Block, dimension: int) -> Float[Array, "count dimension"]:
        """Frequencies of one or the other, each as often as its share of the variance."""
        first, second, which = block.split(3)
        share = jnp.asarray(self.k1.variance / self.variance, jnp.float32)
        return jnp.where(which.uniforms(1) < share, self.k1.draw(first, dimension), self.k2.draw(second, dimension))

    def __repr__(self) -> str:
        return f"{self.k1} + {self.k2}"


@storable
class Product(_Pair):
    """k1(x, y) · k2(x, y), written ``k1 * k2``.

    Examples
    --------
    >>> from thalweg.kernels import Gaussian, Linear
    >>> Linear() * (Gaussian(2.0) + 1.0)
    Linear(variance=1) * (Gaussian(lengthscale=2, variance=1) + Bias(variance=1))
    """

    combine: ClassVar[Any] = operator.mul

    def scaled(self, factor: Any) -> Kernel:
        """The first part times a positive number."""
        return Product(self.k1.scaled(factor), self.k2)

    def draw(self, block: Block, dimension: int) -> Float[Array, "count dimension"]:
        """Sums of independent frequencies of both."""
        first, second = block.split()
        return self.k1.draw(first, dimension) + self.k2.draw(second, dimension)

    def __repr__(self) -> str:
        return " * ".join(f"({part})" if isinstance(part, Sum) else str(part) for part in (self.k1, self.k2))


# Compiled here, so that a call outside of jit compiles once and not each time.
@jax.jit
def _matrix(kernel: Kernel, x: Float[Array, "n d"], y: Float[Array, "m d"] | None) -> Float[Array, "n m"]:
    return kernel.matrix(x, y)


@partial(jax.jit, static_argnames=("kind", "count", "dimension"))
def _frequencies(
    kernel: Kernel, kind: str, key: Key[Array, ""], block: Array, count: int, dimension: int
) -> Float[Array, "count dimension"]:
    return kernel.draw(Block(kind, key, block, count), dimension)


def _shown(value: Any) -> str:
    """Write a parameter as a user would; one that is not known, as under ``jit``, as it describes itself."""
    if isinstance(value, jax.core.Tracer) or not isinstance(value, jax.Array | np.ndarray):
        return str(value)
    if value.ndim == 0:
        return f"{float(value):.6g}"
    shown = [f"{float(entry):.6g}" for entry in (value if len(value) <= _SHOWN else value[: _SHOWN - 1])]
    return f"[{', '.join(shown)}]" if len(value) <= _SHOWN else f"[{', '.join(shown)}, …, {float(value[-1]):.6g}]"

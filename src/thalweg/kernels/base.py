"""What every stationary kernel shares: its parameters, their checks, its matrix and its description."""

from functools import partial
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse
from jaxtyping import Array, Float, Key

from thalweg import arguments
from thalweg.errors import IncompatiblePartsError
from thalweg.kernels import draws

# Lengthscales that a kernel's repr writes out.
_SHOWN = 5


class Kernel(eqx.Module):
    """A stationary kernel k(x, y) = variance · ρ((x − y) / lengthscale) with ρ(0) = 1.

    By Bochner's theorem k(x, y) = variance · E cos(ωᵀ(x − y)) for frequencies ω of a law that the kernel knows.
    The parameters are leaves: a change of them compiles nothing again, and ``jax.grad`` with respect to a kernel is a
    kernel that holds the derivatives.

    A subclass defines :meth:`correlation`, and for random features :meth:`standard_log_density` and
    :meth:`standard_frequencies`.

    Parameters
    ----------
    lengthscale
        A positive number, or one for each feature.
    variance
        A positive number, k(x, x).

    Examples
    --------
    >>> from thalweg.kernels import Matern32
    >>> isinstance(Matern32(lengthscale=[1.0, 2.0]), Kernel)
    True
    """

    lengthscale: Float[Array, "*features"]
    variance: Float[Array, ""]

    kinds: ClassVar[tuple[str, ...]] = draws.KINDS
    """The kinds of frequencies that the kernel has."""

    def __init__(self, lengthscale: Any = 1.0, variance: Any = 1.0) -> None:
        name = type(self).__name__
        self.lengthscale = arguments.numbers(f"lengthscale of {name}", _as_array(lengthscale), above=0, ndim=1)
        self.variance = arguments.number(f"variance of {name}", variance, above=0)

    def correlation(self, x: Float[Array, "n d"], y: Float[Array, "m d"] | None) -> Float[Array, "n m"]:
        """ρ((x_i − y_j) / lengthscale) for rows of one dtype; no ``y`` means ``x`` again."""
        raise NotImplementedError(f"{type(self).__name__} must define correlation(x, y)")

    def standard_log_density(self, omega: Float[Array, "n d"]) -> Float[Array, " n"]:
        """The log-density of the frequencies of lengthscale 1."""
        raise NotImplementedError(f"{type(self).__name__} must define standard_log_density(omega)")

    def standard_frequencies(
        self, kind: str, key: Key[Array, ""], block: Array, count: int, dimension: int
    ) -> Float[Array, "count dimension"]:
        """Frequencies of lengthscale 1 in float32, one per row: the ``block``-th ``count`` of them."""
        raise NotImplementedError(f"{type(self).__name__} must define standard_frequencies(...)")

    def __call__(self, x: Float[Array, "n d"], y: Float[Array, "m d"] | None = None) -> Float[Array, "n m"]:
        """Return the matrix of k(x_i, y_j), in the dtype of the points.

        Without ``y`` it is the matrix of ``x`` with itself: exactly symmetric, and with the variance on its diagonal.
        """
        other = None if y is None or y is x else self.rows("y", y)
        x = self.rows("x", x)
        if other is not None and other.shape[1] != x.shape[1]:
            raise ValueError(f"x and y must have as many features, found {x.shape[1]} and {other.shape[1]}")
        dtype = x.dtype if other is None else np.promote_types(x.dtype, other.dtype)
        return _matrix(self, x.astype(dtype), None if other is None else other.astype(dtype))

    def diagonal(self, x: Float[Array, "n d"]) -> Float[Array, " n"]:
        """k(x_i, x_i), which is the variance."""
        x = self.rows("x", x)
        return jnp.broadcast_to(self.variance.astype(x.dtype), x.shape[:1])

    def spectral_density(self, omega: Float[Array, "n d"]) -> Float[Array, " n"]:
        """The probability density of the frequencies at the rows of ``omega``: k(x, y) = variance · E cos(ωᵀ(x − y)).

        Examples
        --------
        >>> from thalweg.kernels import Laplacian
        >>> Laplacian(lengthscale=2.0).spectral_density(jnp.zeros((1, 1))).round(4)  # 2/π
        Array([0.6366], dtype=float...)
        """
        omega = self.rows("omega", omega)
        lengthscale = jnp.broadcast_to(self.lengthscale.astype(omega.dtype), omega.shape[1:])
        return jnp.exp(self.standard_log_density(omega * lengthscale[None, :]) + jnp.sum(jnp.log(lengthscale)))

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
            features or so, and next to nothing for a hundred.
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
        return _frequencies(self, kind, key, jnp.asarray(block), count, dimension)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(lengthscale={_shown(self.lengthscale)}, variance={_shown(self.variance)})"

    def rows(self, name: str, points: Any) -> Float[Array, "n d"]:
        """Return points as a float array with one point per row, or say what is wrong with them."""
        if scipy.sparse.issparse(points):
            raise TypeError(f"{name} must be a dense matrix, found a sparse one: take rows of it and call .toarray()")
        points = jnp.asarray(points)
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
        if arguments.one_of("kind", kind, draws.KINDS) not in self.kinds:
            raise IncompatiblePartsError(
                f"{type(self).__name__} has no {kind} frequencies, for it is no function of the Euclidean distance: "
                f"use kind={' or '.join(map(repr, self.kinds))}"
            )

    def check_dimension(self, name: str, dimension: int) -> None:
        """Refuse a number of features that is not that of the lengthscales; ``name`` is what has the features."""
        if self.lengthscale.ndim and self.lengthscale.shape != (dimension,):
            raise ValueError(
                f"{name} has {dimension} features and the kernel {self.lengthscale.size} lengthscales: "
                "give it one number, or one for each feature"
            )


# Compiled here, so that a call outside of jit compiles once and not each time.
@jax.jit
def _matrix(kernel: Kernel, x: Float[Array, "n d"], y: Float[Array, "m d"] | None) -> Float[Array, "n m"]:
    return kernel.variance.astype(x.dtype) * kernel.correlation(x, y)


@partial(jax.jit, static_argnames=("kind", "count", "dimension"))
def _frequencies(
    kernel: Kernel, kind: str, key: Key[Array, ""], block: Array, count: int, dimension: int
) -> Float[Array, "count dimension"]:
    standard = kernel.standard_frequencies(kind, key, block, count, dimension).astype(kernel.lengthscale.dtype)
    return standard / jnp.broadcast_to(kernel.lengthscale, standard.shape)


def _as_array(value: Any) -> Any:
    """Make a list of numbers, one per feature, an array: to the check of arguments it would be a tree of them."""
    return np.asarray(value) if isinstance(value, list | tuple) else value


def _shown(value: Any) -> str:
    """Write a parameter as a user would; one that is not known, as under ``jit``, as it describes itself."""
    if isinstance(value, jax.core.Tracer) or not isinstance(value, jax.Array | np.ndarray):
        return str(value)
    if value.ndim == 0:
        return f"{float(value):.6g}"
    shown = [f"{float(entry):.6g}" for entry in (value if len(value) <= _SHOWN else value[: _SHOWN - 1])]
    return f"[{', '.join(shown)}]" if len(value) <= _SHOWN else f"[{', '.join(shown)}, …, {float(value[-1]):.6g}]"

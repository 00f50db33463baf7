"""Matérn and Gaussian kernels, and sums of two of them, as one kernel whose family is data: one program serves all.

With r² the squared distance, all of them are (1 + a·√(c·r²) + b·c·r²)·exp(−w·√(c·r²) − (1 − w)·r²/2).
"""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from thalweg.kernels import Gaussian, Kernel, Matern12, Matern32, Matern52
from thalweg.kernels.distances import squared_distances
from thalweg.kernels.profiles import summands

_SHAPES: dict[type[Kernel], tuple[float, ...]] = {
    Matern12: (1.0, 0.0, 0.0, 1.0),
    Matern32: (3.0, 1.0, 0.0, 1.0),
    Matern52: (5.0, 1.0, 1 / 3, 1.0),
    Gaussian: (1.0, 0.0, 0.0, 0.0),
}
"""c, a, b and w."""

_TERMS = 2


class Blend(Kernel):
    """The sum of two terms, of which the second may have a variance of 0.

    Examples
    --------
    >>> x = np.array([[0.0], [1.0]])
    >>> both = Gaussian(2.0) + Matern12(1.0)
    >>> bool(jnp.allclose(Blend.of(both, 1)(x), both(x)))
    True
    """

    lengthscales: Float[Array | np.ndarray, "2 d"]
    variances: Float[Array | np.ndarray, " 2"]
    shapes: Float[Array | np.ndarray, "2 4"]

    @staticmethod
    def serves(kernel: Kernel) -> bool:
        """Whether it is a sum of no more terms, all of them known."""
        return 1 <= len(summands(kernel)) <= _TERMS

    @classmethod
    def of(cls, kernel: Kernel, features: int) -> "Blend | None":
        """The same kernel, if this one serves."""
        terms = summands(kernel)
        if not cls.serves(kernel):
            return None
        missing = _TERMS - len(terms)
        lengths = [np.broadcast_to(np.asarray(term.lengthscale, np.float64), (features,)) for term in terms]
        return cls(
            np.stack(lengths + [np.ones(features)] * missing),
            np.array([float(term.variance) for term in terms] + [0.0] * missing),
            np.array([_SHAPES[type(term)] for term in terms] + [_SHAPES[Gaussian]] * missing),
        )

    @staticmethod
    def chosen(kernel: Kernel, features: int) -> Float[np.ndarray, "p q"]:
        """Which parameters of its blend, and the noise behind them, are those of a kernel: ones in columns."""
        return _chosen(tuple(np.ndim(term.lengthscale) > 0 for term in summands(kernel)), features)

    @property
    def stationary(self) -> bool:
        """It is."""
        return True

    @property
    def variance(self) -> Array:
        """Of the sum."""
        return jnp.sum(self.variances)

    def check_dimension(self, name: str, dimension: int) -> None:
        """Was done with the kernel that this one is made of."""

    def matrix(self, x: Float[Array, "n d"], y: Float[Array, "m d"] | None) -> Float[Array, "n m"]:
        """The sum of the matrices of both terms."""
        lengthscales, variances, shapes = map(jnp.asarray, (self.lengthscales, self.variances, self.shapes))
        term = lambda lengths, shape: _value_and_rise(squared_distances(x, y, lengths), shape)[0]
        return jnp.tensordot(variances, jax.vmap(term)(lengthscales, shapes), 1)

    def pulled(
        self, x: Float[Array, "n d"], y: Float[Array, "m d"], pull: Float[Array, "n m"], columns: Float[Array, "m t"]
    ) -> tuple[Float[Array, " p"], Float[Array, "p n t"]]:
        """Derivatives of Σ pull·k(x, y), and of k(x, y)·columns, in the logarithms of lengthscales and variances."""
        lengthscales, variances, shapes = map(jnp.asarray, (self.lengthscales, self.variances, self.shapes))
        centre = jnp.mean(y, axis=0, keepdims=True)

        def term(lengths: Array, size: Array, shape: Array) -> tuple[Array, Array, Array, Array]:
            value, rise = (size * part for part in _value_and_rise(squared_distances(x, y, lengths), shape))
            here, there = ((part - centre) / lengths[None] for part in (x, y))
            # The square of a difference, opened up: x² − 2xx' + x'².
            part = rise * pull
            squares = jnp.sum(part, axis=1) @ here**2 + jnp.sum(part, axis=0) @ there**2
            slopes = -2 * (squares - 2 * jnp.sum(here * (part @ there), axis=0))
            powers = jnp.concatenate([jnp.ones_like(there[:, :1]), there, there**2], axis=1)
            moved = jnp.tensordot(rise, powers[:, :, None] * columns[:, None, :], 1)
            zeroth, first, second = jnp.split(moved, [1, 1 + there.shape[1]], axis=1)
            here = here[:, :, None]
            moved = jnp.moveaxis(-2 * (here**2 * zeroth - 2 * here * first + second), 1, 0)
            return slopes, jnp.sum(value * pull), moved, value @ columns

        by_length, by_variance, moved, scaled = jax.vmap(term)(lengthscales, variances, shapes)
        flat = moved.reshape(-1, *moved.shape[2:])
        return jnp.concatenate([by_length.ravel(), by_variance]), jnp.concatenate([flat, scaled])

    def diagonal(self, x: Float[Array, "n d"]) -> Float[Array, " n"]:
        """The variance, for each row."""
        return jnp.full(len(x), self.variance)


@cache
def _chosen(separate: tuple[bool, ...], features: int) -> Float[np.ndarray, "p q"]:
    """The same by which terms have a lengthscale for each feature."""
    columns: list[np.ndarray] = []
    unit = np.eye(_TERMS * (features + 1) + 1)
    for place, each in enumerate(separate):
        lengths = unit[:, place * features : (place + 1) * features]
        columns += list(lengths.T) if each else [np.sum(lengths, axis=1)]
        columns.append(unit[:, _TERMS * features + place])
    return np.stack([*columns, unit[:, -1]], axis=1)


def _value_and_rise(squared: Array, shape: Array) -> tuple[Array, Array]:
    """The profile, and its derivative in the squared distance."""
    c, a, b, w = shape
    root = jnp.sqrt(c * squared)
    decay = jnp.exp(-w * root - (1 - w) / 2 * squared)
    value = (1 + a * root + b * c * squared) * decay
    # At one place the derivative of a rough term is infinite, but no parameter moves the distance there.
    inverse = jnp.where(root > 0, 1 / jnp.where(root > 0, root, 1), 0)
    return value, c / 2 * ((a - w) * inverse + (2 * b - w * a) - w * b * root) * decay - (1 - w) / 2 * value

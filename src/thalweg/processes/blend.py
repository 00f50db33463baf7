"""Matérn and Gaussian kernels, and sums of two of them, as one kernel whose family is data: one program serves all.

With r² the squared distance, all of them are (1 + a·√(c·r²) + b·c·r²)·exp(−w·√(c·r²) − (1 − w)·r²/2).
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from thalweg.kernels import Gaussian, Kernel, Matern12, Matern32, Matern52, Sum
from thalweg.kernels.distances import squared_distances

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

    @classmethod
    def of(cls, kernel: Kernel, features: int) -> Kernel:
        """The same kernel, as one of these if it is a sum of no more terms, all of them known."""
        terms = _terms(kernel)
        if not 1 <= len(terms) <= _TERMS:
            return kernel
        missing = _TERMS - len(terms)
        lengths = [np.broadcast_to(np.asarray(term.lengthscale, np.float64), (features,)) for term in terms]
        return cls(
            np.stack(lengths + [np.ones(features)] * missing),
            np.array([float(term.variance) for term in terms] + [0.0] * missing),
            np.array([_SHAPES[type(term)] for term in terms] + [_SHAPES[Gaussian]] * missing),
        )

    def back(self, kernel: Kernel) -> Kernel:
        """Derivatives in the parameters of a kernel that this one was made of, where these are those in its own."""
        leaves: list[Any] = []
        lengthscales, variances = np.asarray(self.lengthscales), np.asarray(self.variances)
        for place, term in enumerate(_terms(kernel)):
            lengths = lengthscales[place]
            leaves += [lengths if np.ndim(term.lengthscale) else np.sum(lengths), variances[place]]
        return jax.tree.unflatten(jax.tree.structure(kernel), leaves)

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
        shapes = jax.lax.stop_gradient(shapes)
        each = [_profile(squared_distances(x, y, lengthscales[place]), shapes[place]) for place in range(_TERMS)]
        return variances[0] * each[0] + variances[1] * each[1]

    def moves(
        self, x: Float[Array, "n d"], y: Float[Array, "m d"], columns: Float[Array, "m t"]
    ) -> Float[Array, "p n t"]:
        """Derivatives of k(x, y)·columns in the logarithms of lengthscales and variances, in the order of a gradient."""
        by_length, by_variance = [], []
        for place in range(_TERMS):
            lengths, size = jnp.asarray(self.lengthscales)[place], jnp.asarray(self.variances)[place]
            squared = squared_distances(x, y, lengths)
            value, rise = (size * part for part in _value_and_rise(squared, jnp.asarray(self.shapes)[place]))
            centre = jnp.mean(y, axis=0, keepdims=True)
            here, there = (((part - centre) / lengths[None])[:, :, None] for part in (x, y))
            # The square of a difference, opened up: x² − 2xx' + x'².
            powers = (jnp.ones_like(there[:, :1]), there, there**2)
            zeroth, first, second = (jnp.tensordot(rise, part * columns[:, None, :], 1) for part in powers)
            by_length.append(jnp.moveaxis(-2 * (here**2 * zeroth - 2 * here * first + second), 1, 0))
            by_variance.append((value @ columns)[None])
        return jnp.concatenate(by_length + by_variance)

    def spread(self, kernel: Kernel) -> Float[np.ndarray, "p q"]:
        """How the logarithms of this one's parameters, and of a noise, move with those of a kernel that it was made of."""
        terms, features = _terms(kernel), self.lengthscales.shape[1]
        columns: list[np.ndarray] = []
        unit = np.eye(_TERMS * (features + 1) + 1)
        for place, term in enumerate(terms):
            lengths = unit[:, place * features : (place + 1) * features]
            columns += list(lengths.T) if np.ndim(term.lengthscale) else [np.sum(lengths, axis=1)]
            columns.append(unit[:, _TERMS * features + place])
        return np.stack([*columns, unit[:, -1]], axis=1)

    def diagonal(self, x: Float[Array, "n d"]) -> Float[Array, " n"]:
        """The variance, for each row."""
        return jnp.full(len(x), self.variance)


def _terms(kernel: Kernel) -> tuple[Kernel, ...]:
    """What a kernel is the sum of, if all of it is known here; else nothing."""
    if type(kernel) is Sum:
        left, right = _terms(kernel.k1), _terms(kernel.k2)
        return left + right if left and right else ()
    return (kernel,) if type(kernel) in _SHAPES else ()


@jax.custom_jvp
def _profile(squared: Array, shape: Array) -> Array:
    c, a, b, w = shape
    root = jnp.sqrt(c * squared)
    return (1 + a * root + b * c * squared) * jnp.exp(-w * root - (1 - w) / 2 * squared)


@_profile.defjvp
def _profile_jvp(primals: tuple, tangents: tuple) -> tuple[Array, Array]:
    value, rise = _value_and_rise(*primals)
    return value, rise * tangents[0]


def _value_and_rise(squared: Array, shape: Array) -> tuple[Array, Array]:
    """The profile, and its derivative in the squared distance."""
    c, a, b, w = shape
    root = jnp.sqrt(c * squared)
    decay = jnp.exp(-w * root - (1 - w) / 2 * squared)
    value = (1 + a * root + b * c * squared) * decay
    # At one place the derivative of a rough term is infinite, but no parameter moves the distance there.
    inverse = jnp.where(root > 0, 1 / jnp.where(root > 0, root, 1), 0)
    return value, c / 2 * ((a - w) * inverse + (2 * b - w * a) - w * b * root) * decay - (1 - w) / 2 * value

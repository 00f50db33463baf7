"""The methods for posteriors of documents: what each takes for the expectations that have no closed form.

All maximise a bound over q = N(m, V) by the same steps (:func:`thalweg.topics.documents.infer`). They differ in where
words are read (E[φ] over draws, or φ at m), in E[π], and in the curvature that becomes V⁻¹ − Σ⁻¹:

- "pgsvi": expectations over draws from q, V full; "pgsvi-mf": the same with a diagonal V (PG-SVI, section 7.2).
- "mean-field": E log Σ_j e^{z_j} ≤ log ζ + Σ_j E[e^{z_j}] / ζ − 1 with the best ζ, V diagonal (Blei and Lafferty 2007,
  eq. 10): E[π] becomes softmax(m + v/2) and the curvature its diagonal.
- "laplace": the mode and the curvature there, V full (Wang and Blei 2013, section 3.1).
- "delta": log Σ_j e^{z_j} to second order around m, V diagonal (Wang and Blei 2013, section 3.2).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


class Expected(NamedTuple):
    """Expectations under q of each document."""

    read_at: Float[Array, "d s k"]
    """The proportions at which words are read."""
    read_weights: Float[Array, " s"]
    proportions: Float[Array, "d k"]
    """What stands for E[π] in the gradient."""
    curvature: Float[Array, "d k k"] | Float[Array, "d k"]
    """What stands for E[diag π − ππᵀ]."""


def diagonals(vectors: Float[Array, "d k"]) -> Float[Array, "d k k"]:
    """A diagonal matrix of each vector."""
    return vectors[:, :, None] * jnp.eye(vectors.shape[1], dtype=vectors.dtype)[None]


def _covariance(proportions: Array, weights: Array) -> Array:
    """E[diag π − ππᵀ] over points of some weights."""
    mean = jnp.einsum("dsk,s->dk", proportions, weights)
    squares = jnp.einsum("dsk,dsj,s->dkj", proportions, proportions, weights)
    return diagonals(mean) - squares


def _drawn(means: Array, precisions: Array, apart: Array, weights: Array) -> Expected:
    proportions = jax.nn.softmax(means[:, None] + apart)
    mean = jnp.einsum("dsk,s->dk", proportions, weights)
    return Expected(proportions, weights, mean, _covariance(proportions, weights))


def _drawn_diagonal(means: Array, precisions: Array, apart: Array, weights: Array) -> Expected:
    proportions = jax.nn.softmax(means[:, None] + apart)
    mean = jnp.einsum("dsk,s->dk", proportions, weights)
    return Expected(proportions, weights, mean, mean - jnp.einsum("dsk,s->dk", proportions**2, weights))


def _one(means: Array) -> tuple[Array, Array]:
    return jax.nn.softmax(means)[:, None], jnp.ones(1, means.dtype)


def _at_mode(means: Array, precisions: Array, apart: Array, weights: Array) -> Expected:
    at, one = _one(means)
    return Expected(at, one, at[:, 0], _covariance(at, one))


def _by_zeta(means: Array, precisions: Array, apart: Array, weights: Array) -> Expected:
    tilted = jax.nn.softmax(means + 1 / (2 * precisions))
    return Expected(*_one(means), tilted, tilted)


def _by_delta(means: Array, precisions: Array, apart: Array, weights: Array) -> Expected:
    at, one = _one(means)
    here, variance = at[:, 0], 1 / precisions
    once = jnp.sum(here * variance, axis=1, keepdims=True)
    twice = jnp.sum(here**2 * variance, axis=1, keepdims=True)
    tilted = here + here * (variance - once) / 2 - here * (here * variance - twice)
    return Expected(at, one, tilted, here * (1 - here))


def _full_target(precision: Array, totals: Array, expected: Expected) -> Array:
    return precision[None] + totals[:, None, None] * expected.curvature


def _diagonal_target(precision: Array, totals: Array, expected: Expected) -> Array:
    return jnp.diagonal(precision)[None] + totals[:, None] * expected.curvature


def _full_start(precision: Array, totals: Array, proportions: Array) -> Array:
    one = jnp.ones(1, proportions.dtype)
    return precision[None] + totals[:, None, None] * _covariance(proportions[:, None], one)


def _diagonal_start(precision: Array, totals: Array, proportions: Array) -> Array:
    return jnp.diagonal(precision)[None] + totals[:, None] * proportions * (1 - proportions)


def _its_own(precision: Array, totals: Array, expected: Expected, precisions: Array) -> Array:
    return precisions


def _dominant(precision: Array, totals: Array, expected: Expected, precisions: Array) -> Array:
    """A diagonal above Σ⁻¹ + W(diag π − ππᵀ), so that steps of the mean cannot overshoot."""
    return jnp.sum(jnp.abs(precision), axis=1)[None] + totals[:, None] * jnp.abs(expected.proportions)


@dataclass(frozen=True)
class Method:
    """How a method takes expectations, what V⁻¹ goes to, and the metric of the mean's step."""

    expected: Callable[[Array, Array, Array, Array], Expected]
    start: Callable[[Array, Array, Array], Array] = _full_start
    target: Callable[[Array, Array, Expected], Array] = _full_target
    metric: Callable[[Array, Array, Expected, Array], Array] = _its_own

    @property
    def apart_metric(self) -> bool:
        """Whether the metric is another than V⁻¹, so that draws need a factorisation of their own."""
        return self.metric is not _its_own


METHODS = {
    "pgsvi": Method(_drawn),
    "pgsvi-mf": Method(_drawn_diagonal, _diagonal_start, _diagonal_target, _dominant),
    "mean-field": Method(_by_zeta, _diagonal_start, _diagonal_target, _dominant),
    "laplace": Method(_at_mode),
    "delta": Method(_by_delta, _diagonal_start, _diagonal_target, _dominant),
}
"""The methods by name."""

"""The inference methods: how each approximates the expectations of a document's bound that have no closed form.

All maximise a bound over q = N(m, V) by the same steps (:func:`thalweg.topics.documents.infer`). They differ in where
the likelihood of words is evaluated (E[φ] over draws, or φ at m), in E[π], and in the curvature that becomes V⁻¹ − Σ⁻¹:

- "pgsvi": expectations over draws from q, V full; "pgsvi-mf": the same with a diagonal V (PG-SVI, section 7.2).
- "mean-field": E log Σ_j e^{z_j} ≤ log ζ + Σ_j E[e^{z_j}] / ζ − 1 with the best ζ, V diagonal (Blei and Lafferty 2007,
  eq. 10): E[π] becomes softmax(m + v/2) and the curvature its diagonal.
- "laplace": the mode and the curvature there, V full (Wang and Blei 2013, section 3.1).
- "delta": log Σ_j e^{z_j} to second order around m, V diagonal (Wang and Blei 2013, section 3.2).
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


class Expectations(NamedTuple):
    """Expectations under q of each document."""

    points: Float[Array, "d s k"]
    """The proportions at which the likelihood of words is evaluated."""
    weights: Float[Array, " s"]
    proportions: Float[Array, "d k"]
    """The approximation of E[π] in the gradient."""
    curvature: Float[Array, "d k k"] | Float[Array, "d k"]
    """The approximation of E[diag π − ππᵀ]."""


class InferenceMethod(NamedTuple):
    """How a method approximates expectations from means, precisions, deviations of draws and their weights."""

    expectations: Callable[[Array, Array, Array, Array], Expectations]
    diagonal: bool
    """Whether V is diagonal."""


def diagonals(vectors: Float[Array, "d k"]) -> Float[Array, "d k k"]:
    """Make a diagonal matrix of each vector."""
    return vectors[:, :, None] * jnp.eye(vectors.shape[1], dtype=vectors.dtype)[None]


def mean_curvature(
    points: Float[Array, "d s k"], weights: Float[Array, " s"], diagonal: bool
) -> Float[Array, "d k k"] | Float[Array, "d k"]:
    """Return E[diag π − ππᵀ] over weighted points, or its diagonal.

    Examples
    --------
    >>> mean_curvature(jnp.array([[[0.5, 0.5]]]), jnp.ones(1), diagonal=True)
    Array([[0.25, 0.25]], dtype=float...)
    """
    mean = jnp.einsum("dsk,s->dk", points, weights)
    if diagonal:
        return mean - jnp.einsum("dsk,s->dk", points**2, weights)
    return diagonals(mean) - jnp.einsum("dsk,dsj,s->dkj", points, points, weights)


def _over_draws(means: Array, precisions: Array, deviations: Array, weights: Array) -> Expectations:
    points = jax.nn.softmax(means[:, None] + deviations)
    mean = jnp.einsum("dsk,s->dk", points, weights)
    return Expectations(points, weights, mean, mean_curvature(points, weights, precisions.ndim == 2))


def _at_mean(means: Array, precisions: Array, *_: Array) -> Expectations:
    return _over_draws(means, precisions, jnp.zeros_like(means)[:, None], jnp.ones(1, means.dtype))


def _mean_field(means: Array, precisions: Array, *_: Array) -> Expectations:
    tilted = jax.nn.softmax(means + 1 / (2 * precisions))
    return _at_mean(means, precisions)._replace(proportions=tilted, curvature=tilted)


def _delta(means: Array, precisions: Array, *_: Array) -> Expectations:
    at_mean, variance = _at_mean(means, precisions), 1 / precisions
    p = at_mean.proportions
    first = jnp.sum(p * variance, axis=1, keepdims=True)
    second = jnp.sum(p**2 * variance, axis=1, keepdims=True)
    return at_mean._replace(proportions=p + p * (variance - first) / 2 - p * (p * variance - second))


METHODS = {
    "pgsvi": InferenceMethod(_over_draws, diagonal=False),
    "pgsvi-mf": InferenceMethod(_over_draws, diagonal=True),
    "mean-field": InferenceMethod(_mean_field, diagonal=True),
    "laplace": InferenceMethod(_at_mean, diagonal=False),
    "delta": InferenceMethod(_delta, diagonal=True),
}
"""The methods by name."""

"""Monte Carlo gradients of an expectation under a distribution that depends on x."""

from collections.abc import Callable
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Key, PyTree

from thalweg.arguments import flag, function, whole
from thalweg.oracles.base import Oracle, Out, differentiate

__all__ = ["Reparameterised", "ScoreFunction"]


class Reparameterised(Oracle):
    """The gradient of E_ε[F(x, ε)], differentiating through the samples.

    Parameters
    ----------
    integrand
        ``integrand(x, key) -> scalar``: draws its own noise from ``key``, e.g.
        ``F(mean + scale * jax.random.normal(key, ...))``.
    samples
        How many draws an estimate averages; counted as its work.

    Examples
    --------
    >>> import jax
    >>> Reparameterised(lambda x, key: x * jax.random.normal(key), samples=4).samples
    4
    """

    integrand: Callable[[PyTree, Key[Array, ""]], Any] = eqx.field(
        static=True, converter=partial(function, "integrand of Reparameterised")
    )
    samples: int = eqx.field(static=True, default=1, converter=partial(whole, "samples"))

    def estimate(self, x: PyTree[Array], state: PyTree, key: Key[Array, ""]) -> tuple[Out, PyTree]:
        """Average over the samples."""
        keys = jax.random.split(key, self.samples)
        mean = lambda x: jnp.mean(jax.vmap(lambda k: self.integrand(x, k))(keys))
        return differentiate(mean, x, float(self.samples)), state


class ScoreFunction(Oracle):
    """The gradient of E_{z∼q_x}[F(x, z)] by the score function: mean of (F − b) ∇_x log q_x(z), plus ∇_x F.

    The baseline b of a sample is the mean of F over the *other* samples, which leaves the estimate unbiased.

    Parameters
    ----------
    integrand
        ``integrand(x, z) -> scalar``; need not be differentiable in z.
    sample
        ``sample(x, key) -> z``.
    log_prob
        ``log_prob(x, z) -> scalar``, differentiable in x.
    samples
        How many draws an estimate averages, at least 2 with a baseline; counted as its work.
    baseline
        Whether to subtract the baseline.

    Examples
    --------
    >>> oracle = ScoreFunction(lambda x, z: z, lambda x, key: x, lambda x, z: x, samples=8)
    >>> oracle.samples
    8
    """

    integrand: Callable[..., Any] = eqx.field(static=True, converter=partial(function, "integrand of ScoreFunction"))
    sample: Callable[..., Any] = eqx.field(static=True, converter=partial(function, "sample of ScoreFunction"))
    log_prob: Callable[..., Any] = eqx.field(static=True, converter=partial(function, "log_prob of ScoreFunction"))
    samples: int = eqx.field(static=True, default=16)
    baseline: bool = eqx.field(
        static=True, default=True, kw_only=True, converter=partial(flag, "baseline of ScoreFunction")
    )

    def __check_init__(self) -> None:
        whole("samples", self.samples, least=2 if self.baseline else 1)

    def estimate(self, x: PyTree[Array], state: PyTree, key: Key[Array, ""]) -> tuple[Out, PyTree]:
        """Average over the samples."""
        keys = jax.random.split(key, self.samples)
        draws = jax.lax.stop_gradient(jax.vmap(lambda k: self.sample(x, k))(keys))

        def surrogate(x):
            values = jax.vmap(lambda z: self.integrand(x, z))(draws)
            fixed = jax.lax.stop_gradient(values)
            others = (jnp.sum(fixed) - fixed) / (self.samples - 1) if self.baseline else 0.0
            scores = jax.vmap(lambda z: self.log_prob(x, z))(draws)
            # Its gradient is the estimate; its value, with the scores cancelled, is the mean of F.
            return jnp.mean((fixed - others) * (scores - jax.lax.stop_gradient(scores)) + values)

        return differentiate(surrogate, x, float(self.samples)), state

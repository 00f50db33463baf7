"""Stochastic Lanczos quadrature, the biased baseline that Han et al. (2018) compare unbiased gradients with."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key, PyTree

from thalweg.linalg.lanczos import LanczosState, lanczos
from thalweg.linalg.operators import Operator
from thalweg.linalg.operators.base import frozen
from thalweg.oracles.base import Oracle, Out
from thalweg.spectral.probes import draw_probes


class LanczosOracle(Oracle):
    """Gradients of log det A(θ) + g(θ) by Lanczos' method (Ubaru et al., 2017; Dong et al., 2017), which are biased.

    For each probe v a fixed number of steps gives a tridiagonal T and a basis Q: vᵀ log(A) v is taken for ‖v‖² times
    the quadrature by T, and A⁻¹v in the gradient vᵀA⁻¹(∂A)v for ‖v‖·Q T⁻¹e₁. Both are exact once the steps are as many
    as A has distinct eigenvalues. Before that the bias has a sign that no number of probes takes away: by the sign of
    the derivatives of log x and 1/x the quadrature of log is too large and that of vᵀA⁻¹v too small, each by a factor
    that falls as ((√κ − 1)/(√κ + 1))^(2·steps). :class:`thalweg.spectral.SpectralOracle` has no bias.

    Parameters
    ----------
    operator
        ``operator(theta) -> Operator``, positive definite.
    g
        The rest of the objective, ``g(theta) -> scalar``, differentiated exactly.
    probes, steps
        How many probes, and steps of Lanczos' method for each.
    """

    operator: Callable[[Any], Operator]
    g: Callable[[Any], Any]
    probes: int = eqx.field(static=True, default=16)
    steps: int = eqx.field(static=True, default=20)

    def estimate(self, x: PyTree[Array], state: PyTree, key: Key[Array, ""]) -> tuple[Out, PyTree]:
        """Estimate value and gradient at ``x``; work counts products with A."""

        def objective(theta: PyTree[Array]) -> tuple[Array, Array]:
            A = self.operator(theta)
            vectors = draw_probes("rademacher", key, A.dimension, self.probes, 1, A.dtype)
            value, solved = quadrature(frozen(A), vectors, min(self.steps, A.dimension))
            moving = jnp.sum(solved * A.mv(vectors)) / self.probes
            return moving + self.g(theta), value - jax.lax.stop_gradient(moving)

        (total, difference), gradient = jax.value_and_grad(objective, has_aux=True)(x)
        return Out(gradient, total + difference, jnp.asarray(float(self.probes * (self.steps + 1)))), state


def quadrature(operator: Operator, vectors: Float[Array, "d m"], steps: int) -> tuple[Array, Float[Array, "d m"]]:
    """Return the mean of vᵀ log(A) v over some vectors, and A⁻¹v for each, by so many steps of Lanczos' method."""
    lengths = jnp.linalg.norm(vectors, axis=0)
    start = LanczosState.start(vectors / lengths[None])
    _, alphas, betas, basis = lanczos(operator.mv, start, steps, reorthogonalise=True)
    # Rows after an exhausted Krylov space are decoupled: 1 on their diagonal adds nothing.
    live = jnp.concatenate([jnp.ones((1, len(lengths)), bool), jnp.cumprod(betas[:-1] > 0, axis=0).astype(bool)])
    tridiagonal = jax.vmap(lambda a, b: jnp.diag(a) + jnp.diag(b, 1) + jnp.diag(b, -1), in_axes=1)
    values, rotations = jnp.linalg.eigh(tridiagonal(jnp.where(live, alphas, 1), betas[:-1]))
    first = rotations[:, 0]
    value = jnp.mean(lengths**2 * jnp.sum(first**2 * jnp.log(values), axis=1))
    weights = jnp.einsum("mki,mi->mk", rotations, first / values) * lengths[:, None]
    return value, jnp.einsum("kdm,mk->dm", basis, weights)

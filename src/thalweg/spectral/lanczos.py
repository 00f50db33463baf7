"""Stochastic Lanczos quadrature with a gradient: the baseline that the paper compares with."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key, PyTree

from thalweg import arguments
from thalweg.linalg.operators.base import Operator, frozen
from thalweg.oracles.base import Oracle, Out
from thalweg.spectral.probes import draw_probes


class LanczosOracle(Oracle):
    """Gradients of log det A(θ) + g(θ) by Lanczos' method (Ubaru et al., 2017; Dong et al., 2017), which are biased.

    For each probe v a fixed number of steps gives a tridiagonal T and a basis Q: vᵀ log(A) v is taken for ‖v‖² times
    the quadrature by T, and A⁻¹v in the gradient vᵀA⁻¹(∂A)v for ‖v‖·Q T⁻¹e₁. Both are exact once the steps are as many
    as A has distinct eigenvalues. Before that the bias has a sign that no number of probes takes away: by the sign of
    the derivatives of log x and 1/x the quadrature of log is too large and that of vᵀA⁻¹v too small, each by a factor
    that falls as ((√κ − 1)/(√κ + 1))^(2·steps). :class:`SpectralOracle` has no bias.

    Parameters
    ----------
    operator
        ``operator(theta) -> Operator``, positive definite.
    g
        The rest of the objective, ``g(theta) -> scalar``, differentiated exactly.
    probes, steps
        How many probes, and steps of Lanczos' method for each.

    Examples
    --------
    >>> import jax, jax.numpy as jnp
    >>> from thalweg.spectral import FunctionOperator
    >>> scaled = lambda theta: FunctionOperator(lambda t, v: t[:, None] * v, theta, dimension=3)
    >>> oracle = LanczosOracle(scaled, probes=4, steps=3)
    >>> out, _ = oracle.estimate(jnp.array([1.0, 2.0, 4.0]), (), jax.random.key(1))
    >>> bool(jnp.allclose(out.gradient, jnp.array([1.0, 0.5, 0.25]), atol=1e-4))
    True
    """

    functions: PyTree[Array]
    """The arrays of ``operator`` and ``g``, if they are modules."""
    frames: tuple[Any, Any] = eqx.field(static=True)
    """The rest of them."""
    probes: int = eqx.field(static=True)
    steps: int = eqx.field(static=True)

    def __init__(
        self,
        operator: Callable[[Any], Operator],
        *,
        g: Callable[[Any], Any] | None = None,
        probes: int = 16,
        steps: int = 20,
    ) -> None:
        self.functions, self.frames = eqx.partition((arguments.function("operator", operator), g), eqx.is_array)
        self.probes = arguments.whole("probes", probes)
        self.steps = arguments.whole("steps", steps)

    def estimate(self, x: PyTree[Array], state: PyTree, key: Key[Array, ""]) -> tuple[Out, PyTree]:
        """Estimate value and gradient at ``x``; work counts products with A."""

        operator, g = eqx.combine(self.functions, self.frames)

        def objective(theta: PyTree[Array]) -> tuple[Array, Array]:
            A = operator(theta)
            vectors = draw_probes("rademacher", key, A.dimension, self.probes, 1, A.dtype)
            value, solved = quadrature(frozen(A), vectors, min(self.steps, A.dimension))
            moving = jnp.sum(solved * A.mv(vectors)) / self.probes
            rest = 0.0 if g is None else g(theta)
            return moving + rest, value - jax.lax.stop_gradient(moving)

        (total, difference), gradient = jax.value_and_grad(objective, has_aux=True)(x)
        return Out(gradient, total + difference, jnp.asarray(float(self.probes * (self.steps + 1)))), state


def quadrature(operator: Operator, vectors: Float[Array, "d m"], steps: int) -> tuple[Array, Float[Array, "d m"]]:
    """The mean of vᵀ log(A) v over some vectors, and A⁻¹v for each, by so many steps of Lanczos' method."""
    lengths = jnp.sqrt(jnp.sum(vectors**2, axis=0))
    basis = jnp.zeros((steps, *vectors.shape), vectors.dtype).at[0].set(vectors / lengths[None])

    def step(carry: tuple[Array, Array, Array], turn: Array) -> tuple[tuple[Array, Array, Array], tuple[Array, Array]]:
        basis, current, beta = carry
        image = operator.mv(current)
        alpha = jnp.sum(current * image, axis=0)
        # Twice against all that went before: the plain recurrence loses orthogonality.
        for _ in range(2):
            image = image - jnp.einsum("kdm,km->dm", basis, jnp.einsum("kdm,dm->km", basis, image))
        size = jnp.sqrt(jnp.sum(image**2, axis=0))
        # An invariant subspace is exhausted where nothing but rounding is left.
        some = size > 10 * jnp.finfo(size.dtype).eps * (jnp.abs(alpha) + beta)
        following = jnp.where(some[None], image / jnp.where(some, size, 1)[None], 0)
        kept = basis.at[turn + 1].set(following, mode="drop")
        return (kept, following, jnp.where(some, size, 0)), (alpha, jnp.where(some, size, 0))

    begun = (basis, basis[0], jnp.zeros_like(lengths))
    (basis, _, _), (alphas, betas) = jax.lax.scan(step, begun, jnp.arange(steps))
    # Rows after an exhausted subspace are decoupled: 1 on their diagonal adds nothing.
    live = jnp.concatenate([jnp.ones((1, len(lengths)), bool), jnp.cumprod(betas[:-1] > 0, axis=0).astype(bool)])
    diagonal = jnp.where(live, alphas, 1)
    beside = betas[:-1] * live[1:].astype(betas.dtype)
    tridiagonal = jax.vmap(lambda a, b: jnp.diag(a) + jnp.diag(b, 1) + jnp.diag(b, -1), in_axes=1)(diagonal, beside)
    values, rotations = jnp.linalg.eigh(tridiagonal)
    first = rotations[:, 0]
    value = jnp.mean(lengths**2 * jnp.sum(first**2 * jnp.log(values), axis=1))
    weights = jnp.einsum("mki,mi->mk", rotations, first / values) * lengths[:, None]
    return value, jnp.einsum("kdm,mk->dm", basis, weights)

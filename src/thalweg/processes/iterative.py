"""Solves with the covariance of more rows than a factorisation can serve, and posterior samples made of them.

Conjugate gradients on A = K + diag(noise), for several right sides at once, preconditioned by the same matrix with K
replaced by its Nyström approximation from a few rows. The kernel matrix is never stored: its products are made of strips,
in float32, and added up in the precision of the vectors.

A sample of the posterior is f(x) = φ(x)ᵀw + k(x, X)·A⁻¹(y − Φw − ε), with random features φ, weights w and noise ε drawn
once (Wilson et al., 2020): one solve each, variances that are never negative, and no cost that grows with what is asked.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import cho_solve, solve_triangular
from jaxtyping import Array, Float, Key

from thalweg.kernels import Kernel

_STRIP_ENTRIES = 2**26
"""Entries of the kernel matrix that exist at a time."""

_NYSTROM_STRIP = 4096


class Solves(NamedTuple):
    """A⁻¹ times the right sides, how many products it took, and the largest relative residual at the end."""

    x: Float[Array, "n m"]
    products: int
    residual: float


class Nystrom(NamedTuple):
    """(U Uᵀ + D)⁻¹ by Woodbury's identity: a preconditioner for K + D."""

    scaled: Float[Array, "n r"]
    """D⁻¹U."""
    factor: Float[Array, "r r"]
    """The Cholesky factor of I + UᵀD⁻¹U."""
    noise: Float[Array, " n"]

    def __call__(self, right: Float[Array, "n m"]) -> Float[Array, "n m"]:
        """Apply it."""
        inner = cho_solve((self.factor, True), self.scaled.T @ right.astype(self.scaled.dtype))
        return right / self.noise[:, None] - (self.scaled @ inner).astype(right.dtype)


@jax.jit
def nystrom(
    kernel: Kernel, inputs: Float[Array, "n d"], noise: Float[Array, " n"], pivots: Float[Array, "r d"]
) -> Nystrom:
    """The preconditioner made of k(x, pivots), a strip of rows at a time.

    What is added up is added in the precision of the inputs, since I + UᵀD⁻¹U is as badly conditioned as A; what is
    stored is float32.
    """
    among = kernel(pivots)
    among = among + 1e-6 * jnp.mean(jnp.diag(among)) * jnp.eye(len(among), dtype=among.dtype)
    root = jnp.linalg.cholesky(among)

    def strip(total: Array, part: tuple[Array, Array]) -> tuple[Array, Array]:
        points, variances = part
        low_rank = solve_triangular(root, kernel(pivots, points), lower=True)
        scaled = low_rank / variances
        return total + scaled @ low_rank.T, scaled.T.astype(jnp.float32)

    count, size = len(inputs), min(_NYSTROM_STRIP, len(inputs))
    strips = -(-count // size)
    # Padded rows have so much noise that they add nothing.
    points = jnp.pad(inputs, ((0, strips * size - count), (0, 0)), mode="edge").reshape(strips, size, -1)
    variances = jnp.pad(noise, (0, strips * size - count), constant_values=jnp.inf).reshape(strips, size)
    gram, scaled = jax.lax.scan(strip, jnp.zeros_like(among), (points, variances))
    factor = jnp.linalg.cholesky(gram + jnp.eye(len(gram), dtype=gram.dtype))
    return Nystrom(scaled.reshape(strips * size, -1)[:count], factor.astype(jnp.float32), noise)


def product(kernel: Kernel, left: Float[Array, "m d"], right: Float[Array, "n d"], vectors: Float[Array, "n t"]) -> Array:
    """k(left, right)·vectors, a strip of rows at a time, in the precision of the points."""
    count = len(left)
    strip = int(np.clip(_STRIP_ENTRIES // len(right), 16, count))
    strips = -(-count // strip)
    rows = jnp.pad(left, ((0, strips * strip - count), (0, 0))).reshape(strips, strip, -1)
    vectors = vectors.astype(left.dtype)
    found = jax.lax.map(lambda part: jnp.matmul(kernel(part, right), vectors, precision="highest"), rows)
    return found.reshape(strips * strip, -1)[:count]


class _State(NamedTuple):
    x: Array
    residual: Array
    direction: Array
    energy: Array
    lengths: Array
    products: Array


@partial(jax.jit, static_argnames="max_iter")
def _conjugate_gradients(
    kernel: Kernel, inputs: Array, noise: Array, precondition: Nystrom, right: Array, start: Array, tol: Array, max_iter: int
) -> _State:
    apply = lambda v: product(kernel, inputs, inputs, v).astype(v.dtype) + noise[:, None].astype(v.dtype) * v
    lengths = lambda v: jnp.sqrt(jnp.sum(v**2, axis=0))
    goal = tol * jnp.maximum(lengths(right), jnp.finfo(right.dtype).tiny)

    def begin(x: Array) -> _State:
        residual = right - apply(x)
        z = precondition(residual)
        return _State(x, residual, z, jnp.sum(residual * z, axis=0), lengths(residual), jnp.asarray(1))

    def go_on(state: _State) -> Array:
        return jnp.any(state.lengths > goal) & (state.products < max_iter)

    def step(state: _State) -> _State:
        image = apply(state.direction)
        slope = jnp.sum(state.direction * image, axis=0)
        # A column that has ended stands still: rounding would take it away again.
        live = (state.lengths > goal) & (slope > 0)
        size = jnp.where(live, state.energy / jnp.where(slope > 0, slope, 1), 0)
        x, residual = state.x + size * state.direction, state.residual - size * image
        z = precondition(residual)
        energy = jnp.sum(residual * z, axis=0)
        ratio = jnp.where(live, energy / jnp.where(state.energy > 0, state.energy, 1), 0)
        return _State(x, residual, z + ratio * state.direction, energy, lengths(residual), state.products + 1)

    return jax.lax.while_loop(go_on, step, begin(start))


def solve(
    kernel: Kernel,
    inputs: Float[Array, "n d"],
    noise: Float[Array, " n"],
    right: Float[Array, "n m"],
    key: Key[Array, ""],
    rank: int,
    tol: float,
    max_iter: int,
    start: Float[Array, "n m"] | None = None,
) -> Solves:
    """Solve A x = right, each column to a residual of ``tol`` times its length."""
    single = lambda tree: jax.tree.map(lambda leaf: leaf.astype(jnp.float32), tree)
    chosen = jax.random.choice(key, len(inputs), (min(rank, len(inputs)),), replace=False)
    preconditioner = nystrom(kernel, inputs, noise, inputs[chosen])
    begun = jnp.zeros_like(right) if start is None else start
    state = _conjugate_gradients(single(kernel), single(inputs), noise, preconditioner, right, begun, tol, max_iter)
    worst = jnp.max(state.lengths / jnp.maximum(jnp.sqrt(jnp.sum(right**2, axis=0)), jnp.finfo(right.dtype).tiny))
    return Solves(state.x, int(state.products), float(worst))

"""Solves with the covariance of more rows than a factorisation can serve.

Conjugate gradients on A = K + diag(noise), for several right sides at once, preconditioned by the same matrix with K
replaced by its Nyström approximation from a few rows. The kernel matrix is never stored: its products are made of
strips, in float32, and added up in the precision of the vectors.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import cho_solve, solve_triangular
from jaxtyping import Array, Float, Key

from thalweg.compiling import quick_jit
from thalweg.kernels import Kernel
from thalweg.linalg import log_quadrature
from thalweg.processes.exact import few

_NYSTROM_STRIP = 4096

_TOGETHER = {True: 1e8, False: 2e11}
"""Entries of the kernel matrix that a CPU, or an accelerator, computes in about half a second."""

_SINGLE = jnp.float32


class Solves(NamedTuple):
    """A⁻¹ times the right sides, how many products it took, and the largest relative residual at the end."""

    x: Float[Array, "n m"]
    products: int
    residual: float
    interrupted: bool
    sizes: np.ndarray
    """Of each step and column; 0 where a column had ended."""
    ratios: np.ndarray

    def log_quadratures(self, columns: slice) -> np.ndarray:
        """zᵀ log(P^(−½) A P^(−½)) z / zᵀz for z = P^(−½) r of right sides r, from the steps that solved for them.

        Conjugate gradients are Lanczos' method: their coefficients are those of its tridiagonal matrix (Saad, 2003,
        section 6.7.3). Only for solves that started from 0.
        """
        return np.array(
            [log_quadrature(*one) for one in zip(self.sizes.T[columns], self.ratios.T[columns], strict=True)]
        )


class NystromInverse(NamedTuple):
    """P = U Uᵀ + D and its inverse by Woodbury's identity: a preconditioner for K + D.

    U = k(x, pivots) R⁻ᵀ with R Rᵀ = k(pivots, pivots) is made anew for each product, a strip of rows at a time: against
    a product with K that is next to nothing, and of a million rows it would take gigabytes. It has the precision of the
    points: where U Uᵀ is large against D, the inverse is a difference of numbers that are nearly equal.
    """

    kernel: Kernel
    points: Float[Array, "n d"]
    pivots: Float[Array, "r d"]
    root: Float[Array, "r r"]
    """R."""
    factor: Float[Array, "r r"]
    """The Cholesky factor of I + UᵀD⁻¹U."""
    noise: Float[Array, " n"]

    def __call__(self, right: Float[Array, "n m"]) -> Float[Array, "n m"]:
        """P⁻¹ times some columns."""
        scaled = right / self.noise[:, None]
        inner, _ = jax.lax.scan(
            lambda total, part: (total + self.kernel(self.pivots, part[0]) @ part[1], None),
            jnp.zeros((len(self.pivots), right.shape[1]), right.dtype),
            (cut(self.points), cut(scaled)),
        )
        inner = cho_solve((self.factor, True), solve_triangular(self.root, inner, lower=True))
        return scaled - self._times(inner) / self.noise[:, None]

    def _times(self, inner: Float[Array, "r m"]) -> Float[Array, "n m"]:
        """U times some columns."""
        inner = solve_triangular(self.root, inner, lower=True, trans=1)
        found = jax.lax.map(lambda part: self.kernel(part, self.pivots) @ inner, cut(self.points))
        return found.reshape(-1, inner.shape[1])[: len(self.noise)]

    def draw(self, key: Key[Array, ""], count: int) -> Float[Array, "n m"]:
        """Columns of N(0, P)."""
        low, own = jax.random.split(key)
        smooth = self._times(jax.random.normal(low, (len(self.factor), count), self.noise.dtype))
        rough = jax.random.normal(own, (len(self.noise), count), self.noise.dtype)
        return smooth + jnp.sqrt(self.noise)[:, None] * rough

    def log_determinant(self) -> Float[Array, ""]:
        """log det P."""
        return jnp.sum(jnp.log(self.noise)) + 2 * jnp.sum(jnp.log(jnp.diag(self.factor)))


def cut(array: Float[Array, "n m"], size: int = _NYSTROM_STRIP) -> Float[Array, "s k m"]:
    """Strips of so many rows, the last of them filled up with zeros."""
    size = min(size, len(array))
    return jnp.pad(array, ((0, -len(array) % size), (0, 0))).reshape(-1, size, array.shape[1])


@quick_jit(few, static_argnames="rank")
def nystrom(
    kernel: Kernel, inputs: Float[Array, "n d"], noise: Float[Array, " n"], key: Key[Array, ""], rank: int
) -> NystromInverse:
    """The preconditioner made of k(x, pivots), a strip of rows at a time, with rows taken at random as pivots."""
    pivots = inputs[jax.random.choice(key, len(inputs), (min(rank, len(inputs)),), replace=False)]
    among = kernel(pivots)
    among = among + 1e-6 * jnp.mean(jnp.diag(among)) * jnp.eye(len(among), dtype=among.dtype)
    root = jnp.linalg.cholesky(among)

    def strip(total: Array, part: tuple[Array, Array]) -> tuple[Array, None]:
        points, precisions = part
        low_rank = solve_triangular(root, kernel(pivots, points), lower=True)
        return total + (precisions.T * low_rank) @ low_rank.T, None

    gram, _ = jax.lax.scan(strip, jnp.eye(len(among), dtype=among.dtype), (cut(inputs), cut(1 / noise[:, None])))
    return NystromInverse(kernel, inputs, pivots, root, jnp.linalg.cholesky(gram), noise)


def strip_rows(count: int, width: int) -> int:
    """Of how many rows the strips are that a matrix of ``count`` rows and ``width`` columns is made in."""
    entries = 2**26 if jax.default_backend() == "cpu" else 2**28
    return int(np.clip(entries // width, 16, count))


def product(
    kernel: Kernel, left: Float[Array, "m d"], right: Float[Array, "n d"], vectors: Float[Array, "n t"]
) -> Array:
    """k(left, right)·vectors, a strip of rows at a time, in the precision of the points."""
    rows, vectors = cut(left, strip_rows(len(left), len(right))), vectors.astype(left.dtype)
    # On a GPU three products of halves are as exact as one in float32, whose sums are what rounds, and faster.
    halves = left.dtype == _SINGLE and jax.default_backend() == "gpu"
    precision = jax.lax.DotAlgorithmPreset.BF16_BF16_F32_X3 if halves else "highest"
    found = jax.lax.map(lambda part: jnp.matmul(kernel(part, right), vectors, precision=precision), rows)
    return found.reshape(-1, vectors.shape[1])[: len(left)]


class _State(NamedTuple):
    x: Array
    residual: Array
    direction: Array
    energy: Array
    lengths: Array
    products: Array
    sizes: Array
    ratios: Array


class _System(NamedTuple):
    """A x = right, and how short a residual is to be."""

    kernel: Kernel
    inputs: Array
    precondition: NystromInverse
    right: Array
    goal: Array

    def apply(self, vectors: Array) -> Array:
        smooth = product(self.kernel, self.inputs, self.inputs, vectors).astype(vectors.dtype)
        return smooth + self.precondition.noise[:, None] * vectors

    def live(self, state: _State) -> Array:
        return state.lengths > self.goal


def _lengths(vectors: Array) -> Array:
    return jnp.sqrt(jnp.sum(vectors**2, axis=0))


@quick_jit(few, static_argnames="max_iter")
def _begin(system: _System, x: Array, max_iter: int) -> _State:
    residual = system.right - system.apply(x)
    z = system.precondition(residual)
    none = jnp.zeros((max_iter, x.shape[1]), x.dtype)
    energy = jnp.sum(residual * z, axis=0)
    return _State(x, residual, z, energy, _lengths(residual), jnp.asarray(1), none, none)


@quick_jit(few, donate_argnums=1)
def _advance(system: _System, state: _State, end: Array) -> _State:
    """Steps of conjugate gradients until all columns have come to their goal or ``end`` products are made."""

    def step(state: _State) -> _State:
        image = system.apply(state.direction)
        slope = jnp.sum(state.direction * image, axis=0)
        # A column that has ended stands still: rounding would take it away again.
        live = system.live(state) & (slope > 0)
        size = jnp.where(live, state.energy / jnp.where(slope > 0, slope, 1), 0)
        x, residual = state.x + size[None] * state.direction, state.residual - size[None] * image
        z = system.precondition(residual)
        energy = jnp.sum(residual * z, axis=0)
        ratio = jnp.where(live, energy / jnp.where(state.energy > 0, state.energy, 1), 0)
        direction = z + ratio[None] * state.direction
        sizes, ratios = (
            kept.at[state.products - 1].set(new) for kept, new in ((state.sizes, size), (state.ratios, ratio))
        )
        return _State(x, residual, direction, energy, _lengths(residual), state.products + 1, sizes, ratios)

    go_on = lambda state: jnp.any(system.live(state)) & (state.products < end)
    return jax.lax.while_loop(go_on, step, state)


def solve(
    kernel: Kernel,
    inputs: Float[Array, "n d"],
    preconditioner: NystromInverse,
    right: Float[Array, "n m"],
    tol: float,
    max_iter: int,
    start: Float[Array, "n m"] | None = None,
) -> Solves:
    """Solve A x = right, each column to a residual of ``tol`` times its length; the noise is the preconditioner's.

    The host looks up now and then: after an interrupt, x is as far as it came.
    """
    single = lambda tree: jax.tree.map(lambda leaf: leaf.astype(_SINGLE), tree)
    lengths = jnp.maximum(_lengths(right), jnp.finfo(right.dtype).tiny)
    system = _System(single(kernel), single(inputs), preconditioner, right, tol * lengths)
    state = _begin(system, jnp.zeros_like(right) if start is None else start, max_iter)
    together = max(1, int(_TOGETHER[jax.default_backend() == "cpu"] / len(inputs) ** 2))
    interrupted = False
    try:
        while bool(jnp.any(system.live(state))) and int(state.products) < max_iter:
            state = _advance(system, state, min(int(state.products) + together, max_iter))
    except KeyboardInterrupt:
        if state.x.is_deleted():  # given to a step that has not come back
            raise
        interrupted = True
    worst = float(jnp.max(state.lengths / lengths))
    return Solves(state.x, int(state.products), worst, interrupted, np.asarray(state.sizes), np.asarray(state.ratios))


@quick_jit(few)
def kernel_slope(
    kernel: Kernel, inputs: Float[Array, "n d"], left: Float[Array, "n k"], right: Float[Array, "n k"]
) -> Kernel:
    """The derivative of Σ_k left_kᵀ K right_k in the kernel's parameters, a strip of K at a time, in float32."""
    size = strip_rows(len(inputs), len(inputs))
    single = lambda tree: jax.tree.map(lambda leaf: leaf.astype(_SINGLE), tree)
    points, held, other = single(inputs), single(kernel), single(right)

    def strip(total: Kernel, part: tuple[Array, Array]) -> tuple[Kernel, None]:
        rows, weights = part
        pull = jnp.matmul(weights, other.T, precision="highest")
        found = jax.vjp(lambda kernel: kernel(rows, points), held)[1](pull)[0]
        return jax.tree.map(lambda sum_, new: sum_ + new.astype(sum_.dtype), total, found), None

    return jax.lax.scan(strip, jax.tree.map(jnp.zeros_like, kernel), (cut(points, size), cut(single(left), size)))[0]

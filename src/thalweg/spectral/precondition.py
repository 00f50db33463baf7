"""Preconditioners for log and 1/x: log det A = log det P + tr log(P^(−½) A P^(−½)).

For A = K + σ²I take P = LLᵀ + σ²I with LLᵀ ≼ K: then every eigenvalue of P^(−½)AP^(−½) is at least 1, and all but
a few are close to it. Two constructions of L have LLᵀ ≼ K: the pivoted Cholesky factorisation, which needs the
diagonal and a few columns of K only, and Nyström's from a random sketch, which needs products only. Both read

    L(θ) = C(θ) chol(ΩᵀC(θ))^(−ᵀ),   C = K(θ)Ω,

with Ω a choice of columns or a Gaussian block; Ω is frozen in the plan, so that P(θ) can be differentiated.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key, PyTree

from thalweg.spectral.operators import Operator, diagonal


class Preconditioner(eqx.Module):
    """A symmetric positive definite P with a cheap P^(−½), log det P and tr P⁻¹."""

    log_determinant: eqx.AbstractVar[Array]
    inverse_trace: eqx.AbstractVar[Array]

    # Whether P(θ) is known, so that it serves as a control variate for the gradient.
    parametric: eqx.AbstractClassVar[bool]

    # Known by identity, as a function is: what is an option must be hashable, and this holds arrays.
    __hash__ = object.__hash__
    __eq__ = object.__eq__

    def inverse_root(self, block: Array) -> Array:
        """P^(−½) applied to a block of vectors."""
        raise NotImplementedError

    def control(self, theta: PyTree, data: PyTree, vectors: Array, power: int) -> Array:
        """tr(P⁻ᵖ P(θ)) − mean_i x_iᵀ P(θ) x_i for x_i of covariance P⁻ᵖ, p = ``power``: mean zero whatever θ."""
        raise NotImplementedError


class LowRank(Preconditioner):
    """P = LLᵀ + σ²I through the eigenvectors of LLᵀ: P^(−½) costs O(dk).

    LLᵀ ≼ K, so that in exact arithmetic 1 bounds the preconditioned spectrum from below.
    """

    basis: Float[Array, "d k"]
    eigenvalues: Float[Array, " k"]
    noise: Float[Array, ""]
    sketch: Array
    shift: Float[Array, ""] | None
    log_determinant: Float[Array, ""]
    inverse_trace: Float[Array, ""]
    build: Callable[..., Any] = eqx.field(static=True)
    parametric = True

    def __init__(
        self, build: Callable[..., Any], theta: PyTree, data: PyTree, sketch: Array, shift: Array | None
    ) -> None:
        self.build, self.sketch, self.shift = build, sketch, shift
        parts = _low_rank_parts(build, theta, data, sketch, shift)
        self.basis, self.eigenvalues, self.noise, self.log_determinant, self.inverse_trace = parts

    def inverse_root(self, block: Array) -> Array:
        """P^(−½) V = σ⁻¹ (V − U (1 − σ/√(s² + σ²)) UᵀV)."""
        root = jnp.sqrt(self.noise)
        shrink = 1.0 - root / jnp.sqrt(self.eigenvalues + self.noise)
        return (block - self.basis @ (shrink[:, None] * (self.basis.T @ block))) / root

    def control(self, theta: PyTree, data: PyTree, vectors: Array, power: int) -> Array:
        """See :meth:`Preconditioner.control`."""
        factor, noise = self.build(theta, data, self.sketch, self.shift)
        whitened = factor
        for _ in range(power):
            whitened = self.inverse_root(whitened)
        size, rank = factor.shape
        trace = (size - rank) / self.noise**power + jnp.sum((self.eigenvalues + self.noise) ** -float(power))
        exact = jnp.sum(whitened**2) + noise * trace
        sampled = jnp.sum((factor.T @ vectors) ** 2) + noise * jnp.sum(vectors**2)
        return exact - sampled / vectors.shape[1]


@eqx.filter_jit
def _low_rank_parts(
    build: Callable[..., Any], theta: PyTree, data: PyTree, sketch: Array, shift: Array | None
) -> tuple:
    factor, noise = build(theta, data, sketch, shift)
    size, rank = factor.shape
    # The Gram matrix's eigenvectors would lose half the digits of the small ones: L is tall, its SVD is cheap.
    basis, singular, _ = jnp.linalg.svd(factor, full_matrices=False)
    eigenvalues = singular**2
    log_determinant = (size - rank) * jnp.log(noise) + jnp.sum(jnp.log(eigenvalues + noise))
    inverse_trace = (size - rank) / noise + jnp.sum(1.0 / (eigenvalues + noise))
    return basis, eigenvalues, noise, log_determinant, inverse_trace


class DiagonalScaling(Preconditioner):
    """P = diag(A)."""

    scale: Float[Array, " d"]
    log_determinant: Float[Array, ""]
    inverse_trace: Float[Array, ""]
    build: Callable[..., Any] = eqx.field(static=True)
    parametric = True

    def __init__(self, build: Callable[..., Any], theta: PyTree, data: PyTree) -> None:
        self.build = build
        self.scale = build(theta, data)
        if not bool(jnp.all(self.scale > 0)):
            raise ValueError(
                f"A must be positive definite for a diagonal preconditioner: its diagonal has the entry "
                f"{float(jnp.min(self.scale)):.4g}"
            )
        self.log_determinant = jnp.sum(jnp.log(self.scale))
        self.inverse_trace = jnp.sum(1.0 / self.scale)

    def inverse_root(self, block: Array) -> Array:
        """V divided by the roots of the diagonal."""
        return block / jnp.sqrt(self.scale)[:, None]

    def control(self, theta: PyTree, data: PyTree, vectors: Array, power: int) -> Array:
        """See :meth:`Preconditioner.control`."""
        moving = self.build(theta, data)
        sampled = jnp.sum(moving[:, None] * vectors**2) / vectors.shape[1]
        return jnp.sum(moving * self.scale ** -float(power)) - sampled


class Own(Preconditioner):
    """The user's preconditioner.

    Parameters
    ----------
    inverse_root
        ``inverse_root(vectors) -> P^(−½) vectors``, symmetric.
    log_determinant
        log det P; needed for ``logdet``.
    inverse_trace
        tr P⁻¹; needed for ``trace_inverse``.
    """

    log_determinant: Array
    inverse_trace: Array
    function: Callable[[Any], Any] = eqx.field(static=True)
    parametric = False

    def __init__(
        self,
        inverse_root: Callable[[Any], Any],
        log_determinant: Any = np.nan,
        inverse_trace: Any = np.nan,
    ) -> None:
        self.function = inverse_root
        self.log_determinant = jnp.asarray(log_determinant)
        self.inverse_trace = jnp.asarray(inverse_trace)

    def inverse_root(self, block: Array) -> Array:
        """P^(−½) V, as given."""
        return self.function(block)


class PivotedCholesky(eqx.Module):
    """Ask for a pivoted Cholesky preconditioner.

    Parameters
    ----------
    rank
        The rank k, or None to choose it by the cost model.
    noise
        σ² with A − σ²I still positive semi-definite. A kernel operator knows its own; for a dense array the default is
        the lower end of its spectrum, found by Lanczos' method, which costs more products than all the rest.
    """

    rank: int | None = None
    noise: float | None = None


class Nystrom(eqx.Module):
    """Ask for a randomised Nyström preconditioner: like :class:`PivotedCholesky`, from products alone.

    Parameters
    ----------
    rank
        The number of random vectors in the sketch, or None to choose it by the cost model.
    noise
        σ² with A − σ²I positive semi-definite; by default the lower end of the spectrum, found by Lanczos' method.
    """

    rank: int | None = None
    noise: float | None = None


class Diagonal(eqx.Module):
    """Ask for P = diag(A)."""


class _Build:
    """Base of the functions θ ↦ L(θ), σ²(θ): compared by what they hold, so that they are static in compiled code.

    σ² is the ``shift`` they are called with, or else the kernel operator's own.
    """

    def __init__(self, operator: Operator) -> None:
        self.multiply: Any = operator.multiply
        self.kind = operator.kind

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash((type(self), self.multiply, self.kind))

    def noise(self, theta: Any, shift: Array | None, dtype: Any) -> Array:
        """σ²(θ)."""
        return jnp.asarray(self.multiply.noise(theta) if shift is None else shift, dtype)

    def factor(self, columns: Array, core: Array) -> Array:
        """L = C chol(ΩᵀC)^(−ᵀ), with a breath of jitter against rounding (it only makes LLᵀ smaller)."""
        core = 0.5 * (core + core.T)
        eps = jnp.finfo(core.dtype).eps
        core = core + 4 * eps * jnp.trace(core) * jnp.eye(core.shape[0], dtype=core.dtype)
        root = jnp.linalg.cholesky(core)
        return jax.scipy.linalg.solve_triangular(root, columns.T, lower=True).T


class ColumnBuild(_Build):
    """L(θ) from chosen columns of K(θ)."""

    def __call__(self, theta: Any, data: Any, pivots: Array, shift: Array | None) -> tuple[Array, Array]:
        """L(θ) and σ²(θ)."""
        if self.kind == "kernel":
            columns = self.multiply.kernel(theta, data, data[pivots])
            return self.factor(columns, columns[pivots]), self.noise(theta, shift, columns.dtype)
        noise = self.noise(theta, shift, theta.dtype)
        columns = theta[pivots].T.at[pivots, jnp.arange(pivots.size)].add(-noise)
        return self.factor(columns, columns[pivots]), noise


class SketchBuild(_Build):
    """L(θ) from products of K(θ) with a random block."""

    def __call__(self, theta: Any, data: Any, sketch: Array, shift: Array | None) -> tuple[Array, Array]:
        """L(θ) and σ²(θ)."""
        noise = self.noise(theta, shift, sketch.dtype)
        columns = self.multiply(theta, data, sketch) - noise * sketch
        return self.factor(columns, sketch.T @ columns), noise


class DiagonalBuild:
    """θ ↦ diag A(θ)."""

    def __init__(self, operator: Operator) -> None:
        self.multiply, self.kind, self.dimension = operator.multiply, operator.kind, operator.dimension

    def __call__(self, theta: Any, data: Any) -> Array:
        """The diagonal."""
        known = diagonal(Operator(self.multiply, theta, dimension=self.dimension, data=data, kind=self.kind), theta)
        if known is None:
            raise ValueError("a diagonal preconditioner needs the entries of A: a dense or sparse matrix, or a kernel")
        return known

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash((self.multiply, self.kind, self.dimension))


@eqx.filter_jit
def pivots_of(operator: Operator, noise: Array, enough: Array, rank: int) -> tuple[Array, Array, Array]:
    """Choose pivots greedily: the largest diagonal entry of what is left of K.

    Returns
    -------
    pivots, traces, factor
        The pivots (−1 where there are fewer than ``rank``); the trace of what is left after each; and the factor
        itself. The factorisation ends at a pivot that is down to rounding, or when the trace of what is left is
        at most ``enough``.
    """
    theta, data = operator.theta, operator.data
    size = operator.dimension
    if operator.kind == "kernel":
        column = lambda p: operator.multiply.kernel(theta, data, data[p][None])[:, 0]
    else:
        # A row is a column, and lies in one piece.
        column = lambda p: theta[p].at[p].add(-noise)
    entries = diagonal(operator, theta)
    assert entries is not None, "only dense and kernel operators come here"
    left = entries - noise
    floor = 8 * jnp.finfo(left.dtype).eps * jnp.max(left)

    def step(carry: tuple) -> tuple:
        index, factor, left, pivots, traces = carry
        pivot = jnp.argmax(left)
        new = (column(pivot) - factor @ factor[pivot]) / jnp.sqrt(left[pivot])
        left = jnp.maximum(left - new**2, 0.0).at[pivot].set(0.0)
        return (
            index + 1,
            factor.at[:, index].set(new),
            left,
            pivots.at[index].set(pivot),
            traces.at[index].set(jnp.sum(left)),
        )

    def unfinished(carry: tuple) -> Array:
        index, _, left, _, _ = carry
        return (index < rank) & (jnp.max(left) > floor) & (jnp.sum(left) > enough)

    start = (jnp.asarray(0), jnp.zeros((size, rank), left.dtype), left, jnp.full(rank, -1), jnp.zeros(rank, left.dtype))
    _, factor, _, pivots, traces = jax.lax.while_loop(unfinished, step, start)
    return pivots, traces, factor


def choose_rank(
    operator: Operator,
    noise: float,
    factor: Float[Array, "d k"],
    traces: np.ndarray,
    candidates: list[int],
    key: Key[Array, ""],
    probes: int,
) -> int:
    """Choose among ranks by the predicted time of everything that follows.

    With R_k = K − L_kL_kᵀ the preconditioned spectrum reaches to 1 + λ_max(R_k)/σ². One block product KΩ serves all
    candidates: ‖R_kΩ‖ estimates ‖R_k‖_F, and tr R_k is known; λ_max lies between ‖R‖_F²/tr R and ‖R‖_F, and their
    geometric mean is taken. Work is counted in multiplications: products with A (d² each), applications of P^(−½)
    (4dk for each product), and the factorisation itself (3dk² with its SVD).
    """
    size = operator.dimension
    omega = jax.random.normal(key, (size, 4), operator.dtype)
    whole = operator @ omega - noise * omega
    costs = []
    for rank in candidates:
        part = factor[:, :rank]
        rest = whole - part @ (part.T @ omega)
        frobenius = float(jnp.sqrt(jnp.sum(rest**2) / 4))
        trace = max(float(traces[rank - 1]), 1e-300)
        largest = min(np.sqrt(frobenius * min(frobenius**2 / trace, frobenius)), trace)
        kappa = 1.0 + largest / noise
        degree = 4.0 + 2.5 * np.sqrt(kappa)
        # Noise that is left must be averaged away by probes: bring it to the scale of a thousandth of d.
        spread = 2.0 * min(frobenius / noise, np.sqrt(size) * np.log(kappa)) ** 2
        needed = max(float(probes), spread / (1e-3 * size) ** 2)
        costs.append(0.5 * degree * needed * (size**2 + 4.0 * size * rank) + 6.0 * size * rank**2)
    return candidates[int(np.argmin(costs))]

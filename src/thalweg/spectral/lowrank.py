"""Low-rank preconditioners: for A = K + σ²I take P = LLᵀ + σ²I with LLᵀ ≼ K.

Then every eigenvalue of P^(−½)AP^(−½) is at least 1, and all but a few are close to it. Two constructions of L have
LLᵀ ≼ K: the pivoted Cholesky factorisation, which needs the diagonal and a few columns of K only, and Nyström's from a
random sketch, which needs products only. Both read

    L(θ) = C(θ) chol(ΩᵀC(θ))^(−ᵀ),   C = K(θ)Ω,

with Ω a choice of columns or a Gaussian block; Ω is frozen in the plan, so that P(θ) can be differentiated.
"""

from abc import abstractmethod
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key

from thalweg import arguments
from thalweg.spectral.bounds import spectrum
from thalweg.spectral.operators import Operator, ShiftedOperator
from thalweg.spectral.precondition import Preconditioner, Request

_LARGEST_RANK = 512


class LowRank(Preconditioner):
    """P = LLᵀ + σ²I through the eigenvectors of LLᵀ: P^(−½) costs O(dk).

    LLᵀ ≼ K, so that in exact arithmetic 1 bounds the preconditioned spectrum from below. ``shift`` is σ² where the
    operator does not know it itself.
    """

    sample: "_Columns | _Sketch"
    shift: Float[Array, ""] | None
    products: np.ndarray
    basis: Float[Array, "d k"]
    eigenvalues: Float[Array, " k"]
    noise: Float[Array, ""]
    log_determinant: Float[Array, ""]
    inverse_trace: Float[Array, ""]

    def __init__(self, operator: Operator, sample: Any, shift: Array | None, products: int) -> None:
        self.sample, self.shift, self.products = sample, shift, np.asarray(products)
        parts = _low_rank_parts(operator, sample, shift)
        self.basis, self.eigenvalues, self.noise, self.log_determinant, self.inverse_trace = parts

    def inverse_root(self, block: Array) -> Array:
        """P^(−½) V = σ⁻¹ (V − U (1 − σ/√(s² + σ²)) UᵀV)."""
        root = jnp.sqrt(self.noise)
        shrink = 1.0 - root / jnp.sqrt(self.eigenvalues + self.noise)
        return (block - self.basis @ (shrink[:, None] * (self.basis.T @ block))) / root

    def control(self, operator: Operator, vectors: Array, power: int) -> Array:
        """See :meth:`Preconditioner.control`."""
        factor, noise = _factor(operator, self.sample, self.shift)
        whitened = factor
        for _ in range(power):
            whitened = self.inverse_root(whitened)
        size, rank = factor.shape
        trace = (size - rank) / self.noise**power + jnp.sum((self.eigenvalues + self.noise) ** -float(power))
        exact = jnp.sum(whitened**2) + noise * trace
        sampled = jnp.sum((factor.T @ vectors) ** 2) + noise * jnp.sum(vectors**2)
        return exact - sampled / vectors.shape[1]

    def least(self) -> float | None:
        """1 less what rounding can do: P ≼ A holds to a few eps·κ(A)."""
        kappa = 1.0 + float(jnp.max(self.eigenvalues) / self.noise)
        lost = 8.0 * float(jnp.finfo(self.basis.dtype).eps) * kappa
        if lost > 0.5:
            raise ValueError(
                f"A is too ill-conditioned for {self.basis.dtype} with this preconditioner: κ is about {kappa:.2g}. "
                "Use float64, or a larger noise."
            )
        return 1.0 - max(lost, 1e-6)


class _Columns(eqx.Module):
    """Ω a choice of columns."""

    pivots: Int[Array, " k"]

    def __call__(self, operator: Operator) -> tuple[Array, Array]:
        """KΩ and ΩᵀKΩ."""
        columns = operator.columns(self.pivots)
        return columns, columns[self.pivots]


class _Sketch(eqx.Module):
    """Ω a random block."""

    block: Float[Array, "d k"]

    def __call__(self, operator: Operator) -> tuple[Array, Array]:
        """KΩ and ΩᵀKΩ."""
        product = operator.mv(self.block)
        return product, self.block.T @ product


def _factor(operator: Operator, sample: Any, shift: Array | None) -> tuple[Array, Array]:
    """L = C chol(ΩᵀC)^(−ᵀ) and σ², with a breath of jitter against rounding (it only makes LLᵀ smaller)."""
    remainder, noise = _without_noise(operator, shift)
    columns, core = sample(remainder)
    core = 0.5 * (core + core.T)
    core = core + 4 * jnp.finfo(core.dtype).eps * jnp.trace(core) * jnp.eye(core.shape[0], dtype=core.dtype)
    root = jnp.linalg.cholesky(core)
    return jax.scipy.linalg.solve_triangular(root, columns.T, lower=True).T, noise


def _without_noise(operator: Operator, shift: Array | None) -> tuple[Operator, Array]:
    """K and σ² of A = K + σ²I: by the given shift, or as the operator knows them."""
    if shift is not None:
        return ShiftedOperator(operator, -shift), shift
    remainder, noise = operator.split()
    assert noise is not None, "without a shift the operator knows its noise"
    return remainder, noise


@eqx.filter_jit
def _low_rank_parts(operator: Operator, sample: Any, shift: Array | None) -> tuple:
    factor, noise = _factor(operator, sample, shift)
    size, rank = factor.shape
    # The Gram matrix's eigenvectors would lose half the digits of the small ones: L is tall, its SVD is cheap.
    basis, singular, _ = jnp.linalg.svd(factor, full_matrices=False)
    eigenvalues = singular**2
    log_determinant = (size - rank) * jnp.log(noise) + jnp.sum(jnp.log(eigenvalues + noise))
    inverse_trace = (size - rank) / noise + jnp.sum(1.0 / (eigenvalues + noise))
    return basis, eigenvalues, noise, log_determinant, inverse_trace


class _LowRankRequest(Request):
    rank: int | None = None
    noise: float | None = None

    def __check_init__(self) -> None:
        name = type(self).__name__
        if self.rank is not None:
            arguments.whole(f"rank of {name}", self.rank)
        if self.noise is not None:
            arguments.number(f"noise of {name}", self.noise, above=0)

    def build(self, operator: Operator, key: Key[Array, ""], probes: int) -> Preconditioner:
        """Find σ², then Ω."""
        bounds_key, sketch_key, rank_key = jax.random.split(key, 3)
        if self.rank is not None:
            arguments.whole(f"rank of {type(self).__name__}", self.rank, most=operator.dimension)
        level, products = self.noise, 0
        own = None if level is not None else operator.split()[1]
        if own is not None:
            level = float(arguments.number("noise of the operator", own, above=0))
        elif level is None:
            found = spectrum(operator, None, bounds_key, positive=True)
            level, products = found.lower, found.products
        shift = None if own is not None else jnp.asarray(level, operator.dtype)
        sample, spent = self._sample(operator, shift, float(level), sketch_key, rank_key, probes)
        return LowRank(operator, sample, shift, products + spent)

    @abstractmethod
    def _sample(
        self, operator: Operator, shift: Array | None, level: float, key: Array, rank_key: Array, probes: int
    ) -> tuple[Any, int]:
        """Ω, and the products it took."""


class PivotedCholesky(_LowRankRequest):
    """Ask for a pivoted Cholesky preconditioner.

    Parameters
    ----------
    rank
        The rank k, or None to choose it by the cost model.
    noise
        σ² with A − σ²I still positive semi-definite. An operator of the form K + σ²I knows its own; for others the
        default is the lower end of the spectrum, found by Lanczos' method, which costs more products than all the rest.

    Examples
    --------
    >>> PivotedCholesky(rank=0)
    Traceback (most recent call last):
        ...
    ValueError: rank of PivotedCholesky must be a whole number of at least 1, found 0
    """

    def _sample(
        self, operator: Operator, shift: Array | None, level: float, key: Array, rank_key: Array, probes: int
    ) -> tuple[Any, int]:
        remainder, _ = _without_noise(operator, shift)
        size = operator.dimension
        # A remainder so small that its share of log det A is below a hundredth of d needs no more pivots.
        enough = jnp.asarray(1e-2 * size * level if self.rank is None else 0.0, operator.dtype)
        # Grow by doubling: a step of the factorisation costs as much as its table is wide.
        largest = min(_LARGEST_RANK, size)
        capacities = [rank for rank in (_LARGEST_RANK // 4, _LARGEST_RANK // 2) if rank < largest] + [largest]
        for rank in [self.rank] if self.rank else capacities:
            found, traces, factor = _pivots(remainder, enough, rank)
            pivots = np.asarray(found)
            full = int(np.sum(pivots >= 0))
            if full < rank:
                break
        if self.rank is not None:
            return _Columns(jnp.asarray(pivots[: max(1, full)])), 0
        rank = _choose_rank(remainder, level, factor, np.asarray(traces), full, rank_key, probes)
        return _Columns(jnp.asarray(pivots[:rank])), 4


class Nystrom(_LowRankRequest):
    """Ask for a randomised Nyström preconditioner: like :class:`PivotedCholesky`, from products alone.

    Parameters
    ----------
    rank
        The number of random vectors in the sketch, or None to choose it by the cost model.
    noise
        σ² with A − σ²I positive semi-definite; by default as for :class:`PivotedCholesky`.

    Examples
    --------
    >>> Nystrom(noise=-1.0)
    Traceback (most recent call last):
        ...
    ValueError: noise of Nystrom must be a finite number above 0, found -1.0
    """

    def _sample(
        self, operator: Operator, shift: Array | None, level: float, key: Array, rank_key: Array, probes: int
    ) -> tuple[Any, int]:
        size = operator.dimension
        rank = self.rank or min(_LARGEST_RANK, size)
        sketch, _ = jnp.linalg.qr(jax.random.normal(key, (size, rank), operator.dtype))
        if self.rank is not None:
            return _Sketch(sketch), rank
        factor, _ = _factor(operator, _Sketch(sketch), shift)
        lost = jnp.sum(factor**2) - jnp.cumsum(jnp.sum(factor**2, axis=0))
        remainder, _ = _without_noise(operator, shift)
        chosen = _choose_rank(remainder, level, factor, np.asarray(lost), rank, rank_key, probes)
        return _Sketch(sketch[:, :chosen]), rank + 4


@eqx.filter_jit
def _pivots(remainder: Operator, enough: Array, rank: int) -> tuple[Array, Array, Array]:
    """Choose pivots greedily: the largest diagonal entry of what is left of K.

    Returns
    -------
    pivots, traces, factor
        The pivots (−1 where there are fewer than ``rank``); the trace of what is left after each; and the factor
        itself. The factorisation ends at a pivot that is down to rounding, or when the trace of what is left is
        at most ``enough``.
    """
    left = remainder.diagonal()
    floor = 8 * jnp.finfo(left.dtype).eps * jnp.max(left)

    def step(carry: tuple) -> tuple:
        index, factor, left, pivots, traces = carry
        pivot = jnp.argmax(left)
        new = (remainder.columns(pivot[None])[:, 0] - factor @ factor[pivot]) / jnp.sqrt(left[pivot])
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

    factor, traces = jnp.zeros((left.size, rank), left.dtype), jnp.zeros(rank, left.dtype)
    start = (jnp.asarray(0), factor, left, jnp.full(rank, -1), traces)
    _, factor, _, pivots, traces = jax.lax.while_loop(unfinished, step, start)
    return pivots, traces, factor


def _choose_rank(
    remainder: Operator,
    noise: float,
    factor: Float[Array, "d k"],
    traces: np.ndarray,
    largest: int,
    key: Key[Array, ""],
    probes: int,
) -> int:
    """Choose among ranks by the predicted time of everything that follows.

    With R_k = K − L_kL_kᵀ the preconditioned spectrum reaches to 1 + λ_max(R_k)/σ². One block product KΩ serves all
    candidates: ‖R_kΩ‖ estimates ‖R_k‖_F, and tr R_k is known; λ_max lies between ‖R‖_F²/tr R and ‖R‖_F, and their
    geometric mean is taken. Work is counted in multiplications: products with A (d² each), applications of P^(−½)
    (4dk for each product), and the factorisation itself (3dk² with its SVD).
    """
    size = remainder.dimension
    largest = max(largest, 1)
    candidates = np.unique(np.geomspace(min(8, largest), largest, 12).astype(int)).tolist()
    omega = jax.random.normal(key, (size, 4), remainder.dtype)
    whole = remainder.mv(omega)
    costs = []
    for rank in candidates:
        part = factor[:, :rank]
        rest = whole - part @ (part.T @ omega)
        frobenius = float(jnp.sqrt(jnp.sum(rest**2) / 4))
        trace = max(float(traces[rank - 1]), 1e-300)
        top = min(np.sqrt(frobenius * min(frobenius**2 / trace, frobenius)), trace)
        kappa = 1.0 + top / noise
        degree = 4.0 + 2.5 * np.sqrt(kappa)
        # Noise that is left must be averaged away by probes: bring it to the scale of a thousandth of d.
        spread = 2.0 * min(frobenius / noise, np.sqrt(size) * np.log(kappa)) ** 2
        needed = max(float(probes), spread / (1e-3 * size) ** 2)
        costs.append(0.5 * degree * needed * (size**2 + 4.0 * size * rank) + 6.0 * size * rank**2)
    return candidates[int(np.argmin(costs))]

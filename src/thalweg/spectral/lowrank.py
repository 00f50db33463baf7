"""Low-rank preconditioners: for A = K + σ²I take P = LLᵀ + σ²I with LLᵀ ≼ K.

Then every eigenvalue of P^(−½)AP^(−½) is at least 1, and all but a few are close to it. Two constructions of L have
LLᵀ ≼ K: the pivoted Cholesky factorisation, which needs the diagonal and a few columns of K only, and Nyström's from a
random sketch, which needs products only. Both read

    L(θ) = C(θ) chol(ΩᵀC(θ))^(−ᵀ),   C = K(θ)Ω,

with Ω a choice of columns or a Gaussian block; Ω is frozen in the plan, so that P(θ) can be differentiated.
"""

from abc import abstractmethod
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key

from thalweg import arguments
from thalweg.linalg.operators.base import Operator, ShiftedOperator
from thalweg.spectral.bounds import IllConditionedError, compiled, host_random, hosted, spectrum
from thalweg.spectral.precondition import Preconditioner, Request
from thalweg.threads import enough_threads

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
    proven: bool = eqx.field(static=True)

    def __init__(self, operator: Operator, sample: Any, shift: Array | None, products: int, proven: bool) -> None:
        self.sample, self.shift, self.products, self.proven = sample, shift, np.asarray(products), proven
        factor, noise = hosted(_factor, operator)(operator, sample, shift)
        # In float64, where the Gram matrix keeps the digits of its small eigenvalues that an SVD would.
        tall, level, dtype = np.asarray(factor, np.float64), float(noise), operator.dtype
        gram = tall.T @ tall
        with enough_threads(len(gram)):
            eigenvalues, vectors = np.linalg.eigh(gram)
        eigenvalues = np.maximum(eigenvalues, np.finfo(np.float64).eps * max(eigenvalues[-1], level))
        if not np.all(np.isfinite(eigenvalues)):
            raise IllConditionedError(f"A − {level:.4g}·I must be positive semi-definite for this preconditioner")
        size, rank = tall.shape
        self.noise, self.eigenvalues = noise, jnp.asarray(eigenvalues, dtype)
        self.basis = jnp.asarray((tall @ vectors) / np.sqrt(eigenvalues), dtype)
        self.log_determinant = jnp.asarray((size - rank) * np.log(level) + np.sum(np.log(eigenvalues + level)), dtype)
        self.inverse_trace = jnp.asarray((size - rank) / level + np.sum(1.0 / (eigenvalues + level)), dtype)

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
        """1 less what rounding can do, where σ² is known: P ≼ A then holds to a few eps·κ(A)."""
        if not self.proven:
            return None
        kappa = 1.0 + float(jnp.max(self.eigenvalues) / self.noise)
        lost = 8.0 * float(jnp.finfo(self.basis.dtype).eps) * kappa
        if lost > 0.5:
            raise IllConditionedError(
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
    breath = 4 * jnp.finfo(core.dtype).eps * jnp.trace(core) + jnp.finfo(core.dtype).tiny
    core = core + breath * jnp.eye(core.shape[0], dtype=core.dtype)
    root = jnp.linalg.cholesky(core)
    return jax.scipy.linalg.solve_triangular(root, columns.T, lower=True).T, noise


def _without_noise(operator: Operator, shift: Array | None) -> tuple[Operator, Array]:
    """K and σ² of A = K + σ²I: by the given shift, or as the operator knows them."""
    if shift is not None:
        return ShiftedOperator(operator, -shift), shift
    remainder, noise = operator.split()
    assert noise is not None, "without a shift the operator knows its noise"
    return remainder, noise


class _LowRankRequest(Request):
    rank: int | None = None
    noise: float | None = None

    def __check_init__(self) -> None:
        name = type(self).__name__
        if self.rank is not None:
            arguments.whole(f"rank of {name}", self.rank)
        if self.noise is not None:
            arguments.real(f"noise of {name}", self.noise, above=0)

    def build(self, operator: Operator, key: Key[Array, ""], probes: int) -> LowRank:
        """Find σ², then Ω."""
        if self.rank is not None:
            arguments.whole(f"rank of {type(self).__name__}", self.rank, most=operator.dimension)
        level, own = self.noise, None
        if level is None:
            own = operator.split()[1]
            level = None if own is None else arguments.real("noise of the operator", own, above=0)
        return self._built(operator, level, own is not None, key, probes)

    @abstractmethod
    def _built(self, operator: Operator, level: float | None, own: bool, key: Array, probes: int) -> "LowRank":
        """P for a σ² that is given, the operator's ``own``, or to be found."""


class PivotedCholesky(_LowRankRequest):
    """Ask for a pivoted Cholesky preconditioner.

    Parameters
    ----------
    rank
        The rank k, or None to choose it by the cost model.
    noise
        σ² with A − σ²I still positive semi-definite. An operator of the form K + σ²I knows its own; for others it is
        found: the least eigenvalues of A at the pivots settle at σ².

    Examples
    --------
    >>> PivotedCholesky(rank=0)
    Traceback (most recent call last):
        ...
    ValueError: rank of PivotedCholesky must be a whole number of at least 1, found 0
    """

    least_explained: ClassVar[float] = 0.0
    """The share of the trace above the noise that a first trial must explain, for more of the same to be made."""

    def _built(self, operator: Operator, level: float | None, own: bool, key: Array, probes: int) -> LowRank:
        size, dtype, enough = operator.dimension, operator.dtype, 0.0
        proven = level is not None
        shift = None if own or level is None else jnp.asarray(level, dtype)
        remainder = operator if level is None else _without_noise(operator, shift)[0]
        if level is not None and self.rank is None:
            # A remainder so small that its share of log det A is below a hundredth of d needs no more pivots.
            enough = 1e-2 * size * level
        # Grow by doubling: a step of the factorisation costs as much as its table is wide.
        largest = min(_LARGEST_RANK, size)
        capacities = [rank for rank in (_LARGEST_RANK // 4, _LARGEST_RANK // 2) if rank < largest] + [largest]
        for rank in [self.rank] if self.rank else capacities:
            found, left, factor = compiled(_pivots)(remainder, jnp.asarray(enough, dtype), rank)
            # None, where nothing is left of K at all: then any does.
            pivots = np.asarray(found)[np.asarray(found) >= 0] if int(found[0]) >= 0 else np.zeros(1, int)
            noise, seen = _noise(factor, pivots) if level is None else (level, False)
            if len(pivots) < rank or seen:
                break
            if not proven and _explained(operator, noise, left) < self.least_explained:
                raise IllConditionedError("A is no matrix of low rank plus noise, as far as a trial can tell")
        traces, spent = np.asarray(left, np.float64), 0
        if not proven:
            traces = np.maximum(traces - noise * (size - 1 - np.arange(len(traces))), 0.0)
            shift = jnp.asarray(noise, dtype)
            remainder = _without_noise(operator, shift)[0]
        if self.rank is None:
            spent = 4
            pivots = pivots[: _choose_rank(remainder, noise, factor, traces, len(pivots), key, probes)]
        return LowRank(operator, _Columns(jnp.asarray(pivots)), shift, spent, proven)


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

    def _built(self, operator: Operator, level: float | None, own: bool, key: Array, probes: int) -> LowRank:
        size, dtype, products = operator.dimension, operator.dtype, 0
        if level is None:
            found = spectrum(operator, None, key, positive=True)
            level, products = found.lower, found.products
        shift = None if own else jnp.asarray(level, dtype)
        rank = self.rank or min(_LARGEST_RANK, size)
        sketch = jnp.asarray(np.linalg.qr(host_random(key, 3).standard_normal((size, rank)))[0], dtype)
        chosen = rank
        if self.rank is None:
            factor, _ = hosted(_factor, operator)(operator, _Sketch(sketch), shift)
            squares = np.sum(np.asarray(factor, np.float64) ** 2, axis=0)
            remainder, _ = _without_noise(operator, shift)
            lost = np.sum(squares) - np.cumsum(squares)
            chosen, products = _choose_rank(remainder, level, factor, lost, rank, key, probes), products + 4
        return LowRank(operator, _Sketch(sketch[:, :chosen]), shift, products + rank, True)


def _noise(factor: Array, pivots: np.ndarray) -> tuple[float, bool]:
    """σ² of A ≈ LLᵀ + σ²I by the least eigenvalue of A at the pivots; and whether several of them agree on it."""
    root = np.asarray(factor, np.float64)[pivots, : len(pivots)]
    with enough_threads(len(root)):
        eigenvalues = np.linalg.svdvals(root)[::-1] ** 2
    if not eigenvalues.size or not eigenvalues[0] > 0:
        raise IllConditionedError("A is singular up to rounding: no noise was found for a preconditioner")
    # A little less: the matrix of the pivots is to have a root without it.
    return 0.999 * float(eigenvalues[0]), bool(eigenvalues[:9][-1] < 1.05 * eigenvalues[0])


def _explained(operator: Operator, level: float, left: Array) -> float:
    """How much of the trace above the noise a factorisation explains, between 0 and 1."""
    size, rank = operator.dimension, len(left)
    above = float(jnp.sum(operator.diagonal())) - size * level
    return 1.0 - (float(left[-1]) - (size - rank) * level) / above if above > 0 else 1.0


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
        done = jnp.sum(left) <= enough
        # At every eighth only: the programs that follow are compiled for a number of pivots.
        return (index < rank) & (jnp.max(left) > floor) & ~(done & (index % 8 == 0))

    factor, traces = jnp.zeros((left.size, rank), left.dtype), jnp.zeros(rank, left.dtype)
    start = (jnp.asarray(0), factor, left, jnp.full(rank, -1), traces)
    _, factor, _, pivots, traces = jax.lax.while_loop(unfinished, step, start)
    return pivots, traces, factor


def _choose_rank(
    remainder: Operator,
    noise: float,
    factor: Array,
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
    eighths = 8 * np.geomspace(1, max(largest // 8, 1), 12).astype(int)
    candidates = np.unique(np.minimum(np.append(eighths, largest), largest)).tolist()
    omega, columns = host_random(key, 4).standard_normal((size, 4)), np.asarray(factor, np.float64)
    inner = columns.T @ omega
    whole = np.asarray(hosted(type(remainder).mv, remainder)(remainder, jnp.asarray(omega, remainder.dtype)))
    costs = []
    for rank in candidates:
        rest = whole - columns[:, :rank] @ inner[:rank]
        frobenius = float(np.sqrt(np.sum(rest**2) / 4))
        trace = max(float(traces[rank - 1]), 1e-300)
        top = min(np.sqrt(frobenius * min(frobenius**2 / trace, frobenius)), trace)
        kappa = 1.0 + top / noise
        degree = 4.0 + 2.5 * np.sqrt(kappa)
        # Noise that is left must be averaged away by probes: bring it to the scale of a thousandth of d.
        spread = 2.0 * min(frobenius / noise, np.sqrt(size) * np.log(kappa)) ** 2
        needed = max(float(probes), spread / (1e-3 * size) ** 2)
        costs.append(0.5 * degree * needed * (size**2 + 4.0 * size * rank) + 6.0 * size * rank**2)
    return candidates[int(np.argmin(costs))]

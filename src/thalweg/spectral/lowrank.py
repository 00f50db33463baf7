"""Low-rank preconditioners for spectral sums: for A = K + σ²I take P = GGᵀ + σ²I with GGᵀ ≼ K.

Then every eigenvalue of P^(−½)AP^(−½) is at least 1, and all but a few are close to it. The features G of
:mod:`thalweg.linalg.nystrom` come of columns of K or of a random sketch, which needs products only:

    G(θ) = C(θ) R(θ)^(−ᵀ),   C = K(θ)Ω,   RRᵀ = ΩᵀC(θ),

with Ω a choice of columns or a Gaussian block; Ω is frozen in the plan, so that P(θ) can be differentiated.
"""

from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key

from thalweg import arguments
from thalweg.linalg.factor import Factor, factorise
from thalweg.linalg.nystrom import pivoted_cholesky
from thalweg.linalg.operators.base import Operator, ShiftedOperator
from thalweg.spectral.bounds import IllConditionedError, find_spectrum, host_random, multiply
from thalweg.spectral.precondition import Jacobi, Preconditioner, PreconditionerRequest, add_up, positive_diagonal
from thalweg.threads import enough_threads

__all__ = ["Nystrom", "PivotedCholesky"]

MAX_RANK = 512
"""The largest rank that is tried unasked. Twice as many take four times as long to build, more than an estimate."""
WORTH_SCALING = 4.0
"""Diagonal entries that differ by more than this factor are divided out before anything else is tried. At twice the
factor an interval stays twice as wide as it must be, and an estimate takes 1.4 times as many products."""


class LowRankRoot(Preconditioner):
    """P = GGᵀ + σ²I through the eigenvectors of GGᵀ: P^(−½) costs O(dk).

    GGᵀ ≼ K, so that in exact arithmetic 1 bounds the preconditioned spectrum from below. ``shift`` is σ² where the
    operator does not know it itself.
    """

    omega: Int[Array, " k"] | Float[Array, "d k"]
    """Ω: the indices of chosen columns, or a random block."""
    shift: Float[Array, ""] | None
    products: np.ndarray  # type: ignore[misc]
    basis: Float[Array, "d k"]
    eigenvalues: Float[Array, " k"]
    noise: Float[Array, ""]
    proven: bool = eqx.field(static=True)

    def __init__(self, operator: Operator, omega: Array, shift: Array | None, products: int, proven: bool) -> None:
        self.omega, self.shift, self.products, self.proven = omega, shift, np.asarray(products), proven
        features, self.noise = operator.compile(_features)(operator, omega, shift)
        # In float64, where the Gram matrix keeps the digits of small eigenvalues as well as an SVD.
        tall, level, dtype = np.asarray(features, np.float64), float(self.noise), operator.dtype
        gram = tall.T @ tall
        with enough_threads(len(gram)):
            eigenvalues, vectors = np.linalg.eigh(gram)
        eigenvalues = np.maximum(eigenvalues, np.finfo(np.float64).eps * max(eigenvalues[-1], level))
        if not np.all(np.isfinite(eigenvalues)):
            raise IllConditionedError(f"A − {level:.4g}·I must be positive semi-definite for this preconditioner")
        self.eigenvalues = jax.device_put(eigenvalues.astype(dtype))
        self.basis = jax.device_put(((tall @ vectors) / np.sqrt(eigenvalues)).astype(dtype))

    def offset(self, form: str) -> float:
        """Add up over the eigenvalues of GGᵀ, zeros included."""
        eigenvalues = np.zeros(len(self.basis))
        eigenvalues[: self.eigenvalues.size] = self.eigenvalues
        return add_up(eigenvalues + float(self.noise), form)

    def inverse_root(self, block: Array) -> Array:
        """Return P^(−½) V = σ⁻¹ (V − U (1 − σ/√(s² + σ²)) UᵀV)."""
        root = jnp.sqrt(self.noise)
        shrink = 1.0 - root / jnp.sqrt(self.eigenvalues + self.noise)
        return (block - self.basis @ (shrink[:, None] * (self.basis.T @ block))) / root

    def control(self, operator: Operator, vectors: Array, power: int) -> Array:
        """See :meth:`Preconditioner.control`."""
        features, noise = _features(operator, self.omega, self.shift)
        whitened = features
        for _ in range(power):
            whitened = self.inverse_root(whitened)
        size, rank = features.shape
        trace = (size - rank) / self.noise**power + jnp.sum((self.eigenvalues + self.noise) ** -float(power))
        exact = jnp.sum(whitened**2) + noise * trace
        sampled = jnp.sum((features.T @ vectors) ** 2) + noise * jnp.sum(vectors**2)
        return exact - sampled / vectors.shape[1]

    def least(self) -> float | None:
        """Return 1 less what rounding can do, where σ² is known: P ≼ A then holds to a few eps·κ(A)."""
        if not self.proven:
            return None
        kappa = 1.0 + float(np.max(np.asarray(self.eigenvalues)) / np.asarray(self.noise))
        lost = 8.0 * float(jnp.finfo(self.basis.dtype).eps) * kappa
        if lost > 0.5:
            raise IllConditionedError(
                f"A is too ill-conditioned for {self.basis.dtype} with this preconditioner: κ is about {kappa:.2g}. "
                "Use float64, or a larger noise."
            )
        return 1.0 - max(lost, 1e-6)


def _features(operator: Operator, omega: Array, shift: Array | None) -> tuple[Array, Array]:
    """Return G and σ², differentiable: what is added to the diagonal of ΩᵀKΩ against rounding is held constant."""
    kernel, noise = _without_noise(operator, shift)
    if omega.ndim == 1:
        columns = kernel.columns(omega)
        core = columns[omega]
    else:
        columns = kernel.mv(omega)
        core = omega.T @ columns
    core = 0.5 * (core + core.T)
    raised = factorise(jax.lax.stop_gradient(core)).raised
    root = jnp.linalg.cholesky(core + raised * jnp.eye(len(core), dtype=core.dtype))
    return Factor(root, raised).half_solve(columns.T).T, noise


def _without_noise(operator: Operator, shift: Array | None) -> tuple[Operator, Any]:
    """Return K and σ² of A = K + σ²I: by the given shift, or as the operator knows them."""
    return operator.split() if shift is None else (ShiftedOperator(operator, -shift), shift)


class _LowRankRequest(PreconditionerRequest):
    rank: int | None = None
    noise: float | None = None

    def __check_init__(self) -> None:
        name = type(self).__name__
        if self.rank is not None:
            arguments.whole(f"rank of {name}", self.rank)
        if self.noise is not None:
            arguments.real(f"noise of {name}", self.noise, above=0)

    def _known_noise(self, operator: Operator) -> tuple[float | None, Any]:
        """Return σ², None if it must be found, and the same as a shift if the operator does not know it itself."""
        if self.rank is not None:
            arguments.whole(f"rank of {type(self).__name__}", self.rank, most=operator.dimension)
        if self.noise is not None:
            return self.noise, jnp.asarray(self.noise, operator.dtype)
        own = operator.split()[1]
        return None if own is None else arguments.real("noise of the operator", own, above=0), None


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
    """The share of the trace above the noise that the first pivots must explain, else more are not tried."""

    def build(self, operator: Operator, key: Key[Array, ""], probes: int) -> LowRankRoot:
        """Find σ² and the pivots."""
        size, (level, shift) = operator.dimension, self._known_noise(operator)
        kernel = operator if level is None else _without_noise(operator, shift)[0]
        (pivots, traces, features, noise), products = self._factorise(kernel, level), 0
        if level is None:
            traces = np.maximum(traces - noise * (size - 1 - np.arange(len(traces))), 0.0)
            shift = jnp.asarray(noise, operator.dtype)
            kernel = _without_noise(operator, shift)[0]
        if self.rank is None:
            pivots = pivots[: _choose_rank(kernel, noise, features, traces, len(pivots), key, probes)]
            products = 4
        return LowRankRoot(operator, jax.device_put(pivots), shift, products, level is not None)

    def _factorise(self, kernel: Operator, level: float | None) -> tuple[np.ndarray, np.ndarray, Array, float]:
        """Factorise with more and more pivots until nothing is left of K, or the noise of A has been found.

        Returns the pivots, the traces of what they leave of K, the factor and the noise.
        """
        size = kernel.dimension
        # A remainder so small that its share of log det A is below a hundredth of d needs no more pivots.
        enough = 0.0 if level is None or self.rank else 1e-2 * size * level
        # By doubling, since a step of the factorisation costs as much as its table is wide.
        ranks = [rank for rank in (MAX_RANK // 4, MAX_RANK // 2) if rank < size] + [min(MAX_RANK, size)]
        for rank in [self.rank] if self.rank else ranks:
            pivots, traces, features = kernel.compile(_pivot)(kernel, jnp.asarray(enough, kernel.dtype), rank)
            chosen = np.asarray(pivots)[np.asarray(pivots) >= 0]
            # Where nothing is left of K at all, any pivot does.
            chosen = chosen if len(chosen) else np.zeros(1, int)
            noise, seen = _noise(features, chosen) if level is None else (level, False)
            traces = np.asarray(traces, np.float64)
            if len(chosen) < rank or seen:
                break
            if level is None and _explained(kernel, traces, noise) < self.least_explained:
                raise IllConditionedError("A is no matrix of low rank plus noise, as far as a trial can tell")
        return chosen, traces, features, noise


class _TrialCholesky(PivotedCholesky):
    least_explained: ClassVar[float] = 0.8


def _pivot(kernel: Operator, enough: Array, rank: int) -> tuple[Array, Array, Array]:
    return pivoted_cholesky(kernel.columns, kernel.diagonal(), rank, enough)


def _explained(operator: Operator, traces: np.ndarray, noise: float) -> float:
    """Return how much of the trace above the noise is explained by pivots, between 0 and 1."""
    above = float(np.sum(np.asarray(operator.diagonal()))) - operator.dimension * noise
    return 1.0 - (traces[-1] - (operator.dimension - len(traces)) * noise) / above if above > 0 else 1.0


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

    def build(self, operator: Operator, key: Key[Array, ""], probes: int) -> LowRankRoot:
        """Find σ² and the random block."""
        size, dtype, products = operator.dimension, operator.dtype, 0
        level, shift = self._known_noise(operator)
        if level is None:
            interval = find_spectrum(operator, None, key, positive=True)
            level, products = interval.lower, interval.products
            shift = jnp.asarray(level, dtype)
        rank = self.rank or min(MAX_RANK, size)
        products += rank
        sketch = jax.device_put(np.linalg.qr(host_random(key, 3).standard_normal((size, rank)))[0].astype(dtype))
        if self.rank is None:
            features, _ = operator.compile(_features)(operator, sketch, shift)
            squares = np.sum(np.asarray(features, np.float64) ** 2, axis=0)
            kernel, lost = _without_noise(operator, shift)[0], np.sum(squares) - np.cumsum(squares)
            rank = _choose_rank(kernel, level, features, lost, rank, key, probes)
            products += 4
        return LowRankRoot(operator, sketch[:, :rank], shift, products, True)


def _noise(features: Array, pivots: np.ndarray) -> tuple[float, bool]:
    """Return σ² of A ≈ GGᵀ + σ²I, by the least eigenvalue of A at the pivots, and whether several agree on it."""
    root = np.asarray(features, np.float64)[pivots, : len(pivots)]
    with enough_threads(len(root)):
        eigenvalues = np.linalg.svdvals(root)[::-1] ** 2
    if not eigenvalues.size or not eigenvalues[0] > 0:
        raise IllConditionedError("A is singular up to rounding: no noise was found for a preconditioner")
    # A little less: the matrix of the pivots is to have a root without it.
    return 0.999 * float(eigenvalues[0]), bool(eigenvalues[:9][-1] < 1.05 * eigenvalues[0])


def _choose_rank(
    kernel: Operator, noise: float, features: Array, traces: np.ndarray, largest: int, key: Array, probes: int
) -> int:
    """Choose among ranks by the predicted time of everything that follows.

    With R_k = K − G_kG_kᵀ the preconditioned spectrum reaches to 1 + λ_max(R_k)/σ². One block product KΩ serves all
    candidates: ‖R_kΩ‖ estimates ‖R_k‖_F, and tr R_k is known; λ_max lies between ‖R‖_F²/tr R and ‖R‖_F, and their
    geometric mean is taken. Work is counted in multiplications: products with A (d² each), applications of P^(−½)
    (4dk for each product), and the factorisation itself (3dk² with its SVD).
    """
    size, largest = kernel.dimension, max(largest, 1)
    eighths = 8 * np.geomspace(1, max(largest // 8, 1), 12).astype(int)
    ranks = np.unique(np.minimum(np.append(eighths, largest), largest))
    omega, columns = host_random(key, 4).standard_normal((size, 4)), np.asarray(features, np.float64)
    inner, product = columns.T @ omega, multiply(kernel, omega)
    frobenius = np.array([np.linalg.norm(product - columns[:, :rank] @ inner[:rank]) / 2 for rank in ranks])
    trace = np.maximum(traces[ranks - 1], 1e-300)
    kappa = 1.0 + np.minimum(np.sqrt(frobenius * np.minimum(frobenius**2 / trace, frobenius)), trace) / noise
    degree = 4.0 + 2.5 * np.sqrt(kappa)
    # Noise that is left must be averaged away by probes: bring it to the scale of a thousandth of d.
    spread = 2.0 * np.minimum(frobenius / noise, np.sqrt(size) * np.log(kappa)) ** 2
    needed = np.maximum(float(probes), spread / (1e-3 * size) ** 2)
    costs = 0.5 * degree * needed * (size**2 + 4.0 * size * ranks) + 6.0 * size * ranks.astype(float) ** 2
    return int(ranks[np.argmin(costs)])


def find_preconditioner(
    operator: Operator, key: Key[Array, ""], probes: int, max_error: float
) -> Preconditioner | None:
    """Return the preconditioner that suits an operator, or None.

    That is the diagonal where it varies; or a pivoted Cholesky, where columns can be read, if it is predicted to bring
    the standard error of log det A down to ``max_error`` for each dimension.
    """
    try:
        diagonal = positive_diagonal(operator)
    except NotImplementedError:
        return None
    if np.max(diagonal) > WORTH_SCALING * np.min(diagonal):
        return Jacobi().build(operator, key, probes)
    if not operator.has_columns:
        return None
    try:
        request = _TrialCholesky() if np.isfinite(max_error) else PivotedCholesky()
        built = request.build(operator, key, probes)
    except IllConditionedError:
        return None
    # Quadratic forms of log B vary by 2‖log B‖² without its mean, which is about ‖B − cI‖² for the best c near 1.
    omega = host_random(key, 5).standard_normal((operator.dimension, 4))
    whitened = multiply(operator, omega, built)
    mean = np.sum(whitened * omega) / np.sum(omega**2)
    predicted = np.linalg.norm(whitened - mean * omega) / 2 * np.sqrt(2 / probes)
    return built if predicted <= max_error * operator.dimension else None

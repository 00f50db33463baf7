"""Where the spectrum lies, by Lanczos' method from a random start, with a stated safety.

Upper end (and lower end where f is entire): after k steps from a random vector, λ_max − θ_max exceeds
ε (λ_max − λ_min) with probability at most 1.648 √d exp(−√ε (2k−1)) (Kuczyński and Woźniakowski, 1992); the interval
is extended by the ε for which this is 10⁻³. Bounds from the entries (Gershgorin), where there are entries, are
proven, and used where they are tighter.

A positive lower end is not certified that way unless k is of the order √κ: there the smallest Ritz value is taken
less its residual, and at least a tenth of it, and the watch on ‖w_j‖ in the recurrence does the rest. Every Ritz value
is a Rayleigh quotient: one below zero *proves* that A is not positive definite.
"""

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg
from jaxtyping import Array, Key

from thalweg import arguments
from thalweg.compiling import quick_options, untuned_options
from thalweg.linalg.operators.base import Operator, check_products, frozen
from thalweg.linalg.operators.gram import SquaredOperator
from thalweg.spectral.chebyshev import IllConditionedError, evaluate, needs_positive

_CHUNK, _STEPS = 20, 200
"""Products at a time, and the most; a few times as many where the condition number is large."""
_LARGE = 2**16
"""The dimension from which a block of probes is larger than a cache."""
_FAILURE = 1e-3
_UNSETTLED = 1e5
"""The condition number from which a lower end that Lanczos' method has not settled is not trusted."""
_PATIENCE = 4
"""How many times as many steps it is given to settle it."""
_TAME = 100.0
"""How many times what it is on the spectrum f may be in the room left for what Lanczos' method has not seen."""


class Spectrum(NamedTuple):
    """An interval that holds the spectrum, and a quadrature for its density: Ritz values and weights of sum 1."""

    lower: float
    upper: float
    nodes: np.ndarray
    weights: np.ndarray
    products: int


class NotPositiveDefiniteError(ValueError):
    """An operator that must be positive definite has been shown not to be.

    >>> issubclass(NotPositiveDefiniteError, ValueError)  # so that ``except ValueError`` catches it
    True
    """


def spectrum(
    operator: Operator,
    preconditioner: Any,
    key: Key[Array, ""],
    *,
    positive: bool,
    lower: float | None = None,
    upper: float | None = None,
    proven: tuple[float, float] = (-np.inf, np.inf),
    function: Callable[[Any], Any] | None = None,
) -> Spectrum:
    """Bound the spectrum of a symmetric A, or of P^(−½)AP^(−½) for a preconditioner P, and sketch its density.

    Where it must be ``positive`` a positive lower end is found. What is known of ``lower`` and ``upper`` is not
    searched for; ``proven`` are bounds by other means. Where ``function`` grows fast beyond the spectrum, as
    exp(−tx) does below it, more steps leave less room for it to do so.
    """
    size, dtype = operator.dimension, operator.dtype
    run = _Lanczos(operator, preconditioner, key)
    # Without reorthogonalisation it may take more steps than there are dimensions.
    most = 2 * size + _CHUNK
    limit = min(_STEPS, most)
    unknown = positive and lower is None
    while True:
        # Looked at now and then only, where there are many.
        for _ in range(1 if run.products < _STEPS else 8):
            run.go_on(limit)
        ritz = run.ritz()
        low, high = _ends(ritz, size, positive, 0.1 if preconditioner is None else 0.4)
        low, high, wild = _tamed(function, ritz.nodes, low, high, proven)
        if positive and ritz.nodes[0] <= 0:
            break
        if low is None and positive and proven[0] > 0:
            low = proven[0]
        # Eigenvalues far below an end that is not settled would not show in the recurrence either.
        unsettled = unknown and low is None and ritz.nodes[-1] > _UNSETTLED * ritz.nodes[0]
        if ritz.complete or ((lower is not None or low is not None) and (upper is not None or high is not None)):
            break
        if ritz.steps >= limit:
            # It is worth more steps: an estimate takes many times as many products.
            further = min(_PATIENCE * _STEPS, most)
            if not (unsettled or wild) or limit >= further:
                break
            limit = further
    if positive:
        _refuse_what_is_not_positive(ritz, dtype, lower)
        if unknown and unsettled:
            raise IllConditionedError(
                f"A is too ill-conditioned for products alone: after {run.products} of them its smallest eigenvalue is "
                f"only known to be below {ritz.nodes[0]:.2g}, its largest is about {ritz.nodes[-1]:.2g}. Use a "
                "preconditioner, shift it (A + εI), pass interval=, or use method='exact' where it fits."
            )
    if low is None:
        low, gap = ritz.nodes[0], ritz.residuals[0]
        low = max(0.9 * low - gap, 0.25 * low) if positive else low - gap
    if high is None:
        high = ritz.nodes[-1] + ritz.residuals[-1]
    low = max(low, proven[0]) if lower is None else float(lower)
    high = min(high, proven[1]) if upper is None else float(upper)
    # A multiple of the identity, nearly, has an interval of no width: give it some, the degree stays tiny.
    if not high - low > 1e-2 * max(abs(high), abs(low)):
        extra = 1e-2 * max(abs(high), abs(low)) or 1.0
        low, high = (low if lower is not None else low - extra), (high if upper is not None else high + extra)
    return Spectrum(float(low), float(high), ritz.nodes, ritz.weights, run.products)


def largest(operator: Operator, key: Key[Array, ""]) -> float:
    """The largest eigenvalue of a positive operator, about: less by a few per cent at most; 1 where it is zero."""
    return float(spectrum(frozen(operator), None, key, positive=False).nodes[-1]) or 1.0


class _Ritz(NamedTuple):
    """Ritz values in rising order, the weight of each in the start and the residual of its vector."""

    nodes: np.ndarray
    weights: np.ndarray
    residuals: np.ndarray
    steps: int
    complete: bool
    """Whether an invariant subspace has been found."""
    scale: float


class _Lanczos:
    """Lanczos' method from a random vector, a chunk of steps at a time."""

    def __init__(self, operator: Operator, preconditioner: Any, key: Key[Array, ""]) -> None:
        self.operator, self.preconditioner = operator, preconditioner
        size, dtype = operator.dimension, operator.dtype
        random = host_random(key, 1).standard_normal((size, 1))
        nothing = jnp.asarray(np.zeros((size, 1)), dtype)
        self.state: tuple = (jnp.asarray(random / np.linalg.norm(random), dtype), nothing, jnp.asarray(0.0, dtype))
        self.alphas: list[float] = []
        self.betas: list[float] = []

    @property
    def products(self) -> int:
        return len(self.alphas)

    def go_on(self, limit: int) -> None:
        """Take another chunk of steps, but no more than ``limit`` in all."""
        # With a preconditioner the spectrum is narrow: half the steps, and more room, cost less in all.
        chunk = _CHUNK if self.preconditioner is None else _CHUNK // 2
        if count := max(min(chunk, limit - self.products), 0):
            lanczos = hosted(_lanczos, self.operator)
            self.state, *pair = lanczos(self.operator, self.preconditioner, self.state, count)
            alphas, betas = (np.asarray(part, np.float64).tolist() for part in pair)
            self.alphas += alphas
            self.betas += betas
        if not (np.all(np.isfinite(self.alphas)) and np.all(np.isfinite(self.betas))):
            raise ValueError("A holds NaN or infinity: a product with a finite vector is not finite")

    def ritz(self) -> _Ritz:
        """What the steps so far tell."""
        alphas, betas = np.asarray(self.alphas), np.asarray(self.betas)
        scale = max(np.max(np.abs(alphas)), np.max(betas))
        # An invariant subspace has been found: what follows in the chunk is noise.
        small = np.nonzero(betas <= 10 * np.finfo(self.operator.dtype).eps * scale)[0]
        steps = int(small[0]) + 1 if small.size else len(alphas)
        nodes, vectors = scipy.linalg.eigh_tridiagonal(alphas[:steps], betas[: steps - 1])
        return _Ritz(
            nodes, vectors[0] ** 2, np.abs(vectors[-1]) * betas[steps - 1], steps, small.size > 0, float(scale)
        )


def _refuse_what_is_not_positive(ritz: _Ritz, dtype: Any, lower: float | None) -> None:
    """Raise where the smallest Ritz value proves that A is not positive definite, or is 0 but for rounding."""
    rounding = 1e4 * float(np.finfo(dtype).eps) * ritz.scale
    if -rounding < ritz.nodes[0] <= 0 and lower is None:
        raise IllConditionedError(
            f"A is singular up to rounding in {dtype}: its smallest eigenvalue is below {rounding:.2g}, its largest "
            f"about {ritz.nodes[-1]:.2g}. Shift it (A + εI), or use method='exact' where it fits."
        )
    if ritz.nodes[0] <= 0 and (lower is None or lower > 0):
        raise NotPositiveDefiniteError(
            f"A must be positive definite for this function: a vector v was found with vᵀAv/vᵀv = {ritz.nodes[0]:.4g}. "
            "Shift it (A + εI), or pass a smoothing where there is one."
        )


def margin(size: int, steps: int) -> float:
    """ε of Kuczyński and Woźniakowski's bound at a failure probability of 10⁻³."""
    return float((np.log(1.648 * np.sqrt(size) / _FAILURE) / (2 * steps - 1)) ** 2)


def _ends(ritz: _Ritz, size: int, positive: bool, most: float) -> tuple[float | None, float | None]:
    """The ends of the interval, each None as long as it needs more steps."""
    low, high = ritz.nodes[0], ritz.nodes[-1]
    scale = max(abs(low), abs(high))
    if ritz.complete:
        # The Krylov space holds every eigenvector that the start does: only rounding is left.
        slack = 1e-3 * max(high - low, 1e-3 * scale)
        return (max(low - slack, 0.9 * low) if positive else low - slack), high + slack
    epsilon = margin(size, ritz.steps)
    spread = (high - low) / max(1.0 - 2.0 * epsilon, 0.1)
    upper = high + epsilon * spread if epsilon < most else None
    if not positive:
        return (low - epsilon * spread if epsilon < most else None), upper
    # Converged: the residual bounds the distance to an eigenvalue.
    gap = ritz.residuals[0]
    return (0.9 * low - gap if gap < 0.1 * low else None), upper


def _tamed(
    function: Callable[[Any], Any] | None,
    nodes: np.ndarray,
    low: float | None,
    high: float | None,
    proven: tuple[float, float],
) -> tuple[float | None, float | None, bool]:
    """The ends of the interval, each None where f is too large there; and whether one was."""
    if function is None:
        return low, high, False
    ends = [nodes[0] if low is None else max(low, proven[0]), nodes[-1] if high is None else min(high, proven[1])]
    sizes = np.abs(evaluate(function, np.append(nodes, ends)))
    # f may not be defined at all of the nodes: that is found out elsewhere.
    wild = ~(sizes[-2:] <= _TAME * np.max(sizes[:-2], where=np.isfinite(sizes[:-2]), initial=0.0))
    return None if wild[0] else low, None if wild[1] else high, bool(np.any(wild))


def host_random(key: Key[Array, ""], purpose: int) -> np.random.Generator:
    """NumPy's numbers from a key of JAX: nothing to compile, and another stream for every purpose."""
    words = np.asarray(jax.random.key_data(key)).ravel().tolist()
    return np.random.default_rng([*words, purpose])


@cache
def compiled(function: Callable[..., Any], **how: bool) -> Callable[..., Any]:
    """The function compiled with the options of :mod:`thalweg.compiling`, for calls from the host.

    Of a kernel matrix of side 36,000 an H200 then takes 23 s for its first log-determinant instead of 107.
    """
    options: dict[str, Any] = {"compiler_options": {**quick_options(**how), **untuned_options()}}
    return eqx.filter_jit(function, **options)


def hosted(function: Callable[..., Any], operator: Operator, dear: bool = False) -> Callable[..., Any]:
    """The function compiled for a call from the host: quickly, unless products are its own loops and ``dear``."""
    loops = not operator.calls_library
    return compiled(function, loops=loops, fused=loops and dear and operator.dimension >= _LARGE)


def _lanczos(operator: Operator, preconditioner: Any, state: tuple, count: int) -> tuple:
    """Run ``count`` steps of Lanczos' method without reorthogonalisation: extreme Ritz values do not need it."""
    half = (lambda block: block) if preconditioner is None else preconditioner.inverse_root

    def step(carry: tuple, _: None) -> tuple:
        vector, previous, beta = carry
        with jax.default_matmul_precision("highest"):
            product = half(operator @ half(vector))
        alpha = jnp.sum(vector * product)
        product = product - alpha * vector - beta * previous
        norm = jnp.linalg.norm(product)
        following = product / jnp.where(norm > 0, norm, 1.0)
        return (following, vector, norm), (alpha, norm)

    pairs: tuple
    state, pairs = jax.lax.scan(step, state, None, length=count)
    return state, *pairs


def check_symmetric(operator: Operator, key: Key[Array, ""]) -> float:
    """Refuse an operator that changes the shape of vectors, is not finite, or not symmetric: uᵀAv ≠ vᵀAu.

    Returns ‖A1‖/‖Av‖, 1 the constant vector and v a random one as long.
    """
    inner, _ = operator.split()
    if isinstance(inner, SquaredOperator):
        # The square of an A that is not symmetric can be, and its eigenvalues are not then the squared singular values.
        check_symmetric(inner.operator, key)
    size, dtype = operator.dimension, operator.dtype
    block = np.column_stack([host_random(key, 2).standard_normal((size, 4)), np.ones(size)])
    product = hosted(_product, operator)(operator, jnp.asarray(block, dtype))
    if product.shape != block.shape:
        raise ValueError(f"A must map a block of shape {block.shape} to the same shape, found {product.shape}")
    product = np.asarray(product, np.float64)
    check_products(block[:, :4], product[:, :4], dtype)
    scale = np.max(np.abs(product[:, :4])) / np.sqrt(size)
    # Lengths are sums of squares, and inner products those of lengths.
    most = float(jnp.finfo(dtype).max) ** 0.5 / 1e3
    if not (scale == 0 or 1 / most < scale < most):
        raise ValueError(
            f"A is of the order of {scale:.2g}, too {'large' if scale > 1 else 'small'} for the squares of its "
            f"products in {dtype}: divide it by that{'' if dtype == np.float64 else ', or pass it as float64'}"
        )
    random, constant = np.linalg.norm(product[:, 0]) / np.linalg.norm(block[:, 0]), np.linalg.norm(product[:, 4])
    return float(constant / np.sqrt(size) / (random or 1.0))


def off_diagonal(operator: Operator, key: Key[Array, ""]) -> float:
    """Which share of the variation of A, ‖A − cI‖² for the best c, is off its diagonal; 1 where that is not known."""
    try:
        diagonal = np.asarray(operator.diagonal(), np.float64)[:, None]
    except NotImplementedError:
        return 1.0
    signs = np.sign(host_random(key, 6).standard_normal((operator.dimension, 5)))
    product = np.asarray(hosted(_product, operator)(operator, jnp.asarray(signs, operator.dtype)), np.float64)
    off, own = np.mean((product - diagonal * signs) ** 2), np.var(diagonal)
    return float(off / (off + own)) if off + own > 0 else 1.0


def refuse_null_constant(ratio: float, dtype: Any, needs_inverse: bool) -> None:
    """Refuse a graph's Laplacian, say, for a function that is singular at 0.

    Lanczos' method from a random vector may not see in time that A1 = 0, the vector being one of so many.

    Parameters
    ----------
    ratio
        ‖A1‖/‖Av‖ for a random v as long.
    dtype
        In which products are made.
    needs_inverse
        Whether a factorisation would be of no help either.
    """
    if ratio > 10 * float(np.finfo(dtype).eps):
        return
    found = "A1 = 0 up to rounding, 1 being the constant vector (as for the Laplacian of a graph): A is singular."
    if needs_inverse and ratio <= 10 * float(np.finfo(np.float64).eps):
        raise NotPositiveDefiniteError(f"A must be positive definite for this function. {found} Shift it (A + εI).")
    raise IllConditionedError(f"{found} Shift it (A + εI), or use method='exact' where it fits.")


def _product(operator: Operator, block: Array) -> Array:
    with jax.default_matmul_precision("highest"):
        return operator @ block


def check_interval(interval: Any) -> tuple[float | None, float | None]:
    """The ends of the user's interval, None where they are to be found."""
    if interval is None:
        return None, None
    if not (isinstance(interval, tuple | list) and len(interval) == 2):
        raise ValueError(f"interval must be (lower, upper), either of them None to be found; found {interval!r}")
    lower, upper = (None if end is None else arguments.real("ends of interval", end) for end in interval)
    if lower is not None and upper is not None and not lower < upper:
        raise ValueError(f"interval must be (lower, upper) with lower < upper, found ({lower}, {upper})")
    return lower, upper


def find_interval(
    function: Callable[[Any], Any],
    operator: Operator,
    built: Any,
    key: Key[Array, ""],
    interval: tuple[float | None, float | None] | None,
) -> Spectrum:
    """Find the interval, or check the user's."""
    lower, upper = given = check_interval(interval)
    positive = built is not None or needs_positive(function)
    proven = operator.bounds() if built is None else (-np.inf, np.inf)
    if built is not None and lower is None:
        lower = built.least()
    found = spectrum(
        operator, built, key, positive=positive, lower=lower, upper=upper, proven=proven, function=function
    )
    tolerance = 1e-6 * (found.upper - found.lower)
    low, high = found.nodes[0], found.nodes[-1]
    for end, node, beyond in ((given[0], low, found.lower - low), (given[1], high, high - found.upper)):
        if end is not None and beyond > tolerance:
            raise ValueError(
                f"interval ({found.lower:.6g}, {found.upper:.6g}) does not hold the spectrum: a vector v was found "
                f"with vᵀAv/vᵀv = {node:.6g}. Widen it, or leave it out to have it found."
            )
    # An end of our own making gives way: bounds from the entries are as tight as rounding allows.
    if low < found.lower and given[0] is None:
        found = found._replace(lower=0.9 * low if positive else low - tolerance)
    if high > found.upper and given[1] is None:
        found = found._replace(upper=high + tolerance)
    return found


def widen(lower: float, upper: float, slack: float, positive: bool) -> tuple[float, float]:
    """Make room on both sides for spectra of other parameters: a factor where the spectrum must be positive."""
    if positive:
        return lower / slack, upper * slack
    extra = 0.5 * (slack - 1.0) * (upper - lower)
    return lower - extra, upper + extra

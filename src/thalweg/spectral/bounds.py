"""Find an interval that holds the spectrum, by Lanczos' method from a random start, with a stated safety.

Upper end (and lower end where f is entire): after k steps from a random vector, λ_max − θ_max exceeds
ε (λ_max − λ_min) with probability at most 1.648 √d exp(−√ε (2k−1)) (Kuczyński and Woźniakowski, 1992); the interval
is extended by the ε for which this is 10⁻³. Bounds from the entries (Gershgorin) are proven, and used where they are
tighter.

A positive lower end is not certified that way unless k is of the order √κ: there the smallest Ritz value less its
residual is taken, and at most nine tenths of it; the recurrence itself notices eigenvalues outside. Every Ritz value is
a Rayleigh quotient: one below zero *proves* that A is not positive definite.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key

from thalweg import arguments
from thalweg.linalg.factor import NotPositiveDefinite
from thalweg.linalg.lanczos import LanczosState, Ritz, lanczos, ritz
from thalweg.linalg.operators.base import Operator, check_products, frozen
from thalweg.spectral.chebyshev import IllConditionedError, evaluate, needs_positive

CHUNK_STEPS = 20
"""Steps of Lanczos' method between two looks at its Ritz values, half as many with a preconditioner, which makes the
spectrum narrow. Twice as many double the products of a plan for a well-conditioned matrix."""
MAX_STEPS = 800
"""Steps after which an end is taken as it is; a quarter of them where the condition number is moderate. Twice as many
settle four times the condition number, for as many more products with one vector."""
UNSETTLED_CONDITION = 1e5
"""The condition number from which an unsettled lower end takes all steps, and is then refused: eigenvalues far below it
would not show in the recurrence either. At twice as much, more estimates are off by many standard errors."""
MAX_GROWTH = 100.0
"""How many times its largest value on the spectrum f may reach beyond it before more steps narrow the interval. Twice
as much saves steps, and rounding costs an exponential twice as much."""


class Interval(NamedTuple):
    """An interval that holds the spectrum, and a quadrature for its density: Ritz values and weights of sum 1."""

    lower: float
    upper: float
    nodes: np.ndarray
    weights: np.ndarray
    products: int


class _LanczosRun:
    """Lanczos' method on P^(−½)AP^(−½) from a random vector, a chunk of steps at a time."""

    def __init__(self, operator: Operator, preconditioner: Any, key: Key[Array, ""]) -> None:
        self.operator, self.preconditioner = operator, preconditioner
        vector = host_random(key, 1).standard_normal((operator.dimension, 1))
        self.state = LanczosState.start(np.asarray(vector / np.linalg.norm(vector), operator.dtype))
        self.alphas, self.betas = np.empty(0), np.empty(0)
        # With a preconditioner the spectrum is narrow: half the steps, and more room, cost less in all.
        self.chunk, self.max_margin = (CHUNK_STEPS, 0.1) if preconditioner is None else (CHUNK_STEPS // 2, 0.4)

    def is_at_end(self, patient: bool) -> bool:
        """Whether enough steps have been taken, more of them if ``patient``."""
        # Without reorthogonalisation it may take more steps than there are dimensions.
        most = min(MAX_STEPS if patient else MAX_STEPS // 4, 2 * self.operator.dimension + CHUNK_STEPS)
        return len(self.alphas) >= most

    def advance(self) -> Ritz:
        """Take some more steps, and return the Ritz values."""
        # Ritz values take longer the more there are: look at them less often.
        for _ in range(1 + len(self.alphas) // 160):
            take = self.operator.compile(_lanczos)
            self.state, alphas, betas = take(self.operator, self.preconditioner, self.state, self.chunk)
            self.alphas, self.betas = np.append(self.alphas, alphas), np.append(self.betas, betas)
        if not (np.all(np.isfinite(self.alphas)) and np.all(np.isfinite(self.betas))):
            raise ValueError("A holds NaN or infinity: a product with a finite vector is not finite")
        return ritz(self.alphas, self.betas, 10 * np.finfo(self.operator.dtype).eps)


def _lanczos(operator: Operator, preconditioner: Any, state: LanczosState, count: int) -> tuple:
    half = (lambda block: block) if preconditioner is None else preconditioner.inverse_root
    with jax.default_matmul_precision("highest"):
        state, alphas, betas, _ = lanczos(lambda block: half(operator @ half(block)), state, count)
    return state, alphas[:, 0], betas[:, 0]


def find_spectrum(
    operator: Operator,
    preconditioner: Any,
    key: Key[Array, ""],
    *,
    positive: bool,
    ends: tuple[float | None, float | None] = (None, None),
    function: Callable[[Any], Any] | None = None,
) -> Interval:
    """Bound the spectrum of a symmetric A, or of P^(−½)AP^(−½) for a preconditioner P, and sketch its density.

    Parameters
    ----------
    positive
        Whether the spectrum must be positive; then a positive lower end is found.
    ends
        What is known of the interval, and is not searched for.
    function
        Where it grows fast beyond the spectrum, as exp(−tx) does below it, more steps leave it less room to.
    """
    proven = operator.bounds() if preconditioner is None else (-np.inf, np.inf)
    run = _LanczosRun(operator, preconditioner, key)
    while True:
        values = run.advance()
        low, high = _ends(values, operator.dimension, positive, run.max_margin)
        low, high = _tame(function, values.nodes, (low, high), proven)
        found = (proven[0] if low is None and positive and proven[0] > 0 else low), high
        settled = [end is not None or own is not None for end, own in zip(ends, found, strict=True)]
        # More steps are worth it for an end where f is large, or where little is known of the lower end.
        patient = not (positive and settled[1]) or _condition(values) > UNSETTLED_CONDITION
        if all(settled) or values.complete or (positive and values.nodes[0] <= 0) or run.is_at_end(patient):
            break
    if positive:
        _refuse_what_is_not_positive(values, operator.dtype, ends[0])
        _refuse_unsettled(values, settled[0], len(run.alphas))
    lower, upper = _final_ends(values, found, ends, proven, positive)
    return Interval(lower, upper, values.nodes, values.weights, len(run.alphas))


def largest_eigenvalue(operator: Operator, key: Key[Array, ""]) -> float:
    """Return the largest eigenvalue of a positive operator, less by a few per cent at most; 1 where it is zero."""
    return float(find_spectrum(frozen(operator), None, key, positive=False).nodes[-1]) or 1.0


def margin(size: int, steps: int, failure: float = 1e-3) -> float:
    """Return ε of Kuczyński and Woźniakowski's bound at a probability of failure."""
    return float((np.log(1.648 * np.sqrt(size) / failure) / (2 * steps - 1)) ** 2)


def _ends(values: Ritz, size: int, positive: bool, max_margin: float) -> tuple[float | None, float | None]:
    """Return the ends of the interval, each None as long as it needs more steps."""
    low, high, gap = values.nodes[0], values.nodes[-1], values.residuals[0]
    if values.complete:
        # The Krylov space holds every eigenvector that the start does: only rounding is left.
        slack = 1e-3 * max(high - low, 1e-3 * max(abs(low), abs(high)))
        return (max(low - slack, 0.9 * low) if positive else low - slack), high + slack
    epsilon = margin(size, len(values.nodes))
    reach = epsilon * (high - low) / max(1.0 - 2.0 * epsilon, 0.1)
    lower, upper = (low - reach, high + reach) if epsilon < max_margin else (None, None)
    if positive:
        # Converged: the residual bounds the distance to an eigenvalue.
        lower = 0.9 * low - gap if gap < 0.1 * low else None
    return lower, upper


def _tame(
    function: Callable[[Any], Any] | None,
    nodes: np.ndarray,
    ends: tuple[float | None, float | None],
    proven: tuple[float, float],
) -> tuple[float | None, float | None]:
    """Return the ends of the interval, each None where f is too large there."""
    if function is None:
        return ends
    low, high = ends
    tried = [nodes[0] if low is None else max(low, proven[0]), nodes[-1] if high is None else min(high, proven[1])]
    sizes = np.abs(evaluate(function, np.append(nodes, tried)))
    # f may not be defined at all of the nodes: that is found out elsewhere.
    most = MAX_GROWTH * np.max(sizes[:-2], where=np.isfinite(sizes[:-2]), initial=0.0)
    return low if sizes[-2] <= most else None, high if sizes[-1] <= most else None


def _final_ends(
    values: Ritz,
    found: tuple[float | None, float | None],
    given: tuple[float | None, float | None],
    proven: tuple[float, float],
    positive: bool,
) -> tuple[float, float]:
    low, high, gaps = values.nodes[0], values.nodes[-1], values.residuals
    unsettled = (max(0.9 * low - gaps[0], 0.25 * low) if positive else low - gaps[0]), high + gaps[-1]
    low, high = (end if own is None else own for own, end in zip(found, unsettled, strict=True))
    low = max(low, proven[0]) if given[0] is None else given[0]
    high = min(high, proven[1]) if given[1] is None else given[1]
    scale = max(abs(high), abs(low))
    # A multiple of the identity, nearly, has an interval of no width: give it some, the degree stays tiny.
    if not high - low > 1e-2 * scale:
        extra = 1e-2 * scale or 1.0
        low, high = low - extra * (given[0] is None), high + extra * (given[1] is None)
    return float(low), float(high)


def _refuse_what_is_not_positive(values: Ritz, dtype: Any, lower: float | None) -> None:
    """Raise where the smallest Ritz value proves that A is not positive definite, or is 0 but for rounding."""
    smallest, largest = values.nodes[0], values.nodes[-1]
    rounding = 1e4 * float(np.finfo(dtype).eps) * max(abs(smallest), abs(largest))
    if -rounding < smallest <= 0 and lower is None:
        raise IllConditionedError(
            f"A is singular up to rounding in {dtype}: its smallest eigenvalue is below {rounding:.2g}, its largest "
            f"about {largest:.2g}. Shift it (A + εI), or use method='exact' where it fits."
        )
    if smallest <= 0 and (lower is None or lower > 0):
        raise NotPositiveDefinite(
            f"A must be positive definite for this function: a vector v was found with vᵀAv/vᵀv = {smallest:.4g}. "
            "Shift it (A + εI), or pass a smoothing where there is one."
        )


def _condition(values: Ritz) -> float:
    return values.nodes[-1] / values.nodes[0] if values.nodes[0] > 0 else np.inf


def _refuse_unsettled(values: Ritz, settled: bool, products: int) -> None:
    """Raise where eigenvalues may lie so far below the smallest Ritz value that the recurrence would not show them."""
    if not settled and _condition(values) > UNSETTLED_CONDITION:
        raise IllConditionedError(
            f"A is too ill-conditioned for products alone: after {products} of them its smallest eigenvalue is only "
            f"known to be below {values.nodes[0]:.2g}, its largest is about {values.nodes[-1]:.2g}. Use a "
            "preconditioner, shift it (A + εI), pass interval=, or use method='exact' where it fits."
        )


def find_interval(
    function: Callable[[Any], Any], operator: Operator, preconditioner: Any, key: Key[Array, ""], interval: Any
) -> Interval:
    """Find the interval for a function, or check the user's."""
    given = check_interval(interval)
    positive = preconditioner is not None or needs_positive(function)
    known = given
    if preconditioner is not None and given[0] is None:
        known = preconditioner.least(), given[1]
    found = find_spectrum(operator, preconditioner, key, positive=positive, ends=known, function=function)
    # Ritz values of Lanczos' method in float32 are off by tens of roundings.
    tolerance = max(1e-6, 100 * float(np.finfo(operator.dtype).eps)) * (found.upper - found.lower)
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


def check_interval(interval: Any) -> tuple[float | None, float | None]:
    """Return the ends of the user's interval, None where they are to be found."""
    if interval is None:
        return None, None
    if not (isinstance(interval, tuple | list) and len(interval) == 2):
        raise ValueError(f"interval must be (lower, upper), either of them None to be found; found {interval!r}")
    lower, upper = (None if end is None else arguments.real("ends of interval", end) for end in interval)
    if lower is not None and upper is not None and not lower < upper:
        raise ValueError(f"interval must be (lower, upper) with lower < upper, found ({lower}, {upper})")
    return lower, upper


def widen(lower: float, upper: float, slack: float, positive: bool) -> tuple[float, float]:
    """Make room on both sides for spectra of other parameters: a factor where the spectrum must be positive."""
    if positive:
        return lower / slack, upper * slack
    extra = 0.5 * (slack - 1.0) * (upper - lower)
    return lower - extra, upper + extra


def host_random(key: Key[Array, ""], purpose: int) -> np.random.Generator:
    """Return NumPy's generator for a key of JAX and a purpose: nothing to compile."""
    words = np.asarray(jax.random.key_data(key)).ravel().tolist()
    return np.random.default_rng([*words, purpose])


def multiply(operator: Operator, block: np.ndarray) -> np.ndarray:
    """Multiply a block of the host."""
    return np.asarray(operator.compile(_product)(operator, jnp.asarray(block, operator.dtype)), np.float64)


def _product(operator: Operator, block: Array) -> Array:
    with jax.default_matmul_precision("highest"):
        return operator @ block


def check_symmetric(operator: Operator, key: Key[Array, ""]) -> float:
    """Refuse an operator that changes the shape of vectors, is not finite, or not symmetric: uᵀAv ≠ vᵀAu.

    Returns ‖A1‖/‖Av‖, 1 the constant vector and v a random one as long.
    """
    if operator.symmetric_factor is not operator:
        check_symmetric(operator.symmetric_factor, key)
    size, dtype = operator.dimension, operator.dtype
    block = np.column_stack([host_random(key, 2).standard_normal((size, 4)), np.ones(size)])
    product = multiply(operator, block)
    if product.shape != block.shape:
        raise ValueError(f"A must map a block of shape {block.shape} to the same shape, found {product.shape}")
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


def refuse_null_constant(ratio: float, dtype: Any, needs_inverse: bool) -> None:
    """Refuse the Laplacian of a graph for a function that is singular at 0.

    Lanczos' method from a random vector may not see in time that A1 = 0.

    Parameters
    ----------
    ratio
        ‖A1‖/‖Av‖ for a random v as long.
    dtype
        The dtype of products.
    needs_inverse
        Whether a factorisation would be of no help either.
    """
    if ratio > 10 * float(np.finfo(dtype).eps):
        return
    reason = "A1 = 0 up to rounding, 1 being the constant vector (as for the Laplacian of a graph): A is singular."
    if needs_inverse and ratio <= 10 * float(np.finfo(np.float64).eps):
        raise NotPositiveDefinite(f"A must be positive definite for this function. {reason} Shift it (A + εI).")
    raise IllConditionedError(f"{reason} Shift it (A + εI), or use method='exact' where it fits.")


def off_diagonal_share(operator: Operator, key: Key[Array, ""]) -> float:
    """Return the share of ‖A − cI‖², for the best c, that is off the diagonal of A; 1 where that is not known."""
    try:
        diagonal = np.asarray(operator.diagonal(), np.float64)[:, None]
    except NotImplementedError:
        return 1.0
    signs = np.sign(host_random(key, 6).standard_normal((operator.dimension, 5)))
    off, own = np.mean((multiply(operator, signs) - diagonal * signs) ** 2), np.var(diagonal)
    return float(off / (off + own)) if off + own > 0 else 1.0

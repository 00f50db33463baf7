"""Find an interval that holds the spectrum, by Lanczos' method from a random start, with a stated safety.

Upper end (and lower end where f is entire): after k steps from a random vector, λ_max − θ_max exceeds
ε (λ_max − λ_min) with probability at most 1.648 √d exp(−√ε (2k−1)) (Kuczyński and Woźniakowski, 1992); the interval
is extended by the ε for which this is 10⁻³. Bounds from the entries (Gershgorin) are proven, and used where they are
tighter.

A positive lower end is not certified that way unless k is of the order √κ: there the smallest Ritz value less its
residual is taken, and at most nine tenths of it; the recurrence itself notices eigenvalues outside. Every Ritz value is
a Rayleigh quotient: one below zero *proves* that A is not positive definite.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key

from thalweg import arguments
from thalweg.linalg.lanczos import LanczosState, Ritz, lanczos, ritz
from thalweg.linalg.operators.base import Operator, check_products
from thalweg.spectral.chebyshev import Function, IllConditionedError, evaluate, not_positive_definite
from thalweg.spectral.precondition import whitened_product

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


Ends = tuple[float | None, float | None]
"""The ends of an interval, None where they are not known."""


class Interval(NamedTuple):
    """An interval that holds the spectrum, and a quadrature for its density: Ritz values and weights of sum 1."""

    lower: float
    upper: float
    nodes: np.ndarray
    weights: np.ndarray
    products: int


def find_spectrum(
    operator: Operator,
    preconditioner: Any,
    key: Key[Array, ""],
    *,
    positive: bool,
    given: Ends = (None, None),
    function: Function | None = None,
) -> Interval:
    """Bound the spectrum of a symmetric A, or of P^(−½)AP^(−½) for a preconditioner P, and sketch its density.

    Parameters
    ----------
    positive
        Whether the spectrum must be positive; then a positive lower end is found.
    given
        The user's ends of the interval, which are not searched for, but refused where they do not hold the spectrum.
    function
        Where it grows fast beyond the spectrum, as exp(−tx) does below it, more steps leave it less room to.
    """
    if preconditioner is None:
        proven, known, chunk, max_margin = operator.bounds(), given, CHUNK_STEPS, 0.1
    else:
        # The spectrum is narrow: half the steps, and more room, cost less in all.
        proven, chunk, max_margin = (-np.inf, np.inf), CHUNK_STEPS // 2, 0.4
        known = preconditioner.least() if given[0] is None else given[0], given[1]
    for steps, values in _ritz_values(operator, preconditioner, key, chunk):
        low, high = _ends(values, operator.dimension, positive, max_margin)
        low, high = _tame(function, values.nodes, (low, high), proven)
        found = (proven[0] if low is None and positive and proven[0] > 0 else low), high
        settled = [end is not None or own is not None for end, own in zip(known, found, strict=True)]
        if all(settled) or values.complete or steps >= _most_steps(values, operator.dimension, positive, settled[1]):
            break
    if positive:
        _refuse_what_is_not_positive(values, operator.dtype, known[0], settled[0], steps)
    lower, upper = _final_ends(values, found, known, proven, positive)
    lower, upper = _hold_ritz_values(values.nodes, (lower, upper), given, positive, operator.dtype)
    return Interval(lower, upper, values.nodes, values.weights, steps)


def _most_steps(values: Ritz, size: int, positive: bool, upper_settled: bool) -> int:
    """Return how many steps are worth it."""
    if positive and values.nodes[0] <= 0:
        return 0  # A is proven not to be positive.
    # For an end where f is large, or where little is known of the lower end, more of them.
    patient = not (positive and upper_settled) or _condition(values) > UNSETTLED_CONDITION
    # Without reorthogonalisation it may take more steps than there are dimensions.
    return min(MAX_STEPS if patient else MAX_STEPS // 4, 2 * size + CHUNK_STEPS)


def _hold_ritz_values(
    nodes: np.ndarray, ends: tuple[float, float], given: Ends, positive: bool, dtype: Any
) -> tuple[float, float]:
    """Return an interval that holds the Ritz values, and refuse the user's ends where they do not."""
    (lower, upper), low, high = ends, nodes[0], nodes[-1]
    # Ritz values of Lanczos' method in float32 are off by tens of roundings.
    tolerance = max(1e-6, 100 * float(np.finfo(dtype).eps)) * (upper - lower)
    for end, node, beyond in ((given[0], low, lower - low), (given[1], high, high - upper)):
        if end is not None and beyond > tolerance:
            raise ValueError(
                f"interval ({lower:.6g}, {upper:.6g}) does not hold the spectrum: a vector v was found with "
                f"vᵀAv/vᵀv = {node:.6g}. Widen it, or leave it out to have it found."
            )
    # An end of our own making gives way: bounds from the entries are as tight as rounding allows.
    if low < lower and given[0] is None:
        lower = 0.9 * low if positive else low - tolerance
    if high > upper and given[1] is None:
        upper = high + tolerance
    return lower, upper


def _ritz_values(
    operator: Operator, preconditioner: Any, key: Key[Array, ""], chunk: int
) -> Iterator[tuple[int, Ritz]]:
    """Run Lanczos' method on P^(−½)AP^(−½) from a random vector; yield the steps and Ritz values after each chunk."""
    vector = host_random(key, 1).standard_normal((operator.dimension, 1))
    state = LanczosState.start(np.asarray(vector / np.linalg.norm(vector), operator.dtype))
    alphas, betas = np.empty(0), np.empty(0)
    take = operator.compile(_lanczos)
    while True:
        # Ritz values take longer the more there are: look at them less often.
        for _ in range(1 + len(alphas) // 160):
            state, *latest = take(operator, preconditioner, state, chunk)
            alphas, betas = np.append(alphas, latest[0]), np.append(betas, latest[1])
        if not np.all(np.isfinite([alphas, betas])):
            raise ValueError("A holds NaN or infinity: a product with a finite vector is not finite")
        yield len(alphas), ritz(alphas, betas, 10 * np.finfo(operator.dtype).eps)


def _lanczos(operator: Operator, preconditioner: Any, state: LanczosState, count: int) -> tuple:
    state, alphas, betas, _ = lanczos(partial(_product, operator, preconditioner), state, count)
    return state, alphas[:, 0], betas[:, 0]


def margin(size: int, steps: int) -> float:
    """Return ε of Kuczyński and Woźniakowski's bound at a probability of failure of 1e-3."""
    return float((np.log(1.648 * np.sqrt(size) / 1e-3) / (2 * steps - 1)) ** 2)


def _ends(values: Ritz, size: int, positive: bool, max_margin: float) -> Ends:
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


def _tame(function: Function | None, nodes: np.ndarray, ends: Ends, proven: tuple[float, float]) -> Ends:
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
    values: Ritz, found: Ends, known: Ends, proven: tuple[float, float], positive: bool
) -> tuple[float, float]:
    low, high, gaps = values.nodes[0], values.nodes[-1], values.residuals
    unsettled = (max(0.9 * low - gaps[0], 0.25 * low) if positive else low - gaps[0]), high + gaps[-1]
    low, high = (end if own is None else own for own, end in zip(found, unsettled, strict=True))
    low = max(low, proven[0]) if known[0] is None else known[0]
    high = min(high, proven[1]) if known[1] is None else known[1]
    scale = max(abs(high), abs(low))
    # A multiple of the identity, nearly, has an interval of no width: give it some, the degree stays tiny.
    if not high - low > 1e-2 * scale:
        extra = 1e-2 * scale or 1.0
        low, high = low - extra * (known[0] is None), high + extra * (known[1] is None)
    return float(low), float(high)


def _refuse_what_is_not_positive(values: Ritz, dtype: Any, lower: float | None, settled: bool, products: int) -> None:
    """Raise where the smallest Ritz value proves that A is not positive definite, or is 0 but for rounding.

    Raise too where eigenvalues may lie so far below it that the recurrence would not show them.
    """
    smallest, largest = values.nodes[0], values.nodes[-1]
    rounding = 1e4 * float(np.finfo(dtype).eps) * max(abs(smallest), abs(largest))
    if -rounding < smallest <= 0 and lower is None:
        raise IllConditionedError(
            f"A is singular up to rounding in {dtype}: its smallest eigenvalue is below {rounding:.2g}, its largest "
            f"about {largest:.2g}. Shift it (A + εI), or use method='exact' where it fits."
        )
    if smallest <= 0 and (lower is None or lower > 0):
        raise not_positive_definite(
            f"a vector v was found with vᵀAv/vᵀv = {smallest:.4g}. Shift it (A + εI), or pass a smoothing where there "
            "is one."
        )
    if not settled and _condition(values) > UNSETTLED_CONDITION:
        raise IllConditionedError(
            f"A is too ill-conditioned for products alone: after {products} of them its smallest eigenvalue is only "
            f"known to be below {smallest:.2g}, its largest is about {largest:.2g}. Use a preconditioner, shift it "
            "(A + εI), pass interval=, or use method='exact' where it fits."
        )


def _condition(values: Ritz) -> float:
    return values.nodes[-1] / values.nodes[0] if values.nodes[0] > 0 else np.inf


def check_interval(interval: Any) -> Ends:
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


def multiply(operator: Operator, block: np.ndarray, preconditioner: Any = None) -> np.ndarray:
    """Multiply a block of the host, by P^(−½)AP^(−½) if there is a preconditioner."""
    return np.asarray(operator.compile(_product)(operator, preconditioner, block.astype(operator.dtype)), np.float64)


def _product(operator: Operator, preconditioner: Any, block: Array) -> Array:
    with jax.default_matmul_precision("highest"):
        return whitened_product(operator, preconditioner, block)


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
        raise not_positive_definite(f"{reason} Shift it (A + εI).")
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

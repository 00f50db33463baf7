"""Chebyshev series of a function on an interval, to rounding, in float64 on the host.

The coefficients are those of the *series*, b_j of section 2.1 of the paper. Interpolation coefficients differ from
them by aliasing, which would bias the randomly truncated series; here the function is sampled on a grid twice as
fine as it takes to resolve it, so that the aliasing error of every coefficient kept is below rounding.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import jax
import numpy as np
import scipy.fft
from jax.extend.core import jaxpr_as_fun
from numpy.polynomial.chebyshev import chebval

from thalweg.linalg.factor import NotPositiveDefinite

CHECKED_POINTS = 2**13
"""Points at which a series is compared with f: features narrower than their distance may go unseen. Twice as many halve
that width, and a plan takes a few milliseconds longer."""
EPS = float(np.finfo(np.float64).eps)

Function = Callable[[Any], Any]
"""An elementwise function of JAX arrays."""


class IllConditionedError(ValueError):
    """An estimate would take more digits or products than there are; a factorisation may do."""


def not_positive_definite(reason: str, kind: str = "definite") -> NotPositiveDefinite:
    """Return the error for an A that is not positive where f needs it."""
    return NotPositiveDefinite(f"A must be positive {kind} for this function: {reason}")


def evaluate(f: Function, x: Any, *, derivative: bool = False) -> np.ndarray:
    """Evaluate ``f`` (or f′, by automatic differentiation) at the points ``x`` in float64.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> evaluate(jnp.log, [1.0, 2.0], derivative=True)
    array([1. , 0.5])
    """
    points = np.asarray(x, np.float64)
    # In pieces of two sizes only: JAX compiles every operation anew for every shape it meets.
    piece = 2**11 if points.size <= 2**13 else 2**16
    padded = np.resize(points, (-(-points.size // piece), piece))
    # On the CPU and at once, whatever the user's settings; what leaves the scope as a JAX array may become float32.
    cpu = jax.local_devices(backend="cpu")[0]
    with jax.enable_x64(True), jax.default_device(cpu), jax.ensure_compile_time_eval():
        function = (_traced if _is_hashable(f) else _traced.__wrapped__)(f, derivative, piece)
        values = [np.asarray(function(jax.device_put(row))[0], np.float64) for row in padded]
    flat = np.concatenate([np.broadcast_to(value, (piece,)) for value in values])
    return flat[: points.size].reshape(points.shape)


@lru_cache(maxsize=16)
def _traced(f: Function, derivative: bool, size: int) -> Callable[[Any], list[Any]]:
    """Return f or f′ of so many numbers as the list of its operations: to trace takes longer than to call them."""
    function = jax.vmap(jax.grad(f) if derivative else f)
    return jaxpr_as_fun(jax.make_jaxpr(function)(jax.ShapeDtypeStruct((size,), np.float64)))


def _is_hashable(f: Function) -> bool:
    try:
        hash(f)
    except TypeError:
        return False
    return True


def needs_positive(function: Function) -> bool:
    """Whether f or f′ is undefined at or below zero, so that the spectrum must be positive."""
    points = [-1.0, -1e-3, 0.0]
    values = np.append(evaluate(function, points), evaluate(function, points, derivative=True))
    return not bool(np.all(np.isfinite(values)))


def to_unit(x: Any, lower: float, upper: float) -> Any:
    """Map [lower, upper] onto [−1, 1]."""
    return (2.0 * x - (upper + lower)) / (upper - lower)


def from_unit(t: Any, lower: float, upper: float) -> Any:
    """Map [−1, 1] onto [lower, upper]."""
    # Measured from the nearer end, so that points close to a tiny positive lower end do not lose their digits.
    width, t = upper - lower, np.asarray(t)
    return np.where(t < 0, lower + 0.5 * width * (1.0 + t), upper - 0.5 * width * (1.0 - t))


def series(
    f: Function, lower: float, upper: float, *, derivative: bool = False, max_degree: int = 2**20, at: Any = ()
) -> np.ndarray:
    """Return the Chebyshev coefficients b_0 … b_J of ``f`` (or f′) on [lower, upper] (section 2.1 of the paper).

    J is the last coefficient above rounding: coefficients beyond it are noise, and are not returned. ``at`` are points
    where the series must agree with f, besides a few thousand others.

    A function that is undefined or singular inside the interval is refused with its location, and so is an interval so
    close to a singularity that more than ``max_degree`` coefficients would be needed (:class:`IllConditionedError`).

    Examples
    --------
    For the logarithm |b_j| = 2ρ^(−j)/j with ρ = (√κ + 1)/(√κ − 1), κ = upper/lower:

    >>> import jax.numpy as jnp
    >>> b = series(jnp.log, 1.0, 9.0)
    >>> bool(np.allclose(np.abs(b[1:6]), [2 * 2.0**-j / j for j in range(1, 6)]))
    True
    """
    lower, upper = float(lower), float(upper)
    if not (np.isfinite(lower) and np.isfinite(upper) and lower < upper):
        raise ValueError(f"interval must be two finite numbers, lower < upper; found [{lower}, {upper}]")
    on_unit = lambda t: evaluate(f, from_unit(t, lower, upper), derivative=derivative)
    name = "the derivative of f" if derivative else "f"
    given = np.clip(to_unit(np.asarray(at, np.float64), lower, upper), -1.0, 1.0)
    points = np.append(np.cos(np.sqrt(2.0) * np.arange(1, 12)), given)
    apart = on_unit(points)
    size = 32
    while size <= 2 * max_degree:
        values = on_unit(_grid(size))
        if not np.all(np.isfinite(values)):
            where = from_unit(_locate_trouble(on_unit), lower, upper)
            raise ValueError(
                f"{name} is not finite on the interval [{lower:.6g}, {upper:.6g}]: it is undefined or singular near "
                f"x = {where:.6g}. Pass an interval that avoids it, or shift the operator (A + εI)."
            )
        coefficients = _coefficients(values)
        scale = np.max(np.abs(values))
        floor = 16 * EPS * scale * np.sqrt(np.log2(size))
        if np.max(np.abs(coefficients[size // 2 :])) <= floor:
            # Checked off the grid too, so that a function which oscillates between its points, or is zero at all of
            # them, is not taken for resolved. Rounding of the argument near a singularity is amplified by f′.
            gap = np.max(np.abs(chebval(points, coefficients) - apart))
            if size < CHECKED_POINTS:
                padded = np.append(coefficients, np.zeros(CHECKED_POINTS - coefficients.size))
                between = on_unit(np.cos(np.pi * (np.arange(CHECKED_POINTS) + 0.5) / CHECKED_POINTS))
                gap = max(gap, np.max(np.abs(0.5 * (scipy.fft.dct(padded, type=3) + padded[0]) - between)))
            if gap <= 1e-9 * scale:
                return _chop(coefficients, scale)
        size *= 2
    where = from_unit(_locate_trouble(on_unit), lower, upper)
    raise IllConditionedError(
        f"{name} could not be expanded on the interval [{lower:.6g}, {upper:.6g}] with {max_degree} coefficients: it "
        f"is singular at or very near x = {where:.6g}. Pass an interval that keeps away from it, shift the operator "
        "(A + εI), or use a preconditioner."
    )


def decay(coefficients: np.ndarray) -> tuple[float, bool]:
    """Return ρ with |b_j| ≈ c j^p ρ^(−j), and whether the decay is faster than that (an entire function).

    The fit is over the non-increasing envelope of |b_j|, j ≥ 1, so that even and odd functions do no harm; the
    power j^p takes the algebraic factor of branch points (1/j for the logarithm) out of ρ.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> rho, entire = decay(series(jnp.log, 1.0, 9.0))
    >>> round(rho, 2), entire
    (2.0, False)
    >>> decay(series(jnp.exp, -1.0, 1.0))[1]
    True
    """
    size = np.abs(np.asarray(coefficients, np.float64))[1:]
    if size.size < 4 or not np.any(size > 0):
        return np.inf, True
    envelope = np.maximum.accumulate(size[::-1])[::-1]
    degrees = np.arange(1, size.size + 1, dtype=np.float64)
    # The last coefficients are partly rounding.
    keep = envelope > 1e3 * EPS * envelope[0]
    if keep.sum() < 4:
        keep[:4] = envelope[:4] > 0
    logs, degrees = np.log(envelope[keep]), degrees[keep]
    half = logs.size // 2
    first = -np.polyfit(degrees[:half], logs[:half], 1)[0] if half >= 2 else 0.0
    second = -np.polyfit(degrees[half:], logs[half:], 1)[0]
    design = np.stack([np.ones_like(degrees), degrees, np.log(degrees)], axis=1)
    slope = np.linalg.lstsq(design, logs, rcond=None)[0][1]
    # Decay like ρ^(−j)/j^p slows down; only an entire function speeds up, as r^j/j! does.
    entire = bool(second > 1.05 * first)
    rate = second if entire else -slope
    return float(np.exp(max(rate, 1e-12))), entire


def _grid(size: int) -> np.ndarray:
    return np.cos(np.pi * np.arange(size + 1) / size)


def _coefficients(values: np.ndarray) -> np.ndarray:
    coefficients = scipy.fft.dct(values, type=1) / (values.size - 1)
    coefficients[[0, -1]] *= 0.5
    return coefficients


def _chop(coefficients: np.ndarray, scale: float) -> np.ndarray:
    size = np.abs(coefficients)
    # The upper half of the grid's coefficients holds nothing but rounding: it measures the floor.
    floor = max(4 * EPS * np.max(size), 2.0 * np.max(size[coefficients.size // 2 :]))
    above = np.nonzero(size > min(floor, 64 * EPS * scale))[0]
    return coefficients[: above[-1] + 1 if above.size else 1].copy()


def _locate_trouble(on_unit: Callable[[Any], np.ndarray]) -> float:
    """Bisect towards the end of the domain, or else towards the half whose local expansion decays more slowly."""
    lower, upper = -1.0, 1.0
    for _ in range(48):
        middle, scores = 0.5 * (lower + upper), []
        for ends in ((lower, middle), (middle, upper)):
            values = on_unit(from_unit(_grid(64), *ends))
            defined = np.isfinite(values)
            if np.all(defined):
                size = np.abs(_coefficients(values))
                scores.append(np.max(size[32:]) / max(np.max(size[1:]), np.finfo(np.float64).tiny))
            else:
                scores.append(2.0 if np.any(defined) else -1.0)
        lower, upper = (lower, middle) if scores[0] >= scores[1] else (middle, upper)
    return 0.5 * (lower + upper)

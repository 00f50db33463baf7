"""Draw until the error bar is small enough, without spoiling it.

Stopping when the running standard error happens to be small would favour runs that underestimate it, and their
intervals would cover too rarely. Stein's two-stage procedure (1945) does not: the variance is estimated once, from the
first batch; it decides how many batches are drawn in all; and the final interval uses that variance and its degrees of
freedom, not a new one. For normal batch means the coverage is then exact whatever the number of batches.
"""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from thalweg.spectral.estimate import Estimate, EstimateStatus, quantile

_LEVEL = 0.95
MOST_BATCHES = 10_000
"""Where no budget is given: what takes more of them, as a sum near zero may, is told after the first."""

Target = Callable[[float], float]
"""The half-width of the interval that is wanted, for a value."""


def batches_wanted(first: Estimate, target: Target | None, rounding: float) -> tuple[int, EstimateStatus]:
    """How many batches bring the error bar down to the target, and the status that the estimate then has.

    Only what probes and degrees make of the error averages out; where rounding alone is more than the target, as many
    as make the rest no larger than it.
    """
    if target is None:
        return 1, EstimateStatus.OK
    value, error = (float(jax.lax.stop_gradient(x)) for x in (first.value, first.standard_error))
    allowed = (target(value) / quantile(_LEVEL, first.degrees_of_freedom)) ** 2
    if error**2 <= allowed:
        return 1, EstimateStatus.OK
    sampled, room = max(error**2 - rounding**2, 0.0), allowed - rounding**2
    status = EstimateStatus.OK if room > 0 else EstimateStatus.ROUNDING
    ratio = sampled / max(room if room > 0 else rounding**2, np.finfo(float).tiny)
    return int(np.ceil(np.clip(ratio, 1.0, 1e12))), status


def judged(exact: Estimate, target: Target | None) -> Estimate:
    """An exact value, with the status that it has where rounding costs more than is wanted."""
    if target is None or isinstance(jax.lax.stop_gradient(exact.value), jax.core.Tracer):
        return exact
    value, error = float(jax.lax.stop_gradient(exact.value)), float(exact.standard_error)
    if error * quantile(_LEVEL, exact.degrees_of_freedom) <= target(value):
        return exact
    return dataclasses.replace(exact, status=jnp.asarray(int(EstimateStatus.ROUNDING), exact.status.dtype))


def refine(
    draw: Callable[[int], Estimate],
    first: Estimate,
    target: Target | None,
    budget: int | None,
    rounding: float = 0.0,
) -> Estimate:
    """Average as many batches as the first one says it takes; ``draw(i)`` makes the i-th."""
    wanted, status = batches_wanted(first, target, rounding)
    if wanted == 1 and status == EstimateStatus.OK:
        return first
    per_batch = max(float(first.products), 1.0)
    if budget is not None:
        batches = min(wanted, max(1, int(budget // per_batch)))
    else:
        # All that are allowed take a minute, and would not do.
        batches = wanted if wanted <= MOST_BATCHES else 1
    total, products = first.value, first.products
    for index in range(1, batches):
        batch = draw(index)
        if batch.outcome is not EstimateStatus.OK:
            raise ValueError(f"estimate failed in batch {index}: {batch.message}")
        total, products = total + batch.value, products + batch.products
    variance = float(jax.lax.stop_gradient(first.standard_error)) ** 2
    error = np.sqrt(max(variance - rounding**2, 0.0) / batches + rounding**2)
    met = batches == wanted or (budget is None and status == EstimateStatus.ROUNDING)
    status = status if met else EstimateStatus.BUDGET
    return dataclasses.replace(
        first,
        value=total / batches,
        standard_error=jnp.asarray(error, first.value.dtype),
        products=products,
        status=jnp.asarray(int(status), first.status.dtype),
    )

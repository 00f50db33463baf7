"""Draw until the error bar is small enough, without spoiling it.

Stopping when the running standard error happens to be small would favour runs that underestimate it, and their
intervals would cover too rarely. Stein's two-stage procedure (1945) does not: the variance is estimated once, from the
first batch; it decides how many batches are drawn in all; and the final interval uses that variance and its degrees of
freedom, not a new one. For normal batch means the coverage is then exact whatever the number of batches.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key

from thalweg.spectral.estimate import BUDGET, OK, Estimate, quantile

_LEVEL = 0.95


def refine(
    draw: Callable[[Any], Estimate],
    first: Estimate,
    key: Key[Array, ""],
    rtol: float | None,
    atol: float | None,
    budget: int | None,
) -> Estimate:
    """Average as many batches as the first one says it takes."""
    if rtol is None and atol is None:
        return first
    value, error = (float(jax.lax.stop_gradient(x)) for x in (first.value, first.standard_error))
    target = max(atol or 0.0, (rtol or 0.0) * abs(value))
    half = quantile(_LEVEL, first.degrees_of_freedom) * error
    wanted = int(np.ceil((half / target) ** 2)) if half > target else 1
    per_batch = max(float(first.products), 1.0)
    allowed = wanted if budget is None else max(1, int(budget // per_batch))
    batches = min(wanted, allowed)
    total, products = first.value, first.products
    for index in range(1, batches):
        batch = draw(jax.random.fold_in(key, index))
        if int(batch.status) != OK:
            raise ValueError(f"estimate failed in batch {index}: {batch.message}")
        total, products = total + batch.value, products + batch.products
    status = OK if batches == wanted else BUDGET
    replacements = (
        total / batches,
        first.standard_error / np.sqrt(batches),
        products,
        jnp.asarray(status, first.status.dtype),
    )
    return eqx.tree_at(lambda e: (e.value, e.standard_error, e.products, e.status), first, replacements)

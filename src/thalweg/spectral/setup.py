"""Build the preconditioner that was asked for, choosing its rank."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key

from thalweg.spectral.bounds import spectrum
from thalweg.spectral.operators import Operator
from thalweg.spectral.precondition import (
    ColumnBuild,
    Diagonal,
    DiagonalBuild,
    DiagonalScaling,
    LowRank,
    Nystrom,
    PivotedCholesky,
    Preconditioner,
    SketchBuild,
    choose_rank,
    pivots_of,
)

_LARGEST_RANK = 512


def make_preconditioner(
    request: Any, operator: Operator, key: Key[Array, ""], probes: int
) -> tuple[Preconditioner, int]:
    """Return the preconditioner asked for, and the products with A that it took."""
    if isinstance(request, Preconditioner):
        return request, 0
    if isinstance(request, Diagonal):
        return DiagonalScaling(DiagonalBuild(operator), operator.theta, operator.data), 0
    if isinstance(request, PivotedCholesky | Nystrom):
        return _low_rank(request, operator, key, probes)
    raise TypeError(
        f"preconditioner must be PivotedCholesky(), Nystrom(), Diagonal() or Own(...); found {type(request).__name__}"
    )


def _low_rank(
    request: PivotedCholesky | Nystrom, operator: Operator, key: Key[Array, ""], probes: int
) -> tuple[Preconditioner, int]:
    bounds_key, sketch_key, rank_key = jax.random.split(key, 3)
    size, spent = operator.dimension, 0
    if isinstance(request, PivotedCholesky) and operator.kind not in ("dense", "kernel"):
        raise ValueError(
            f"PivotedCholesky needs columns of A: a dense array or a kernel operator; found a {operator.kind} one. "
            "Nystrom() needs products only."
        )
    if request.rank is not None and not 1 <= request.rank <= size:
        raise ValueError(f"rank must be between 1 and the dimension {size}, found {request.rank}")
    noise = request.noise
    if noise is not None and not noise > 0:
        raise ValueError(f"noise must be positive, found {noise}")
    own = noise is None and operator.kind == "kernel"
    if own:
        level = float(operator.multiply.noise(operator.theta))
        if not level > 0:
            raise ValueError(f"the kernel operator's noise must be positive, found {level}")
    elif noise is None:
        found = spectrum(operator, None, bounds_key, positive=True)
        level, spent = found.lower, found.products
    else:
        level = float(noise)
    largest = min(_LARGEST_RANK, size)
    shift = jnp.asarray(level, operator.dtype)
    given = None if own else shift
    if isinstance(request, PivotedCholesky):
        # A remainder so small that its share of log det A is below a hundredth of d needs no more pivots.
        enough = jnp.asarray(1e-2 * size * level if request.rank is None else 0.0, operator.dtype)
        for rank in [request.rank] if request.rank else _capacities(largest):
            found_pivots, traces, factor = pivots_of(operator, shift, enough, rank)
            pivots = np.asarray(found_pivots)
            full = int(np.sum(pivots >= 0))
            if full < rank:
                break
        if request.rank is None:
            rank = choose_rank(operator, level, factor, np.asarray(traces), _candidates(full), rank_key, probes)
            spent += 4
        chosen = jnp.asarray(pivots[: max(1, min(rank, full))])
        return LowRank(ColumnBuild(operator), operator.theta, operator.data, chosen, given), spent
    rank = request.rank or largest
    sketch, _ = jnp.linalg.qr(jax.random.normal(sketch_key, (size, rank), operator.dtype))
    build = SketchBuild(operator)
    spent += rank
    if request.rank is None:
        factor, _ = build(operator.theta, operator.data, sketch, given)
        lost = jnp.sum(factor**2) - jnp.cumsum(jnp.sum(factor**2, axis=0))
        candidates = _candidates(rank)
        rank = choose_rank(operator, level, factor, np.asarray(lost), candidates, rank_key, probes)
        sketch, spent = sketch[:, : max(rank, 1)], spent + 4
    return LowRank(build, operator.theta, operator.data, sketch, given), spent


def _capacities(largest: int) -> list[int]:
    """Grow by doubling: a step of the factorisation costs as much as its table is wide."""
    return [rank for rank in (_LARGEST_RANK // 4, _LARGEST_RANK // 2) if rank < largest] + [largest]


def _candidates(largest: int) -> list[int]:
    ranks = np.unique(np.geomspace(min(8, largest), max(largest, 1), 12).astype(int))
    return [int(rank) for rank in ranks if rank >= 1]

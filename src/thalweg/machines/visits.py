"""Landmarks that learn from their own rows: dual block ascent, with no preconditioner to estimate.

A block of training points is at once a batch and a block of coordinates. With the objective Σ w ℓ(f(x), y) + α/2·‖f‖²
the optimal weight of a point is −w·∂ℓ/α, whatever the other points; a visit solves for the weights of a block with all
others held fixed. For the squared loss that is one linear system,

    δ = −(K_kk + α/w)⁻¹ (f(X_k) − y_k + α W_k / w),

and for others the same with α/(L·w) for the curvature bound L, a few times over: accelerated where the loss is smooth.
Where it has kinks, with the gradient smoothed about the dual −αW/w, the rounds are those of Douglas–Rachford splitting,
which converge when over-relaxed, but may circle for ever when accelerated: only the first ones are.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Scalar

from thalweg import trees
from thalweg.codec import storable
from thalweg.compiling import quick_jit
from thalweg.descent.momentum import FISTA
from thalweg.machines.coordinates import Points
from thalweg.machines.expansion import Expansion, evaluate
from thalweg.machines.functional import Batch
from thalweg.machines.losses import Loss

_MOMENTUM = FISTA()
# For losses with kinks so many rounds are accelerated. Then they are over-relaxed: any number below 2 converges.
ACCELERATED, RELAXATION = 200, 1.6
# Where there may be more rounds, the factor of a visit's matrix is inverted; on a GPU, which takes longer to solve with
# it than to factorise, it always is.
MANY_ROUNDS = 20
# Rounds of squares end where one leaves more than this part of what there was to be solved.
_HELPS = 0.9
# A lone block of no more rows is solved in less time than it takes to compile well.
_QUICK = 1024
# Below this float32 could not factorise a kernel matrix; a longer diagonal only makes for shorter steps.
_LEAST_DIAGONAL = {jnp.dtype("float32"): 1e-3, jnp.dtype("float64"): 1e-10}


@storable
class Examples(NamedTuple):
    """Targets and weights of the landmarks; a weight of 0 is an empty place."""

    targets: Float[Array, "capacity rows c"]
    weights: Float[Array, "capacity rows"]


class Visitor(eqx.Module):
    """How blocks of landmarks are visited."""

    coordinates: Points
    loss: Loss
    ridge: Array
    """α of Σ w ℓ + α/2·‖f‖²."""
    tol: Array
    """A visit ends when no row's ∂ℓ + αW/w is larger."""
    rounds: int = eqx.field(static=True)
    """The most rounds of a visit."""


@quick_jit(lambda visitor, *_: visitor.rounds > MANY_ROUNDS and visitor.coordinates.block_size <= _QUICK, tuned=False)
def absorb(
    visitor: Visitor, expansion: Expansion, examples: Examples, batches: Batch
) -> tuple[Expansion, Examples, Float[Array, "blocks rows c"]]:
    """Make each batch a block of landmarks, visit it, and return f at the rows of the batches before they were seen.

    The arrays of ``batches`` have the blocks as their first axis, and there must be room for them.
    """

    def body(carry: tuple[Expansion, Examples], batch: Batch) -> tuple[tuple[Expansion, Examples], Array]:
        expansion, examples = carry
        k = expansion.used
        f = evaluate(visitor.coordinates, expansion, batch.x)
        expansion = expansion._replace(blocks=expansion.blocks.at[k].set(batch.x), used=k + 1)
        examples = Examples(examples.targets.at[k].set(batch.y), examples.weights.at[k].set(batch.weights))
        return (_visited(visitor, expansion, batch, f, k)[0], examples), f

    (expansion, examples), before = jax.lax.scan(body, (expansion, examples), batches)
    return expansion, examples, before


@quick_jit(lambda *_: False, tuned=False)
def fill(
    visitor: Visitor, expansion: Expansion, examples: Examples, batch: Batch, filled: Int[Array, ""]
) -> tuple[Expansion, Examples]:
    """Put a batch behind the ``filled`` rows of the last block, and visit it.

    The batch has padding at its end, up to the size of a block or of as much of it as is in use: one program serves
    batches of many lengths.
    """
    k, size = expansion.used - 1, len(batch.weights)
    old = Batch(expansion.blocks[k, :size], examples.targets[k, :size], examples.weights[k, :size])
    places = jnp.arange(size, dtype=filled.dtype)
    behind = lambda new, old: jnp.where(
        jnp.expand_dims(places >= filled, tuple(range(1, new.ndim))), jnp.roll(new, filled, axis=0), old
    )
    batch = Batch(*map(behind, batch, old))
    put = lambda whole, rows: whole.at[k, :size].set(rows)
    expansion = expansion._replace(blocks=put(expansion.blocks, batch.x))
    examples = Examples(put(examples.targets, batch.y), put(examples.weights, batch.weights))
    f = evaluate(visitor.coordinates, expansion, batch.x)
    weights, _ = _solved(visitor, batch, expansion.scale * expansion.weights[k, :size], f)
    return expansion._replace(weights=put(expansion.weights, weights / expansion.scale)), examples


@quick_jit(lambda *_: False, tuned=False)
def append(
    visitor: Visitor, expansion: Expansion, examples: Examples, batch: Batch, filled: Int[Array, ""]
) -> tuple[Expansion, Examples]:
    """Put a few rows behind the ``filled`` ones of the last block, and solve for them alone."""
    k, places = expansion.used - 1, filled + jnp.arange(len(batch.weights), dtype=filled.dtype)
    put = lambda whole, rows: whole.at[k, places].set(rows, mode="drop")
    f = evaluate(visitor.coordinates, expansion, batch.x)
    weights, _ = _solved(visitor, batch, jnp.zeros_like(f), f)
    examples = Examples(put(examples.targets, batch.y), put(examples.weights, batch.weights))
    weights, blocks = put(expansion.weights, weights / expansion.scale), put(expansion.blocks, batch.x)
    return expansion._replace(weights=weights, blocks=blocks), examples


@quick_jit(lambda *_: False, tuned=False)
def revisit(
    visitor: Visitor, expansion: Expansion, examples: Examples, order: Int[Array, " visits"]
) -> tuple[Expansion, Float[Array, " visits"]]:
    """Visit old blocks again, and return how far from optimal each was left."""

    def body(expansion: Expansion, k: Int[Array, ""]) -> tuple[Expansion, Scalar]:
        batch = Batch(expansion.blocks[k], examples.targets[k], examples.weights[k])
        f = evaluate(visitor.coordinates, expansion, batch.x)
        return _visited(visitor, expansion, batch, f, k)

    return jax.lax.scan(body, expansion, order)


class _Round(NamedTuple):
    at: tuple[Float[Array, "rows c"], Float[Array, "rows c"]]
    """The weights of the block and the values of f at its rows."""
    memory: Any
    """Where the momentum looks for the gradient."""
    residual: Scalar
    rounds: Int[Array, ""]


def _visited(
    visitor: Visitor, expansion: Expansion, batch: Batch, f: Float[Array, "rows c"], k: Int[Array, ""]
) -> tuple[Expansion, Scalar]:
    """Solve for the weights of block k, whose rows have the predictions ``f``; also return the residual."""
    weights, residual = _solved(visitor, batch, expansion.scale * expansion.weights[k], f)
    return expansion._replace(weights=expansion.weights.at[k].set(weights / expansion.scale)), residual


def _solved(
    visitor: Visitor, batch: Batch, weights: Float[Array, "rows c"], f: Float[Array, "rows c"]
) -> tuple[Float[Array, "rows c"], Scalar]:
    """The weights of rows with all others held fixed, from weights with which f is ``f``; also the residual."""
    there = batch.weights > 0
    row_weights = jnp.where(there, batch.weights, 1)[:, None]
    alpha, curvature = visitor.ridge.astype(f.dtype), visitor.loss.curvature
    kernel = jnp.where(there[:, None] & there[None, :], visitor.coordinates.metric(batch.x), 0)
    diagonal = jnp.maximum(alpha / (curvature * row_weights[:, 0]), _LEAST_DIAGONAL[f.dtype])
    factor = jax.scipy.linalg.cho_factor(kernel + jnp.diag(jnp.where(there, diagonal, 1)), lower=True)
    solve = lambda b: jax.scipy.linalg.cho_solve(factor, b)
    if visitor.rounds > MANY_ROUNDS or jax.default_backend() == "gpu":
        # Two products take a tenth of the time; what rounding costs the inverse, further rounds make good.
        inverse = jax.scipy.linalg.solve_triangular(factor[0], jnp.eye(len(f), dtype=f.dtype), lower=True)
        product = lambda a, b: jnp.matmul(a, b, precision="highest")
        # Not inverse.T @ …, which would be copied in each round.
        solve = lambda b: product(product(inverse, b).T, inverse).T

    def short_of_optimal(weights: Array, f: Array) -> Array:
        dual = -alpha * weights / row_weights
        return jnp.where(there[:, None], visitor.loss.smoothed_gradient(f, batch.y, dual) - dual, 0)

    if visitor.loss.quadratic:
        return _refined(visitor, (weights, f), short_of_optimal, solve, kernel)

    def go_on(now: _Round) -> Bool[Array, ""]:
        return (now.rounds < visitor.rounds) & (now.residual > visitor.tol.astype(f.dtype))

    def go(now: _Round) -> _Round:
        accelerated = visitor.loss.smooth | (now.rounds < ACCELERATED)
        weights, values = trees.where(accelerated, now.memory.point, now.at)
        residual = short_of_optimal(weights, values)
        change = -solve(residual / curvature)
        change = jnp.where(accelerated, 1, RELAXATION) * change
        at = weights + change, values + jnp.matmul(kernel, change, precision="highest")
        # The momentum is dropped where it points uphill, by the gradient of the objective as a function.
        uphill = jnp.vdot(row_weights * residual, at[1] - now.at[1]) > 0
        memory = trees.where(uphill, _at_rest(at), _MOMENTUM.remember(now.at, at, now.at, now.memory))
        return _Round(at, memory, jnp.max(jnp.abs(residual)), now.rounds + 1)

    start = weights, f
    infinity = jnp.full((), jnp.inf, f.dtype)
    found = jax.lax.while_loop(go_on, go, _Round(start, _at_rest(start), infinity, jnp.zeros((), jnp.int32)))
    return found.at[0], found.residual


def _refined(
    visitor: Visitor,
    start: tuple[Array, Array],
    short_of_optimal: Callable[[Array, Array], Array],
    solve: Callable[[Array], Array],
    kernel: Float[Array, "rows rows"],
) -> tuple[Array, Scalar]:
    """The same for squares: one round finds the solution, and others what rounding left of it, as long as they do."""

    def go_on(now: _Squares) -> Bool[Array, ""]:
        helps = (now.residual > visitor.tol.astype(now.residual.dtype)) & (now.residual < _HELPS * now.before)
        return (now.rounds < visitor.rounds) & helps

    def go(now: _Squares) -> _Squares:
        change = -solve(now.short)
        weights, f = now.weights + change, now.f + jnp.matmul(kernel, change, precision="highest")
        return at(weights, f, now.residual, now.rounds + 1)

    def at(weights: Array, f: Array, before: Array, rounds: Array) -> _Squares:
        short = short_of_optimal(weights, f)
        return _Squares(weights, f, short, jnp.max(jnp.abs(short)), before, rounds)

    infinity = jnp.full((), jnp.inf, kernel.dtype)
    found = jax.lax.while_loop(go_on, go, at(*start, infinity, jnp.zeros((), jnp.int32)))
    return found.weights, found.residual


class _Squares(NamedTuple):
    weights: Float[Array, "rows c"]
    f: Float[Array, "rows c"]
    short: Float[Array, "rows c"]
    """How far each row is from optimal."""
    residual: Scalar
    before: Scalar
    rounds: Int[Array, ""]


def _at_rest(at: tuple[Array, Array]) -> Any:
    """The momentum's memory after a step that led nowhere: so it looks ahead in the second round already."""
    return _MOMENTUM.remember(at, at, at, _MOMENTUM.init(at))

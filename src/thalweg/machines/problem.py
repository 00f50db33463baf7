"""Σ w ℓ(f(x), y) + α/2·‖f‖² over all landmarks at once: products with their kernel matrix, values and slopes.

With f = Σ W_j k(·, x_j) the optimum has g = ∇ℓ(f) + αW/w = 0 in every row. K is made tile by tile, each of them serving
two products: memory is for the landmarks and one tile. Tiles may be in float32; all else is in float64, since what α
leaves of the largest eigenvalues of K is lost in less.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Scalar

from thalweg.machines.coordinates import Points
from thalweg.machines.losses import Loss

# Curvatures below this part of the largest count as that much.
_LEAST_CURVATURE = 1e-4

Values = Float[Array, "tiles rows c"]


class Problem(eqx.Module):
    """Landmarks in tiles with their targets and weights; a weight of 0 is an empty place, or a row left out."""

    points: Points
    """Their kernel in the precision of the tiles."""
    fine: Points
    """In float64."""
    loss: Loss
    ridge: Scalar
    tiles: Float[Array, "tiles rows d"]
    targets: Values
    weights: Float[Array, "tiles rows"]
    intercept: Float[Array, "1 1 c"]

    @property
    def there(self) -> Array:
        """Whether a place has a row."""
        return (self.weights > 0)[:, :, None]

    @property
    def row_weights(self) -> Array:
        """Weights, 1 in empty places."""
        return jnp.where(self.there, self.weights[:, :, None], 1)


class State(NamedTuple):
    """The weights W, and f at the landmarks."""

    weights: Values
    values: Values


def times(a: Array, b: Array) -> Array:
    """The product, in full precision."""
    return jnp.matmul(a, b, precision="highest")


def product(problem: Problem, v: Values) -> Values:
    """K v tile by tile, each of which is made once for itself and its mirror image."""
    points, tiles, dtype = problem.points, problem.tiles, v.dtype
    v = v.astype(tiles.dtype)

    def row(i: Any, out: Values) -> Values:
        def column(j: Any, carry: tuple[Values, Array]) -> tuple[Values, Array]:
            out, total = carry
            tile = points.evaluate(tiles[i], tiles[j])
            return out.at[j].add(times(v[i].T, tile).T.astype(dtype)), total + times(tile, v[j]).astype(dtype)

        own = times(points.metric(tiles[i]), v[i]).astype(dtype)
        out, total = jax.lax.fori_loop(i + 1, len(tiles), column, (out, own))
        return out.at[i].add(total)

    return jax.lax.fori_loop(0, len(tiles), row, jnp.zeros(v.shape, dtype))


def objective(problem: Problem, state: State) -> Scalar:
    """Σ w ℓ(f(x), y) + α/2·‖f‖²."""
    losses = problem.loss.value(*_flat(state.values, problem.targets))
    norm = jnp.vdot(state.weights, state.values - problem.intercept)
    return jnp.vdot(problem.weights.ravel(), losses) + problem.ridge / 2 * norm


@jax.jit
def slopes(problem: Problem, state: State) -> tuple[Values, Values]:
    """How far each row is from optimal, and the curvature of its loss."""
    curvature = problem.loss.curvatures(*_flat(state.values, problem.targets)).reshape(state.values.shape)
    return short_of_optimal(problem, state), jnp.maximum(curvature, _LEAST_CURVATURE * problem.loss.curvature)


def _flat(*parts: Values) -> tuple[Array, ...]:
    return tuple(part.reshape(-1, part.shape[-1]) for part in parts)


def short_of_optimal(problem: Problem, state: State) -> Values:
    """∇ℓ(f) + αW/w, which is 0 in every row of the optimum."""
    gradient = problem.loss.gradient(*_flat(state.values, problem.targets))
    found = gradient.reshape(state.values.shape) + problem.ridge * state.weights / problem.row_weights
    return jnp.where(problem.there, found, 0)


def projected(problem: Problem, v: Values) -> Values:
    """Less the mean over outputs where the loss does not see it, and 0 in empty places."""
    v = v - jnp.mean(v, axis=-1, keepdims=True) if problem.loss.centred else v
    return jnp.where(problem.there, v, 0)


def inner(problem: Problem, a: Values, b: Values) -> Float[Array, "1 1 c"]:
    """Inner products, of each output for itself where the loss is a sum over them."""
    found = jnp.sum(a * b, axis=(0, 1), keepdims=True)
    return jnp.full_like(found, jnp.sum(found)) if problem.loss.centred else found

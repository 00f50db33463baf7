"""The one low-rank preconditioner: P = GGᵀ + D for A = K + D, with GGᵀ ≼ K from some columns of K.

With pivots J the Nyström approximation is G = K[:, J] R⁻ᵀ, RRᵀ = K[J, J]. Pivots are drawn in a few rounds, each with
probabilities proportional to what the rounds before leave of the diagonal (randomly pivoted Cholesky; Chen, Epperly,
Tropp and Webber, 2023, in blocks), so that they go where K is not explained yet. Products with P⁻¹ are by Woodbury's
identity,

    P⁻¹ = D⁻¹ − D⁻¹G (I + GᵀD⁻¹G)⁻¹ GᵀD⁻¹.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from thalweg.linalg.arrays import matmul, namespace
from thalweg.linalg.factor import Factor, factorise

__all__ = ["LowRank", "low_rank", "nystrom_features", "pivoted_cholesky"]

PIVOT_ROUNDS = 3
"""Rounds in which pivots are drawn: one would draw them uniformly; more gain little (a round is a product with G)."""


class LowRank(NamedTuple):
    """P = GGᵀ + D and its inverse; D may differ from column to column of what is solved for.

    Examples
    --------
    >>> G, D = np.array([[1.0], [2.0]]), np.array([[0.5], [0.25]])
    >>> P = G @ G.T + np.diag(D[:, 0])
    >>> bool(np.allclose(low_rank(G, D).solve(P @ np.ones((2, 1))), 1))
    True
    """

    features: Any
    """G, a row for each of A."""
    diagonal: Any
    """D, a column for all right sides or one for each."""
    factors: tuple[Factor, ...]
    """Of I + GᵀD⁻¹G, one for each column of D."""

    def solve(self, block: Any) -> Any:
        """P⁻¹ times columns."""
        scaled = block / self.diagonal
        inner = matmul(self.features.T, scaled)
        # All columns belong to a lone factor, else one to each.
        columns = [factor.solve(inner[:, c :: len(self.factors)]) for c, factor in enumerate(self.factors)]
        inner = namespace(inner).concatenate(columns, axis=1)
        return scaled - matmul(self.features, inner) / self.diagonal

    def draw(self, inner: Any, outer: Any) -> Any:
        """Return columns of N(0, P) from standard normal ones, as many as G has columns and rows."""
        return matmul(self.features, inner) + namespace(outer).sqrt(self.diagonal) * outer

    def log_determinant(self) -> Any:
        """log det P, for one D."""
        xp = namespace(self.diagonal)
        return xp.sum(xp.log(self.diagonal)) + self.factors[0].log_determinant()


def low_rank(features: Any, diagonal: Any) -> LowRank:
    """Return P = GGᵀ + D, ready to be inverted: a D that would drown in the rounding of GGᵀ is raised above it.

    Examples
    --------
    >>> P = low_rank(np.array([[1.0], [0.0]]), np.ones((2, 1)))  # diag(2, 1)
    >>> P.solve(np.array([[2.0], [3.0]])).ravel().tolist()
    [1.0, 3.0]
    """
    xp = namespace(features)
    diagonal = xp.maximum(diagonal, 100 * xp.finfo(features.dtype).eps * xp.sum(features**2, axis=1, keepdims=True))
    gram = lambda weights: matmul(features.T, features * weights[:, None])
    return LowRank(features, diagonal, tuple(factorise(gram(1 / column), 1.0) for column in diagonal.T))


def nystrom_features(
    columns: Callable[[np.ndarray], Any], diagonal: np.ndarray, rank: int, rng: np.random.Generator
) -> tuple[Any, np.ndarray]:
    """Return G with GGᵀ ≼ K, and what it leaves of the diagonal of K.

    Parameters
    ----------
    columns
        ``columns(indices) -> K[:, indices]``, of NumPy or of JAX.
    diagonal
        That of K, on the host; rows where it is 0 are never pivots.
    rank
        The number of pivots, at most.
    rng
        Draws them.

    Examples
    --------
    >>> K = np.diag([4.0, 0.0, 1.0]) + 1.0
    >>> K[1] = K[:, 1] = 0.0
    >>> G, left = nystrom_features(lambda chosen: K[:, chosen], np.diagonal(K), 2, np.random.default_rng(0))
    >>> bool(np.allclose(G @ G.T, K)), left.round(6).tolist()
    (True, [0.0, 0.0, 0.0])
    """
    diagonal = np.asarray(diagonal, float)
    left, pivots, found, features = diagonal.copy(), np.empty(0, int), None, None
    rank = min(rank, int(np.count_nonzero(diagonal > 0)))
    for round_number in range(PIVOT_ROUNDS):
        wanted = rank * (round_number + 1) // PIVOT_ROUNDS - len(pivots)
        open_rows = np.flatnonzero(left > 0)
        if not (wanted and len(open_rows)):
            continue
        share = left[open_rows] / np.sum(left[open_rows])
        drawn = rng.choice(open_rows, min(wanted, len(open_rows)), replace=False, p=share)
        pivots, new = np.concatenate([pivots, drawn]), columns(drawn)
        xp = namespace(new)
        found = new if found is None else xp.concatenate([found, new], axis=1)
        among = found[pivots]
        features = factorise((among + among.T) / 2).half_solve(found.T).T
        left = np.maximum(diagonal - np.asarray(xp.sum(features**2, axis=1), float), 0.0)
        left[pivots] = 0.0
    assert features is not None, "a covariance has a positive entry on its diagonal"
    return features, left


def pivoted_cholesky(
    columns: Callable[[Array], Array], diagonal: Float[Array, " d"], rank: int, enough: Any = 0.0
) -> tuple[Int[Array, " k"], Float[Array, " k"], Float[Array, "d k"]]:
    """Factorise K ≈ GGᵀ with the largest entry of the remaining diagonal as each pivot, in a compiled loop.

    Greedy pivots leave a third to a tenth of what :func:`nystrom_features` leaves of a smooth kernel in few dimensions,
    one column at a time.

    Parameters
    ----------
    columns
        ``columns(indices) -> K[:, indices]``.
    diagonal
        That of K.
    rank
        The number of pivots, at most.
    enough
        The trace of K − GGᵀ at which to stop. It also stops at a pivot that is down to rounding.

    Returns
    -------
    pivots, traces, factor
        The pivots, −1 where there are fewer; the trace of K − GGᵀ after each; and G.

    Examples
    --------
    >>> factorise_once = jax.jit(lambda K: pivoted_cholesky(lambda chosen: K[:, chosen], jnp.diagonal(K), 1))
    >>> pivots, traces, G = factorise_once(np.array([[2.0, 1.0], [1.0, 1.0]]))
    >>> pivots.tolist(), np.round(traces, 6).tolist()
    ([0], [0.5])
    """
    floor = 8 * jnp.finfo(diagonal.dtype).eps * jnp.max(diagonal)

    def step(carry: tuple) -> tuple:
        index, factor, left, pivots, traces = carry
        pivot = jnp.argmax(left)
        new = (columns(pivot[None])[:, 0] - factor @ factor[pivot]) / jnp.sqrt(left[pivot])
        left = jnp.maximum(left - new**2, 0.0).at[pivot].set(0.0)
        factor, pivots = factor.at[:, index].set(new), pivots.at[index].set(pivot)
        return index + 1, factor, left, pivots, traces.at[index].set(jnp.sum(left))

    def unfinished(carry: tuple) -> Array:
        index, _, left, _, _ = carry
        # At every eighth only: the programs that follow are compiled for a number of pivots.
        done = (jnp.sum(left) <= enough) & (index % 8 == 0)
        return (index < rank) & (jnp.max(left) > floor) & ~done

    empty = jnp.zeros((diagonal.size, rank), diagonal.dtype), jnp.full(rank, -1), jnp.zeros(rank, diagonal.dtype)
    start = jnp.asarray(0), empty[0], diagonal, *empty[1:]
    _, factor, _, pivots, traces = jax.lax.while_loop(unfinished, step, start)
    return pivots, traces, factor

"""Visits by NumPy: what :mod:`thalweg.machines.visits` does on a CPU, sooner and with nothing compiled.

For squares, and for a lone block of any loss, whose rounds an interrupt ends at once.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy.linalg import get_lapack_funcs

from thalweg.kernels.profiles import written_out
from thalweg.machines import visits
from thalweg.machines.dense import LEAST_DIAGONAL, Factor
from thalweg.machines.expansion import Expansion
from thalweg.machines.functional import Batch
from thalweg.machines.tiles import product
from thalweg.machines.visits import Examples, Visitor
from thalweg.threads import enough_threads


class Stopped(KeyboardInterrupt):
    """An interrupt in a visit, with the function and the examples so far."""

    def __init__(self, kept: tuple[Expansion, Examples]) -> None:
        super().__init__()
        self.kept = kept


def absorb(
    visitor: Visitor, expansion: Expansion, examples: Examples, batches: Batch
) -> tuple[Expansion, Examples, np.ndarray]:
    """:func:`thalweg.machines.visits.absorb`, for squares on a CPU by NumPy.

    Examples
    --------
    >>> from thalweg.kernels import Gaussian
    >>> from thalweg.machines import Points, SquaredLoss, empty
    >>> visitor = Visitor(Points(Gaussian(), 2), SquaredLoss(), jnp.array(1.0), jnp.array(0.0), 5)
    >>> begun = empty(visitor.coordinates, dimension=1, outputs=1, capacity=1, dtype=float)
    >>> batches = Batch(np.array([[[0.0], [9.0]]]), np.array([[[1.0], [2.0]]]), np.ones((1, 2)))
    >>> expansion, _, before = absorb(visitor, begun, Examples(jnp.zeros((1, 2, 1)), jnp.zeros((1, 2))), batches)
    >>> expansion.weights.ravel().round(6).tolist(), before.ravel().tolist()  # (K + 1)⁻¹y
    ([0.5, 1.0], [0.0, 0.0])
    """
    if not _serves(visitor):
        return visits.absorb(visitor, expansion, examples, batches)
    host = _Host(visitor, expansion, examples)
    try:
        before = [host.absorb(*(np.asarray(part[i]) for part in batches)) for i in range(len(batches.weights))]
    except KeyboardInterrupt as interrupt:
        if not host.rounds_made:
            raise
        raise Stopped(host.grown()) from interrupt
    return *host.grown(), np.stack(before)


def fill(
    visitor: Visitor, expansion: Expansion, examples: Examples, batch: Batch, filled: Any
) -> tuple[Expansion, Examples]:
    """:func:`thalweg.machines.visits.fill`, for squares on a CPU by NumPy."""
    if not _serves(visitor):
        return visits.fill(visitor, expansion, examples, batch, filled)
    host = _Host(visitor, expansion, examples)
    host.fill(int(filled), *map(np.asarray, batch))
    return host.grown()


def revisit(
    visitor: Visitor, expansion: Expansion, examples: Examples, order: Any
) -> tuple[Expansion, np.ndarray | jax.Array]:
    """:func:`thalweg.machines.visits.revisit`, for squares on a CPU by NumPy.

    Examples
    --------
    >>> from thalweg.kernels import Gaussian
    >>> from thalweg.machines import Points, SquaredLoss, empty
    >>> visitor = Visitor(Points(Gaussian(), 2), SquaredLoss(), jnp.array(1.0), jnp.array(0.1), 5)
    >>> begun = empty(visitor.coordinates, dimension=1, outputs=1, capacity=1, dtype=float)
    >>> revisit(visitor, begun, Examples(jnp.ones((1, 2, 1)), jnp.zeros((1, 2))), np.arange(1))[1]
    array([0.])
    """
    if not _serves(visitor):
        return visits.revisit(visitor, expansion, examples, jnp.asarray(order))
    host = _Host(visitor, expansion, examples)
    left = np.array([host.solve(int(k), host.values(int(k))) for k in order])
    return host.expanded(), left


def _serves(visitor: Visitor) -> bool:
    alone = visitor.rounds > visits.MANY_ROUNDS
    plain = (visitor.loss.quadratic or alone) and written_out(visitor.coordinates.kernel)
    return plain and jax.default_backend() == "cpu"


class _Host:
    """Blocks of landmarks on the host."""

    def __init__(self, visitor: Visitor, expansion: Expansion, examples: Examples) -> None:
        self.kernel, self.expansion = visitor.coordinates.kernel, expansion
        self.loss: Any = visitor.loss
        self.rounds_made = 0
        self.tol, self.rounds, self.ridge = float(visitor.tol), visitor.rounds, float(visitor.ridge)
        self.blocks, self.weights = (np.array(part) for part in (expansion.blocks, expansion.scale * expansion.weights))
        self.targets, self.row_weights = map(np.array, examples)
        self.used, self.intercept = int(expansion.used), np.asarray(expansion.intercept)

    def absorb(self, x: np.ndarray, y: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """Make rows a block of landmarks, visit it, and return f there before."""
        k = self.used
        self.blocks[k], self.targets[k], self.row_weights[k] = x, y, weights
        f = self.values(k)
        self.used += 1
        self.solve(k, f)
        return f

    def fill(self, filled: int, x: np.ndarray, y: np.ndarray, weights: np.ndarray) -> None:
        """Put rows behind the filled ones of the last block, and visit as much of it as is in use."""
        k, count = self.used - 1, int(np.count_nonzero(weights))
        behind, size = slice(filled, filled + count), filled + count
        self.blocks[k, behind], self.targets[k, behind] = x[:count], y[:count]
        self.row_weights[k, behind] = weights[:count]
        self.solve(k, self.values(k, size))

    def grown(self) -> tuple[Expansion, Examples]:
        """The function so far and its examples, where blocks have changed too."""
        copied = lambda array: jnp.array(array, copy=True)
        expansion = self.expanded()._replace(blocks=copied(self.blocks), used=jnp.asarray(np.int32(self.used)))
        return expansion, Examples(copied(self.targets), copied(self.row_weights))

    def expanded(self) -> Expansion:
        """The function so far."""
        return self.expansion._replace(weights=jnp.array(self.weights / np.asarray(self.expansion.scale), copy=True))

    def values(self, k: int, size: int | None = None) -> np.ndarray:
        """f at the rows of a block, the first ones if not all are wanted."""
        if not self.used:
            return np.zeros_like(self.targets[k]) + self.intercept
        points, weights = (part[: self.used].reshape(-1, part.shape[2]) for part in (self.blocks, self.weights))
        return self.intercept + product(self.kernel, self.blocks[k, :size], points, weights)

    def solve(self, k: int, f: np.ndarray) -> float:
        """Solve for the weights of a block whose rows have the predictions ``f``; return how far they are from it."""
        x, y, w = (part[k, : len(f)] for part in (self.blocks, self.targets, self.row_weights))
        there, found = w > 0, self.weights[k, : len(f)]
        ridge = (self.ridge / np.where(there, w, 1))[:, None]
        matrix = product(self.kernel, x, x)
        np.fill_diagonal(matrix, float(self.kernel.variance))
        if not self.loss.quadratic:
            return self._by_rounds(found, f, y, np.where(there, w, 1)[:, None], there, matrix)
        rounds = 0
        with enough_threads(1):
            factor = Factor(matrix, np.maximum(ridge[:, 0], LEAST_DIAGONAL[matrix.dtype]), there)
            while True:
                short = np.where(there[:, None], f - y + ridge * found, 0)
                if rounds == self.rounds or np.max(np.abs(short)) <= self.tol:
                    return float(np.max(np.abs(short)))
                change = -factor(short).astype(matrix.dtype)
                found += change
                f, rounds = f + matrix @ change, rounds + 1

    def _by_rounds(
        self, found: np.ndarray, f: np.ndarray, y: np.ndarray, w: np.ndarray, there: np.ndarray, matrix: np.ndarray
    ) -> float:
        """The rounds of :mod:`thalweg.machines.visits`; ``found`` is written over in each."""
        curvature, dtype = float(self.loss.curvature), matrix.dtype
        factor = Factor(matrix, np.maximum(self.ridge / (curvature * w[:, 0]), LEAST_DIAGONAL[dtype]), there)
        inverse = np.tril(get_lapack_funcs("trtri", [matrix])(factor.factor, lower=1)[0])
        self.rounds_made = 0
        at = ahead = found.copy(), f
        start = t = (1 + np.sqrt(5)) / 2
        while True:
            accelerated = self.loss.smooth or self.rounds_made < visits.ACCELERATED
            weights, values = ahead if accelerated else at
            dual = -self.ridge * weights / w
            short = np.where(there[:, None], self.loss.smoothed_gradient(values, y, dual) - dual, 0).astype(dtype)
            change = -(inverse.T @ (inverse @ (short / curvature))) * (1 if accelerated else visits.RELAXATION)
            new = weights + change, values + matrix @ change
            further = (1 + np.sqrt(1 + 4 * t**2)) / 2
            momentum, t = (t - 1) / further, further
            if np.vdot(w * short, new[1] - at[1]) > 0:  # uphill
                momentum, t = 0.0, start
            ahead = tuple(one + momentum * (one - before) for one, before in zip(new, at, strict=True))
            at, found[:] = new, new[0]
            self.rounds_made += 1
            left = float(np.max(np.abs(short)))
            if self.rounds_made == self.rounds or left <= self.tol:
                return left

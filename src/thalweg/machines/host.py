"""Visits by NumPy, for squares: what :mod:`thalweg.machines.visits` does on a CPU, sooner and with nothing compiled."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from thalweg.kernels.profiles import written_out
from thalweg.machines import visits
from thalweg.machines.dense import LEAST_DIAGONAL, Factor
from thalweg.machines.expansion import Expansion
from thalweg.machines.functional import Batch
from thalweg.machines.tiles import product
from thalweg.machines.visits import Examples, Visitor
from thalweg.threads import enough_threads


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
    before = [host.absorb(*(np.asarray(part[i]) for part in batches)) for i in range(len(batches.weights))]
    copied = lambda array: jnp.array(array, copy=True)
    blocks, used = copied(host.blocks), jnp.asarray(np.int32(host.used))
    expansion = host.expanded()._replace(blocks=blocks, used=used)
    return expansion, Examples(copied(host.targets), copied(host.row_weights)), np.stack(before)


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
    plain = visitor.loss.quadratic and written_out(visitor.coordinates.kernel)
    return plain and jax.default_backend() == "cpu"


class _Host:
    """Blocks of landmarks on the host."""

    def __init__(self, visitor: Visitor, expansion: Expansion, examples: Examples) -> None:
        self.kernel, self.expansion = visitor.coordinates.kernel, expansion
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

    def expanded(self) -> Expansion:
        """The function so far."""
        return self.expansion._replace(weights=jnp.array(self.weights / np.asarray(self.expansion.scale), copy=True))

    def values(self, k: int) -> np.ndarray:
        """f at the rows of a block."""
        if not self.used:
            return np.zeros_like(self.targets[k]) + self.intercept
        points, weights = (part[: self.used].reshape(-1, part.shape[2]) for part in (self.blocks, self.weights))
        return self.intercept + product(self.kernel, self.blocks[k], points, weights)

    def solve(self, k: int, f: np.ndarray) -> float:
        """Solve for the weights of a block whose rows have the predictions ``f``; return how far they are from it."""
        there = self.row_weights[k] > 0
        ridge = (self.ridge / np.where(there, self.row_weights[k], 1))[:, None]
        matrix = product(self.kernel, self.blocks[k], self.blocks[k])
        np.fill_diagonal(matrix, float(self.kernel.variance))
        rounds = 0
        with enough_threads(1):
            factor = Factor(matrix, np.maximum(ridge[:, 0], LEAST_DIAGONAL[matrix.dtype]), there)
            while True:
                short = np.where(there[:, None], f - self.targets[k] + ridge * self.weights[k], 0)
                if rounds == self.rounds or np.max(np.abs(short)) <= self.tol:
                    return float(np.max(np.abs(short)))
                change = -factor(short).astype(matrix.dtype)
                self.weights[k] += change
                f, rounds = f + matrix @ change, rounds + 1

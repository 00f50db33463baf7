"""The softmax likelihood of several classes as an oracle: expectations by nodes that fill the space evenly."""

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Array, Float
from scipy.linalg import helmert
from scipy.special import ndtri
from scipy.stats import qmc

from thalweg.gaussian.likelihood import CHUNK_NUMBERS
from thalweg.gaussian.posteriors import Full
from thalweg.linalg import Tile, fold_tiles, namespace
from thalweg.oracles.base import Out

NODES = 256
"""Nodes for each row: with half as many, mean probabilities are off by 1e-3 where linear predictors vary by 1."""


def contrasts(classes: int) -> np.ndarray:
    """Orthonormal columns that span the differences between classes: what all have in common changes nothing."""
    return helmert(classes).T


def normal_nodes(dimension: int, count: int) -> np.ndarray:
    """Points that stand for N(0, I): half of them are the others' opposites, and their covariance is I.

    There are ``count``, or more where so many could not span the space.
    """
    count = max(count, 2 ** (2 * dimension).bit_length())
    half = ndtri(qmc.Sobol(dimension, seed=0).random(count // 2))
    values, vectors = np.linalg.eigh(half.T @ half / len(half))
    half = half @ (vectors / np.sqrt(values)) @ vectors.T
    return np.concatenate([half, -half])


class ExpectedSoftmax(NamedTuple):
    """∇f, f(q) = −Σ c_nk E_q log softmax(intercepts + B·Wx_n)[k], for a :class:`Full` posterior q over the weights W.

    c counts the labels of each class that each row has. Arrays are NumPy's or JAX's, as those of the posterior.

    Examples
    --------
    >>> likelihood = ExpectedSoftmax.of(np.ones((2, 3)) / 6, np.ones((2, 1)), np.zeros(3))
    >>> point = Full(np.zeros(2), 1e-6 * np.eye(2), 1e6 * np.eye(2))
    >>> round(float(likelihood.full(point).value), 3)  # log 3
    1.099
    """

    counts: Float[Array, "n k"]
    design: Float[Array, "n p"]
    intercepts: Float[Array, " k"]
    basis: Float[Array, "k c"]
    nodes: Float[Array, "m c"]

    @classmethod
    def of(cls, counts: Any, design: Any, intercepts: Any, nodes: int = NODES) -> "ExpectedSoftmax":
        """With the contrasts of as many classes as there are intercepts, and as many nodes."""
        classes = len(intercepts)
        return cls(counts, design, intercepts, contrasts(classes), normal_nodes(classes - 1, nodes))  # type: ignore[arg-type]

    def full(self, x: Full) -> Out:
        """Value and gradient, by chunks of rows."""
        xp, columns = namespace(x.mean), self.design.shape[1]
        first, second, numbers = _pairs(len(self.intercepts))

        def add(totals: tuple, tile: Tile) -> tuple:
            counts, design = xp.where(tile.new[:, None], tile.take(self.counts), 0), tile.take(self.design)
            products = _products(design)
            centre, probabilities, normalisers = self._at_nodes(x, design, products)
            mean, weights = probabilities.mean(axis=2), counts.sum(axis=1)
            between = xp.matmul(probabilities, probabilities.swapaxes(1, 2)) / len(self.nodes)
            curvature = xp.where((first == second)[None], mean[:, first], 0.0) - between[:, first, second]
            value = (counts * centre).sum() - weights @ normalisers.mean(axis=1)
            gradient = (counts - weights[:, None] * mean).T @ design
            parts = value, gradient, (weights[:, None] * curvature).T @ products
            return tuple(total + part for total, part in zip(totals, parts, strict=True))

        shapes = (), (len(self.intercepts), columns), (len(first), columns**2)
        zeros = tuple(xp.zeros(shape, x.mean.dtype) for shape in shapes)
        value, gradient, pairs = fold_tiles(add, zeros, len(self.counts), _tile_rows(), xp)
        gradient = self.basis.T @ gradient
        between_classes = pairs.reshape(-1, columns, columns)[numbers]
        blocks = xp.einsum("ka,lb,klpq->apbq", self.basis, self.basis, between_classes, optimize=True)
        covariance = blocks.reshape(gradient.size, gradient.size) / 2
        point = Full(-gradient.reshape(-1), covariance, xp.zeros_like(covariance))
        return Out(point, -value, xp.asarray(float(len(self.counts))))

    def mean_probabilities(self, x: Full) -> np.ndarray:
        """The probability of each class, averaged over the posterior, for each row of a design of NumPy."""
        make = lambda design: self._at_nodes(x, design, _products(design))[1].mean(axis=2)
        fill = lambda filled, tile: tile.put(filled, make(tile.take(self.design)))
        return fold_tiles(fill, np.zeros(self.counts.shape), len(self.design), _tile_rows(), np)

    def _at_nodes(self, x: Full, design: Any, products: Any) -> tuple:
        """Mean linear predictors of rows and classes; probabilities at nodes, the last axis, and log Σ exp there."""
        xp = namespace(x.mean)
        columns, contrast_count = design.shape[1], self.basis.shape[1]
        first, second, numbers = _pairs(contrast_count)
        mean = design @ x.mean.reshape(contrast_count, columns).T
        blocks = x.covariance.reshape(contrast_count, columns, contrast_count, columns)
        pairs = blocks.swapaxes(1, 2)[first, second].reshape(len(first), -1)
        covariance = (products @ pairs.T)[:, numbers]
        # Rounding, of about eps, could leave a variance below 0; the square root of eps would change probabilities.
        lowest = xp.finfo(mean.dtype).eps ** 0.75 * (1 + xp.trace(covariance, axis1=1, axis2=2))
        root = xp.linalg.cholesky(covariance + lowest[:, None, None] * xp.eye(contrast_count)[None])
        centre = self.intercepts[None] + mean @ self.basis.T
        # One product of two matrices: NumPy takes three times as long to multiply one for each row.
        shifts = (self.basis @ root).reshape(-1, contrast_count) @ self.nodes.T
        logits = centre[:, :, None] + shifts.reshape(*centre.shape, -1)
        largest = logits.max(axis=1)
        odds = xp.exp(logits - largest[:, None])
        total = odds.sum(axis=1)
        return centre, odds / total[:, None], largest + xp.log(total)


def _products(design: Any) -> Any:
    """xxᵀ of each row x, as a row."""
    return (design[:, :, None] * design[:, None]).reshape(len(design), -1)


def _pairs(count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The members of each pair, and the number of each pair, whichever comes first: what is symmetric stands once."""
    first, second = np.triu_indices(count)
    numbers = np.zeros((count, count), int)
    numbers[first, second] = numbers[second, first] = np.arange(len(first))
    return first, second, numbers


def _tile_rows() -> int:
    """Return how many rows fill the cache of a core with all nodes and four classes.

    Fewer rows would add up the curvatures of many classes too often.
    """
    return CHUNK_NUMBERS // (4 * NODES)

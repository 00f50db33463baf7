"""The softmax likelihood of several classes as an oracle: expectations by nodes that fill the space evenly."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy.linalg import helmert
from scipy.special import ndtri
from scipy.stats import qmc

from thalweg.gaussian.likelihood import CHUNK_NUMBERS
from thalweg.gaussian.posteriors import Full
from thalweg.linalg import namespace
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
        xp = namespace(x.mean)
        first, second = _pairs(self.basis)
        basis_pairs = self.basis[:, first] * self.basis[:, second]

        def sums(counts: Any, design: Any) -> tuple:
            products = _products(design)
            logits = self._logits(x, design, products)
            logs = logits - _log_sum_exp(logits, xp)
            probabilities = xp.exp(logs)
            mean, weights = probabilities.mean(axis=1), counts.sum(axis=1)
            in_basis = probabilities @ self.basis
            between = xp.matmul(in_basis.swapaxes(1, 2), in_basis) / len(self.nodes)
            curvature = mean @ basis_pairs - between[:, first, second]
            gradient = (counts - weights[:, None] * mean) @ self.basis
            value = (counts * logs.mean(axis=1)).sum()
            return value, gradient.T @ design, (weights[:, None] * curvature).T @ products

        value, gradient, pairs = _sum_over_chunks(sums, (self.counts, self.design), self._chunk_rows(), xp)
        contrast_count, columns = gradient.shape
        blocks = pairs.reshape(-1, columns, columns)[_pair_numbers(contrast_count)].swapaxes(1, 2)
        covariance = blocks.reshape(gradient.size, gradient.size) / 2
        point = Full(-gradient.reshape(-1), covariance, xp.zeros_like(covariance))
        return Out(point, -value, xp.asarray(float(len(self.counts))))

    def mean_probabilities(self, x: Full) -> np.ndarray:
        """The probability of each class, averaged over the posterior, for each row of a design of NumPy."""
        rows, parts = self._chunk_rows(), []
        for first in range(0, len(self.design), rows):
            design = self.design[first : first + rows]
            logits = self._logits(x, design, _products(design))
            parts.append(np.exp(logits - _log_sum_exp(logits, np)).mean(axis=1))
        return np.concatenate(parts)

    def _chunk_rows(self) -> int:
        return max(1, CHUNK_NUMBERS // max(len(self.nodes) * len(self.intercepts), self.design.shape[1] ** 2))

    def _logits(self, x: Full, design: Any, products: Any) -> Any:
        """The linear predictors of all classes at the nodes, for each row."""
        xp = namespace(x.mean)
        columns = design.shape[1]
        contrast_count = self.basis.shape[1]
        first, second = _pairs(self.basis)
        mean = design @ x.mean.reshape(contrast_count, columns).T
        blocks = x.covariance.reshape(contrast_count, columns, contrast_count, columns)
        pairs = blocks.swapaxes(1, 2)[first, second].reshape(len(first), -1)
        covariance = (products @ pairs.T)[:, _pair_numbers(contrast_count)]
        # The symmetric root of a covariance that may be singular, as that of a row of zeros is.
        values, vectors = xp.linalg.eigh(covariance)
        root = (vectors * xp.sqrt(xp.maximum(values, 0))[:, None]) @ vectors.swapaxes(1, 2)
        around = mean[:, None] + self.nodes[None] @ root
        return self.intercepts[None, None] + around @ self.basis.T


def _products(design: Any) -> Any:
    """xxᵀ of each row x, as a row."""
    return (design[:, :, None] * design[:, None]).reshape(len(design), -1)


def _log_sum_exp(logits: Any, xp: Any) -> Any:
    largest = logits.max(axis=-1, keepdims=True)
    return largest + xp.log(xp.exp(logits - largest).sum(axis=-1, keepdims=True))


def _pairs(basis: Any) -> tuple[np.ndarray, np.ndarray]:
    """Pairs of contrasts: of what is symmetric in two of them each is computed once."""
    return np.triu_indices(basis.shape[1])


def _pair_numbers(count: int) -> np.ndarray:
    """The number of each pair of contrasts, whichever is the first."""
    numbers = np.zeros((count, count), int)
    first, second = np.triu_indices(count)
    numbers[first, second] = numbers[second, first] = np.arange(len(first))
    return numbers


def _sum_over_chunks(function: Callable[..., tuple], arrays: tuple, rows: int, xp: Any) -> tuple:
    """Add up what a function returns for each chunk of rows; rows of zeros must add nothing."""
    if xp is np:
        chunks = (tuple(array[first : first + rows] for array in arrays) for first in range(0, len(arrays[0]), rows))
        total = function(*next(chunks))
        for chunk in chunks:
            total = tuple(a + b for a, b in zip(total, function(*chunk), strict=True))
        return total
    missing = -len(arrays[0]) % rows
    padded = (jnp.pad(array, ((0, missing), (0, 0))) for array in arrays)
    chunks = tuple(array.reshape(-1, rows, array.shape[1]) for array in padded)
    parts = jax.lax.map(lambda chunk: function(*chunk), chunks)
    return tuple(part.sum(axis=0) for part in parts)

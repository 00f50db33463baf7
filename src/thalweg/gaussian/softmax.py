"""The softmax likelihood of several classes as an oracle: expectations by nodes that fill the space evenly."""

from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key, PyTree, Scalar
from scipy.linalg import helmert
from scipy.special import ndtri
from scipy.stats import qmc

from thalweg.gaussian.posteriors import Full
from thalweg.oracles.base import Oracle, Out

_BATCH = 256
NODES = 256
_JITTER = 1e-12


def contrasts(classes: int) -> np.ndarray:
    """Orthonormal columns that span what tells the classes apart: what all have in common says nothing."""
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


class ExpectedSoftmax(Oracle):
    """∇f, f(q) = −Σ c_nk E_q log softmax(levels + B·Wx_n)[k], for a :class:`Full` posterior q over the weights W.

    c counts the labels of each class that each row has. Rows come in multiples of 256, those without any being padding.

    Examples
    --------
    >>> oracle = ExpectedSoftmax(jnp.ones((256, 3)) / 768, jnp.ones((256, 1)), jnp.zeros(3))
    >>> start = Full(jnp.zeros(2), 1e-6 * jnp.eye(2), 1e6 * jnp.eye(2))
    >>> round(float(oracle.value(start)), 3)  # log 3
    1.099
    """

    deterministic: ClassVar[bool] = True

    counts: Float[Array, "n k"]
    design: Float[Array, "n p"]
    levels: Float[Array, " k"]
    basis: Float[Array, "k c"]
    nodes: Float[Array, "m c"]

    def __init__(self, counts: Array, design: Array, levels: Array, nodes: int = NODES) -> None:
        self.counts, self.design = counts, design
        self.levels, self.basis = levels, jnp.asarray(contrasts(len(levels)))
        self.nodes = jnp.asarray(normal_nodes(len(levels) - 1, nodes))

    @property
    def fixed_work(self) -> float:
        """Examples per estimate."""
        return float(len(self.counts))

    def value(self, x: Full) -> Scalar:
        """f."""
        return self.full(x).value

    def estimate(self, x: Full, state: PyTree, key: Key[Array, ""]) -> tuple[Out, PyTree]:
        """Value and gradient."""
        return self.full(x), state

    def full(self, x: Full) -> Out:
        """Value and gradient, by batches of rows."""
        kept = len(self.basis.T), self.design.shape[1]

        def add(sums: tuple, rows: tuple) -> tuple[tuple, None]:
            counts, design = rows
            weights = jnp.sum(counts, axis=1)
            logs = jax.nn.log_softmax(_latent(self, x, design))
            chances = jnp.exp(logs)
            mean = jnp.mean(chances, axis=1)
            value = jnp.sum(counts * jnp.mean(logs, axis=1))
            slope = (counts - weights[:, None] * mean) @ self.basis
            both = jnp.einsum("nmk,nml->nkl", chances, chances) / chances.shape[1]
            curvature = jnp.einsum("ki,nk,kj->nij", self.basis, mean, self.basis)
            curvature -= jnp.einsum("ki,nkl,lj->nij", self.basis, both, self.basis)
            bent = jnp.einsum("nk,np,nq->kpq", weights[:, None] * curvature[:, first, second], design, design)
            return (sums[0] - value, sums[1] - slope.T @ design, sums[2] + bent / 2), None

        # Of what is symmetric in two contrasts, each pair is computed once.
        first, second = np.triu_indices(kept[0])
        start = (jnp.zeros(()), jnp.zeros(kept), jnp.zeros((len(first), kept[1], kept[1])))
        batched = lambda array: array.reshape(-1, _BATCH, *array.shape[1:])
        rows = tuple(batched(array) for array in (self.counts, self.design))
        (value, mean, pairs), _ = jax.lax.scan(add, start, rows)
        covariance = pairs[_pair_of(kept[0])].swapaxes(1, 2)
        size = len(x.mean)
        gradient = Full(mean.reshape(-1), covariance.reshape(size, size), jnp.zeros((size, size)))
        return Out(gradient, value, jnp.asarray(float(len(self.counts))))


def _pair_of(contrasts: int) -> np.ndarray:
    """The number of each pair of contrasts, whichever is the first."""
    number = np.zeros((contrasts, contrasts), int)
    first, second = np.triu_indices(contrasts)
    number[first, second] = number[second, first] = np.arange(len(first))
    return number


def _latent(oracle: ExpectedSoftmax, x: Full, design: Float[Array, "n p"]) -> Float[Array, "n m k"]:
    """The linear predictors of all classes at the nodes."""
    shape = len(oracle.basis.T), design.shape[1]
    mean = design @ x.mean.reshape(shape).T
    first, second = np.triu_indices(shape[0])
    pairs = x.covariance.reshape(*shape, *shape)[first, :, second, :]
    covariance = jnp.einsum("np,kpq,nq->nk", design, pairs, design)[:, _pair_of(shape[0])]
    root = jnp.linalg.cholesky(covariance + _JITTER * jnp.eye(shape[0])[None])
    around = mean[:, None] + jnp.einsum("nij,mj->nmi", root, oracle.nodes)
    return oracle.levels[None, None] + around @ oracle.basis.T


@eqx.filter_jit
def mean_chances(oracle: ExpectedSoftmax, x: Full) -> Float[Array, "n k"]:
    """The probability of each class, averaged over the posterior, for each row of the oracle's design."""
    each = lambda design: jnp.mean(jax.nn.softmax(_latent(oracle, x, design)), axis=1)
    batches = oracle.design.reshape(-1, _BATCH, oracle.design.shape[1])
    return jax.lax.map(each, batches).reshape(-1, len(oracle.levels))

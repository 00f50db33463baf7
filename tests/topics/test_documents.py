"""Posteriors of documents: their fixed point against direct maximisation by quadrature, and what must never break."""

from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.sparse import csr_array

from thalweg.topics.documents import Nodes, Prior, Words, covariances, infer
from thalweg.topics.expectations import METHODS
from thalweg.topics.pages import paged


def grid(sides, degree=24):
    """Nodes and weights of a tensor Gauss–Hermite rule for a standard normal."""
    points, weights = np.polynomial.hermite_e.hermegauss(degree)
    weights = weights / weights.sum()
    points = np.array(list(product(points, repeat=sides)))
    weights = np.prod(np.array(list(product(weights, repeat=sides))), axis=1)
    return points, weights


class Problem:
    def __init__(self, sides, seed=0):
        rng = np.random.default_rng(seed)
        self.counts = rng.poisson(1.0, size=7).astype(float) + np.eye(7)[0]
        self.topics = rng.dirichlet(np.ones(7), size=sides).T
        root = rng.normal(size=(sides, sides))
        self.covariance = root @ root.T / sides + 0.5 * np.eye(sides)
        self.mean = rng.normal(size=sides) / 2
        self.sides = sides
        self.points, self.weights = grid(sides)

    def bound(self, mean, root):
        z = mean + self.points @ root.T
        shifted = np.exp(z - z.max(axis=1, keepdims=True))
        chance = shifted @ self.topics.T / shifted.sum(axis=1, keepdims=True)
        apart = mean - self.mean
        precision = np.linalg.inv(self.covariance)
        log_ratio = np.linalg.slogdet(self.covariance)[1] - 2 * np.sum(np.log(np.abs(np.diag(root))))
        divergence = (np.trace(precision @ root @ root.T) + apart @ precision @ apart - self.sides + log_ratio) / 2
        return self.weights @ (np.log(chance) @ self.counts) - divergence

    def best(self, diagonal=False):
        lower = np.diag_indices(self.sides) if diagonal else np.tril_indices(self.sides)

        def parts(flat):
            root = np.zeros((self.sides, self.sides))
            root[lower] = flat[self.sides :]
            return flat[: self.sides], root

        start = np.concatenate([self.mean, np.linalg.cholesky(self.covariance)[lower]])
        found = minimize(lambda flat: -self.bound(*parts(flat)), start, method="BFGS", options={"gtol": 1e-7})
        mean, root = parts(found.x)
        return mean, root @ root.T

    def found(self, method="pgsvi", exact=True, steps=300, step=0.5, means=None):
        table = csr_array(self.counts[None])
        pages = paged(table, 4, 1, 2)
        pages = pages._replace(counts=pages.counts.astype(jnp.float64))
        words = Words.of(pages, jnp.asarray(self.topics), 1)
        prior = Prior(jnp.asarray(self.mean)[None], jnp.asarray(np.linalg.inv(self.covariance)))
        nodes = Nodes(jnp.asarray(self.points.T)[None], jnp.asarray(self.weights))
        means = prior.means if means is None else jnp.asarray(means)[None]
        result = jax.jit(
            lambda means, step, steps: infer(
                words, prior, means, jax.random.key(0), step, steps=steps,
                method=METHODS[method], samples=2, exact=exact, nodes=nodes,
            )
        )(means, jnp.asarray(step), steps)  # fmt: skip
        return np.asarray(result.means[0]), np.asarray(covariances(result.precisions)[0])


@pytest.mark.parametrize("sides", [2, 3])
def test_the_fixed_point_maximises_the_documents_bound(sides):
    problem = Problem(sides)
    mean, covariance = problem.best()
    found_mean, found_covariance = problem.found()
    np.testing.assert_allclose(found_mean, mean, atol=1e-5)
    np.testing.assert_allclose(found_covariance, covariance, atol=1e-5)


def test_without_the_words_curvature_the_mean_is_still_stationary():
    problem = Problem(3)
    mean, covariance = problem.found(exact=False)
    root = np.linalg.cholesky(covariance)
    slopes = [
        (problem.bound(mean + side, root) - problem.bound(mean - side, root)) / 2e-5 for side in 1e-5 * np.eye(3)
    ]
    np.testing.assert_allclose(slopes, 0, atol=1e-6)

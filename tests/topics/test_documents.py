"""Posteriors of documents: their fixed point against direct maximisation by quadrature, and what must never break."""

import subprocess
import sys
from functools import partial
from itertools import product

import jax
import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.sparse import csr_array

from thalweg.topics.documents import DocumentWords, StepPlan, infer
from thalweg.topics.expectations import METHODS
from thalweg.topics.pages import BatchShape, make_pages
from thalweg.topics.prevalence import DocumentPrior


@partial(jax.jit, static_argnames=("method", "exact"))
def run(pages, topics, prior, means, plan, *, method, exact):
    words = DocumentWords.of(pages, topics, 1)
    result, _ = infer(words, prior, means, plan, method=METHODS[method], exact=exact)
    return result.means[0], result.covariances[0]


def grid(sides, degree):
    """Nodes and weights of a tensor Gauss–Hermite rule for a standard normal."""
    points, weights = np.polynomial.hermite_e.hermegauss(degree)
    weights = weights / weights.sum()
    points = np.array(list(product(points, repeat=sides)))
    weights = np.prod(np.array(list(product(weights, repeat=sides))), axis=1)
    return points, weights


class OneDocument:
    def __init__(self, sides, seed=0, degree=12):
        rng = np.random.default_rng(seed)
        self.counts = rng.poisson(1.0, size=7).astype(float) + np.eye(7)[0]
        self.topics = rng.dirichlet(np.ones(7), size=sides).T
        root = rng.normal(size=(sides, sides))
        self.covariance = root @ root.T / sides + 0.5 * np.eye(sides)
        self.mean = rng.normal(size=sides) / 2
        self.sides = sides
        self.points, self.weights = grid(sides, degree)

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

    def found(self, method="pgsvi", exact=True, steps=80, step=0.7, means=None):
        table = csr_array(self.counts[None])
        pages = make_pages(table, BatchShape(1, 2, 4))
        pages = pages._replace(counts=pages.counts.astype(float))
        precision = np.linalg.inv(self.covariance)
        prior = DocumentPrior(self.mean[None], precision, np.linalg.slogdet(precision)[1])
        means = prior.means if means is None else means[None]
        plan = StepPlan(self.points.T[None], self.weights, np.float64(step), np.int64(steps))
        result = run(pages, self.topics, prior, means, plan, method=method, exact=exact)
        return tuple(map(np.asarray, result))


def test_the_fixed_point_maximises_the_documents_bound():
    problem = OneDocument(3)
    mean, covariance = problem.best()
    found_mean, found_covariance = problem.found()
    np.testing.assert_allclose(found_mean, mean, atol=1e-5)
    np.testing.assert_allclose(found_covariance, covariance, atol=5e-5)  # what is left of the rule's error


def test_without_the_words_curvature_the_mean_is_still_stationary():
    problem = OneDocument(3, degree=8)
    mean, covariance = problem.found(exact=False)
    root = np.linalg.cholesky(covariance)
    slopes = [(problem.bound(mean + side, root) - problem.bound(mean - side, root)) / 2e-5 for side in 1e-5 * np.eye(3)]
    np.testing.assert_allclose(slopes, 0, atol=1e-6)


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("step", [0.1, 1.0])
def test_covariances_are_positive_definite_from_any_start_with_any_step(exact, step):
    problem = OneDocument(3, degree=12 if exact else 8)
    for start in (np.array([40.0, -40.0, 0.0]), np.zeros(3), np.array([-9.0, 9.0, 9.0])):
        for steps in (1, 2, 7):
            mean, covariance = problem.found(exact=exact, step=step, steps=steps, means=start)
            assert np.all(np.isfinite(mean))
            assert np.all(np.linalg.eigvalsh(covariance) > 0)


def test_laplace_finds_the_mode_of_its_bound():
    """With φ free, words count as log Σ β e^m: the mode is where its gradient and the prior's are opposite."""
    problem = OneDocument(3, degree=2)  # at the mode nothing is drawn
    mean, covariance = problem.found("laplace", exact=False)
    point = lambda z: (
        problem.counts @ np.log(problem.topics @ np.exp(z) / np.sum(np.exp(z)))
        - (z - problem.mean) @ np.linalg.solve(problem.covariance, z - problem.mean) / 2
    )
    slopes = [(point(mean + side) - point(mean - side)) / 2e-5 for side in 1e-5 * np.eye(3)]
    np.testing.assert_allclose(slopes, 0, atol=1e-6)
    share = np.exp(mean) / np.sum(np.exp(mean))
    curvature = np.linalg.inv(problem.covariance) + problem.counts.sum() * (np.diag(share) - np.outer(share, share))
    np.testing.assert_allclose(covariance, np.linalg.inv(curvature), atol=1e-8)


def jensen_bounds(problem, method):
    """The bounds of Blei and Lafferty and of Wang and Blei, of a mean and a diagonal of variances."""

    def bound(flat):
        mean, variance = flat[:3], np.exp(flat[3:])
        words = problem.counts @ np.log(problem.topics @ np.exp(mean))
        share = np.exp(mean) / np.sum(np.exp(mean))
        normaliser = (
            np.log(np.sum(np.exp(mean + variance / 2)))
            if method == "mean-field"
            else np.log(np.sum(np.exp(mean))) + np.sum((share - share**2) * variance) / 2
        )
        precision, apart = np.linalg.inv(problem.covariance), mean - problem.mean
        kl = (np.diag(precision) @ variance + apart @ precision @ apart - np.sum(np.log(variance))) / 2
        return words - problem.counts.sum() * normaliser - kl

    return bound


@pytest.mark.parametrize("method", ["mean-field", "delta"])
def test_the_older_diagonal_methods_maximise_their_bounds(method):
    problem = OneDocument(3, degree=2)
    bound = jensen_bounds(problem, method)
    best = minimize(lambda flat: -bound(flat), np.concatenate([problem.mean, np.zeros(3)]), options={"gtol": 1e-8}).x
    mean, covariance = problem.found(method, exact=False, steps=150)
    np.testing.assert_allclose(mean, best[:3], atol=1e-5)
    np.testing.assert_allclose(np.diag(covariance), np.exp(best[3:]), atol=1e-5)
    assert np.count_nonzero(covariance) == 3


def test_a_diagonal_posteriors_mean_is_stationary():
    problem = OneDocument(3, degree=8)
    mean, covariance = problem.found("pgsvi-mf", exact=False, steps=150)
    root = np.sqrt(covariance)
    slopes = [(problem.bound(mean + side, root) - problem.bound(mean - side, root)) / 2e-5 for side in 1e-5 * np.eye(3)]
    np.testing.assert_allclose(slopes, 0, atol=1e-6)
    assert np.count_nonzero(covariance) == 3


@pytest.mark.slow
@pytest.mark.parametrize("sides", [20, 50, 100])
def test_many_topics_do_not_hang(sides):
    """In a process of its own: batched factorisations that wait for one another would never return."""
    program = (
        "import numpy as np, warnings; from thalweg import CorrelatedTopicModel; warnings.simplefilter('ignore');"
        "X = np.random.default_rng(0).poisson(0.1, size=(600, 400));"
        f"model = CorrelatedTopicModel({sides}, max_iter=2, draws=4);"
        "model.fit(X); model.posterior(X[:64]); print(np.isfinite(model.score(X)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=600)
    assert done.stdout.strip() == "True", done.stderr

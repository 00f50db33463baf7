"""Candidates of the search: rows left out against refits, and average gradient outer products against differences."""

import numpy as np
import pytest

from thalweg.kernels import Gaussian, Laplacian, Matern12, Matern32, Matern52
from thalweg.machines.metric import Metric, explained_alone
from thalweg.machines.search import Candidate, Rung

rng = np.random.default_rng(0)
X = rng.normal(size=(40, 3))
Y = np.stack([np.sin(2 * X[:, 0]) + X[:, 1], X[:, 1] * X[:, 2]], axis=1) + 0.1 * rng.normal(size=(40, 2))
WEIGHTS = rng.uniform(0.5, 2.0, size=40)
PLAIN, SCALED = Metric(None), Metric(np.array([2.0, 1.0, 0.25]))
TURNED = Metric(np.linalg.qr(rng.normal(size=(3, 3)))[0] * [1.5, 1.0, 0.5])


RUNG = Rung(X, Y, WEIGHTS)


def matrix(candidate, x, y):
    kernel = RUNG.kernel(candidate)
    return np.asarray(kernel(candidate.metric.apply(x), candidate.metric.apply(y)))


@pytest.mark.parametrize(
    ("family", "metric"),
    [
        (Gaussian, PLAIN),
        (Matern52, SCALED),
        (Matern32, TURNED),
        (Matern12, PLAIN),
        (Laplacian, SCALED),
        (Matern32(0.7, 2.0), PLAIN),
    ],
)
def test_rows_are_left_out_one_by_one_as_refits_do(family, metric):
    for ridge, precise in ((1e-7, 1e-6), (1.0, 1e-4)):  # in float64 and in float32
        candidate = Candidate(family, metric, 0.8, ridge)
        losses, values = RUNG.score(candidate), RUNG.leave_one_out(candidate)
        K = matrix(candidate, X, X)
        for row in (0, 17, 39):
            rest = np.arange(40) != row
            inner = K[np.ix_(rest, rest)] + np.diag(ridge / WEIGHTS[rest])
            f = K[row, rest] @ np.linalg.solve(inner, Y[rest])
            np.testing.assert_allclose(values[row], f, atol=precise)
            assert losses[row] == pytest.approx(WEIGHTS[row] * np.sum((f - Y[row]) ** 2), rel=precise)


def test_the_lengthscale_is_a_multiple_of_the_median_distance():
    distances = np.sqrt(np.sum((X[:, None] - X[None]) ** 2, axis=2))[np.triu_indices(40, 1)]
    assert RUNG.kernel(Candidate(Gaussian, PLAIN, 0.5, 1.0)).lengthscale == pytest.approx(
        0.5 * np.median(distances), rel=0.1
    )
    same = Rung(np.ones((40, 3)), Y, WEIGHTS)
    assert same.kernel(Candidate(Gaussian, PLAIN, 0.5, 1.0)).lengthscale == 0.5
    assert np.all(np.isfinite(same.score(Candidate(Gaussian, PLAIN, 0.5, 1.0))))


@pytest.mark.parametrize("family", [Gaussian, Matern32, Matern52])
@pytest.mark.parametrize("metric", [PLAIN, SCALED, TURNED], ids=["plain", "diagonal", "full"])
def test_gradients_are_those_of_finite_differences(family, metric):
    """M = mean_x ∇f(x)∇f(x)ᵀ, in the features and not in the metric."""
    candidate = Candidate(family, metric, 0.9, 0.1)
    weights = np.linalg.solve(matrix(candidate, X, X) + np.diag(0.1 / WEIGHTS), Y)
    f = lambda points: matrix(candidate, points, X) @ weights
    step = 1e-5
    slopes = np.stack([(f(X + step * unit) - f(X - step * unit)) / (2 * step) for unit in np.eye(3)], axis=2)
    expected = np.einsum("rci,rcj->ij", slopes, slopes) / 40
    if metric is not TURNED:
        np.testing.assert_allclose(RUNG.gradient_outer_product(candidate, full=False), np.diagonal(expected), rtol=1e-4)
    np.testing.assert_allclose(RUNG.gradient_outer_product(candidate, full=True), expected, rtol=1e-4, atol=1e-6)


def test_gradients_of_many_outputs_are_mixed():
    """Of ten outputs that change along one feature each, all features count, and the unused ones do not."""
    x = np.random.default_rng(1).normal(size=(200, 12))
    found = Rung(x, np.sin(x[:, :10]), np.ones(200))
    squares = found.gradient_outer_product(Candidate(Gaussian, PLAIN, 1.0, 1e-2), full=False)
    assert np.min(squares[:10]) > 3 * np.max(squares[10:])


def test_gradients_find_the_features_that_matter():
    x = np.random.default_rng(1).normal(size=(300, 20))
    y = np.sin(2 * x[:, 3]) + x[:, 7] * x[:, 11]
    squares = Rung(x, y[:, None], np.ones(300)).gradient_outer_product(
        Candidate(Gaussian, PLAIN, 1.0, 1e-2), full=False
    )
    assert set(np.argsort(squares)[-3:]) == {3, 7, 11}


def test_gradients_find_the_directions_that_matter():
    x = np.random.default_rng(1).normal(size=(300, 8))
    along = np.linalg.qr(np.random.default_rng(2).normal(size=(8, 2)))[0]
    y = np.sin(2 * x @ along[:, :1]) + x @ along[:, 1:]
    total = Rung(x, y, np.ones(300)).gradient_outer_product(Candidate(Gaussian, PLAIN, 1.0, 1e-2), full=True)
    largest = np.linalg.eigh(total)[1][:, -2:]
    assert np.linalg.svd(along.T @ largest)[1].min() > 0.95  # cosine of the larger angle between the planes


def test_a_constant_function_has_no_gradients():
    found = Rung(X, np.zeros((40, 1)), WEIGHTS)
    assert found.gradient_outer_product(Candidate(Gaussian, PLAIN, 1.0, 0.1), full=False) is None


def test_what_features_explain_alone_is_the_share_of_variance_between_blocks_and_nothing_by_chance():
    draw = np.random.default_rng(0)
    x, weights = draw.uniform(-1.5, 1.5, size=(8000, 4)), draw.uniform(0.5, 2.0, size=8000)
    y = np.stack([np.sin(3 * x[:, 0]) + x[:, 1] ** 2, np.sign(x[:, 2])], axis=1)
    parts = np.stack([np.sin(3 * x[:, 0]), x[:, 1] ** 2, np.sign(x[:, 2])])
    shares = np.average((parts - np.average(parts, axis=1, weights=weights)[:, None]) ** 2, axis=1, weights=weights)
    found = explained_alone(x, y, weights)
    np.testing.assert_allclose(found[:3], shares / np.sum(shares), atol=0.03)
    assert found[3] < 0.003
    chance = [explained_alone(draw.normal(size=(200, 50)), draw.normal(size=(200, 1)), np.ones(200)) for _ in range(20)]
    assert 0 < np.mean([np.sum(each > 0) for each in chance]) < 8  # of 50: most are below two deviations
    waves = explained_alone(x[:300], np.sin(14 * x[:300, :1]), np.ones(300))
    assert waves[0] > 0.5  # seven of them, in as many blocks as the cube root
    assert np.all(waves[1:] < 0.1)

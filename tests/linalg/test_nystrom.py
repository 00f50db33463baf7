"""The low-rank preconditioner: its inverse, its determinant, and pivots that go where K is not explained yet."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from thalweg.linalg import low_rank, nystrom_features

RNG = np.random.default_rng(0)
X = RNG.uniform(0, 4, size=(90, 2))
K = np.exp(-((X[:, None] - X) ** 2).sum(-1) / 2)


def columns_of(matrix, xp=np):
    return lambda chosen: xp.asarray(matrix)[:, chosen]


@pytest.mark.parametrize("xp", [np, jnp], ids=["host", "device"])
def test_the_inverse_is_that_of_the_dense_matrix_for_each_diagonal(xp):
    G, right = RNG.normal(size=(90, 7)), RNG.normal(size=(90, 3))
    diagonals = RNG.uniform(0.1, 2.0, size=(90, 3))

    def invert(features, diagonal, right):
        preconditioner = low_rank(features, diagonal)
        return preconditioner.solve(right), preconditioner.log_determinant()

    invert = jax.jit(invert) if xp is jnp else invert
    several, _ = invert(G, diagonals, right)
    for c in range(3):
        dense = G @ G.T + np.diag(diagonals[:, c])
        exact = np.linalg.solve(dense, right)
        solution, log_determinant = invert(G, diagonals[:, [c]], right)
        np.testing.assert_allclose(solution, exact, rtol=1e-8, atol=1e-10)
        np.testing.assert_allclose(several[:, c], exact[:, c], rtol=1e-8, atol=1e-10)
        assert float(log_determinant) == pytest.approx(np.linalg.slogdet(dense)[1], rel=1e-10)


def test_features_lie_below_the_matrix_and_say_what_they_leave():
    features, left = nystrom_features(columns_of(K), np.diagonal(K), 30, np.random.default_rng(1))
    assert features.shape == (90, 30)
    rest = K - features @ features.T
    assert np.linalg.eigvalsh(rest).min() > -1e-9
    np.testing.assert_allclose(left, np.diagonal(rest), atol=1e-9)
    assert np.mean(left) < 0.02


def test_features_on_a_device_are_those_on_the_host():
    """Of two rounds, since each compiles its own programs."""
    (here, left), (there, left_there) = (
        nystrom_features(columns_of(K, xp), np.diagonal(K), 2, np.random.default_rng(1)) for xp in (np, jnp)
    )
    assert isinstance(there, jax.Array)
    assert here.shape == (90, 2)
    np.testing.assert_allclose(there, here, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(left_there, left, rtol=1e-10, atol=1e-12)


def test_more_pivots_than_the_matrix_has_rank_are_no_error():
    features, left = nystrom_features(columns_of(K), np.diagonal(K), 500, np.random.default_rng(1))
    np.testing.assert_allclose(features @ features.T, K, atol=1e-6)
    assert np.all(left >= 0)


def test_pivots_go_where_the_matrix_is_not_explained():
    """Of ninety copies of one row and nine rows of their own, uniform pivots would miss most of the nine."""
    points = np.concatenate([np.zeros(90), 10 * np.arange(1.0, 10)])[:, None]
    matrix = np.exp(-((points - points.T) ** 2))
    _, left = nystrom_features(columns_of(matrix), np.diagonal(matrix), 30, np.random.default_rng(0))
    assert np.max(left) < 1e-6


def test_rows_without_a_diagonal_are_no_pivots():
    matrix = K.copy()
    matrix[40:] = matrix[:, 40:] = 0
    features, left = nystrom_features(columns_of(matrix), np.diagonal(matrix), 90, np.random.default_rng(0))
    assert features.shape[1] == 40
    assert not np.any(features[40:])
    assert not np.any(left[40:])

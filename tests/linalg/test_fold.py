"""Loops over tiles on host and device, and low-rank preconditioners within conjugate gradients."""

import jax.numpy as jnp
import numpy as np
import pytest

from thalweg.linalg import conjugate_gradients, factorise, fold_tiles, log_quadrature, low_rank

RNG = np.random.default_rng(0)
POINTS = RNG.normal(size=(50, 1))
PIVOTS = np.linspace(-3, 3, 5)[:, None]
NOISE = np.linspace(0.5, 2.0, 50)[:, None]
PLACES = pytest.mark.parametrize("xp", [np, jnp], ids=["host", "device"])


def kernel(pivots, points):
    return np.exp(-((points - pivots.T) ** 2) / 2)


def stored():
    root = factorise(kernel(PIVOTS, PIVOTS))
    return root.half_solve(kernel(PIVOTS, POINTS).T).T


def test_a_preconditioner_inverts_what_it_says():
    preconditioner = low_rank(stored(), NOISE)
    matrix = stored() @ stored().T + np.diag(NOISE[:, 0])
    np.testing.assert_allclose(preconditioner.solve(matrix), np.eye(50), atol=1e-9)
    assert float(preconditioner.log_determinant()) == pytest.approx(np.linalg.slogdet(matrix)[1], rel=1e-10)


@PLACES
@pytest.mark.parametrize("size", [1, 4, 10, 99])
def test_tiles_hold_every_row_once(xp, size):
    values = xp.asarray(np.arange(10.0))

    def step(carry, tile):
        total, copied = carry
        return total + xp.sum(xp.where(tile.new, tile.take(values), 0)), tile.put(copied, 2 * tile.take(values))

    total, copied = fold_tiles(step, (xp.zeros(()), xp.zeros(10)), 10, size, xp)
    assert float(total) == 45
    np.testing.assert_array_equal(copied, 2 * np.arange(10.0))


def test_logarithms_follow_from_the_steps_of_preconditioned_conjugate_gradients():
    matrix = stored()[:30] @ stored()[:30].T + np.diag(NOISE[:30, 0])
    preconditioner = low_rank(0.5 * stored()[:30], NOISE[:30])
    right = RNG.normal(size=(30, 3))
    steps = conjugate_gradients(lambda block: matrix @ block, right, precondition=preconditioner.solve, tol=1e-10)
    low = 0.25 * stored()[:30] @ stored()[:30].T + np.diag(NOISE[:30, 0])
    values, vectors = np.linalg.eigh(low)
    root = vectors / np.sqrt(values) @ vectors.T
    values, vectors = np.linalg.eigh(root @ matrix @ root)
    logarithm = vectors * np.log(values) @ vectors.T
    for column in range(3):
        z = root @ right[:, column]
        found = log_quadrature(steps.sizes[:, column], steps.ratios[:, column])
        assert found == pytest.approx(z @ logarithm @ z / (z @ z), rel=1e-6)


def test_a_preconditioner_that_is_not_positive_definite_ends_a_column():
    solved = conjugate_gradients(lambda block: block, np.ones((3, 1)), precondition=lambda block: -block)
    assert solved.iterations == 1
    assert solved.residuals[0] == 1

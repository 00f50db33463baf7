"""Low-rank preconditioners whose features are stored or made anew, and loops over tiles, on host and device."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.tree_util import Partial

from thalweg.linalg import TiledFeatures, conjugate_gradients, factorise, fold_tiles, log_quadrature, low_rank

RNG = np.random.default_rng(0)
POINTS = RNG.normal(size=(9000, 1))
PIVOTS = np.linspace(-3, 3, 5)[:, None]
NOISE = np.linspace(0.5, 2.0, 9000)[:, None]
PLACES = pytest.mark.parametrize("xp", [np, jnp], ids=["host", "device"])


def kernel(pivots, points):
    xp = np if isinstance(points, np.ndarray) else jnp
    return xp.exp(-((points - pivots.T) ** 2) / 2)


def tiled(xp):
    pivots = xp.asarray(PIVOTS)
    return TiledFeatures(Partial(kernel, pivots), xp.asarray(POINTS), factorise(kernel(pivots, pivots)))


def stored():
    root = factorise(kernel(PIVOTS, PIVOTS))
    return root.half_solve(kernel(PIVOTS, POINTS).T).T


@PLACES
def test_features_made_anew_precondition_as_stored_ones(xp):
    block = RNG.normal(size=(9000, 2))
    expected = low_rank(stored(), NOISE)
    place = jax.jit if xp is jnp else lambda function: function
    found = place(low_rank)(tiled(xp), xp.asarray(NOISE))
    np.testing.assert_allclose(found.solve(xp.asarray(block)), expected.solve(block), rtol=1e-9, atol=1e-9)
    assert float(found.log_determinant()) == pytest.approx(float(expected.log_determinant()), rel=1e-12)
    inner = RNG.normal(size=(5, 2))
    made, kept = (one.draw(part(inner), part(block)) for one, part in ((found, xp.asarray), (expected, np.asarray)))
    np.testing.assert_allclose(made, kept, rtol=1e-9, atol=1e-9)


def test_features_made_anew_store_no_row_for_each_pivot():
    assert max(np.size(leaf) for leaf in jax.tree.leaves(low_rank(tiled(np), NOISE))) < 3 * len(POINTS)


def test_a_preconditioner_inverts_what_it_says():
    preconditioner = low_rank(stored()[:50], NOISE[:50])
    matrix = stored()[:50] @ stored()[:50].T + np.diag(NOISE[:50, 0])
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

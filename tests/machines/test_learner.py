"""Learners: blocks that fill, caps, later passes, and what a conversion of their arrays leaves alone."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference

from thalweg.kernels import Gaussian
from thalweg.machines import Auto, Settings, SquaredLoss, Table
from thalweg.machines.start import start_learner
from thalweg.rows import FeatureFrame

SIZE, D, ALPHA = 8, 2, 1.0
rng = np.random.default_rng(0)
X = rng.normal(size=(80, D))
TABLE = Table(X, np.sin(2 * X[:, :1]) + X[:, 1:], rng.uniform(0.5, 2.0, size=80))
PLAIN = FeatureFrame()


def learner(limit, **options):
    method = Auto(tol=1e-12, batch_size=16, step=0.5, block_size=SIZE, **options)
    settings = Settings(loss=SquaredLoss(), method=method, max_features=limit * SIZE)
    return start_learner(settings, Gaussian(0.8), D, 1, None, 0, np.float64)


def learn(model, order, before=None):
    return list(model.learn(TABLE, np.asarray(order), ALPHA, len(order), before))


def exact(rows):
    K = reference.gaussian(X[rows], X[rows], 0.8, 1.0)
    return np.linalg.solve(K + np.diag(ALPHA / TABLE.weights[rows]), TABLE.targets[rows])


def test_a_block_filled_in_parts_is_what_it_is_filled_at_once():
    whole, parts = learner(3), learner(3)
    assert learn(whole, range(SIZE)) == [SIZE]
    assert (learn(parts, range(3)), parts.filled, parts.features) == ([3], 3, 3)
    np.testing.assert_allclose(parts.expansion.weights[0, :3], exact(np.arange(3)), rtol=1e-9)
    learn(parts, range(3, 7))
    assert (learn(parts, [7]), parts.filled, parts.features) == ([1], SIZE, SIZE)
    assert int(parts.expansion.used) == 1
    np.testing.assert_array_equal(parts.expansion.blocks[0], whole.expansion.blocks[0])
    np.testing.assert_allclose(parts.expansion.weights[0], whole.expansion.weights[0], rtol=1e-9)
    np.testing.assert_allclose(whole.expansion.weights[0], exact(np.arange(SIZE)), rtol=1e-9)


def test_what_was_learned_before_is_left_as_it_is():
    """Arrays are replaced, not written to: an interrupted call leaves the machine before it."""
    model = learner(3)
    learn(model, range(5))
    before = model.expansion, model.examples
    copies = jax.tree.map(np.array, before)
    learn(model, range(5, 20))
    list(model.again(TABLE, np.arange(20), ALPHA, 20))
    for old, copied in zip(jax.tree.leaves(before), jax.tree.leaves(copies), strict=True):
        np.testing.assert_array_equal(old, copied)


def test_rows_are_landmarks_up_to_the_cap_and_steps_beyond_it():
    model = learner(2)
    assert learn(model, range(22)) == [SIZE, SIZE, 6]
    assert (model.features, int(model.expansion.used), model.expansion.capacity) == (16, 2, 2)
    assert int(model.expansion.steps) == 1
    # A later pass sweeps over the blocks and steps with the rows beyond the cap again.
    assert sum(model.again(TABLE, np.arange(22), ALPHA, 22)) == 22
    assert int(model.expansion.steps) == 2
    # Of other rows none becomes a landmark, and all of them are stepped with in every pass.
    assert learn(model, range(30, 50)) == [16, 4]
    assert sum(model.again(TABLE, np.arange(30, 50), ALPHA, 20)) == 16 + 20
    assert (model.features, int(model.expansion.steps)) == (16, 6)


def test_later_passes_sweep_over_every_block_and_converge():
    model = learner(10)
    learn(model, range(21))
    gap = lambda: np.abs(model.landmarks()[1] - exact(np.arange(21))).max()
    assert gap() > 1e-2
    for _ in range(60):
        assert sum(model.again(TABLE, np.arange(21), ALPHA, 21)) == 21
    assert gap() < 1e-6


def test_conversion_touches_arrays_only():
    model = learner(3)
    learn(model, range(5))
    converted = model.mapped(jnp.asarray)
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(converted.expansion))
    assert (converted.filled, converted.seed, converted.batch_size) == (5, 0, 16)
    assert model.dtype == converted.dtype == np.float64
    np.testing.assert_array_equal(converted.predict(X[:4], PLAIN), model.predict(X[:4], PLAIN))
    assert isinstance(model.expansion.weights, np.ndarray)


def test_steps_along_old_blocks_lower_the_loss_on_their_rows():
    model = learner(2)
    learn(model, range(16))
    loss = lambda: model.score(TABLE.subset(np.arange(16, 80)))[0]
    before = loss()
    for _ in range(5):
        assert sum(learn(model, range(16, 80))) == 64
    assert (model.features, int(model.expansion.steps)) == (16, 20)
    assert loss() < 0.6 * before


@pytest.mark.parametrize("rows", [1, 40])
def test_predictions_of_any_number_of_rows(rows):
    model = learner(3)
    learn(model, range(SIZE))
    expected = reference.gaussian(X[:rows], X[:SIZE], 0.8, 1.0) @ exact(np.arange(SIZE))
    np.testing.assert_allclose(model.predict(X[:rows], PLAIN), expected, rtol=1e-7, atol=1e-9)


def test_steps_end_where_new_rows_are_predicted_no_better():
    """Those of a stream go on."""
    order = np.concatenate([np.arange(16), np.tile(np.arange(16, 80), 30)])
    stream, passed = learner(2), learner(2)
    assert sum(learn(stream, order)) == len(order)
    assert sum(learn(passed, order, [])) < len(order)
    assert int(passed.expansion.steps) >= 16


def test_other_units_of_the_targets_change_nothing_but_the_units():
    """Landmarks know their targets: they are solved for again."""
    model = learner(3)
    learn(model, range(20))
    changed = model.with_targets(np.array([2.0]), np.array([5.0]), ALPHA)
    K = reference.gaussian(X[:20], X[:20], 0.8, 1.0)
    for _ in range(75):
        list(changed.again(TABLE, np.arange(20), ALPHA, 20))
    y = 2 * TABLE.targets[:20] + 5
    expected = K @ np.linalg.solve(K + np.diag(ALPHA / TABLE.weights[:20]), y)
    np.testing.assert_allclose(changed.predict(X[:20], PLAIN), expected, atol=1e-6)


def test_a_learner_starts_without_compiling(compiled):
    """Of NumPy's arrays jnp.asarray would compile a program for each shape: a fifth of a second in a first fit."""
    table = Table(X[:77], TABLE.targets[:77], np.ones(77))
    start = start_learner(Settings(loss=SquaredLoss()), Gaussian(0.8), D, 1, 77, 0, np.float32)
    start.place(table, np.arange(77))
    start.take(np.ones((77, 1)))
    start.predict(X, PLAIN)
    assert not compiled
    jax.jit(lambda x: x + 77)(np.zeros(77))
    assert compiled

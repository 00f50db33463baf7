"""Learners: blocks that fill, caps, later passes, and what a conversion of their arrays leaves alone."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from thalweg.machines.learners import start

from thalweg.kernels import Gaussian
from thalweg.machines import Auto, Rows, Settings, SquaredLoss

SIZE, D, ALPHA = 8, 2, 0.3
rng = np.random.default_rng(0)
X = rng.normal(size=(80, D))
ROWS = Rows(X, np.sin(2 * X[:, :1]) + X[:, 1:], rng.uniform(0.5, 2.0, size=80))


def learner(limit):
    method = Auto(tol=1e-12, batch_size=16, step=0.5, block_size=SIZE)
    settings = Settings(loss=SquaredLoss(), method=method, max_features=limit * SIZE)
    return start(settings, Gaussian(0.8), D, 1, None, 0, jnp.float64)


def learn(model, order):
    return list(model.learn(ROWS, np.asarray(order), ALPHA, len(order)))


def exact(rows):
    K = reference.gaussian(X[rows], X[rows], 0.8, 1.0)
    return np.linalg.solve(K + np.diag(ALPHA / ROWS.weights[rows]), ROWS.targets[rows])


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


def test_rows_are_landmarks_up_to_the_cap_and_steps_beyond_it(monkeypatch):
    model = learner(3)
    steps = []
    taken = lambda rows, order, size, ridge, **_: steps.append((sorted(order), size, ridge)) or iter(())
    monkeypatch.setattr(model, "_steps", taken)
    learn(model, range(30))
    assert steps.pop() == (list(range(24, 30)), 16, ALPHA / 30)
    assert (model.features, int(model.expansion.used), model.expansion.capacity) == (24, 3, 3)
    list(model.again(ROWS, np.arange(30), ALPHA, 30))
    assert steps.pop()[0] == list(range(24, 30))
    # Of other rows none becomes a landmark, and all of them are stepped with in every pass.
    learn(model, range(30, 50))
    list(model.again(ROWS, np.arange(30, 50), ALPHA, 20))
    assert [order for order, _, _ in steps] == [list(range(30, 50))] * 2


@pytest.mark.slow
def test_later_passes_visit_every_block_and_converge():
    model = learner(10)
    learn(model, range(21))
    gap = [np.abs(np.asarray(model.expansion.weights).reshape(-1, 1)[:21] - exact(np.arange(21))).max()]
    for _ in range(120):
        assert sum(model.again(ROWS, np.arange(21), ALPHA, 21)) == 21
    gap.append(np.abs(np.asarray(model.expansion.weights).reshape(-1, 1)[:21] - exact(np.arange(21))).max())
    assert gap[1] < 1e-6 < 1e-2 < gap[0]


def test_conversion_touches_arrays_only():
    model = learner(3)
    learn(model, range(5))
    converted = model.mapped(np.asarray)
    assert all(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(converted.expansion))
    assert (converted.filled, converted.seed, converted.batch_size) == (5, 0, 16)
    assert model.dtype == converted.dtype == jnp.float64
    np.testing.assert_array_equal(converted.predict(X[:4]), model.predict(X[:4]))
    assert isinstance(model.expansion.weights, jax.Array)


@pytest.mark.slow
def test_steps_along_old_blocks_lower_the_loss_on_their_rows():
    model = learner(2)
    learn(model, range(16))
    loss = lambda: float(np.mean((model.predict(X[16:]) - ROWS.targets[16:]) ** 2))
    before = loss()
    for _ in range(5):
        assert sum(learn(model, range(16, 80))) == 64
    assert (model.features, int(model.expansion.steps)) == (16, 20)
    assert loss() < 0.7 * before


@pytest.mark.parametrize("rows", [1, 40])
def test_predictions_are_padded_and_unpadded(rows):
    model = learner(3)
    learn(model, range(SIZE))
    expected = reference.gaussian(X[:rows], X[:SIZE], 0.8, 1.0) @ exact(np.arange(SIZE))
    np.testing.assert_allclose(model.predict(X[:rows]), expected, rtol=1e-7, atol=1e-9)


def test_steps_end_where_new_rows_are_foretold_no_better():
    """Those of a stream go on."""
    order = np.concatenate([np.arange(16), np.tile(np.arange(16, 80), 30)])
    for foreseen, whole in ((None, True), ([], False)):
        model = learner(2)
        assert (sum(model.learn(ROWS, order, ALPHA, len(order), foreseen)) == len(order)) == whole
    assert int(model.expansion.steps) >= 16


def test_a_learner_begins_without_compiling():
    """Of NumPy's arrays jnp.asarray compiles a program for each shape: a fifth of a second in a first fit."""
    told = []
    jax.monitoring.register_event_duration_secs_listener(lambda name, *_, **__: told.append(name))
    rows = Rows(X[:77], ROWS.targets[:77], np.ones(77))
    begun = start(Settings(loss=SquaredLoss()), Gaussian(0.8), D, 1, 77, 0, np.float32)
    begun.place(rows, np.arange(77))
    begun.take(np.ones((77, 1)))
    assert not [name for name in told if "compile" in name]
    jax.jit(lambda x: x + 77)(np.zeros(77))
    assert [name for name in told if "compile" in name]

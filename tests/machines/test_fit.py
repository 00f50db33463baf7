"""The one entry: what it returns, that it leaves what it goes on from as it was, and how it holds out and counts."""

from dataclasses import replace

import numpy as np
import pytest
import reference

from thalweg.kernels import Gaussian
from thalweg.machines import Auto, HuberLoss, Rows, Settings, SquaredLoss, dense, fit, fitting, learn, slices, solving

rng = np.random.default_rng(0)
X = rng.normal(size=(40, 2))
ROWS = Rows(X, np.sin(2 * X[:, :1]) + X[:, 1:], rng.uniform(0.5, 2.0, size=40), scale=np.array([10.0]))
SETTINGS = Settings(loss=SquaredLoss(), kernel=Gaussian(0.8), alpha=0.3, method=Auto(block_size=64))
SEVERAL = replace(SETTINGS, method=Auto(block_size=16, early_stopping=True, validation_fraction=0.25), passes=3)


@pytest.fixture(scope="module")
def several():
    return fit(ROWS, SEVERAL, seed=3)


def test_one_block_is_kernel_ridge_in_float64():
    found = fit(ROWS, SETTINGS, seed=0)
    K = reference.gaussian(X, X, 0.8, 1.0)
    exact = K @ np.linalg.solve(K + np.diag(0.3 / ROWS.weights), ROWS.targets)
    np.testing.assert_allclose(found.predict(X), exact, atol=1e-9)
    assert (found.double, found.features, found.passes, found.alpha) == (True, 40, 1, 0.3)
    assert found.seen == pytest.approx(ROWS.weights.sum())


def test_a_held_out_slice_is_judged_in_units_of_the_targets(several):
    order = np.random.default_rng([3, 2]).permutation(40)
    held = ROWS.subset(np.sort(order[:10]))
    best = min(several.history, key=lambda line: line["held_out_loss"])
    errors = several.predict(held.x) - held.targets
    assert best["held_out_loss"] == pytest.approx(np.average(errors[:, 0] ** 2 / 2, weights=held.weights), rel=1e-4)
    assert best["held_out_score"] == pytest.approx(10 * np.sqrt(2 * best["held_out_loss"]), rel=1e-4)
    assert [line["rows"] for line in several.history] == [30] * several.passes
    assert several.features == 30
    assert not several.double


def test_going_on_leaves_what_was_there_as_it_was(several):
    before, history = several.predict(X), several.history
    more = learn(ROWS, SEVERAL, seed=0, onto=several)
    again = fit(ROWS, SEVERAL, seed=0, onto=several)
    np.testing.assert_array_equal(several.predict(X), before)
    assert several.history is history
    assert (more.passes, again.passes) == (several.passes, several.passes + len(again.history) - len(history))
    assert more.seen == pytest.approx(2 * several.seen)
    assert more.history[:-1] == history
    assert np.abs(more.predict(X) - before).max() > 1e-3


def test_the_loss_must_stay(several):
    other = replace(SEVERAL, loss=HuberLoss())
    for act in (fit, learn):
        with pytest.raises(
            ValueError, match=r"must stay what the model has learned with \(SquaredLoss\), found HuberL"
        ):
            act(ROWS, other, seed=0, onto=several)


def test_values_beyond_the_range_of_numbers_are_refused(several):
    wild = replace(ROWS, targets=np.where(np.arange(40)[:, None] % 2, 3e38, -3e38))
    for onto in (None, several):
        with pytest.raises(ValueError, match=r"values beyond the range of numbers.* The model is as it was before"):
            learn(wild, SEVERAL, seed=0, onto=onto)


def test_an_interrupt_before_anything_was_learned_comes_through(monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(dense.Dense, "step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fit(ROWS, SETTINGS, seed=0)


def test_nearly_separable_labels_need_few_landmarks(monkeypatch):
    for module in (slices, solving):
        monkeypatch.setattr(module, "MOST", 1000)
    monkeypatch.setattr(solving, "LANDMARKS", 64)
    x = np.random.default_rng(1).normal(size=(2400, 2))
    inside = (np.sum(x**2, axis=1) < 1).astype(int)
    x *= np.where(inside == 1, 0.8, 1.2)[:, None]
    labels = lambda y: Rows(x[:2100], y, np.ones(2100), table=np.array([[-1.0], [1.0]]))
    method = Auto(block_size=512)
    found = fit(labels(inside[:2100]), Settings(loss=SquaredLoss(), method=method), seed=0)
    assert found.features == 64
    assert np.mean((found.predict(x[2100:])[:, 0] > 0) == inside[2100:]) > 0.99
    assert found.calibration is not None
    noisy = np.where(np.random.default_rng(2).uniform(size=2100) < 0.02, 1 - inside[:2100], inside[:2100])
    plain = fit(labels(noisy), Settings(loss=SquaredLoss(), method=method), seed=0)
    assert plain.features == 1890  # a tenth is held out


@pytest.mark.parametrize(("lengthscale", "several"), [(1.0, True), (0.02, False)])
def test_many_rows_are_passed_over_again_where_a_slice_says_that_it_helps(monkeypatch, lengthscale, several):
    """With a long lengthscale blocks have much to tell each other; with a short one each stands alone."""
    monkeypatch.setattr(fitting, "_FEW_ROWS", 1000)
    rng = np.random.default_rng(0)
    x = rng.uniform(-3, 3, size=(1600, 2))
    rows = Rows(x, np.sin(3 * x[:, :1]) * np.cos(2 * x[:, 1:]), np.ones(1600))
    method = Auto(block_size=64, early_stopping=True)
    settings = Settings(loss=SquaredLoss(), kernel=Gaussian(lengthscale), alpha=1e-2, method=method)
    history = fitting.fit(rows, settings, seed=0).history
    losses, passed = ([line[name] for line in history] for name in ("held_out_loss", "rows"))
    assert passed[0] == 1600 - 160
    assert passed[-1] < passed[0] / 2  # the last one is broken off
    assert (len(history) > 2) == several
    assert not several or losses[1] < 0.9 * losses[0]

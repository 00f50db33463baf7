"""The one entry: what it returns, that it leaves what it goes on from as it was, and how it validates and counts."""

import signal
from dataclasses import replace
from itertools import pairwise
from typing import ClassVar

import numpy as np
import pytest
import reference
from scipy.spatial.distance import cdist
from scipy.special import expit

from thalweg.kernels import Gaussian
from thalweg.machines import Auto, HingeLoss, HuberLoss, LogisticLoss, Settings, SquaredLoss, Table, fit, learn
from thalweg.machines.learner import MIN_GAIN
from thalweg.machines.newton import ROUNDING_SHARE
from thalweg.machines.search import Rung

rng = np.random.default_rng(0)
X = rng.normal(size=(40, 2))
TABLE = Table(X, np.sin(2 * X[:, :1]) + X[:, 1:], rng.uniform(0.5, 2.0, size=40), scale=np.array([10.0]))
SETTINGS = Settings(loss=SquaredLoss(), kernel=Gaussian(0.8), alpha=0.3, method=Auto(block_size=64))
SEVERAL = replace(SETTINGS, method=Auto(block_size=16, early_stopping=True, validation_fraction=0.25), passes=3)


@pytest.fixture(scope="module")
def several():
    return fit(TABLE, SEVERAL, seed=3)


def test_one_block_is_kernel_ridge_in_float64():
    found = fit(TABLE, SETTINGS, seed=0)
    K = reference.gaussian(X, X, 0.8, 1.0)
    exact = K @ np.linalg.solve(K + np.diag(0.3 / TABLE.weights), TABLE.targets)
    np.testing.assert_allclose(found.predict(X), exact, atol=1e-9)
    assert (found.double, found.features, found.passes, found.alpha) == (True, 40, 1, 0.3)
    assert found.seen == pytest.approx(TABLE.weights.sum())


def test_newton_steps_and_block_updates_find_the_same_function():
    labels = Table(X, (TABLE.targets > 0).astype(float), TABLE.weights)
    settings = replace(SETTINGS, loss=LogisticLoss(), method=Auto(block_size=16, tol=1e-12, double=True))
    at_once = fit(labels, settings, seed=0)
    passes = fit(labels, replace(settings, passes=50, method=replace(settings.method, early_stopping=False)), seed=0)
    assert "objective" in at_once.history[-1]
    assert "objective" not in passes.history[-1]
    np.testing.assert_allclose(passes.predict(X), at_once.predict(X), atol=1e-4)


def test_the_validation_set_is_scored_in_units_of_the_targets(several):
    order = TABLE.shuffled([3, 2])
    held = TABLE.subset(np.sort(order[:10]))
    best = min(several.history, key=lambda record: record["held_out_loss"])
    errors = several.predict(held.x) - held.targets
    assert best["held_out_loss"] == pytest.approx(np.average(errors[:, 0] ** 2 / 2, weights=held.weights), rel=1e-4)
    assert best["held_out_score"] == pytest.approx(10 * np.sqrt(2 * best["held_out_loss"]), rel=1e-4)
    assert [record["rows"] for record in several.history] == [30] * several.passes
    assert several.features == 30
    assert not several.double


def test_passes_end_where_the_validation_loss_no_longer_falls():
    x = np.random.default_rng(0).uniform(-3, 3, size=(600, 1))
    table = Table(x, np.where(np.sin(2 * x) > 0, 1.0, -1.0), np.ones(600))
    settings = Settings(loss=HingeLoss(), kernel=Gaussian(0.5), alpha=0.1, method=Auto(block_size=64))
    history = fit(table, settings, seed=0).history
    losses = [record["held_out_loss"] for record in history]
    assert 1 < len(losses) <= 10
    assert all(now < before for before, now in pairwise(losses[:-1]))
    assert len(losses) == 10 or losses[-1] > 0.97 * losses[-2]


def test_going_on_leaves_what_was_there_as_it_was(several):
    before, history = several.predict(X), several.history
    more = learn(TABLE, SEVERAL, seed=0, initial=several)
    again = fit(TABLE, SEVERAL, seed=0, initial=several)
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
            act(TABLE, other, seed=0, initial=several)


@pytest.mark.filterwarnings("ignore:overflow", "ignore:invalid value")
def test_values_beyond_the_range_of_numbers_are_refused(several):
    wild = replace(TABLE, targets=np.where(np.arange(40)[:, None] % 2, 3e38, -3e38))
    for initial in (None, several):
        with pytest.raises(ValueError, match=r"values beyond the range of numbers.* The model is as it was before"):
            learn(wild, SEVERAL, seed=0, initial=initial)


class Interrupted(LogisticLoss):
    """The logistic loss, with Ctrl-C in its first gradient."""

    def gradient(self, f, y):
        signal.raise_signal(signal.SIGINT)
        return super().gradient(f, y)


def test_an_interrupt_before_anything_was_learned_is_raised():
    table = Table(X, (TABLE.targets > 0).astype(float), TABLE.weights)
    with pytest.raises(KeyboardInterrupt):
        fit(table, replace(SETTINGS, loss=Interrupted()), seed=0)


class Counted(HingeLoss):
    """The hinge loss, with a count of its evaluations."""

    calls: ClassVar[list] = []

    def smoothed_gradient(self, f, y, dual):
        self.calls.append(len(f))
        return super().smoothed_gradient(f, y, dual)


def test_after_an_interrupted_search_a_hinge_takes_a_few_rounds(monkeypatch):
    """Solved for to the end, even the few rows that are left take seconds."""
    score = Rung.score

    def interrupted(rung, candidate):
        if len(rung.x) > 500:  # on the second rung
            raise KeyboardInterrupt
        return score(rung, candidate)

    monkeypatch.setattr(Rung, "score", interrupted)
    draw = np.random.default_rng(0)
    x = draw.normal(size=(700, 3))
    table = Table(x, np.sign(x[:, :1] * x[:, 1:2] + 0.3 * draw.normal(size=(700, 1))), np.ones(700))
    Counted.calls.clear()
    with pytest.warns(UserWarning, match="interrupted"):
        found = fit(table, Settings(loss=Counted()), seed=0)
    assert found.features == 500
    assert 0 < len(Counted.calls) < 30
    assert np.mean(np.sign(found.predict(x)) == table.targets) > 0.6


@pytest.mark.parametrize("alpha", [2e-4, 3e-5])
def test_rounding_does_not_show_beside_the_noise(alpha):
    """With a ridge of 3e-5 new rows of 3,000 were missed by four times as much as in float64."""
    draw = np.random.default_rng(0)
    x = draw.uniform(size=(2300, 4))
    y = np.sin(3 * x[:, 0] * x[:, 1]) + x[:, 2] ** 2 + x[:, 3] + 0.1 * draw.normal(size=len(x))
    kernel = np.exp(-cdist(x, x[:2100], "sqeuclidean") / 8)
    weights = np.linalg.solve(kernel[:2100] + alpha * np.eye(2100), y[:2100])
    settings = Settings(loss=SquaredLoss(), kernel=Gaussian(2.0), alpha=alpha)
    found = fit(Table(x[:2100], y[:2100, None], np.ones(2100)), settings, seed=0).predict(x[2100:])[:, 0]
    assert np.sqrt(np.mean((found - kernel[2100:] @ weights) ** 2)) < 2 * ROUNDING_SHARE * 0.1


@pytest.mark.slow
def test_the_validation_loss_of_a_small_ridge_is_that_of_its_predictions():
    """Weights are large there: entries of the kernel off in the seventh digit made it 80 times as large."""
    draw = np.random.default_rng(0)
    x = draw.uniform(size=(10_300, 4))
    signal = np.sin(3 * x[:, 0] * x[:, 1]) + (x[:, 2] - 0.5) ** 2 + x[:, 3]
    y = (signal + 0.02 * draw.normal(size=len(x)))[:, None]
    settings = Settings(loss=SquaredLoss(), kernel=Gaussian(2.0), alpha=1e-6)
    found = fit(Table(x[:8300], y[:8300], np.ones(8300)), settings, seed=0)
    loss = np.mean((found.predict(x[8300:]) - y[8300:]) ** 2) / 2
    assert found.history[-1]["held_out_loss"] == pytest.approx(loss, rel=0.15)


@pytest.mark.parametrize("loss", [SquaredLoss(), HuberLoss(0.5), LogisticLoss()], ids=lambda loss: type(loss).__name__)
def test_more_rows_than_are_factorised_are_solved_for_by_steps_that_a_validation_set_ends(loss):
    draw = np.random.default_rng(0)
    x = draw.uniform(0, 6, size=(9300, 1))
    x[1] = x[0]
    y, weights = np.sin(x) + 0.3 * draw.normal(size=x.shape), np.ones(9300)
    y[1] = y[0]
    if loss.probabilistic:
        y = (draw.uniform(size=x.shape) < expit(3 * np.sin(x))).astype(float)
    found = fit(Table(x, y, weights), Settings(loss=loss, kernel=Gaussian(1.0), alpha=0.1), seed=0)
    new = np.linspace(0.1, 5.9, 200)[:, None]
    off = np.sqrt(np.mean((found.predict(new) / (3 if loss.probabilistic else 1) - np.sin(new)) ** 2))
    assert off < (0.06 if loss.probabilistic else 0.03)
    losses = [record["held_out_loss"] for record in found.history]
    assert losses[-1] <= losses[0] * (1 + MIN_GAIN)
    assert found.alpha == 0.1
    assert loss.probabilistic or len(found.residuals) > 500

"""Squares of some ten thousand rows with half of the kernel matrix in memory: the optimum, copies, cost, interrupts."""

import numpy as np
import pytest

from thalweg.kernels import Gaussian, Matern32
from thalweg.machines import Auto, Rows, Settings, SquaredLoss, fit, fitting, kept, solving
from thalweg.machines.calibration import Aside, residuals

RNG = np.random.default_rng(0)
X = RNG.normal(size=(400, 2))
Y = np.sin(2 * X) + 0.1 * RNG.normal(size=(400, 2))
W = RNG.uniform(0.5, 2.0, size=400)
ALPHA = 0.5
SETTINGS = Settings(loss=SquaredLoss(), kernel=Gaussian(1.0), alpha=ALPHA, method=Auto(block_size=64))


@pytest.fixture
def many(monkeypatch):
    """As if some hundred rows were more than are solved for at once."""
    monkeypatch.setattr(solving, "MOST", 100)
    monkeypatch.setattr(kept, "BLOCK", 64)


def optimum(kernel, x, y, weights, new, alpha=ALPHA):
    matrix = np.asarray(kernel(x)) + np.diag(alpha / weights)
    return np.asarray(kernel(new, x)) @ np.linalg.solve(matrix, y)


@pytest.mark.parametrize(("kernel", "ridge"), [(Matern32(1.0), 0.1), (Matern32(0.1), 3e-4)], ids=["", "raised"])
def test_steps_lead_to_the_optimum_also_where_the_diagonal_is_raised_in_blocks(kernel, ridge):
    x, y = X.astype(np.float32), Y.astype(np.float32)
    machine = kept.Kept(kernel, x[:350], y[:350], ridge / W[:350], x[350:], size=100)
    assert list(machine.meet()) == [87, 88, 87, 88]
    gained = [machine.step() for _ in range(40)]
    assert gained[-1] < 1e-4 < gained[0]
    wanted = optimum(kernel, X[:350], Y[:350], W[:350], X[350:], ridge)
    np.testing.assert_allclose(machine.values(), wanted, atol=0.005)


def test_steps_from_weights_found_before_and_with_another_ridge_lead_to_the_same_optimum():
    kernel, (x, y) = Matern32(1.0), (part.astype(np.float32) for part in (X, Y))
    machine = kept.Kept(kernel, x[:350], y[:350], 1.0 / W[:350], x[350:], size=100)
    machine.begin(RNG.normal(size=(350, 2)))
    list(machine.meet())
    for ridge in (1.0, 0.1):
        if ridge < 1:
            machine.change(ridge / W[:350])
        for _ in range(60):
            machine.step()
        wanted = optimum(kernel, X[:350], Y[:350], W[:350], X[350:], ridge)
        np.testing.assert_allclose(machine.values(), wanted, atol=5e-4)


def test_half_a_matrix_takes_a_quarter_of_the_memory_there_is_or_may_be(monkeypatch, tmp_path):
    monkeypatch.setattr(kept.os, "sysconf", lambda name: {"SC_PHYS_PAGES": 2**22, "SC_PAGE_SIZE": 2**13}[name])
    limit = tmp_path / "limit"
    monkeypatch.setattr(kept, "_LIMITS", (str(limit), str(tmp_path / "none")))
    for text, room in ((None, 2**35), ("max", 2**35), (str(2**34), 2**34), (str(2**40), 2**35)):
        if text is not None:
            limit.write_text(text + "\n")
        assert 4 * kept.most_rows() ** 2 / 2 == pytest.approx(room / 4, rel=1e-3)
    limit.write_text(str(2**30))
    assert kept.most_rows() == kept.MOST
    monkeypatch.delattr(kept.os, "sysconf")
    assert kept.most_rows() == kept.MOST


def test_more_rows_are_passed_over_first_and_then_solved_for(many, monkeypatch):
    monkeypatch.setattr(kept, "MOST", 200)
    monkeypatch.setattr(kept, "_GAIN", 1e-6)
    found = fit(Rows(X, Y, W), SETTINGS, seed=0)
    held = np.sort(Rows(X, Y, W).shuffled([0, 2])[:40])
    rest = np.setdiff1d(np.arange(400), held)
    losses = [line["held_out_loss"] for line in found.history]
    assert len(losses) > 3
    assert losses[-1] < losses[0]
    np.testing.assert_allclose(found.predict(X), optimum(Gaussian(1.0), X[rest], Y[rest], W[rest], X), atol=2e-3)


def test_labels_that_a_pass_tells_apart_are_not_solved_for(many, monkeypatch):
    monkeypatch.setattr(kept, "MOST", 200)
    monkeypatch.setattr(kept.Kept, "meet", None)
    side = (X[:, 0] > 0).astype(int)
    rows = Rows(X + 5 * side[:, None], side, np.ones(400), table=np.eye(2))
    assert fit(rows, SETTINGS, seed=0).passes == 1


def test_a_smaller_ridge_is_taken_where_it_is_to_be_chosen_and_helps(many, monkeypatch):
    settings = Settings(loss=SquaredLoss(), kernel=Gaussian(1.0), alpha="auto", method=Auto(block_size=64))
    monkeypatch.setattr(fitting, "choose", lambda *_: (Gaussian(np.float32(1.0)), 100.0, None))
    given, chosen = (fit(Rows(X, Y, W), one, seed=0) for one in (SETTINGS, settings))
    assert given.alpha == 100.0
    assert 0.05 < chosen.alpha < 5
    errors = [np.mean((one.predict(X) - Y) ** 2) for one in (given, chosen)]
    assert errors[1] < 0.5 * errors[0]
    assert chosen.history[-1]["held_out_loss"] >= (1 - 2e-3) * min(line["held_out_loss"] for line in chosen.history)


def test_an_interrupt_of_a_smaller_ridge_goes_back_to_what_was_solved(many, monkeypatch):
    settings = Settings(loss=SquaredLoss(), kernel=Gaussian(1.0), alpha="auto", method=Auto(block_size=64))
    monkeypatch.setattr(fitting, "choose", lambda *_: (Gaussian(np.float32(1.0)), 1.0, None))
    solved = []

    def interrupted(self, diagonal):
        solved.append(self.values())
        self.weights = 0 * self.weights + 1
        raise KeyboardInterrupt

    monkeypatch.setattr(kept.Kept, "change", interrupted)
    with pytest.warns(UserWarning, match="the model keeps what it has learned so far"):
        found = fit(Rows(X, Y, W), settings, seed=0)
    held = Rows(X, Y, W).shuffled([0, 2])[:40]
    assert (found.alpha, {line["alpha"] for line in found.history}) == (1.0, {1.0})
    np.testing.assert_allclose(found.predict(X[held]), solved[0], atol=1e-4)


def test_a_fit_is_the_optimum_of_rows_and_their_copies(many, monkeypatch):
    """Copies are one landmark of their weight and mean target."""
    monkeypatch.setattr(kept, "_GAIN", 1e-7)
    monkeypatch.setattr(kept, "_MOST_STEPS", 100)
    monkeypatch.setattr(solving, "_LOWER", 0.0)
    copies = RNG.integers(0, 60, size=300)
    x, y = np.concatenate([X, X[copies]]), np.concatenate([Y, Y[copies] + 0.2])
    rows, weights = np.arange(700), np.concatenate([W, W[copies]])
    found = fit(Rows(x, y, weights), SETTINGS, seed=0)
    held = np.sort(Rows(x, y, weights).shuffled([0, 2])[:70])
    rest = rows[~np.isin(rows, held)]
    assert found.features == len(np.unique(x[rest], axis=0)) < len(rest)
    assert [line["rows"] for line in found.history] == [630] * found.passes
    wanted = optimum(Gaussian(1.0), x[rest], y[rest], weights[rest], x)
    np.testing.assert_allclose(found.predict(x), wanted, atol=2e-3)
    off = residuals(Aside(Rows(x[held], y[held], weights[held]), wanted[held]))
    np.testing.assert_allclose(found.residuals, off, atol=2e-3)


def test_an_entry_of_the_matrix_is_found_once(many, monkeypatch):
    entries, product = [], kept.product
    monkeypatch.setattr(kept, "product", lambda kernel, x, y: entries.append(len(x) * len(y)) or product(kernel, x, y))
    found = fit(Rows(X, Y, W), SETTINGS, seed=0)
    assert found.passes > 2
    assert sum(entries) < 0.6 * 360**2 + 40 * 360


@pytest.mark.parametrize(("method", "passes"), [("meet", 0), ("step", 1)])
def test_an_interrupt_keeps_what_was_learned(many, monkeypatch, method, passes):
    act = getattr(kept.Kept, method)

    def interrupted(self):
        if method == "meet":
            blocks = act(self)
            yield next(blocks)
        raise KeyboardInterrupt

    monkeypatch.setattr(kept.Kept, method, interrupted if method == "meet" else lambda self: next(interrupted(self)))
    with pytest.warns(UserWarning, match=f"interrupted in pass {passes + 1}: the model keeps what it has learned"):
        found = fit(Rows(X, Y, W), SETTINGS, seed=0)
    assert found.passes == passes
    assert np.mean((found.predict(X) - Y) ** 2) < 0.5 * np.mean(Y**2)


def test_an_interrupt_before_anything_was_learned_comes_through(many, monkeypatch):
    def interrupted(self):
        raise KeyboardInterrupt

    monkeypatch.setattr(kept.Kept, "meet", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fit(Rows(X, Y, W), SETTINGS, seed=0)


def test_targets_that_are_all_the_same_leave_nothing_to_learn(many):
    found = fit(Rows(X, np.zeros_like(Y), W), SETTINGS, seed=0)
    assert found.passes == 2
    assert not np.any(found.predict(X))


def test_passes_that_are_asked_for_are_made(many, monkeypatch):
    monkeypatch.setattr(solving, "_kept", None)
    method = Auto(block_size=64, early_stopping=False)
    for settings in (
        Settings(loss=SquaredLoss(), kernel=Gaussian(1.0), alpha=ALPHA, method=Auto(block_size=64), passes=2),
        Settings(loss=SquaredLoss(), kernel=Gaussian(1.0), alpha=ALPHA, method=method),
        Settings(loss=SquaredLoss(), kernel=Gaussian(1.0), alpha=ALPHA, method=Auto(block_size=64), max_features=128),
    ):
        assert fit(Rows(X, Y, W), settings, seed=0).passes >= 1

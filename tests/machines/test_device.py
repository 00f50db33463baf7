"""What is done on a device: squares of some thousand rows, families and units by trials alone, a whole matrix."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from thalweg.kernels import Gaussian, Matern12, Matern32, Matern52
from thalweg.machines import (
    Auto,
    LogisticLoss,
    Points,
    Rows,
    Settings,
    SoftmaxLoss,
    SquaredLoss,
    choice,
    device,
    fitting,
    kept,
    metric,
    solving,
    trials,
)
from thalweg.machines import expansion as expansions
from thalweg.machines.kept import Kept
from thalweg.machines.kept_on_device import KeptOnDevice
from thalweg.machines.losses import HuberLoss


def regression(count, seed=0, weights=None):
    """Two of four features matter, one of them more."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(count, 4))
    y = np.sin(4 * x[:, :1]) + x[:, 1:2] + 0.1 * rng.normal(size=(count, 1))
    return Rows(x, y, np.ones(count) if weights is None else weights, offset=np.zeros(4))


@pytest.mark.parametrize("family", [Gaussian, Matern12, Matern32, Matern52])
def test_squares_are_the_solution_of_the_linear_system(family):
    rng = np.random.default_rng(0)
    x, new = rng.normal(size=(40, 3)), rng.normal(size=(7, 3))
    known = rng.normal(size=(40, 2)), rng.uniform(0.5, 2, size=40)
    truth = rng.normal(size=(7, 2)), rng.uniform(0.5, 2, size=7)
    unit = np.array([1.0, 2.0, 3.0])
    weights, values, loss = device.Squares((Gaussian, Matern12, Matern32, Matern52), x, new, known, truth).solve(
        family, unit, 0.7, 0.3
    )
    kernel = lambda a, b: np.asarray(family(lengthscale=0.7 * unit)(a, b), float)
    exact = np.linalg.solve(kernel(x, x) + np.diag(0.3 / known[1]), known[0])
    np.testing.assert_allclose(weights, exact, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(values, kernel(new, x) @ exact, rtol=1e-4, atol=1e-5)
    off = np.sum((np.asarray(values) - truth[0]) ** 2, axis=1) / 2
    assert float(loss) == pytest.approx(np.average(off, weights=truth[1]))


def test_a_kernel_that_is_given_stays_as_it_is():
    x, y = np.arange(5.0)[:, None], (np.ones((5, 1)), np.ones(5))
    given = Gaussian(0.5)
    found = [device.Squares((given,), x, x, y, y).solve(given, 1.0, times, 0.1) for times in (1.0, 3.0)]
    np.testing.assert_array_equal(found[0][0], found[1][0])


def test_families_and_units_are_found_by_trials_where_a_device_soon_makes_them(monkeypatch):
    assert not device.soon_tried(20_000, Settings(loss=SquaredLoss()))  # by a CPU
    monkeypatch.setattr(device.jax, "default_backend", lambda: "gpu")
    asked = lambda **more: device.soon_tried(20_000, Settings(**({"loss": SquaredLoss()} | more)))
    assert [asked(), asked(loss=LogisticLoss()), asked(metric="none")] == [True] * 3
    assert [asked(metric="diagonal"), asked(loss=HuberLoss()), asked(method="dsg")] == [False] * 3
    assert not device.soon_tried(8192, Settings(loss=SquaredLoss()))


def on_a_device(monkeypatch):
    """Behave as if this were one, but for what compiles."""
    monkeypatch.setattr(device, "MOST", 1000)
    for room in (device, trials):
        monkeypatch.setattr(room, "squares_on_device", lambda settings: settings.loss.quadratic)
    monkeypatch.setattr(choice, "ENOUGH_ROWS", 1000)


@pytest.mark.parametrize("loss", [SquaredLoss(), LogisticLoss(), SoftmaxLoss()], ids=["squares", "logistic", "softmax"])
def test_a_search_by_trials_alone_finds_what_matters(monkeypatch, loss):
    on_a_device(monkeypatch)
    rows, settings = regression(1200), Settings(loss=loss, method=Auto(block_size=512))
    if not loss.quadratic:
        labels = (rows.targets[:, 0] > 0).astype(int)
        table = np.eye(2) if isinstance(loss, SoftmaxLoss) else np.array([[0.0], [1.0]])
        rows = Rows(rows.x, labels, rows.weights, table=table, offset=rows.offset)
    asked = []
    best = choice.SliceSearch.best_by_trials_alone
    monkeypatch.setattr(choice.SliceSearch, "best_by_trials_alone", lambda *given: (asked.append(1), best(*given))[1])
    kernel, alpha, tried = choice.choose(rows, settings, 0, np.float32)
    assert asked
    scales = np.broadcast_to(kernel.lengthscale, 4)
    assert np.max(scales[:2]) < 0.5 * np.min(scales[2:])
    assert scales[0] < scales[1]
    assert 1e-4 < alpha < 10
    if loss.quadratic:
        assert tried.misses < 0.2  # 0.1 is noise
    else:
        assert tried.learner().machine.loss == loss


def test_an_interrupt_in_trials_of_squares_leaves_no_machine_of_another_loss(monkeypatch):
    on_a_device(monkeypatch)
    rows = regression(1500)
    rows = Rows(rows.x, (rows.targets[:, 0] > 0).astype(int), rows.weights, table=np.array([[0.0], [1.0]]))
    begun, count = device.Squares.solve, []

    def interrupted(*given):
        count.append(1)
        if len(count) > 6:
            raise KeyboardInterrupt
        return begun(*given)

    monkeypatch.setattr(device.Squares, "solve", interrupted)
    with pytest.raises(KeyboardInterrupt) as stopped:
        choice.choose(rows, Settings(loss=LogisticLoss(), method=Auto(block_size=512)), 0, np.float32)
    assert stopped.type is KeyboardInterrupt
    count.clear()
    with pytest.raises(trials.Interrupted):
        choice.choose(
            rows := regression(1500), Settings(loss=SquaredLoss(), method=Auto(block_size=512)), 0, np.float32
        )


def test_blocks_of_landmarks_add_up_however_many_are_taken_at_once(monkeypatch):
    rng = np.random.default_rng(0)
    points = Points(Matern32(1.5), 4)
    begun = expansions.empty(points, dimension=2, outputs=3, capacity=7, dtype=np.float32)
    drawn = lambda *shape: jnp.asarray(rng.normal(size=shape).astype(np.float32))
    weights, blocks = drawn(7, 4, 3), drawn(7, 4, 2)  # beyond those in use, too
    found = begun._replace(weights=weights, blocks=blocks, used=jnp.int32(5), scale=jnp.float32(0.5))
    x = drawn(6, 2)
    one_by_one = expansions.evaluate(points, found, x)
    for together in (2, 3, 5, 7):
        monkeypatch.setattr(expansions, "_together", lambda *_, together=together: together)
        np.testing.assert_allclose(expansions.evaluate(points, found, x), one_by_one, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("family", [Gaussian, Matern12, Matern32, Matern52])
def test_slopes_by_a_derivative_are_those_that_are_written_out(monkeypatch, family):
    rng = np.random.default_rng(0)
    x, dual = rng.normal(size=(70, 3)).astype(np.float32), rng.normal(size=(70, 2)).astype(np.float32)
    weights, points = rng.uniform(0.5, 2, size=35), x[::2]
    rise = metric.Distances(points, x).value_and_rise(family())[1]
    written = metric.mean_squared_slopes(weights, family(), x, dual, rise, points)
    found = metric.mean_squared_slopes(weights, family(), x, dual, None, points)
    np.testing.assert_allclose(found, written, rtol=1e-5)
    monkeypatch.setattr(metric, "written_out", lambda kernel: False)
    np.testing.assert_allclose(metric.mean_squared_slopes(weights, family(), x, dual, None, points), written, rtol=1e-3)


@pytest.mark.parametrize("begun", [False, True])
def test_a_whole_matrix_on_a_device_is_solved_as_half_of_it_on_the_host(begun):
    rng = np.random.default_rng(0)
    x, held = (rng.normal(size=(count, 2)).astype(np.float32) for count in (104, 9))
    targets, diagonal = rng.normal(size=(104, 3)), rng.uniform(0.01, 0.5, size=104)
    both = [made(Matern32(0.8), x, targets, diagonal, held, size=26) for made in (Kept, KeptOnDevice)]
    for machine in both:
        if begun:
            machine.begin(np.full((104, 3), 0.1))
        assert not machine.met
        assert list(machine.meet()) == [26] * 4
        assert machine.met
    np.testing.assert_allclose(both[1].weights, both[0].weights, rtol=1e-3, atol=1e-3)
    gained = [[machine.step() for _ in range(4)] for machine in both]
    np.testing.assert_allclose(gained[1], gained[0], rtol=0.01)
    np.testing.assert_allclose(*(machine.weights for machine in both), rtol=1e-2, atol=1e-2)
    np.testing.assert_allclose(*(machine.values() for machine in both), atol=1e-3)
    np.testing.assert_array_equal(both[1].values(slice(2, 4)), both[1].values()[2:4])


@pytest.mark.parametrize("rows", [101, 104])
def test_a_whole_matrix_is_solved_however_many_rows_the_last_block_has_and_whatever_had_to_be_raised(rows):
    rng = np.random.default_rng(0)
    x, held = (rng.normal(size=(count, 2)).astype(np.float32) for count in (rows, 9))
    targets, diagonal = rng.normal(size=(rows, 3)), rng.uniform(1e-4, 0.5, size=rows)
    machine = KeptOnDevice(Matern12(0.8), x, targets, diagonal, held, size=26)
    for _ in machine.meet():
        pass
    kernel = lambda other: np.asarray(Matern12(0.8)(other, x), float)
    for changed in (diagonal, diagonal / 3):
        machine.change(changed)
        for _ in range(60):
            machine.step()
        exact = np.linalg.solve(kernel(x) + np.diag(changed), targets)
        np.testing.assert_allclose(machine.weights, exact, rtol=1e-2, atol=1e-2)
        np.testing.assert_allclose(machine.values(), kernel(held) @ exact, atol=2e-3)


def test_rows_of_a_device_are_solved_for_with_the_whole_matrix(monkeypatch):
    monkeypatch.setattr(solving, "MOST", 1000)
    monkeypatch.setattr(kept, "keeps", lambda *_: True)
    here = SimpleNamespace(default_backend=lambda: "gpu", block_until_ready=jax.block_until_ready)
    monkeypatch.setattr(solving, "jax", here)
    met = []
    meet = KeptOnDevice.meet
    monkeypatch.setattr(KeptOnDevice, "meet", lambda self: met.append(self) or meet(self))
    kernel = Matern32(np.array([0.5, 2.0, 9.0, 9.0]))
    rows, new = regression(1100), regression(200, seed=1)
    fitted = fitting.fit(rows, Settings(loss=SquaredLoss(), kernel=kernel, alpha=0.1, method=Auto(block_size=512)), 0)
    assert len(met) == 1
    rest = np.split(rows.shuffled([0, 2]), [110])[1]
    among, between = (np.asarray(kernel(part, rows.x[rest]), float) for part in (rows.x[rest], new.x))
    exact = between @ np.linalg.solve(among + 0.1 * np.eye(len(rest)), rows.targets[rest])
    np.testing.assert_allclose(fitted.predict(new.x), exact, atol=0.02)

"""What a search on a slice makes of trials of two sizes."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from thalweg.kernels import Gaussian, Laplacian, Matern12, Matern32, Matern52
from thalweg.machines import Auto, LogisticLoss, Rows, Settings, SquaredLoss, choice, folds, kept, slices, trials


@pytest.mark.parametrize(
    ("small", "large", "taken"),
    [(0.06, 0.08, True), (0.055, 0.05, True), (0.11, 0.05, False), (0.0, 0.01, False)],
    ids=["grows", "hardly shrinks", "shrinks", "too small"],
)
def test_a_gain_is_carried_to_all_rows_by_how_it_changed_from_one_size_to_the_next(monkeypatch, small, large, taken):
    """Seen on Covertype: a gain of 6 % on 2,048 rows and 7.5 % on 4,096 was no use to 20,000."""
    first = []

    def trials(rows, order, settings, seed, dtype, final=False, wide=0):
        def loss(one):
            first.append(one.base)
            return 1.0 if one.base is first[0] else 1 - (large if final else small)

        order = range(200 if final else 100)
        several = lambda act, choices: list(map(act, choices))
        trial = lambda one: SimpleNamespace(learner=lambda: None, choice=one)
        known = {"loss": loss, "trial": trial, "order": order, "several": several, "prepare": lambda choices: None}
        known["forget"] = lambda: None
        return SimpleNamespace(on_host=False, at_once=True, best=None, settings=settings, **known)

    monkeypatch.setattr(slices, "Trials", trials)
    monkeypatch.setattr(choice, "_in_learned_units", lambda seen, plain, *_: [(np.array([8.0]), plain[0][1])])
    x = np.random.default_rng(0).normal(size=(2100, 1))
    rows = Rows(x, np.sin(3 * x), np.ones(2100), offset=np.zeros(1))
    kernel, *_ = choice.choose(rows, Settings(loss=SquaredLoss()), 0, np.float64)
    assert (np.ndim(kernel.lengthscale) == 1) == taken


def trials_of(loss):
    """Trials whose loss is known."""
    return SimpleNamespace(loss=loss)


@pytest.mark.parametrize(("begins", "best"), [(Gaussian, Matern32), (Matern12, Gaussian), (Matern32, Matern32)])
def test_the_next_rougher_or_smoother_family_is_tried_as_long_as_it_helps(begins, best):
    families = (Gaussian, Matern52, Matern32, Matern12)
    order = families.index(best)
    loss = lambda one: 1 + 0.1 * abs(families.index(one.family) - order)

    begun, steps = trials.Choice(begins, 1.0, 2.0, 0.1), order - families.index(begins)
    for bandwidth, times in (("auto", 2.0 * 2 ** (steps / 2)), (2.0, 2.0)):  # one that is given stays
        settings = Settings(loss=SquaredLoss(), bandwidth=bandwidth)
        found = slices.of_like_family(trials_of(loss), begun, settings, lambda one: one)
        assert (found.family, found.alpha) == (best, 0.1)
        assert found.times == pytest.approx(times)


def test_units_are_learned_again_from_plain_ones_as_long_as_that_helps_and_the_best_is_kept():
    begun, plain = (trials.Choice(Gaussian, base, 1.0, 0.1) for base in (np.full(2, 7.0), np.ones(2)))
    rounds = [plain._replace(base=np.full(2, value)) for value in (2.0, 3.0, 4.0, 5.0)]
    losses = {1.0: 1.0, 2.0: 0.8, 3.0: 0.7, 4.0: 0.699, 5.0: 0.1, 7.0: 0.9}
    loss = lambda one: losses[float(one.base[0])]
    asked = []

    def relearned(tried, further=False):
        asked.append(further)
        return iter([rounds[len(asked) - 1], begun])

    known = SimpleNamespace(loss=loss, trial=lambda one: SimpleNamespace(loss=loss(one), choice=one))
    assert slices.relearned_in_rounds(known, plain, begun, relearned) is rounds[2]
    assert asked == [False, True, True]
    losses[7.0] = 0.5
    asked.clear()
    assert slices.relearned_in_rounds(known, plain, begun, relearned) is begun


def labelled(count, wrong):
    """Two classes that half-planes tell apart, but for some labels that are wrong."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(count, 2))
    x[:, 0] += np.where(x[:, 0] > 0, 0.5, -0.5)
    turned = rng.permutation(count) < wrong
    return Rows(x, (x[:, 0] > 0).astype(int) ^ turned, np.ones(count), table=np.array([[0.0], [1.0]]))


@pytest.mark.parametrize(("wrong", "slices_made"), [(8, 4), (300, 1)])
def test_slices_are_held_out_in_turn_where_one_misses_too_few_labels(monkeypatch, wrong, slices_made):
    """A handful of rows would choose the lengthscale otherwise."""
    turns, made = [], trials.Trials

    def noted(*given, **more):
        turns.append(more.get("turn", 0))
        return made(*given, **more)

    monkeypatch.setattr(slices, "Trials", noted)
    choice.choose(labelled(2400, wrong), Settings(loss=LogisticLoss()), 0, np.float64)
    assert len(set(turns)) == slices_made


def test_the_loss_of_slices_in_turn_is_that_of_every_row_left_out_once():
    rows, settings = labelled(2400, 100), Settings(loss=LogisticLoss())
    several = [
        trials.Trials(rows, rows.shuffled([0, 1]), settings, 0, np.float64, final=True, turn=turn) for turn in range(4)
    ]
    held = np.concatenate([np.setdiff1d(np.arange(2400), one.order) for one in several])
    assert sorted(held) == list(range(2400))
    one = trials.Choice(Gaussian, 1.0, 1.0, 0.1)
    assert trials.InTurn(several).loss(one) == pytest.approx(np.mean([each.loss(one) for each in several]))


def test_a_trial_may_have_more_landmarks_than_the_machine_will():
    rows, settings = labelled(2400, 100), Settings(loss=LogisticLoss(), max_features=64)
    tried = trials.Trials(rows, rows.shuffled([0, 1]), settings, 0, np.float64).trial(
        trials.Choice(Gaussian, 1.0, 1.0, 0.1)
    )
    assert tried.learner().features == tried.rows > 64


def test_wide_trials_say_what_others_do(monkeypatch):
    monkeypatch.setattr(kept, "_GAIN", 1e-7)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(600, 2))
    y = np.sin(2 * x[:, :1]) + x[:, 1:] + 0.3 * rng.normal(size=(600, 1))
    rows = Rows(x, y, rng.uniform(0.5, 2.0, size=600), offset=np.full(2, 0.5))
    settings, one = Settings(loss=SquaredLoss()), trials.Choice(Matern32, np.array([1.0, 2.0]), 0.7, 1.0)
    wide = trials.Trials(rows, rows.shuffled([0, 1]), settings, 0, np.float64, final=True, wide=450)
    others = trials.Trials(rows, rows.shuffled([0, 1]), settings, 0, np.float64, final=True)
    assert len(wide.order) == len(others.order) == 450
    assert wide.loss(one) == pytest.approx(others.loss(one), rel=1e-3)
    found = [each.best.learner().predict(x[:50], np.full(2, 0.5)) for each in (wide, others)]
    np.testing.assert_allclose(*found, atol=1e-3)


@pytest.mark.parametrize("wide", [0, 450])
def test_copies_are_one_landmark_of_a_trial_and_lose_what_each_of_them_would(wide, monkeypatch):
    """Of 5,000 rows of keggundirected half are copies: with all of them a search took three times as long."""
    monkeypatch.setattr(kept, "_GAIN", 1e-7)
    rng = np.random.default_rng(0)
    x = rng.integers(4, size=(600, 3)).astype(float)
    y, weights = np.sin(2 * x[:, :1]) + x[:, 1:2] + 0.3 * rng.normal(size=(600, 1)), rng.uniform(0.5, 2.0, size=600)
    rows, settings = Rows(x, y, weights), Settings(loss=SquaredLoss())
    tried = trials.Trials(rows, rows.shuffled([0, 1]), settings, 0, np.float64, final=True, wide=wide)
    found = tried.trial(trials.Choice(Matern32, np.array([1.0, 2.0, 3.0]), 0.7, 1.0))
    near, held = tried.order, np.setdiff1d(np.arange(600), tried.order)
    kernel = lambda a, b: np.asarray(found.choice.kernel(x[a], x[b]))
    exact = np.linalg.solve(kernel(near, near) + np.diag(1 / weights[near]), y[near])
    errors = (kernel(held, near) @ exact - y[held])[:, 0]
    assert found.loss == pytest.approx(np.average(errors**2, weights=weights[held]) / 2, rel=1e-3)
    assert found.learner().features == len(found.landmarks()[0]) == len(np.unique(x[near], axis=0)) <= 64
    np.testing.assert_allclose(found.learner().predict(x[held], None), kernel(held, near) @ exact, atol=1e-3)


def test_distances_are_kept_in_few_units_and_rooms_are_no_larger_than_trials():
    """A search on all of Covertype kept a gigabyte."""
    rows, settings = labelled(2400, 100), Settings(loss=SquaredLoss(), max_features=10_000)
    tried = trials.Trials(rows, rows.shuffled([0, 1]), settings, 0, np.float64)
    losses = [tried.loss(trials.Choice(Gaussian, np.array([1.0, unit]), 1.0, 0.1)) for unit in range(1, 10)]
    assert len(set(losses)) == 9
    assert len(tried.matrices.known) == 6
    tried.forget()
    assert not tried.matrices.known
    assert tried.best.learner().features == len(tried.best.landmarks()[0])
    many = replace(settings, method=Auto(block_size=128))
    rooms = [replace(many, loss=loss) for loss in (SquaredLoss(), LogisticLoss())]
    tried, compiled = (trials.Trials(rows, rows.shuffled([0, 1]), one, 0, np.float64) for one in rooms)
    assert len(tried.order) == 600
    assert tried.start(Gaussian()).expansion.capacity == 5
    assert compiled.start(Gaussian()).expansion.capacity > 5


def test_final_trials_are_wide_where_the_machine_will_be_solved_with_half_of_its_matrix(monkeypatch):
    monkeypatch.setattr(kept, "most_rows", lambda: 40_000)
    numbers = lambda count: Rows(np.zeros((count, 1)), np.zeros((count, 1)), np.ones(count))
    labels = lambda count: Rows(np.zeros((count, 1)), np.zeros(count, int), np.ones(count), table=np.eye(2))
    squares = Settings(loss=SquaredLoss())
    missed = lambda part: SimpleNamespace(misses=part)
    wide = lambda rows, settings=squares, part=0.05: trials.wide_rows(rows, settings, np.float32, missed(part))
    assert [wide(numbers(count)) for count in (8000, 12_000, 20_000, 40_000, 40_001)] == [0, 4096, 5000, 6144, 0]
    # Labels of many rows that few miss are learned in a pass.
    assert [wide(labels(count), part=part) for count in (20_000, 30_000) for part in (0.05, 0.2)] == [5000] * 2 + [
        0,
        6144,
    ]
    for other in (
        Settings(loss=SquaredLoss(), passes=1),
        Settings(loss=SquaredLoss(), max_features=10_000),
        Settings(loss=SquaredLoss(), kernel=Laplacian(1.0)),
        Settings(loss=SquaredLoss(), method=Auto(early_stopping=False)),
        Settings(loss=LogisticLoss()),
    ):
        assert wide(numbers(12_000), other) == 0
    assert trials.wide_rows(numbers(12_000), squares, np.float64, None) == 0


def test_trials_on_a_device_say_what_those_on_the_host_do(monkeypatch):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 2))
    rows = Rows(x, np.sin(2 * x[:, :1]) + x[:, 1:], rng.uniform(0.5, 2.0, size=300), offset=np.zeros(2))
    settings, one = Settings(loss=SquaredLoss()), trials.Choice(Gaussian, np.array([1.0, 2.0]), 0.7, 0.1)
    on_host = trials.Trials(rows, rows.shuffled([0, 1]), settings, 0, np.float64, final=True)
    monkeypatch.setattr(trials.jax, "default_backend", lambda: "gpu")
    on_device = trials.Trials(rows, rows.shuffled([0, 1]), settings, 0, np.float64, final=True)
    monkeypatch.undo()
    assert (on_host.on_host, on_device.on_host, on_device.at_once) == (True, False, True)
    assert on_device.loss(one) == pytest.approx(on_host.loss(one), rel=1e-3)
    found = [each.best.learner().predict(x[:5], np.zeros(2)) for each in (on_host, on_device)]
    np.testing.assert_allclose(*found, atol=1e-3)


def test_a_search_ends_where_steps_gain_next_to_nothing():
    """Seen on protein: seven trials of 4,096 rows, each 0.02 % better than the last."""
    for gain, longest in ((1e-4, 2), (0.01, 20)):
        asked = []

        def loss(one, asked=asked, gain=gain):
            asked.append(one.times)
            return (1 - gain) ** np.log2(one.times)

        tried = SimpleNamespace(loss=loss, prepare=lambda choices: None)
        begun = trials.Choice(Gaussian, 1.0, 1.0, 0.1)
        slices.searched(tried, begun, True, True, directions=((2**0.5, 1.0),), usual=1.0)
        assert (len(set(asked)) > 2) == (longest > 2)


def test_units_are_not_learned_where_hardly_anything_is_missed(monkeypatch):
    monkeypatch.setattr(slices, "MOST", 1000)
    monkeypatch.setattr(choice, "learned_unit", None)
    x = np.random.default_rng(0).normal(size=(2100, 2))
    x[:, 0] += np.sign(x[:, 0])
    rows = Rows(x, (x[:, 0] > 0).astype(int), np.ones(2100), table=np.array([[-1.0], [1.0]]), offset=np.zeros(2))
    *_, tried = choice.choose(rows, Settings(loss=SquaredLoss(), method=Auto(block_size=512)), 0, np.float32)
    assert tried.easy


@pytest.mark.parametrize(("block_size", "sure"), [(512, 1.0), (2048, 2.0)], ids=["a slice judges", "nothing else does"])
def test_units_need_only_be_likely_where_a_slice_judges(monkeypatch, block_size, sure):
    """Seen on Covertype: 6,000 rows were not sure of units that lower the error by a tenth."""
    asked = []
    monkeypatch.setattr(choice, "learned_unit", lambda *_, sure: asked.append(sure) or [])
    x = np.random.default_rng(0).normal(size=(2048, 2))
    rows = Rows(x, np.sin(3 * x[:, :1]), np.ones(2048), offset=np.zeros(2))
    choice.choose(rows, Settings(loss=SquaredLoss(), method=Auto(block_size=block_size)), 0, np.float32)
    assert asked == [sure]


def test_a_family_that_is_not_written_out_is_searched_too():
    x = np.random.default_rng(0).normal(size=(2200, 2))
    rows = Rows(x, np.sin(x[:, :1]), np.ones(2200))
    kernel, _, _ = choice.choose(rows, Settings(loss=SquaredLoss(), kernel=Laplacian), 0, np.float32)
    assert isinstance(kernel, Laplacian)


@pytest.mark.parametrize("search", [folds._left_out_at, lambda rows, kernel, *_: folds.left_out(rows, kernel, [1.0])])
def test_rows_that_meet_by_chance_are_left_out_one_by_one(search):
    """Of twenty codes with 45 rows each, whole codes were left out, and f was not told from its mean."""
    rng = np.random.default_rng(0)
    x = rng.integers(5, size=(60, 1)).astype(float)
    y, weights = np.cos(3 * x) + 0.2 * rng.normal(size=(60, 1)), 1 + x[:, 0] % 3
    seen = folds.sample(Rows(x, y, weights), 0)
    found = search(seen.to_leave_out(), Gaussian(1.0), 1.0, 0.1)
    ridge, mean, kernel = found.ridge * seen.usual, weights @ y / np.sum(weights), np.exp(-((x - x.T) ** 2) / 2)
    errors = []
    for row in range(60):
        rest = np.arange(60) != row
        inner = kernel[rest][:, rest] + np.diag(ridge / weights[rest])
        errors.append(y[row] - mean - kernel[row, rest] @ np.linalg.solve(inner, y[rest] - mean))
    assert found.errors == pytest.approx(np.sum(weights[:, None] * np.square(errors)) / seen.usual, rel=1e-3)

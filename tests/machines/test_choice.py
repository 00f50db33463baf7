"""What a search on a slice makes of trials of two sizes."""

from types import SimpleNamespace

import numpy as np
import pytest

from thalweg.kernels import Gaussian, Laplacian
from thalweg.machines import Auto, Rows, Settings, SquaredLoss, choice, trials


@pytest.mark.parametrize(
    ("small", "large", "taken"),
    [(0.06, 0.08, True), (0.055, 0.05, True), (0.11, 0.05, False), (0.0, 0.01, False)],
    ids=["grows", "hardly shrinks", "shrinks", "too small"],
)
def test_a_gain_is_carried_to_all_rows_by_how_it_changed_from_one_size_to_the_next(monkeypatch, small, large, taken):
    """Seen on Covertype: a gain of 6 % on 2,048 rows and 7.5 % on 4,096 was no use to 20,000."""
    first = []

    def trials(rows, settings, seed, dtype, final=False):
        def loss(one):
            first.append(one.family)
            return 1.0 if one.family is first[0] else 1 - (large if final else small)

        order = range(200 if final else 100)
        several = lambda act, choices: list(map(act, choices))
        return SimpleNamespace(
            loss=loss, order=order, on_host=True, at_once=True, best=None, several=several, prepare=lambda choices: None
        )

    monkeypatch.setattr(choice, "Trials", trials)
    x = np.random.default_rng(0).normal(size=(2100, 1))
    rows = Rows(x, np.sin(3 * x), np.ones(2100), offset=np.zeros(1))
    kernel, *_ = choice.choose(rows, Settings(loss=SquaredLoss(), metric="none"), 0, np.float64)
    assert isinstance(kernel, first[0]) != taken


def test_trials_on_a_device_say_what_those_on_the_host_do(monkeypatch):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 2))
    rows = Rows(x, np.sin(2 * x[:, :1]) + x[:, 1:], rng.uniform(0.5, 2.0, size=300), offset=np.zeros(2))
    settings, one = Settings(loss=SquaredLoss()), trials.Choice(Gaussian, np.array([1.0, 2.0]), 0.7, 0.1)
    on_host = trials.Trials(rows, settings, 0, np.float64, final=True)
    monkeypatch.setattr(trials.jax, "default_backend", lambda: "gpu")
    on_device = trials.Trials(rows, settings, 0, np.float64, final=True)
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
        choice._searched(tried, begun, True, True, directions=((2**0.5, 1.0),), usual=1.0)
        assert (len(set(asked)) > 2) == (longest > 2)


def test_units_are_not_learned_where_hardly_anything_is_missed(monkeypatch):
    monkeypatch.setattr(choice, "MOST", 1000)
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

"""What calls of the kernel estimators cost: on few rows, row by row, and on either side of 2,000 rows."""

import time

import numpy as np
import pytest
from sklearn.datasets import make_classification
from sklearn.model_selection import cross_val_score
from thalweg.machines.fitting import default_passes
from thalweg.machines.learners import start

from thalweg import KernelClassifier, KernelRegressor
from thalweg.kernels import Gaussian
from thalweg.machines import DSG, Auto, LogisticLoss, Rows, Settings, SquaredLoss, choice, learners, slices, trials

X = np.random.default_rng(0).normal(size=(300, 3))
T = X[:, 0] + np.sin(X[:, 1])


def seconds(act):
    began = time.process_time()
    act()
    return time.process_time() - began


@pytest.mark.slow
def test_single_rows_of_a_stream_take_milliseconds(monkeypatch):
    """Issue 13, 13: each took 0.3 s, since its whole block was visited."""
    visited, fill = [], learners.fill
    monkeypatch.setattr(learners, "fill", lambda *given: visited.append(1) or fill(*given))
    model = KernelRegressor(Gaussian(1.0), alpha=0.1, random_state=0).partial_fit(X[:100], T[:100])
    times = [seconds(lambda i=i: model.partial_fit(X[i : i + 1], T[i : i + 1])) for i in range(100, 160)]
    assert np.median(times) < 0.02
    assert len(visited) <= 8
    assert model.n_features_used_ == 160
    whole = KernelRegressor(Gaussian(1.0), alpha=0.1).fit(X[:160], T[:160])
    assert model.score(X[200:], T[200:]) > whole.score(X[200:], T[200:]) - 0.03


@pytest.mark.parametrize("count", [1999, 2001])
def test_there_is_no_cliff_at_2000_rows(count, monkeypatch):
    """Issue 13, 12: from 2,000 rows on some fifteen trials were made, each as dear as the fit."""
    monkeypatch.setattr(slices, "Trials", None)
    x = np.random.default_rng(1).normal(size=(count, 3))
    rows = Rows(x, (x[:, :1] > 0).astype(float), np.ones(count))
    for loss in (LogisticLoss(), SquaredLoss()):
        settings = Settings(loss=loss)
        choice.choose(rows, settings, 0, np.float32)
        assert default_passes(count, settings) == 1


def test_trials_are_of_a_small_part_of_the_rows_and_blocks_of_one_size():
    settings = Settings(loss=SquaredLoss())
    for rows in (2100, 4000, 10_000, 60_000, 10**6):
        assert trials.trial_rows(rows, settings) <= max(rows / 4, 4096)
    for rows in (2049, 2500, 5000):
        found = start(settings, Gaussian(1.0), 3, 1, rows, 0, np.float32, room=False).machine.coordinates.width
        assert found * -(-rows // 2048) < 1.15 * rows


def test_a_search_begins_with_few_rows_on_the_host_whatever_their_number():
    """Issue 12, 2: of 60,000 digits it took two thirds of a fit, each trial of as many rows as the last ones."""
    rows = Rows(np.zeros((60_000, 1)), np.zeros((60_000, 1)), np.ones(60_000))
    first, final = (
        trials.Trials(rows, rows.shuffled([0, 1]), Settings(loss=SquaredLoss()), 0, np.float32, final=end)
        for end in (0, 1)
    )
    assert first.on_host
    assert len(first.order) == 2048
    assert not final.on_host
    assert len(final.order) == 4472


@pytest.mark.slow
def test_five_folds_of_2503_rows():
    """Issue 13, 12: they took 32 s on two cores."""
    x, y = make_classification(2503, 10, n_informative=6, random_state=0)
    scores = []
    assert seconds(lambda: scores.append(cross_val_score(KernelClassifier(random_state=0), x, y, cv=5).mean())) < 12
    assert scores[0] > 0.89


@pytest.mark.slow
@pytest.mark.parametrize(
    "method", [Auto(batch_size=1, features="orthogonal"), Auto(features="orthogonal"), DSG(batch_size=1)]
)
def test_no_call_on_eighty_rows_takes_more_than_a_few_seconds(method):
    """Issue 13, 13."""
    y = (T[:80] > 0).astype(int)
    model = KernelClassifier(method=method, random_state=0)
    assert seconds(lambda: model.fit(X[:80], y)) < 20
    assert seconds(lambda: model.fit(X[:80], y)) < 5
    assert model.score(X[:80], y) > 0.8

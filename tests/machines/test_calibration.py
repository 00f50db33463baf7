"""Held-out rows: machines that have not seen them, probabilities by their log-loss, intervals that cover."""

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import expit, softmax

from thalweg import KernelClassifier, KernelRegressor, load
from thalweg.kernels import Gaussian
from thalweg.machines import LogisticLoss, SoftmaxLoss, SquaredHingeLoss, Table, calibration

rng = np.random.default_rng(0)
X = rng.uniform(-2, 2, size=(150, 2))
T = np.sin(2 * X[:, 0]) + 0.5 * rng.standard_t(4, size=150)
ALPHA, KERNEL = 0.5, Gaussian(0.75)


@pytest.mark.parametrize("loss", ["squared", pytest.param("quantile", marks=pytest.mark.slow)])
def test_intervals_cover_whatever_the_loss(loss, tmp_path):
    """Of 4,000 new targets the level's share is within, but for what 150 residuals leave open: five standard errors."""
    model = KernelRegressor(KERNEL, alpha=ALPHA, loss=loss, random_state=0).fit(X, 10 * T + 7)
    new = rng.uniform(-2, 2, size=(4000, 2))
    truth = 10 * (np.sin(2 * new[:, 0]) + 0.5 * rng.standard_t(4, size=4000)) + 7
    low, high = model.predict_interval(new, level=0.9)
    share = np.mean((low <= truth) & (truth <= high))
    assert abs(share - 0.9) < 5 * np.sqrt(0.9 * 0.1 * (1 / 150 + 1 / 4000))
    model.save(tmp_path / "model")
    np.testing.assert_array_equal(load(tmp_path / "model").predict_interval(new[:5]), model.predict_interval(new[:5]))


@pytest.mark.slow
@pytest.mark.parametrize(("rows", "level"), [(20, 0.8), (20, 0.9), (40, 0.9)])
def test_intervals_of_few_rows_know_that_these_have_chosen_the_kernel(rows, level):
    """Of 20 rows 83 % of new targets were in intervals of 90 %; five standard errors over 100 sets."""
    assert KernelRegressor(KERNEL, alpha=ALPHA).fit(X[:rows], T[:rows])._machine.chosen == 0
    shares = []
    for seed in range(100):
        draw = np.random.default_rng([seed, 3])
        x = draw.normal(size=(rows + 300, 2))
        y = np.sin(2 * x[:, 0]) + 0.3 * draw.normal(size=rows + 300)
        low, high = KernelRegressor(random_state=0).fit(x[:rows], y[:rows]).predict_interval(x[rows:], level=level)
        shares.append(np.mean((low <= y[rows:]) & (y[rows:] <= high)))
    assert abs(np.mean(shares) - level) < 5 * np.std(shares) / 10


@pytest.mark.parametrize("loss", ["squared", "logistic"])
def test_probabilities_do_not_depend_on_the_unit_of_weights_or_a_table_joined_twice(loss):
    fit = lambda x, y, unit: KernelClassifier(KERNEL, loss=loss, random_state=0).fit(x, y, np.full(len(y), unit))
    labels = np.sin(2 * X[:, 0]) > 0
    plain, twice = fit(X, labels, 1.0), fit(np.repeat(X, 2, axis=0), np.repeat(labels, 2), 1.0)
    for other in (fit(X, labels, 3.0), fit(X, labels, 1000.0), twice):
        np.testing.assert_allclose(other.predict_proba(X), plain.predict_proba(X), atol=2e-3)


def test_intervals_cover_the_rows_that_weights_speak_of():
    """A weight of nine is the row nine times: half of them stand for nine tenths."""
    draw = np.random.default_rng(0)

    def sample(share, count):
        x = draw.uniform(0, 1, size=count) - (draw.uniform(size=count) > share)
        return x[:, None], np.where(x > 0, 1.0, 0.1) * draw.normal(size=count)

    x, y = sample(0.5, 600)
    model = KernelRegressor(Gaussian(1.0), alpha=10.0, random_state=0).fit(x, y, np.where(x[:, 0] > 0, 9.0, 1.0))
    new, truth = sample(0.9, 4000)
    low, high = model.predict_interval(new, level=0.8)
    share = np.mean((low <= truth) & (truth <= high))
    assert abs(share - 0.8) < 3 * np.sqrt(0.8 * 0.2 * (1 / 366 + 1 / 4000))


def test_what_intervals_cannot_do_is_said():
    model = KernelRegressor(KERNEL, alpha=ALPHA).fit(X[:30], T[:30])
    with pytest.raises(ValueError, match=r"level must be at most 0\.935 where 30 rows were held out .* found 0\.95"):
        model.predict_interval(X)
    with pytest.raises(ValueError, match=r"level must be .*below 1, found 2"):
        model.predict_interval(X, level=2)
    with pytest.raises(ValueError, match="intervals need rows left out"):
        KernelRegressor(KERNEL, alpha=ALPHA).partial_fit(X, T).predict_interval(X)


@pytest.mark.parametrize("loss", ["squared", pytest.param("hinge", marks=pytest.mark.slow)])
def test_probabilities_of_margins_are_calibrated(loss):
    """Labels are drawn with known probabilities: those given are near them, in the mean and in the extremes."""
    p = expit(3 * np.sin(2 * X[:, 0]))
    chances = lambda p: (rng.uniform(size=len(p)) < p).astype(int)
    model = KernelClassifier(KERNEL, alpha=ALPHA, loss=loss, random_state=0).fit(X, chances(p))
    new = rng.uniform(-2, 2, size=(2000, 2))
    truth, found = expit(3 * np.sin(2 * new[:, 0])), model.predict_proba(new)
    np.testing.assert_allclose(found.sum(axis=1), 1)
    # A class is that of the larger margin, which the shift of probabilities does not move.
    differ = np.argmax(found, axis=1) != model.predict(new)
    intercept = np.asarray(model._machine.learner.expansion.intercept)
    even = expit(model._machine.calibration.logits(np.zeros((1, 1)), intercept)[0, 0])
    assert np.all(np.abs(found[differ, 1] - 0.5) <= abs(even - 0.5))
    assert np.mean(differ) < 0.1
    best = -np.mean(truth * np.log(truth) + (1 - truth) * np.log(1 - truth))
    reached = -np.mean(truth * np.log(found[:, 1]) + (1 - truth) * np.log(found[:, 0]))
    as_they_are = expit(model.decision_function(new))
    raw = -np.mean(truth * np.log(as_they_are) + (1 - truth) * np.log(1 - as_they_are))
    assert best < reached < min(raw, best + 0.12)


@pytest.mark.parametrize("loss", [SoftmaxLoss(), SquaredHingeLoss()], ids=["log-odds", "margins"])
def test_the_log_loss_of_held_out_rows_is_least(loss):
    """Against a simplex search, three classes: sharpness and shifts, for margins with a bend."""
    margins, values = isinstance(loss, SquaredHingeLoss), rng.normal(size=(400, 3)) * 2
    odds = np.exp(0.7 * values + np.array([1.0, 0.0, -2.0]) * margins)
    labels = np.array([rng.choice(3, p=row / row.sum()) for row in odds])
    weights = rng.uniform(0.5, 2, size=400)
    table = Table(values, labels, weights / weights.mean(), codes=np.eye(3))
    chance = 1 / (400 + 2)  # of another class, after Laplace
    truth = np.where(np.eye(3)[labels] == 1, 1 - chance, chance / 2)
    found = calibration.fit_calibration(calibration.HeldOut(table, values), np.zeros(3), loss)

    def cost(x):
        bent = np.log(np.maximum((1 + values) / 2, 0.01)) * np.exp(x[1]) / 2
        logits = np.exp(x[0]) * values + x[2:] + (bent if margins else 0)
        logs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
        shifts = np.sum(x[2:] ** 2) / 2
        return -table.weights @ np.sum(truth * logs, axis=1) + (x[0] ** 2 + x[1] ** 2) / 2 + shifts

    best = minimize(cost, np.zeros(5), method="Nelder-Mead", options={"xatol": 1e-6, "fatol": 1e-9, "maxfev": 9000})
    ours = [np.log(found.sharpness), np.log(2 * found.bend) if margins else 0.0, *found.shift]
    assert cost(np.array(ours)) <= best.fun + 1e-6
    assert found.sharpness == pytest.approx(np.exp(best.x[0]), abs=2e-3)


@pytest.mark.parametrize(("rows", "outputs"), [(20, 1), (20, 3), (200, 1)])
def test_rows_that_are_all_told_apart_are_not_certain(rows, outputs):
    """Laplace's rule says that the next one is missed in one of n + 2 cases."""
    labels = np.arange(rows) % max(outputs, 2)
    codes = np.eye(outputs) if outputs > 1 else np.array([[0.0], [1.0]])
    table = Table(np.zeros((rows, 1)), labels, np.ones(rows), codes=codes)
    values, loss = (10 * (2 * codes - 1), LogisticLoss()) if outputs == 1 else (10 * codes, SoftmaxLoss())
    held_out = calibration.HeldOut(table, values[labels])
    logits = calibration.fit_calibration(held_out, np.zeros(outputs), loss).logits(values, np.zeros(outputs))
    missed = expit(-np.abs(logits)) if outputs == 1 else 1 - softmax(logits, axis=1).max(axis=1)
    assert np.all((0.3 / (rows + 2) < missed) & (missed < 1.1 / (rows + 2)))


def test_rare_classes_have_their_share():
    """Margins that overfit are blunt, and without a shift blunt means even."""
    draw = np.random.default_rng(1)
    x = draw.uniform(-2, 2, size=(300, 2))
    y = draw.uniform(size=300) < expit(2 * np.sin(2 * x[:, 0]) - 3)
    model = KernelClassifier(Gaussian(0.5), alpha=0.1, loss="squared_hinge", random_state=0).fit(x, y)
    new = draw.uniform(-2, 2, size=(4000, 2))
    assert np.mean(model.predict_proba(new)[:, 1]) == pytest.approx(np.mean(y), abs=0.02)


@pytest.mark.parametrize(
    ("loss", "alpha", "rows", "rare", "near"),
    [("logistic", 0.03, 400, 6.0, 0.1), pytest.param("squared", 0.1, 2000, 9.0, 0.2, marks=pytest.mark.slow)],
)
def test_the_mean_probability_of_a_rare_class_is_near_its_share(loss, alpha, rows, rare, near):
    ratios = []
    for seed in range(8):
        draw = np.random.default_rng(seed)
        x = draw.normal(size=(rows + 1000, 4))
        truth = expit(3 * (x[:, 0] + np.sin(2 * x[:, 1])) - rare)
        y = draw.uniform(size=len(x)) < truth
        model = KernelClassifier(Gaussian(1.0), alpha=alpha, loss=loss, random_state=0).fit(x[:rows], y[:rows])
        ratios.append(np.mean(model.predict_proba(x[rows:])[:, 1]) / np.mean(truth[rows:]))
    assert abs(np.mean(ratios) - 1) < near


def test_far_from_all_rows_a_rare_class_is_rare():
    draw = np.random.default_rng(0)
    x = draw.normal(size=(400, 3))
    y = draw.uniform(size=400) < expit(1.5 * x[:, 0] - 4.5)
    model = KernelClassifier(Gaussian(1.0), alpha=0.1, loss="squared", random_state=0).fit(x, y)
    assert np.all(model.predict_proba([[0.0, 0.0, 90.0], [-90.0, 0.0, 0.0]])[:, 1] < 3 * np.mean(y))


def test_copies_are_held_out_together():
    x = np.repeat(rng.normal(size=(30, 2)), 10, axis=0)
    table = Table(x, x[:, :1], np.ones(300))
    folds = calibration.held_out_sets(table, seed=0)
    assert sorted(np.concatenate(folds)) == list(range(300))
    assert all(len(np.unique(x[fold], axis=0)) * 10 == len(fold) for fold in folds)


def test_rows_after_a_fit_are_learned_as_well_as_those_of_a_stream():
    x = rng.uniform(0, 6, size=(400, 2))
    y = np.sin(x[:, 0]) + 0.3 * rng.normal(size=400)
    ends = []
    for first in ("fit", "partial_fit"):
        model = getattr(KernelRegressor(KERNEL, alpha=ALPHA, random_state=0), first)(x[:50], y[:50])
        ends.append(model.partial_fit(x[50:], y[50:]).predict(x))
    np.testing.assert_allclose(*ends, atol=1e-2)
    with pytest.raises(ValueError, match="no partial_fit after it"):
        model.predict_interval(x)


@pytest.mark.parametrize("values", [2, 12])
def test_a_table_of_few_values_has_intervals_and_probabilities_of_rows_that_repeat_them(values):
    """Repeated observations are held out one by one, since new rows repeat them too."""
    rng = np.random.default_rng(0)
    X, new = (rng.integers(values, size=(count, 1)).astype(float) for count in (400, 4000))
    effects, noise = rng.normal(size=values), rng.normal(size=4400)
    y, truth = effects[X[:, 0].astype(int)] + noise[:400], effects[new[:, 0].astype(int)] + noise[400:]
    low, high = KernelRegressor(random_state=0).fit(X, y).predict_interval(new, level=0.9)
    assert 0.86 < np.mean((low < truth) & (truth < high)) < 0.94
    assert np.all(high - low < 3.7)  # of the noise alone 3.3
    shares = [np.mean(y[X[:, 0] == value] > 0) for value in range(values)]
    p = KernelClassifier(random_state=0).fit(X, y > 0).predict_proba(np.arange(values)[:, None])[:, 1]
    np.testing.assert_allclose(p, shares, atol=0.1)

"""Kernel classification: every method and loss learns digits, and is the same again from any source of rows."""

import pickle
import signal
import tracemalloc
from copy import deepcopy

import jax
import numpy as np
import pytest
import scipy.sparse
from scipy.special import expit, softmax
from sklearn.datasets import load_breast_cancer, load_digits, make_moons
from sklearn.metrics import log_loss
from sklearn.model_selection import train_test_split

from thalweg import KernelClassifier
from thalweg.kernels import Gaussian, Matern32
from thalweg.machines import CDSG, DSG, UDSG, Auto
from thalweg.rows import FeatureFrame

# A small machine: five blocks of landmarks, or of frequencies, in float32.
SMALL = {"kernel": Gaussian(0.5), "alpha": 0.1, "method": Auto(block_size=16), "random_state": 0}


@pytest.fixture(scope="module")
def digits():
    X, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(y))  # they are sorted by who wrote them
    X, y = X[order] / 16, y[order]
    return X[:1000], y[:1000], X[1000:], y[1000:]


@pytest.fixture(scope="module")
def moons():
    X, y = make_moons(80, noise=0.2, random_state=0)
    return X, y


# The docstring of the class learns digits in the quick suite.
METHODS = [
    (Auto, "landmarks", 0.95),
    (Auto, "random", 0.93),
    (Auto, "orthogonal", 0.93),
    (Auto, "quasi", 0.93),
    (DSG, "landmarks", 0.93),
    (DSG, "random", 0.93),
    (DSG, "orthogonal", 0.93),
    (DSG, "quasi", 0.93),
    (UDSG, "landmarks", 0.93),
    (UDSG, "random", 0.93),
    (UDSG, "orthogonal", 0.93),
    (UDSG, "quasi", 0.93),
    (CDSG, "landmarks", 0.92),
    (CDSG, "random", 0.92),
    (CDSG, "orthogonal", 0.92),
    (CDSG, "quasi", 0.92),
]


@pytest.mark.slow
@pytest.mark.parametrize(("method", "features", "accuracy"), METHODS)
def test_every_method_learns_digits(digits, method, features, accuracy):
    X, y, new, labels = digits
    model = KernelClassifier(method=method(features=features, block_size=128), random_state=0, max_iter=5)
    assert model.fit(X, y).score(new, labels) > accuracy
    assert 1 < model.n_iter_ == len(model.history_) <= 5
    probabilities = model.predict_proba(new)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, rtol=1e-5)
    np.testing.assert_array_equal(model.classes_[probabilities.argmax(axis=1)], model.predict(new))


@pytest.mark.slow
@pytest.mark.parametrize("loss", ["logistic", "hinge", "squared_hinge", "squared"])
@pytest.mark.parametrize("method", [Auto, DSG])
def test_every_loss_learns_digits(digits, loss, method):
    X, y, new, labels = digits
    model = KernelClassifier(loss=loss, method=method(block_size=128), random_state=0).fit(X, y)
    assert model.score(new, labels) > (0.975 if method is Auto else 0.93)
    assert model.decision_function(new).shape == (len(new), 10)


@pytest.mark.slow
def test_the_default_beats_plain_steps(digits):
    X, y, new, labels = digits
    default = KernelClassifier(random_state=0).fit(X, y)
    plain = KernelClassifier(method=DSG(precondition=False, block_size=128), random_state=0).fit(X, y)
    assert default.score(new, labels) > 0.955
    assert 0.7 < plain.score(new, labels) < default.score(new, labels)


def test_one_block_of_the_squared_loss_is_the_exact_solution(moons):
    """(K + α/w)⁻¹ of labels −1 and 1 less their mean, with one more row of both alike, in float64."""
    X, y = moons
    weights = np.random.default_rng(0).uniform(0.5, 2.0, size=len(y))
    model = KernelClassifier(Gaussian(0.5), alpha=0.1, loss="squared", method=Auto(tol=1e-10)).fit(
        X, y, sample_weight=weights
    )
    K = np.exp(-((X[:, None] - X[None]) ** 2).sum(-1) / 0.5)
    mean = weights @ (2.0 * y - 1) / (np.sum(weights) + 1)
    exact = mean + K @ np.linalg.solve(K + np.diag(0.1 / weights), 2.0 * y - 1 - mean)
    np.testing.assert_allclose(model.decision_function(X), exact, atol=1e-9)
    np.testing.assert_array_equal(model.predict(X), (exact > 0).astype(int))
    assert (model.n_features_used_, model.n_iter_) == (80, 1)


@pytest.mark.slow
def test_one_block_of_logistic_losses_is_solved(moons):
    """∂ℓ = −αW for every row: f is its own kernel expansion in the residuals."""
    X, y = moons
    model = KernelClassifier(Gaussian(0.5), alpha=0.1, method=Auto(tol=1e-8)).fit(X, y)
    K = np.exp(-((X[:, None] - X[None]) ** 2).sum(-1) / 0.5)
    f = model._machine.predict(X)[:, 0]
    np.testing.assert_allclose(f - model._machine.learner.expansion.intercept, K @ (y - expit(f)) / 0.1, atol=1e-5)
    f = model.decision_function(X)
    np.testing.assert_allclose(model.predict_proba(X), np.stack([expit(-f), expit(f)], axis=1), rtol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("alpha", [0.01, 1.0])
def test_one_block_of_hinge_losses_is_solved(digits, alpha):
    """αW·y is the part of the subgradient −y: 1 within the margin, 0 beyond it, anything between on it."""
    X, y, _, _ = digits
    X, signs = X[:300], np.where(y[:300] < 5, -1.0, 1.0)
    model = KernelClassifier(loss="hinge", alpha=alpha, method=Auto(tol=1e-6), random_state=0).fit(X, signs)
    learner = model._machine.learner
    points, weights, _ = learner.landmarks()
    targets = np.asarray(learner.examples.targets).reshape(-1)[:300]
    part, margin = alpha * weights[:, 0] * targets, learner.predict(points, FeatureFrame())[:, 0] * targets
    assert (np.abs(part - 0.5) < 0.5 + 1e-4).all()
    np.testing.assert_allclose(part[margin < 1 - 1e-3], 1, atol=1e-4)
    np.testing.assert_allclose(part[margin > 1 + 1e-3], 0, atol=1e-4)


def test_labels_of_any_kind(moons):
    X, y = moons
    plain = KernelClassifier(**SMALL).fit(X, y)
    words = KernelClassifier(**SMALL).fit(X, np.array(["no", "yes"])[y])
    assert words.classes_.tolist() == ["no", "yes"]
    np.testing.assert_array_equal(words.predict(X) == "yes", plain.predict(X) == 1)
    np.testing.assert_array_equal(words.decision_function(X), plain.decision_function(X))


def test_the_same_seed_gives_the_same_model(moons):
    X, y = moons
    options = SMALL | {"method": UDSG(batch_size=32, block_size=16), "max_iter": 2}
    first, again = (KernelClassifier(**options).fit(X, y).decision_function(X) for _ in range(2))
    other = KernelClassifier(**options | {"random_state": 1}).fit(X, y).decision_function(X)
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - other).max() > 1e-3
    with jax.enable_x64(False):
        np.testing.assert_array_equal(KernelClassifier(**options).fit(X, y).decision_function(X), first)


@pytest.mark.slow
def test_kept_frequencies_are_those_made_anew(moons):
    X, y = moons
    options = SMALL | {"max_iter": 2, "method": UDSG(batch_size=32, block_size=16)}
    anew = KernelClassifier(**options).fit(X, y).decision_function(X)
    keeping = UDSG(batch_size=32, block_size=16, keep_frequencies=True)
    kept = KernelClassifier(**options | {"method": keeping}).fit(X, y)
    assert kept._machine.learner.expansion.blocks.shape[1:] == (16, 2)
    np.testing.assert_allclose(kept.decision_function(X), anew, atol=1e-5)


def test_weights_of_classes_are_weights_of_rows(moons):
    X, y = moons
    by_class = KernelClassifier(**SMALL, class_weight={1: 3.0}).fit(X, y).decision_function(X)
    by_row = KernelClassifier(**SMALL).fit(X, y, sample_weight=np.where(y == 1, 3.0, 1.0)).decision_function(X)
    plain = KernelClassifier(**SMALL).fit(X, y).decision_function(X)
    np.testing.assert_array_equal(by_class, by_row)
    assert np.mean(by_class - plain) > 0.2
    few = np.concatenate([np.flatnonzero(y == 0), np.flatnonzero(y == 1)[:8]])
    balanced = KernelClassifier(**SMALL, class_weight="balanced").fit(X[few], y[few]).decision_function(X)
    weights = np.where(y[few] == 1, 48 / 16, 48 / 80)
    np.testing.assert_array_equal(
        balanced, KernelClassifier(**SMALL).fit(X[few], y[few], sample_weight=weights).decision_function(X)
    )


@pytest.mark.slow
def test_rows_without_weight_are_not_there(moons):
    X, y = moons
    weights = np.arange(80) % 3 > 0
    without = KernelClassifier(**SMALL).fit(X[weights], y[weights]).decision_function(X)
    found = KernelClassifier(**SMALL).fit(X, y, sample_weight=weights.astype(float)).decision_function(X)
    np.testing.assert_array_equal(found, without)


@pytest.mark.parametrize("kind", [scipy.sparse.csr_matrix, scipy.sparse.csc_array, np.float32, np.asfortranarray])
def test_rows_of_any_kind_are_the_same_rows(moons, kind):
    X, y = moons
    X = X.astype(np.float32) * (X > 0)
    dense = KernelClassifier(**SMALL).fit(X, y)
    found = KernelClassifier(**SMALL).fit(kind(X), y)
    np.testing.assert_array_equal(found.decision_function(kind(X)), dense.decision_function(X))


@pytest.mark.slow
def test_a_memory_map_is_read_batch_by_batch(tmp_path):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(30_000, 40))
    y = (X[:, 0] > 0).astype(int)
    np.save(tmp_path / "X.npy", X)
    options = {
        "kernel": Gaussian(6.0),
        "alpha": 0.1,
        "method": Auto(block_size=32),
        "max_features": 64,
        "random_state": 0,
    }
    weights = np.ones(len(y))
    weights[::100] = 0
    expected = KernelClassifier(**options).fit(X, y, sample_weight=weights).decision_function(X[:2000])
    rows = np.load(tmp_path / "X.npy", mmap_mode="r")
    tracemalloc.start()
    try:
        model = KernelClassifier(**options).fit(rows, y, sample_weight=weights)
        found = model.decision_function(rows[:2000])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    np.testing.assert_array_equal(found, expected)
    assert peak < X.nbytes / 2


@pytest.mark.slow
def test_a_stream_is_its_batches_one_after_the_other(moons):
    X, y = moons
    parts = [(X[:40], y[:40]), (X[40:50], y[40:50]), (X[50:], y[50:])]
    stream = KernelClassifier(**SMALL).fit(X[::2], y[::2]).fit_stream(iter(parts), classes=[0, 1])
    calls = KernelClassifier(**SMALL)
    for part in parts:
        calls.partial_fit(*part, classes=[0, 1])
    np.testing.assert_array_equal(stream.decision_function(X), calls.decision_function(X))
    assert (stream.n_features_used_, [line["rows"] for line in stream.history_]) == (80, [40, 10, 30])
    # Blocks fill up, so that the landmarks are the rows in order whatever the batches.
    once = KernelClassifier(**SMALL).partial_fit(X, y)
    points = lambda model: model._machine.learner.landmarks()[0] + model._machine.frame.centre
    np.testing.assert_allclose(points(stream), points(once), atol=1e-6)
    assert np.mean(stream.predict(X) == once.predict(X)) > 0.95


@pytest.mark.slow
def test_a_class_may_come_late():
    rng = np.random.default_rng(0)
    X = np.concatenate([rng.normal(size=(40, 2)), rng.normal(size=(40, 2)) + 6, rng.normal(size=(40, 2)) - 6])
    y = np.repeat([0, 1, 2], 40)
    model = KernelClassifier(**SMALL | {"kernel": Gaussian(2.0)}).partial_fit(X[:80], y[:80], classes=[0, 1, 2])
    assert 2 not in model.predict(X[:80])
    model.partial_fit(X[80:], y[80:])
    assert model.score(X, y) > 0.95
    np.testing.assert_allclose(model.predict_proba(X), softmax(model.decision_function(X), axis=1), rtol=1e-6)


@pytest.mark.slow
def test_a_fit_forgets_unless_it_starts_warm(moons):
    X, y = moons
    options = SMALL | {"method": DSG(batch_size=32, block_size=16), "max_iter": 2}
    once = KernelClassifier(**options).fit(X, y)
    first = once.decision_function(X)
    np.testing.assert_array_equal(once.fit(X, y).decision_function(X), first)
    assert once.n_iter_ == 2
    warm = KernelClassifier(**options, warm_start=True).fit(X, y)
    np.testing.assert_array_equal(warm.decision_function(X), first)
    used = warm.n_features_used_
    warm.fit(X, y)
    assert (warm.n_iter_, len(warm.history_), warm.n_features_used_) == (4, 4, 2 * used)
    loss = lambda model: -np.mean(np.log(model.predict_proba(X)[np.arange(80), y]))
    assert loss(warm) < loss(once)


def test_early_stopping_holds_rows_out_and_no_early_stopping_none(moons):
    X, y = moons
    stops, goes = (
        KernelClassifier(**SMALL | {"method": Auto(block_size=16, early_stopping=stop)}, max_iter=9).fit(X, y)
        for stop in (True, False)
    )
    losses = [record["held_out_loss"] for record in stops.history_]
    assert stops.n_iter_ == len(losses) < 9
    assert losses[-1] > 0.97 * min(losses)
    assert stops.n_features_used_ == 72
    assert 0 <= stops.history_[0]["held_out_score"] < 0.5
    assert (goes.n_iter_, goes.n_features_used_) == (9, 80)
    assert "held_out_loss" not in goes.history_[0]


class Interrupted(Gaussian):
    """A Gaussian kernel, with Ctrl-C at a call of its profile."""

    def profile(self, squared):
        calls["made"] += 1
        if calls["made"] == calls["interrupt"]:
            signal.raise_signal(signal.SIGINT)
        return super().profile(squared)


calls = {"made": 0, "interrupt": 0}


def test_an_interrupted_fit_keeps_the_passes_it_made_and_goes_on(moons):
    X, y = moons
    options = SMALL | {"kernel": Interrupted(0.5), "method": Auto(block_size=16, early_stopping=False)}
    calls.update(made=0, interrupt=0)
    once = KernelClassifier(**options, max_iter=1).fit(X, y)
    calls.update(made=0, interrupt=calls["made"] + 2)
    model = KernelClassifier(**options, max_iter=4)
    with pytest.warns(UserWarning, match="interrupted .*: the result is what was reached so far") as told:
        model.fit(X, y)
    assert len(told) == 1
    assert model.n_iter_ == len(model.history_) == 1
    assert model.score(X, y) >= once.score(X, y) - 0.03
    assert model.partial_fit(X, y).score(X, y) > 0.9


def test_an_interrupt_before_anything_was_learned_leaves_the_model_as_it_was(moons):
    X, y = moons
    calls.update(made=0, interrupt=0)
    model = KernelClassifier(Interrupted, random_state=0).fit(X, np.arange(80) % 3)
    before = model.predict_proba(X)
    calls.update(made=0, interrupt=1)
    with pytest.raises(KeyboardInterrupt):
        model.fit(X, y)
    np.testing.assert_array_equal(model.predict_proba(X), before)


def test_the_default_loss_is_squared_for_many_rows_that_are_all_there(moons):
    X, y = make_moons(1400, noise=0.2, random_state=0)
    few_blocks = SMALL | {"method": Auto(block_size=256)}
    model = KernelClassifier(**few_blocks).fit(X, y)
    assert model.loss_ == "squared"
    squared = KernelClassifier(**few_blocks, loss="squared").fit(X, y)
    np.testing.assert_array_equal(model.predict_proba(X), squared.predict_proba(X))
    assert KernelClassifier(**SMALL).fit(*moons).loss_ == "logistic"
    stream = KernelClassifier(**few_blocks).partial_fit(X, y)
    assert stream.loss_ == "logistic"
    assert stream.predict_proba(X).shape == (1400, 2)


def test_the_default_loss_of_a_rare_class_is_logistic():
    for rare, loss in ((0.5, "squared"), (0.01, "logistic")):
        model = KernelClassifier()
        labels = (np.arange(20_000) < rare * 20_000).astype(int)
        model._targets(labels, np.ones(20_000), first=True, classes=None, streams=False)
        assert model.loss_ == loss


@pytest.mark.slow
def test_a_rare_class_is_as_likely_as_it_is():
    rng = np.random.default_rng(3)
    y = (rng.uniform(size=900) < 0.03).astype(int)
    X = rng.normal(size=(900, 2)) + 2.5 * y[:, None]
    model = KernelClassifier(random_state=0).fit(X[:700], y[:700])
    assert model.loss_ == "logistic"
    assert np.mean(model.predict_proba(X[:700])[:, 1]) == pytest.approx(np.mean(y[:700]), rel=0.15)


def test_the_unit_of_weights_does_not_matter():
    """Nor does it whether all rows are given twice: a ridge is counted in the mean weight of a row."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(120, 3))
    y = (np.sin(2 * X[:, 0]) + 0.3 * rng.normal(size=120) > 0).astype(int)
    plain, small, twice = (
        KernelClassifier(Gaussian, random_state=0).fit(*rows)
        for rows in ((X, y), (X, y, np.full(120, 2.0**-20)), (np.tile(X, (2, 1)), np.tile(y, 2)))
    )
    assert small.alpha_ == pytest.approx(2.0**-20 * plain.alpha_)
    assert twice.alpha_ == pytest.approx(2 * plain.alpha_)
    for other in (small, twice):
        np.testing.assert_allclose(other.kernel_.lengthscale, plain.kernel_.lengthscale, rtol=1e-6)
        np.testing.assert_allclose(other.predict_proba(X), plain.predict_proba(X), atol=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("rows", [80, 12])
def test_copies_predict_the_same_and_learn_on_alike(moons, rows):
    """In float32 and, for one block of rows, in float64."""
    X, y = moons
    model = KernelClassifier(**SMALL).fit(X[:rows], y[:rows])
    before = model.decision_function(X)
    copies = [pickle.loads(pickle.dumps(model)), deepcopy(model)]
    with jax.enable_x64(False):
        copies.append(pickle.loads(pickle.dumps(model)))
    model.partial_fit(X[::-1], y[::-1])
    for copied in copies:
        np.testing.assert_array_equal(copied.decision_function(X), before)
        np.testing.assert_array_equal(
            copied.partial_fit(X[::-1], y[::-1]).decision_function(X), model.decision_function(X)
        )
        assert copied._machine.learner.dtype == (np.float64 if rows == 12 else np.float32)


@pytest.mark.slow
def test_a_class_of_kernels_gets_the_median_distance_times_the_bandwidth(moons):
    X, y = moons
    for kernel, times in ((Gaussian, 0.3), (Matern32, 2.0)):
        model = KernelClassifier(kernel, bandwidth=times, metric="none").fit(X, y)
        units = X / np.asarray(model.kernel_.lengthscale)
        median = np.median(np.sqrt(((units[:, None] - units[None]) ** 2).sum(-1))[np.triu_indices(80, 1)])
        assert times * median == pytest.approx(1, rel=0.1)
        assert isinstance(model.kernel_, kernel)


@pytest.mark.slow
def test_lengthscale_and_ridge_are_searched_where_there_are_rows_enough(digits):
    """Noisy labels ask for a larger ridge than clean ones."""
    X, y, new, labels = digits
    rng = np.random.default_rng(0)
    rows = rng.integers(0, 1000, size=3000)
    jittered = X[rows] + 0.1 * rng.normal(size=(3000, 64))
    noisy = np.where(rng.uniform(size=3000) < 0.3, rng.integers(0, 10, size=3000), y[rows])
    clean_model, noisy_model = (
        KernelClassifier(method=Auto(block_size=512), random_state=0).fit(jittered, labels)
        for labels in (y[rows], noisy)
    )
    assert noisy_model.alpha_ > clean_model.alpha_
    assert noisy_model.score(new, labels) > 0.8


def test_progress_is_shown_on_demand(moons, capsys):
    X, y = moons
    KernelClassifier(**SMALL, max_iter=2, verbose=True).fit(X, y)
    shown = capsys.readouterr().out
    assert "passes" in shown
    assert "Gaussian" in shown
    KernelClassifier(**SMALL, max_iter=2).fit(X, y)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("features", "limit"),
    [("landmarks", 6), ("random", 40)]
    + [pytest.param(*case, marks=pytest.mark.slow) for case in [("landmarks", 40), ("random", 6), ("random", 10)]],
)
def test_no_more_features_than_asked_for(features, limit):
    X, y = make_moons(60, noise=0.2, random_state=0)
    model = KernelClassifier(
        Gaussian(0.5), max_features=limit, method=Auto(features=features, block_size=32), random_state=0
    )
    assert 0 < model.fit(X, y).n_features_used_ <= limit
    assert 0 < model.partial_fit(X, y).n_features_used_ <= limit


def test_rows_of_weight_0_have_no_say_in_the_loss():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(1400, 2))
    weights = np.repeat([1.0, 0.0], [100, 1300])
    assert KernelClassifier(**SMALL).fit(X, X[:, 0] > 0, sample_weight=weights).loss_ == "logistic"


def test_probabilities_of_fifty_rows_with_thirty_features_are_not_too_sure():
    """A metric that fits chance would have a log loss of 0.36 here, and 46 of those it is sure of wrong."""
    X, y = load_breast_cancer(return_X_y=True)
    losses, wrong = [], 0
    for seed in range(3):
        known, new, labels, truth = train_test_split(X, y, train_size=50, random_state=seed, stratify=y)
        p = KernelClassifier(Gaussian, random_state=0).fit(known, labels).predict_proba(new)
        losses.append(log_loss(truth, p))
        wrong += np.sum(p[np.arange(len(truth)), 1 - truth] > 0.99)
    assert np.mean(losses) < 0.2
    assert wrong <= 10


def test_the_loss_is_chosen_by_rows_left_out():
    X = np.random.default_rng(0).normal(size=(2600, 6))
    y = np.sum(X**2, axis=1) > 5.3
    model, squares = (KernelClassifier(loss=loss, random_state=0).fit(X[:600], y[:600]) for loss in ("auto", "squared"))
    assert model.loss_ == "logistic"
    assert 1 - model.score(X[600:], y[600:]) < 0.9 * (1 - squares.score(X[600:], y[600:]))

"""Kernel estimators on data as they come: far from the origin, in streams whose beginning is not like the rest."""

import numpy as np
import pytest
import scipy.sparse
from sklearn.datasets import load_diabetes, make_moons
from sklearn.metrics import log_loss
from sklearn.model_selection import KFold, cross_val_score

from thalweg import KernelClassifier, KernelRegressor, load
from thalweg.kernels import Gaussian
from thalweg.machines import CDSG, DSG, UDSG, Auto

FAR = 1e8
SMALL = {"bandwidth": 0.25, "alpha": 0.01, "method": Auto(block_size=64), "random_state": 0, "max_iter": 3}
X, LABELS = make_moons(300, noise=0.1, random_state=0)
NEW, NEW_LABELS = make_moons(200, noise=0.1, random_state=1)
VALUES, NEW_VALUES = np.sin(2 * X[:, 0]) + X[:, 1], np.sin(2 * NEW[:, 0]) + NEW[:, 1]
KINDS = {KernelClassifier: (LABELS, NEW_LABELS, 0.97), KernelRegressor: (VALUES, NEW_VALUES, 0.99)}


def in_a_stream(model, x, y):
    return model.fit_stream((x[i : i + 100], y[i : i + 100]) for i in range(0, len(x), 100))


WAYS = {
    "many rows": lambda model, x, y: model.fit(x, y),
    "one block": lambda model, x, y: model.set_params(method=Auto(block_size=2048)).fit(x, y),
    "stream": in_a_stream,
    "frequencies": lambda model, x, y: model.set_params(method=DSG(block_size=64), max_iter=10).fit(x, y),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "way", ["many rows", "stream", *(pytest.param(w, marks=pytest.mark.slow) for w in list(WAYS)[1::2])]
)
def test_features_far_from_the_origin_are_learned_as_well(kind, way, tmp_path):
    y, new_y, _ = KINDS[kind]
    near, far = (WAYS[way](kind(**SMALL), X + shift, y) for shift in (0.0, FAR))
    scores = near.score(NEW, new_y), far.score(NEW + FAR, new_y)
    assert abs(scores[0] - scores[1]) < 0.003
    assert way == "frequencies" or scores[1] > KINDS[kind][2]
    far.save(tmp_path / "model")
    found = load(tmp_path / "model")
    np.testing.assert_array_equal(found.predict(NEW + FAR), far.predict(NEW + FAR))
    # It goes on learning from where it was.
    again = [model.partial_fit(NEW + FAR, new_y).predict(X + FAR) for model in (far, found)]
    np.testing.assert_array_equal(*again)


def test_a_sparse_matrix_and_a_memory_map_are_learned_from_as_arrays_are(tmp_path):
    far = X + FAR
    map_ = np.memmap(tmp_path / "rows", dtype=np.float64, mode="w+", shape=far.shape)
    map_[:] = far
    models = [KernelRegressor(**SMALL).fit(x, VALUES) for x in (far, map_, scipy.sparse.csr_matrix(far))]
    expected = models[0].predict(far[:50])
    for model, x in zip(models, (far, map_, scipy.sparse.csr_matrix(far)), strict=True):
        np.testing.assert_array_equal(model.predict(x[:50]), expected)


@pytest.mark.parametrize("loss", ["quantile", *(pytest.param(w, marks=pytest.mark.slow) for w in ("huber", "squared"))])
@pytest.mark.parametrize("first", ["one row", "all the same", "a tenth of the spread"])
def test_a_stream_whose_first_targets_are_not_like_the_rest_is_learned_as_well(loss, first, tmp_path):
    y, new_y = 1e4 * VALUES + 1e5, 1e4 * NEW_VALUES + 1e5
    middle = np.argsort(np.abs(VALUES - np.median(VALUES)))[:20]
    rows = {"one row": [0], "all the same": [0] * 20, "a tenth of the spread": middle}[first]
    model = KernelRegressor(Gaussian(0.5), **SMALL | {"bandwidth": "auto"}, loss=loss).partial_fit(X[rows], y[rows])
    for part in np.array_split(np.arange(len(X)), 3):
        model.partial_fit(X[part], y[part])
    whole = KernelRegressor(Gaussian(0.5), **SMALL | {"bandwidth": "auto"}, loss=loss).fit(X, y)
    assert model.score(NEW, new_y) > whole.score(NEW, new_y) - 0.01
    # Far from the rows it is the mean of all targets, not of the first.
    assert abs(model.predict([[50.0, 50.0]])[0] - y.mean()) < 0.6 * y.std()
    model.save(tmp_path / "model")
    again = [m.partial_fit(NEW, new_y).predict(X) for m in (load(tmp_path / "model"), model)]
    np.testing.assert_array_equal(*again)


@pytest.mark.parametrize("method", [DSG, *(pytest.param(w, marks=pytest.mark.slow) for w in (UDSG, CDSG))])
def test_a_stream_of_random_features_follows_the_targets_as_well(method):
    y, new_y = 1e4 * VALUES + 1e5, 1e4 * NEW_VALUES + 1e5
    parts = {"kernel": Gaussian(0.5), "alpha": 0.01, "method": method(block_size=16), "random_state": 0}
    model = KernelRegressor(**parts).partial_fit(X[:1], y[:1])
    for part in np.tile(np.split(np.arange(len(X)), 3), (4, 1)):
        model.partial_fit(X[part], y[part])
    plain = KernelRegressor(**parts)
    for part in np.tile(np.split(np.arange(len(X)), 3), (4, 1)):
        plain.partial_fit(X[part], y[part])
    assert model.score(NEW, new_y) > plain.score(NEW, new_y) - 0.05
    # Other units do not change what it predicts.
    before = plain.predict(NEW)
    plain._machine = plain._machine.with_targets(np.array([0.5]), np.array([-3.0]))
    np.testing.assert_allclose(
        (plain._values(NEW)[:, 0] + 3) * 2 * plain._target_scale + plain._target_mean, before, rtol=1e-4
    )


def test_far_from_the_data_a_probability_is_the_prevalence():
    """But for the shift of the calibration; in a stream, whose first rows are all of one class, about it."""
    draws = np.random.default_rng(0).choice(3, 150, p=[0.1, 0.3, 0.6])
    shares, far = np.bincount(draws) / 150, np.full((1, 2), 1e3)
    fitted = KernelClassifier(Gaussian, metric="none", random_state=0).fit(X[:150], draws)
    np.testing.assert_allclose(fitted.predict_proba(far)[0], shares, atol=0.03)
    parts = np.split(np.argsort(draws != 2, kind="stable"), [30, 80])
    stream = KernelClassifier(**SMALL).fit_stream(((X[part], draws[part]) for part in parts), classes=[0, 1, 2])
    np.testing.assert_allclose(stream.predict_proba(far)[0], shares, atol=0.15)
    balanced = KernelClassifier(Gaussian, metric="none", random_state=0, class_weight="balanced").fit(
        X[:150], draws == 0
    )
    np.testing.assert_allclose(balanced.predict_proba(far)[0], [0.5, 0.5], atol=0.05)
    hinge = KernelClassifier(**SMALL, loss="hinge").fit(X[:150], draws == 0)
    assert abs(hinge.decision_function(far)[0]) < 1e-20


def test_a_row_of_extreme_size_does_not_take_the_others_along():
    odd = np.concatenate([X, [[1e12, 1e12]]])
    model = KernelRegressor(**SMALL).fit(odd, np.append(VALUES, 0.0))
    assert model.score(NEW, NEW_VALUES) > 0.99


@pytest.mark.slow
def test_rare_labels_of_few_rows_have_better_probabilities_than_a_constant():

    def drawn(seed, n):
        draws = np.random.default_rng(seed)
        x = draws.normal(size=(n, 5))
        return x, (draws.uniform(size=n) < 1 / (1 + np.exp(3 - x[:, 0]))).astype(int)

    new, labels = drawn(1, 4000)
    ratios = []
    for seed in (0, 2, 3):
        x, y = drawn(seed, 800)
        found = KernelClassifier(random_state=0).fit(x, y).predict_proba(new)[:, 1]
        ratios.append(log_loss(labels, found) / log_loss(labels, np.full(4000, y.mean())))
    assert max(ratios) < 0.97


@pytest.mark.slow
def test_diabetes_is_predicted_as_well_as_by_a_line():
    x, y = load_diabetes(return_X_y=True)
    folds = KFold(3, shuffle=True, random_state=0)
    assert cross_val_score(KernelRegressor(random_state=0), x, y, cv=folds).mean() >= 0.45


@pytest.mark.slow
def test_the_choice_for_few_rows_is_that_for_rows_given_twice():
    rows = np.tile(X[:60], (2, 1))
    models = [
        KernelClassifier(random_state=0).fit(X[:60], LABELS[:60], np.full(60, 2.0)),
        KernelClassifier(random_state=0).fit(rows, np.tile(LABELS[:60], 2)),
    ]
    assert models[0].alpha_ == pytest.approx(models[1].alpha_)
    np.testing.assert_allclose(*(model.decision_function(NEW) for model in models), atol=1e-3)

"""Hostile inputs to the kernel estimators, methods and machines: a clear error, or a right answer. One line a case."""
# ruff: noqa: E501

import copy
import pickle
from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from thalweg import KernelClassifier, KernelRegressor, load
from thalweg.errors import FileFormatError, IncompatiblePartsError
from thalweg.kernels import Gaussian, Linear, Matern32
from thalweg.machines import (
    CDSG,
    DSG,
    UDSG,
    Auto,
    Capped,
    Checked,
    HuberLoss,
    QuantileLoss,
    Settings,
    SquaredLoss,
    Table,
    Uniform,
    fit,
    learn,
)

N = 48
X = np.random.default_rng(0).normal(size=(N, 3))
Y = (X[:, 0] > 0).astype(int)
T = X[:, 0] + np.sin(X[:, 1])
PARTS = {"kernel": Gaussian(2.0), "alpha": 0.1, "method": Auto(block_size=64), "random_state": 0}
BOTH = (TypeError, ValueError)
TABLE = Table(X, T[:, None], np.ones(N))
SQUARED = Settings(loss=SquaredLoss(), kernel=Gaussian(2.0), alpha=0.1, method=Auto(block_size=64))


def kc(x=X, y=Y, weights=None, **options):
    return KernelClassifier(**{**PARTS, **options}).fit(x, y, weights)


def kr(x=X, y=T, weights=None, **options):
    return KernelRegressor(**{**PARTS, **options}).fit(x, y, weights)


CLASSIFIER, REGRESSOR = kc(), kr()
EXPECTED, VALUES = CLASSIFIER.predict_proba(X), REGRESSOR.predict(X)


def same(model, tolerance=1e-6):
    """The model predicts what the one of plain arrays does."""
    if isinstance(model, KernelClassifier):
        return np.allclose(model.predict_proba(X), EXPECTED, atol=tolerance)
    return np.allclose(model.predict(X), VALUES, atol=tolerance)


def good(model):
    """The model knows its rows."""
    return model.score(X, Y if isinstance(model, KernelClassifier) else T) > 0.9


def finite(found):
    return bool(np.all(np.isfinite(found)))


def changed(value, row=3, column=1):
    found = X.copy()
    found[row, column] = value
    return found


class Frame:
    """As much of a data frame as an array is made from."""

    def __array__(self, dtype=None, copy=None):
        return np.asarray(X, dtype)


def file(content):
    def act(folder):
        path = folder / "model"
        path.write_bytes(content)
        return load(path)

    return act


def saved(change):
    """Save a model, change the bytes of the file, and load it."""

    def act(folder):
        CLASSIFIER.save(folder / "model")
        data = (folder / "model").read_bytes()
        return file(change(data))(folder)

    return act


def stream(model, *batches, **options):
    return model.fit_stream(iter(batches), **options)


def in_turn(model, *batches):
    for x, y in batches:
        model.partial_fit(x, y)
    return model


FEATURES = [
    ("NaN", lambda: kc(changed(np.nan)), ValueError, "X contains NaN"),
    ("infinity", lambda: kr(changed(-np.inf)), ValueError, "X contains infinity"),
    ("no rows", lambda: kr(X[:0], T[:0]), ValueError, r"0 sample\(s\)"),
    ("no columns", lambda: kc(X[:, :0]), ValueError, r"0 feature\(s\)"),
    ("a vector", lambda: kc(X[:, 0]), ValueError, "Expected 2D array, got 1D array"),
    ("a number", lambda: kc(3.0), ValueError, "Expected 2D array, got scalar"),
    ("three axes", lambda: kr(X[None]), ValueError, "Found array with dim 3"),
    ("words", lambda: kr(X.astype(str).astype(object) + "x"), ValueError, "could not convert string to float"),
    ("None", lambda: kc(None), ValueError, "NoneType|None"),
    ("complex", lambda: kc(X + 1j), ValueError, "Complex data not supported"),
    ("a generator", lambda: kc(row for row in X), BOTH, "generator|array"),
    ("a dict", lambda: kc({"a": 1}), BOTH, "dict|array"),
    ("ragged lists", lambda: kr([[1.0, 2.0], [3.0]] * 24), ValueError, "inhomogeneous|sequence"),
    ("rows of objects", lambda: kc(np.full((N, 3), object(), dtype=object)), BOTH, "float|number"),
    ("numbers as words", lambda: good(kc(X.astype(str).astype(object))), True, ""),
    ("a list of lists", lambda: same(kc(X.tolist(), Y.tolist())), True, ""),
    ("what is like an array", lambda: same(kr(Frame())), True, ""),
    ("integers", lambda: kc((1000 * X).astype(int), kernel=Gaussian(2000.0)).score((1000 * X).astype(int), Y) > 0.9, True, ""),
    ("booleans", lambda: kc(X > 0).score(X > 0, Y) == 1, True, ""),
    ("float16", lambda: same(kr(X.astype(np.float16)), 0.01), True, ""),
    ("float32", lambda: same(kc(X.astype(np.float32)), 1e-4), True, ""),
    ("big-endian", lambda: same(kr(X.astype(">f8"), T.astype(">f8"))), True, ""),
    ("in another order", lambda: same(kc(np.asfortranarray(X))), True, ""),
    ("every other row and column", lambda: same(kr(np.repeat(np.repeat(X, 2, 0), 2, 1)[::2, ::2])), True, ""),
    ("backwards", lambda: same(kc(X[::-1], Y[::-1])), True, ""),
    ("a sparse matrix", lambda: same(kc(scipy.sparse.csc_matrix(X))), True, ""),
    ("a sparse array", lambda: same(kr(scipy.sparse.coo_array(X))), True, ""),
    ("a masked array without a mask", lambda: same(kc(np.ma.masked_array(X))), True, ""),
    ("a matrix of NumPy", lambda: kc(np.matrix(X)), TypeError, "np.matrix is not supported"),
    ("read-only", lambda: same(kr(np.broadcast_to(X, X.shape))), True, ""),
    ("a huge scale", lambda: kc(1e30 * X, kernel=Gaussian).score(1e30 * X, Y) > 0.9, True, ""),
    ("a tiny scale", lambda: kr(1e-30 * X, kernel=None).score(1e-30 * X, T) > 0.9, True, ""),
    ("one huge column", lambda: kr(X * [1, 1, 1e12], kernel=None).score(X * [1, 1, 1e12], T) > 0.9, True, ""),
    ("beyond float32 in a stream", lambda: in_turn(KernelRegressor(**PARTS), (1e300 * X, T)), ValueError, "X must fit in float32"),
    ("a constant column", lambda: np.allclose(kr(np.column_stack([X, np.full(N, 7.0)])).predict(np.column_stack([X, np.full(N, 7.0)])), VALUES), True, ""),
    ("all columns constant", lambda: finite(kr(np.ones((N, 3)), kernel=None, alpha="auto").predict(X)), True, ""),
    ("one row", lambda: np.allclose(KernelRegressor().fit([[1.0]], [5.0]).predict([[1.0], [9.0]]), 5), True, ""),
    ("two rows", lambda: KernelClassifier().fit([[0.0], [1.0]], [0, 1]).predict([[0.0], [1.0]]).tolist() == [0, 1], True, ""),
    ("rows twice are weights of two", lambda: np.allclose(kr(np.tile(X, (2, 1)), np.tile(T, 2), method=Auto(block_size=128)).predict(X), kr(weights=np.full(N, 2.0)).predict(X), atol=1e-6), True, ""),
    ("far from the origin", lambda: np.allclose(kr(X + 1e9).predict(X + 1e9), VALUES, atol=1e-5), True, ""),
]  # fmt: skip

TARGETS = [
    ("one class", lambda: kc(y=np.zeros(N, int)), ValueError, "at least two classes, found one class: 0"),
    ("labels with NaN", lambda: kc(y=np.where(Y > 0, np.nan, 0.0)), ValueError, "y contains NaN"),
    ("labels of two types", lambda: kc(y=["a", 1] * 24), ValueError, "labels of one type, found numbers and str"),
    ("numbers as labels", lambda: kc(y=T), ValueError, "Unknown label type: continuous"),
    ("labels in columns", lambda: kc(y=np.eye(2)[Y]), ValueError, "y should be a 1d array"),
    ("no labels", lambda: kc(y=None), ValueError, "y to be passed|target y is None"),
    ("too few labels", lambda: kc(y=Y[:5]), ValueError, r"inconsistent numbers of samples: \[48, 5\]"),
    ("words as labels", lambda: same(kc(y=np.array(["no", "yes"])[Y])), True, ""),
    ("booleans as labels", lambda: same(kc(y=Y > 0)), True, ""),
    ("labels far apart", lambda: set(kc(y=np.where(Y, 10**9, -7)).predict(X)) == {10**9, -7}, True, ""),
    ("floats as labels", lambda: same(kc(y=Y.astype(float))), True, ""),
    ("targets with infinity", lambda: kr(y=np.where(Y > 0, np.inf, 0.0)), ValueError, "y contains infinity"),
    ("targets that are words", lambda: kr(y=np.full(N, "a")), ValueError, "y must hold numbers|could not convert"),
    ("complex targets", lambda: kr(y=T + 1j), ValueError, "Complex data not supported"),
    ("targets of three axes", lambda: kr(y=np.zeros((N, 2, 2))), ValueError, "dim 3"),
    ("targets too small", lambda: kr(y=1e-200 * T), ValueError, "y must have a variance that float64 holds, found values up to"),
    ("targets too large", lambda: kr(y=1e300 * T), ValueError, "y must have a variance that float64 holds, found values up to"),
    ("large targets", lambda: np.allclose(kr(y=1e30 * T).predict(X), 1e30 * VALUES, rtol=1e-6), True, ""),
    ("tiny targets", lambda: np.allclose(kr(y=1e-30 * T).predict(X) * 1e30, VALUES, atol=1e-5), True, ""),
    ("constant targets", lambda: np.allclose(kr(y=np.full(N, 7.0)).predict(X), 7), True, ""),
    ("targets that are words for numbers", lambda: kr(y=T.astype(str)), ValueError, "y must hold numbers, found '"),
    ("a column of targets", lambda: np.allclose(kr(y=T[:, None]).predict(X)[:, 0], VALUES), True, ""),
]  # fmt: skip

WEIGHTS = [
    ("negative weights", lambda: kc(weights=np.linspace(-1, 1, N)), ValueError, "sample_weight must be non-negative"),
    ("weights of zero", lambda: kr(weights=np.zeros(N)), ValueError, "[Ss]ample weights must contain at least one"),
    ("NaN weights", lambda: kr(weights=np.full(N, np.nan)), ValueError, "sample_weight contains NaN"),
    ("too few weights", lambda: kc(weights=np.ones(3)), ValueError, r"sample_weight.shape == \(3,\)"),
    ("weights that are words", lambda: kc(weights=["a"] * N), ValueError, "could not convert string"),
    ("a weight for all", lambda: same(kc(weights=1)), True, ""),
    ("class weights that are a list", lambda: kc(class_weight=[1, 2]), ValueError, "'class_weight' parameter"),
    ("a class weight of a word", lambda: kc(class_weight={0: "a"}), BOTH, r"class_weight\[0\] must be .* found 'a'"),
    ("a weight of an unknown class", lambda: kc(class_weight={9: 1.0}), ValueError, "known classes, .* found 9"),
    ("no weight for any class", lambda: kc(class_weight={0: 0, 1: 0}), ValueError, "class_weight must leave a row"),
    ("class weights of one", lambda: same(kc(class_weight={0: 1, 1: 1.0})), True, ""),
]  # fmt: skip

PARAMETERS = [
    ("a kernel by a wrong name", lambda: kc(kernel="rbff"), ValueError, "kernel must be one of 'rbf'.* found 'rbff'"),
    ("a kernel that is a number", lambda: kr(kernel=2.0), BOTH, "'kernel' parameter of KernelRegressor .* Got 2.0"),
    ("a kernel of another room", lambda: kr(kernel=SquaredLoss()), BOTH, "'kernel' parameter"),
    ("a kernel that is not stationary", lambda: kc(kernel=Linear()), IncompatiblePartsError, "kernel must be stationary"),
    ("lengthscales for other features", lambda: kc(kernel=Gaussian(np.ones(2))), ValueError, "3 features .* 2 lengthscales"),
    ("a kernel by its name", lambda: repr(kc(kernel="rbf").kernel_) == repr(kc(kernel=Gaussian).kernel_), True, ""),
    ("another by its name", lambda: isinstance(kr(kernel="matern32").kernel_, Matern32), True, ""),
    ("a bandwidth of zero", lambda: kc(bandwidth=0), ValueError, "'bandwidth' parameter .* Got 0"),
    ("a bandwidth of NaN", lambda: kr(kernel=None, bandwidth=np.nan), ValueError, "bandwidth"),
    ("an infinite ridge", lambda: kr(alpha=np.inf), ValueError, "'alpha' parameter .* Got inf"),
    ("a negative ridge", lambda: kr(alpha=-1.0), ValueError, "'alpha' parameter .* Got -1.0"),
    ("a ridge that is a bool", lambda: kr(alpha=True), BOTH, "alpha"),
    ("a weight too large", lambda: kr(weights=np.r_[1e200, np.ones(N - 1)]), ValueError, r"sample_weight must fit in float32, found values of size 1e\+200"),
    ("a weight too small", lambda: kc(weights=np.r_[1e-200, np.ones(N - 1)]), ValueError, "sample_weight must fit in float32, found values of size 1e-200"),
    ("a huge ridge", lambda: np.allclose(kr(alpha=1e12).predict(X), T.mean(), atol=1e-6), True, ""),
    ("a tiny ridge", lambda: np.allclose(kr(alpha=1e-12).predict(X), T, atol=1e-3), True, ""),
    ("a loss of the other", lambda: kc(loss="huber"), ValueError, "'loss' parameter of KernelClassifier"),
    ("a loss that is a class", lambda: kr(loss=HuberLoss), ValueError, "'loss' parameter of KernelRegressor"),
    ("a method by a wrong name", lambda: kc(method="sgd"), ValueError, "'method' parameter .* Got 'sgd'"),
    ("a method that is a class", lambda: kr(method=DSG), ValueError, "'method' parameter"),
    ("blocks of no rows", lambda: kc(method=Auto(block_size=0)), ValueError, "block_size of Auto must be .* found 0"),
    ("blocks of one row", lambda: good(kr(method=Auto(block_size=1), alpha=0.01, max_iter=3)), True, ""),
    ("features of a half", lambda: kr(max_features=0.5), ValueError, "'max_features' parameter .* Got 0.5"),
    ("passes of zero", lambda: kc(max_iter=0), ValueError, "'max_iter' parameter .* Got 0"),
    ("a seed that is a word", lambda: kc(random_state="a"), ValueError, "'random_state' parameter .* Got 'a'"),
    ("warm_start that is a word", lambda: kc(warm_start="yes"), ValueError, "'warm_start' parameter .* Got 'yes'"),
    ("verbose that is a word", lambda: kr(verbose="yes"), ValueError, "'verbose' parameter .* Got 'yes'"),
    ("a parameter nobody knows", lambda: kc().set_params(depth=3), ValueError, "Invalid parameter 'depth'"),
]  # fmt: skip

METHODS = [
    ("frequencies of a wrong name", lambda: DSG(features="waves"), ValueError, "features of DSG must be .* found 'waves'"),
    ("a batch of none", lambda: Auto(batch_size=0), ValueError, "batch_size of Auto .* found 0"),
    ("a batch of a half", lambda: UDSG(batch_size=0.5), TypeError, "batch_size of UDSG .* found 0.5"),
    ("a step of zero", lambda: DSG(step=0.0), ValueError, "step"),
    ("a step that is a word", lambda: CDSG(step="long"), BOTH, "step"),
    ("a tolerance of NaN", lambda: Auto(tol=np.nan), ValueError, "tol of Auto .* found nan"),
    ("a validation set of everything", lambda: Auto(validation_fraction=1.0), ValueError, "validation_fraction of Auto .* found 1.0"),
    ("early stopping that is a word", lambda: Auto(early_stopping="no"), ValueError, "early_stopping of Auto .* found 'no'"),
    ("precondition that is a word", lambda: DSG(precondition="no"), TypeError, "precondition of DSG .* found 'no'"),
    ("keeping that is a number", lambda: DSG(keep_frequencies=1), TypeError, "keep_frequencies of DSG .* found 1"),
    ("periods of one number", lambda: UDSG(periods=3), TypeError, "periods of UDSG .* found 3"),
    ("periods of nothing new", lambda: UDSG(periods=(0, 1)), ValueError, "new of Uniform .* found 0"),
    ("a stretch below one", lambda: CDSG(stretch=0.5), ValueError, "stretch of Checked .* found 0.5"),
    ("a cap of no blocks", lambda: Capped(0), ValueError, "blocks of Capped .* found 0"),
    ("periods that are negative", lambda: Uniform(1, -1), ValueError, "old of Uniform .* found -1"),
    ("a stretch that is a word", lambda: Checked("far"), TypeError, "stretch of Checked .* found 'far'"),
    ("a quantile of one", lambda: QuantileLoss(1.0), ValueError, "q of QuantileLoss .* found 1.0"),
    ("a width of zero", lambda: HuberLoss(0), ValueError, "width of HuberLoss .* found 0"),
    ("settings without a loss", lambda: Settings(loss="squared"), TypeError, "loss must be a Loss .* found 'squared'"),
    ("settings with a wrong kernel", lambda: Settings(loss=SquaredLoss(), kernel=int), TypeError, "kernel must be .* found"),
    ("settings with a bool", lambda: Settings(loss=SquaredLoss(), max_features=True), TypeError, "max_features must be .* True"),
    ("settings of half a pass", lambda: Settings(loss=SquaredLoss(), passes=0.5), TypeError, "passes must be .* 0.5"),
    ("fit of rows", lambda: np.allclose(fit(TABLE, SQUARED, 0).predict(X[:2]).shape, (2, 1)), True, ""),
    ("learn beyond the range of numbers", lambda: learn(replace(TABLE, targets=np.where(TABLE.targets > 0, 3e38, -3e38)), SQUARED, 0), ValueError, "values beyond the range of numbers"),
    ("fit of features beyond float32", lambda: learn(replace(TABLE, x=1e300 * X), SQUARED, 0), ValueError, "X must fit in float32, found values of size"),
]  # fmt: skip

CALLS = [
    ("nothing is learned", lambda: KernelClassifier().predict(X), NotFittedError, "not fitted yet"),
    ("nothing to save", lambda: KernelRegressor().save("model"), NotFittedError, "not fitted yet"),
    ("another width", lambda: CLASSIFIER.predict(X[:, :2]), ValueError, "X has 2 features, but .* expecting 3"),
    ("no rows to predict", lambda: REGRESSOR.predict(X[:0]), ValueError, r"0 sample\(s\)"),
    ("NaN to predict", lambda: REGRESSOR.predict(changed(np.nan)), ValueError, "X contains NaN"),
    ("far away", lambda: finite(CLASSIFIER.predict_proba(1e6 * X)), True, ""),
    ("probabilities of a hinge", lambda: np.allclose(kc(loss="hinge").predict_proba(X).sum(1), 1), True, ""),
    ("a refit of another width", lambda: copy.deepcopy(REGRESSOR).fit(X[:, :2], T).predict(X[:, :2]).shape == (N,), True, ""),
    ("going on with another width", lambda: copy.deepcopy(REGRESSOR).partial_fit(X[:, :2], T), ValueError, "expecting 3"),
    ("going on with an unknown class", lambda: copy.deepcopy(CLASSIFIER).partial_fit(X, Y + 5), ValueError, "known classes, .* found 5"),
    ("other classes", lambda: copy.deepcopy(CLASSIFIER).partial_fit(X, Y, classes=[0, 1, 2]), ValueError, "classes must be those of the first call"),
    ("a stream without batches", lambda: stream(KernelRegressor()), ValueError, "at least one pair .* found none"),
    ("a stream that is a number", lambda: KernelRegressor().fit_stream(3), TypeError, "iterable of pairs .* found 3"),
    ("a stream of single arrays", lambda: stream(KernelRegressor(**PARTS), X), TypeError, "pairs .* found ndarray"),
    ("a stream of one class", lambda: stream(KernelClassifier(**PARTS), (X, 0 * Y)), ValueError, "takes all there will be as classes"),
    ("a stream with its classes", lambda: good(stream(KernelClassifier(**PARTS), (X[:3], 0 * Y[:3]), (X, Y), (X, Y), classes=[0, 1])), True, ""),
    ("a stream row by row", lambda: kr().predict(X).shape == in_turn(KernelRegressor(**PARTS), *((X[i : i + 1], T[i : i + 1]) for i in range(8))).predict(X).shape, True, ""),
    ("a stream of equal rows", lambda: np.allclose(in_turn(KernelRegressor(**PARTS), (X[[0] * 5], T[[0] * 5])).predict(X[:1]), T[0]), True, ""),
    ("a copy", lambda: same(copy.deepcopy(CLASSIFIER)) and same(pickle.loads(pickle.dumps(REGRESSOR))), True, ""),
    ("a clone", lambda: clone(CLASSIFIER).predict(X), NotFittedError, "not fitted yet"),
]  # fmt: skip

FILES = [
    ("an empty file", file(b""), FileFormatError, "model"),
    ("a pickle", file(pickle.dumps({"a": 1})), FileFormatError, "model"),
    ("half a file", saved(lambda data: data[: len(data) // 2]), FileFormatError, "model"),
    ("a flipped bit", saved(lambda data: data[:-9] + bytes([data[-9] ^ 1]) + data[-8:]), FileFormatError, "model"),
    ("a file in a file", saved(lambda data: data + data), FileFormatError, "model"),
    ("no file", lambda folder: load(folder / "none"), FileNotFoundError, "none"),
    ("a folder", load, (OSError, FileFormatError), ""),
    ("a file as it is", lambda folder: same(saved(lambda data: data)(folder)), True, ""),
]  # fmt: skip

CASES = {
    f"{room}: {name}": (act, expected, message)
    for room, table in (
        ("X", FEATURES), ("y", TARGETS), ("weights", WEIGHTS), ("parameters", PARAMETERS), ("methods", METHODS),
        ("calls", CALLS), ("files", FILES),
    )
    for name, act, expected, message in table
}  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CASES)
def test_a_clear_error_or_a_right_answer(name, tmp_path):
    act, expected, message = CASES[name]
    given = (tmp_path,) if name.startswith("files") else ()
    if expected is True:
        assert act(*given)
    else:
        with pytest.raises(expected, match=message):
            act(*given)


def test_there_are_as_many_cases_as_promised():
    assert len(CASES) >= 140

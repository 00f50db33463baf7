"""Kernel estimators in files: the same to the last bit, going on from there, and no file that is not one of ours."""

import json

import numpy as np
import pytest
from sklearn.datasets import make_moons

from thalweg import KernelClassifier, KernelRegressor, files
from thalweg.errors import FileFormatError
from thalweg.kernels import Gaussian, Matern32
from thalweg.machines import CDSG, DSG, UDSG, Auto, QuantileLoss

X, Y = make_moons(80, noise=0.2, random_state=0)
T = np.stack([np.sin(X[:, 0]), X[:, 1]], axis=1)
SMALL = {"kernel": Gaussian(0.5), "alpha": 0.1, "block_size": 16, "random_state": 0, "max_iter": 2}
slow = lambda *values: pytest.param(*values, marks=pytest.mark.slow)
WORDS = np.array(["no", "yes"])[Y]
FITTED = {
    "landmarks": lambda: KernelClassifier(**SMALL).fit(X, Y),
    "one block": lambda: KernelClassifier(Matern32, class_weight={"no": 2.0}, bandwidth=0.7).fit(X, WORDS),
    "stream": lambda: KernelRegressor(**SMALL, loss=QuantileLoss(0.7)).partial_fit(X[:40], T[:40, 0]),
    "several targets": lambda: KernelRegressor(**SMALL).fit(X, T),
    "dsg": lambda: KernelClassifier(**SMALL, method=DSG(batch_size=32)).fit(X, Y),
    "udsg": lambda: KernelClassifier(**SMALL, method=UDSG(periods=(2, 1), batch_size=32)).fit(X, Y),
    "kept": lambda: KernelClassifier(**SMALL, method=UDSG(keep_frequencies=True, batch_size=32)).fit(X, Y),
    "cdsg": lambda: KernelClassifier(**SMALL, method=CDSG(step=0.3, batch_size=32), loss="hinge").fit(X, Y),
    "cdsg landmarks": lambda: KernelRegressor(**SMALL, method=CDSG(features="landmarks", batch_size=32)).fit(X, T),
    "capped": lambda: KernelClassifier(**SMALL, max_features=64, method=Auto(features="quasi", batch_size=32)).fit(
        X, Y
    ),
}
QUICK = ("landmarks",)


def values(model, x=X):
    return model.decision_function(x) if isinstance(model, KernelClassifier) else model.predict(x)


def more(model):
    targets = {True: Y, False: T if values(model).ndim == 2 else T[:, 0]}[isinstance(model, KernelClassifier)]
    if isinstance(model, KernelClassifier):
        targets = model.classes_[Y]
    return values(model.partial_fit(X[::-1], targets[::-1]))


@pytest.mark.parametrize("name", [name if name in QUICK else slow(name) for name in FITTED])
def test_a_file_holds_the_model_to_the_last_bit(tmp_path, name):
    model = FITTED[name]()
    model.save(tmp_path / "model")
    found = type(model).load(tmp_path / "model")
    np.testing.assert_array_equal(values(found), values(model))
    for attribute in ("n_iter_", "alpha_", "n_features_in_", "n_features_used_", "history_"):
        assert getattr(found, attribute) == getattr(model, attribute)
    assert repr(found.get_params()) == repr(model.get_params())
    assert found.kernel_.describe() == model.kernel_.describe()
    if isinstance(model, KernelClassifier):
        np.testing.assert_array_equal(found.predict(X), model.predict(X))
        assert found.classes_.dtype.kind == model.classes_.dtype.kind
    # Both go on as one, and a second file of the second one is as good.
    np.testing.assert_array_equal(more(found), more(model))
    found.save(tmp_path / "again")
    np.testing.assert_array_equal(values(type(model).load(tmp_path / "again")), values(model))


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    path = tmp_path_factory.mktemp("files") / "model"
    KernelClassifier(**SMALL).fit(X, Y).save(path)
    return path


def changed(saved, tmp_path, change):
    """A file with a good checksum, in which ``change(tree, metadata)`` changed something."""
    tree, metadata = files.load(saved)
    change(tree, metadata)
    path = tmp_path / "changed"
    files.save(path, tree, metadata, kind="KernelClassifier")
    return path


def put(*keys_and_value):
    *keys, last, value = keys_and_value

    def change(tree, metadata):
        place = {"tree": tree, "metadata": metadata}
        for key in keys:
            place = place[key]
        if value is None:
            del place[last]
        else:
            place[last] = value(place[last]) if callable(value) else value

    return change


HOSTILE = {
    "no expansion": put("tree", "expansion", None),
    "no weights": put("tree", "expansion", "weights", None),
    "weights of another shape": put("tree", "expansion", "weights", lambda w: w[:, :3]),
    "weights of another rank": put("tree", "expansion", "weights", lambda w: w[0]),
    "weights of another type": put("tree", "expansion", "weights", lambda w: w.astype(np.float64)),
    "fewer weights than blocks": put("tree", "expansion", "weights", lambda w: w[:-1]),
    "points of another dimension": put("tree", "expansion", "blocks", lambda b: b[:, :, :1]),
    "more blocks than there are": put("tree", "expansion", "used", np.int32(99)),
    "fewer blocks than none": put("tree", "expansion", "used", np.int32(-1)),
    "fewer examples than blocks": put("tree", "examples", lambda e: {name: a[:-1] for name, a in e.items()}),
    "no examples": put("tree", "examples", {}),
    "more rows in a block than fit": put("metadata", "filled", 17),
    "fewer rows in a block than none": put("metadata", "filled", -1),
    "labels as numbers": put("tree", "classes", "two"),
    "three classes": put("tree", "classes", np.arange(3)),
    "one class": put("tree", "classes", np.arange(1)),
    "no classes": put("tree", "classes", np.empty(0)),
    "unsorted classes": put("tree", "classes", np.array([1, 0])),
    "no parameters": put("metadata", "parameters", None),
    "an unknown parameter": put("metadata", "parameters", "depth", 3),
    "an object that is none": put("metadata", "parameters", "method", {"object": "os.system", "fields": {}}),
    "an object that is wrong": put("metadata", "parameters", "method", {"object": "DSG", "fields": {"step": -1.0}}),
    "a parameter that is wrong": put("metadata", "parameters", "method", "sgd"),
    "an absurd block": put("metadata", "parameters", "block_size", 10**15),
    "a loss of another estimator": put("metadata", "parameters", "loss", "huber"),
    "an unknown kernel": put("metadata", "kernel", "name", "Sinc"),
    "a kernel that is a list": put("metadata", "kernel", [1, 2]),
    "a negative lengthscale": put("metadata", "kernel", "lengthscale", -1.0),
    "an unknown class of kernels": put("metadata", "parameters", "kernel", {"class": "os.system"}),
    "an absurd dimension": put("metadata", "dimension", 10**15),
    "a negative dimension": put("metadata", "dimension", -2),
    "a dimension that is a word": put("metadata", "dimension", "two"),
    "absurd outputs": put("metadata", "outputs", 10**15),
    "other outputs": put("metadata", "outputs", 2),
    "negative rows": put("metadata", "rows", -5),
    "a seed that is none": put("metadata", "seed", "x"),
    "a negative seed": put("metadata", "seed", -1),
    "an absurd seed": put("metadata", "seed", 10**30),
    "a ridge that is a word": put("metadata", "alpha", "x"),
    "a negative ridge": put("metadata", "alpha", -1.0),
    "names for other features": put("metadata", "names", ["a"]),
    "precision as a word": put("metadata", "double", "yes"),
    "history that is a number": put("metadata", "history", 3),
    "passes that are a word": put("metadata", "passes", "many"),
    "rows seen that are a word": put("metadata", "seen", "all"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files_are_refused(saved, tmp_path, name):
    path = changed(saved, tmp_path, HOSTILE[name])
    with pytest.raises(FileFormatError, match="changed: not a KernelClassifier that this release wrote"):
        KernelClassifier.load(path)


def test_files_of_another_kind_and_damaged_files_are_refused(saved, tmp_path):
    with pytest.raises(FileFormatError, match="holds a 'KernelClassifier', expected a 'KernelRegressor'"):
        KernelRegressor.load(saved)
    data = saved.read_bytes()
    path = tmp_path / "damaged"
    for broken in (b"", data[: len(data) // 2], data[:-1], data[:-1] + bytes([data[-1] ^ 1]), b"pickle" * 50):
        path.write_bytes(broken)
        with pytest.raises(FileFormatError, match="damaged"):
            KernelClassifier.load(path)
    with pytest.raises(FileNotFoundError):
        KernelClassifier.load(tmp_path / "nothing")


def test_a_file_is_arrays_and_json(saved):
    data = saved.read_bytes()
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    assert json.loads(header["__metadata__"]["content"])["kind"] == "KernelClassifier"


def test_an_unchanged_file_can_be_read(saved, tmp_path):
    """What the hostile ones are changed from."""
    path = changed(saved, tmp_path, lambda tree, metadata: None)
    np.testing.assert_array_equal(values(KernelClassifier.load(path)), values(KernelClassifier.load(saved)))


def test_what_no_file_can_hold_is_said(tmp_path):
    model = KernelClassifier(**SMALL).fit(X, Y).set_params(method=DSG(step=lambda count: 0.1))
    with pytest.raises(TypeError, match="step of method must be a number, a word or None to be saved, found <function"):
        model.save(tmp_path / "model")
    with pytest.raises(FileNotFoundError, match=r"folder .* does not exist"):
        model.set_params(method="auto").save(tmp_path / "nowhere" / "model")
    assert not list(tmp_path.iterdir())

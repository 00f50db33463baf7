"""Kernel estimators in files: the same to the last bit, going on from there, and no file that is not one of ours."""

from dataclasses import replace

import numpy as np
import pytest
from sklearn.datasets import make_moons

from thalweg import KernelClassifier, KernelRegressor, files, load
from thalweg.errors import FileFormatError
from thalweg.kernels import Gaussian, Matern32
from thalweg.machines import CDSG, DSG, UDSG, Auto, QuantileLoss

X, Y = make_moons(80, noise=0.2, random_state=0)
T = np.stack([np.sin(X[:, 0]), X[:, 1]], axis=1)
SMALL = {"kernel": Gaussian(0.5), "alpha": 0.1, "method": Auto(block_size=16), "random_state": 0, "max_iter": 2}
slow = lambda *values: pytest.param(*values, marks=pytest.mark.slow)
WORDS = np.array(["no", "yes"])[Y]
by = lambda method, kind=KernelClassifier, **options: kind(
    **SMALL | {"method": method(batch_size=32, block_size=16, **options)}
)
FITTED = {
    "landmarks": lambda: KernelClassifier(**SMALL).fit(X, Y),
    "one block": lambda: KernelClassifier(Matern32, class_weight={"no": 2.0}, bandwidth=0.7).fit(X, WORDS),
    "stream": lambda: KernelRegressor(**SMALL, loss=QuantileLoss(0.7)).partial_fit(X[:40], T[:40, 0]),
    "several targets": lambda: KernelRegressor(**SMALL).fit(X, T),
    "dsg": lambda: by(DSG).fit(X, Y),
    "udsg": lambda: by(UDSG, periods=(2, 1)).fit(X, Y),
    "kept": lambda: by(UDSG, keep_frequencies=True).fit(X, Y),
    "cdsg": lambda: by(CDSG, step=0.3).set_params(loss="hinge").fit(X, Y),
    "cdsg landmarks": lambda: by(CDSG, KernelRegressor, features="landmarks").fit(X, T),
    "capped": lambda: by(Auto, features="quasi").set_params(max_features=64).fit(X, Y),
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
    found = load(tmp_path / "model")
    np.testing.assert_array_equal(values(found), values(model))
    for attribute in ("n_iter_", "alpha_", "n_features_in_", "n_features_used_", "history_"):
        assert getattr(found, attribute) == getattr(model, attribute)
    assert repr(found.get_params()) == repr(model.get_params())
    assert repr(found.kernel_) == repr(model.kernel_)
    if isinstance(model, KernelClassifier):
        np.testing.assert_array_equal(found.predict(X), model.predict(X))
        assert found.classes_.dtype.kind == model.classes_.dtype.kind
    # Both go on as one, and a second file of the second one is as good.
    np.testing.assert_array_equal(more(found), more(model))
    found.save(tmp_path / "again")
    np.testing.assert_array_equal(values(load(tmp_path / "again")), values(model))


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    path = tmp_path_factory.mktemp("files") / "model"
    KernelClassifier(**SMALL).fit(X, Y).save(path)
    return path


def changed(saved, tmp_path, change):
    """A file with a good checksum, in which ``change(tree)`` changed something."""
    tree, metadata, kind = files.read(saved)
    change(tree)
    path = tmp_path / "changed"
    files.save(path, tree, metadata, kind=kind)
    return path


def attribute(name, value):
    return lambda tree: tree["fitted"].update({name: value})


def parameter(name, value):
    return lambda tree: tree["parameters"].update({name: value})


def machine(change):
    """Change the machine: ``change(machine) -> machine``."""
    return lambda tree: tree["fitted"].update(_machine=change(tree["fitted"]["_machine"]))


def learner(change):
    return machine(lambda found: replace(found, learner=change(found.learner)))


def expansion(**changes):
    """Change arrays of the function: each is a value, or a function of what is there."""

    def change(found):
        now = found.expansion
        new = {name: value(getattr(now, name)) if callable(value) else value for name, value in changes.items()}
        return replace(found, expansion=now._replace(**new))

    return learner(change)


def examples(change):
    return learner(lambda found: replace(found, examples=type(found.examples)(*map(change, found.examples))))


HOSTILE = {
    "no machine": attribute("_machine", None),
    "weights of another shape": expansion(weights=lambda w: w[:, :3]),
    "weights of another rank": expansion(weights=lambda w: w[0]),
    "fewer weights than blocks": expansion(weights=lambda w: w[:-1]),
    "points of another dimension": expansion(blocks=lambda b: b[:, :, :1]),
    "more blocks than there are": expansion(used=np.int32(99)),
    "fewer blocks than none": expansion(used=np.int32(-1)),
    "fewer examples than blocks": examples(lambda array: array[:-1]),
    "more rows in a block than fit": learner(lambda found: replace(found, filled=17)),
    "fewer rows in a block than none": learner(lambda found: replace(found, filled=-1)),
    "three classes": attribute("classes_", np.arange(3)),
    "one class": attribute("classes_", np.arange(1)),
    "no classes": attribute("classes_", np.empty(0)),
    "unsorted classes": attribute("classes_", np.array([1, 0])),
    "an unknown parameter": parameter("depth", 3),
    "a parameter that is wrong": parameter("method", "sgd"),
    "a loss of another estimator": parameter("loss", "huber"),
    "an absurd dimension": attribute("n_features_in_", 10**15),
    "another dimension": attribute("n_features_in_", 3),
    "a negative seed": learner(lambda found: replace(found, seed=-1)),
    "an absurd seed": learner(lambda found: replace(found, seed=10**30)),
    "a ridge that is a word": machine(lambda found: replace(found, alpha="x")),
    "a negative ridge": machine(lambda found: replace(found, alpha=-1.0)),
    "passes that are a word": machine(lambda found: replace(found, passes="many")),
    "rows seen that are a word": machine(lambda found: replace(found, seen="all")),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files_are_refused(saved, tmp_path, name):
    path = changed(saved, tmp_path, HOSTILE[name])
    with pytest.raises(FileFormatError, match="changed: "):
        load(path)


def test_damaged_files_are_refused(saved, tmp_path):
    data = saved.read_bytes()
    path = tmp_path / "damaged"
    for broken in (b"", data[: len(data) // 2], data[:-1], data[:-1] + bytes([data[-1] ^ 1]), b"pickle" * 50):
        path.write_bytes(broken)
        with pytest.raises(FileFormatError, match="damaged"):
            load(path)


def test_an_unchanged_file_can_be_read(saved, tmp_path):
    """What the hostile ones are changed from."""
    path = changed(saved, tmp_path, lambda tree: None)
    np.testing.assert_array_equal(values(load(path)), values(load(saved)))


def test_what_no_file_can_hold_is_said(tmp_path):
    model = KernelClassifier(**SMALL).fit(X, Y).set_params(method=DSG(step=lambda count: 0.1))
    with pytest.raises(TypeError, match=r"method.*step: cannot store function"):
        model.save(tmp_path / "model")
    with pytest.raises(FileNotFoundError, match=r"folder .* does not exist"):
        model.set_params(method="auto").save(tmp_path / "nowhere" / "model")
    assert not list(tmp_path.iterdir())

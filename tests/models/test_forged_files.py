"""Hundreds of forged files of every estimator: each is refused in words, or is a model that predicts."""

import copy
import itertools
import json
import random
from functools import cache

import numpy as np
import pytest
import safetensors.numpy

import thalweg
from thalweg import codec, files
from thalweg.errors import FileFormatError

RNG = np.random.default_rng(0)
X = RNG.normal(size=(40, 2))
LABELS, COUNTS = (X[:, 0] > 0).astype(int), RNG.poisson(np.exp(X[:, 0]))
WRITTEN = RNG.poisson(1.0, size=(40, 6)) + 1
PAIRS = np.column_stack(np.divmod(np.arange(40), 8))
EACH = 40
"""Forgeries of each estimator."""
ESTIMATORS = {
    "KernelClassifier": lambda: thalweg.KernelClassifier("gaussian", alpha=0.1, random_state=0).fit(X, LABELS),
    "KernelRegressor": lambda: thalweg.KernelRegressor("gaussian", alpha=0.1, random_state=0).fit(X, np.sin(X)),
    "GPClassifier": lambda: thalweg.GPClassifier(learn=False).fit(X, LABELS),
    "GPRegressor": lambda: thalweg.GPRegressor("rbf", noise=0.1, learn=False).fit(X, np.sin(X[:, 0])),
    "MatrixCompletion": lambda: thalweg.MatrixCompletion(2, tol=1.0, random_state=0).fit(PAIRS, X[:, 0]),
    "CorrelatedTopicModel": lambda: thalweg.CorrelatedTopicModel(2, tol=1.0, draws=0, random_state=0).fit(WRITTEN),
    "BernoulliGLM": lambda: thalweg.BernoulliGLM().fit(X, LABELS),
    "CategoricalGLM": lambda: thalweg.CategoricalGLM().fit(X, LABELS),
    "GaussianGLM": lambda: thalweg.GaussianGLM().fit(X, X[:, 0] + np.sin(X[:, 1])),
    "PoissonGLM": lambda: thalweg.PoissonGLM().fit(X, COUNTS),
    "NegativeBinomialGLM": lambda: thalweg.NegativeBinomialGLM(dispersion=0.5).fit(X, COUNTS),
}
ROWS = {"MatrixCompletion": PAIRS, "CorrelatedTopicModel": WRITTEN[:8]}
VALUES = [None, "x", -1, 0, 1.5, 10**30, True, {"float": "nan"}, {"float": "inf"}, {"list": []}, {"dict": []}]
ARRAYS = {
    "NaN": lambda array: array * np.nan,
    "infinity": lambda array: array * 0 + np.inf,
    "negative": lambda array: -array - 1,
    "nothing": lambda array: array * 0,
    "cut": lambda array: array[:-1],
    "longer": lambda array: np.concatenate([array, array[:1]]),
    "another axis": lambda array: array[None],
    "flat": lambda array: array.reshape(-1),
    "empty": lambda array: array[:0],
    "whole": lambda array: array.astype(np.int64),
    "single": lambda array: array.astype(np.float32) + np.float32(0.5),
    "truth": lambda array: array.astype(bool),
    "words": lambda array: np.full(array.shape, "a"),
}


def places(node, path=()):
    """Where there is something in a description."""
    yield path
    for name, child in node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ():
        yield from places(child, (*path, name))


def at(node, path):
    for name in path:
        node = node[name]
    return node


def forgeries(tree):
    """All that one change makes of a description: where, and what is done there."""
    for path in itertools.islice(places(tree), 1, None):
        node = at(tree, path)
        if isinstance(node, dict) and "array" in node:
            yield from ((path, ("array", change)) for change in ARRAYS)
            yield from ((path, ("value", value)) for value in VALUES[:4])
        elif not isinstance(node, dict | list) and path[-1] not in ("array", "dtype", "object", "key", "class"):
            yield from ((path, ("value", value)) for value in VALUES if value != node)
        elif isinstance(node, list) and path[-1] in ("from", "dict", "list", "tuple"):
            yield from ((path, ("less", place)) for place in range(len(node)))
            yield path, ("more", ["more_", 3] if path[-1] in ("from", "dict") else 3)


def forge(content, arrays, path, kind, change):
    """A description and arrays with one change, or None where an array cannot have it."""
    content, arrays = copy.deepcopy(content), dict(arrays)
    owner, node = at(content["tree"], path[:-1]), at(content["tree"], path)
    if kind == "less":
        del node[change]
    elif kind == "more":
        node.append(change)
    elif kind == "value":
        owner[path[-1]] = change
    else:
        array = np.ndarray(node["shape"], np.dtype(node["dtype"]), buffer=arrays[node["array"]].tobytes())
        try:
            changed = np.asarray(ARRAYS[change](array))
        except (IndexError, TypeError, ValueError):
            return None
        owner[path[-1]] = codec._encode_array(changed, node["array"], arrays)
    nodes = [at(content["tree"], place) for place in places(content["tree"])]
    named = {node["array"] for node in nodes if isinstance(node, dict) and "array" in node}
    return content, {name: array for name, array in arrays.items() if name in named}


def write(path, content, arrays):
    text = json.dumps(content)
    header = {"format": files.FORMAT, "version": str(files.VERSION), "content": text}
    path.write_bytes(safetensors.numpy.save(arrays, header | {"sha256": files._digest(text, arrays)}))


def answers(model, rows):
    methods = ["predict" if hasattr(model, "predict") else "transform", "predict_proba", "decision_function"]
    return [np.asarray(getattr(model, method)(rows)) for method in methods if hasattr(model, method)]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """What is in a file of each estimator, which is fitted once, when it is asked for."""

    @cache
    def open_file(name):
        path = tmp_path_factory.mktemp("files") / "model"
        ESTIMATORS[name]().save(path)
        return files._open(path.read_bytes())

    return open_file


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ESTIMATORS)
def test_a_forged_file_is_refused_or_predicts(name, saved, tmp_path):
    rows = ROWS.get(name, X)
    content, arrays = saved(name)
    refused = 0
    for path, change in random.Random(0).sample(list(forgeries(content["tree"])), EACH):
        if (forged := forge(content, arrays, path, *change)) is None:
            continue
        write(tmp_path / "forged", *forged)
        try:
            model = thalweg.load(tmp_path / "forged")
        except FileFormatError:
            refused += 1
            continue
        for found in answers(model, rows):
            assert len(found) == len(rows), (path, change)
            assert found.dtype.kind != "f" or not np.any(np.isnan(found)), (path, change)
    assert refused > EACH / 4


BROKEN = {
    "weights of sites that are NaN": ("GPClassifier", "weights", "NaN"),
    "negative sites": ("GPClassifier", "sites", "negative"),
    "weights with another axis": ("GPRegressor", "weights", "another axis"),
    "vectors that are infinite": ("MatrixCompletion", "means", "infinity"),
    "rates that are negative": ("MatrixCompletion", "rate", "negative"),
    "covariances that are negative": ("CategoricalGLM", "covariance", "negative"),
    "topics that are NaN": ("CorrelatedTopicModel", "components_", "NaN"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_arrays_that_loaded_and_failed_later_are_refused(case, saved, tmp_path):
    name, part, change = BROKEN[case]
    content, arrays = saved(name)
    paths = [path for path in places(content["tree"]) if path and isinstance(at(content["tree"], path), dict)]
    path = next(path for path in paths if "array" in (node := at(content["tree"], path)) and part in node["array"])
    write(tmp_path / "forged", *forge(content, arrays, path, "array", change))
    with pytest.raises(FileFormatError, match="forged: "):
        thalweg.load(tmp_path / "forged")

"""A kernel estimator in one file: arrays and JSON, nothing that could run."""

from dataclasses import fields, is_dataclass
from typing import Any

import jax
import numpy as np
from sklearn.base import is_classifier

from thalweg import files, machines
from thalweg.arguments import number, whole
from thalweg.errors import FileFormatError
from thalweg.kernels import Kernel, from_description
from thalweg.kernels.description import kind_of
from thalweg.machines.learners import LandmarkLearner, start

# Objects that a parameter may be, by name: their fields are numbers and words.
_OBJECTS: dict[str, Any] = {
    kind.__name__: kind
    for kind in (
        machines.Auto,
        machines.DSG,
        machines.UDSG,
        machines.CDSG,
        machines.SquaredLoss,
        machines.HuberLoss,
        machines.QuantileLoss,
    )
}


def save(model: Any, path: Any) -> None:
    """Write a fitted estimator."""
    machine, learner = model._machine, model._machine.learner
    visits = isinstance(learner, LandmarkLearner)
    classes = getattr(model, "classes_", np.empty(0))
    tree = {
        "expansion": dict(learner.expansion._asdict()),
        "examples": dict(learner.examples._asdict()) if visits else {},
        "classes": np.asarray(classes, dtype=str) if classes.dtype == object else classes,
        "target_mean": getattr(model, "_target_mean", np.empty(0)),
        "target_scale": getattr(model, "_target_scale", np.empty(0)),
    }
    metadata = {
        "parameters": {name: _plain(name, value) for name, value in model.get_params(deep=False).items()},
        "kernel": machine.kernel.describe(),
        "alpha": machine.alpha,
        "dimension": model.n_features_in_,
        "names": list(getattr(model, "feature_names_in_", [])),
        "outputs": learner.expansion.weights.shape[2],
        "rows": machine.rows,
        "double": bool(machine.double),
        "seed": learner.seed,
        "filled": learner.filled if visits else 0,
        "seen": machine.seen,
        "passes": machine.passes,
        "history": machine.history,
        "flat": getattr(model, "_flat", True),
    }
    files.save(path, tree, metadata, kind=type(model).__name__)


def load(kind: type, path: Any) -> Any:
    """Read an estimator; what is not as it was written is refused."""
    tree, metadata = files.load(path, kind=kind.__name__)
    try:
        return _rebuilt(kind, tree, metadata)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError) as error:
        raise FileFormatError(f"{path}: not a {kind.__name__} that this release wrote ({error})") from error


def _rebuilt(kind: type, tree: dict, metadata: dict) -> Any:
    model = kind(**{name: _live(name, value) for name, value in metadata["parameters"].items()})
    model._validate_params()
    dimension, outputs = whole("dimension", metadata["dimension"]), whole("outputs", metadata["outputs"])
    rows = None if metadata["rows"] is None else whole("rows", metadata["rows"])
    seed = whole("seed", metadata["seed"], least=0, most=2**31 - 1)
    model.n_features_in_ = dimension
    if metadata["names"]:
        if len(metadata["names"]) != dimension:
            raise ValueError(f"{len(metadata['names'])} names for {dimension} features")
        model.feature_names_in_ = np.array([str(name) for name in metadata["names"]], dtype=object)
    if is_classifier(model):
        model.classes_ = _classes(tree["classes"], outputs)
    else:
        model._flat, model._target_mean, model._target_scale = bool(metadata["flat"]), *_moments(tree, outputs)
    double = bool(metadata["double"])
    with jax.enable_x64(double):
        dtype = np.float64 if double else np.float32
        kernel = jax.tree.map(lambda leaf: np.asarray(leaf, dtype), from_description(metadata["kernel"]))
        # Without room nothing is allocated by the word of a file.
        learner = start(model._settings(), kernel, dimension, outputs, rows, seed, dtype, room=False)
        learner.expansion = _like(learner.expansion, tree["expansion"])
        used, capacity = int(learner.expansion.used), learner.expansion.capacity
        if not 0 <= used <= capacity:
            raise ValueError(f"{used} blocks in room for {capacity}")
        if isinstance(learner, LandmarkLearner):
            learner.examples = _like(learner.examples, tree["examples"])
            if len(learner.examples.weights) != capacity:
                raise ValueError(f"examples of {len(learner.examples.weights)} blocks in room for {capacity}")
            size = learner.machine.coordinates.width
            learner.filled = whole("filled", metadata["filled"], least=min(used, 1), most=size if used else 0)
    alpha, seen = float(number("alpha", metadata["alpha"], above=0)), float(metadata["seen"])
    passes = whole("passes", metadata["passes"], least=0)
    model._store(machines.Fitted(learner, alpha, rows, seen, passes, tuple(metadata["history"])))
    return model


def _like(template: Any, arrays: dict) -> Any:
    """Put arrays into the named tuple, checked against the template in all but the number of blocks."""
    found = {}
    for name, wanted in template._asdict().items():
        array = np.asarray(arrays[name])
        if array.dtype != wanted.dtype or array.ndim != wanted.ndim or array.shape[1:] != wanted.shape[1:]:
            raise ValueError(f"{name} is {array.dtype}{array.shape}, expected {wanted.dtype}{wanted.shape}")
        found[name] = jax.numpy.asarray(array)
    if len({len(array) for array in found.values() if array.ndim}) != 1:
        raise ValueError("arrays of one expansion differ in their number of blocks")
    return type(template)(**found)


def _classes(classes: Any, outputs: int) -> np.ndarray:
    classes = np.asarray(classes)
    if classes.ndim != 1 or len(classes) < 2 or not np.array_equal(np.unique(classes), classes):
        raise ValueError("classes are not two or more in order")
    if outputs != (1 if len(classes) == 2 else len(classes)):
        raise ValueError(f"{outputs} outputs for {len(classes)} classes")
    return classes


def _moments(tree: dict, outputs: int) -> tuple[np.ndarray, np.ndarray]:
    mean, scale = np.asarray(tree["target_mean"], float), np.asarray(tree["target_scale"], float)
    if mean.shape != (outputs,) or scale.shape != (outputs,):
        raise ValueError(f"moments of {mean.shape} and {scale.shape} for {outputs} targets")
    return mean, scale


def _plain(name: str, value: Any) -> Any:
    """A parameter as JSON can hold it."""
    if isinstance(value, Kernel):
        return value.describe()
    if isinstance(value, type) and issubclass(value, Kernel):
        return {"class": value.__name__}
    if type(value).__name__ in _OBJECTS and is_dataclass(value):
        parts = {field.name: _plain(f"{field.name} of {name}", getattr(value, field.name)) for field in fields(value)}
        return {"object": type(value).__name__, "fields": parts}
    if isinstance(value, np.generic) or (isinstance(value, np.ndarray | jax.Array) and value.ndim == 0):
        return value.item()
    if value is None or isinstance(value, bool | int | float | str | tuple | list):
        return value
    if name == "class_weight" and isinstance(value, dict):
        return {"weights": [[_plain("", label), float(weight)] for label, weight in value.items()]}
    if name == "random_state":
        return None
    raise TypeError(f"{name} must be a number, a word or None to be saved, found {value!r}")


def _live(name: str, value: Any) -> Any:
    """A parameter from what JSON held."""
    if isinstance(value, dict) and "object" in value:
        parts = {field: tuple(part) if isinstance(part, list) else part for field, part in value["fields"].items()}
        return _OBJECTS[value["object"]](**parts)
    if name == "kernel" and isinstance(value, dict):
        return kind_of(value["class"]) if set(value) == {"class"} else from_description(value)
    if name == "class_weight" and isinstance(value, dict):
        return dict(map(tuple, value["weights"]))
    return value

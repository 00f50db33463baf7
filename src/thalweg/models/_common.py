"""What all estimators share: files, and work that is undone if it fails."""

import inspect
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from numbers import Integral, Real
from typing import Any, ClassVar
from weakref import WeakSet

import jax
import numpy as np
from sklearn.base import BaseEstimator, is_classifier
from sklearn.utils import Tags, check_random_state
from sklearn.utils._param_validation import Interval
from sklearn.utils.validation import check_is_fitted

from thalweg import __version__, files, models
from thalweg.arguments import whole
from thalweg.errors import FileFormatError
from thalweg.kernels import Kernel
from thalweg.models._inputs import validated
from thalweg.runs import Run, raising_interrupts


class Storable(BaseEstimator):
    """Base of estimators: what they have learned can be written to one file, and read without running code from it.

    Their parameters and attributes are numbers, words, arrays, containers of them, and objects of classes that are
    :func:`~thalweg.files.storable`.
    """

    _parameter_constraints: ClassVar[dict[str, list]] = {}
    _shared_constraints: ClassVar[dict[str, list]] = {
        "kernel": [Kernel, type, str, None],
        "learn": ["boolean"],
        "restarts": [Interval(Integral, 0, None, closed="left")],
        "max_iter": [Interval(Integral, 1, None, closed="left")],
        "tol": [Interval(Real, 0, None, closed="left")],
        "warm_start": ["boolean"],
        "random_state": ["random_state"],
        "verbose": ["verbose"],
    }
    """Those of parameters that several estimators have, where neither one nor its base class says otherwise."""

    known: ClassVar[dict[str, type["Storable"]]] = {}
    """The estimators that :func:`load` knows, by name."""

    _trials: ClassVar[tuple[str, ...]] = ("predict", "predict_proba", "decision_function")
    """What a model that was read from a file must be able to say of rows, as far as it has these methods."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        shared = {name: limits for name, limits in cls._shared_constraints.items() if name in vars(cls)}
        inherited = super(cls, cls)._parameter_constraints
        cls._parameter_constraints = shared | inherited | cls._parameter_constraints
        if not cls.__name__.startswith("_"):
            Storable.known[cls.__name__] = cls

    _clones: ClassVar[WeakSet["Storable"]] = WeakSet()
    """Estimators that scikit-learn copied to fit them many times: Ctrl-C is meant for all of their fits."""

    _true_tags: ClassVar[tuple[str, ...]] = ()
    """The tags of scikit-learn that are true of it and not by default, with the groups that they are in."""

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        for name in self._true_tags:
            group, tag = name.split(".")
            setattr(getattr(tags, group), tag, True)
        return tags

    def __sklearn_clone__(self) -> "Storable":
        copy = super().__sklearn_clone__()
        Storable._clones.add(copy)
        return copy

    def _seed(self) -> int:
        return int(check_random_state(self.random_state).randint(2**31 - 1))

    def _checked_rows(self, X: Any, **options: Any) -> Any:
        """The rows to predict, as those that were learned from are."""
        check_is_fitted(self)
        return validated(self, X, reset=False, **options)

    def _trial_rows(self) -> Any:
        """The rows that this is tried with: several, since one fits too many shapes."""
        return np.linspace(0.0, 1.0, 3)[:, None] * np.ones(self.n_features_in_)

    def save(self, path: str | os.PathLike) -> None:
        """Write the fitted estimator to one file, from which :func:`thalweg.load` reads it without running any code.

        Parameters
        ----------
        path
            Where to write; an older file there is replaced once the new one is safely on the disk.
        """
        check_is_fitted(self)
        parameters = self.get_params(deep=False)
        for name, value in parameters.items():
            if inspect.isroutine(value):
                raise TypeError(f"a file holds no code: {type(self).__name__} with the function {name} cannot be saved")
        fitted = {name: value for name, value in vars(self).items() if name not in parameters}
        if isinstance(parameters.get("random_state"), np.random.RandomState | np.random.Generator):
            parameters["random_state"] = None  # a generator has moved on since the fit
        tree = {"parameters": parameters, "fitted": fitted}
        files.save(path, tree, {"thalweg": __version__}, kind=type(self).__name__)


def load(path: str | os.PathLike) -> Any:
    """Read an estimator that its ``save`` wrote; it predicts, and goes on learning, as the original would.

    Parameters
    ----------
    path
        The file. Nothing in it can run; one that is damaged, foreign or forged is a
        :class:`~thalweg.errors.FileFormatError`.

    Examples
    --------
    >>> import tempfile
    >>> from thalweg import GaussianGLM, load
    >>> model = GaussianGLM().fit([[0.0], [1.0], [2.0]], [1.0, 3.1, 4.9])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     model.save(f"{folder}/model")
    ...     again = load(f"{folder}/model")
    >>> bool(again.predict([[3.0]]) == model.predict([[3.0]]))
    True
    """
    for name in dir(models):  # what is not loaded yet is not known
        getattr(models, name)
    with jax.enable_x64(True):  # so that numbers keep their precision
        tree, _, kind = files.read(path)
        if kind not in Storable.known:
            raise FileFormatError(f"{path}: holds a {kind!r}, and no estimator of this release")
        try:
            model = _rebuilt(Storable.known[kind], tree)
        except Exception as error:  # whatever the estimator says of what it was given
            raise FileFormatError(f"{path}: not a {kind} that this release wrote ({error})") from error
    return model


def _rebuilt(kind: type[Storable], tree: Any) -> Storable:
    model = kind(**tree["parameters"])
    model._validate_params()
    for name, value in tree["fitted"].items():
        if hasattr(kind, name) or not (name.endswith("_") or name.startswith("_")):
            raise ValueError(f"{name[:80]!r} is no attribute that it learns")
        setattr(model, name, value)
    check_is_fitted(model)
    features, names = model.n_features_in_, getattr(model, "feature_names_in_", None)
    if type(features) is not int or features < 1 or (names is not None and len(names) != features):
        raise ValueError(f"n_features_in_ is {features!r}")
    # Arrays that do not fit one another would fail, or worse not fail, at the first prediction: so this is it.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the rows have no names, and may be far from all that was learned from
        rows = model._trial_rows()
        found = [getattr(model, method)(rows) for method in model._trials if hasattr(model, method)]
    for values in found:
        if len(values) != len(rows):
            raise ValueError(f"{len(rows)} rows have {len(values)} predictions")
        if np.issubdtype(values.dtype, np.floating) and np.any(np.isnan(values)):
            raise ValueError("predictions that are not a number")
    if is_classifier(model):
        _check_classes(model.classes_, found[1].shape[1:])
    return model


def _check_classes(classes: Any, values: tuple[int, ...]) -> None:
    """Refuse classes that are not in order, or not as many as there are values of one row."""
    if not np.array_equal(np.unique(classes), classes) or len(classes) < 2:
        raise ValueError("classes_ are not two or more in order")
    if values != (len(classes),) and not (values == () and len(classes) == 2):
        raise ValueError(f"values of {values} for {len(classes)} classes")


def settings_of(kind: Any, model: Any, **changed: Any) -> Any:
    """A dataclass of settings from the parameters of the same names, but for those given."""
    given = model.get_params(deep=False)
    return kind(**{field.name: given[field.name] for field in fields(kind) if field.name in given} | changed)


def seed(random_state: Any) -> Any:
    """What NumPy's new generators can be made of."""
    if isinstance(random_state, np.random.RandomState):
        return random_state.randint(2**31)
    if isinstance(random_state, np.random.Generator | None):
        return random_state
    return whole("random_state", random_state, least=0)


@contextmanager
def unharmed(model: Any) -> Iterator[None]:
    """Leave the model as it was where what is done in this scope fails or is interrupted; nothing is copied.

    All runs of the scope show one progress bar. An interrupt of a clone is raised.
    """
    before = dict(vars(model))
    bar, cloned = bool(getattr(model, "verbose", False)), model in Storable._clones
    try:
        with raising_interrupts(cloned), Run(type(model).__name__, bar=bar):
            yield
    except BaseException:
        vars(model).clear()
        vars(model).update(before)
        raise

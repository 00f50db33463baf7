"""Every estimator in a file: the same to the last bit, going on from there, and no file that is not one of ours."""

import inspect
from dataclasses import replace

import jax
import numpy as np
import pytest
from sklearn.base import BaseEstimator
from sklearn.datasets import make_moons

import thalweg
from thalweg import files, models
from thalweg.errors import FileFormatError
from thalweg.gaussian.linear.weights import PriorFrame
from thalweg.kernels import Gaussian

X, LABELS = make_moons(60, noise=0.2, random_state=0)
MANY = make_moons(300, noise=0.2, random_state=1)[0]  # of fewer rows, more parameters are drawn
WORDS = np.array(["no", "yes"])[LABELS]
WRITTEN = np.random.default_rng(1).poisson(1.0, size=(40, 6)) + 1
COUNTS = np.random.default_rng(0).poisson(np.exp(X[:, 0]))
FITTED = {
    "KernelClassifier": lambda: thalweg.KernelClassifier(random_state=0).fit(X, WORDS.astype(object)),
    "KernelRegressor": lambda: thalweg.KernelRegressor(random_state=0).fit(X, np.sin(X)),
    "GPClassifier": lambda: thalweg.GPClassifier(learn=False).fit(X, LABELS),
    "GPRegressor": lambda: thalweg.GPRegressor("rbf", restarts=0, random_state=0).fit(MANY, np.sin(MANY[:, 0])),
    "GPRegressor on a grid": lambda: thalweg.GPRegressor(Gaussian(0.5), noise=0.1, learn=False, method="grid").fit(
        X, np.sin(X[:, 0])
    ),
    "MatrixCompletion": lambda: thalweg.MatrixCompletion(2, tol=1.0, random_state=0).fit(X[:, :2], X[:, 0]),
    "CorrelatedTopicModel": lambda: thalweg.CorrelatedTopicModel(2, tol=1.0, draws=0, random_state=0).fit(WRITTEN),
    "BernoulliGLM": lambda: thalweg.BernoulliGLM().fit(X, WORDS),
    "CategoricalGLM": lambda: thalweg.CategoricalGLM().fit(X, WORDS),
    "GaussianGLM": lambda: thalweg.GaussianGLM(prior_scale=1.0).fit(X, X[:, 0] + np.sin(X[:, 1])),
    "PoissonGLM": lambda: thalweg.PoissonGLM(prior_scale=1.0).fit(X, COUNTS),
    "NegativeBinomialGLM": lambda: thalweg.NegativeBinomialGLM(dispersion=0.5, prior_scale=1.0).fit(X, COUNTS),
}
ESTIMATORS = [name for name in models.__all__ if inspect.isclass(getattr(models, name))]
ESTIMATORS = [name for name in ESTIMATORS if issubclass(getattr(models, name), BaseEstimator)]


@pytest.fixture(scope="module")
def fitted():
    """Each estimator fitted once, when it is asked for."""
    found = {}
    return lambda name: found[name] if name in found else found.setdefault(name, FITTED[name]())


def answers(model):
    """All that it predicts."""
    if not hasattr(model, "predict"):
        return model.transform(WRITTEN[:8]).tolist()  # as many as a file is tried with when it is read
    methods = [name for name in ("predict", "predict_proba", "decision_function", "latent") if hasattr(model, name)]
    return [part for name in methods for part in np.atleast_1d(getattr(model, name)(X)).tolist()]


@pytest.mark.parametrize("name", ESTIMATORS)
def test_an_estimator_has_at_most_a_dozen_parameters(name):
    assert len(getattr(models, name)().get_params(deep=False)) <= 12


@pytest.mark.parametrize("name", [*ESTIMATORS, "GPRegressor on a grid"])
def test_save_and_load_and_predict_is_equal_to_the_last_bit(fitted, tmp_path, name):
    model = fitted(name)
    model.save(tmp_path / "model")
    again = thalweg.load(tmp_path / "model")
    assert type(again) is type(model)
    assert answers(again) == answers(model)
    assert repr(again.get_params()) == repr(model.get_params())
    public = lambda found: {key for key in vars(found) if key.endswith("_") and not key.startswith("_")}
    assert public(again) == public(model)
    # A file of what was read is as good.
    again.save(tmp_path / "again")
    assert answers(thalweg.load(tmp_path / "again")) == answers(model)


def test_what_was_loaded_predicts_as_quietly_in_the_default_precision(fitted, tmp_path):
    fitted("GaussianGLM").save(tmp_path / "model")
    with jax.enable_x64(False):
        np.testing.assert_array_equal(thalweg.load(tmp_path / "model").predict(X), fitted("GaussianGLM").predict(X))


def test_a_function_of_the_users_is_named_where_it_cannot_be_saved(tmp_path):
    model = thalweg.GPRegressor(Gaussian(0.5), noise=0.1, learn=False, mean=lambda X: X[:, 0]).fit(X, X[:, 0])
    with pytest.raises(TypeError, match="a file holds no code: GPRegressor with the function mean cannot be saved"):
        model.save(tmp_path / "model")
    assert not list(tmp_path.iterdir())


@pytest.fixture(scope="module")
def saved(fitted, tmp_path_factory):
    path = tmp_path_factory.mktemp("files") / "model"
    fitted("GaussianGLM").save(path)
    return path


def forged(saved, path, change):
    tree, metadata, kind = files.read(saved)
    kind = change(tree) or kind
    files.save(path, tree, metadata, kind=kind)
    return path


def put(*keys_and_value):
    *keys, last, value = keys_and_value

    def change(tree):
        for key in keys:
            tree = tree[key]
        tree[last] = value

    return change


HOSTILE = {
    "no parameters": lambda tree: tree.pop("parameters") and None,
    "no attributes": lambda tree: tree["fitted"].clear(),
    "an unknown parameter": put("parameters", "depth", 3),
    "a parameter that is wrong": put("parameters", "tol", -1.0),
    "a parameter of another type": put("parameters", "max_iter", "many"),
    "a method": put("fitted", "predict", 3),
    "a name that is none": put("fitted", "coef", np.ones(2)),
    "the class": put("fitted", "__class__", "KernelClassifier"),
    "an absurd dimension": put("fitted", "n_features_in_", 10**15),
    "a negative dimension": put("fitted", "n_features_in_", -2),
    "a dimension that is a word": put("fitted", "n_features_in_", "two"),
    "another dimension": put("fitted", "n_features_in_", 3),
    "names of other features": put("fitted", "feature_names_in_", np.array(["a"], dtype=object)),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_forged_files_are_refused(saved, tmp_path, case):
    path = forged(saved, tmp_path / "forged", HOSTILE[case])
    with pytest.raises(FileFormatError, match="forged: not a GaussianGLM that this release wrote"):
        thalweg.load(path)


def spoilt_weights(**parts):
    return lambda found: found._replace(weights=replace(found.weights, **parts))


def spoilt_prior(**parts):
    def change(found):
        return replace(found, rows=replace(found.rows, prior=replace(found.rows.prior, **parts)))

    return change


SPOILT = {
    "a mean that is NaN": ("BernoulliGLM", spoilt_weights(mean=np.full(3, np.nan))),
    "a covariance of others": ("BernoulliGLM", spoilt_weights(covariance=np.eye(4))),
    "another centre": ("BernoulliGLM", spoilt_weights(frame=PriorFrame(np.ones((1, 2)), np.ones(3)))),
    "freedom that is a word": ("NegativeBinomialGLM", spoilt_weights(freedom="much")),
    "a bound that is none": ("PoissonGLM", lambda found: found._replace(elbo=None)),
    "a stream that is a number": ("PoissonGLM", lambda found: found._replace(stream=3)),
    "no likelihood": ("PoissonGLM", spoilt_weights(likelihood=None)),
    "other classes": ("CategoricalGLM", spoilt_weights(covariance=np.eye(3)[None])),
    "a prior of others": ("MatrixCompletion", spoilt_prior(precision=np.ones((6, 3)))),
    "a prior that is flat": ("MatrixCompletion", spoilt_prior(precision=np.zeros((3, 3)))),
}


@pytest.mark.parametrize("case", SPOILT)
def test_posteriors_that_no_fit_leaves_are_refused(fitted, tmp_path, case):
    name, spoil = SPOILT[case]
    fitted(name).save(tmp_path / "model")

    def change(tree):
        key = "_model" if name == "MatrixCompletion" else "_posterior"
        tree["fitted"][key] = spoil(tree["fitted"][key])

    with pytest.raises(FileFormatError, match="forged: "):
        thalweg.load(forged(tmp_path / "model", tmp_path / "forged", change))


def test_a_file_of_another_kind_is_refused(saved, tmp_path):
    with pytest.raises(FileFormatError, match="holds a 'checkpoint', and no estimator of this release"):
        thalweg.load(forged(saved, tmp_path / "other", lambda tree: "checkpoint"))
    with pytest.raises(FileNotFoundError):
        thalweg.load(tmp_path / "nothing")


def test_what_no_file_can_hold_is_said(fitted, tmp_path):
    model = fitted("GaussianGLM").__class__().fit(X, X[:, 0])
    model.note_ = print
    with pytest.raises(TypeError, match=r"note_.*cannot store builtin_function_or_method"):
        model.save(tmp_path / "model")
    assert not list(tmp_path.iterdir())

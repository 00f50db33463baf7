"""Bad input to the kernel estimators: errors that name what is wrong, and a model that is unharmed to the last bit."""

import copy

import numpy as np
import pytest
from sklearn.exceptions import NotFittedError

from thalweg import KernelClassifier, KernelRegressor
from thalweg.kernels import Gaussian, Linear
from thalweg.machines import DSG, Auto, QuantileLoss

rng = np.random.default_rng(0)
N = 60
X = rng.normal(size=(N, 3))
Y = (X[:, 0] > 0).astype(int)
T = np.sin(X[:, 0])
PARTS = {"kernel": Gaussian(1.0), "alpha": 0.1, "method": Auto(block_size=64), "random_state": 0}


def broken(value):
    found = X.copy()
    found[3, 1] = value
    return found


@pytest.fixture(scope="module")
def fitted():
    return KernelClassifier(**PARTS).fit(X, Y), KernelRegressor(**PARTS).fit(X, T)


@pytest.fixture(params=["fit", "partial_fit"])
def models(request, fitted):
    """A classifier and a regressor that have learned something, and which method is given bad input."""
    return *copy.deepcopy(fitted), request.param


def refused(model, error, message, act):
    """What ``act`` does is refused with this message, and changes no prediction and no attribute."""
    values = lambda: model.decision_function(X) if isinstance(model, KernelClassifier) else model.predict(X)
    before, names, history = values(), set(vars(model)), list(model.history_)
    with pytest.raises(error, match=message):
        act()
    np.testing.assert_array_equal(values(), before)
    assert set(vars(model)) == names
    assert model.history_ == history


EXAMPLES = {
    "NaN": ((broken(np.nan), Y), "X contains NaN"),
    "infinity": ((broken(np.inf), Y), "X contains infinity"),
    "no rows": ((X[:0], Y[:0]), r"Found array with 0 sample\(s\)"),
    "a vector": ((X[:, 0], Y), "Expected 2D array, got 1D array"),
    "words for features": ((np.full((N, 3), "a", dtype=object), Y), "could not convert string to float: 'a'"),
    "complex": ((X + 1j, Y), "Complex data not supported"),
    "too few targets": ((X, Y[:5]), r"inconsistent numbers of samples: \[60, 5\]"),
    "NaN among targets": ((X, np.where(Y > 0, np.nan, 0.0)), "y contains NaN"),
    "no targets": ((X, None), "requires y to be passed, but the target y is None"),
    "negative weights": ((X, Y, np.linspace(-1, 1, N)), "sample_weight must be non-negative .* minimum of -1"),
    "no weight": ((X, Y, np.zeros(N)), "[Ss]ample weights must contain at least one non-zero number"),
    "NaN weights": ((X, Y, np.full(N, np.nan)), "sample_weight contains NaN"),
    "too few weights": ((X, Y, np.ones(4)), r"sample_weight.shape == \(4,\), expected \(60,\)"),
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_that_neither_estimator_can_learn_from(models, name):
    *pair, method = models
    (features, targets, *weights), message = EXAMPLES[name]
    for model in pair:
        act = getattr(model, method)
        options = {"sample_weight": weights[0]} if weights else {}
        refused(model, ValueError, message, lambda act=act, options=options: act(features, targets, **options))


def test_another_number_of_features(fitted):
    message = "X has 2 features, but Kernel.* is expecting 3 features"
    for model in copy.deepcopy(fitted):
        refused(model, ValueError, message, lambda model=model: model.partial_fit(X[:, :2], Y))
        refused(model, ValueError, message, lambda model=model: model.predict(X[:, :2]))
        model.set_params(warm_start=True)
        refused(model, ValueError, message, lambda model=model: model.fit(X[:, :2], Y))


LABELS = {
    "one class": (("fit",), np.zeros(N, int), "y must hold at least two classes, found one class: 0"),
    "mixed": (("fit", "partial_fit"), [0, "a"] * 30, "y must hold labels of one type, found numbers and str"),
    "mixed array": (
        ("fit", "partial_fit"),
        np.array([None, "a"] * 30, dtype=object),
        "y must have no gaps, found None at index 0",
    ),
    "unseen": (("partial_fit",), np.full(N, 7), r"y must hold known classes, \[0, 1\], found 7"),
    "unseen words": (("partial_fit",), np.full(N, "1"), r"y must hold known classes, \[0, 1\], found '1'"),
    "numbers": (("fit", "partial_fit"), T, "Unknown label type: continuous"),
    "columns": (("fit", "partial_fit"), np.eye(2)[Y], r"y should be a 1d array, got an array of shape \(60, 2\)"),
}


@pytest.mark.parametrize("name", LABELS)
def test_labels_that_are_none(models, name):
    model, _, method = models
    methods, labels, message = LABELS[name]
    if method in methods:
        refused(model, ValueError, message, lambda: getattr(model, method)(X, labels))


@pytest.mark.parametrize(
    ("classes", "message"),
    [
        ([0, 1, 2], r"classes must be those of the first call, \[0, 1\], found \[0, 1, 2\]"),
        ([0, "a"], "classes must hold labels of one type, found numbers and str"),
    ],
)
def test_classes_that_are_others(fitted, classes, message):
    model = copy.deepcopy(fitted[0])
    refused(model, ValueError, message, lambda: model.partial_fit(X, Y, classes=classes))


def test_a_stream_must_know_its_classes():
    for y, classes, message in (
        (np.zeros(N, int), None, "found one class: 0; partial_fit takes all there will be as classes"),
        (Y, [1], "y must hold at least two classes, found one class: 1$"),
        (Y, [1, 2], r"y must hold known classes, \[1, 2\], found 0"),
    ):
        model = KernelClassifier(**PARTS)
        with pytest.raises(ValueError, match=message):
            model.partial_fit(X, y, classes=classes)
        assert not [name for name in vars(model) if name.endswith("_")]


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        (np.full(N, "a"), "y must hold numbers, found"),
        (np.zeros((N, 2, 2)), "Found array with dim 3"),
    ],
)
def test_targets_that_are_no_numbers(models, targets, message):
    _, model, method = models
    refused(model, ValueError, message, lambda: getattr(model, method)(X, targets))


def test_targets_of_another_shape_or_size(fitted):
    model = copy.deepcopy(fitted[1])
    message = "y must have 1 columns as before, found 2"
    refused(model, ValueError, message, lambda: model.partial_fit(X, np.stack([T, T], axis=1)))
    message = r"y must have a variance that float64 holds, found values up to \d.*e\+29\d"
    refused(model, ValueError, message, lambda: model.fit(X, 1e299 * T))


def test_numbers_beyond_the_precision_of_a_stream():
    """A stream is learned in float32: what does not fit is refused, in predictions as well."""
    model = KernelRegressor(**PARTS).partial_fit(X, T)
    message = r"{} must fit in float32, found values of size \d\.?\d*e\+30\d"
    refused(model, ValueError, message.format("X"), lambda: model.partial_fit(1e300 * X, T))
    # Targets of any finite variance fit: their scale follows.
    message_of_targets = r"y must have a variance that float64 holds, found values up to \d\.?\d*e\+30\d"
    refused(model, ValueError, message_of_targets, lambda: model.partial_fit(X, 1e300 * T * 10))
    refused(model, ValueError, message.format("X"), lambda: model.predict(1e300 * X))
    first = KernelRegressor(**PARTS)
    with pytest.raises(ValueError, match=message.format("X")):
        first.partial_fit(1e300 * X, T)
    with pytest.raises(NotFittedError):
        first.predict(X)


CLASS_WEIGHTS = {
    "a word": ("even", "The 'class_weight' parameter of KernelClassifier must be None, .* Got 'even'"),
    "a number": (3, "The 'class_weight' parameter of KernelClassifier must be None, .* Got 3"),
    "negative": ({0: -1.0}, r"class_weight\[0\] must be a finite number of at least 0, found -1.0"),
    "NaN": ({1: np.nan}, r"class_weight\[1\] must be a finite number of at least 0, found nan"),
    "none": ({0: 0, 1: 0}, "class_weight must leave a row of positive weight, found none"),
    "unknown": ({5: 1.0}, r"class_weight must name known classes, \[0, 1\], found 5"),
}


@pytest.mark.parametrize("name", CLASS_WEIGHTS)
def test_weights_of_classes_that_are_none(fitted, name):
    value, message = CLASS_WEIGHTS[name]
    model = copy.deepcopy(fitted[0]).set_params(class_weight=value)
    refused(model, ValueError, message, lambda: model.fit(X, 1 - Y))


def test_a_stream_cannot_balance_classes(fitted):
    model = copy.deepcopy(fitted[0]).set_params(class_weight="balanced")
    message = "class_weight must be None or a dict for partial_fit, .* found 'balanced'"
    refused(model, ValueError, message, lambda: model.partial_fit(X, Y))


KIND = "kernel must be one of 'rbf', .*, a kernel such as .* or a class of kernels .* found "
NUMBER = "The '{}' parameter of Kernel.* must be a str among {{'auto'}} or a float in the range "
COUNT = "The '{}' parameter of Kernel.* must be an int in the range "
WORDS = {
    "kernel": [
        ("rbff", KIND),
        (int, KIND),
        (3, "The 'kernel' parameter of Kernel.* must be an instance of .* Got 3"),
        (Linear(), r"kernel must be stationary such as Gaussian\(1.0\), found Linear\(variance=1\)"),
    ],
    "bandwidth": [(bad, NUMBER.format("bandwidth")) for bad in ("wide", 0, -1.0, None, [1.0])],
    "loss": [(bad, "The 'loss' parameter of Kernel.* must be a str among ") for bad in ("log", None, [])],
    "alpha": [(bad, NUMBER.format("alpha")) for bad in ("x", 0, -1.0, None, np.nan)],
    "method": [(bad, "The 'method' parameter of Kernel.* must be a str among ") for bad in ("sgd", None, DSG)],
    "metric": [(bad, "The 'metric' parameter of Kernel.* must be a str among ") for bad in ("euclidean", None)],
    "max_features": [(bad, COUNT.format("max_features")) for bad in (0, None)],
    "max_iter": [(bad, "The 'max_iter' parameter of Kernel.* must be None or an int") for bad in (0, 1.5, "a")],
    "warm_start": [("x", "The 'warm_start' parameter of Kernel.* must be an instance of 'bool'")],
    "random_state": [(bad, "The 'random_state' parameter of Kernel.* must be ") for bad in ("a", -1)],
    "verbose": [("x", "The 'verbose' parameter of Kernel.* must be ")],
}


@pytest.mark.parametrize("name", WORDS)
def test_words_that_mean_nothing(fitted, name):
    """In ``fit`` with other features and other targets, none of which may stay."""
    classifier, regressor = copy.deepcopy(fitted)
    for value, message in WORDS[name]:
        for model in (classifier, regressor):
            before = model.get_params(deep=False)
            model.set_params(**{name: value})
            targets = 1 - Y if model is classifier else -T
            refused(model, (TypeError, ValueError), message, lambda model=model, y=targets: model.fit(X[:, :2], y))
            model.set_params(**before)


def test_every_parameter_is_checked():
    for kind in (KernelClassifier, KernelRegressor):
        names = set(kind().get_params())
        assert names <= set(WORDS) | {"class_weight"}
        assert names == set(kind._parameter_constraints)
        assert len(names) <= 12


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"method": DSG(features="landmarks", batch_size=8, block_size=64)},
            "batch_size must be at least block_size=64 with features='landmarks', .* found 8",
        ),
        ({"kernel": Gaussian(np.ones(2))}, "X has 3 features and the kernel 2 lengthscales"),
        ({"kernel": Gaussian(np.ones(2)), "method": "dsg"}, "X has 3 features and the kernel 2 lengthscales"),
    ],
)
def test_words_that_do_not_go_together(options, message):
    with pytest.raises(ValueError, match=message):
        KernelClassifier(**(PARTS | options)).fit(X, Y)


def test_streams_that_are_none(fitted):
    model = copy.deepcopy(fitted[0])
    refused(
        model, ValueError, r"batches must yield at least one pair \(X, y\), found none", lambda: model.fit_stream([])
    )
    refused(model, TypeError, r"batches must yield pairs \(X, y\), found ndarray", lambda: model.fit_stream([X]))
    refused(model, TypeError, "found tuple of 3", lambda: model.fit_stream([(X, Y, np.ones(N))]))
    refused(model, TypeError, r"batches must be an iterable of pairs \(X, y\), found 3", lambda: model.fit_stream(3))
    refused(model, ValueError, "X contains NaN", lambda: model.fit_stream([(broken(np.nan), Y)]))


def test_nothing_is_predicted_or_saved_before_anything_is_learned(tmp_path):
    model = KernelClassifier()
    for act in (model.predict, model.decision_function, model.predict_proba):
        with pytest.raises(NotFittedError, match="This KernelClassifier instance is not fitted yet"):
            act(X)
    with pytest.raises(NotFittedError):
        model.save(tmp_path / "model")
    with pytest.raises(ValueError, match=r"Found array with 0 sample\(s\)"):
        KernelClassifier(**PARTS).fit(X, Y).predict(X[:0])


def test_probabilities_of_a_stream_need_the_logistic_loss():
    model = KernelClassifier(**PARTS, loss="hinge")
    with pytest.raises(AttributeError) as error:
        model.partial_fit(X, Y).predict_proba(X)
    assert "probabilities need loss='logistic', or a fit" in str(error.value.__cause__)


@pytest.mark.parametrize(
    ("model", "targets", "change"),
    [
        (KernelClassifier(**PARTS), Y, {"loss": "squared"}),
        pytest.param(KernelRegressor(**PARTS), T, {"loss": "quantile"}, marks=pytest.mark.slow),
        (KernelRegressor(loss="quantile", **PARTS), T, {"loss": QuantileLoss(0.9)}),
    ],
)
def test_another_loss_between_batches(model, targets, change):
    model.partial_fit(X, targets)
    before = model.get_params()
    message = "loss must stay what the model has learned with .*: set it back, or fit anew"
    refused(model.set_params(**change), ValueError, message, lambda: model.partial_fit(X, targets))
    model.set_params(**before).partial_fit(X, targets)
    model.set_params(**change).fit(X, targets)


@pytest.mark.parametrize(
    "change",
    [{"alpha": 3.0}, {"kernel": Gaussian(3.0)}, {"kernel": "matern12"}, {"bandwidth": 30.0}, {"metric": "none"}],
    ids=str,
)
def test_another_kernel_or_ridge_than_what_was_learned_with(change):
    model = KernelRegressor(**PARTS, warm_start=True).partial_fit(X, T)
    before = model.get_params()
    message = f"{next(iter(change))} must stay what the model has learned with .*: set it back, or fit anew"
    for again in (model.partial_fit, model.fit):
        refused(model.set_params(**change), ValueError, message, lambda again=again: again(X, T))
    model.set_params(**before).partial_fit(X, T)
    model.set_params(alpha="auto").fit(X, T)
    model.set_params(**change, warm_start=False).fit(X, T)


def test_lengthscales_that_are_not_as_many_as_features():
    message = "X has 3 features and the kernel 2 lengthscales"
    for model, targets in ((KernelClassifier, Y), (KernelRegressor, T)):
        with pytest.raises(ValueError, match=message):
            model(Gaussian([1.0, 2.0]), random_state=0).fit(X, targets)

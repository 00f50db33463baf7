"""Columns that are no numbers, gaps and masks: every estimator says which one, and what was found there."""

import numpy as np
import pandas
import pytest

from thalweg import (
    BernoulliGLM,
    CorrelatedTopicModel,
    GPClassifier,
    GPRegressor,
    KernelClassifier,
    KernelRegressor,
    NegativeBinomialGLM,
    PoissonGLM,
)

N = 12
CLASSES = np.arange(N) % 2
ESTIMATORS = [BernoulliGLM, CorrelatedTopicModel, GPClassifier, GPRegressor, KernelClassifier, KernelRegressor]
COLUMNS = {
    "category": (pandas.Categorical(["Rome", "Oslo"] * 6), "'Rome' in column 'found' (category)"),
    "words": (["Rome", "Oslo"] * 6, "'Rome' in column 'found'"),
    "one word": (pandas.Series([1.0] * 11 + ["Oslo"], dtype=object), "'Oslo' in column 'found' (object)"),
    "days": (pandas.date_range("2020-01-01", periods=N), "Timestamp('2020-01-01 00:00:00') in column 'found'"),
    "missing": (pandas.array([1] * 11 + [None], dtype="Int64"), "<NA> in column 'found' (Int64)"),
    "lists": ([[1]] * N, "[1] in column 'found' (object)"),
}


def frame(column):
    return pandas.DataFrame({"age": np.arange(N) + 1.0, "found": column})


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("name", COLUMNS)
def test_a_column_that_holds_no_numbers_is_named(estimator, name):
    column, found = COLUMNS[name]
    with pytest.raises((TypeError, ValueError)) as raised:
        estimator().fit(frame(column), CLASSES)
    assert str(raised.value).startswith(f"X holds {found}")


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_columns_of_one_name_are_refused(estimator):
    twice = frame(np.arange(N)).set_axis(["age", "age"], axis=1)
    with pytest.raises(ValueError, match="X must have columns of different names, found 'age' 2 times"):
        estimator().fit(twice, CLASSES)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_hidden_entries_are_refused(estimator):
    rows, labels = np.arange(2.0 * N).reshape(N, 2), np.ma.masked_array(CLASSES, mask=np.arange(N) < 3)
    with pytest.raises(ValueError, match="X must hide nothing, found a masked array with 1 hidden entries"):
        estimator().fit(np.ma.masked_array(rows, mask=rows == 5), CLASSES)
    if estimator is not CorrelatedTopicModel:
        with pytest.raises(ValueError, match="y must hide nothing, found a masked array with 3 hidden entries"):
            estimator().fit(rows, labels)
        with pytest.raises(ValueError, match="sample_weight must hide nothing"):
            estimator().fit(rows, CLASSES, sample_weight=labels)


@pytest.mark.parametrize("estimator", [KernelRegressor, GPRegressor, GPClassifier, PoissonGLM, NegativeBinomialGLM])
def test_a_target_that_is_missing_is_named(estimator):
    with pytest.raises(ValueError, match="y must have no gaps, found None at index 3"):
        estimator().fit(frame(np.arange(N)), [0, 1, 2, None] * 3)


@pytest.mark.parametrize("estimator", [BernoulliGLM, GPClassifier, KernelClassifier])
def test_nullable_labels_stay_whole_numbers(estimator):
    model = estimator().fit(frame(np.arange(N)), pandas.Series(CLASSES, dtype="Int64"))
    assert model.classes_.dtype == np.int64
    assert model.predict(frame(np.arange(N))).dtype == np.int64


def test_predictions_name_it_too():
    model = BernoulliGLM().fit(frame(np.arange(N) % 3), CLASSES)
    with pytest.raises(ValueError, match="X holds 'Rome' in column 'found'"):
        model.predict(frame(COLUMNS["category"][0]))


def test_categories_that_are_numbers_are_taken_as_such():
    column = np.arange(N) % 3
    models = [
        KernelRegressor(random_state=0).fit(frame(kind), CLASSES) for kind in (pandas.Categorical(column), column)
    ]
    first, second = (model.predict(frame(column)) for model in models)
    np.testing.assert_array_equal(first, second)


def test_other_errors_are_left_alone():
    with pytest.raises(ValueError, match=r"^Found input variables with inconsistent numbers of samples"):
        GPRegressor().fit(frame(np.arange(N)), CLASSES[:5])


@pytest.mark.parametrize("kind", [object, "str"])
def test_a_label_that_is_missing_is_called_missing(kind):
    """They were "labels of one type, found numbers and str"."""
    labels = pandas.Series(["no", "yes"] * 5 + ["no", None], dtype=kind)
    with pytest.raises(ValueError, match=r"y must have no gaps, found (None|nan) at index 11"):
        KernelClassifier().fit(np.arange(N)[:, None], labels)

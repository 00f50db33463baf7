"""Dates are no features and no targets: in one frame they are counted in days, in the next in nanoseconds."""

import numpy as np
import pandas
import pytest
from sklearn.base import is_regressor

from thalweg import BernoulliGLM, GaussianGLM, GPClassifier, GPRegressor, KernelClassifier, KernelRegressor

DAYS = np.datetime64("2026-01-01") + np.arange(20)[:, None]
NUMBERS, LABELS = np.sin(np.arange(20.0)), np.arange(20) % 2


@pytest.mark.parametrize(
    "model",
    [
        BernoulliGLM(),
        GPClassifier(learn=False),
        GPRegressor("rbf", noise=0.1, learn=False),
        KernelClassifier("gaussian", alpha=0.1),
        KernelRegressor("gaussian", alpha=0.1),
    ],
    ids=lambda model: type(model).__name__,
)
def test_dates_are_refused_by_fits_and_by_predictions(model):
    """A process fitted to nanoseconds said the mean of all targets at the same dates in seconds."""
    targets = NUMBERS if is_regressor(model) else LABELS
    with pytest.raises(TypeError, match=r"X must hold numbers, found datetime64\[D\]"):
        model.fit(DAYS, targets)
    fitted = model.fit(np.arange(20.0)[:, None], targets)
    with pytest.raises(TypeError, match=r"X must hold numbers, found timedelta64\[D\]"):
        fitted.predict(DAYS - DAYS[0])


def test_a_column_of_dates_in_a_frame_is_refused():
    with pytest.raises(TypeError, match="X must hold numbers, found datetime64"):
        GPRegressor().fit(pandas.DataFrame({"x": NUMBERS, "day": DAYS[:, 0]}), NUMBERS)


@pytest.mark.parametrize("estimator", [GaussianGLM, GPRegressor, KernelRegressor])
def test_targets_that_are_dates_are_refused(estimator):
    days = np.arange("2020-01-01", "2020-01-13", dtype="datetime64[D]")
    with pytest.raises(TypeError, match="y must hold numbers, found datetime64"):
        estimator().fit(np.arange(12.0)[:, None], days)


@pytest.mark.parametrize("estimator", [BernoulliGLM, GPClassifier, KernelClassifier])
def test_labels_of_two_types_are_refused(estimator):
    with pytest.raises(ValueError, match="y must hold labels of one type, found numbers and str"):
        estimator().fit(np.arange(12.0)[:, None], np.array(["a", 1] * 6, dtype=object))

"""The contract of scikit-learn, for the kernel estimators with their default parameters, each check a test."""

import warnings

import pytest
from sklearn.utils.estimator_checks import estimator_checks_generator

from thalweg import KernelClassifier, KernelRegressor

CHECKS = [
    pytest.param(estimator, check, id=f"{kind.__name__}-{number}-{check.func.__name__}", marks=marks)
    for kind, marks in ((KernelClassifier, ()), (KernelRegressor, pytest.mark.slow))
    for number, (estimator, check) in enumerate(estimator_checks_generator(kind()))
]


@pytest.mark.parametrize(("estimator", "check"), CHECKS)
def test_scikit_learn_contract(estimator, check):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check(estimator)

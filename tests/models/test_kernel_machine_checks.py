"""The contract of scikit-learn, for the kernel estimators with their default parameters, each check a test."""

import warnings

import pytest
from sklearn.utils.estimator_checks import estimator_checks_generator

from thalweg import KernelClassifier, KernelRegressor

# Those that fit several times three hundred rows or more.
SLOW = {
    "check_class_weight_classifiers",
    "check_classifiers_classes",
    "check_classifiers_train",
    "check_estimator_sparse_array",
    "check_estimator_sparse_matrix",
    "check_non_transformer_estimators_n_iter",
    "check_positive_only_tag_during_fit",
}
CHECKS = [
    pytest.param(
        estimator,
        check,
        id=f"{kind.__name__}-{number}-{check.func.__name__}",
        marks=pytest.mark.slow if kind is KernelRegressor or check.func.__name__ in SLOW else (),
    )
    for kind in (KernelClassifier, KernelRegressor)
    for number, (estimator, check) in enumerate(estimator_checks_generator(kind()))
]


@pytest.mark.parametrize(("estimator", "check"), CHECKS)
def test_scikit_learn_contract(estimator, check):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check(estimator)

"""The contract of scikit-learn, for the kernel estimators with their default parameters, each check a test."""

import warnings

import pytest
from sklearn.utils.estimator_checks import estimator_checks_generator

from thalweg import KernelClassifier, KernelRegressor

# Those that need seconds or less; the others are with the slow ones.
QUICK = {
    "check_no_attributes_set_in_init",
    "check_parameters_default_constructible",
    "check_get_params_invariance",
    "check_set_params",
    "check_estimator_cloneable",
    "check_estimator_repr",
    "check_estimator_tags_renamed",
    "check_estimators_unfitted",
    "check_estimators_nan_inf",
    "check_estimators_pickle",
    "check_dict_unchanged",
    "check_supervised_y_2d",
    "check_complex_data",
    "check_estimators_empty_data_messages",
    "check_valid_tag_types",
}
CHECKS = [
    pytest.param(
        estimator,
        check,
        id=f"{kind.__name__}-{number}-{check.func.__name__}",
        marks=[] if check.func.__name__ in QUICK else pytest.mark.slow,
    )
    for kind in (KernelClassifier, KernelRegressor)
    for number, (estimator, check) in enumerate(estimator_checks_generator(kind()))
]


@pytest.mark.parametrize(("estimator", "check"), CHECKS)
def test_scikit_learn_contract(estimator, check):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check(estimator)


def test_the_quick_checks_are_there():
    """A check that scikit-learn renames would leave the quick suite unseen."""
    assert {check.func.__name__ for _, check in estimator_checks_generator(KernelClassifier())} >= QUICK

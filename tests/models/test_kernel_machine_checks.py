"""The contract of scikit-learn, for the kernel estimators, each check a test.

What the checks are about does not depend on how a kernel is chosen, so that it is given to most of them; those about
rows and their weights, which a search must not misread either, are made of default parameters too.
"""

import warnings

import pytest
from sklearn.utils.estimator_checks import estimator_checks_generator

from thalweg import KernelClassifier, KernelRegressor

GIVEN = {"kernel": "gaussian", "bandwidth": 1.0, "metric": "none", "alpha": 0.1}
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
OF_SEARCHES = {
    "check_estimators_dtypes",
    "check_fit2d_1feature",
    "check_fit2d_1sample",
    "check_methods_sample_order_invariance",
    "check_sample_weight_equivalence_on_dense_data",
}


def checks(name, kind, options, is_slow):
    """Return all checks of an estimator with these options as parameters of a test."""
    return [
        pytest.param(
            estimator,
            check,
            id=f"{kind.__name__}-{name}-{number}-{check.func.__name__}",
            marks=pytest.mark.slow if is_slow(check.func.__name__) else (),
        )
        for number, (estimator, check) in enumerate(estimator_checks_generator(kind(**options)))
    ]


@pytest.mark.parametrize(
    ("estimator", "check"),
    [
        *checks("given", KernelClassifier, GIVEN, lambda check: check in SLOW),
        *checks("given", KernelRegressor, GIVEN, lambda check: check in SLOW),
        *checks("default", KernelClassifier, {}, lambda check: check in SLOW or check not in OF_SEARCHES),
        *checks("default", KernelRegressor, {}, lambda check: True),
    ],
)
def test_scikit_learn_contract(estimator, check):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check(estimator)

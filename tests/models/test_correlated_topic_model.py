"""The estimator: scikit-learn's contract, odd input, and what users do with it."""

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from thalweg import CorrelatedTopicModel

pytestmark = pytest.mark.filterwarnings("ignore:X holds fractions:UserWarning")


@parametrize_with_checks([CorrelatedTopicModel(2, max_iter=20, tol=0.1)])
def test_scikit_learns_contract(estimator, check):
    check(estimator)

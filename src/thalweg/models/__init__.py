"""Estimators: scikit-learn's contract on top of the parts."""

from thalweg.models._common import load
from thalweg.models._summary import Summary
from thalweg.models.correlated_topic_model import CorrelatedTopicModel
from thalweg.models.glm import BernoulliGLM, GaussianGLM
from thalweg.models.glm_categorical import CategoricalGLM
from thalweg.models.glm_counts import NegativeBinomialGLM, PoissonGLM
from thalweg.models.gp_classifier import GPClassifier
from thalweg.models.gp_regressor import GPRegressor
from thalweg.models.kernel_classifier import KernelClassifier
from thalweg.models.kernel_regressor import KernelRegressor
from thalweg.models.matrix_completion import MatrixCompletion

__all__ = [
    "BernoulliGLM",
    "CategoricalGLM",
    "CorrelatedTopicModel",
    "GPClassifier",
    "GPRegressor",
    "GaussianGLM",
    "KernelClassifier",
    "KernelRegressor",
    "MatrixCompletion",
    "NegativeBinomialGLM",
    "PoissonGLM",
    "Summary",
    "load",
]

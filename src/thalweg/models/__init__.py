"""Estimators: scikit-learn's contract on top of the parts."""

from thalweg.models._summary import Summary
from thalweg.models.glm import BernoulliGLM, GaussianGLM
from thalweg.models.glm_counts import NegativeBinomialGLM, PoissonGLM
from thalweg.models.gp_classifier import GPClassifier

__all__ = ["BernoulliGLM", "GPClassifier", "GaussianGLM", "NegativeBinomialGLM", "PoissonGLM", "Summary"]

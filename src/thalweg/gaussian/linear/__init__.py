"""Posteriors over the weights of linear models: z = intercept + x·weights, and a likelihood p(y|z).

=====================================  ============================================================================
:func:`fit`, :func:`continue_fit`      the posterior given some observations, or given these and all before
:func:`fit_categorical`                the same of several classes
:class:`LinearObservations`            features, targets and how often each counts
:class:`WeightPrior`                   how large the weights may be, or that it is to be learned
:class:`BinaryTargets`,                how targets depend on z, with parameters that are given or learned
:class:`CountTargets`,
:class:`RealTargets`
:class:`LinearFit`                     the result of a fit
:func:`misfit_warnings`                how observations contradict it
=====================================  ============================================================================
"""

from thalweg.gaussian.linear.categorical import CategoricalFit, fit_categorical
from thalweg.gaussian.linear.counts import CountTargets
from thalweg.gaussian.linear.fitting import WeightPrior, continue_fit, fit, misfit_warnings
from thalweg.gaussian.linear.observations import LinearObservations
from thalweg.gaussian.linear.solution import AscentSettings, LinearFit
from thalweg.gaussian.linear.targets import BinaryTargets, RealTargets, TargetModel
from thalweg.gaussian.linear.weights import CoefficientMarginals, PriorFrame, WeightPosterior

__all__ = [
    "AscentSettings",
    "BinaryTargets",
    "CategoricalFit",
    "CoefficientMarginals",
    "CountTargets",
    "LinearFit",
    "LinearObservations",
    "PriorFrame",
    "RealTargets",
    "TargetModel",
    "WeightPosterior",
    "WeightPrior",
    "continue_fit",
    "fit",
    "fit_categorical",
    "misfit_warnings",
]

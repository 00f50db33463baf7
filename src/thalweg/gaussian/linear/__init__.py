"""Posteriors over the weights of linear models: z = intercept + x·weights, and a likelihood p(y|z).

=====================================  ============================================================================
:class:`LinearModel`                   what is fitted to observations, or to a stream of them
:class:`BinaryTargets`,                how targets depend on z, with parameters that are given or learned
:class:`CategoricalTargets`,
:class:`CountTargets`,
:class:`RealTargets`
:class:`LinearObservations`            features, targets and how often each counts
:class:`LinearFit`                     the result of a fit
:func:`misfit_warnings`                how observations contradict a fit
=====================================  ============================================================================
"""

from thalweg.gaussian.linear.categorical import CategoricalTargets, ClassWeights
from thalweg.gaussian.linear.counts import CountTargets
from thalweg.gaussian.linear.fitting import LinearModel, misfit_warnings
from thalweg.gaussian.linear.observations import LinearObservations
from thalweg.gaussian.linear.solution import AscentSettings, LinearFit
from thalweg.gaussian.linear.targets import BinaryTargets, RealTargets, TargetModel
from thalweg.gaussian.linear.weights import CoefficientMarginals, PriorFrame, WeightPosterior

__all__ = [
    "AscentSettings",
    "BinaryTargets",
    "CategoricalTargets",
    "ClassWeights",
    "CoefficientMarginals",
    "CountTargets",
    "LinearFit",
    "LinearModel",
    "LinearObservations",
    "PriorFrame",
    "RealTargets",
    "TargetModel",
    "WeightPosterior",
    "misfit_warnings",
]

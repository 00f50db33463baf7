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

from thalweg.gaussian.linear.categorical import *
from thalweg.gaussian.linear.counts import *
from thalweg.gaussian.linear.fitting import *
from thalweg.gaussian.linear.observations import *
from thalweg.gaussian.linear.solution import *
from thalweg.gaussian.linear.targets import *
from thalweg.gaussian.linear.weights import *

"""Posteriors over the weights of linear models: z = intercept + x·weights, and a likelihood p(y|z).

=================================  ================================================================================
:func:`fit`, :func:`fit_further`   the posterior given some observations, or given these and all before
:class:`Observations`              features, targets and how often each counts
:class:`Prior`                     how large the weights may be, or that it is to be learned
:class:`Labels`, :class:`Counts`,  how targets depend on z, with parameters that are given or learned
:class:`Measurements`
:class:`Solution`                  what a fit leads to
:func:`doubts`                     what observations say against it
=================================  ================================================================================
"""

from thalweg.gaussian.linear.categories import Categories, fit_categories
from thalweg.gaussian.linear.doubts import doubts
from thalweg.gaussian.linear.fitting import Prior, fit, fit_further
from thalweg.gaussian.linear.marginals import Marginals
from thalweg.gaussian.linear.observations import Observations
from thalweg.gaussian.linear.search import Search, Solution
from thalweg.gaussian.linear.targets import Counts, Labels, Measurements, Targets
from thalweg.gaussian.linear.weights import Frame, Weights

__all__ = [
    "Categories",
    "Counts",
    "Frame",
    "Labels",
    "Marginals",
    "Measurements",
    "Observations",
    "Prior",
    "Search",
    "Solution",
    "Targets",
    "Weights",
    "doubts",
    "fit",
    "fit_categories",
    "fit_further",
]

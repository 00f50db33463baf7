"""Gaussian processes: posteriors, bounds, the learning of kernels, and predictions.

==============================  ===================================================================================
:func:`fit_classifier`          labels by a latent process, its Gaussian posterior found by PG-SVI
:class:`ClassifierSettings`     how to look for it
:class:`ProcessPosterior`       what was found, and predictions from it
:func:`probabilities`           those of labels, from its means and variances
:func:`fit_regressor`           numbers by a process with noise, exactly or by solves
:class:`RegressorSettings`      how to look for it
:class:`Regression`             what was found
==============================  ===================================================================================
"""

from thalweg.processes.classification import *
from thalweg.processes.fit import *
from thalweg.processes.inference import *
from thalweg.processes.problem import *

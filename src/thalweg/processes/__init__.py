"""Gaussian processes: posteriors, bounds, the learning of kernels, and predictions.

==============================  ===================================================================================
:func:`fit_classifier`          labels by a latent process, its Gaussian posterior found by PG-SVI
:class:`ClassifierSettings`     how to look for it
:class:`ProcessPosterior`       what was found, and predictions from it
:func:`default_kernel`          a kernel to start from
==============================  ===================================================================================
"""

from thalweg.processes.classification import ProcessPosterior, fit_classifier
from thalweg.processes.inference import ClassifierSettings
from thalweg.processes.learning import default_kernel

__all__ = ["ClassifierSettings", "ProcessPosterior", "default_kernel", "fit_classifier"]

"""Gaussian processes: posteriors, bounds, the learning of kernels, and predictions.

==========================  =======================================================================================
:mod:`classification`       labels by a latent process, its Gaussian posterior found by PG-SVI
==========================  =======================================================================================
"""

from thalweg.processes import classification

__all__ = ["classification"]

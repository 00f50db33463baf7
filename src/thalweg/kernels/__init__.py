"""Stationary kernels and their random features, on arrays alone.

The way through the files: ``base`` (what a kernel is) → ``forms`` (functions of the distance, products over features,
with ``distances`` and ``draws`` below them) → ``stationary`` (the kernels) → ``features`` (random features in blocks);
``bandwidth`` and ``description`` stand beside them.
"""

from thalweg.kernels.bandwidth import median_distance
from thalweg.kernels.base import Kernel
from thalweg.kernels.features import RandomFeatures
from thalweg.kernels.stationary import Cauchy, Gaussian, Laplacian, Matern12, Matern32, Matern52

__all__ = [
    "Cauchy",
    "Gaussian",
    "Kernel",
    "Laplacian",
    "Matern12",
    "Matern32",
    "Matern52",
    "RandomFeatures",
    "median_distance",
]

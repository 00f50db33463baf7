"""Stationary kernels and their random features, on arrays alone."""

from thalweg.kernels.base import Kernel
from thalweg.kernels.stationary import Cauchy, Gaussian, Laplacian, Matern12, Matern32, Matern52

__all__ = [
    "Cauchy",
    "Gaussian",
    "Kernel",
    "Laplacian",
    "Matern12",
    "Matern32",
    "Matern52",
]

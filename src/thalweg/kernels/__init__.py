"""Kernels, their sums and products, and random features of the stationary ones, on arrays alone.

The way through the files: ``base`` (what a kernel is, sums and products) → ``forms`` (stationary kernels: functions of
the distance, products over features, with ``distances`` and ``draws`` below them) → ``stationary`` and ``others`` (the
kernels) → ``names`` (as words) → ``features`` (random features in blocks); ``bandwidth``, ``grid``
(interpolation) and ``profiles`` (the usual kernels in NumPy) stand beside them.
"""

from thalweg.kernels.bandwidth import median_distance
from thalweg.kernels.base import Bias, Kernel, Product, Sum
from thalweg.kernels.features import RandomFeatures
from thalweg.kernels.forms import Stationary
from thalweg.kernels.grid import Grid, Interpolation, stencil_product
from thalweg.kernels.names import as_kernel, kernel_or_class
from thalweg.kernels.others import Linear, Periodic, White
from thalweg.kernels.stationary import Cauchy, Gaussian, Laplacian, Matern12, Matern32, Matern52

__all__ = [
    "Bias",
    "Cauchy",
    "Gaussian",
    "Grid",
    "Interpolation",
    "Kernel",
    "Laplacian",
    "Linear",
    "Matern12",
    "Matern32",
    "Matern52",
    "Periodic",
    "Product",
    "RandomFeatures",
    "Stationary",
    "Sum",
    "White",
    "as_kernel",
    "kernel_or_class",
    "median_distance",
    "stencil_product",
]

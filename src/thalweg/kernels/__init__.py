"""Kernels, their sums and products, and random features of the stationary ones, on arrays alone.

The way through the files: ``base`` (what a kernel is, sums and products) → ``forms`` (stationary kernels: functions of
the distance, products over features, with ``distances`` and ``draws`` below them) → ``stationary`` and ``others`` (the
kernels) → ``names`` (as words) → ``features`` (random features in blocks); ``bandwidth``, ``grid``
(interpolation) and ``profiles`` (the usual kernels in NumPy) stand beside them.
"""

from thalweg.kernels.bandwidth import *
from thalweg.kernels.base import *
from thalweg.kernels.features import *
from thalweg.kernels.forms import *
from thalweg.kernels.grid import *
from thalweg.kernels.names import *
from thalweg.kernels.others import *
from thalweg.kernels.stationary import *

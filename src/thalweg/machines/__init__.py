"""Kernel machines: functions expanded in blocks of coordinates that learn from batches.

The way through the files: ``losses``; ``expansion`` (the function, its blocks of landmarks or of random frequencies);
``doubly_stochastic`` (DSG, UDSG, CDSG: which block a step goes along) and ``functional_gradient`` (one step, and a scan
of them); ``calibration``; ``learner`` (passes of such steps, and the fitted machine); ``landmarks`` (each block of them
solved for with all others held fixed) and ``newton`` (all landmarks at once, their kernel matrix in memory). Above them
``settings``, ``metric`` and ``search`` (the choice of a kernel and a ridge), ``start``, and ``fit``: a table and
settings in, a fitted machine out.
"""

from thalweg.machines.doubly_stochastic import *
from thalweg.machines.expansion import *
from thalweg.machines.fit import *
from thalweg.machines.functional_gradient import *
from thalweg.machines.learner import *
from thalweg.machines.losses import *
from thalweg.machines.settings import *
from thalweg.rows import Batch, Table

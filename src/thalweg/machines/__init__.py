"""Kernel machines: functions expanded in blocks of coordinates that learn from batches.

The way through the files: ``losses``; ``expansion`` (the function, its blocks of landmarks or of random frequencies);
``rules`` and ``steps`` (DSG, UDSG, CDSG: which block a step goes along, one step, a scan of them); ``calibration``;
``learner`` (passes of such steps, and the fitted machine); ``blocks`` (each block of landmarks solved for with all
others held fixed) and ``newton`` (all landmarks at once, their kernel matrix in memory). Above them ``settings``,
``candidates`` and ``search`` (the choice of a kernel and a ridge), ``start``, and ``fit``: a table and settings in, a
fitted machine out.
"""

from thalweg.machines.expansion import Coordinates, Frequencies, Points, empty, predict
from thalweg.machines.fit import fit, learn
from thalweg.machines.learner import FittedMachine
from thalweg.machines.losses import (
    HingeLoss,
    HuberLoss,
    LogisticLoss,
    Loss,
    QuantileLoss,
    SoftmaxLoss,
    SquaredHingeLoss,
    SquaredLoss,
)
from thalweg.machines.rules import Capped, Checked, New, Rule, Uniform
from thalweg.machines.settings import CDSG, DSG, UDSG, Auto, Method, Settings
from thalweg.machines.steps import FunctionalGradient, Machine, ValidatedStep, run
from thalweg.rows import Batch, Table

__all__ = [
    "CDSG",
    "DSG",
    "UDSG",
    "Auto",
    "Batch",
    "Capped",
    "Checked",
    "Coordinates",
    "FittedMachine",
    "Frequencies",
    "FunctionalGradient",
    "HingeLoss",
    "HuberLoss",
    "LogisticLoss",
    "Loss",
    "Machine",
    "Method",
    "New",
    "Points",
    "QuantileLoss",
    "Rule",
    "Settings",
    "SoftmaxLoss",
    "SquaredHingeLoss",
    "SquaredLoss",
    "Table",
    "Uniform",
    "ValidatedStep",
    "empty",
    "fit",
    "learn",
    "predict",
    "run",
]

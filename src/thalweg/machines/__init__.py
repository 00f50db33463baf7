"""Kernel machines: functions expanded in blocks of coordinates that learn from batches.

The way through the files: ``losses`` → ``functional`` (their gradient along a block) and ``coordinates`` (blocks of
frequencies or points) → ``expansion`` (the function and its values) → ``rules`` (which block a step goes along) →
``steps`` (one step, and a scan of them); ``visits`` solve for a block of landmarks from its own rows, ``dense`` for all
of them at once, ``kept`` for more with half of their kernel matrix in memory, ``few`` for some hundred of them from the
squares of all rows. Above them, ``methods`` (what to use of all this, and how much) → ``learners`` (passes over
``rows``) → ``choice`` (of a lengthscale and a ridge, by ``folds`` and ``trials``) and ``calibration`` (by rows left
out) → ``solving`` (the short ways) → ``fitting``: rows and settings in, a fitted machine out.
"""

from thalweg.machines.coordinates import Coordinates, Frequencies, Points
from thalweg.machines.expansion import empty, predict
from thalweg.machines.fitted import Fitted
from thalweg.machines.fitting import fit, learn
from thalweg.machines.functional import Batch, FunctionalGradient
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
from thalweg.machines.methods import CDSG, DSG, UDSG, Auto, Method, Settings
from thalweg.machines.rows import Rows
from thalweg.machines.rules import Capped, Checked, New, Rule, Uniform
from thalweg.machines.steps import Judged, Machine, run

__all__ = [
    "CDSG",
    "DSG",
    "UDSG",
    "Auto",
    "Batch",
    "Capped",
    "Checked",
    "Coordinates",
    "Fitted",
    "Frequencies",
    "FunctionalGradient",
    "HingeLoss",
    "HuberLoss",
    "Judged",
    "LogisticLoss",
    "Loss",
    "Machine",
    "Method",
    "New",
    "Points",
    "QuantileLoss",
    "Rows",
    "Rule",
    "Settings",
    "SoftmaxLoss",
    "SquaredHingeLoss",
    "SquaredLoss",
    "Uniform",
    "empty",
    "fit",
    "learn",
    "predict",
    "run",
]

"""The iteration x⁺ = argmin ⟨ĝ,x⟩ + h(x) + D(x‖x_k)/β, its parts, and the loop that runs it."""

from thalweg.descent.averaging import Averaging, Last, PolyakRuppert, Suffix, Weighted
from thalweg.descent.checkpoint import Checkpoint
from thalweg.descent.divergences import *  # noqa: F403
from thalweg.descent.divergences import __all__ as _divergences
from thalweg.descent.interop import as_optax
from thalweg.descent.iteration import Descent, Info, State
from thalweg.descent.loop import Snapshot, minimize
from thalweg.descent.momentum import FISTA, AdaptiveRestart, HeavyBall, Momentum, Nesterov, NoMomentum
from thalweg.descent.plateau import Plateau
from thalweg.descent.result import History, Result, Status
from thalweg.descent.searches import Backtracking, Monotone
from thalweg.descent.steps import (
    BarzilaiBorwein,
    Constant,
    InverseLipschitz,
    InverseTime,
    OptaxStep,
    Polynomial,
    Schedule,
    StepRule,
)
from thalweg.descent.stopping import (
    AllOf,
    AnyOf,
    Record,
    Seconds,
    Stagnation,
    Steps,
    StoppingRule,
    Tolerance,
    Work,
)
from thalweg.descent.terms import *  # noqa: F403
from thalweg.descent.terms import __all__ as _terms

__all__ = [
    "FISTA",
    "AdaptiveRestart",
    "AllOf",
    "AnyOf",
    "Averaging",
    "Backtracking",
    "BarzilaiBorwein",
    "Checkpoint",
    "Constant",
    "Descent",
    "HeavyBall",
    "History",
    "Info",
    "InverseLipschitz",
    "InverseTime",
    "Last",
    "Momentum",
    "Monotone",
    "Nesterov",
    "NoMomentum",
    "OptaxStep",
    "Plateau",
    "PolyakRuppert",
    "Polynomial",
    "Record",
    "Result",
    "Schedule",
    "Seconds",
    "Snapshot",
    "Stagnation",
    "State",
    "Status",
    "StepRule",
    "Steps",
    "StoppingRule",
    "Suffix",
    "Tolerance",
    "Weighted",
    "Work",
    "as_optax",
    "minimize",
    *_divergences,
    *_terms,
]

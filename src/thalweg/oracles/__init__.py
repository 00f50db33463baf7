"""Oracles ĝ: ways to estimate a gradient without bias, and what each costs."""

from thalweg.oracles.base import Exact, Oracle, Out
from thalweg.oracles.finite import FiniteDifferences
from thalweg.oracles.minibatch import MiniBatch
from thalweg.oracles.montecarlo import Reparameterised, ScoreFunction
from thalweg.oracles.svrg import SVRG, LooplessSVRG

__all__ = [
    "SVRG",
    "Exact",
    "FiniteDifferences",
    "LooplessSVRG",
    "MiniBatch",
    "Oracle",
    "Out",
    "Reparameterised",
    "ScoreFunction",
]

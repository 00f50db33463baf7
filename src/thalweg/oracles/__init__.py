"""Oracles ĝ: ways to estimate a gradient without bias, and what each costs."""

from thalweg.oracles.base import *
from thalweg.oracles.finite import *
from thalweg.oracles.minibatch import *
from thalweg.oracles.montecarlo import *
from thalweg.oracles.svrg import *

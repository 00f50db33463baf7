"""Oracles ĝ: ways to estimate a gradient without bias, and what each costs."""

import types

from thalweg.oracles.base import *
from thalweg.oracles.finite import *
from thalweg.oracles.minibatch import *
from thalweg.oracles.montecarlo import *
from thalweg.oracles.svrg import *

# All that the modules export.
__all__ = [name for name, part in globals().items() if name[0] != "_" and not isinstance(part, types.ModuleType)]

"""Oracles ĝ: ways to estimate a gradient without bias, and what each costs."""

import types

from thalweg.oracles.base import *  # noqa: F403
from thalweg.oracles.finite import *  # noqa: F403
from thalweg.oracles.minibatch import *  # noqa: F403
from thalweg.oracles.montecarlo import *  # noqa: F403
from thalweg.oracles.svrg import *  # noqa: F403

# All that the modules export.
__all__ = [name for name, part in globals().items() if name[0] != "_" and not isinstance(part, types.ModuleType)]

"""Divergences D: the geometry of a step."""

import types

from thalweg.descent.divergences.base import *  # noqa: F403
from thalweg.descent.divergences.bregman import *  # noqa: F403
from thalweg.descent.divergences.euclidean import *  # noqa: F403
from thalweg.descent.divergences.exponential import *  # noqa: F403
from thalweg.descent.divergences.families import *  # noqa: F403

# All that the modules export.
__all__ = [name for name, part in globals().items() if name[0] != "_" and not isinstance(part, types.ModuleType)]

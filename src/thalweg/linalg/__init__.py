"""Linear algebra that every system needs, written once for host and device."""

import types

from thalweg.linalg.arrays import *  # noqa: F403
from thalweg.linalg.cg import *  # noqa: F403
from thalweg.linalg.factor import *  # noqa: F403
from thalweg.linalg.fold import *  # noqa: F403
from thalweg.linalg.lanczos import *  # noqa: F403
from thalweg.linalg.lowrank import *  # noqa: F403

# All that the modules export.
__all__ = [name for name, part in globals().items() if name[0] != "_" and not isinstance(part, types.ModuleType)]

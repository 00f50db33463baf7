"""The iteration x⁺ = argmin ⟨ĝ,x⟩ + h(x) + D(x‖x_k)/β, its parts, and the loop that runs it."""

import types

from thalweg.descent.averaging import *  # noqa: F403
from thalweg.descent.checkpoint import *  # noqa: F403
from thalweg.descent.divergences import *  # noqa: F403
from thalweg.descent.interop import *  # noqa: F403
from thalweg.descent.iteration import *  # noqa: F403
from thalweg.descent.loop import *  # noqa: F403
from thalweg.descent.momentum import *  # noqa: F403
from thalweg.descent.plateau import *  # noqa: F403
from thalweg.descent.result import *  # noqa: F403
from thalweg.descent.searches import *  # noqa: F403
from thalweg.descent.steps import *  # noqa: F403
from thalweg.descent.stopping import *  # noqa: F403
from thalweg.descent.terms import *  # noqa: F403

# All that the modules export.
__all__ = [name for name, part in globals().items() if name[0] != "_" and not isinstance(part, types.ModuleType)]

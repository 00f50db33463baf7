"""The iteration x⁺ = argmin ⟨ĝ,x⟩ + h(x) + D(x‖x_k)/β, its parts, and the loop that runs it."""

from thalweg.descent.averaging import *  # noqa: F403
from thalweg.descent.averaging import __all__ as _averaging
from thalweg.descent.checkpoint import *  # noqa: F403
from thalweg.descent.checkpoint import __all__ as _checkpoint
from thalweg.descent.divergences import *  # noqa: F403
from thalweg.descent.divergences import __all__ as _divergences
from thalweg.descent.interop import *  # noqa: F403
from thalweg.descent.interop import __all__ as _interop
from thalweg.descent.iteration import *  # noqa: F403
from thalweg.descent.iteration import __all__ as _iteration
from thalweg.descent.loop import *  # noqa: F403
from thalweg.descent.loop import __all__ as _loop
from thalweg.descent.momentum import *  # noqa: F403
from thalweg.descent.momentum import __all__ as _momentum
from thalweg.descent.plateau import *  # noqa: F403
from thalweg.descent.plateau import __all__ as _plateau
from thalweg.descent.result import *  # noqa: F403
from thalweg.descent.result import __all__ as _result
from thalweg.descent.searches import *  # noqa: F403
from thalweg.descent.searches import __all__ as _searches
from thalweg.descent.steps import *  # noqa: F403
from thalweg.descent.steps import __all__ as _steps
from thalweg.descent.stopping import *  # noqa: F403
from thalweg.descent.stopping import __all__ as _stopping
from thalweg.descent.terms import *  # noqa: F403
from thalweg.descent.terms import __all__ as _terms

__all__ = [
    *_averaging,
    *_checkpoint,
    *_divergences,
    *_interop,
    *_iteration,
    *_loop,
    *_momentum,
    *_plateau,
    *_result,
    *_searches,
    *_steps,
    *_stopping,
    *_terms,
]

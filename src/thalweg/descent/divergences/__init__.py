"""Divergences D: the geometry of a step."""

from thalweg.descent.divergences import base, bregman, euclidean, exponential, families
from thalweg.descent.divergences.base import *  # noqa: F403
from thalweg.descent.divergences.bregman import *  # noqa: F403
from thalweg.descent.divergences.euclidean import *  # noqa: F403
from thalweg.descent.divergences.exponential import *  # noqa: F403
from thalweg.descent.divergences.families import *  # noqa: F403

__all__: list[str] = []
__all__ += base.__all__
__all__ += bregman.__all__
__all__ += euclidean.__all__
__all__ += exponential.__all__
__all__ += families.__all__

"""Divergences D: the geometry of a step."""

from thalweg.descent.divergences.base import *  # noqa: F403
from thalweg.descent.divergences.base import __all__ as _base
from thalweg.descent.divergences.bregman import *  # noqa: F403
from thalweg.descent.divergences.bregman import __all__ as _bregman
from thalweg.descent.divergences.euclidean import *  # noqa: F403
from thalweg.descent.divergences.euclidean import __all__ as _euclidean
from thalweg.descent.divergences.exponential import *  # noqa: F403
from thalweg.descent.divergences.exponential import __all__ as _exponential
from thalweg.descent.divergences.families import *  # noqa: F403
from thalweg.descent.divergences.families import __all__ as _families

__all__ = [*_base, *_bregman, *_euclidean, *_exponential, *_families]

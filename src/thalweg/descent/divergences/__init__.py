"""Divergences D: the geometry of a step."""

from thalweg.descent.divergences.base import *  # noqa: F403
from thalweg.descent.divergences.bregman import *  # noqa: F403
from thalweg.descent.divergences.euclidean import *  # noqa: F403
from thalweg.descent.divergences.exponential import *  # noqa: F403

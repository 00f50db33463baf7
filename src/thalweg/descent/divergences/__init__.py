"""Divergences D: the geometry of a step."""

from thalweg.descent.divergences.base import *
from thalweg.descent.divergences.bregman import *
from thalweg.descent.divergences.euclidean import *
from thalweg.descent.divergences.exponential import *

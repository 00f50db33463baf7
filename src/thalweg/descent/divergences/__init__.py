"""Divergences D: the geometry of a step."""

from thalweg.descent.divergences.base import Divergence, closed_form, closed_forms, find_closed_form, has_closed_form
from thalweg.descent.divergences.bregman import Bregman, BurgEntropy, NegativeEntropy
from thalweg.descent.divergences.euclidean import DiagonalMetric, Euclidean, MatrixMetric
from thalweg.descent.divergences.exponential import KLFromCentre, KLToCentre, KLToPrior, NaturalGradient
from thalweg.descent.divergences.families import (
    BernoulliFamily,
    CategoricalFamily,
    ExponentialFamily,
    GaussianFamily,
    Moments,
    PoissonFamily,
)

__all__ = [
    "BernoulliFamily",
    "Bregman",
    "BurgEntropy",
    "CategoricalFamily",
    "DiagonalMetric",
    "Divergence",
    "Euclidean",
    "ExponentialFamily",
    "GaussianFamily",
    "KLFromCentre",
    "KLToCentre",
    "KLToPrior",
    "MatrixMetric",
    "Moments",
    "NaturalGradient",
    "NegativeEntropy",
    "PoissonFamily",
    "closed_form",
    "closed_forms",
    "find_closed_form",
    "has_closed_form",
]

"""Completing matrices of ratings: factors and biases of rows and columns with Gaussian posteriors.

The files build on one another: ``ratings`` (in blocks, and sums over them) → ``posteriors`` (of one side given the
other) → ``priors`` (from features, and the scales of the noise) → ``factors`` (sweeps and the bound) → ``completed``
(what a result predicts) → ``rank`` (NDCG, and the number of factors) → ``fitting``: ratings in, a completed matrix out;
``stream`` takes in new ratings.

Beside it, ``nuclear`` (the smoothed nuclear norm) → ``relaxing`` (four ways to minimise it, and all cells out).
"""

from thalweg.completion.completed import Completed, Filled
from thalweg.completion.factors import FactorSettings
from thalweg.completion.fitting import LearnedFactors, Options, complete
from thalweg.completion.nuclear import Relaxed
from thalweg.completion.rank import ranking
from thalweg.completion.ratings import Ratings
from thalweg.completion.relaxing import Path, Relaxation, Settled, Way, descend, relax
from thalweg.completion.stream import added, extended, vectors_of

__all__ = [
    "Completed",
    "FactorSettings",
    "Filled",
    "LearnedFactors",
    "Options",
    "Path",
    "Ratings",
    "Relaxation",
    "Relaxed",
    "Settled",
    "Way",
    "added",
    "complete",
    "descend",
    "extended",
    "ranking",
    "relax",
    "vectors_of",
]

"""Completing matrices of ratings: factors and biases of rows and columns with Gaussian posteriors.

The way through the files: ``entries`` (ratings in blocks, and sums over them) → ``posteriors`` (those of one side
given the other) → ``priors`` (what features say, and uneven noise) → ``factors`` (the sweeps and the bound) →
``seen`` and ``features`` (who rated what, and side information) → ``completed`` (what the result says) →
``fitting``: ratings in, a completed matrix out; ``adding`` takes in new ratings, ``ranking`` measures recommendations.

Beside it, ``nuclear`` (the smoothed nuclear norm) → ``descending`` (four ways down) → ``dense`` (all cells) →
``relaxing``.
"""

from thalweg.completion.adding import added, extended, vectors_of
from thalweg.completion.completed import Completed
from thalweg.completion.dense import Filled
from thalweg.completion.descending import Path, Way, descend
from thalweg.completion.factors import FactorSettings, Ratings
from thalweg.completion.fitting import LearnedFactors, Options, complete
from thalweg.completion.nuclear import Relaxed
from thalweg.completion.ranking import ranking
from thalweg.completion.relaxing import Relaxation, Settled, relax

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

"""Completing matrices of ratings: factors and biases of rows and columns with Gaussian posteriors.

The files build on one another: ``ratings`` (in blocks, and sums over them) → ``posteriors`` (of one side given the
other) → ``priors`` (from features, and the scales of the noise) → ``factors`` (sweeps and the bound) → ``completed``
(what a result predicts) → ``rank`` (NDCG, and the number of factors) → ``fitting``: ratings in, a completed matrix out;
``stream`` takes in new ratings.

Beside it, ``nuclear`` (the smoothed nuclear norm) → ``relaxing`` (four ways to minimise it, and all cells out).
"""

from thalweg.completion.completed import *
from thalweg.completion.factors import *
from thalweg.completion.fitting import *
from thalweg.completion.nuclear import *
from thalweg.completion.rank import *
from thalweg.completion.ratings import *
from thalweg.completion.relaxing import *
from thalweg.completion.stream import *

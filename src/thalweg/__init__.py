"""Thalweg: descent with cheap unbiased gradients and steps that respect the geometry of the parameters.

The names people type most are here; the rest is in the rooms: ``thalweg.descent`` (the iteration and its parts),
``thalweg.oracles`` (gradients), ``thalweg.spectral`` (tr f(A) and its gradient), ``thalweg.kernels``,
``thalweg.gaussian`` (Gaussian posteriors), ``thalweg.models`` (estimators), ``thalweg.data``, ``thalweg.files``.
"""

__version__ = "0.1.0.dev0"

from thalweg import data, descent, files, gaussian, kernels, models, oracles, spectral
from thalweg.descent import (
    FISTA,
    L1,
    AdaptiveRestart,
    Backtracking,
    Box,
    Descent,
    HeavyBall,
    NegativeEntropy,
    Nesterov,
    PerLeaf,
    Plateau,
    PolyakRuppert,
    Result,
    Simplex,
    Status,
    Suffix,
    minimize,
)
from thalweg.models import BernoulliGLM, GaussianGLM, GPClassifier, NegativeBinomialGLM, PoissonGLM
from thalweg.oracles import SVRG, Exact, MiniBatch
from thalweg.spectral import (
    Estimate,
    entropy,
    estrada,
    logdet,
    nuclear_norm,
    schatten_norm,
    spectral_sum,
    trace_exp,
    trace_inverse,
)

__all__ = [
    "FISTA",
    "L1",
    "SVRG",
    "AdaptiveRestart",
    "Backtracking",
    "BernoulliGLM",
    "Box",
    "Descent",
    "Estimate",
    "Exact",
    "GPClassifier",
    "GaussianGLM",
    "HeavyBall",
    "MiniBatch",
    "NegativeBinomialGLM",
    "NegativeEntropy",
    "Nesterov",
    "PerLeaf",
    "Plateau",
    "PoissonGLM",
    "PolyakRuppert",
    "Result",
    "Simplex",
    "Status",
    "Suffix",
    "data",
    "descent",
    "entropy",
    "estrada",
    "files",
    "gaussian",
    "kernels",
    "logdet",
    "minimize",
    "models",
    "nuclear_norm",
    "oracles",
    "schatten_norm",
    "spectral",
    "spectral_sum",
    "trace_exp",
    "trace_inverse",
]

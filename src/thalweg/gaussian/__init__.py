"""Gaussian posteriors: families, likelihoods, and the KL-proximal steps between them (Khan et al. 2016, PG-SVI).

=========================  ========================================================================================
posteriors q = N(m, V)     :class:`Full`, :class:`Diagonal`, :class:`Implicit` (a process, V never stored)
divergence D, terms h      :class:`GaussianKL`, :class:`KLToNormal`, :class:`KLToProcess`
oracle ĝ                   :class:`ExpectedLikelihood`
likelihoods p(y|z)         :class:`BernoulliLogit`, :class:`BernoulliProbit`, :class:`Poisson`,
                           :class:`NegativeBinomial`, :class:`GaussianNoise`, :class:`StudentT`; or one's own
                           :class:`Likelihood`
E log p under N(m, v)      :class:`Quadrature`, :class:`MonteCarlo`, :class:`ScoreSamples`
=========================  ========================================================================================
"""

from thalweg.gaussian.divergence import GaussianKL, KLToNormal, KLToProcess
from thalweg.gaussian.expectations import Expectation, MonteCarlo, Quadrature, ScoreSamples
from thalweg.gaussian.likelihood import Likelihood, Prediction
from thalweg.gaussian.likelihoods import (
    BernoulliLogit,
    BernoulliProbit,
    GaussianNoise,
    NegativeBinomial,
    Poisson,
    StudentT,
)
from thalweg.gaussian.oracle import ExpectedLikelihood
from thalweg.gaussian.posteriors import Diagonal, Full, Implicit, Marginals
from thalweg.gaussian.special import Expected

__all__ = [
    "BernoulliLogit",
    "BernoulliProbit",
    "Diagonal",
    "Expectation",
    "Expected",
    "ExpectedLikelihood",
    "Full",
    "GaussianKL",
    "GaussianNoise",
    "Implicit",
    "KLToNormal",
    "KLToProcess",
    "Likelihood",
    "Marginals",
    "MonteCarlo",
    "NegativeBinomial",
    "Poisson",
    "Prediction",
    "Quadrature",
    "ScoreSamples",
    "StudentT",
]

"""Gaussian posteriors: likelihoods and the expectations of their logarithms under a Gaussian.

=========================  ========================================================================================
likelihoods p(y|z)         :class:`BernoulliLogit`, :class:`BernoulliProbit`, :class:`Poisson`,
                           :class:`NegativeBinomial`, :class:`GaussianNoise`, :class:`StudentT`; or one's own
                           :class:`Likelihood`
E log p under N(m, v)      :class:`Quadrature`, :class:`MonteCarlo`, :class:`ScoreFunction`
=========================  ========================================================================================
"""

from thalweg.gaussian.expectations import Expectation, MonteCarlo, Quadrature, ScoreFunction
from thalweg.gaussian.likelihood import Expected, Likelihood, Prediction
from thalweg.gaussian.likelihoods import (
    BernoulliLogit,
    BernoulliProbit,
    GaussianNoise,
    NegativeBinomial,
    Poisson,
    StudentT,
)

__all__ = [
    "BernoulliLogit",
    "BernoulliProbit",
    "Expectation",
    "Expected",
    "GaussianNoise",
    "Likelihood",
    "MonteCarlo",
    "NegativeBinomial",
    "Poisson",
    "Prediction",
    "Quadrature",
    "ScoreFunction",
    "StudentT",
]

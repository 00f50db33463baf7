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

from thalweg.gaussian.divergence import *
from thalweg.gaussian.expectations import *
from thalweg.gaussian.likelihood import *
from thalweg.gaussian.likelihoods import *
from thalweg.gaussian.oracle import *
from thalweg.gaussian.posteriors import *
from thalweg.gaussian.special import *

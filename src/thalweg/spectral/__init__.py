"""Spectral sums tr f(A): values and gradients without eigenvalues.

A spectral sum adds up a function of the eigenvalues of a symmetric operator that is known by its products with vectors.
Three random choices make an unbiased estimate of it: probes v with E[vvᵀ] = I turn the trace into quadratic forms
vᵀf(A)v; a Chebyshev series turns f(A)v into products with A; and a random degree truncates the series without bias.
All the rest makes the estimate cheap (a law of degrees that suits the coefficients, half the products, a
preconditioner) and honest (an error bar that covers, a watch on the spectrum).

An estimate passes through these files: ``sums`` (the names) → ``methods`` (factorise or estimate) → ``plan``
(``bounds``, ``chebyshev``, ``degrees``, ``tuning``, ``precondition``, ``lowrank``) → ``estimate`` (``probes``,
``recurrence``, ``gradients``); a factorisation through ``exact``. Operators are those of
:mod:`thalweg.linalg.operators`.
"""

from thalweg.linalg.factor import NotPositiveDefinite as NotPositiveDefiniteError
from thalweg.linalg.operators import *
from thalweg.spectral.degrees import *
from thalweg.spectral.estimate import *
from thalweg.spectral.lowrank import *
from thalweg.spectral.oracle import *
from thalweg.spectral.plan import *
from thalweg.spectral.precondition import *
from thalweg.spectral.sums import *

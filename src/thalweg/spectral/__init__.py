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
from thalweg.linalg.operators import (
    FunctionOperator,
    InterpolatedOperator,
    KernelOperator,
    Operator,
    ShiftedOperator,
    ToeplitzOperator,
    as_operator,
    gram_operator,
    kernel_operator,
)
from thalweg.spectral.degrees import InfiniteVarianceWarning
from thalweg.spectral.estimate import Estimate, EstimateStatus, Plan
from thalweg.spectral.lowrank import Nystrom, PivotedCholesky
from thalweg.spectral.oracle import LanczosOracle, SpectralOracle
from thalweg.spectral.plan import plan
from thalweg.spectral.precondition import Jacobi, Own
from thalweg.spectral.sums import (
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
    "Estimate",
    "EstimateStatus",
    "FunctionOperator",
    "InfiniteVarianceWarning",
    "InterpolatedOperator",
    "Jacobi",
    "KernelOperator",
    "LanczosOracle",
    "NotPositiveDefiniteError",
    "Nystrom",
    "Operator",
    "Own",
    "PivotedCholesky",
    "Plan",
    "ShiftedOperator",
    "SpectralOracle",
    "ToeplitzOperator",
    "as_operator",
    "entropy",
    "estrada",
    "gram_operator",
    "kernel_operator",
    "logdet",
    "nuclear_norm",
    "plan",
    "schatten_norm",
    "spectral_sum",
    "trace_exp",
    "trace_inverse",
]

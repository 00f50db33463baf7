"""Symmetric operators: one small class for each kind, and what makes one of whatever people have."""

from thalweg.spectral.operators.base import Operator, ShiftedOperator, SumOperator
from thalweg.spectral.operators.convert import as_operator, gram_operator
from thalweg.spectral.operators.dense import BCOOOperator, DenseOperator
from thalweg.spectral.operators.function import FunctionOperator, LineaxOperator, SciPyOperator
from thalweg.spectral.operators.gram import GramOperator, SparseGramOperator, SquaredOperator
from thalweg.spectral.operators.kernel import KernelOperator, kernel_operator
from thalweg.spectral.operators.sparse import SparseOperator
from thalweg.spectral.operators.toeplitz import InterpolatedOperator, ToeplitzOperator

__all__ = [
    "BCOOOperator",
    "DenseOperator",
    "FunctionOperator",
    "GramOperator",
    "InterpolatedOperator",
    "KernelOperator",
    "LineaxOperator",
    "Operator",
    "SciPyOperator",
    "ShiftedOperator",
    "SparseGramOperator",
    "SparseOperator",
    "SquaredOperator",
    "SumOperator",
    "ToeplitzOperator",
    "as_operator",
    "gram_operator",
    "kernel_operator",
]

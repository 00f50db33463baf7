"""Symmetric operators: a small class for each kind, and :func:`as_operator` for matrices and functions."""

from thalweg.linalg.operators.base import Operator, ShiftedOperator, SumOperator
from thalweg.linalg.operators.convert import as_operator, gram_operator
from thalweg.linalg.operators.dense import CoordinateOperator, DenseOperator
from thalweg.linalg.operators.function import FunctionOperator
from thalweg.linalg.operators.gram import GramOperator
from thalweg.linalg.operators.kernel import KernelOperator, kernel_operator
from thalweg.linalg.operators.sparse import SparseOperator
from thalweg.linalg.operators.toeplitz import InterpolatedOperator, ToeplitzOperator

__all__ = [
    "CoordinateOperator",
    "DenseOperator",
    "FunctionOperator",
    "GramOperator",
    "InterpolatedOperator",
    "KernelOperator",
    "Operator",
    "ShiftedOperator",
    "SparseOperator",
    "SumOperator",
    "ToeplitzOperator",
    "as_operator",
    "gram_operator",
    "kernel_operator",
]

"""Symmetric operators: a small class for each kind, and :func:`as_operator` for matrices and functions."""

from thalweg.linalg.operators.base import Operator, ShiftedOperator
from thalweg.linalg.operators.convert import as_operator, gram_operator
from thalweg.linalg.operators.function import FunctionOperator
from thalweg.linalg.operators.kernel import KernelOperator, kernel_operator
from thalweg.linalg.operators.toeplitz import InterpolatedOperator, ToeplitzOperator

__all__ = [
    "FunctionOperator",
    "InterpolatedOperator",
    "KernelOperator",
    "Operator",
    "ShiftedOperator",
    "ToeplitzOperator",
    "as_operator",
    "gram_operator",
    "kernel_operator",
]

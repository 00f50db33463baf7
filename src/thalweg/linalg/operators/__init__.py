"""Symmetric operators: a small class for each kind, and :func:`as_operator` for matrices and functions."""

from thalweg.linalg.operators.base import *
from thalweg.linalg.operators.convert import *
from thalweg.linalg.operators.function import *
from thalweg.linalg.operators.kernel import *
from thalweg.linalg.operators.toeplitz import *

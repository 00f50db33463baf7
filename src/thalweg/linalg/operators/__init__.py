"""Symmetric operators: a small class for each kind, and :func:`as_operator` for matrices and functions."""

from thalweg.linalg.operators.base import *  # noqa: F403
from thalweg.linalg.operators.convert import *  # noqa: F403
from thalweg.linalg.operators.function import *  # noqa: F403
from thalweg.linalg.operators.kernel import *  # noqa: F403
from thalweg.linalg.operators.toeplitz import *  # noqa: F403

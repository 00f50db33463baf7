"""How many threads linear algebra is given."""

from contextlib import AbstractContextManager
from functools import cache

import scipy.linalg  # noqa: F401  (loads its own BLAS, which must be there when libraries are looked for)
from threadpoolctl import ThreadpoolController

_ONE_THREAD = 1024
"""Rows up to which a factorisation gains little from a second thread: a fifth of its time, on an idle machine."""


def enough_threads(rows: int) -> AbstractContextManager:
    """One thread of BLAS for matrices of few rows, within a scope.

    More gain little, and on a busy machine they wait for one another many times longer than they work.

    Examples
    --------
    >>> with enough_threads(100):
    ...     pass
    """
    return _libraries().limit(limits=1 if rows <= _ONE_THREAD else None, user_api="blas")


@cache
def _libraries() -> ThreadpoolController:
    """Those loaded: to look for them takes as long as to factorise a matrix of a hundred rows."""
    return ThreadpoolController()

"""How many threads linear algebra is given."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import scipy.linalg  # noqa: F401  (loads its own BLAS, which must be there when libraries are looked for)
from threadpoolctl import ThreadpoolController

_ONE_THREAD = 1024
"""Rows up to which a factorisation gains little from a second thread: a fifth of its time, on an idle machine."""


_SCOPES: list[None] = []
"""One for each scope that is in force: to limit threads takes milliseconds, and a scope within another need not."""


@contextmanager
def enough_threads(rows: int) -> Iterator[None]:
    """One thread of BLAS for matrices of few rows, within a scope.

    More gain little, and on a busy machine they wait for one another many times longer than they work.

    Examples
    --------
    >>> with enough_threads(100):
    ...     pass
    """
    if rows > _ONE_THREAD or _SCOPES:
        yield
        return
    with _libraries().limit(limits=1, user_api="blas"):
        _SCOPES.append(None)
        try:
            yield
        finally:
            _SCOPES.pop()


@cache
def _libraries() -> ThreadpoolController:
    """Those loaded: to look for them takes as long as to factorise a matrix of a hundred rows."""
    return ThreadpoolController()

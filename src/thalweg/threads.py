"""How many threads linear algebra is given."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from threading import Lock
from typing import Any

import scipy.linalg  # noqa: F401  (loads its own BLAS, which must be there when libraries are looked for)
from threadpoolctl import ThreadpoolController

_ONE_THREAD = 1024
"""Rows up to which a factorisation gains little from a second thread: a fifth of its time, on an idle machine."""


class _Scopes:
    """Those in force, in all threads: the first limits BLAS, which takes milliseconds, and the last lifts the limit."""

    def __init__(self) -> None:
        self.lock, self.count = Lock(), 0
        self.limit: Any = None

    def enter(self) -> None:
        with self.lock:
            if not self.count:
                self.limit = _libraries().limit(limits=1, user_api="blas")
            self.count += 1

    def leave(self) -> None:
        with self.lock:
            self.count -= 1
            if not self.count:
                self.limit.restore_original_limits()


_SCOPES = _Scopes()


@contextmanager
def enough_threads(rows: int) -> Iterator[None]:
    """One thread of BLAS for matrices of few rows, within a scope.

    More gain little, and on a busy machine they wait for one another many times longer than they work.

    Examples
    --------
    >>> with enough_threads(100):
    ...     pass
    """
    if rows > _ONE_THREAD:
        yield
        return
    _SCOPES.enter()
    try:
        yield
    finally:
        _SCOPES.leave()


@cache
def _libraries() -> ThreadpoolController:
    """Those loaded: to look for them takes as long as to factorise a matrix of a hundred rows."""
    return ThreadpoolController()

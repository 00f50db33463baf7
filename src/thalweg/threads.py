"""How many threads linear algebra is given, threads that share work, and one that works ahead."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from itertools import chain, pairwise
from threading import Lock
from typing import Any, TypeVar

import scipy.linalg  # noqa: F401  (loads its own BLAS, which must be there when libraries are looked for)
import threadpoolctl

_Given = TypeVar("_Given")
_Made = TypeVar("_Made")

_ONE_THREAD = 1024
"""Rows up to which a factorisation gains little from a second thread: a fifth of its time, on an idle machine."""


def cores() -> int:
    """The number of cores that this process may use.

    Examples
    --------
    >>> cores() >= 1
    True
    """
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


_LOCK = Lock()
_SCOPES: list[Any] = []
"""The one limit of BLAS, once for each scope in force in any thread: the first sets it, and the last lifts it."""


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
    with _LOCK:
        if not _SCOPES:
            _take_control()
        _SCOPES.append(_SCOPES[0] if _SCOPES else _libraries().limit(limits=1, user_api="blas"))
    try:
        yield
    finally:
        with _LOCK:
            limit = _SCOPES.pop()
            if not _SCOPES:
                _take_control()
                limit.restore_original_limits()
                _take_control()


def _take_control() -> None:
    """Let any thread set the next limit: threadpoolctl leaves OpenBLAS to the one that set the last, while it lives.

    Without it a fit in a second thread would have all threads of BLAS, and take fifty times as long.
    """
    controller = getattr(threadpoolctl, "OpenBLASController", None)
    getattr(controller, "clear_controlling_thread", lambda force: None)(force=True)


_libraries = cache(threadpoolctl.ThreadpoolController)
"""Return those loaded: to look for them takes as long as to factorise a matrix of a hundred rows."""


def in_threads(act: Callable[[_Given], _Made], items: Sequence[_Given]) -> list[_Made]:
    """What is made of each of some things, in their order, each by a core, with one thread of BLAS.

    Examples
    --------
    >>> in_threads(str, [1, 2])
    ['1', '2']
    """
    if len(items) <= 1 or cores() == 1:
        return list(map(act, items))
    pool = ThreadPoolExecutor(min(cores(), len(items)))
    try:
        with enough_threads(1):
            return list(pool.map(act, items))
    finally:  # An interrupt does not wait for what is running.
        pool.shutdown(wait=False, cancel_futures=True)


def ahead(make: Callable[[_Given], _Made], given: Iterable[_Given]) -> Iterator[tuple[_Given, _Made]]:
    """Each of some things and what is made of it, where the next is made by another thread in the meantime.

    What is made must not depend on scopes of JAX, which threads do not inherit.

    Examples
    --------
    >>> list(ahead(str, [1, 2]))
    [(1, '1'), (2, '2')]
    """
    pool = ThreadPoolExecutor(1)
    try:
        submitted = ((item, pool.submit(make, item)) for item in given)
        # An item is yielded when the next one, or the end, has been drawn.
        for (item, future), _ in pairwise(chain(submitted, [None])):  # type: ignore[misc]
            yield item, future.result()
    finally:  # Whoever interrupts does not wait for it.
        pool.shutdown(wait=False, cancel_futures=True)

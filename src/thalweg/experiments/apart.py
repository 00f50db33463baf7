"""Work in processes of their own, on two cores each, so that the seconds of one can be compared with another's."""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import current_process, get_context
from typing import Any, TypeVar

import jax

T = TypeVar("T")

_CORES = 2


def apart(function: Callable[..., T], jobs: Sequence[tuple]) -> list[T]:
    """What a function of a module returns for each of some arguments.

    With an accelerator, or fewer than four cores, one after another in this process.

    >>> apart(max, [(1, 2)])
    [2]
    """
    workers = min(len(jobs), len(_cores()) // _CORES) if jax.default_backend() == "cpu" else 1
    if workers <= 1:
        return [function(*job) for job in jobs]
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        return list(pool.map(partial(_pinned, function), jobs))


def _pinned(function: Callable[..., Any], job: tuple) -> Any:
    own = int(current_process().name.rsplit("-", 1)[-1]) - 1
    cores = _cores()
    start = _CORES * own % (len(cores) // _CORES * _CORES)
    os.sched_setaffinity(0, cores[start : start + _CORES])
    try:
        return function(*job)
    finally:
        os.sched_setaffinity(0, cores)


def _cores() -> list[int]:
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []

"""Doing the next thing while the last one is in use."""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Given = TypeVar("Given")
Made = TypeVar("Made")


def ahead(make: Callable[[Given], Made], given: Iterable[Given]) -> Iterator[tuple[Given, Made]]:
    """Each of some things and what is made of it, where the next is made by another thread in the meantime.

    What is made must not depend on scopes of JAX, which threads do not inherit.

    Examples
    --------
    >>> list(ahead(str, [1, 2]))
    [(1, '1'), (2, '2')]
    """
    pool = ThreadPoolExecutor(1)
    try:
        waiting = None
        for one in given:
            begun = one, pool.submit(make, one)
            if waiting is not None:
                yield waiting[0], waiting[1].result()
            waiting = begun
        if waiting is not None:
            yield waiting[0], waiting[1].result()
    finally:  # Whoever interrupts does not wait for it.
        pool.shutdown(wait=False, cancel_futures=True)

"""Scopes of one BLAS thread: however they overlap, threads are as many afterwards as before."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np  # noqa: F401  (whose BLAS is looked at)
from threadpoolctl import threadpool_info, threadpool_limits

from thalweg.threads import enough_threads


def counts():
    return [library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"]


def test_scopes_that_overlap_leave_nothing_behind():
    with threadpool_limits(2, user_api="blas"):
        before = counts()
        first, second = enough_threads(10), enough_threads(10)
        first.__enter__()
        second.__enter__()
        assert set(counts()) == {1}
        first.__exit__(None, None, None)  # which the other thread of two would do while the second goes on
        assert set(counts()) == {1}
        second.__exit__(None, None, None)
        assert counts() == before


def test_any_thread_sets_the_limit():
    """threadpoolctl listens to one thread at a time: fits in two had all of BLAS, and took fifty times as long."""
    with enough_threads(10):
        pass
    with threadpool_limits(2, user_api="blas"), ThreadPoolExecutor(1) as pool:
        before = counts()
        scope = enough_threads(10)
        pool.submit(scope.__enter__).result()
        assert set(counts()) == {1}
        scope.__exit__(None, None, None)
        assert counts() == before


def test_many_rows_have_all_threads():
    with threadpool_limits(2, user_api="blas"):
        before = counts()
        with enough_threads(100_000):
            assert counts() == before

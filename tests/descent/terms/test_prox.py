"""Every term against brute force, and against what convex analysis says of a prox."""

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from threadpoolctl import threadpool_limits

from thalweg.descent.terms import Rank

from .cases import PROX

SETTINGS = settings(max_examples=6, deadline=None, derandomize=True, database=None)
# Whole numbers make ties and zeros, which random reals would never hit.
ENTRIES = st.one_of(st.integers(-4, 4).map(float), st.floats(-20, 20, width=32))


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Brute force on matrices this small waits for threads longer than it computes."""
    with threadpool_limits(1, user_api="blas"):
        yield


def points(case, count):
    return hnp.arrays(np.float64, (count, case.size), elements=ENTRIES, fill=st.nothing())


def test_value_and_prox_against_brute_force(case):
    rng = np.random.default_rng(7)
    for spread, step in ((0.5, 0.3), (2.0, 2.0)):
        x = spread * rng.normal(size=case.size)
        expected = case.solve(x, step)
        found = case.prox(x, step)
        np.testing.assert_allclose(found, expected, rtol=0, atol=case.accuracy * max(1, np.abs(x).max()))
        # The term's point may not be worse than the solver's: that catches a solver that is merely stuck.
        cost = lambda u, x=x, step=step: case.value(u) + np.sum((u - x) ** 2) / (2 * step)
        assert cost(found) <= cost(expected) + 1e-7


def test_value(case):
    rng = np.random.default_rng(3)
    for _ in range(4):
        u = case.member(rng)
        np.testing.assert_allclose(case.h(u), case.value(u), rtol=1e-12, atol=1e-12)


def test_optimality(convex_case):
    """(x − p)/t is a subgradient at p: h(u) ≥ h(p) + ⟨(x − p)/t, u − p⟩ for every u, near and far."""
    case, rng = convex_case, np.random.default_rng(5)
    for step in (0.05, 0.7, 30.0):
        x = 2 * rng.normal(size=case.size)
        p = case.prox(x, step)
        slope = (x - p) / step
        for _ in range(5):
            u = case.member(rng)
            for s in (1.0, 1e-2):
                v = p + s * (u - p)
                slack = 1e-11 * (1 + np.abs(slope).max() + abs(case.value(p)))
                assert case.value(v) >= case.value(p) + slope @ (v - p) - slack


@SETTINGS
@given(data=st.data())
def test_firmly_non_expansive(convex_case, data):
    """‖p(x) − p(y)‖² ≤ ⟨p(x) − p(y), x − y⟩."""
    case = convex_case
    x, y = data.draw(points(case, 2))
    step = data.draw(st.sampled_from([0.01, 1.0, 50.0]))
    difference = case.prox(x, step) - case.prox(y, step)
    scale = 1 + np.sum(x**2) + np.sum(y**2)
    assert difference @ difference <= difference @ (x - y) + 1e-13 * scale


@SETTINGS
@given(data=st.data())
def test_projection_is_feasible_and_idempotent(indicator_case, data):
    case = indicator_case
    (x,) = data.draw(points(case, 1))
    p = case.prox(x, 1.0)
    assert case.h(p) == 0.0
    np.testing.assert_allclose(case.prox(p, 1.0), p, rtol=0, atol=1e-13 * (1 + np.abs(x).max()))
    # The step has no say in a projection.
    np.testing.assert_array_equal(case.prox(x, 1e-6), p)


def test_indicator_is_infinite_off_the_set(indicator_case):
    case, rng = indicator_case, np.random.default_rng(11)
    seen = 0
    for _ in range(20):
        x = 3 * rng.normal(size=case.size)
        away = np.abs(x - case.solve(x, 1.0)).max() > 1e-3
        seen += away
        assert case.h(x) == (np.inf if away else 0.0)
        if seen:
            break
    assert seen or case.name == "Zero"


def test_indicator_tolerance_is_of_rounding_size(indicator_case):
    """Just off the set by 1e-9 is off; by an ulp it is not."""
    case, rng = indicator_case, np.random.default_rng(13)
    if case.name == "Zero":
        pytest.skip("every point is feasible")
    x = 3 * rng.normal(size=case.size)
    p = case.prox(x, 1.0)
    assert np.abs(x - p).max() > 1e-3
    assert case.h(p + 1e-9 * (x - p) / np.abs(x - p).max()) == np.inf
    assert case.h(p * (1 + 2.3e-16)) == 0.0


def test_rank_is_eckart_young():
    """The squared distance is the sum of the squares of the dropped singular values."""
    x = np.random.default_rng(0).normal(size=(6, 5))
    for k in (1, 3, 5):
        p = np.asarray(PROX(Rank(k), x, 1.0))
        assert np.linalg.matrix_rank(p) == k
        dropped = np.linalg.svd(x, compute_uv=False)[k:]
        np.testing.assert_allclose(np.sum((x - p) ** 2), np.sum(dropped**2), atol=1e-12)

"""Correlations as functions of the squared distance: one formula for NumPy and JAX, and their derivatives."""

from functools import cache

import jax
import numpy as np
import pytest

from thalweg.kernels.profiles import profile, profile_slope

ORDERS = [None, 0, 1, 2]
R = np.array([0.0, 1e-4, 0.1, 0.7, 1.0, 2.5, 8.0])
FORMULAS = {
    None: lambda r: np.exp(-(r**2) / 2),
    0: lambda r: np.exp(-r),
    1: lambda r: (1 + np.sqrt(3) * r) * np.exp(-np.sqrt(3) * r),
    2: lambda r: (1 + np.sqrt(5) * r + 5 * r**2 / 3) * np.exp(-np.sqrt(5) * r),
}


@cache
def on_device():
    """Profiles, their slopes, and slopes by differentiation, of all orders by one program."""

    @jax.jit
    def evaluate(squared):
        derivative = lambda order: jax.vmap(jax.grad(lambda one: profile(order, one)))(squared)
        return [(profile(order, squared), profile_slope(order, squared), derivative(order)) for order in ORDERS]

    return dict(zip(ORDERS, evaluate(R**2), strict=True))


@pytest.mark.parametrize("order", ORDERS)
def test_host_and_device_have_the_formula(order):
    for found in (profile(order, R**2), on_device()[order][0]):
        np.testing.assert_allclose(found, FORMULAS[order](R), rtol=1e-12)


@pytest.mark.parametrize("order", ORDERS)
def test_slopes_are_derivatives_in_the_squared_distance(order):
    by_hand = profile_slope(order, R**2)
    _, by_device, by_jax = on_device()[order]
    np.testing.assert_allclose(by_device, by_hand, rtol=1e-12)
    np.testing.assert_allclose(by_jax, by_hand, rtol=1e-10)
    away = R[2:] ** 2
    differences = (profile(order, away * 1.00001) - profile(order, away * 0.99999)) / (2e-5 * away)
    np.testing.assert_allclose(by_hand[2:], differences, rtol=1e-6)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("act", [profile, profile_slope])
def test_float32_is_as_accurate_as_its_distances(order, act):
    squares = np.concatenate([[0.0], np.geomspace(1e-6, 4000, 500)]).astype(np.float32)
    coarse, fine = act(order, squares), act(order, squares.astype(np.float64))
    assert coarse.dtype == np.float32
    r = np.sqrt(squares.astype(np.float64))
    # A rounded distance moves the value by this many units in the last place.
    units = np.finfo(np.float32).eps * (4 + 3 * np.minimum(np.maximum(r, r**2), 100))
    assert np.all(np.abs(coarse - fine) <= units * np.abs(fine))


@pytest.mark.parametrize("order", ORDERS)
def test_huge_distances_are_no_correlation(order):
    for dtype in (np.float32, np.float64):
        found = profile(order, np.array([1e6, 1e30], dtype))
        assert np.all((found >= 0) & (found < 1e-25))
        assert np.all(np.isfinite(profile_slope(order, np.array([1e6, 1e30], dtype))))

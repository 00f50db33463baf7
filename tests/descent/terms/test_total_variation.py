"""The total variation prox: exact on adversarial signals, linear in time, accurate in float32."""

import re
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import lsq_linear

from thalweg.descent.terms import TotalVariation1D
from thalweg.descent.terms.total_variation import _denoise

TERM = TotalVariation1D(1.0)
PROX = jax.jit(lambda x, step: TERM.prox(x, step))
N = 30
RNG = np.random.default_rng(0)
SIGNALS = {
    "noise": RNG.normal(size=N),
    "steps": np.repeat(RNG.normal(size=5), N // 5) + 0.1 * RNG.normal(size=N),
    "ties": RNG.integers(0, 3, N).astype(float),
    "walk": np.cumsum(RNG.normal(size=N)) + 100,
    "ramp": np.linspace(0, N, N),
    "alternating": (-1.0) ** np.arange(N) * np.arange(N),
    "valley": np.linspace(-1, 1, N) ** 2 * N,
    "spike": np.eye(N)[7] * 50,
    "constant": np.full(N, 3.0),
}


@cache
def denoised(weight):
    """All signals at once, in two leading axes."""
    rows = np.reshape(PROX(np.reshape(list(SIGNALS.values()), (3, 3, N)), weight), (9, N))
    return dict(zip(SIGNALS, rows, strict=True))


@pytest.mark.parametrize("name", SIGNALS)
def test_against_the_dual_problem(name):
    """Leading axes are independent signals."""
    signal, jumps = SIGNALS[name], np.diff(np.eye(N), axis=0)
    for weight in (1e-3, 0.4, 3.0, 40.0, 1e4):
        dual = lsq_linear(jumps.T, signal, bounds=(-weight, weight), method="bvls", tol=1e-15).x
        found = denoised(weight)[name]
        np.testing.assert_allclose(found, signal - jumps.T @ dual, rtol=0, atol=1e-10 * np.abs(signal).max())


def dual_gap(x, u, weight):
    """How far u is from optimal: the running sum of x − u must stay in ±weight, and touch it at each jump."""
    dual = np.cumsum(x - u)
    jump = np.diff(u)
    slack = np.abs(weight * np.abs(jump) - dual[:-1] * -np.sign(jump) * np.abs(jump))
    return max(abs(dual[-1]), (np.abs(dual) - weight).max(), slack.max())


@pytest.mark.parametrize("weight", [0.5, 30.0, 1e4])
def test_optimality_of_long_signals(weight):
    for signal in (RNG.normal(size=4000), np.cumsum(RNG.normal(size=4000))):
        found = np.asarray(PROX(signal, weight))
        assert dual_gap(signal, found, weight) < 1e-8 * (1 + weight)


def test_the_mean_is_what_a_huge_weight_leaves():
    for weight in (1e4, 1e30, 1e300):
        found, mean = denoised(weight)["noise"], SIGNALS["noise"].mean()
        np.testing.assert_allclose(found, np.full(N, mean), rtol=0, atol=1e-15)


def test_a_zero_weight_changes_nothing():
    for name, x in SIGNALS.items():
        np.testing.assert_allclose(denoised(0.0)[name], x, rtol=0, atol=1e-15 * np.abs(x).max())


def test_short_signals():
    for shape in ((0,), (1,), (3, 1), (0, 2)):
        assert PROX(np.ones(shape), 1.0).shape == shape
    np.testing.assert_allclose(PROX(np.array([0.0, 4.0]), 1.0), [1.0, 3.0])
    np.testing.assert_allclose(PROX(np.array([0.0, 1.0]), 1.0), [0.5, 0.5])


def test_no_turn_copies_the_queue():
    """So 3n turns for n samples take O(n) altogether."""
    n = 1000
    program = _denoise.lower(jnp.ones(n), 2.0).compile().as_text()
    assert f"[{2 * n},4]" in program
    assert not re.search(rf"\[({2 * n},4|{n + 1},2)\]\S* copy\(", program)


@pytest.mark.slow
def test_float32_does_not_lose_digits_with_length():
    for x in (RNG.normal(size=100_000), np.cumsum(RNG.normal(size=100_000))):
        single = jnp.asarray(x, jnp.float32)
        exact = PROX(single.astype(jnp.float64), 2.0)
        found = PROX(single, 2.0)
        assert found.dtype == jnp.float32
        np.testing.assert_allclose(found, exact, rtol=0, atol=5e-7 * np.abs(x).max())

"""What a function captures may change between two runs: the second run sees it."""

import time

import jax.numpy as jnp
import numpy as np
import pytest

from thalweg.descent import minimize
from thalweg.descent.captured import captured
from thalweg.oracles import Exact

shift = np.zeros(2)
settings = {"shift": 1.0}


def helper(x):
    return x - 1.0


def with_global(x):
    return jnp.sum((x - shift) ** 2)


def with_helper(x):
    return jnp.sum(helper(x) ** 2)


def with_setting(x):
    return jnp.sum((x - settings["shift"]) ** 2)


class Distance:
    def __init__(self, to):
        self.to = to

    def __call__(self, x):
        return jnp.sum((x - self.to) ** 2)

    def far(self, x):
        return self(x)


def solve(function, engine=None):
    return minimize(function, jnp.zeros(2), step=0.5, engine=engine).x


@pytest.mark.parametrize("engine", ["compiled", "host"])
def test_an_enclosed_array_that_is_replaced_or_written_to(engine):
    b = jnp.ones(2)
    f = lambda x: jnp.sum((x - b) ** 2)
    np.testing.assert_allclose(solve(f, engine), 1.0)
    b = 5 * jnp.ones(2)
    np.testing.assert_allclose(solve(f, engine), 5.0)
    written = np.ones(2)
    g = lambda x: jnp.sum((x - written) ** 2)
    np.testing.assert_allclose(solve(g, engine), 1.0)
    written[:] = 7.0
    np.testing.assert_allclose(solve(g, engine), 7.0)


def test_globals_helpers_defaults_and_attributes(monkeypatch):
    np.testing.assert_allclose(solve(with_global), 0.0)
    monkeypatch.setitem(globals(), "shift", 2 * np.ones(2))
    np.testing.assert_allclose(solve(with_global), 2.0)

    np.testing.assert_allclose(solve(with_helper), 1.0)
    monkeypatch.setitem(globals(), "helper", lambda x: x - 3.0)
    np.testing.assert_allclose(solve(with_helper), 3.0)

    np.testing.assert_allclose(solve(with_setting), 1.0)
    monkeypatch.setitem(settings, "shift", 4.0)
    np.testing.assert_allclose(solve(with_setting), 4.0)

    distance = Distance(1.0)
    for function in (distance, distance.far):
        distance.to = 1.0
        np.testing.assert_allclose(solve(function), 1.0)
        distance.to = 6.0
        np.testing.assert_allclose(solve(function), 6.0)


def test_data_that_are_arguments_compile_nothing_anew():
    f = lambda x, b: jnp.sum((x - b) ** 2)
    assert captured(Exact(f, jnp.ones(2))) == captured(Exact(f, jnp.zeros(2)))


def test_large_arrays_are_compared_quickly():
    large = np.ones(2_500_000)
    f = lambda x: jnp.sum((x - large[:2]) ** 2)
    begun = time.perf_counter()
    captured(f)
    # 20 MB.
    assert time.perf_counter() - begun < 1.0

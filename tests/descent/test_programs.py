"""What a function captures may change between two runs: the second run sees it."""

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from thalweg.descent import Steps, Zero, minimize
from thalweg.descent.iteration import objective
from thalweg.descent.programs import compiled
from thalweg.oracles import Exact

shift = np.zeros(2)
settings = {"shift": 1.0}


def helper(x):
    return x - 1.0


def with_globals(x):
    """A variable, a function and what a container holds."""
    return jnp.sum((helper(x) - shift - settings["shift"]) ** 2)


class Distance:
    def __init__(self, to):
        self.to = to

    def __call__(self, x):
        return jnp.sum((x - self.to) ** 2)

    def far(self, x):
        return self(x)


def solve(function, engine):
    """Minimise a sum of squares, for which one step suffices."""
    return minimize(function, np.zeros(2), step=0.5, steps=2, tol=Steps(2), engine=engine).x


def find(function):
    """Tell from its value at 0 where a sum of squares is least: held as every program of a run is, and far smaller."""
    oracle = function if isinstance(function, Exact) else Exact(function)
    return np.sqrt(compiled(objective, (oracle, Zero()))(np.zeros(2)) / 2)


def test_an_enclosed_array_that_is_replaced_or_written_to():
    replaced, written = jnp.asarray(np.ones(2)), np.ones(2)
    f = lambda x: jnp.sum((x - replaced - written) ** 2)
    np.testing.assert_allclose(find(f), 2.0)
    replaced = jnp.asarray(5 * np.ones(2))
    np.testing.assert_allclose(find(f), 6.0)
    written[:] = 7.0
    np.testing.assert_allclose(find(f), 12.0)


@pytest.mark.parametrize("engine", ["compiled", "host"])
def test_both_engines_see_an_array_that_was_written_to(engine):
    written = np.ones(2)
    f = lambda x: jnp.sum((x - written) ** 2)
    np.testing.assert_allclose(solve(f, engine), 1.0)
    written[:] = 7.0
    np.testing.assert_allclose(solve(f, engine), 7.0)


def test_globals_helpers_defaults_and_attributes(monkeypatch):
    np.testing.assert_allclose(find(with_globals), 2.0)
    monkeypatch.setitem(globals(), "shift", 2 * np.ones(2))
    np.testing.assert_allclose(find(with_globals), 4.0)
    monkeypatch.setitem(globals(), "helper", lambda x: x - 3.0)
    np.testing.assert_allclose(find(with_globals), 6.0)
    monkeypatch.setitem(settings, "shift", 4.0)
    np.testing.assert_allclose(find(with_globals), 9.0)

    distance = Distance(1.0)
    for function in (distance, distance.far):
        distance.to = 1.0
        np.testing.assert_allclose(find(function), 1.0)
        distance.to = 6.0
        np.testing.assert_allclose(find(function), 6.0)


class Curve(eqx.Module):
    scale: jax.Array

    def __call__(self, x):
        return self.scale * x


def filled(scale):
    return jnp.asarray(np.full(2, scale))


@pytest.mark.parametrize("make", [filled, lambda scale: Curve(filled(scale))], ids=["array", "module"])
def test_data_that_are_arguments_compile_nothing_anew(make):
    """Arrays, and modules that hold them, callable or not."""
    traces = []

    def f(x, data):
        traces.append(1)
        return jnp.sum((x - (data if isinstance(data, jax.Array) else data(1.0))) ** 2)

    np.testing.assert_allclose(find(Exact(f, make(1.0))), 1.0)
    traces.clear()
    np.testing.assert_allclose(find(Exact(f, make(2.0))), 2.0)
    assert traces == []


def test_an_array_captured_by_two_functions_may_change():
    """JAX converts float64 for float32 programs, and keeps the copy as long as a program that holds it lives."""
    with jax.enable_x64(False):
        written = np.ones(2)
        one, other = (lambda x: jnp.sum((x - written) ** 2)), (lambda x: jnp.sum((written - x) ** 2))
        for target in (1.0, 5.0):
            written[:] = target
            np.testing.assert_allclose(find(one), target)
            np.testing.assert_allclose(find(other), target)


def test_an_array_may_change_though_the_traceback_of_a_failed_run_is_held():
    """The traceback holds the engine, and the engine its program with the converted copy of the array."""
    with jax.enable_x64(False):
        written = np.ones(2)
        f = lambda x: jnp.sum((x - written) ** 2)

        def fail(snapshot):
            raise RuntimeError("held")

        with pytest.raises(RuntimeError, match="held") as held:
            minimize(f, np.zeros(2), step=0.5, steps=2, tol=Steps(2), engine="host", callback=fail)
        written[:] = 5.0
        np.testing.assert_allclose(solve(f, "host"), 5.0)
        assert held.traceback


def test_programs_of_others_stay_compiled():
    traces = []

    @jax.jit
    def of_others(x):
        traces.append(1)
        return x + 1

    of_others(np.ones(2))
    written = np.ones(2)
    f = lambda x: jnp.sum((x - written) ** 2)
    find(f)
    written[:] = 3.0
    np.testing.assert_allclose(find(f), 3.0)
    of_others(np.zeros(2))
    assert traces == [1]


def test_the_program_of_a_function_outlives_a_run_of_another():
    traced = itertools.count()

    def first(x, a):
        next(traced)
        return jnp.sum((x - a) ** 2)

    second = lambda x, a: jnp.sum((x - a) ** 4)
    run = lambda function: find(Exact(function, filled(1.0)))
    run(first)
    before = next(traced)
    run(second)
    run(first)
    assert next(traced) == before + 1

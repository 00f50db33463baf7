"""Compiling quickly: the same numbers, and no harm where XLA has other options."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from thalweg import compiling
from thalweg.descent import minimize


def test_options_that_xla_does_not_know_are_left_out():
    unknown, known = {"xla_option_of_another_day": 1}, {"xla_backend_optimization_level": 0}
    assert compiling.known_options(unknown) == {}
    assert compiling.known_options({**unknown, **known}) == known


def test_a_quick_function_is_the_same_function():
    wide = []

    def function(x):
        wide.append(x.shape)
        return jnp.linalg.cholesky(x @ x.T + jnp.eye(len(x)))

    quick = compiling.quick_jit(lambda x: len(x) < 10)(function)
    for rows in (5, 20, 5):
        x = np.random.default_rng(rows).normal(size=(rows, 3))
        np.testing.assert_allclose(quick(x), np.linalg.cholesky(x @ x.T + np.eye(rows)), rtol=1e-12, atol=1e-12)
    assert wide == [(5, 3), (20, 3)]


def test_minimize_hands_compiler_options_on():
    loss = lambda x: jnp.sum((x - 1.0) ** 4)
    quick = minimize(loss, jnp.zeros(3), step=0.05, steps=50, compiler_options=compiling.quick_options())
    x = np.zeros(3)
    for _ in range(50):
        x -= 0.05 * 4 * (x - 1) ** 3
    np.testing.assert_allclose(quick.x, x, rtol=1e-10)
    with pytest.raises(RuntimeError, match="xla_option_of_another_day"):
        minimize(loss, jnp.zeros(3), step=0.05, steps=50, compiler_options={"xla_option_of_another_day": 1})


def test_programs_are_made_beside_each_other_once_for_each_shape():
    traced = []

    def function(x, scale):
        traced.append((x.shape, x.dtype))
        return scale * jnp.sum(x)

    prepared = compiling.Prepared(function, lambda x, scale: len(x) < 10)
    sizes = (3, 20)
    for size in sizes:
        prepared.prepare(np.ones(size, np.float32), np.asarray(2.0, np.float32))
    with jax.enable_x64(True):
        prepared.prepare(np.ones(3), np.asarray(2.0))
        assert prepared(np.ones(3), np.asarray(2.0)).dtype == np.float64
    for size in (*sizes, 7):
        assert prepared(np.ones(size, np.float32), np.asarray(2.0, np.float32)) == 2 * size
    found = sorted((shape[0], str(kind)) for shape, kind in traced)
    assert found == [(3, "float32"), (3, "float64"), (7, "float32"), (20, "float32")]


def test_a_program_that_cannot_be_made_says_so_where_it_is_called():
    failing = [True]

    def function(x):
        if failing:
            raise ValueError("not today")
        return x

    prepared = compiling.Prepared(function, lambda x: True)
    prepared.prepare(np.ones(2, np.float32))
    with pytest.raises(ValueError, match="not today"):
        prepared(np.ones(2, np.float32))
    failing.clear()
    np.testing.assert_array_equal(prepared(np.ones(2, np.float32)), np.ones(2))

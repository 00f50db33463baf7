"""Traits, dtypes, transformations, and inputs at the edge of what floating point can hold."""

import itertools
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from thalweg.descent import terms as T

from .cases import CASES, PROX, ROWS, flatten, prox_and_values


def point_and_steps(case):
    rng = np.random.default_rng(0)
    return 2 * rng.normal(size=case.size), rng.uniform(0.1, 3.0, case.size)


@cache
def with_steps_of_their_own():
    """The prox of every separable case with a step for each coordinate: one program for all."""
    cases = [case for case in CASES if case.term.separable]
    trees = [tuple(map(case.tree, point_and_steps(case))) for case in cases]
    together = jax.jit(lambda terms, trees: [term.prox(*tree) for term, tree in zip(terms, trees, strict=True)])
    return dict(zip([case.name for case in cases], together([case.term for case in cases], trees), strict=True))


def test_separable_takes_a_step_for_each_coordinate(separable_case):
    x, steps = point_and_steps(separable_case)
    together = flatten(with_steps_of_their_own()[separable_case.name])
    alone = [separable_case.prox(x, step)[i] for i, step in enumerate(steps)]
    np.testing.assert_allclose(together, alone, rtol=1e-13, atol=1e-14)


def test_separable_means_that_coordinates_do_not_meet(separable_case):
    case, rng = separable_case, np.random.default_rng(1)
    x = 2 * rng.normal(size=case.size)
    moved = x.copy()
    moved[0] += 1.0
    np.testing.assert_array_equal(case.prox(x, 0.5)[1:], case.prox(moved, 0.5)[1:])


def test_coupled_refuses_a_tree_of_steps(coupled_case):
    x = coupled_case.tree(np.ones(coupled_case.size))
    with pytest.raises(ValueError, match="is not separable: step must be a scalar, found"):
        coupled_case.term.prox(x, jax.tree.map(jnp.ones_like, x))


@jax.jit
def all_at_once(terms, points, step):
    proxes = [term.prox(x, step) for term, x in zip(terms, points, strict=True)]
    return [(p, term.value(p)) for term, p in zip(terms, proxes, strict=True)]


@cache
def in_float32(draw, step):
    """The prox of every case at a point drawn for its size, and the value there: one program for all."""
    points = [case.tree(draw(case.size), np.float32) for case in CASES]
    found = all_at_once([case.term for case in CASES], points, np.float64(step))
    return dict(zip([case.name for case in CASES], found, strict=True))


def normal_single(size):
    return np.random.default_rng(2).normal(size=size).astype(np.float32)


def test_float32_stays_float32_and_agrees(case):
    x = normal_single(case.size)
    single, value = in_float32(normal_single, 0.5)[case.name]
    assert {leaf.dtype for leaf in jax.tree.leaves(single)} == {jnp.dtype(jnp.float32)}
    np.testing.assert_allclose(flatten(single), case.prox(x, 0.5), rtol=0, atol=1e-5)
    assert value.dtype == jnp.float32
    np.testing.assert_allclose(value, case.h(case.prox(x, 0.5)), rtol=1e-5, atol=1e-5)


def test_mixed_dtypes_are_kept():
    x = {"a": np.ones((2, 2), np.float32), "b": np.ones(3)}
    terms = [
        T.Affine(np.ones((1, 7)), [1.0]),
        T.L1Ball(1.0),
        T.L2Ball(1.0),
        T.L2(1.0),
        T.GroupLasso({"a": 0, "b": 0}),
        T.L1(0.1),
        T.HalfSpace(1.0, 1.0),
        T.LInfBall(0.5),
    ]
    outs = jax.jit(lambda terms: [term.prox(x, 1.0) for term in terms])(terms)
    for term, out in zip(terms, outs, strict=True):
        assert (out["a"].dtype, out["b"].dtype) == (jnp.float32, jnp.float64), term


@pytest.mark.slow
def test_jit_and_vmap_agree(case):
    rng = np.random.default_rng(4)
    batch, steps = rng.normal(size=(3, case.size)), np.array([0.2, 1.0, 4.0])
    rows = jax.tree.map(np.asarray, ROWS(case.term, case.tree(batch), steps))
    for i, (x, step) in enumerate(zip(batch, steps, strict=True)):
        row = flatten(jax.tree.map(lambda leaf, i=i: leaf[i], rows))
        np.testing.assert_allclose(row, case.prox(x, step), rtol=0, atol=1e-13)


@pytest.mark.slow
def test_jit_and_eager_agree(case):
    """Every operation is compiled by itself, which takes long."""
    x = jax.tree.map(jnp.asarray, case.tree(np.random.default_rng(8).normal(size=case.size)))
    np.testing.assert_allclose(flatten(case.term.prox(x, 0.5)), flatten(PROX(case.term, x, 0.5)), rtol=0, atol=1e-13)


def noise(size):
    return np.random.default_rng(6).normal(size=size)


EXTREMES = {
    "zeros": np.zeros,
    "ones": np.ones,
    "huge": lambda size: 1e30 * noise(size),
    "all huge": lambda size: np.full(size, 1e30),
    "all huge and negative": lambda size: np.full(size, -1e30),
    "tiny": lambda size: 1e-30 * noise(size),
    "mixed": lambda size: noise(size) * 10.0 ** np.linspace(-30, 30, size),
}


@pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=["float32", "float64"])
def test_extremes_make_no_nan(case, dtype):
    for (name, draw), step in itertools.product(EXTREMES.items(), [0.0, 1e-30, 1.0, 1e30]):
        if dtype is np.float32:
            p, value = in_float32(draw, step)[case.name]
        else:
            p, value, _ = prox_and_values(case.term, case.tree(draw(case.size)), np.float64(step))
        assert np.isfinite(flatten(p)).all(), (name, step)
        assert not np.isnan(value), (name, step)
        if case.term.indicator:
            assert value == 0.0, (name, step, p)


def test_parameters_are_leaves(case):
    """A change of a weight, a bound or a radius must not recompile: no number may hide in the structure."""
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(case.term))
    if case.name not in ("Zero", "NonNegative", "PSDCone", "Rank"):
        assert jax.tree.leaves(case.term)


def test_a_path_of_weights_compiles_once():
    count = 0

    @jax.jit
    def prox(term, x):
        nonlocal count
        count += 1
        return term.prox(x, 1.0)

    for weight in (0.1, 1, np.float64(2.0)):
        prox(T.PerLeaf((T.L1(weight), T.Box(-weight, weight))), (np.ones(3), np.ones(3)))
    assert count == 1


def test_parameters_may_be_traced():
    x = np.array([3.0, -1.0, 0.2])
    make = {
        "L1": lambda s: T.L1(s),
        "Box": lambda s: T.Box(-s, s),
        "Simplex": lambda s: T.Simplex(s),
        "HalfSpace": lambda s: T.HalfSpace(s, s),
        "Affine": lambda s: T.Affine(np.ones((1, 3)), s[None]),
        "Scaled": lambda s: s * T.L1(1.0),
    }
    weights = np.array([0.5, 1.5])
    # The prox of a total variation takes long to compile.
    values = lambda s: {"TV": T.TotalVariation1D(s).value(x)}
    run = lambda s: {name: build(s).prox(x, 1.0) for name, build in make.items()} | values(s)
    slope = lambda w: jax.grad(lambda w: T.L1(w).prox(x, 1.0).sum())(w)
    traced, slopes = jax.jit(lambda weights: (jax.vmap(run)(weights), slope(weights[0])))(weights)
    together = jax.jit(lambda terms: {name: term.prox(x, 1.0) for name, term in terms.items()})
    np.testing.assert_allclose(traced.pop("TV"), weights * np.abs(np.diff(x)).sum())
    for i, weight in enumerate(weights):
        # What is made outside of jit is an argument, and known when it is checked.
        expected = together({name: build(weight) for name, build in make.items()})
        for name, wanted in expected.items():
            np.testing.assert_allclose(traced[name][i], wanted, atol=1e-14, err_msg=name)
    np.testing.assert_allclose(slopes, 0.0)  # one coordinate falls, one rises, one is 0


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64], ids=["float32", "float64"])
def test_simplex_and_l1_ball_are_feasible_at_size(dtype):
    """A hundred thousand coordinates of any magnitude: the sum is right to a few ulps."""
    eps = float(jnp.finfo(dtype).eps)
    for magnitude in (1e-6, 1e6):
        x = np.asarray(magnitude * np.random.default_rng(0).normal(size=100_000), dtype)
        p = np.asarray(PROX(T.Simplex(), x, 1.0))
        assert p.min() >= 0
        assert abs(p.sum(dtype=np.float64) - 1) <= 50 * eps
        assert np.abs(PROX(T.L1Ball(0.5), x, 1.0)).sum(dtype=np.float64) <= 0.5 * (1 + 50 * eps)


def test_works_in_a_scan():
    final, _ = jax.lax.scan(lambda x, _: (T.L1(0.1).prox(x, 1.0), None), jnp.asarray([1.0, -0.25]), None, length=5)
    np.testing.assert_allclose(final, [0.5, 0.0], atol=1e-15)
    assert final.dtype == jnp.float64


def test_flat_sets_are_feasible_from_afar():
    """The projection of a point ten orders of magnitude away is as feasible as that of a near one."""
    rng = np.random.default_rng(9)
    matrix, normal = rng.normal(size=(2, 6)), rng.normal(size=6)
    p = np.asarray(PROX(T.HalfSpace(normal, 0.3), jnp.asarray(1e10 * normal), 1.0))
    np.testing.assert_allclose(normal @ p, 0.3, atol=1e-14)
    p = np.asarray(PROX(T.Affine(matrix, [1.0, 2.0]), jnp.asarray(1e10 * matrix.sum(axis=0)), 1.0))
    np.testing.assert_allclose(matrix @ p, [1.0, 2.0], atol=1e-14)

"""CONVERGED is said where nothing worth it is left to gain, and no run ends worse than it began."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.optimize
import scipy.special

from thalweg.descent import (
    FISTA,
    L1,
    AdaptiveRestart,
    Backtracking,
    BarzilaiBorwein,
    Box,
    Bregman,
    BurgEntropy,
    L2Ball,
    Monotone,
    NegativeEntropy,
    NonNegative,
    PolyakRuppert,
    Simplex,
    Status,
    Suffix,
    Zero,
    minimize,
)
from thalweg.errors import IncompatiblePartsError
from thalweg.oracles import Exact


def short(oracle, x0, **options):
    """A run of a few hundred steps, by the engine that compiles less; the verdicts of both are the same."""
    return minimize(oracle, x0, engine="host", **options)


D = 6
TARGET = np.array([1.0, -2.0, 0.5, 3.0, -0.25, 1.5])


def valley(x, scales, target, constant):
    return 0.5 * jnp.sum(scales * (x - target) ** 2) + constant


def bowl(scales, target=1.0, constant=0.0, dtype=np.float64):
    """A valley whose numbers are arguments, so that tests with the same parts share a program."""
    scales, target = (np.broadcast_to(np.asarray(part, dtype), D) for part in (scales, target))
    return Exact(valley, jnp.asarray(scales), jnp.asarray(target), jnp.asarray(constant, dtype))


def squares(x, A, b):
    return 0.5 * jnp.sum((A @ x - b) ** 2)


def lasso_within(weight=0.0, bound=np.inf):
    """The L1 norm on a box: no term, the lasso and a box are one program."""
    return L1(weight) + Box(-bound, bound)


def optimum(scales, weight, bound):
    """Every coordinate on its own: the soft threshold, clipped."""
    return np.clip(np.sign(TARGET) * np.maximum(np.abs(TARGET) - weight / scales, 0), -bound, bound)


PROBLEMS = list(itertools.product([1.0, 1e3], [0.0, 1e3], [(0.0, np.inf), (0.4, np.inf), (0.0, 1.0)], [0.0, 7.0]))
"""Conditions, starts, terms and constants: 24 problems for each method and each dtype."""


@pytest.mark.parametrize(
    ("momentum", "dtype"),
    [
        pytest.param(None, np.float32, id="plain-float32", marks=pytest.mark.slow),
        pytest.param(None, np.float64, id="plain-float64"),
        pytest.param(AdaptiveRestart(), np.float32, id="accelerated-float32"),
        pytest.param(AdaptiveRestart(), np.float64, id="accelerated-float64", marks=pytest.mark.slow),
    ],
)
def test_converged_is_said_with_nothing_left_to_gain(momentum, dtype):
    eps = np.finfo(dtype).eps
    rtol, said = eps**0.5, 0
    for condition, start, (weight, bound), constant in PROBLEMS:
        scales = np.geomspace(1, condition, D)
        oracle, term = bowl(scales, TARGET, constant, dtype), lasso_within(weight, bound)
        result = minimize(oracle, np.full(D, start, dtype), term=term, momentum=momentum, steps=20_000)
        exact = lambda x: np.sum(scales * (x - TARGET) ** 2) / 2 + weight * np.abs(x).sum() + constant  # noqa: B023
        best, begun = exact(optimum(scales, weight, bound)), exact(np.clip(np.full(D, start), -bound, bound))
        gap = exact(np.asarray(result.x, float)) - best
        assert gap <= begun - best + eps * begun
        if result.status is Status.CONVERGED:
            said += 1
            allowed = rtol**1.5 * best + rtol**2 * (begun - best) + 1e-12
            assert gap <= allowed, (condition, start, weight, bound, constant)
    # The rule does say so, mostly.
    assert said >= 0.7 * len(PROBLEMS)


def test_fun_is_the_objective_at_x():
    result = minimize(bowl(2.0, 3.0), np.zeros(D), term=lasso_within(2.0))
    assert result.fun == pytest.approx(5 * D)
    assert jax.tree.leaves(result.fun) == [result.fun]


@pytest.mark.parametrize("condition", [1e4, 1e6])
def test_variables_in_different_units_are_not_called_converged_where_the_small_one_has_not_moved(condition):
    """The values that the rule compares with are of earlier steps, when the steep direction made them large."""
    steep = bowl(2 * np.array([1, condition, 1, 1, 1, 1]))
    for stride in (None, 1):
        result = minimize(steep, np.zeros(D), term=lasso_within(), steps=500, stride=stride)
        assert not result.success or result.fun < 1e-3


@pytest.mark.parametrize("momentum", [None, FISTA(), AdaptiveRestart()], ids=["plain", "FISTA", "restarts"])
@pytest.mark.parametrize("start", [0.0, 1e3])
@pytest.mark.parametrize("condition", [1e8, pytest.param(1e10, marks=pytest.mark.slow)])
def test_flat_directions_beside_steep_ones_count_in_float32(condition, start, momentum):
    for scales in (np.geomspace(1, condition, D), np.geomspace(1, 1 / condition, D)):
        oracle = bowl(scales, TARGET, dtype=np.float32)
        term = lasso_within(bound=1.0)
        result = minimize(oracle, np.full(D, start, np.float32), term=term, momentum=momentum, steps=3000)
        exact = lambda x: np.sum(scales * (x - TARGET) ** 2) / 2  # noqa: B023
        best = exact(np.clip(TARGET, -1, 1))
        decrease, rtol = exact(np.clip(start, -1, 1)) - best, np.finfo(np.float32).eps ** 0.5
        gap = exact(np.asarray(result.x, float)) - best
        assert not result.success or gap <= rtol**1.5 * best + rtol**2 * decrease


def rosenbrock(x):
    return 100 * (x[1] - x[0] ** 2) ** 2 + (1 - x[0]) ** 2


@pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("start", [(-10.0, 10.0), (1000.0, 1000.0), (-1.2, 1.0)])
def test_a_narrow_valley_reached_from_afar_is_not_the_end(start, dtype):
    result = minimize(rosenbrock, np.asarray(start, dtype), steps=3000)
    assert result.status is not Status.CONVERGED or result.fun < 1e-9
    if result.status is Status.STAGNATED:
        assert np.dtype(dtype).name in result.message


def test_rounding_that_stops_a_run_is_no_success():
    result = minimize(rosenbrock, np.array([1000.0, 1000.0], np.float32))
    assert result.fun > 1
    assert not result.success
    assert result.status is not Status.STAGNATED or "float32" in result.message


def test_a_lasso_that_is_solved_to_rounding_has_converged():
    for seed in range(3):
        rng = np.random.default_rng(seed)
        a, x = rng.normal(size=(30, D)), rng.normal(size=D) * (rng.random(D) < 0.5)
        b = a @ x + 0.1 * rng.normal(size=30)
        result = short(Exact(squares, jnp.asarray(a), jnp.asarray(b)), np.zeros(D), term=L1(0.1))
        assert result.status is Status.CONVERGED
        correlation = a.T @ (b - a @ np.asarray(result.x))
        np.testing.assert_allclose(np.clip(correlation, -0.1, 0.1), correlation, rtol=0, atol=1e-4)


def test_a_feature_a_thousand_times_as_large_does_not_end_the_run():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 3)) * np.array([1000.0, 1.0, 1.0])
    y = np.sign(X[:, 1] + X[:, 0] / 1000 + rng.normal(size=60))
    loss = lambda w, X, y: jnp.sum(jnp.logaddexp(0.0, -y * (X @ w)))
    result = minimize(Exact(loss, jnp.asarray(X), jnp.asarray(y)), np.zeros(3), momentum=FISTA(), steps=3000)
    optimum = np.zeros(3)
    for _ in range(20):  # Newton's method
        p = scipy.special.expit(-y * (X @ optimum))
        optimum += np.linalg.solve((X.T * (p * (1 - p))) @ X, X.T @ (y * p))
    np.testing.assert_allclose(X.T @ (y * p), 0, atol=1e-9)
    assert result.status is not Status.CONVERGED or result.fun - np.sum(np.logaddexp(0, -y * (X @ optimum))) < 1e-8


@pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=["float32", "float64"])
def test_a_large_constant_does_not_lead_uphill(dtype):
    with jax.enable_x64(dtype is np.float64):
        result = short(bowl(2.0, constant=1e8, dtype=dtype), np.zeros(D, dtype))
    assert np.sum((np.asarray(result.x) - 1) ** 2) <= D
    if dtype is np.float32:
        assert result.status is Status.STAGNATED
        assert "float32" in result.message
    else:
        np.testing.assert_allclose(result.x, 1.0)


def test_the_unit_of_an_objective_does_not_keep_steps_short():
    """1e-12 of it: what a step of size 1 changes is far below the rounding of f."""
    with jax.enable_x64(False):
        result = short(bowl(2e-12 * np.array([1, 1, 2, 2, 5, 5]), dtype=np.float32), np.zeros(D, np.float32))
    assert result.status is Status.CONVERGED
    np.testing.assert_allclose(result.x, 1.0, atol=2e-3)


def test_an_objective_that_is_not_a_number_at_the_start_is_told_as_such():
    result = short(lambda x: jnp.sum(jnp.log(x)), -np.ones(2))
    assert result.status is Status.DIVERGED
    assert "The objective is nan at x0." in result.message


def test_sets_without_a_point_in_common_are_no_arrival():
    result = short(bowl(2.0, 2.0), np.zeros(D), term=Box(0.0, 1.0) + Box(2.0, 3.0))
    assert result.status is Status.DIVERGED
    assert "no point in common" in result.message


def test_an_objective_without_a_minimum_is_not_called_rounding():
    result = short(lambda x: -jnp.sum(x), np.zeros(3, np.float32), steps=30)
    assert not result.status.success
    assert "it may have no minimum" in result.message


def test_a_run_that_only_climbs_returns_its_start():
    result = short(bowl(2.0, 0.0), np.full(D, 0.1), step=1.01, steps=20)
    np.testing.assert_array_equal(result.x, 0.1)
    assert "worse than the start" in result.message


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_an_objective_that_comes_to_zero_ends_converged(dtype):
    a = 2**0.5 * np.random.default_rng(0).normal(size=(30, D))
    with jax.enable_x64(dtype is np.float64):
        oracle = Exact(squares, jnp.asarray(a, dtype), jnp.asarray(a @ np.ones(D), dtype))
        result = short(oracle, np.zeros(D, dtype))
    assert result.status is Status.CONVERGED
    np.testing.assert_allclose(result.x, 1, rtol=100 * np.finfo(dtype).eps)


def test_backtracking_grows_again():
    """Σ x − 3 log x from 0.01: the curvature there is 30,000, and 1/3 at the minimum."""
    result = short(lambda x: jnp.sum(x - 3 * jnp.log(x)), np.full(2, 0.01), step=Backtracking())
    assert result.status is Status.CONVERGED
    np.testing.assert_allclose(result.x, 3.0, rtol=1e-5)


METHODS = {
    "adam": ({"step": optax.adam(0.05), "steps": 300}, ["none"]),
    "lbfgs": ({"step": optax.lbfgs()}, ["none"]),
    "mean": ({"average": PolyakRuppert(), "steps": 300}, ["ball"]),
    "suffix": ({"average": Suffix()}, ["none", "positive"]),
    "secant": ({"step": BarzilaiBorwein()}, ["none", "positive", "ball"]),
    "entropy": ({"divergence": NegativeEntropy()}, ["simplex", "positive"]),
    "Burg": ({"divergence": BurgEntropy()}, ["positive"]),
    "far": ({"momentum": FISTA()}, ["simplex", "ball", "positive"]),
}
SETS = {"none": Zero(), "simplex": Simplex(), "positive": NonNegative(), "ball": L2Ball(1.5)}


def least_on(kind, scales, target):
    """The least of Σ s(x − t)²/2 on a set, for targets above 0: where the multiplier is the root of its equation."""
    points = {
        "simplex": lambda m: np.maximum(target - m / scales, 0),
        "ball": lambda m: scales * target / (scales + m),
    }
    if kind not in points:
        return 0.0
    size = {"simplex": np.sum, "ball": np.linalg.norm}[kind]
    radius = {"simplex": 1.0, "ball": 1.5}[kind]
    low, high = (-scales.max() if kind == "simplex" else 0.0), 1e6
    if size(points[kind](low)) <= radius:
        return 0.5 * np.sum(scales * (points[kind](low) - target) ** 2)
    multiplier = scipy.optimize.brentq(lambda m: size(points[kind](m)) - radius, low, high, xtol=1e-15, rtol=1e-15)
    return 0.5 * np.sum(scales * (points[kind](multiplier) - target) ** 2)


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=() if n in ("adam", "mean", "entropy", "Burg") else pytest.mark.slow) for n in METHODS],
)
def test_where_converged_is_said_the_optimum_is_reached(name):
    """Optax, averages, mirrors and far starts, in corners too."""
    options, sets = METHODS[name]
    rng = np.random.default_rng(0)
    for kind, condition in itertools.product(sets, [1.0, 1e3]):
        scales, target = rng.uniform(1, condition, D), np.abs(rng.normal(size=D)) + 0.1
        start = 10.0 ** -rng.uniform(0, 20, D) if name == "entropy" else np.abs(rng.normal(size=D)) * 1e3
        result = short(bowl(scales, target), start, term=SETS[kind], **{"steps": 700, **options})
        if result.status is Status.CONVERGED:
            least = least_on(kind, scales, target)
            assert result.fun - least <= 1e-8 * max(least, 1.0), (kind, condition)


@pytest.mark.parametrize("formula", ["short", "long"])
def test_a_run_that_ends_worse_than_it_began_is_no_success(formula):
    """Such steps leap about here, and the last bit decides where they end: most runs are lost, a few arrive."""
    flat = lambda x: jnp.sum(jnp.sqrt(1 + x**2))
    starts = [2.0, 8.0, 30.0]
    results = [short(flat, np.array([start]), step=BarzilaiBorwein(formula)) for start in starts]
    for start, result in zip(starts, results, strict=True):
        end = np.asarray(result.x)
        assert abs(end) < 1e-3 if result.success else end == start
    assert not all(result.success for result in results)


def least_squares(seed, condition, noise, dtype):
    """An oracle, the least value, and that at 0."""
    rng = np.random.default_rng(seed)
    left, right = (np.linalg.qr(rng.normal(size=(rows, 10)))[0] for rows in (30, 10))
    A = ((left * np.geomspace(1, condition**-0.5, 10)) @ right.T).astype(dtype)
    b = (A @ rng.normal(size=10) + noise * rng.normal(size=30)).astype(dtype)
    value = lambda x: 0.5 * np.sum((A.astype(float) @ x - b) ** 2)
    best = np.linalg.lstsq(A.astype(float), b.astype(float), rcond=None)[0]
    return Exact(squares, jnp.asarray(A), jnp.asarray(b)), value, value(best)


SIZES = {
    "secant": BarzilaiBorwein(),
    "short secant": BarzilaiBorwein("short"),
    "fading fast": lambda count: 0.9 ** count.astype(float),
    "fading slowly": lambda count: 0.99 ** count.astype(float),
    "nothing": 1e-25,
}


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("name", SIZES)
def test_sizes_that_vary_or_vanish_are_not_convergence(name, dtype):
    """36 least squares each (12 of steps that move nothing): β‖G‖² is small where β is, wherever that may be."""
    seeds = range(1 if name == "nothing" else 3)
    for condition, noise, seed in itertools.product([1e0, 1e2, 1e4, 1e6, 1e8, 1e10], [0.0, 0.1], seeds):
        oracle, value, best = least_squares(seed, condition, noise, dtype)
        result = minimize(oracle, np.zeros(10, dtype), step=SIZES[name], steps=3000)
        gap = (value(np.asarray(result.x, float)) - best) / (value(np.zeros(10)) - best)
        assert not result.success or gap <= np.finfo(dtype).eps ** 0.75, (condition, noise, seed, gap)


@pytest.mark.parametrize("scales", [np.geomspace(1, 1e4, D), np.geomspace(1, 1e-4, D)], ids=["steep", "flat"])
def test_a_start_outside_the_set_leaves_no_allowance_behind(scales):
    """f = 5e9 out there is no reason to let the objective rise by thousands inside."""
    oracle = bowl(scales, TARGET, 7.0, np.float32)
    result = short(oracle, np.full(D, 1e3, np.float32), term=Box(-1.0, 1.0), step=Monotone(), steps=1000)
    best = np.sum(scales * (np.clip(TARGET, -1, 1) - TARGET) ** 2) / 2 + 7.0
    assert not result.success or result.fun <= (1 + 1e-5) * best


def test_a_search_that_compares_objectives_refuses_to_begin_outside_the_set():
    with pytest.raises(IncompatiblePartsError, match="infinite"):
        minimize(jnp.sum, jnp.zeros(2), term=Box(-1.0, 1.0), step=Monotone(), momentum=FISTA())


HYPERBOLIC = Bregman(lambda x: jnp.sum(jnp.cosh(x)), inverse=jnp.arcsinh)


@pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=["float32", "float64"])
def test_a_divergence_of_ones_own_keeps_its_digits(dtype):
    """D of points near one another is less than the rounding of φ; a search that believes it cuts its sizes."""
    rng = np.random.default_rng(0)
    rng.normal(size=360)
    A, b = rng.normal(size=(30, 10)).astype(dtype), rng.normal(size=30).astype(dtype)
    oracle = Exact(squares, jnp.asarray(A), jnp.asarray(b))
    result = short(oracle, np.zeros(10, dtype), divergence=HYPERBOLIC, steps=3000)
    best = 0.5 * np.sum((A @ np.linalg.lstsq(A, b, rcond=None)[0] - b) ** 2)
    assert result.status is Status.CONVERGED
    assert result.fun <= best * (1 + 10 * np.finfo(dtype).eps)
    near, centre = np.asarray([2.0 + 1e-3], dtype), np.asarray([2.0], dtype)
    exact = np.cosh(float(near[0])) - np.cosh(2.0) - np.sinh(2.0) * (float(near[0]) - 2.0)
    assert float(jax.jit(HYPERBOLIC.value)(near, centre)) == pytest.approx(exact, rel=1e-3)


@pytest.mark.parametrize(
    "options", [{"divergence": HYPERBOLIC, "step": 1.0}, {"divergence": NegativeEntropy(), "step": 1e-25}]
)
def test_a_step_that_a_geometry_swallows_is_no_arrival(options):
    """Where cosh is 2e8 a step of float32 leaves x where it is, however steep f is."""
    oracle = bowl(2.0, constant=1e4, dtype=np.float32)
    result = short(oracle, np.full(D, 20.0, np.float32), **options)
    assert not result.success
    assert "too short" in result.message


def test_a_search_goes_on_until_a_geometry_lets_x_move():
    # Σ (x − 1)² + 10⁴, as least squares of the shape of those above.
    A, b = np.eye(30, 10, dtype=np.float32) * 2**0.5, np.repeat([2**0.5, 1000**0.5], [10, 20]).astype(np.float32)
    oracle = Exact(squares, jnp.asarray(A), jnp.asarray(b))
    result = short(oracle, np.full(10, 20.0, np.float32), divergence=HYPERBOLIC)
    np.testing.assert_allclose(result.x, 1.0, atol=0.1)


def in_units(unit, **options):
    """Least squares in some unit, from 1, in float32."""
    with jax.enable_x64(False):
        oracle = bowl(2 * unit * np.arange(1.0, D + 1), TARGET, dtype=np.float32)
        return short(oracle, np.ones(D, np.float32), **options)


@pytest.mark.parametrize("unit", [1e-30, *(pytest.param(u, marks=pytest.mark.slow) for u in (1e-20, 1e20)), 1e30])
@pytest.mark.parametrize("momentum", [None, FISTA()])
def test_a_function_in_other_units_has_its_minimum_found(unit, momentum):
    """Sizes ended at 1e-19 and 1e19 in float32: 1e20 f diverged at once, and 1e-30 f was CONVERGED where it began."""
    result = in_units(unit, momentum=momentum, steps=1000)
    assert result.status is not Status.DIVERGED
    np.testing.assert_allclose(result.x, TARGET, atol=1e-5 if unit > 1 else 1e-4)


@pytest.mark.parametrize("kind", ["long", "short"])
def test_secants_are_found_in_small_units(kind):
    result = in_units(1e-30, step=BarzilaiBorwein(kind))
    assert result.status is Status.CONVERGED
    np.testing.assert_allclose(result.x, TARGET, atol=1e-5)


@pytest.mark.parametrize("step", [1.0, Monotone(), optax.adam(0.01)], ids=["constant", "monotone", "adam"])
def test_steps_too_short_for_small_units_are_no_arrival(step):
    """The square of a slope of 1e-25 is 0 in float32; the slope is not."""
    assert not in_units(1e-25, step=step).success


def test_steps_too_short_for_one_coordinate_are_no_arrival():
    """Brown's badly scaled function: what a step would move the long coordinate by is lost to its rounding."""
    brown = lambda x: (x[0] - 1e6) ** 2 + (x[1] - 2e-6) ** 2 + (x[0] * x[1] - 2) ** 2
    result = short(Exact(brown), np.ones(2, np.float32), steps=500)
    assert abs(jax.grad(brown)(result.x)[0]) > 1e5
    assert result.status is Status.STAGNATED


def test_an_objective_whose_digits_underflow_says_so():
    result = in_units(1e-35, steps=500)
    assert not result.success
    assert "multiply it" in result.message


def mean_square(x, target, constant):
    return constant + jnp.mean((x - target) ** 2) / 2


def test_a_mean_over_a_million_numbers_has_its_minimum_found():
    """A step of 1 changed it by less than float32 holds, no longer one was tried, and 10,000 gained a hundredth."""
    target = np.random.default_rng(0).standard_normal(2**20).astype(np.float32)
    oracle = Exact(mean_square, jnp.asarray(target), jnp.float32(0.0))
    result = short(oracle, np.zeros_like(target), steps=100)
    assert result.status is Status.CONVERGED
    np.testing.assert_allclose(result.x, target, atol=1e-6)


@pytest.mark.parametrize("steps", [50, 1000])
def test_steps_that_rounding_keeps_short_are_told_with_the_way_out(steps):
    target = np.random.default_rng(0).standard_normal(2**12).astype(np.float32)
    high, low = (Exact(mean_square, jnp.asarray(target), jnp.float32(constant)) for constant in (1e4, 0.0))
    result = short(high, np.zeros_like(target), steps=steps)
    assert result.status is (Status.STEPS_SPENT if steps == 50 else Status.STAGNATED)
    assert "step=Backtracking(" in result.message
    longer = short(high, np.zeros_like(target), step=Backtracking(2**12), steps=steps)
    np.testing.assert_allclose(longer.x, target, atol=1e-6)
    assert "step=Backtracking(" not in short(low, np.zeros_like(target), steps=5).message

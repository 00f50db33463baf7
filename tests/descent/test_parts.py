"""Steps, momentum, averaging and stopping rules, each on its own."""

from functools import cache

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from thalweg import trees
from thalweg.descent import (
    FISTA,
    L1,
    AdaptiveRestart,
    Backtracking,
    BarzilaiBorwein,
    Constant,
    Descent,
    HeavyBall,
    InverseLipschitz,
    InverseTime,
    Last,
    Monotone,
    NegativeEntropy,
    Nesterov,
    Plateau,
    PolyakRuppert,
    Polynomial,
    Record,
    Schedule,
    Seconds,
    Simplex,
    Stagnation,
    Status,
    Steps,
    Suffix,
    Tolerance,
    Weighted,
    Work,
    minimize,
)

CURVATURES = np.array([1.0, 10.0, 100.0])
ONES = np.ones(3)


def quadratic(x):
    return 0.5 * jnp.sum(CURVATURES * x**2)


@eqx.filter_jit
def run_steps(descent, x, steps):
    """Return the iterate and the info of each step; methods that differ in their numbers alone share a program."""

    def step(state, key):
        state, info = descent.update(state, key)
        return state, (state.x, info)

    return jax.lax.scan(step, descent.init(x), jax.random.split(jax.random.key(0), steps))[1]


def sizes(step, steps=6, momentum=None):
    return np.asarray(run_steps(Descent(quadratic, step=step, momentum=momentum), ONES, steps)[1].size)


SCHEDULES = {
    "a number": (0.01, lambda k: 0.01),
    "constant": (Constant(0.01), lambda k: 0.01),
    "Lipschitz": (InverseLipschitz(100.0), lambda k: 0.01),
    "inverse time": (InverseTime(0.01), lambda k: 0.01 / (1 + k)),
    "inverse time, scaled": (InverseTime(0.01, scale=5.0), lambda k: 0.01 / (1 + k / 5)),
    "polynomial": (Polynomial(0.01, power=0.5), lambda k: 0.01 / np.sqrt(1 + k)),
    "a function": (Schedule(lambda k: 0.01 * 0.9 ** k.astype(float)), lambda k: 0.01 * 0.9**k),
}


@cache
def scheduled():
    """The sizes of six steps of every schedule, by one program."""
    descents = [Descent(quadratic, step=step) for step, _ in SCHEDULES.values()]
    together = eqx.filter_jit(lambda descents: [run_steps(descent, ONES, 6)[1].size for descent in descents])
    return dict(zip(SCHEDULES, together(descents), strict=True))


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules(name):
    np.testing.assert_allclose(scheduled()[name], [SCHEDULES[name][1](k) for k in range(6)], rtol=1e-12)


def test_an_optax_schedule_is_a_schedule():
    # Optax multiplies counts with numbers.
    with jax.numpy_dtype_promotion("standard"):
        found = sizes(optax.exponential_decay(0.01, 1, 0.5))
    # Optax computes its schedules in float32.
    np.testing.assert_allclose(found, 0.01 * 0.5 ** np.arange(6), rtol=1e-6)


@pytest.mark.parametrize("initial", [1e-6, 1.0, 1e6])
def test_backtracking_finds_its_size_from_any_guess_and_never_grows_where_theory_forbids(initial):
    found = sizes(Backtracking(initial, grow=1.0), steps=100)
    assert np.all(np.diff(found) <= 0)
    assert 0.5 / 100 <= found[-1] <= 2 / 1.0
    ahead = sizes(Backtracking(initial), steps=100, momentum=FISTA())
    assert np.all(np.diff(ahead) <= 0)
    result = minimize(quadratic, ONES, step=Backtracking(initial))
    assert result.status is Status.CONVERGED
    assert np.linalg.norm(result.x) < 1e-5


def test_backtracking_satisfies_its_inequality_in_a_bregman_geometry():
    cost = np.array([1.0, 0.2, 0.5])
    f = lambda x: x @ cost + 5 * (x**2).sum()
    descent = Descent(f, term=Simplex(), divergence=NegativeEntropy(), step=Backtracking())
    start = np.full(3, 1 / 3)
    points, info = jax.tree.map(np.asarray, run_steps(descent, start, 10))
    for before, x, size in zip([start, *points[:-1]], points, info.size, strict=True):
        model = f(before) + (cost + 10 * before) @ (x - before)
        model += np.sum(x * np.log(x / before) - x + before) / size
        assert f(x) <= model + 1e-12


@pytest.mark.parametrize("initial", [1e-6, 1.0, 1e6])
def test_monotone_lowers_the_objective_from_any_guess_and_grows_again(initial):
    term, x = L1(0.5), np.array([1.0, -2.0, 3.0])
    descent = Descent(quadratic, term=term, step=Monotone(initial, grow=1.5, shrink=0.5))
    _, info = run_steps(descent, x, 60)
    values = np.asarray([0.5 * CURVATURES @ x**2 + 0.5 * np.abs(x).sum(), *info.value])
    assert np.all(np.diff(values) <= 1e-12)
    assert values[-1] < 1e-10
    # With 1/L = 0.01 the objective still falls up to 2/L along the stiffest direction, and further once that is flat.
    assert np.max(info.size) > 0.01
    ratios = np.asarray(info.size)[1:] / np.asarray(info.size)[:-1]
    cuts = np.log(ratios / 1.5) / np.log(0.5)
    grown = np.isclose(ratios, 1.5)
    assert np.all(grown | np.isclose(cuts, np.round(cuts)) | np.isclose(np.log2(ratios), np.round(np.log2(ratios))))
    assert grown.any()


def test_monotone_counts_what_it_evaluates_and_gives_up_on_nan():
    result = minimize(quadratic, ONES, step=Monotone(1e3), steps=1, stride=1, engine="host")
    # One gradient, and one evaluation for every size tried on the way down.
    tried = 1 + np.log2(1e3 / float(result.history["size"][0]))
    assert result.work == pytest.approx(1 + tried)
    broken = minimize(lambda x: jnp.nan * jnp.sum(x), ONES, step=Monotone(), engine="host")
    assert broken.status is Status.DIVERGED


@pytest.mark.parametrize("kind", ["long", "short"])
def test_barzilai_borwein_is_the_secant_formula_and_beats_gradient_descent(kind):
    xs, info = jax.tree.map(np.asarray, run_steps(Descent(quadratic, step=BarzilaiBorwein(kind)), ONES, 60))
    xs = np.concatenate([ONES[None], xs])
    for k in range(1, 8):
        s, z = xs[k] - xs[k - 1], CURVATURES * (xs[k] - xs[k - 1])
        expected = s @ s / (s @ z) if kind == "long" else s @ z / (z @ z)
        assert info.size[k] == pytest.approx(expected, rel=1e-10)
    plain = (1 - CURVATURES * 2 / 101) ** 300
    assert info.value[-1] < 0.5 * CURVATURES @ plain**2


def test_adaptive_restart_turns_a_sublinear_rate_into_a_linear_one():
    f = lambda x: 0.5 * jnp.sum(np.linspace(1e-3, 1, 50) * x**2)
    run = lambda momentum: np.asarray(run_steps(Descent(f, step=1.0, momentum=momentum), np.ones(50), 3000)[1].value)
    plain, fista, restart = map(run, (None, FISTA(), AdaptiveRestart()))
    steps = lambda values, least: int(np.argmax(values < least)) if values.min() < least else 3000
    assert steps(restart, 1e-12) < steps(fista, 1e-12) / 2
    assert steps(restart, 1e-12) < steps(plain, 1e-12) / 10
    # Six further digits take as long as six of the first twelve did.
    assert steps(restart, 1e-18) < 1.5 * steps(restart, 1e-12)
    assert steps(fista, 1e-18) > 3 * steps(fista, 1e-12)


@pytest.mark.parametrize("momentum", [HeavyBall(0.5), Nesterov(), FISTA(), AdaptiveRestart(Nesterov(0.9))])
def test_momentum_needs_a_linear_geometry(momentum):
    with pytest.raises(TypeError, match=r"momentum=\w+ extrapolates.*Euclidean, DiagonalMetric, MatrixMetric"):
        Descent(quadratic, divergence=NegativeEntropy(), step=0.1, momentum=momentum)


@pytest.fixture(scope="module")
def averaged():
    """Feed the numbers 1 … 50 to each average; return what it says after each, compiled together."""
    averages = {"last": Last(), "plain": PolyakRuppert(), "one": Weighted(1), "three": Weighted(3), "suffix": Suffix()}
    averages["from the start"] = PolyakRuppert(start=True)

    def feed(states, x):
        states = {name: average.update(x, states[name]) for name, average in averages.items()}
        return states, {name: average.solution(x, states[name])[0] for name, average in averages.items()}

    start = lambda: {name: average.init(jnp.zeros(1)) for name, average in averages.items()}
    numbers = np.arange(1.0, 51.0)[:, None]
    return jax.tree.map(np.asarray, jax.jit(lambda: jax.lax.scan(feed, start(), numbers))()[1])


@pytest.mark.parametrize("count", [1, 2, 3, 7, 8, 9, 31, 50])
def test_averages_are_the_stated_means(averaged, count):
    k = np.arange(1, count + 1.0)
    found = {name: column[count - 1] for name, column in averaged.items()}
    assert found["last"] == count
    assert found["plain"] == pytest.approx(k.mean(), rel=1e-12)
    assert found["from the start"] == pytest.approx(np.r_[0, k].mean(), rel=1e-12)
    assert found["one"] == pytest.approx(np.average(k, weights=k), rel=1e-12)
    assert found["three"] == pytest.approx(np.average(k, weights=k * (k + 1) * (k + 2)), rel=1e-12)
    first = max(1, 2 ** int(np.log2(count)) // 2)
    assert found["suffix"] == pytest.approx(k[first - 1 :].mean(), rel=1e-12)
    if count > 8:
        assert 0.5 <= (count - first + 1) / count <= 0.8


@pytest.mark.parametrize("average", [PolyakRuppert(), PolyakRuppert(start=True), Weighted(), Suffix()])
def test_an_average_of_nothing_is_the_start(average):
    assert float(jax.jit(lambda x: average.solution(x, average.init(x)))(np.array([2.0]))[0]) == 2.0


def run_rule(rule, residuals=None, values=None, work=None, seconds=None, steps=None, dtype=float):
    """Feed records; return (index, status) of the first that stops, or None."""
    count = next(len(column) for column in (residuals, values, work, seconds, steps) if column is not None)
    pick = lambda column, default: np.asarray(default if column is None else column, dtype)
    columns = [
        pick(steps, np.arange(1, count + 1)).astype(np.int32),
        pick(values, np.full(count, np.nan)),
        pick(residuals, np.ones(count)),
        np.ones(count),
        pick(work, np.zeros(count)),
        pick(seconds, np.zeros(count)),
    ]
    if count <= 8:
        codes = codes_on_host(rule, columns)
    else:
        # Few lengths, so that few programs serve all: what comes after the records is not looked at.
        length = 400 if count <= 400 else 3000
        padded = [np.pad(column, (0, length - count), mode="edge") for column in columns]
        codes = np.asarray(all_codes(rule, Record(*padded)))[:count]
    stopped = np.flatnonzero(codes)
    return (int(stopped[0]), Status(int(codes[stopped[0]]))) if stopped.size else None


@eqx.filter_jit
def all_codes(rule, records):
    """What a rule says at each record."""
    state = trees.strongly_typed(rule.init())
    return jax.lax.scan(lambda state, record: rule.update(state, record), state, records)[1]


def codes_on_host(rule, columns):
    """What a rule says at each record, in NumPy, as the host engine asks it."""
    rule = jax.tree.map(np.asarray, rule)
    state, codes = rule.init(), []
    with np.errstate(all="ignore"):
        for numbers in zip(*columns, strict=True):
            state, code = rule.update(jax.tree.map(np.asarray, state), Record(*map(np.asarray, numbers)))
            codes.append(int(code))
    return codes


def test_tolerance_absolute_and_where_nothing_is_known():
    residuals = [1.0, 100.0, 1.0, 0.11, 0.09]
    assert run_rule(Tolerance(0.0, atol=0.5), residuals) == (3, Status.CONVERGED)
    assert run_rule(Tolerance(0.0), [1.0, 0.0]) == (1, Status.CONVERGED)
    assert run_rule(Tolerance(0.5), [np.inf, np.inf, np.nan]) is None
    assert run_rule(Tolerance(1e-3), [np.nan, np.inf, 1.0, -1.0, 0.0]) == (4, Status.CONVERGED)
    assert run_rule(Tolerance(1e-3, in_a_row=3), [1.0, 0.0, 1.0, 0.0, 0.0, 0.0]) == (5, Status.CONVERGED)


def test_tolerance_tells_a_fall_from_a_far_start_and_a_flat_floor():
    k = np.arange(400)
    falling = 0.8**k
    index, status = run_rule(Tolerance(1e-6), falling)
    assert status is Status.CONVERGED
    # The square of the residual goes with the gain that is left.
    assert 1e-20 < falling[index] ** 2 < 1e-12
    assert run_rule(Tolerance(1e-3), falling)[0] < index < run_rule(Tolerance(), falling)[0]
    # A start twenty orders of magnitude above a valley: its scale says nothing there.
    for noise in (0.0, 0.3):
        floor = 1 + noise * np.sin(7.0 * k)
        assert run_rule(Tolerance(1e-3), np.where(k < 5, 1e20, floor), values=np.ones(400)) is None
    # Slow methods end where what is left is a small share of the objective.
    slow = 1 / (k + 1.0) ** 3
    assert run_rule(Tolerance(1e-5), slow) is None
    assert run_rule(Tolerance(1e-5), slow, values=1 + slow)[1] is Status.CONVERGED


def test_tolerance_follows_the_dtype():
    k = np.arange(400)
    ends = [run_rule(rule, 0.8**k, dtype=kind)[0] for rule, kind in ((Tolerance(), np.float32), (Tolerance(), float))]
    assert ends[0] < ends[1] / 1.5


def test_stagnation_tells_rounding_from_progress():
    k = np.arange(3000)
    falling = 0.98**k
    assert run_rule(Stagnation(), falling, falling**2) is None
    # Rounding: the residual levels off and the value, relative to its size, is flat.
    index, status = run_rule(Stagnation(), np.maximum(falling, 1e-7), 1 + np.maximum(falling**2, 1e-15))
    assert status is Status.STAGNATED
    assert 800 < index < 3.5 * 800
    # Slow progress, ripples with a lucky dip, and divergence are none of it.
    slow = 1 / (k + 1.0)
    assert run_rule(Stagnation(), slow, slow) is None
    ripples = 0.999**k * (1e-6 + np.abs(np.sin(k / 200)))
    assert run_rule(Stagnation(), ripples, 1 + ripples**2) is None
    growing = 1.01**k
    assert run_rule(Stagnation(), growing, growing) is None
    # A cycle does not move on either, but its steps promise more than rounding; and without a value nothing is known.
    assert run_rule(Stagnation(), np.ones(3000), np.full(3000, 0.5)) is None
    assert run_rule(Stagnation(), np.maximum(falling, 1e-7)) is None
    # One record a window cannot tell a slow fall from a flat line.
    sparse = 1 + 1 / (k[::500] + 1.0)
    assert run_rule(Stagnation(), np.full(6, 1e-9), sparse, steps=k[::500] + 1) is None


def test_plateau_stops_at_the_noise_and_not_before():
    rng = np.random.default_rng(0)
    n = 2000
    noise = 0.1 * rng.normal(size=n)
    falling = 5.0 - 0.005 * np.arange(n)
    assert run_rule(Plateau(), values=falling + noise) is None
    levelled = np.maximum(falling, 2.5)
    index, status = run_rule(Plateau(), values=levelled + noise)
    assert status is Status.PLATEAU
    assert index >= 500
    # Without a value the residual is the criterion.
    assert run_rule(Plateau(), residuals=levelled + noise)[1] is Status.PLATEAU


def test_plateau_seldom_stops_a_run_that_improves_by_its_noise():
    """Improvement of one standard deviation per first window: false stops stay rare over many seeds."""
    stops = 0
    for seed in range(40):
        noise = np.random.default_rng(seed).normal(size=400)
        stops += run_rule(Plateau(), values=noise - np.arange(400) / 20) is not None
    assert stops <= 2


def test_budgets_and_their_combinations():
    assert run_rule(Steps(3), residuals=np.ones(5)) == (2, Status.STEPS_SPENT)
    assert run_rule(Work(10), work=[4, 8, 12]) == (2, Status.WORK_SPENT)
    assert run_rule(Seconds(1.5), seconds=[1, 2, 3]) == (1, Status.SECONDS_SPENT)
    either = Steps(4) | Tolerance(0.0, 0.1)
    assert run_rule(either, [1, 0.05, 1, 1]) == (1, Status.CONVERGED)
    assert run_rule(either, [1, 1, 1, 1]) == (3, Status.STEPS_SPENT)
    both = Tolerance(0.0, 0.1) & Steps(3)
    assert run_rule(both, [1, 0.05, 0.05, 1]) == (2, Status.CONVERGED)
    assert run_rule(both, [1, 0.05, 1, 1]) is None
    assert run_rule(Steps(2) & Work(1) | Seconds(9), residuals=np.ones(4), work=[0, 0, 1, 1]) == (
        2,
        Status.STEPS_SPENT,
    )


@pytest.mark.parametrize("status", list(Status))
def test_every_status_gives_advice(status):
    assert len(status.advice) > 20
    assert str(status) == status.name
    assert status.success == (status in (Status.CONVERGED, Status.PLATEAU))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Constant(0.0), "step must be a finite number above 0, found 0.0"),
        (lambda: Constant(np.nan), "step must be a finite number above 0, found nan"),
        (lambda: Constant(np.ones(2)), "step must be a finite number above 0, found array"),
        (lambda: InverseLipschitz(-1), "bound of InverseLipschitz must be a finite number above 0, found -1"),
        (lambda: Backtracking(shrink=1.5), "shrink of Backtracking must be a finite number above 0 below 1, found 1.5"),
        (
            lambda: BarzilaiBorwein("middling"),
            "kind of BarzilaiBorwein must be one of 'long', 'short', found 'middling'",
        ),
        (lambda: HeavyBall(1.0), "coefficient of HeavyBall must be a finite number of at least 0 below 1, found 1.0"),
        (lambda: Nesterov(-0.1), "coefficient of Nesterov must be"),
        (lambda: AdaptiveRestart("fista"), "momentum of AdaptiveRestart must be a Momentum, found 'fista'"),
        (lambda: Weighted(0), "power of Weighted must be a whole number of at least 1, found 0"),
        (lambda: Tolerance(-1e-3), "rtol of Tolerance must be a finite number of at least 0, found -0.001"),
        (lambda: Plateau(window=1), "window of Plateau must be a finite number of at least 2, found 1"),
        (lambda: Seconds("long"), "limit of Seconds must be a number of at least 0, found 'long'"),
    ],
)
def test_wrong_constructors(make, message):
    with pytest.raises((ValueError, TypeError), match=message):
        make()


def test_parameters_are_leaves_so_that_a_change_compiles_nothing():
    traces = 0

    @jax.jit
    def once(descent_parts):
        nonlocal traces
        traces += 1
        return descent_parts

    for weight in (0.1, 0.2):
        once((Constant(weight), HeavyBall(weight), L1(weight), Tolerance(weight)))
    assert traces == 1


def test_backtracking_does_not_collapse_in_rounding():
    """f falls to 0, so that rounding relative to f itself would fail the test at every size."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(50, 200)).astype(np.float32)
    y = X @ (rng.normal(size=200) * (rng.uniform(size=200) < 0.05)).astype(np.float32)
    f = lambda w: 0.5 * jnp.sum((X @ w - y) ** 2)
    start = np.zeros(200, np.float32)
    result = minimize(f, start, term=L1(0.01), momentum=FISTA(), tol=1e-5, steps=5000)
    assert result.status is not Status.DIVERGED
    assert result.history["size"][-1] > 0.1 / np.linalg.norm(X, 2) ** 2


def test_backtracking_where_the_function_is_nan_diverges_instead_of_standing_still():
    result = minimize(lambda x: jnp.sum(x**2) - jnp.sum(jnp.log(x)), -np.ones(2), engine="host")
    assert result.status is Status.DIVERGED
    np.testing.assert_array_equal(result.x, -np.ones(2))


def test_a_step_lost_to_rounding_is_not_convergence():
    result = minimize(quadratic, ONES, step=1e-17, steps=50, engine="host")
    assert result.status is Status.STEPS_SPENT
    half = minimize(lambda x: jnp.sum(x**2) / 2, np.full(3, 0.01, np.float16), step=0.01, steps=5, engine="host")
    assert half.status is Status.STEPS_SPENT


def test_schedules_that_are_none_are_refused_and_negative_ones_end_the_run():
    with pytest.raises(TypeError, match="step must be a schedule count -> size; calling it with a count failed"):
        Descent(quadratic, step=optax.adam)
    with pytest.raises(TypeError, match="step must be a schedule count -> size; it returned"):
        Descent(quadratic, step=lambda k: jnp.ones(3))
    climbing = minimize(quadratic, ONES, step=lambda k: -0.01, steps=20, engine="host")
    assert climbing.status is Status.DIVERGED
    with jax.numpy_dtype_promotion("standard"):  # Optax divides counts by counts
        schedule = optax.linear_schedule(0.0, 0.01, 10)
        warmed = minimize(quadratic, ONES, step=schedule, tol=1e-2, engine="host")
    assert warmed.status is Status.CONVERGED


def test_barzilai_borwein_is_refused_in_other_geometries():
    with pytest.raises(TypeError, match="step=BarzilaiBorwein measures in the Euclidean norm"):
        Descent(quadratic, divergence=NegativeEntropy(), step=BarzilaiBorwein())

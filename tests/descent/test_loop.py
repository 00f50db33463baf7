"""The loop: history, stopping, callbacks, resuming, divergence, interruption, precision, and bad input."""

import contextlib
import io

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from thalweg.descent import (
    FISTA,
    L1,
    Backtracking,
    Box,
    Descent,
    Euclidean,
    HeavyBall,
    NegativeEntropy,
    Nesterov,
    PerLeaf,
    PolyakRuppert,
    Rank,
    Seconds,
    Status,
    Steps,
    Tolerance,
    Work,
    Zero,
    as_optax,
    minimize,
)
from thalweg.errors import IncompatiblePartsError
from thalweg.oracles import SVRG, Exact, MiniBatch

rng = np.random.default_rng(0)
A, b = rng.normal(size=(40, 6)), rng.normal(size=40)
BOUND = float(np.linalg.norm(A, 2) ** 2)
SOLUTION = np.linalg.lstsq(A, b)[0]
ZEROS = np.zeros(6)


@pytest.fixture
def standard_promotion():
    """Optax multiplies counts with numbers and sums integers of two widths."""
    with jax.numpy_dtype_promotion("standard"):
        yield


def loss(x):
    return 0.5 * jnp.sum((A @ x - b) ** 2)


def squares(x, batch):
    """One function for all, so that what was compiled for it serves again."""
    return 0.5 * (batch[0] @ x - batch[1]) ** 2


def batches():
    return MiniBatch(squares, (A, b), 4)


def gradient_of_loss(x):
    return A.T @ (A @ x - b)


def stop(rtol=0.0, atol=0.0, steps=1e9):
    """One form of rule for most runs of a constant step, so that they share a program."""
    return Tolerance(rtol, atol) | Steps(steps)


def budget(work=np.inf, seconds=np.inf):
    """One form of rule for runs on batches, so that they share a program."""
    return Work(work) | Seconds(seconds)


def test_the_default_finds_the_minimum_by_itself():
    result = minimize(loss, ZEROS, engine="host")
    assert result.status is Status.CONVERGED
    assert result.success
    np.testing.assert_allclose(result.x, SOLUTION, rtol=1e-6)
    assert result.message.startswith(f"CONVERGED after {result.steps} steps.")
    assert result.work == result.history["work"][-1]


@pytest.mark.parametrize("momentum", [HeavyBall(0.5), FISTA()])
def test_a_ball_that_rolls_through_the_minimum_has_not_converged(momentum):
    """In one dimension the gradient vanishes as the ball passes; the residual must not."""
    f = lambda x: 0.5 * jnp.sum((x - 2.0) ** 2)
    result = minimize(f, jnp.zeros(1), term=L1(1.0), momentum=momentum, step=1.0, engine="host")
    assert result.status is Status.CONVERGED
    np.testing.assert_allclose(result.x, 1.0, atol=1e-7)


def test_any_pytree_and_per_leaf_terms():
    f = lambda x: 0.5 * jnp.sum((A @ x["w"] + x["c"][0] - b) ** 2)
    x0 = {"w": ZEROS, "c": (np.zeros(()),)}
    term = PerLeaf({"w": L1(8.0), "c": Zero()})
    result = minimize(f, x0, term=term, momentum=FISTA(), engine="host")
    assert result.success
    w = np.asarray(result.x["w"])
    errors = A @ w + float(result.x["c"][0]) - b
    assert abs(np.sum(errors)) < 1e-5
    assert np.all(np.abs(A.T @ errors) <= 8.0 + 1e-5)
    assert 0 < np.sum(w == 0) < 6


def test_history_at_a_stride_and_as_a_table():
    result = minimize(loss, ZEROS, step=0.5 / BOUND, steps=100, stride=7, tol=stop())
    steps = result.history["step"]
    np.testing.assert_array_equal(steps, [*range(7, 100, 7), 100])
    columns = dict(result.history)
    assert set(columns) == {"step", "value", "residual", "size", "work", "seconds"}
    assert all(len(column) == len(steps) for column in columns.values())
    rounding = 4 * np.finfo(float).eps * columns["value"][0]
    assert np.all(np.diff(columns["value"]) <= rounding)
    assert np.all(np.diff(columns["seconds"]) >= 0)
    np.testing.assert_array_equal(columns["work"], steps)
    text = result.history.table(rows=4)
    assert len(text.splitlines()) == 5
    # The value is that of the recorded iterate, and the residual that of the step that led there.
    x = ZEROS
    for k in range(1, 101):
        g = gradient_of_loss(x)
        x = x - 0.5 / BOUND * g
        if k in steps:
            i = list(steps).index(k)
            assert columns["value"][i] == pytest.approx(np.sum((A @ x - b) ** 2) / 2, rel=1e-10)
            assert columns["residual"][i] == pytest.approx(np.linalg.norm(g), rel=1e-8)


def test_records_thin_out_by_default():
    result = minimize(loss, ZEROS, step=0.1 / BOUND, steps=20_000, tol=stop())
    steps = result.history["step"]
    np.testing.assert_array_equal(steps[:3], [1, 11, 21])
    assert len(steps) < 300
    assert np.all(np.diff(steps)[:-1] <= np.maximum(20, 1 + steps[:-2] / 32))
    # Short runs are stopped at the very step: the rule looks more often than records are kept.
    exact = minimize(loss, ZEROS, step=1 / BOUND, tol=stop(atol=0.1), stride=1)
    assert minimize(loss, ZEROS, step=1 / BOUND, tol=stop(atol=0.1)).steps == exact.steps < 32


def test_where_a_run_is_cut_into_chunks_does_not_show():
    """Chunks end by the clock, or with each record where a callback looks: records and stops must not depend on it."""
    options = {"momentum": FISTA(), "term": L1(0.1), "steps": 3000, "tol": 1e-15}
    by_clock = minimize(loss, ZEROS, **options)
    by_record = minimize(loss, ZEROS, callback=lambda snapshot: None, **options)
    for name in ("step", "value", "residual", "work"):
        np.testing.assert_array_equal(by_clock.history[name], by_record.history[name])
    assert by_clock.steps == by_record.steps


def test_history_of_a_stochastic_oracle_averages_its_estimates():
    oracle = batches()
    result = minimize(oracle, ZEROS, step=0.01, steps=60, stride=20, tol=budget(), key=jax.random.key(1))
    descent = Descent(oracle, step=0.01)
    update = lambda state, k: descent.update(state, jax.random.fold_in(jax.random.key(1), k))
    state, info = jax.jit(lambda counts: jax.lax.scan(update, descent.init(ZEROS), counts))(np.arange(60))
    values = np.reshape(info.value, (3, 20)).mean(axis=1)
    np.testing.assert_allclose(result.history["value"], values, rtol=1e-10)
    np.testing.assert_allclose(result.x, state.x, rtol=1e-12)
    np.testing.assert_array_equal(result.history["work"], [80, 160, 240])


def test_a_guard_against_transfers_does_not_stop_a_run():
    with jax.transfer_guard("disallow"):
        assert minimize(loss, ZEROS).success


def test_the_same_key_gives_the_same_run_and_another_does_not():
    run = lambda seed: minimize(batches(), ZEROS, step=0.01, steps=200, tol=budget(), key=jax.random.key(seed)).x
    np.testing.assert_array_equal(run(1), run(1))
    assert not np.array_equal(run(1), run(2))


def test_nothing_is_compiled_twice_in_a_run_or_between_runs():
    traces = []

    def f(x, a):
        traces.append(1)
        return 0.5 * jnp.sum((a * x) ** 2)

    run = lambda a, beta: minimize(
        Exact(f, jnp.asarray(np.full(5, a))), np.ones(5), step=beta, steps=3000, stride=1, tol=Steps(1e9)
    )
    run(1.0, 0.1)
    traces.clear()
    run(2.0, 0.05)
    assert traces == []


def test_resuming_from_a_result_is_as_if_it_had_not_stopped():
    options = {"step": 0.01, "key": jax.random.key(3), "average": PolyakRuppert(), "engine": "host"}
    whole = minimize(SVRG(batches(), 7), ZEROS, steps=50, **options)
    half = minimize(SVRG(batches(), 7), ZEROS, steps=20, **options)
    assert half.status is Status.STEPS_SPENT
    rest = minimize(SVRG(batches(), 7), half, steps=30, **options)
    np.testing.assert_array_equal(whole.x, rest.x)
    assert rest.steps == 50
    assert rest.work == whole.work
    assert rest.history["step"][-1] == 50
    assert np.all(np.diff(rest.history["step"]) > 0)


def test_divergence_is_caught_with_its_step_and_the_better_start_is_returned():
    beta = 40 / BOUND
    result = minimize(loss, ZEROS, step=beta, steps=5000, tol=stop())
    assert result.status is Status.DIVERGED
    assert not result.success
    assert jnp.all(jnp.isfinite(result.x))
    x, k = np.zeros(6), 0
    while True:
        with np.errstate(all="ignore"):
            following = x - beta * gradient_of_loss(x)
        k += 1
        if not np.all(np.isfinite(following)):
            break
        x = following
    assert result.steps == k - 1
    assert f"Step {k} was the first to be NaN or infinite" in result.message
    assert not np.any(result.x)


def test_nan_from_the_function_itself_is_caught():
    f = lambda x: jnp.sum(jnp.sqrt(x))
    result = minimize(f, np.ones(2), step=0.3, steps=100, stride=50, tol=Steps(1e9), engine="host")
    assert result.status is Status.DIVERGED
    assert jnp.all(jnp.isfinite(result.x))


def test_float32_stops_by_itself_at_a_tolerance_it_cannot_reach():
    with jax.enable_x64(False):
        a, y = jnp.asarray(A, jnp.float32), jnp.asarray(b, jnp.float32)
        f = lambda x: 0.5 * jnp.sum((jnp.matmul(a, x, precision="highest") - y) ** 2)
        result = minimize(
            f, np.zeros(6, np.float32), step=1 / BOUND, momentum=FISTA(), tol=1e-14, steps=1_000_000, engine="host"
        )
    assert result.status is Status.STAGNATED
    assert result.steps < 20_000
    assert result.x.dtype == jnp.float32
    np.testing.assert_allclose(result.x, SOLUTION, rtol=1e-4)


def test_float32_leaves_stay_float32_among_float64():
    x0 = {"a": np.zeros(3, np.float32), "b": np.zeros(3)}
    f = lambda x: jnp.sum((x["a"] - 1) ** 2).astype(float) + jnp.sum((x["b"] - 2) ** 2)
    for momentum in (HeavyBall(0.5), FISTA()):
        parts = {"step": 0.1, "momentum": momentum, "term": L1(0.1), "average": PolyakRuppert()}
        result = minimize(f, x0, **parts, steps=50, engine="host")
        assert result.x["a"].dtype == jnp.float32
        assert result.x["b"].dtype == jnp.float64


def test_callback_sees_every_record_and_can_stop():
    seen = []

    def watch(snapshot):
        seen.append((snapshot.step, np.sum((A @ np.asarray(snapshot.x) - b) ** 2) / 2, snapshot.value))
        return snapshot.step >= 12

    result = minimize(loss, ZEROS, step=0.5 / BOUND, steps=100, stride=4, tol=stop(), callback=watch)
    assert result.status is Status.STOPPED_BY_CALLBACK
    assert [step for step, _, _ in seen] == [4, 8, 12]
    seen.clear()
    stopped = minimize(loss, ZEROS, step=0.5 / BOUND, tol=stop(steps=6), stride=3, callback=watch)
    assert [step for step, _, _ in seen] == [3, 6]
    assert stopped.status is Status.STEPS_SPENT
    for _, value, reported in seen:
        assert value == pytest.approx(reported, rel=1e-10)


def test_interruption_loses_nothing():
    def interrupt(snapshot):
        if snapshot.step == 6:
            raise KeyboardInterrupt

    options = {"step": 0.5 / BOUND, "stride": 3, "tol": stop()}
    result = minimize(loss, ZEROS, steps=30, callback=interrupt, **options)
    assert result.status is Status.INTERRUPTED
    assert result.steps == 6
    whole = minimize(loss, ZEROS, steps=30, **options)
    np.testing.assert_array_equal(minimize(loss, result, steps=24, **options).x, whole.x)


def test_progress_bar_shows_steps_rate_and_time_left():
    screen = io.StringIO()
    with contextlib.redirect_stdout(screen):
        minimize(loss, ZEROS, step=0.1 / BOUND, steps=500, tol=stop(), progress=True)
    assert "500/500" in screen.getvalue()
    assert "steps/s" in screen.getvalue()


def test_budgets_of_work_and_seconds():
    spent = minimize(batches(), ZEROS, tol=budget(work=400), stride=5, step=0.01, key=jax.random.key(0))
    assert spent.status is Status.WORK_SPENT
    assert 400 <= spent.work < 400 + 5 * 4
    # A chunk ends with each record, since a callback looks at it.
    looks = {"stride": 10_000, "callback": lambda snapshot: None, "steps": 10**8}
    timed = minimize(batches(), ZEROS, tol=budget(seconds=0.02), step=0.01, key=jax.random.key(0), **looks)
    assert timed.status is Status.SECONDS_SPENT
    assert timed.seconds < 20


def test_update_is_pure_and_can_be_scanned_vmapped_and_differentiated():
    descent = Descent(loss, step=0.5 / BOUND, momentum=Nesterov(), term=Box(-1.0, 1.0))
    starts = rng.normal(size=(4, 6))

    def run(x):
        keys = jax.random.split(jax.random.key(0), 20)
        return jax.lax.scan(descent.update, descent.init(x), keys)[0].x

    together = jax.jit(jax.vmap(run))(starts)
    summed = jax.jit(jax.value_and_grad(lambda x: jnp.sum(run(x))))
    for x, alone in zip(starts, together, strict=True):
        total, slope = summed(x)
        np.testing.assert_allclose(total, np.sum(alone), rtol=1e-12)
    assert np.all(np.isfinite(slope))
    assert np.any(np.asarray(slope) != 0)


def test_a_sweep_over_step_sizes_is_one_vmap():
    def final(beta):
        descent = Descent(loss, step=beta)
        keys = jax.random.split(jax.random.key(0), 30)
        return loss(jax.lax.scan(descent.update, descent.init(ZEROS), keys)[0].x)

    values = jax.jit(jax.vmap(final))(np.array([0.1, 0.5, 1.0]) / BOUND)
    assert np.all(np.diff(values) < 0)


class OtherTree(Exact):
    def estimate(self, x, state, key):
        out, state = super().estimate(x, state, key)
        return out._replace(gradient={"x": out.gradient}), state


class OtherShape(Exact):
    def estimate(self, x, state, key):
        out, state = super().estimate(x, state, key)
        return out._replace(gradient=out.gradient[:3]), state


NOISY = {"step": 0.1, "key": jax.random.key(0)}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: minimize(loss, np.zeros(7)), r"oracle=Exact failed at a point of x0's shape \(7,\)"),
        (
            lambda: minimize(lambda x: x if x > 0 else -x, 1.0),
            r"oracle=Exact failed at a point of x0's shape \(\): .*boolean conversion",
        ),
        (
            lambda: minimize(lambda x: x, np.zeros(3)),
            r"the function must return a scalar, found an array of shape \(3,\)",
        ),
        (lambda: minimize(loss, ZEROS, callback=3), "callback must be a function of a Snapshot, found 3"),
        (lambda: minimize(loss, ZEROS, steps=10**10), "steps must be a whole number from 1 to 2147483647"),
        (
            lambda: minimize(loss, ZEROS, key=jax.random.wrap_key_data(np.zeros((2, 2), np.uint32))),
            "key must be one JAX random key",
        ),
        (
            lambda: minimize(loss, minimize(loss, ZEROS, step=1.0, tol=stop(), steps=2), momentum=FISTA()),
            "x0 is the Result of a run with another",
        ),
        (lambda: minimize(loss, np.array([0, 1, np.nan, 0, 0, 0])), r"x0 must be finite, found nan at index \(2,\)"),
        (
            lambda: minimize(loss, {"w": np.full((2, 2), np.inf)}),
            r"x0\['w'\] must be finite, found inf at index \(0, 0\)",
        ),
        (lambda: minimize(loss, {}), "x0 holds no array"),
        (lambda: minimize(loss, "zero"), "x0 must be an array of numbers, found str"),
        (lambda: minimize(loss, np.zeros(6, complex)), "x0 must hold real numbers, found dtype complex128"),
        (lambda: minimize(loss, ZEROS, step=-0.1), "step must be a finite number above 0, found -0.1"),
        (lambda: minimize(loss, ZEROS, step="fast"), "step must be a number, a schedule .* found 'fast'"),
        (
            lambda: minimize(loss, ZEROS, step=Backtracking),
            "step must be an instance, found the class Backtracking",
        ),
        (
            lambda: minimize(loss, ZEROS, momentum="nesterof"),
            r"momentum must be a Momentum such as FISTA\(\), found 'nesterof'",
        ),
        (lambda: minimize(loss, ZEROS, average="mean"), "average must be an Averaging such as .*, found 'mean'"),
        (lambda: minimize(loss, ZEROS, term="l1"), "term must be a Term, found 'l1'"),
        (lambda: minimize(loss, ZEROS, term=Zero), r"term must be a Term, found .* call it first: Zero"),
        (lambda: minimize(loss, ZEROS, divergence="kl"), "divergence must be a Divergence, found 'kl'"),
        (lambda: minimize(loss, ZEROS, term=Box(np.zeros(3), np.ones(3))), "Box"),
        (lambda: minimize(3.0, ZEROS), "oracle must be an Oracle or a function x -> scalar, found float"),
        (lambda: minimize(OtherTree(loss), ZEROS), "oracle=OtherTree returned a gradient with the tree"),
        (
            lambda: minimize(OtherShape(loss), ZEROS),
            r"oracle=OtherShape returned a gradient of shape \(3,\) for x0, which has shape \(6,\)",
        ),
        (lambda: minimize(loss, ZEROS, steps=0), "steps must be a whole number from 1 to 2147483647, found 0"),
        (
            lambda: minimize(loss, ZEROS, steps=1.5),
            "steps must be a whole number from 1 to 2147483647, found 1.5",
        ),
        (
            lambda: minimize(loss, ZEROS, stride=-1),
            "stride must be a whole number from 1 to 2147483647, found -1",
        ),
        (lambda: minimize(loss, ZEROS, tol=-1.0), "tol must be a finite number of at least 0, found -1.0"),
        (
            lambda: minimize(loss, ZEROS, tol="tight"),
            "tol must be None, a number or a StoppingRule, found 'tight'",
        ),
        (lambda: minimize(loss, ZEROS, key=3), "key must be one JAX random key such as"),
        (lambda: minimize(batches(), ZEROS, step=0.1), "key must be given: oracle=MiniBatch is random"),
        (lambda: minimize(loss, ZEROS, checkpoint=3), "checkpoint must be a path or a Checkpoint, found int"),
    ],
)
def test_bad_input_is_named_before_the_first_step(call, message):
    with pytest.raises((ValueError, TypeError), match=message):
        call()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: minimize(batches(), ZEROS, key=jax.random.key(0)), "step must be given: oracle=MiniBatch"),
        (
            lambda: minimize(batches(), ZEROS, key=jax.random.key(0), step=Backtracking()),
            "step=Backtracking needs exact gradients",
        ),
        (lambda: minimize(batches(), ZEROS, tol=1e-6, **NOISY), "tol=1e-06 is compared with ‖G_k‖.*Plateau"),
        (
            lambda: minimize(loss, ZEROS, step=optax.adam(0.1), term=L1(1.0)),
            "step=OptaxStep adds an update of its own",
        ),
        (
            lambda: minimize(loss, np.ones(6), step=0.1, divergence=NegativeEntropy(), momentum=FISTA()),
            "momentum=FISTA extrapolates",
        ),
        (lambda: minimize(SVRG(batches(), 5), ZEROS, momentum=FISTA(), **NOISY), "LooplessSVRG"),
        (
            lambda: minimize(loss, np.zeros((2, 3)), step=0.1, term=Rank(1), average=PolyakRuppert()),
            "average=PolyakRuppert can leave the domain",
        ),
    ],
)
def test_parts_that_do_not_fit_are_refused_with_what_would(call, message):
    with pytest.raises(IncompatiblePartsError, match=message):
        call()


def optax_loop(optimiser, steps):
    """The plain loop that Optax's users write."""

    @jax.jit
    def step(params, state):
        updates, state = optimiser.update(jax.grad(loss)(params), state, params)
        return optax.apply_updates(params, updates), state

    params = ZEROS
    state = optimiser.init(params)
    for _ in range(steps):
        params, state = step(params, state)
    return params


OTHERS = "adagrad", "rmsprop", "adadelta"


@pytest.mark.parametrize("name", ["adam", *(pytest.param(n, marks=pytest.mark.slow) for n in OTHERS)])
def test_optax_optimisers_are_steps_iterate_by_iterate(standard_promotion, name):
    optimiser = getattr(optax, name)(0.1)
    ours = minimize(loss, ZEROS, step=optimiser, steps=30, tol=Steps(1e9), engine="host")
    params = optax_loop(optimiser, 30)
    np.testing.assert_allclose(ours.x, params, rtol=1e-9)
    assert np.all(np.isnan(ours.history["size"]))


def test_optax_line_search_gets_the_function_it_needs(standard_promotion):
    result = minimize(loss, ZEROS, step=optax.lbfgs(), engine="host")
    assert result.status is Status.CONVERGED
    np.testing.assert_allclose(result.x, SOLUTION, rtol=1e-5)


def test_a_descent_inside_an_optax_loop_takes_the_same_steps(standard_promotion):
    parts = {"step": 0.5 / BOUND, "term": L1(2.0), "momentum": HeavyBall(0.4)}
    transformation = optax.chain(optax.clip(1e6), as_optax(**parts))
    params = optax_loop(transformation, 25)
    ours = minimize(loss, ZEROS, steps=25, tol=Steps(1e9), engine="host", **parts)
    np.testing.assert_allclose(params, ours.x, rtol=1e-10, atol=1e-12)


def test_as_optax_refuses_what_optax_cannot_do():
    with pytest.raises(IncompatiblePartsError, match="momentum=FISTA takes the gradient away from the parameters"):
        as_optax(step=0.1, momentum=FISTA())
    with pytest.raises(IncompatiblePartsError, match="divergence=NegativeEntropy has no additive steps"):
        as_optax(step=0.1, divergence=NegativeEntropy())
    with pytest.raises(IncompatiblePartsError, match="step=Backtracking needs exact gradients"):
        as_optax(step=Backtracking(), divergence=Euclidean())
    transformation = as_optax(step=0.1)
    with pytest.raises(ValueError, match="params must be passed"):
        transformation.update(jnp.ones(2), transformation.init(jnp.ones(2)))


def test_tolerance_rules_can_be_passed_as_tol():
    result = minimize(loss, ZEROS, step=0.5 / BOUND, tol=Tolerance(1e-3, 0.0) | Steps(5), stride=1)
    assert result.steps <= 5


def test_resuming_takes_the_rule_along():
    options = {"step": 0.5 / BOUND, "tol": stop(1e-6), "stride": 1}
    whole = minimize(loss, ZEROS, **options)
    rest = minimize(loss, minimize(loss, ZEROS, steps=10, **options), **options)
    assert whole.status is rest.status is Status.CONVERGED
    assert whole.steps == rest.steps


def test_books_are_kept_in_more_than_half_precision():
    """1000 values of 1, the work of as many batches of 4 and of as many at a snapshot of 64, and 1000 iterates at 1."""
    kind = jnp.bfloat16
    oracle = SVRG(MiniBatch(lambda x, batch: 0 * batch * x + 1, np.ones(64, kind), 4), 1000)
    result = minimize(oracle, np.ones((), kind), step=0.1, steps=1001, stride=1000, key=jax.random.key(0))
    assert result.history["value"][0] == pytest.approx(1.0, rel=1e-3)
    assert result.history["work"][0] == 64 + 2 * 4000
    assert float(result.x) == 1.0


def test_an_optimiser_may_carry_a_random_key(standard_promotion):
    optimiser = optax.noisy_sgd(0.01, key=jax.random.key(0))
    assert minimize(loss, ZEROS, step=optimiser, steps=20, tol=Steps(1e9), engine="host").steps == 20


def test_a_line_search_without_a_function_is_refused(standard_promotion):
    with pytest.raises(IncompatiblePartsError, match="searches along a line"):
        minimize(batches(), ZEROS, step=optax.lbfgs(), key=jax.random.key(0))


def test_history_ends_where_a_diverging_run_was_last_finite():
    result = minimize(loss, ZEROS, step=40 / BOUND, steps=5000, stride=50, tol=stop())
    assert result.status is Status.DIVERGED
    assert result.history["step"][-1] <= result.steps


def test_svrg_does_not_converge_by_luck():
    a = rng.normal(size=40)
    oracle = MiniBatch(lambda x, batch: 0.5 * (batch[0] * x - batch[1]) ** 2, (a, 3 * a + b), 1)
    best = float(np.sum(a * (3 * a + b)) / np.sum(a**2))
    options = {"step": 0.05, "tol": 1e-4, "key": jax.random.key(0), "engine": "host"}
    result = minimize(SVRG(oracle, 80), np.zeros(()), **options)
    assert result.status is Status.CONVERGED
    assert abs(float(result.x) - best) < 0.01 * abs(best)

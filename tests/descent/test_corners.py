"""Corners of the optimiser that once gave a wrong word: each test is one of them."""

import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from thalweg.descent import (
    L1,
    L2,
    AdaptiveRestart,
    Affine,
    Box,
    GroupLasso,
    HalfSpace,
    Huber,
    L1Ball,
    L2Ball,
    LogBarrier,
    Monotone,
    Plateau,
    PolyakRuppert,
    Simplex,
    SquaredL2,
    Status,
    Steps,
    Suffix,
    TotalVariation1D,
    Weighted,
    minimize,
)
from thalweg.oracles import Exact, MiniBatch
from thalweg.runs import Run

SCALES = np.array([1.0, 10.0, 100.0])


def bowl(x):
    return 0.5 * jnp.sum(SCALES * (x - 1) ** 2)


@pytest.mark.parametrize(
    "step",
    [
        pytest.param(optax.adam(0.3), id="adam-0.3"),
        pytest.param(optax.rmsprop(0.3), id="rmsprop-0.3", marks=pytest.mark.slow),
        pytest.param(optax.rmsprop(0.05), id="rmsprop-0.05"),
        pytest.param(optax.sgd(0.006, momentum=0.9), id="momentum-0.006"),
        pytest.param(optax.sgd(0.001, momentum=0.9), id="momentum-0.001", marks=pytest.mark.slow),
    ],
)
def test_an_optax_step_says_converged_of_the_point_it_returns(step):
    result = minimize(bowl, np.full(3, 5.0), step=step, steps=3000, stride=1)
    slope = np.linalg.norm(SCALES * (np.asarray(result.x) - 1))
    np.testing.assert_allclose(slope, result.history["residual"][-1], rtol=1e-3, atol=1e-5)
    if result.status is Status.CONVERGED:
        assert slope < 1e-2


@pytest.mark.parametrize("average", [PolyakRuppert(), Weighted(2), Suffix()])
def test_an_average_says_converged_of_itself(average):
    result = minimize(bowl, np.full(3, 1e3), average=average, steps=400, engine="host")
    # The least value is 0.
    assert result.status is not Status.CONVERGED or result.fun <= 1e-7


def test_averages_of_half_precision_do_not_stand_still():
    points = {kind: np.repeat([1.0, 2.0], [1000, 3000])[:, None].astype(kind) for kind in (jnp.bfloat16, jnp.float16)}
    averages = {PolyakRuppert(): np.ones(4000), Weighted(2): np.arange(1, 4001.0) * np.arange(2, 4002.0)}
    averages[Suffix()] = np.arange(4000) >= 1023

    def run(average, points):
        feed = lambda state, x: (average.update(x, state), None)
        return average.solution(points[-1], jax.lax.scan(feed, average.init(points[0]), points)[0])

    found = jax.jit(lambda points: [[run(average, part) for average in averages] for part in points])
    for (kind, column), solutions in zip(points.items(), found(list(points.values())), strict=True):
        for (average, weights), solution in zip(averages.items(), solutions, strict=True):
            wanted = np.average(column[:, 0].astype(float), weights=weights)
            assert solution.dtype == kind, average
            assert float(solution[0]) == pytest.approx(wanted, rel=float(jnp.finfo(kind).eps)), average


# The first four, whose sums are long, are tested in half precision with the terms.
TERMS = [
    Simplex(),
    L1Ball(2.0),
    L2Ball(1.5),
    GroupLasso(np.arange(512) % 8, 0.3),
    L1(0.1),
    L2(0.5),
    SquaredL2(0.3),
    Huber(0.5),
    LogBarrier(0.1),
    HalfSpace(np.linspace(-1, 1, 512), 0.5),
    Box(-0.5, 0.25),
    TotalVariation1D(0.2),
]


@pytest.mark.parametrize("kind", [jnp.bfloat16, pytest.param(jnp.float16, marks=pytest.mark.slow)])
def test_terms_are_right_in_half_precision(kind):
    """One program for all of them."""
    x = np.random.default_rng(0).normal(size=512).astype(kind)
    both = jax.jit(lambda terms, *at: [[term.prox(x, np.asarray(1.0, x.dtype)) for x in at] for term in terms])
    atol = 8 * float(jnp.finfo(kind).eps) * np.abs(np.asarray(x, float)).max()
    for term, (found, wanted) in zip(TERMS[4:], both(TERMS[4:], x, x.astype(np.float32)), strict=True):
        assert found.dtype == kind, term
        np.testing.assert_allclose(np.asarray(found, float), wanted, atol=atol, err_msg=str(term))


def test_prox_refuses_complex_numbers_and_negative_steps_and_stays_traceable():
    for term in TERMS:
        with pytest.raises(TypeError, match="x must be an array of real floating numbers, found the dtype complex"):
            term.prox(np.ones(512, complex), 1.0)
        with pytest.raises(ValueError, match=r"step must be a number of at least 0, found -1\.0"):
            term.prox(np.ones(512), -1.0)
    together = jax.jit(jax.vmap(lambda x, step: L1(1.0).prox(x, step)))
    np.testing.assert_allclose(together(np.full((2, 3), 3.0), np.array([1.0, 2.0])), [[2.0] * 3, [1.0] * 3])


def tree_of(leaves):
    return {f"w{i}": np.linspace(-1, 1, 3 + i % 5) for i in range(leaves)}


def wavy(x):
    return sum(jnp.sum((jnp.tanh(leaf) - 0.3) ** 2) for leaf in x.values())


def test_a_default_step_traces_the_function_twice():
    calls = []

    def counted(x):
        calls.append(1)
        return wavy(x)

    minimize(counted, tree_of(2), steps=5, tol=Steps(5))
    # Once for the gradient, once for the search.
    assert len(calls) == 2


def test_many_leaves_are_as_few():
    # More than 16 are joined into one vector.
    result = minimize(wavy, tree_of(17), step=0.5, momentum=AdaptiveRestart(), steps=300, engine="host")
    assert result.status is Status.CONVERGED
    np.testing.assert_allclose(np.tanh(np.concatenate(list(result.x.values()))), 0.3, atol=1e-3)


@pytest.mark.slow
def test_a_hundred_leaves_compile_in_seconds():
    begun = time.process_time()
    minimize(wavy, tree_of(100), steps=5, compiler_options={"xla_embed_ir_in_executable": True})
    assert time.process_time() - begun < 8.0  # 4 alone, 6 where others keep the cores busy; it was 22


def _from(x, target):
    return jnp.sum((x - target) ** 2)


@pytest.mark.parametrize("total", [1e-3, 0.1, 5.0])
@pytest.mark.parametrize("momentum", [None, AdaptiveRestart()])
def test_affine_holds_whatever_size_a_search_finds(total, momentum):
    term = Affine(np.ones((1, 100)), [total])
    for target in (0.0, 3.0):
        oracle = Exact(_from, jnp.asarray(target, jnp.float32))
        start = np.zeros(100, np.float32)
        result = minimize(oracle, start, term=term, momentum=momentum, steps=200, engine="host")
        assert abs(np.asarray(result.x, float).sum() - total) < 1e-5 * total
        np.testing.assert_allclose(result.x, total / 100, rtol=1e-4)


def test_jit_of_minimize_says_what_to_do_instead():
    with pytest.raises(TypeError, match=r"minimize cannot be traced: .* call it outside, or trace Descent"):
        jax.jit(lambda x: minimize(bowl, x).x)(np.ones(3))
    with pytest.raises(TypeError, match="minimize cannot be traced"):
        jax.vmap(lambda a: minimize(Exact(lambda x, a: jnp.sum((x - a) ** 2), a), np.ones(3)).x)(np.ones((2, 3)))
    for engine in ("compiled", "host"):
        captures = lambda a, engine=engine: minimize(lambda x: jnp.sum((x - a) ** 2), np.ones(3), engine=engine).x
        for transformed in (jax.vmap(captures), jax.jacobian(captures)):
            with pytest.raises(TypeError, match=r"minimize cannot be traced: .* what a function captures"):
                transformed(np.ones(3))


class _Halved(Monotone):
    """A search that takes half of what it finds."""

    def take(self, move, state):
        taken = super().take(move, state)
        return taken._replace(x=move.reach(taken.size / 2), size=taken.size / 2, value=None)


def test_the_host_engine_honours_a_search_of_ones_own():
    runs = [
        minimize(bowl, np.zeros(3), step=_Halved(0.01, grow=1.0), steps=3, tol=Steps(3), engine=name)
        for name in ("host", "compiled")
    ]
    np.testing.assert_allclose(runs[0].x, runs[1].x, rtol=1e-6)
    np.testing.assert_allclose(runs[0].history["size"], 0.005)


def test_a_changed_array_is_noticed_by_a_new_function():
    b = np.ones(2)
    options = {"step": 0.5, "steps": 2, "tol": Steps(2), "engine": "host"}
    solve = lambda: minimize(lambda x: jnp.sum((x - b) ** 2), np.zeros(2), **options).x
    np.testing.assert_allclose(solve(), 1.0)
    b[:] = 5.0
    np.testing.assert_allclose(solve(), 5.0)


ROWS = np.random.default_rng(0).normal(size=(200, 3))
NOISY = MiniBatch(lambda x, rows: jnp.sum((x[None] - rows) ** 2, axis=-1), jnp.asarray(ROWS), 4)


def test_plateau_stops_at_the_same_place_whatever_the_stride():
    run = lambda stride: minimize(
        NOISY, np.full(3, 10.0), step=0.02, steps=30_000, stride=stride, tol=Plateau(), key=jax.random.key(0)
    )
    ends = {stride: run(stride) for stride in (1, 5, 20, None)}
    assert {result.status for result in ends.values()} == {Status.PLATEAU}
    # Within a window or two, each a quarter longer than the last.
    assert max(r.steps for r in ends.values()) < 1.6 * min(r.steps for r in ends.values())
    for result in ends.values():
        assert np.linalg.norm(result.x - ROWS.mean(0)) < 0.5


def test_runs_that_belong_together_show_one_bar(capsys):
    with Run("fit", bar=True):
        for start in (1.0, 2.0, 3.0):
            minimize(bowl, np.full(3, start), steps=20, engine="host")
    shown = [line for line in capsys.readouterr().out.splitlines() if "value" in line]
    assert len(shown) == 1
    assert shown[0].startswith("descent 3 ")
    minimize(bowl, np.zeros(3), steps=20, engine="host", progress=True)
    assert "descent 2" not in capsys.readouterr().out


def test_a_constant_has_nothing_to_gain():
    assert minimize(lambda x: 1.0, np.zeros(2), engine="host").status is Status.CONVERGED

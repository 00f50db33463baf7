"""The host engine: the iterates, records and verdicts of the compiled one, and every way to end."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from thalweg.descent import (
    L1,
    Backtracking,
    HeavyBall,
    Monotone,
    NuclearNorm,
    Plateau,
    PolyakRuppert,
    Stagnation,
    Status,
    Steps,
    StoppingRule,
    Tolerance,
    Work,
    minimize,
)
from thalweg.oracles import SVRG, Exact, MiniBatch

rng = np.random.default_rng(0)
A, B = rng.normal(size=(12, 4)), rng.normal(size=12)
LEAST_SQUARES = Exact(lambda x, a, b: 0.5 * jnp.sum((a @ x - b) ** 2), jnp.asarray(A), jnp.asarray(B))
BATCHES = MiniBatch(lambda x, data: (data[0] @ x - data[1]) ** 2, (A, B), batch_size=4)
START = np.zeros(4)

METHODS = {
    "monotone": {"oracle": LEAST_SQUARES, "step": Monotone(10.0), "term": L1(0.5)},
    "backtracking": {
        "oracle": LEAST_SQUARES,
        "step": Backtracking(1e-3),
        "average": PolyakRuppert(),
        "tol": Steps(1e9),
    },
    "momentum": {"oracle": LEAST_SQUARES, "step": 0.02, "momentum": HeavyBall(0.5)},
    "batches": {"oracle": BATCHES, "step": 0.01, "key": jax.random.key(0), "tol": Plateau(window=4)},
    "snapshots": {"oracle": SVRG(BATCHES, 7), "step": 0.01, "key": jax.random.key(0), "tol": Plateau(window=4)},
}


@pytest.mark.parametrize(
    ("method", "stride"),
    [
        *((name, None) for name in METHODS if name != "batches"),
        ("monotone", 4),
        # Snapshots are of batches, too.
        pytest.param("batches", None, marks=pytest.mark.slow),
        *(pytest.param(name, 4, marks=pytest.mark.slow) for name in list(METHODS)[1:]),
    ],
)
def test_iterates_records_and_verdict_are_those_of_the_compiled_engine(method, stride):
    run = lambda engine: minimize(x0=START, **METHODS[method], steps=90, stride=stride, engine=engine)
    compiled, host = run("compiled"), run("host")
    assert host.status is compiled.status
    assert (host.steps, host.work, host.message) == (compiled.steps, compiled.work, compiled.message)
    np.testing.assert_allclose(host.x, compiled.x, rtol=1e-9, atol=1e-12)
    for name in ("step", "work", "value", "size", "residual"):
        np.testing.assert_allclose(host.history[name], compiled.history[name], rtol=1e-6, atol=1e-12, err_msg=name)


METHOD = METHODS["monotone"]


def test_runs_are_taken_up_by_either_engine(tmp_path):
    """From a result, and from a checkpoint."""
    whole = minimize(x0=START, **METHOD, steps=20, stride=1, engine="host")
    for first, second in (("host", "compiled"), ("compiled", "host")):
        half = minimize(x0=START, **METHOD, steps=12, stride=1, engine=first)
        resumed = minimize(x0=half, **METHOD, steps=8, stride=1, engine=second)
        np.testing.assert_allclose(resumed.x, whole.x, rtol=1e-9)
        np.testing.assert_allclose(resumed.history["value"], whole.history["value"], rtol=1e-9)
        path = tmp_path / f"{first}.thalweg"
        minimize(x0=START, **METHOD, steps=12, stride=1, engine=first, checkpoint=path)
        found = minimize(x0=START, **METHOD, steps=20, stride=1, engine=second, checkpoint=path)
        np.testing.assert_allclose(found.x, whole.x, rtol=1e-9)


def test_a_tolerance_of_zero_ends_at_rounding():
    found = minimize(x0=START, **METHOD, steps=5000, tol=Tolerance(0.0) | Stagnation(), engine="host")
    assert found.status in (Status.STAGNATED, Status.CONVERGED)
    assert found.steps < 2000


def test_where_nothing_is_accepted_the_start_is_returned():
    nowhere_else = lambda x: jnp.where(x == 0.0, x, jnp.nan)
    found = minimize(nowhere_else, np.array(0.0), step=Monotone(), steps=10, engine="host")
    assert found.status is Status.DIVERGED
    assert (found.steps, float(found.x)) == (0, 0.0)
    assert "Step 1 was the first" in found.message


def test_a_run_that_diverges_keeps_the_last_finite_iterate():
    method = {**METHODS["momentum"], "step": 1e3}
    runs = [minimize(x0=START, **method, steps=200, engine=engine) for engine in ("host", "compiled")]
    assert runs[0].status is runs[1].status is Status.DIVERGED
    assert runs[0].steps == runs[1].steps
    np.testing.assert_allclose(runs[0].x, runs[1].x, rtol=1e-9)
    np.testing.assert_array_equal(runs[0].history["step"], runs[1].history["step"])


def test_callbacks_see_every_record_and_interruptions_keep_what_was_found():
    seen = []

    def impatient(snapshot):
        seen.append(snapshot.step)
        if snapshot.step == 3:
            raise KeyboardInterrupt

    found = minimize(x0=START, **METHOD, steps=9, stride=1, engine="host", callback=impatient)
    assert (found.status, found.steps, seen) == (Status.INTERRUPTED, 3, [1, 2, 3])
    stopped = minimize(x0=START, **METHOD, steps=9, stride=2, engine="host", callback=lambda snapshot: True)
    assert (stopped.status, stopped.steps) == (Status.STOPPED_BY_CALLBACK, 2)
    assert minimize(x0=START, **METHOD, steps=9, tol=Work(4), engine="host").status is Status.WORK_SPENT


def test_a_rule_of_ones_own_serves_both_engines():
    class Halved(StoppingRule):
        def update(self, state, record):
            return state, jnp.where(record.residual < 0.5, int(Status.CONVERGED), 0).astype(jnp.int32)

    runs = [minimize(x0=START, **METHOD, tol=Halved(), stride=1, engine=engine) for engine in ("host", "compiled")]
    assert runs[0].status is runs[1].status is Status.CONVERGED
    assert runs[0].steps == runs[1].steps


def test_the_engine_follows_the_cost_of_a_step():
    """The host engine shows its stopping rule numbers of NumPy, the compiled one traced numbers."""

    class Shown(Exception):
        pass

    class Watching(StoppingRule):
        def update(self, state, record):
            raise Shown(isinstance(record.value, np.ndarray))

    for side, term, on_host in ((3, NuclearNorm(), False), (200, NuclearNorm(), True), (200, L1(), False)):
        with pytest.raises(Shown, match=str(on_host)):
            minimize(lambda x: jnp.sum(x**2), np.zeros((2, side)), term=term, step=0.1, steps=1, tol=Watching())
    with pytest.raises(ValueError, match="engine must be one of 'compiled', 'host', found 'gpu'"):
        minimize(LEAST_SQUARES, START, engine="gpu")

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
    Plateau,
    PolyakRuppert,
    minimize,
)
from thalweg.oracles import SVRG, Exact, MiniBatch

rng = np.random.default_rng(0)
A, B = rng.normal(size=(12, 4)), rng.normal(size=12)
LEAST_SQUARES = Exact(lambda x, a, b: 0.5 * jnp.sum((a @ x - b) ** 2), jnp.asarray(A), jnp.asarray(B))
BATCHES = MiniBatch(lambda x, data: (data[0] @ x - data[1]) ** 2, (A, B), batch_size=4)
START = jnp.zeros(4)

METHODS = {
    "monotone": {"oracle": LEAST_SQUARES, "step": Monotone(10.0), "term": L1(0.5)},
    "backtracking": {"oracle": LEAST_SQUARES, "step": Backtracking(1e-3), "term": L1(0.5), "average": PolyakRuppert()},
    "momentum": {"oracle": LEAST_SQUARES, "step": 0.02, "momentum": HeavyBall(0.5)},
    "batches": {"oracle": BATCHES, "step": 0.01, "key": jax.random.key(0), "tol": Plateau(window=4)},
    "snapshots": {"oracle": SVRG(BATCHES, 7), "step": 0.01, "key": jax.random.key(0), "tol": 1e-3},
}


@pytest.mark.parametrize("stride", [None, 4])
@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_iterates_records_and_verdict_are_those_of_the_compiled_engine(method, stride):
    both = [minimize(x0=START, **method, steps=90, stride=stride, engine=engine) for engine in ("compiled", "host")]
    compiled, host = both
    assert host.status is compiled.status
    assert (host.steps, host.work, host.message) == (compiled.steps, compiled.work, compiled.message)
    np.testing.assert_allclose(host.x, compiled.x, rtol=1e-9, atol=1e-12)
    for name in ("step", "work", "value", "size", "residual"):
        np.testing.assert_allclose(host.history[name], compiled.history[name], rtol=1e-6, atol=1e-12, err_msg=name)

"""Corners of terms: NaN is passed on, half precision sums in float32, derivatives at zero are finite."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from thalweg.descent import HeavyBall, Monotone, Status, minimize
from thalweg.descent import terms as T
from thalweg.errors import IncompatiblePartsError


def test_a_barrier_does_not_swallow_nan():
    f = lambda x: jnp.sum(jnp.sqrt(x - 1.0))
    result = minimize(f, jnp.full(2, 1.5), term=T.LogBarrier(0.1), step=0.5, steps=50, engine="host")
    assert result.status is Status.DIVERGED


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_half_precision_is_as_good_as_its_rounding(dtype):
    x = np.asarray(jnp.asarray(np.random.default_rng(0).uniform(0.5, 1.0, 4000) / 50, dtype), np.float64)
    eps = float(jnp.finfo(dtype).eps)
    terms = {
        "simplex": T.Simplex(20.0),
        "l1": T.L1Ball(10.0),
        "l2": T.L2Ball(0.5),
        "groups": T.GroupLasso(np.zeros(4000, int), 0.3),
    }
    both = jax.jit(lambda *points: {name: [term.prox(x, 1.0) for x in points] for name, term in terms.items()})
    for name, (found, wanted) in both(jnp.asarray(x, dtype), x).items():
        assert found.dtype == dtype
        assert np.abs(np.asarray(found, np.float64) - wanted).max() <= 8 * eps * np.abs(x).max(), name


def test_derivatives_at_zero_are_finite():
    terms = T.L2(1.0), T.GroupLasso(np.array([0, 0, 1]), 1.0), T.L2Ball(1.0)
    both = lambda x, term: jnp.sum(term.prox(x, 0.5)) + term.value(x)
    for slope in jax.jit(lambda x: [jax.grad(both)(x, term) for term in terms])(jnp.zeros(3)):
        assert np.all(np.isfinite(slope))


def test_monotone_refuses_a_ball_that_rolls():
    with pytest.raises(IncompatiblePartsError, match="momentum=HeavyBall steps from elsewhere"):
        minimize(jnp.sum, jnp.zeros(2), step=Monotone(), momentum=HeavyBall(0.5))

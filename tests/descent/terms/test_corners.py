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
    result = minimize(f, np.full(2, 1.5), term=T.LogBarrier(0.1), step=0.5, steps=50, engine="host")
    assert result.status is Status.DIVERGED


SUMS = {
    "simplex": T.Simplex(20.0),
    "l1": T.L1Ball(10.0),
    "l2": T.L2Ball(0.5),
    "groups": T.GroupLasso(np.zeros(4000, int), 0.3),
}
PROXES_OF_SUMS = jax.jit(lambda x: {name: term.prox(x, 1.0) for name, term in SUMS.items()})


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_half_precision_is_as_good_as_its_rounding(dtype):
    x = (np.random.default_rng(0).uniform(0.5, 1.0, 4000) / 50).astype(dtype)
    found, wanted = PROXES_OF_SUMS(x), PROXES_OF_SUMS(x.astype(np.float64))
    atol = 8 * float(jnp.finfo(dtype).eps) * x.astype(np.float64).max()
    for name in SUMS:
        assert found[name].dtype == dtype
        assert np.abs(np.asarray(found[name], np.float64) - wanted[name]).max() <= atol, name


def test_derivatives_at_zero_are_finite():
    terms = T.L2(1.0), T.GroupLasso(np.array([0, 0, 1]), 1.0), T.L2Ball(1.0)
    both = lambda x, term: jnp.sum(term.prox(x, 0.5)) + term.value(x)
    for slope in jax.jit(lambda x: [jax.grad(both)(x, term) for term in terms])(np.zeros(3)):
        assert np.all(np.isfinite(slope))


def test_monotone_refuses_a_ball_that_rolls():
    with pytest.raises(IncompatiblePartsError, match="momentum=HeavyBall steps from elsewhere"):
        minimize(jnp.sum, np.zeros(2), step=Monotone(), momentum=HeavyBall(0.5))

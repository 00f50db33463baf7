"""Theorems 3 and 4 of Li and Póczos (2017): |f_t(x) − f*(x)|² falls as 1/t for θ/t with θλ in (1, 2).

CDSG is said to have the same rate. It has, as long as its steps along old blocks are no longer than γ.

Least squares with a Gaussian kernel on eight points: f* is kernel ridge regression, in closed form. One example and one
frequency a step, as in Algorithms 1, 3 and 4.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from thalweg.descent import Polynomial
from thalweg.kernels import Gaussian, RandomFeatures
from thalweg.machines import Batch, Checked, Frequencies, Machine, New, SquaredLoss, Uniform, empty
from thalweg.machines.expansion import evaluate
from thalweg.machines.functional_gradient import take

rng = np.random.default_rng(0)
ROWS, STEPS, SEEDS = 8, 320, 60
X = rng.normal(size=(ROWS, 2))
Y = np.sin(2 * X[:, :1])
RIDGE, THETA = 0.5, 3.0
KERNEL = Gaussian(jnp.asarray(1.0), jnp.asarray(1.0))
GRAM = np.asarray(KERNEL(jnp.asarray(X)))
WEIGHTS = np.linalg.solve(GRAM + ROWS * RIDGE * np.eye(ROWS), Y)
BEST = GRAM @ WEIGHTS
RULES = {"DSG": New(), "UDSG": Uniform(1, 1), "CDSG": Checked(stretch=1.0)}


def errors_of(rule):
    """Squared distances from f* at the points, (seeds, steps, rows), after each step."""

    @jax.jit
    def run(keys):
        def one(key):
            own, rows, steps = jax.random.split(key, 3)
            features = Frequencies(RandomFeatures(KERNEL, own, 2, 1))
            machine = Machine(features, SquaredLoss(), rule, Polynomial(THETA, power=1.0), jnp.asarray(RIDGE), False)
            start = empty(features, 2, 1, STEPS, jnp.float64)

            def step(expansion, given):
                index, key = given
                batch = Batch(jnp.asarray(X)[index][None], jnp.asarray(Y)[index][None], jnp.ones(1))
                expansion, _ = take(machine, expansion, batch, key)
                return expansion, evaluate(features, expansion, jnp.asarray(X))[:, 0]

            chosen = jax.random.randint(rows, (STEPS,), 0, ROWS)
            _, seen = jax.lax.scan(step, start, (chosen, jax.random.split(steps, STEPS)))
            return seen

        return jax.vmap(one)(keys)

    return (np.asarray(run(jax.random.split(jax.random.key(1), SEEDS))) - BEST[:, 0]) ** 2


def bound(largest_gradient, extra):
    """(2C² + 2κS²) of Theorems 3 and 4, with κ = φ = 1 for the unit features used here, and L = 1."""
    z = 2 * RIDGE * THETA - 1
    c = 4 * largest_gradient * THETA * np.sqrt(extra)
    q = np.sqrt(2) * c * THETA
    norm = np.sqrt((WEIGHTS.T @ GRAM @ WEIGHTS)[0, 0])
    s = max(norm, (q + np.sqrt(q**2 + z * (1 + THETA * RIDGE) ** 2 * THETA**2 * largest_gradient**2)) / z)
    return 2 * c**2 + 2 * s**2


@pytest.mark.slow
@pytest.mark.parametrize("name", RULES)
def test_the_error_falls_as_one_over_t(name):
    assert 1 < THETA * RIDGE < 2
    mean = errors_of(RULES[name]).mean(axis=0)
    steps = np.arange(1, STEPS + 1)
    # 1 + 2U/(G + U) + 2U²/(G(G + U)) + 2U(U − 1)/(Gt) with G = U = 1; DSG has U = 0, and CDSG its rate.
    extra = 3.0 if name == "UDSG" else 1.0
    assert np.all(mean.max(axis=1) <= bound(2.0, extra) / steps)
    average = mean.mean(axis=1)
    for early in (40, 80):
        assert 0.1 < average[4 * early - 1] / average[early - 1] < 0.5, (name, early)


@pytest.mark.slow
def test_the_expected_line_search_breaks_the_bound_before_it_converges():
    """Ten times γ is far too long here at first: f grows, and with it ℓ′, which the theorem takes to be at most M."""
    mean = errors_of(Checked(stretch=10.0)).mean(axis=0).max(axis=1)
    assert np.any(mean > bound(2.0, 1.0) / np.arange(1, STEPS + 1))
    assert mean[-1] < 0.1

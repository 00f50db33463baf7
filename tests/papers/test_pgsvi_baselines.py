"""The baselines (88) to (100) of PG-SVI's appendix G are ten plain lines of NumPy each, iterate by iterate."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from papers._baselines import EPSILON, optimizers
from papers._pgsvi import Settings
from thalweg.descent import Descent
from thalweg.oracles import Exact

STEPS = 12
# The rates of Table 1 that matter: α₀ is 1 nowhere, and 1 − ρ is neither tiny nor large.
SETTINGS = Settings(
    0.0, 0.0, 0.0, 1, 1, sgd=(0.3, 0.6), adagrad=0.5, rmsprop=(0.1, 0.8), adadelta=(0.3, 0.9), adam=0.2, pg_svi=1.0
)
HESSIAN = np.array([[3.0, 1.0, 0.0], [1.0, 2.0, 0.5], [0.0, 0.5, 1.0]])
START = np.array([2.0, -1.0, 0.5])


def gradients(x):
    return HESSIAN @ x + np.cos(x)


def gradient_descent(rate):
    """(88)."""
    x, path = START, []
    for _ in range(STEPS):
        x = x - rate * gradients(x)
        path.append(x)
    return path


def sgd():
    """(89), with α₀, which it omits and Table 1 has."""
    x, path, (rate, power) = START, [], SETTINGS.sgd
    for k in range(STEPS):
        x = x - rate * (k + 1.0) ** -power * gradients(x)
        path.append(x)
    return path


def adagrad():
    """(90), (91)."""
    x, s, path = START, 0, []
    for _ in range(STEPS):
        g = gradients(x)
        s = s + g * g
        x = x - SETTINGS.adagrad / np.sqrt(s + EPSILON) * g
        path.append(x)
    return path


def rmsprop():
    """(92), (93)."""
    x, s, path, (rate, rho) = START, 0, [], SETTINGS.rmsprop
    for _ in range(STEPS):
        g = gradients(x)
        s = rho * s + (1 - rho) * g * g
        x = x - rate / np.sqrt(s + EPSILON) * g
        path.append(x)
    return path


def adadelta():
    """(94), (95), (96)."""
    x, s, delta, path, (rate, rho) = START, 0, 0, [], SETTINGS.adadelta
    for _ in range(STEPS):
        g = gradients(x)
        s = rho * s + (1 - rho) * g * g
        step = rate * np.sqrt(delta + EPSILON) / np.sqrt(s + EPSILON) * g
        x = x - step
        delta = rho * delta + (1 - rho) * step * step
        path.append(x)
    return path


def adam(rho_mu=0.9, rho_s=0.999):
    """(97) to (100)."""
    x, mu, s, path = START, 0, 0, []
    for k in range(1, STEPS + 1):
        g = gradients(x)
        mu = rho_mu * mu + (1 - rho_mu) * g
        s = rho_s * s + (1 - rho_s) * g * g
        x = x - SETTINGS.adam / (np.sqrt(s / (1 - rho_s**k)) + EPSILON) * mu / (1 - rho_mu**k)
        path.append(x)
    return path


METHODS = {"GD": lambda: gradient_descent(0.2), "SGD": sgd, "AdaGrad": adagrad, "RMSprop": rmsprop}
METHODS |= {"Adadelta": adadelta, "Adam": adam}


def value(x):
    return x @ HESSIAN @ x / 2 + jnp.sum(jnp.sin(x))


@pytest.mark.parametrize("name", METHODS)
def test_a_baseline_is_its_formula(name):
    step = 0.2 if name == "GD" else optimizers(SETTINGS)[name]
    descent = Descent(Exact(value), step=step)

    @jax.jit
    def run(x, keys):
        def advance(state, key):
            state, _ = descent.update(state, key)
            return state, state.x

        return jax.lax.scan(advance, descent.init(x), keys)[1]

    # Optax promotes counts to floats.
    with jax.numpy_dtype_promotion("standard"):
        path = run(START, jax.random.split(jax.random.key(0), STEPS))
    np.testing.assert_allclose(path, METHODS[name](), rtol=1e-11, atol=1e-12)

"""
The lasso, with and without momentum
====================================

Least squares with an L1 term finds a sparse solution. Proximal gradient descent solves it; FISTA solves it in far fewer
steps; FISTA with adaptive restart loses the ripples. The three differ by one argument.
"""

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt

from thalweg.descent import FISTA, L1, AdaptiveRestart, minimize
from thalweg.oracles import Exact

# %%
# Two hundred noisy observations of a signal with five non-zero coefficients out of a hundred. The columns are
# correlated, which makes the problem harder for gradient descent.

keys = jax.random.split(jax.random.key(0), 3)
A = jax.random.normal(keys[0], (200, 100))
A = (A + 2 * jax.random.normal(keys[1], (200, 1))) / 2
support, values = jnp.array([3, 20, 41, 60, 88]), jnp.array([1.0, -2.0, 1.5, -1.0, 2.0])
truth = jnp.zeros(100).at[support].set(values)
b = A @ truth + 0.1 * jax.random.normal(keys[2], (200,))


def misfit(x, A, b):
    """Half the mean squared error."""
    return jnp.mean((A @ x - b) ** 2) / 2


# %%
# The step is 1/L, with L the largest eigenvalue of AᵀA/n. The run stops by itself at the precision of float32.

step = len(b) / jnp.linalg.norm(A, 2) ** 2
oracle = Exact(misfit, A, b)
methods = {
    "proximal gradient": None,
    "FISTA": FISTA(),
    "FISTA, restarted": AdaptiveRestart(FISTA()),
}
results = {}
for name, momentum in methods.items():
    result = minimize(oracle, jnp.zeros(100), term=L1(0.01), step=step, momentum=momentum, stride=1)
    results[name] = result
    print(f"{name:18} {result.status} after {result.steps} steps")

# %%
# On the left the residual ‖G_k‖, which is zero at the optimum and nowhere else; on the right the solution.

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
for name, result in results.items():
    left.semilogy(result.history["step"], result.history["residual"], label=name)
left.set(xlabel="step", ylabel="‖G_k‖")
left.legend()
right.stem(truth, linefmt="C7-", markerfmt="C7o", basefmt=" ", label="truth")
right.plot(results["FISTA, restarted"].x, "C2.", label="lasso")
right.set(xlabel="coefficient")
right.legend()
plt.show()

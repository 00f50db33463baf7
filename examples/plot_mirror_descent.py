"""
Mirror descent on the simplex
=============================

A zero-sum game: each player chooses a mixture of strategies. Against a column player who always answers best, the row
player minimises the largest expected loss, here smoothed a little so that it has a gradient. The mixture lives on the
simplex, and the entropy is the geometry that suits it. Projected descent is the same call with the default divergence.
"""

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt

from thalweg.descent import Euclidean, InverseLipschitz, NegativeEntropy, Simplex, minimize
from thalweg.oracles import Exact

strategies, smoothing = 1000, 0.1
losses = jax.random.uniform(jax.random.key(0), (strategies, 50), minval=-1.0)


def worst_case(mixture, losses):
    """The expected loss against the best answer, smoothed."""
    return smoothing * jax.nn.logsumexp(losses.T @ mixture / smoothing)


# %%
# The gradient's Lipschitz constant depends on the geometry. In the entropy's norms it is the square of the largest
# entry over the smoothing, whatever the number of strategies; in the Euclidean norm it is the square of the largest
# singular value over the smoothing, which grows with it. Hence the short Euclidean steps.

oracle = Exact(worst_case, losses)
start = jnp.full(strategies, 1 / strategies)
entropic = InverseLipschitz(jnp.max(jnp.abs(losses)) ** 2 / smoothing)
euclidean = InverseLipschitz(jnp.linalg.norm(losses, 2) ** 2 / smoothing)
methods = {
    "mirror descent (entropy)": (NegativeEntropy(), entropic),
    "projected descent (Euclidean)": (Euclidean(), euclidean),
}
results = {}
for name, (divergence, step) in methods.items():
    result = minimize(oracle, start, term=Simplex(), divergence=divergence, step=step, steps=2000)
    results[name] = result
    print(f"{name:30} {result.history['value'][-1]:.4f} after {result.steps} steps")

# %%
# Both stay on the simplex. The Euclidean steps are ahead at first, while all strategies still matter; the entropy
# shrinks the weight of a bad strategy by a factor and not by a summand, overtakes them and gets further.

figure, axes = plt.subplots(figsize=(6, 3.4), layout="constrained")
for name, result in results.items():
    axes.semilogx(result.history["step"], result.history["value"], label=name)
axes.set(xlabel="step", ylabel="smoothed worst case")
axes.legend()
plt.show()

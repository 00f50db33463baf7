"""
Noise that stays and noise that goes
====================================

A stochastic gradient with a constant step gets close to the optimum and then wanders around it. A decreasing step calms
it, slowly. SVRG corrects each batch by the same batch at a snapshot: its noise vanishes on the way, and the step can
stay as it is.
"""

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt

from thalweg.descent import InverseTime, SquaredL2, Work, minimize
from thalweg.oracles import SVRG, MiniBatch

# %%
# Ridge regression, whose optimum is known in closed form.

examples, size, ridge, batch = 2000, 20, 0.01, 10
keys = jax.random.split(jax.random.key(0), 3)
A = jax.random.normal(keys[0], (examples, size))
b = A @ jnp.arange(size) / size + 0.5 * jax.random.normal(keys[1], (examples,))
best = jnp.linalg.solve(A.T @ A / examples + ridge * jnp.eye(size), A.T @ b / examples)


def losses(x, batch):
    """One loss per example of the batch."""
    rows, values = batch
    return (rows @ x - values) ** 2 / 2


# %%
# The three runs see the same batches, and the same number of examples in all: fifty passes over the data. The callback
# looks at the distance to the optimum after each record.

batches = MiniBatch(losses, (A, b), batch_size=batch)
epoch = examples // batch
methods = {
    "SGD, constant step": (batches, 0.05),
    "SGD, 1/t step": (batches, InverseTime(0.05, scale=epoch)),
    "SVRG, constant step": (SVRG(batches, period=epoch), 0.05),
}
figure, axes = plt.subplots(figsize=(6, 3.4), layout="constrained")
for name, (oracle, step) in methods.items():
    seen = []

    def watch(at, seen=seen):
        seen.append((at.work / examples, float(jnp.linalg.norm(at.x - best))))

    minimize(
        oracle,
        jnp.zeros(size),
        term=SquaredL2(ridge),
        step=step,
        tol=Work(50 * examples),
        stride=epoch // 4,
        key=keys[2],
        callback=watch,
    )
    axes.semilogy(*zip(*seen, strict=True), label=name)
axes.set(xlabel="passes over the data", ylabel="distance to the optimum")
axes.legend()
plt.show()

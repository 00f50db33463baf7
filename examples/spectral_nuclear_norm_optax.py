"""The gradient of a nuclear norm in an Optax loop: denoise a low-rank matrix.

Minimise ½‖X − Y‖² + λ Σ_i √(σ_i(X)² + ε) over X (the smoothed nuclear norm of section 5.1 of the paper) by stochastic
gradient descent, with a fresh unbiased gradient of the norm at every step. The plan is made once: its interval holds
as long as the largest singular value does not grow beyond that of the data.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax

from thalweg.spectral import gram_operator, plan


def main(rows: int = 120, columns: int = 60, rank: int = 3, steps: int = 400) -> None:
    rng = np.random.default_rng(0)
    truth = rng.standard_normal((rows, rank)) @ rng.standard_normal((rank, columns)) / np.sqrt(rank)
    noisy = jnp.asarray(truth + 0.3 * rng.standard_normal((rows, columns)))
    weight, smoothing = 5.0, 1.0

    largest = float(jnp.linalg.norm(noisy, 2)) ** 2
    p = plan(
        jnp.sqrt,
        gram_operator(noisy, smoothing),
        jax.random.key(0),
        interval=(0.99 * smoothing, 1.5 * largest),
        gradient="series",
    )

    def objective(x, key):
        norm = p.estimate(gram_operator(x, smoothing), key).value
        return 0.5 * jnp.sum((x - noisy) ** 2) + weight * norm

    optimiser = optax.sgd(optax.exponential_decay(0.05, steps // 4, 0.4))

    @jax.jit
    def step(x, state, key):
        gradient = jax.grad(objective)(x, key)
        updates, state = optimiser.update(gradient, state)
        return optax.apply_updates(x, updates), state

    x, state = noisy, optimiser.init(noisy)
    for key in jax.random.split(jax.random.key(1), steps):
        x, state = step(x, state, key)
    before, after = (float(jnp.sqrt(jnp.mean((y - truth) ** 2))) for y in (noisy, x))
    print(f"root mean squared error: {before:.3f} before, {after:.3f} after")
    assert after < 0.75 * before


if __name__ == "__main__":
    main()

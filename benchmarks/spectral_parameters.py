"""The gradient of a log det with 300 parameters costs at most 1.3 × what it costs with 3."""

import benchmarks._one_core  # noqa: F401, I001

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks._common import ratio, report, side_by_side, table
from benchmarks._matrices import rbf
from thalweg.spectral import FunctionOperator, plan

D = 1500


def multiply(theta, kernel, block):
    # A(θ) = D(θ) K D(θ) + I, the scales of D piecewise constant over as many groups of rows as there are parameters.
    scales = jnp.repeat(jnp.exp(theta), D // theta.size, total_repeat_length=D)[:, None]
    return scales * (kernel @ (scales * block)) + block


def main() -> None:
    kernel = jnp.asarray(rbf(D, 0.2, 0.0))

    def contender(count):
        theta = jnp.zeros(count)
        operator = lambda t: FunctionOperator(multiply, t, kernel, dimension=D)
        p = plan("log", operator(theta), jax.random.key(0), degree=40, gradient="series", interval=(0.99, None))
        gradient = jax.jit(jax.grad(lambda t, key: p.estimate(operator(t), key).value))
        return lambda: gradient(theta, jax.random.key(1))

    seconds = side_by_side({"3": contender(3), "300": contender(300)}, repeats=9)
    table({"parameters": [3, 300], "seconds": [float(np.median(seconds[name])) for name in ("3", "300")]})
    figure = ratio(seconds, "300", "3")
    report("gradient with 300 parameters at most 1.3 x the time with 3", figure, figure <= 1.3, dimension=D)


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    main()

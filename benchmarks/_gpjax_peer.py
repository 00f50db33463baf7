"""GPJax's dual natural gradient at fixed hyper-parameters: run by gp_classifier in a process of its own.

Arguments: the data file, the step, the number of quadrature nodes and the optimum. The inducing inputs are all inputs;
the logit likelihood, the trapezoidal rule and the nugget (exactly jitter·I, also with duplicated rows) are subclasses.
"""

import importlib.metadata
import json
import sys
import time

import equinox as eqx
import gpjax
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions
from gpjax.integrators import AbstractIntegrator
from gpjax.natural_gradients import natural_gradient_step, partition_variational

VERSION = importlib.metadata.version("gpjax")


class Trapezoid(AbstractIntegrator):
    def __init__(self, nodes):
        self.places = np.linspace(-8, 8, nodes)

    def integrate(self, fun, y, mean, variance, likelihood):
        weights = np.exp(-(self.places**2) / 2)
        return jnp.sum(fun(mean + jnp.sqrt(variance) * self.places, y) * (weights / weights.sum()), axis=1)


class BernoulliLogit(gpjax.likelihoods.AbstractLikelihood):
    def link_function(self, f):
        return numpyro.distributions.BernoulliLogits(f)

    def predict(self, dist):
        raise NotImplementedError


class WithNugget(gpjax.kernels.RBF):
    nugget: float = eqx.field(static=True, default=0.0)

    def __init__(self, nugget, **parameters):
        super().__init__(**parameters)
        self.nugget = nugget

    def __call__(self, x, y):
        # The last feature is the index of the row.
        return super().__call__(x, y) + self.nugget * (x[-1] == y[-1])


def main(path, step, nodes, optimum):
    data = np.load(path)
    X, y = data["X"], data["y"]
    jnp.ones(3).sum().block_until_ready()  # starts the backend outside the clock
    began = time.perf_counter()
    rows = jnp.asarray(np.column_stack([X, np.arange(len(y))]))
    features = X.shape[1]
    kernel = WithNugget(
        float(data["jitter"]),
        active_dims=slice(0, features),
        lengthscale=float(data["lengthscale"]),
        variance=float(data["variance"]),
        n_dims=features,
    )
    prior = gpjax.gps.Prior(mean_function=gpjax.mean_functions.Zero(), kernel=kernel, jitter=1e-8)
    posterior = prior * BernoulliLogit(Trapezoid(nodes))
    q = gpjax.variational_families.DualVariationalGaussian(model=posterior, inducing_inputs=rows)
    train = gpjax.Dataset(X=rows, y=jnp.asarray(y[:, None]))
    variational, rest = partition_variational(q)
    loss = lambda model, batch: -gpjax.objectives.dual_elbo(model, batch)
    one = eqx.filter_jit(lambda v, rest, batch, rate: natural_gradient_step(v, rest, batch, loss, rate))
    for steps in range(200):
        # The loss is that before the step: what it says was reached when the step before it ended.
        before = time.perf_counter() - began
        variational, value = one(variational, rest, train, jnp.asarray(step))
        jax.block_until_ready(jax.tree.leaves(variational))
        if optimum + float(value) < 1e-3:
            return {"seconds": before, "steps": steps, "bound": -float(value), "version": VERSION}
    return {"seconds": None, "steps": steps, "bound": -float(value), "version": VERSION}


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    path, step, nodes, optimum = sys.argv[1:]
    print(json.dumps(main(path, float(step), int(nodes), float(optimum))))

"""GPflow's VGP by natural gradient at fixed hyper-parameters: run by gp_classifier with a Python that has GPflow.

Arguments: the data file, the step, the number of quadrature nodes, the optimum, and "eager" or "compiled". The logit
likelihood is a subclass (the built-in one overflows here), and the quadrature a trapezoidal rule where Gauss-Hermite
would not converge; both by the library's own extension points.
"""

import json
import os
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

import gpflow
import numpy as np
import tensorflow as tf


class BernoulliLogit(gpflow.likelihoods.ScalarLikelihood):
    def _scalar_log_prob(self, X, F, Y):
        return -tf.nn.softplus((1 - 2 * Y) * F)

    def _conditional_mean(self, X, F):
        return tf.sigmoid(F)

    def _conditional_variance(self, X, F):
        mean = tf.sigmoid(F)
        return mean * (1 - mean)


def main(path, step, nodes, optimum, mode):
    data = np.load(path)
    tf.reduce_sum(tf.ones(3, dtype=tf.float64)).numpy()  # starts the runtime outside the clock
    gpflow.config.set_default_jitter(float(data["jitter"]))
    began = time.perf_counter()
    quadrature = gpflow.quadrature.NDiagGHQuadrature(1, 2)
    places = np.linspace(-8, 8, nodes)
    weights = np.exp(-(places**2) / 2)
    quadrature.n_gh = quadrature.n_gh_total = nodes
    quadrature.Z = tf.constant(places[:, None])
    quadrature.dZ = tf.constant((weights / weights.sum())[:, None])
    kernel = gpflow.kernels.SquaredExponential(
        variance=float(data["variance"]), lengthscales=float(data["lengthscale"])
    )
    model = gpflow.models.VGP((data["X"], data["y"][:, None]), kernel, BernoulliLogit(quadrature=quadrature))
    gpflow.set_trainable(model, False)
    gpflow.set_trainable(model.q_mu, True)
    gpflow.set_trainable(model.q_sqrt, True)
    optimiser = gpflow.optimizers.NaturalGradient(gamma=step)

    def one():
        seen = []

        def closure():
            seen.append(model.training_loss())
            return seen[-1]

        optimiser.minimize(closure, [(model.q_mu, model.q_sqrt)])
        return seen[0]

    one = one if mode == "eager" else tf.function(one)
    for steps in range(200):
        # The loss is that before the step: what it says was reached when the step before it ended.
        before = time.perf_counter() - began
        bound = -float(one())
        if optimum - bound < 1e-3:
            return {"seconds": before, "steps": steps, "bound": bound, "version": gpflow.__version__}
    return {"seconds": None, "steps": steps, "bound": bound, "version": gpflow.__version__}


if __name__ == "__main__":
    path, step, nodes, optimum, mode = sys.argv[1:]
    print(json.dumps(main(path, float(step), int(nodes), float(optimum), mode)))

"""GP classification as in Khan et al. (2016): their data sets, settings and methods, and how a run is followed.

The settings are those of their Table 1 and appendix G; what the paper leaves out (the jitter, ε) is
taken from the code that its authors published, github.com/emtiyaz/prox-grad-svi.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import cho_solve, solve_triangular
from jaxtyping import Array, Float, Key, PyTree, Scalar
from sklearn.datasets import load_breast_cancer
from sklearn.preprocessing import StandardScaler

from thalweg import data
from thalweg.descent import Descent, Monotone, Tolerance, minimize
from thalweg.experiments._baselines import optimizers
from thalweg.gaussian import (
    BernoulliLogit,
    Expectation,
    ExpectedLikelihood,
    Factored,
    GaussianKL,
    Implicit,
    KLToProcess,
    Marginals,
    NegativeBound,
    ScoreSamples,
)
from thalweg.gaussian.posteriors import site_factor
from thalweg.kernels import Gaussian


@dataclass(frozen=True)
class Settings:
    """A column of Table 1: (α₀, ρ or κ) of the baselines, and the size β·N of PG-SVI's step."""

    log_lengthscale: float
    log_deviation: float
    jitter: float
    batch_size: int
    samples: int
    sgd: tuple[float, float]
    adagrad: float
    rmsprop: tuple[float, float]
    adadelta: tuple[float, float]
    adam: float
    pg_svi: float


# lengthscale, deviation (logarithms), jitter, batch, samples; SGD, AdaGrad, RMSprop, Adadelta, Adam, PG-SVI
_SONAR = (-1.0, 6.0, 1e-4, 5, 2000, (1200 / 165, 0.8), 4.5, (0.1, 0.9), (1.0, 1 - 5e-10), 0.04, 0.2)
_IONOSPHERE = (1.0, 2.5, 1e-2, 5, 500, (25 / 280, 0.51), 4.0, (0.04, 0.9999), (0.1, 1 - 1e-11), 0.25, 2.0)
_USPS = (2.5, 5.0, 1e-4, 20, 2000, (800 / 884, 0.6), 8.0, (0.1, 0.9), (1.0, 1 - 1e-12), 2.5, 2.5)
SETTINGS = {"sonar": Settings(*_SONAR), "ionosphere": Settings(*_IONOSPHERE), "usps": Settings(*_USPS)}


@dataclass(frozen=True)
class Problem:
    """Binary classification by a GP with given hyper-parameters; ``covariance`` is K + jitter, ``cross`` K(x, x*)."""

    name: str
    settings: Settings
    covariance: Float[Array, "n n"]
    labels: Float[Array, " n"]
    cross: Float[Array, "n t"]
    test_labels: Float[Array, " t"]

    @property
    def examples(self) -> int:
        """n."""
        return self.labels.shape[0]

    @property
    def steps_per_pass(self) -> int:
        """Batches in a pass."""
        return self.examples // self.settings.batch_size

    def oracle(self, expectation: Expectation | None = None, batch_size: int | None = None) -> ExpectedLikelihood:
        """−Σ E log p; exact unless told otherwise."""
        return ExpectedLikelihood(BernoulliLogit(), self.labels, expectation=expectation, batch_size=batch_size)

    @property
    def noisy(self) -> ExpectedLikelihood:
        """The doubly stochastic oracle of the paper: batches, and score-function gradients with shared normals."""
        return self.oracle(ScoreSamples(self.settings.samples, shared=True), self.settings.batch_size)

    def proximal(self, oracle: ExpectedLikelihood, step: Any) -> Descent:
        """PG with that oracle, by (83); negative precisions are replaced by their absolute value."""
        return Descent(oracle, term=KLToProcess(self.covariance), divergence=GaussianKL(guard="absolute"), step=step)

    def optimum(self) -> Implicit:
        """The best Gaussian posterior, by exact PG steps that find their own length."""
        found = minimize(
            self.oracle(),
            Implicit.prior(self.covariance),
            term=KLToProcess(self.covariance),
            divergence=GaussianKL(),
            step=Monotone(),
            tol=Tolerance(0, 1e-4),
        )
        if not found.status.success:
            raise RuntimeError(f"the optimum of {self.name} was not found: {found.message}")
        return found.x


def load(name: str) -> Problem:
    """ "sonar", "ionosphere", "usps" (digits 2 and 4, which is what the paper's 1,781 examples are) or "usps_3v5"."""
    if name == "usps":
        x, y, train = _two_digits(2, 4, train_size=884)
    elif name == "usps_3v5":
        x, y, train = _two_digits(3, 5, train_size=767)
    else:
        found = data.load(name)
        x, y, train = found.X, found.y > 0, found.is_train
    return _problem(name, SETTINGS["usps" if name == "usps_3v5" else name], np.asarray(x), np.asarray(y), train)


def load_small() -> Problem:
    """80 of scikit-learn's tumours to learn from and 80 to test on, with Ionosphere's settings and fewer samples."""
    found = load_breast_cancer()
    x = StandardScaler().fit_transform(found.data)[:160]
    settings = replace(SETTINGS["ionosphere"], log_lengthscale=2.0, samples=100)
    return _problem("tumours", settings, x, found.target[:160] == 0, np.arange(160) % 2 == 0)


def _two_digits(first: int, second: int, train_size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """All images of two digits, split at random: the paper's split is a resampling that is not published by number."""
    found = data.load("usps")
    x, digits = np.concatenate([found.X_train, found.X_test]), np.concatenate([found.y_train, found.y_test])
    chosen = (digits == first) | (digits == second)
    train = np.zeros(chosen.sum(), bool)
    train[np.random.default_rng(0).permutation(train.size)[:train_size]] = True
    return x[chosen], digits[chosen] == first, train


def _problem(name: str, settings: Settings, x: np.ndarray, positive: np.ndarray, train: np.ndarray) -> Problem:
    kernel = Gaussian(np.exp(settings.log_lengthscale), np.exp(2 * settings.log_deviation))
    inputs, tests = jnp.asarray(x[train], float), jnp.asarray(x[~train], float)
    covariance = kernel(inputs) + settings.jitter * jnp.eye(inputs.shape[0])
    as_float = lambda labels: jnp.asarray(labels, covariance.dtype)
    return Problem(
        name, settings, covariance, as_float(positive[train]), kernel(inputs, tests), as_float(positive[~train])
    )


def stochastic_methods(problem: Problem) -> dict[str, tuple[Descent, PyTree[Array]]]:
    """The methods of Figure 2 with Table 1's settings, each with its start, which is the prior."""
    settings, noisy = problem.settings, problem.noisy
    bound, start = NegativeBound(noisy, problem.covariance), Factored.prior(problem.covariance)
    step = settings.pg_svi / problem.examples
    return {
        "PG-SVI": (problem.proximal(noisy, step), Implicit.prior(problem.covariance)),
        **{name: (Descent(bound, step=optimizer), start) for name, optimizer in optimizers(settings).items()},
    }


Measure = Callable[[PyTree[Array]], PyTree[Array]]


def measures(problem: Problem) -> Measure:
    """x -> (−ELBO in nats by quadrature, log-loss on the test part in bits)."""
    oracle, prior_factor = problem.oracle(), jnp.linalg.cholesky(problem.covariance)
    prior_weights = cho_solve((prior_factor, True), problem.cross)
    # Without the jitter, which is part of K at the training inputs only.
    own_variance = jnp.exp(2 * problem.settings.log_deviation)

    def predict(x: Implicit | Factored) -> Marginals:
        if isinstance(x, Implicit):
            scaled = jnp.sqrt(x.sites)[:, None] * problem.cross
            explained = solve_triangular(site_factor(problem.covariance, x.sites), scaled, lower=True)
            return Marginals(problem.cross.T @ x.weights, own_variance - jnp.sum(explained**2, axis=0))
        explained = jnp.sum(problem.cross * prior_weights, axis=0)
        added = jnp.sum((x.factor.T @ prior_weights) ** 2, axis=0)
        return Marginals(prior_weights.T @ x.mean, own_variance - explained + added)

    def measure(x: Implicit | Factored) -> tuple[Scalar, Scalar]:
        divergence = x.kl_to_prior() if isinstance(x, Implicit) else x.kl_to_prior(prior_factor)
        mean, variance = predict(x)
        densities = oracle.likelihood.log_predictive(problem.test_labels, mean, jnp.maximum(variance, 0))
        return oracle.value(x) + divergence, -jnp.mean(densities) / jnp.log(2.0)

    return measure


def follow(
    descent: Descent, start: PyTree[Array], keys: Key[Array, " seeds"], records: int, stride: int, measure: Measure
) -> PyTree[np.ndarray]:
    """What is measured at the start and after every ``stride`` steps, for every key; all keys in one compiled scan."""
    state = descent.init(start)

    @eqx.filter_jit
    def run(descent: Descent, state: Any, keys: Key[Array, " seeds"]) -> PyTree[Array]:
        def one(key: Key[Array, ""]) -> PyTree[Array]:
            def record(state: Any, key: Key[Array, ""]) -> tuple[Any, PyTree[Array]]:
                state, _ = jax.lax.scan(descent.update, state, jax.random.split(key, stride))
                return state, measure(state.x)

            return jax.lax.scan(record, state, jax.random.split(key, records))[1]

        return for_each_seed(one, keys)

    first = measure(start)
    later = run(descent, state, keys)
    return jax.tree.map(
        lambda at_start, after: np.concatenate([np.broadcast_to(at_start, (len(keys), 1)), after], axis=1), first, later
    )


def for_each_seed(function: Callable[[Key[Array, ""]], PyTree[Array]], keys: Key[Array, " seeds"]) -> PyTree[Array]:
    """Call a function for every key: side by side, on a CPU one after another.

    There is nothing to win on a CPU, and loops side by side were seen to stop there for good, all of XLA's threads
    waiting (jaxlib 0.10.2: PG-MC of Figure 1, ten seeds).
    """
    return jax.lax.map(function, keys) if jax.default_backend() == "cpu" else jax.vmap(function)(keys)

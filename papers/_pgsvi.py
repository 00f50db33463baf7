"""GP classification as in Khan et al. (2016): their data sets, settings and methods, and the curves of a run.

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

from papers._baselines import optimizers
from papers._factored import Factored, NegativeBound
from thalweg import data
from thalweg.descent import Descent, Monotone, Tolerance, minimize
from thalweg.gaussian import (
    BernoulliLogit,
    Expectation,
    ExpectedLikelihood,
    GaussianKL,
    Implicit,
    KLToProcess,
    Marginals,
    ScoreSamples,
)
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
class GPProblem:
    """Binary classification by a GP with given hyper-parameters; ``covariance`` is K + jitter, ``cross`` K(x, x*)."""

    name: str
    settings: Settings
    covariance: Float[Array, "n n"]
    labels: Float[Array, " n"]
    cross: Float[Array, "n t"]
    test_labels: Float[Array, " t"]

    @property
    def examples(self) -> int:
        """Return the number of training examples."""
        return self.labels.shape[0]

    @property
    def steps_per_pass(self) -> int:
        """Return the number of batches in a pass."""
        return self.examples // self.settings.batch_size

    def oracle(self, expectation: Expectation | None = None, batch_size: int | None = None) -> ExpectedLikelihood:
        """Return the oracle of −Σ E log p; exact unless an expectation or a batch size is given."""
        return ExpectedLikelihood(BernoulliLogit(), self.labels, expectation=expectation, batch_size=batch_size)

    @property
    def stochastic_oracle(self) -> ExpectedLikelihood:
        """Return the paper's doubly stochastic oracle: batches, and score-function gradients with shared normals."""
        return self.oracle(ScoreSamples(self.settings.samples, shared=True), self.settings.batch_size)

    def proximal(self, oracle: ExpectedLikelihood, step: Any) -> Descent:
        """Return PG with that oracle, by (83); negative precisions are replaced by their absolute value."""
        return Descent(oracle, term=KLToProcess(self.covariance), divergence=GaussianKL(guard="absolute"), step=step)

    def optimum(self) -> Implicit:
        """Return the best Gaussian posterior, by exact PG steps with a line search."""
        result = minimize(
            self.oracle(),
            Implicit.prior(self.covariance),
            term=KLToProcess(self.covariance),
            divergence=GaussianKL(),
            step=Monotone(),
            tol=Tolerance(0, 1e-4),
        )
        if not result.status.success:
            raise RuntimeError(f"the optimum of {self.name} was not found: {result.message}")
        return result.x


def load_problem(name: str) -> GPProblem:
    """Load "sonar", "ionosphere", "usps" (digits 2 and 4: the paper's 1,781 examples are these) or "usps_3v5"."""
    if name == "usps":
        x, y, train = _two_digits(2, 4, train_size=884)
    elif name == "usps_3v5":
        x, y, train = _two_digits(3, 5, train_size=767)
    else:
        table = data.load(name)
        x, y, train = table.X, table.y > 0, table.is_train
    return _make_problem(name, SETTINGS["usps" if name == "usps_3v5" else name], np.asarray(x), np.asarray(y), train)


def load_small_problem() -> GPProblem:
    """Load 80 of scikit-learn's tumours to learn from and 80 to test on, with Ionosphere's settings, fewer samples."""
    tumours = load_breast_cancer()
    x = StandardScaler().fit_transform(tumours.data)[:160]
    settings = replace(SETTINGS["ionosphere"], log_lengthscale=2.0, samples=100)
    return _make_problem("tumours", settings, x, tumours.target[:160] == 0, np.arange(160) % 2 == 0)


def _two_digits(first: int, second: int, train_size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return all images of two digits, split at random: the paper's split is not published."""
    usps = data.load("usps")
    x, digits = np.concatenate([usps.X_train, usps.X_test]), np.concatenate([usps.y_train, usps.y_test])
    chosen = (digits == first) | (digits == second)
    train = np.zeros(chosen.sum(), bool)
    train[np.random.default_rng(0).permutation(train.size)[:train_size]] = True
    return x[chosen], digits[chosen] == first, train


def _make_problem(name: str, settings: Settings, x: np.ndarray, positive: np.ndarray, train: np.ndarray) -> GPProblem:
    kernel = Gaussian(np.exp(settings.log_lengthscale), np.exp(2 * settings.log_deviation))
    inputs, tests = jnp.asarray(x[train], float), jnp.asarray(x[~train], float)
    covariance = kernel(inputs) + settings.jitter * jnp.eye(inputs.shape[0])
    as_float = lambda labels: jnp.asarray(labels, covariance.dtype)
    return GPProblem(
        name, settings, covariance, as_float(positive[train]), kernel(inputs, tests), as_float(positive[~train])
    )


def stochastic_methods(problem: GPProblem) -> dict[str, tuple[Descent, PyTree[Array]]]:
    """Return the methods of Figure 2 with the settings of Table 1, each with its start, which is the prior."""
    settings, oracle = problem.settings, problem.stochastic_oracle
    bound, start = NegativeBound(oracle, problem.covariance), Factored.prior(problem.covariance)
    step = settings.pg_svi / problem.examples
    return {
        "PG-SVI": (problem.proximal(oracle, step), Implicit.prior(problem.covariance)),
        **{name: (Descent(bound, step=optimizer), start) for name, optimizer in optimizers(settings).items()},
    }


Measure = Callable[[PyTree[Array]], PyTree[Array]]


def make_measure(problem: GPProblem) -> Measure:
    """Return a function from x to −ELBO in nats, by quadrature, and the log-loss on the test part in bits."""
    oracle, prior_factor = problem.oracle(), jnp.linalg.cholesky(problem.covariance)
    prior_weights = cho_solve((prior_factor, True), problem.cross)
    # Without the jitter, which is part of K at the training inputs only.
    prior_variance = jnp.exp(2 * problem.settings.log_deviation)

    def predict(x: Implicit | Factored) -> Marginals:
        if isinstance(x, Implicit):
            roots = jnp.sqrt(x.sites)[:, None]
            factor = jnp.linalg.cholesky(roots * problem.covariance * roots.T + jnp.eye(problem.examples))
            explained = solve_triangular(factor, roots * problem.cross, lower=True)
            return Marginals(problem.cross.T @ x.weights, prior_variance - jnp.sum(explained**2, axis=0))
        explained = jnp.sum(problem.cross * prior_weights, axis=0)
        added = jnp.sum((x.factor.T @ prior_weights) ** 2, axis=0)
        return Marginals(prior_weights.T @ x.mean, prior_variance - explained + added)

    def measure(x: Implicit | Factored) -> tuple[Scalar, Scalar]:
        divergence = x.kl_to_prior() if isinstance(x, Implicit) else x.kl_to_prior(prior_factor)
        mean, variance = predict(x)
        densities = oracle.likelihood.log_predictive(problem.test_labels, mean, jnp.maximum(variance, 0))
        return oracle.value(x) + divergence, -jnp.mean(densities) / jnp.log(2.0)

    return measure


def follow(
    descent: Descent, start: PyTree[Array], keys: Key[Array, " seeds"], records: int, stride: int, measure: Measure
) -> PyTree[np.ndarray]:
    """Measure at the start and after every ``stride`` steps, for every key; all keys in one compiled scan."""
    state = descent.init(start)

    @eqx.filter_jit
    def run(descent: Descent, state: Any, keys: Key[Array, " seeds"]) -> PyTree[Array]:
        def run_seed(key: Key[Array, ""]) -> PyTree[Array]:
            def record(state: Any, key: Key[Array, ""]) -> tuple[Any, PyTree[Array]]:
                state, _ = jax.lax.scan(descent.update, state, jax.random.split(key, stride))
                return state, measure(state.x)

            return jax.lax.scan(record, state, jax.random.split(key, records))[1]

        return for_each_seed(run_seed, keys)

    first = measure(start)
    later = run(descent, state, keys)
    return jax.tree.map(
        lambda at_start, after: np.concatenate([np.broadcast_to(at_start, (len(keys), 1)), after], axis=1), first, later
    )


def for_each_seed(function: Callable[[Key[Array, ""]], PyTree[Array]], keys: Key[Array, " seeds"]) -> PyTree[Array]:
    """Call a function for every key: side by side, on a CPU one after another.

    On a CPU nothing is gained, and with jaxlib 0.10.2 parallel loops deadlocked there, all of XLA's threads waiting
    (PG-MC of Figure 1, ten seeds).
    """
    return jax.lax.map(function, keys) if jax.default_backend() == "cpu" else jax.vmap(function)(keys)

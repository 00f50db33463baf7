"""Two moons by a Gaussian process: PG-SVI against Adam on the bound, and a map of what the classifier knows."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array
from sklearn.datasets import make_moons

from thalweg.descent import Polynomial, minimize
from thalweg.experiments import plots
from thalweg.experiments.registry import experiment
from thalweg.experiments.section import Run
from thalweg.gaussian import (
    BernoulliLogit,
    ExpectedLikelihood,
    Factored,
    GaussianKL,
    Implicit,
    KLToProcess,
    NegativeBound,
)
from thalweg.models import GPClassifier

_ROWS, _BATCH, _JITTER = 120, 10, 1e-3
_RATES = (0.01, 0.03, 0.1)


@experiment(
    "demo-gp", title="A Gaussian process that knows what it does not know", paper="Demonstration", demo=True, order=3
)
def demo_gp(run: Run) -> None:
    """Fit, race, and look."""
    X, y = make_moons(_ROWS, noise=0.25, random_state=run.seed)
    model = GPClassifier(jitter=_JITTER, random_state=run.seed).fit(X, y)
    run.note(
        f"{_ROWS} points of two moons that overlap. GPClassifier learned the kernel {model.kernel_!r}; the bound on "
        f"the log marginal likelihood is {model.elbo_:.2f} nats. With that kernel held fixed, the same bound is then "
        f"climbed by mini-batches of {_BATCH}: by PG-SVI, whose step is the exact minimiser of the iteration with D "
        "and h both KL divergences, and by Adam on the mean and the Cholesky factor of V, at three rates."
    )
    passes = 20 if run.quick else 100
    with jax.enable_x64(True):
        kernel: Any = model.kernel_
        covariance = kernel(jnp.asarray(X)) + _JITTER * jnp.eye(_ROWS)
        curves = _race(covariance, jnp.asarray(y, float), passes, run.seed)
    fig, axes = plots.figure()
    for curve in curves:
        axes.plot(curve.passes, curve.losses, label=curve.name)
    axes.axhline(-model.elbo_, color=plots.PALETTE[-1], linewidth=1, linestyle="--", label="optimum")
    axes.set(xlabel="passes over the data", ylabel="−ELBO, nats", yscale="log")
    axes.legend()
    run.figure("bound", fig, "Negative bound against passes. Lower is better; the dashed line is the optimum.")
    gaps = [curve.losses[-1] + model.elbo_ for curve in curves]
    run.table(
        "methods",
        {"method": [c.name for c in curves], "passes": [passes] * len(curves), "nats above the optimum": gaps},
        "How far above the optimum each method ends.",
    )
    _map(run, model, X, y)
    run.numbers(
        "curves",
        {"optimum": -model.elbo_, **{c.name: {"passes": list(c.passes), "losses": list(c.losses)} for c in curves}},
    )


class _Curve(NamedTuple):
    name: str
    passes: np.ndarray
    losses: np.ndarray


def _race(covariance: Array, targets: Array, passes: int, seed: int) -> list[_Curve]:
    oracle = ExpectedLikelihood(BernoulliLogit(), targets, batch_size=_BATCH)
    share = _BATCH / _ROWS
    proximal = {
        "step": Polynomial(share, power=0.7, scale=2 / share),
        "term": KLToProcess(covariance),
        "divergence": GaussianKL(),
    }
    loss = jax.jit(lambda q: oracle.value(q) + q.kl_to_prior())
    curves = [_climb("PG-SVI", oracle, Implicit.prior(covariance), loss, passes, seed, **proximal)]
    bound, start = NegativeBound(oracle, covariance), Factored.prior(covariance)
    whole = jax.jit(lambda q: bound.value(q))
    for rate in _RATES:
        curves.append(_climb(f"Adam, rate {rate:g}", bound, start, whole, passes, seed, step=optax.adam(rate)))
    return curves


def _climb(name: str, oracle: Any, start: Any, loss: Any, passes: int, seed: int, **parts: Any) -> _Curve:
    """Run a method pass by pass, and evaluate the bound after each."""
    steps = _ROWS // _BATCH
    key = jax.random.key(seed)
    seen = [float(loss(start))]
    minimize(
        oracle,
        start,
        steps=passes * steps,
        stride=steps,
        key=key,
        callback=lambda snapshot: seen.append(float(loss(snapshot.x))),
        **parts,
    )
    return _Curve(name, np.arange(len(seen)), np.asarray(seen))


def _map(run: Run, model: GPClassifier, X: np.ndarray, y: np.ndarray) -> None:
    low, high = X.min(axis=0) - 1.5, X.max(axis=0) + 1.5
    across, up = np.meshgrid(np.linspace(low[0], high[0], 80), np.linspace(low[1], high[1], 80))
    grid = np.column_stack([across.ravel(), up.ravel()])
    probability = model.predict_proba(grid)[:, 1].reshape(across.shape)
    deviation = np.sqrt(model.latent(grid)[1]).reshape(across.shape)
    fig, axes = plots.figure(2, height=3.2)
    for ax, values, levels, colours, title in (
        (axes[0], probability, np.linspace(0, 1, 11), "RdBu_r", "probability of class 1"),
        (axes[1], deviation, 10, "viridis", "standard deviation of the latent function"),
    ):
        shades = ax.contourf(across, up, values, levels=levels, cmap=colours)
        fig.colorbar(shades, ax=ax)
        ax.contour(across, up, probability, levels=[0.5], colors=[plots.INK], linewidths=1)
        for label, marker in ((0, "o"), (1, "^")):
            ax.scatter(
                *X[y == label].T, s=12, marker=marker, color=plots.PALETTE[label], edgecolors="white", linewidths=0.4
            )
        ax.set_title(title)
        ax.grid(visible=False)
    caption = "Left: predicted probability, with the line where it is one half. Right: how uncertain the function is."
    run.figure("map", fig, caption)
    run.note("Away from the points the probability returns to one half and the uncertainty to that of the prior.")

"""Two moons by a Gaussian process: PG-SVI against Adam on the bound, and a map of the classifier's uncertainty."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array
from sklearn.datasets import make_moons

from thalweg.demo import plots
from thalweg.demo.section import Section, experiment
from thalweg.descent import Polynomial, minimize
from thalweg.gaussian import BernoulliLogit, ExpectedLikelihood, GaussianKL, Implicit, KLToProcess, Quadrature
from thalweg.models import GPClassifier
from thalweg.oracles import MiniBatch

# Points, and points in a mini-batch. Twice as many points make a step eight times as expensive.
ROWS, BATCH_SIZE = 120, 10
# Passes over the data, which are enough for PG-SVI. Twice as many would only bring Adam nearer.
PASSES = 20
# Added to the diagonal of the covariance. Twice as much raises every prior variance by another thousandth.
JITTER = 1e-3


@experiment("demo-gp", title="A Gaussian process that knows what it does not know", paper="Demonstration")
def gp(section: Section) -> None:
    """Fit a classifier, climb its bound by two methods, and draw its predictions."""
    X, y = make_moons(ROWS, noise=0.25, random_state=section.seed)
    model = GPClassifier(jitter=JITTER, random_state=section.seed).fit(X, y)
    section.note(
        f"{ROWS} points of two moons that overlap. GPClassifier learned the kernel {model.kernel_!r}; the bound on "
        f"the log marginal likelihood is {model.elbo_:.2f} nats. With that kernel held fixed, the same bound is then "
        f"climbed by mini-batches of {BATCH_SIZE}: by PG-SVI, whose step is the exact minimiser of the iteration with "
        "D and h both KL divergences, and by Adam on the mean and the Cholesky factor of V, at three rates."
    )
    with jax.enable_x64(True):
        kernel: Any = model.kernel_
        covariance = kernel(jnp.asarray(X)) + JITTER * jnp.eye(ROWS)
        losses = _climb_bound(covariance, jnp.asarray(y, float), section.seed)
    caption = "Negative bound against passes. Lower is better; the dashed line is the optimum."
    with section.figure("bound", caption) as axes:
        for name, curve in losses.items():
            axes.plot(curve, label=name)
        axes.axhline(-model.elbo_, color=plots.PALETTE[-1], linewidth=1, linestyle="--", label="optimum")
        axes.set(xlabel="passes over the data", ylabel="−ELBO, nats", yscale="log")
        axes.legend()
    gaps = [curve[-1] + model.elbo_ for curve in losses.values()]
    section.table(
        "methods",
        {"method": list(losses), "passes": [PASSES] * len(losses), "nats above the optimum": gaps},
        "How far above the optimum each method ends.",
    )
    grid = plots.square_grid(X.min(axis=0) - 1.5, X.max(axis=0) + 1.5, 80)
    probability, deviation = model.predict_proba(grid)[:, 1], np.sqrt(model.latent(grid)[1])
    caption = "Left: predicted probability, with the line where it is one half. Right: how uncertain the function is."
    with section.figure("map", caption, columns=2, height=3.2) as axes:
        levels, title = np.linspace(0, 1, 11), "standard deviation of the latent function"
        plots.draw_map(axes[0], grid, probability, levels=levels, colours="RdBu_r", title="probability of class 1")
        plots.draw_map(axes[1], grid, deviation, levels=10, colours="viridis", title=title)
        for ax in axes:
            ax.tricontour(*grid.T, probability, levels=[0.5], colors=[plots.INK], linewidths=1)
            for points, marker, colour in zip((X[y == 0], X[y == 1]), "o^", plots.PALETTE, strict=False):
                ax.scatter(*points.T, s=12, marker=marker, color=colour, edgecolors="white", linewidths=0.4)
    section.note("Away from the points the probability returns to one half and the uncertainty to that of the prior.")
    passes = list(range(PASSES + 1))
    raw = {name: {"passes": passes, "losses": curve} for name, curve in losses.items()}
    section.numbers("curves", {"optimum": -model.elbo_, **raw})


def _climb_bound(covariance: Array, targets: Array, seed: int) -> dict[str, list[float]]:
    """Return −ELBO after each pass, by method."""
    oracle = ExpectedLikelihood(BernoulliLogit(), targets, batch_size=BATCH_SIZE)
    steps = ROWS // BATCH_SIZE

    def climb(oracle: Any, start: Any, loss: Callable[[Any], Array], **parts: Any) -> list[float]:
        loss = jax.jit(loss)
        losses = [float(loss(start))]
        minimize(
            oracle,
            start,
            steps=PASSES * steps,
            stride=steps,
            key=jax.random.key(seed),
            callback=lambda snapshot: losses.append(float(loss(snapshot.x))),
            **parts,
        )
        return losses

    proximal = {
        "step": Polynomial(1 / steps, power=0.7, scale=2.0 * steps),
        "term": KLToProcess(covariance),
        "divergence": GaussianKL(),
    }
    negative_elbo = lambda q: oracle.value(q) + q.kl_to_prior()
    curves = {"PG-SVI": climb(oracle, Implicit.prior(covariance), negative_elbo, **proximal)}
    prior = jnp.linalg.cholesky(covariance)

    def losses(q: tuple[Array, Array], rows: tuple[Array, Array]) -> Array:
        """−ROWS·E log p(y|z) + KL[N(m, LLᵀ) ‖ prior] of each row."""
        mean, factor = q[0], jnp.tril(q[1])
        index, target = rows
        expected = Quadrature()(BernoulliLogit(), target, mean[index], jnp.sum(factor[index] ** 2, axis=1)).value
        whitened = solve_triangular(prior, jnp.concatenate([factor, mean[:, None]], axis=1), lower=True)
        log_ratio = jnp.sum(jnp.log(jnp.abs(jnp.diagonal(prior) / jnp.diagonal(factor))))
        return (jnp.sum(whitened**2) - ROWS) / 2 + log_ratio - ROWS * expected

    bound = MiniBatch(losses, (jnp.arange(ROWS), targets), BATCH_SIZE, replacement=False)
    for rate in (0.01, 0.03, 0.1):
        adam = climb(bound, (jnp.zeros(ROWS), prior), lambda q: bound.value(q), step=optax.adam(rate))
        curves[f"Adam, rate {rate:g}"] = adam
    return curves

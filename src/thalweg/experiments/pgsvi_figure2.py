"""Figure 2 of "Faster stochastic variational inference using proximal-gradient methods": bound and log-loss by pass."""

from dataclasses import dataclass

import jax
import numpy as np
from matplotlib.axes import Axes

from thalweg.experiments import _pgsvi, plots
from thalweg.experiments.registry import experiment
from thalweg.experiments.section import Run

_DATA_SETS = ("sonar", "ionosphere", "usps")
_COLOURS = dict(zip(("PG-SVI", "SGD", "AdaGrad", "RMSprop", "Adadelta", "Adam"), plots.PALETTE, strict=False))
_CLOSE = 1.0
"""Nats above the optimum that count as converged."""


@dataclass(frozen=True)
class Curves:
    """−ELBO in nats and test log-loss in bits, (seeds, records) for each method, and at the optimum."""

    problem: _pgsvi.Problem
    bounds: dict[str, np.ndarray]
    losses: dict[str, np.ndarray]
    best_bound: float
    best_loss: float

    def gap(self, method: str) -> np.ndarray:
        """Nats above the optimum."""
        return self.bounds[method] - self.best_bound

    def passes_until_close(self, method: str) -> str:
        """The first pass after which the mean over seeds is within a nat of the optimum."""
        close = np.flatnonzero(self.gap(method).mean(axis=0) <= _CLOSE)
        return str(close[0]) if close.size else "–"


@experiment(
    "pgsvi-figure2",
    title="GP classification by stochastic gradients: bound and log-loss",
    paper="Faster stochastic variational inference using proximal-gradient methods, Figure 2",
    order=41,
)
def pgsvi_figure2(run: Run) -> None:
    """Follow PG-SVI and the five baselines over ten passes, on three data sets, from ten seeds."""
    passes, seeds = (3, 1) if run.quick else (10, 10)
    with jax.enable_x64(True):
        keys = jax.random.split(jax.random.key(run.seed), seeds)
        problems = [_pgsvi.load_small()] if run.quick else map(_pgsvi.load, _DATA_SETS)
        found = [curves(problem, keys, passes) for problem in problems]
    show(run, found)


def show(run: Run, found: list[Curves]) -> None:
    """Draw, tabulate and comment."""
    seeds, records = found[0].bounds["PG-SVI"].shape
    run.note(_SETTING.format(seeds=seeds))
    for one in found:
        _draw(run, one)
    run.table("methods", _columns(found), _CAPTION.format(passes=records - 1, seeds=seeds))
    run.note(" ".join(_seen(one) for one in found))
    run.note(_CLAIMS)
    optima = {one.problem.name: {"bound": one.best_bound, "loss": one.best_loss} for one in found}
    paths = {one.problem.name: {"bound": one.bounds, "loss": one.losses} for one in found}
    run.numbers("curves", {name: {"optimum": optima[name], **paths[name]} for name in paths})


def curves(problem: _pgsvi.Problem, keys: jax.Array, passes: int, only: str = "") -> Curves:
    """Follow every method, or one, for so many passes from every key."""
    measure = _pgsvi.measures(problem)
    best_bound, best_loss = (float(value) for value in measure(problem.optimum()))
    bounds, losses = {}, {}
    for name, (descent, start) in _pgsvi.stochastic_methods(problem).items():
        if only in ("", name):
            bounds[name], losses[name] = _pgsvi.follow(descent, start, keys, passes, problem.steps_per_pass, measure)
    return Curves(problem, bounds, losses, best_bound, best_loss)


def _draw(run: Run, found: Curves) -> None:
    fig, (left, right) = plots.figure(2)
    _bands(left, found.bounds)
    _bands(right, found.losses)
    for axes, level in ((left, found.best_bound), (right, found.best_loss)):
        axes.axhline(level, color=plots.INK, linestyle=":", linewidth=1.2, label="optimum")
        axes.set_xlabel("passes over the data")
    start = found.bounds["PG-SVI"][:, 0].mean()
    left.set(yscale="log", ylim=(found.best_bound / 1.3, 4 * start), ylabel="−ELBO (nats)")
    right.set_ylim(0, 1.25)
    right.set_ylabel("test log-loss (bits)")
    plots.label_lines(right)
    name = found.problem.name
    run.figure(
        name,
        fig,
        f"{name.capitalize()}: negative bound and test log-loss (a coin has 1 bit). Lines are means, bands the range "
        f"over seeds; the dotted line is the optimum of the bound. A line that leaves the axis or ends has diverged.",
    )


def _bands(axes: Axes, curves: dict[str, np.ndarray]) -> None:
    for name, colour in _COLOURS.items():
        values = curves[name]
        passes = np.arange(values.shape[1])
        label = name if np.isfinite(values).all() else f"{name} (diverged)"
        axes.plot(passes, values.mean(axis=0), color=colour, label=label)
        axes.fill_between(passes, values.min(axis=0), values.max(axis=0), color=colour, alpha=0.15, lw=0)


_CAPTION = (
    "After {passes} passes, mean and standard deviation over {seeds} seeds. Gap: −ELBO by quadrature above its "
    "optimum, in nats; log-loss: of the test part, in bits, and of the optimum of the bound; close: passes until the "
    "mean gap is below 1 nat."
)


def _columns(found: list[Curves]) -> dict[str, list]:
    rows = [
        (
            one.problem.name,
            name,
            float(one.gap(name)[:, -1].mean()),
            float(one.gap(name)[:, -1].std()),
            float(one.losses[name][:, -1].mean()),
            one.best_loss,
            one.passes_until_close(name),
        )
        for one in found
        for name in one.bounds
    ]
    headers = ("data", "method", "gap", "± gap", "log-loss", "optimum's", "close")
    return {header: list(column) for header, column in zip(headers, zip(*rows, strict=True), strict=True)}


def _seen(found: Curves) -> str:
    ours = found.gap("PG-SVI")[:, -1].mean()
    finite = {name: gap for name in found.bounds if np.isfinite(gap := found.gap(name)[:, -1].mean())}
    best = min((name for name in finite if name != "PG-SVI"), key=finite.__getitem__)
    return (
        f"{found.problem.name.capitalize()}: the optimum is {found.best_bound:.2f} nats with a log-loss of "
        f"{found.best_loss:.3f} bits; PG-SVI ends {ours:.2f} nats above it, the best baseline, {best}, "
        f"{finite[best]:.3g}."
    )


_SETTING = (
    "A GP classifier with a logistic likelihood and fixed hyper-parameters; every method sees the same doubly "
    "stochastic gradient (batches without replacement, score-function estimates from normals that a batch shares) and "
    "starts at the prior. PG-SVI takes the steps (83) in natural parameters; the baselines move the mean and the "
    "Cholesky factor L of the covariance, by Optax. Step sizes are those of the "
    "paper's Table 1. K has a jitter in training and in the bound, not in the covariances with test points. "
    "Seeds: {seeds}."
)
_CLAIMS = (
    "What of the paper holds: PG-SVI is far ahead of every baseline at equal passes. What does not: the paper says "
    "that it always converged within 10 passes. That is so to within a nat on Ionosphere alone; on the other sets the "
    "table shows how many nats remain. At the paper's hyper-parameters Sonar's kernel is so narrow that even the "
    "optimum of the bound predicts near chance, so its log-loss says nothing about the methods."
    "\n\n"
    "In its baselines the authors' published code differs from the paper's text, and from what is done here. It moves "
    "the logarithm of L's diagonal, with which AdaGrad, RMSprop, Adadelta and Adam are faster on Sonar, though "
    "thousands of nats from the optimum, and SGD diverges; it leaves their batch gradient unscaled (a weight of n/n in "
    "place of n/B); and it evaluates their bound with a covariance made from m instead of L. Adadelta's rate of Table "
    "1 on Ionosphere is beyond the stable one, twice the smallest eigenvalue of K, and its bound is off the axis. USPS "
    "is digits 2 against 4, as the paper's count of 1,781 says, with a random split of that size, because its own "
    "is not part of our data."
)

"""Figure 2 of "Faster stochastic variational inference using proximal-gradient methods": bound and log-loss by pass."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import jax
import numpy as np
from matplotlib.axes import Axes

from thalweg.experiments import _pgsvi, claims, plots
from thalweg.experiments.claims import Claim, all_of, at_full_size
from thalweg.experiments.registry import experiment
from thalweg.experiments.section import Run

DATA_SETS = ("sonar", "ionosphere", "usps", "usps_3v5")
_COLOURS = dict(zip(("PG-SVI", "SGD", "AdaGrad", "RMSprop", "Adadelta", "Adam"), plots.PALETTE, strict=False))
_CLOSE = 1.0
"""Nats above the optimum that count as converged."""
PASSES, SEEDS, LONG = 10, 10, 500
"""Passes from every seed, and the passes that a single one is followed for."""
_PAPERS_PASSES = 100
"""More than that is what the paper says that other methods needed."""


@dataclass(frozen=True)
class Curves:
    """−ELBO in nats and test log-loss in bits, (seeds, records) for each method, and at the optimum.

    ``long`` are the bounds of a single seed over many passes; nothing where there was no time for them.
    """

    problem: _pgsvi.Problem
    bounds: dict[str, np.ndarray]
    losses: dict[str, np.ndarray]
    best_bound: float
    best_loss: float
    long: dict[str, np.ndarray]

    @property
    def name(self) -> str:
        """That of the data."""
        return self.problem.name

    def gap(self, method: str) -> np.ndarray:
        """Nats above the optimum."""
        return self.bounds[method] - self.best_bound

    def end(self, method: str) -> float:
        """The mean gap after the last pass; NaN where a seed has diverged."""
        return float(self.gap(method)[:, -1].mean())

    def passes_until_close(self, method: str) -> float:
        """The first pass after which the bound is within a nat of the optimum: the mean of all seeds, or the long run.

        Infinite where it never is.
        """
        for bounds in (self.bounds[method].mean(axis=0), self.long.get(method, np.empty(0))):
            close = np.flatnonzero(bounds - self.best_bound <= _CLOSE)
            if close.size:
                return float(close[0])
        return np.inf

    def followed(self, method: str) -> int:
        """Passes of its longest run."""
        return max(self.bounds[method].shape[1], len(self.long.get(method, ()))) - 1

    @property
    def baselines(self) -> list[str]:
        """All but ours that have not diverged."""
        return [name for name in self.bounds if name != "PG-SVI" and np.isfinite(self.end(name))]


@dataclass(frozen=True)
class Found:
    """All data sets, and whether they were the paper's."""

    all: list[Curves]
    full: bool

    @property
    def missing(self) -> set[str]:
        """The data sets that were not run."""
        return set(DATA_SETS) - {one.name for one in self.all}


def _everywhere(test: Callable[[Curves], bool | None]) -> Callable[[Found], bool | None]:
    """A claim about all data sets: false if it is false of one, unknown if it is unknown of one or one is missing."""
    return at_full_size(lambda found: all_of(map(test, found.all)))


def _each(say: Callable[[Curves], str]) -> Callable[[Found], str]:
    return lambda found: "; ".join(f"{one.name} {say(one)}" for one in found.all)


def _ahead(one: Curves) -> bool | None:
    ends = [one.end(name) for name in one.baselines]
    return one.end("PG-SVI") < min(ends) if ends else None


def _slow(one: Curves) -> bool | None:
    soonest = min((one.passes_until_close(name) for name in one.baselines), default=np.inf)
    if soonest <= _PAPERS_PASSES:
        return False
    return True if all(one.followed(name) > _PAPERS_PASSES for name in one.baselines) else None


def _best_baseline(one: Curves) -> str:
    best = min(one.baselines, key=one.end, default="")
    return f"{one.end('PG-SVI'):.2g} against {one.end(best):.3g} ({best})" if best else "no baseline is left"


CLAIMS = (
    Claim(
        f"Our method is much faster to converge than other methods (here: nats from the optimum after {PASSES} passes)",
        _everywhere(_ahead),
        _each(_best_baseline),
    ),
    Claim(
        f"It always converged within 10 passes through the data (here: to within {_CLOSE:g} nat)",
        _everywhere(lambda one: one.passes_until_close("PG-SVI") <= PASSES),
        _each(lambda one: f"{one.end('PG-SVI'):.2g} nats"),
    ),
    Claim(
        "other methods required more than 100 passes",
        _everywhere(_slow),
        _each(lambda one: ", ".join(f"{name} {_passes(one, name)}" for name in one.baselines)),
    ),
    Claim(
        "(not the paper's) all baselines stay finite at the settings of Table 1",
        _everywhere(lambda one: len(one.baselines) == len(one.bounds) - 1),
        _each(lambda one: ", ".join(set(one.bounds) - {"PG-SVI", *one.baselines}) or "all"),
    ),
    Claim(
        "(not the paper's) after 10 passes PG-SVI predicts better than every baseline, by mean log-loss",
        _everywhere(
            lambda one: bool(
                one.losses["PG-SVI"][:, -1].mean()
                < min((one.losses[name][:, -1].mean() for name in one.baselines), default=np.nan)
            )
        ),
        _each(lambda one: f"{one.losses['PG-SVI'][:, -1].mean():.3g} bits"),
    ),
)


@experiment(
    "pgsvi-figure2",
    title="GP classification by stochastic gradients: bound and log-loss",
    paper="Faster stochastic variational inference using proximal-gradient methods, Figure 2 and Table 1",
    order=41,
)
def pgsvi_figure2(run: Run) -> None:
    """Follow PG-SVI and the five baselines over ten passes from ten seeds, and one of them for long."""
    with jax.enable_x64(True):
        keys = jax.random.split(jax.random.key(run.seed), 1 if run.quick else SEEDS)
        if run.quick:
            found = [curves(_pgsvi.load_small(), keys, 3)]
        else:
            found = [curves(_pgsvi.load(name), keys, PASSES, long=LONG) for name in DATA_SETS]
    show(run, Found(found, not run.quick))


def show(run: Run, found: Found) -> None:
    """Draw, tabulate and judge."""
    seeds, records = found.all[0].bounds["PG-SVI"].shape
    run.note(_SETTING.format(seeds=seeds, long=max(one.followed("Adam") for one in found.all)))
    run.table("settings", _settings(found.all), _TABLE_1)
    for one in found.all:
        _draw(run, one)
    run.table("methods", _columns(found.all), _CAPTION.format(passes=records - 1, seeds=seeds))
    run.note(" ".join(_seen(one) for one in found.all))
    run.note(_DIFFERENCES)
    optima = {one.name: {"bound": one.best_bound, "loss": one.best_loss} for one in found.all}
    paths = {one.name: {"bound": one.bounds, "loss": one.losses, "long": one.long} for one in found.all}
    run.numbers("curves", {name: {"optimum": optima[name], **paths[name]} for name in paths})
    claims.show(run, CLAIMS, found)


def curves(problem: _pgsvi.Problem, keys: jax.Array, passes: int, only: str = "", long: int = 0) -> Curves:
    """Follow every method, or one, for so many passes from every key, and a baseline from the first for ``long``."""
    measure = _pgsvi.measures(problem)
    best_bound, best_loss = (float(value) for value in measure(problem.optimum()))
    found = Curves(problem, {}, {}, best_bound, best_loss, {})
    for name, (descent, start) in _pgsvi.stochastic_methods(problem).items():
        if only in ("", name):
            stride = problem.steps_per_pass
            found.bounds[name], found.losses[name] = _pgsvi.follow(descent, start, keys, passes, stride, measure)
            if long and name != "PG-SVI":  # which the first passes tell all about
                found.long[name] = _pgsvi.follow(descent, start, keys[:1], long, stride, measure)[0][0]
    return found


def joined(parts: list[Curves]) -> Curves:
    """Curves of single methods on one problem, as one."""
    together = lambda field: {name: path for part in parts for name, path in getattr(part, field).items()}
    return replace(parts[0], bounds=together("bounds"), losses=together("losses"), long=together("long"))


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
    "mean gap is below 1 nat, or in a long run that of its one seed."
)
_TABLE_1 = "The paper's Table 1, which is what is run: (α₀, κ or ρ) of the baselines, and β·N of PG-SVI."


def _settings(found: list[Curves]) -> dict[str, list]:
    settings = [one.problem.settings for one in found]
    pair = lambda values: f"{values[0]:.3g}, 1 − {1 - values[1]:.1g}"
    return {
        "data": [one.name for one in found],
        "SGD": [f"{one.sgd[0]:.3g}, {one.sgd[1]:g}" for one in settings],
        "AdaGrad": [one.adagrad for one in settings],
        "RMSprop": [pair(one.rmsprop) for one in settings],
        "Adadelta": [pair(one.adadelta) for one in settings],
        "Adam": [one.adam for one in settings],
        "PG-SVI": [one.pg_svi for one in settings],
        "batch": [one.batch_size for one in settings],
        "samples": [one.samples for one in settings],
    }


def _passes(one: Curves, name: str) -> str:
    passes = one.passes_until_close(name)
    return f"{passes:.0f}" if np.isfinite(passes) else f"> {one.followed(name)}"


def _columns(found: list[Curves]) -> dict[str, list]:
    rows = [
        (
            one.name,
            name,
            one.end(name),
            float(one.gap(name)[:, -1].std()),
            float(one.losses[name][:, -1].mean()),
            one.best_loss,
            _passes(one, name),
        )
        for one in found
        for name in one.bounds
    ]
    headers = ("data", "method", "gap", "± gap", "log-loss", "optimum's", "close")
    return {header: list(column) for header, column in zip(headers, zip(*rows, strict=True), strict=True)}


def _seen(found: Curves) -> str:
    return (
        f"{found.name.capitalize()}: the optimum is {found.best_bound:.2f} nats with a log-loss of "
        f"{found.best_loss:.3f} bits; nats from it at the end, PG-SVI's and the best baseline's: "
        f"{_best_baseline(found)}."
    )


_SETTING = (
    "A GP classifier with a logistic likelihood and fixed hyper-parameters; every method sees the same doubly "
    "stochastic gradient (batches without replacement, score-function estimates from normals that a batch shares) and "
    "starts at the prior. PG-SVI takes the steps (83) in natural parameters; the baselines move the mean and the "
    "Cholesky factor L of the covariance, by the formulas (89) to (100). Step sizes are those of the "
    "paper's Table 1. K has a jitter in training and in the bound, not in the covariances with test points. "
    "Seeds: {seeds}; the longest run has {long} passes."
)
_DIFFERENCES = (
    "At the paper's hyper-parameters Sonar's kernel is so narrow that even the optimum of the bound predicts near "
    "chance, so its log-loss says nothing about the methods. USPS is digits 2 against 4, as the paper's count of 1,781 "
    "says, and 3 against 5, as its text says, with the same settings; the splits are our own, at random, because "
    "the paper's is not part of our data."
    "\n\n"
    "The authors' published code differs from the paper's text, and from what is done here. It keeps the sign of "
    "accumulated precisions and takes their absolute value in a step, where ours carries the absolute value on. Where "
    "the batch size does not divide the examples (USPS), its pass ends with a short batch; ours leaves those few to "
    "the next pass's draw. For the baselines it moves the logarithm of L's diagonal, it leaves their batch gradient "
    "unscaled (a weight of n/n in place of n/B), and it evaluates their bound with a covariance made from m "
    "instead of L."
)

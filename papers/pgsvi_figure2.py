"""Figure 2 of "Faster stochastic variational inference using proximal-gradient methods": bound and log-loss by pass."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import jax
import numpy as np
from matplotlib.axes import Axes

from papers import _pgsvi
from papers.claims import Claim, all_of, at_full_size, show_claims
from thalweg.demo import Section, experiment, plots

DATA_SETS = ("sonar", "ionosphere", "usps", "usps_3v5")
_COLOURS = dict(zip(("PG-SVI", "SGD", "AdaGrad", "RMSprop", "Adadelta", "Adam"), plots.PALETTE, strict=False))
_CLOSE = 1.0
"""Nats above the optimum that count as converged."""
PASSES, SEEDS, LONG_PASSES = 10, 10, 500
"""Passes from every seed, the number of seeds, and the passes of the long run from one of them."""
_PAPERS_PASSES = 100
"""The paper says that other methods needed more."""


@dataclass(frozen=True)
class DataSetCurves:
    """−ELBO in nats and test log-loss in bits, (seeds, records) for each method, and at the optimum.

    ``long`` are the bounds of a single seed over many passes, where there was time for them.
    """

    problem: _pgsvi.GPProblem
    bounds: dict[str, np.ndarray]
    losses: dict[str, np.ndarray]
    best_bound: float
    best_loss: float
    long: dict[str, np.ndarray]

    @property
    def name(self) -> str:
        """Return the name of the data set."""
        return self.problem.name

    def gap(self, method: str) -> np.ndarray:
        """Return the nats above the optimum."""
        return self.bounds[method] - self.best_bound

    def end(self, method: str) -> float:
        """Return the mean gap after the last pass; NaN where a seed has diverged."""
        return float(self.gap(method)[:, -1].mean())

    def passes_until_close(self, method: str) -> float:
        """Return the first pass after which the bound is within a nat of the optimum; infinite if it never is.

        The bound is the mean over seeds, or that of the long run.
        """
        for bounds in (self.bounds[method].mean(axis=0), self.long.get(method, np.empty(0))):
            close = np.flatnonzero(bounds - self.best_bound <= _CLOSE)
            if close.size:
                return float(close[0])
        return np.inf

    def max_passes(self, method: str) -> int:
        """Return the passes of the longest run of a method."""
        return max(self.bounds[method].shape[1], len(self.long.get(method, ()))) - 1

    @property
    def baselines(self) -> list[str]:
        """Return all methods but PG-SVI that have not diverged."""
        return [name for name in self.bounds if name != "PG-SVI" and np.isfinite(self.end(name))]


@dataclass(frozen=True)
class Figure2Results:
    """The curves of all data sets, and whether these were the paper's."""

    data_sets: list[DataSetCurves]
    full: bool

    @property
    def missing(self) -> set[str]:
        """Return the data sets that were not run."""
        return set(DATA_SETS) - {curves.name for curves in self.data_sets}


def _everywhere(test: Callable[[DataSetCurves], bool | None]) -> Callable[[Figure2Results], bool | None]:
    """Return a test of all data sets: false if false on one, unknown if unknown on one or if one is missing."""
    return at_full_size(lambda results: all_of(map(test, results.data_sets)))


def _on_each(describe: Callable[[DataSetCurves], str]) -> Callable[[Figure2Results], str]:
    return lambda results: "; ".join(f"{curves.name} {describe(curves)}" for curves in results.data_sets)


def _is_ahead(curves: DataSetCurves) -> bool | None:
    ends = [curves.end(name) for name in curves.baselines]
    return curves.end("PG-SVI") < min(ends) if ends else None


def _baselines_are_slow(curves: DataSetCurves) -> bool | None:
    soonest = min((curves.passes_until_close(name) for name in curves.baselines), default=np.inf)
    if soonest <= _PAPERS_PASSES:
        return False
    return True if all(curves.max_passes(name) > _PAPERS_PASSES for name in curves.baselines) else None


def _best_baseline(curves: DataSetCurves) -> str:
    best = min(curves.baselines, key=curves.end, default="")
    return f"{curves.end('PG-SVI'):.2g} against {curves.end(best):.3g} ({best})" if best else "no baseline is left"


CLAIMS = (
    Claim(
        f"Our method is much faster to converge than other methods (here: nats from the optimum after {PASSES} passes)",
        _everywhere(_is_ahead),
        _on_each(_best_baseline),
    ),
    Claim(
        f"It always converged within 10 passes through the data (here: to within {_CLOSE:g} nat)",
        _everywhere(lambda curves: curves.passes_until_close("PG-SVI") <= PASSES),
        _on_each(lambda curves: f"{curves.end('PG-SVI'):.2g} nats"),
    ),
    Claim(
        "other methods required more than 100 passes",
        _everywhere(_baselines_are_slow),
        _on_each(lambda curves: ", ".join(f"{name} {_passes(curves, name)}" for name in curves.baselines)),
    ),
    Claim(
        "(not the paper's) all baselines stay finite at the settings of Table 1",
        _everywhere(lambda curves: len(curves.baselines) == len(curves.bounds) - 1),
        _on_each(lambda curves: ", ".join(set(curves.bounds) - {"PG-SVI", *curves.baselines}) or "all"),
    ),
    Claim(
        "(not the paper's) after 10 passes PG-SVI predicts better than every baseline, by mean log-loss",
        _everywhere(
            lambda curves: bool(
                curves.losses["PG-SVI"][:, -1].mean()
                < min((curves.losses[name][:, -1].mean() for name in curves.baselines), default=np.nan)
            )
        ),
        _on_each(lambda curves: f"{curves.losses['PG-SVI'][:, -1].mean():.3g} bits"),
    ),
)


@experiment(
    "pgsvi-figure2",
    title="GP classification by stochastic gradients: bound and log-loss",
    paper="Faster stochastic variational inference using proximal-gradient methods, Figure 2 and Table 1",
)
def pgsvi_figure2(section: Section) -> None:
    """Follow PG-SVI and the five baselines over ten passes from ten seeds, and one of them for long."""
    with jax.enable_x64(True):
        keys = jax.random.split(jax.random.key(section.seed), 1 if section.quick else SEEDS)
        if section.quick:
            data_sets = [measure_curves(_pgsvi.load_small_problem(), keys, 3)]
        else:
            data_sets = [
                measure_curves(_pgsvi.load_problem(name), keys, PASSES, long=LONG_PASSES) for name in DATA_SETS
            ]
    show_results(section, Figure2Results(data_sets, not section.quick))


def show_results(section: Section, results: Figure2Results) -> None:
    """Add the figures, the tables and the verdicts."""
    seeds, records = results.data_sets[0].bounds["PG-SVI"].shape
    section.note(_SETTING.format(seeds=seeds, long=max(curves.max_passes("Adam") for curves in results.data_sets)))
    section.table("settings", _settings(results.data_sets), _TABLE_1)
    for curves in results.data_sets:
        _draw(section, curves)
    section.table("methods", _columns(results.data_sets), _CAPTION.format(passes=records - 1, seeds=seeds))
    section.note(" ".join(_summarise(curves) for curves in results.data_sets))
    section.note(_DIFFERENCES)
    optima = {curves.name: {"bound": curves.best_bound, "loss": curves.best_loss} for curves in results.data_sets}
    paths = {
        curves.name: {"bound": curves.bounds, "loss": curves.losses, "long": curves.long}
        for curves in results.data_sets
    }
    section.numbers("curves", {name: {"optimum": optima[name], **paths[name]} for name in paths})
    show_claims(section, CLAIMS, results)


def measure_curves(
    problem: _pgsvi.GPProblem, keys: jax.Array, passes: int, only: str = "", long: int = 0
) -> DataSetCurves:
    """Follow every method, or one, for so many passes from every key, and a baseline from the first for ``long``."""
    measure = _pgsvi.make_measure(problem)
    best_bound, best_loss = (float(value) for value in measure(problem.optimum()))
    curves = DataSetCurves(problem, {}, {}, best_bound, best_loss, {})
    for name, (descent, start) in _pgsvi.stochastic_methods(problem).items():
        if only in ("", name):
            stride = problem.steps_per_pass
            curves.bounds[name], curves.losses[name] = _pgsvi.follow(descent, start, keys, passes, stride, measure)
            if long and name != "PG-SVI":  # PG-SVI needs no more passes
                curves.long[name] = _pgsvi.follow(descent, start, keys[:1], long, stride, measure)[0][0]
    return curves


def join_methods(parts: list[DataSetCurves]) -> DataSetCurves:
    """Return the curves of single methods on one problem as one object."""
    together = lambda field: {name: path for part in parts for name, path in getattr(part, field).items()}
    return replace(parts[0], bounds=together("bounds"), losses=together("losses"), long=together("long"))


def _draw(section: Section, curves: DataSetCurves) -> None:
    caption = (
        f"{curves.name.capitalize()}: negative bound and test log-loss (a coin has 1 bit). Lines are means, bands the "
        f"range over seeds; the dotted line is the optimum of the bound. A line that leaves the axis or ends has "
        f"diverged."
    )
    with section.figure(curves.name, caption, columns=2) as (left, right):
        _draw_bands(left, curves.bounds)
        _draw_bands(right, curves.losses)
        for axes, optimum in ((left, curves.best_bound), (right, curves.best_loss)):
            axes.axhline(optimum, color=plots.INK, linestyle=":", linewidth=1.2, label="optimum")
            axes.set_xlabel("passes over the data")
        start = curves.bounds["PG-SVI"][:, 0].mean()
        left.set(yscale="log", ylim=(curves.best_bound / 1.3, 4 * start), ylabel="−ELBO (nats)")
        right.set(ylim=(0, 1.25), ylabel="test log-loss (bits)")
        plots.label_lines(right)


def _draw_bands(axes: Axes, curves: dict[str, np.ndarray]) -> None:
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


def _settings(data_sets: list[DataSetCurves]) -> dict[str, list]:
    settings = [curves.problem.settings for curves in data_sets]
    pair = lambda values: f"{values[0]:.3g}, 1 − {1 - values[1]:.1g}"
    return {
        "data": [curves.name for curves in data_sets],
        "SGD": [f"{each.sgd[0]:.3g}, {each.sgd[1]:g}" for each in settings],
        "AdaGrad": [each.adagrad for each in settings],
        "RMSprop": [pair(each.rmsprop) for each in settings],
        "Adadelta": [pair(each.adadelta) for each in settings],
        "Adam": [each.adam for each in settings],
        "PG-SVI": [each.pg_svi for each in settings],
        "batch": [each.batch_size for each in settings],
        "samples": [each.samples for each in settings],
    }


def _passes(curves: DataSetCurves, name: str) -> str:
    passes = curves.passes_until_close(name)
    return f"{passes:.0f}" if np.isfinite(passes) else f"> {curves.max_passes(name)}"


def _columns(data_sets: list[DataSetCurves]) -> dict[str, list]:
    rows = [
        (
            curves.name,
            name,
            curves.end(name),
            float(curves.gap(name)[:, -1].std()),
            float(curves.losses[name][:, -1].mean()),
            curves.best_loss,
            _passes(curves, name),
        )
        for curves in data_sets
        for name in curves.bounds
    ]
    headers = ("data", "method", "gap", "± gap", "log-loss", "optimum's", "close")
    return {header: list(column) for header, column in zip(headers, zip(*rows, strict=True), strict=True)}


def _summarise(curves: DataSetCurves) -> str:
    return (
        f"{curves.name.capitalize()}: the optimum is {curves.best_bound:.2f} nats with a log-loss of "
        f"{curves.best_loss:.3f} bits; nats from it at the end, PG-SVI's and the best baseline's: "
        f"{_best_baseline(curves)}."
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

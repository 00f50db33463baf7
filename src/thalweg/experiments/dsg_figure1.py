"""Figure 1 of "Utilize old coordinates: faster doubly stochastic gradients": training objective by time."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
from matplotlib.ticker import LogLocator, NullLocator

from thalweg.descent import Polynomial
from thalweg.experiments import _dsg, plots
from thalweg.experiments._dsg import Curve, Problem, Score, Standing, holds
from thalweg.experiments.registry import experiment
from thalweg.experiments.section import Run

DATA_SETS = ("cifar10", "mnist", "protein")
_THREE = ("DSG", "UDSG", "CDSG")
_COLOURS = dict(zip((*_THREE, "SVRG, 4F", "landmarks"), plots.PALETTE, strict=False))
_EARLY = 0.1
"""The part of the time that counts as early."""
_LATE = 1.1
"""A part of the training that ends so much after the time is over still counts."""


@dataclass(frozen=True)
class Size:
    """How much is run: rows, B, F, rows that judge, seconds a run, seeds, and sizes of steps that are tried.

    ``preconditioned`` names the data sets on which blocks are preconditioned, too.
    """

    rows: int | None
    batch: int
    block: int
    sample: int
    seconds: float
    seeds: int
    tries: int
    capacity: int
    preconditioned: tuple[str, ...]


@dataclass(frozen=True)
class Setting:
    """How long steps are: θ/t, or, matched, the same for all three; ``middle`` is where the search for θ begins."""

    name: str
    matched: bool
    precondition: bool
    middle: float
    middle_of_squares: float

    @property
    def title(self) -> str:
        """Its name above a plot."""
        return "the same steps for all three" if self.matched else "steps as published, θ/t"

    def start(self, problem: Problem) -> float:
        """Where the search begins."""
        return self.middle_of_squares if problem.labels is None else self.middle

    def step(self, initial: float) -> Polynomial:
        """θ/t, or a schedule that falls as 1/√t."""
        return Polynomial(initial, power=0.5, scale=10.0) if self.matched else Polynomial(initial, power=1.0)


_SETTINGS = (
    Setting("published", False, False, 100.0, 4.0),
    Setting("matched", True, False, 32.0, 2.0),
    Setting("published, P", False, True, 1.0, 1.0),
    Setting("matched, P", True, True, 0.25, 0.25),
)
_SVRG = Setting("SVRG, 4F", True, False, 64.0, 1.0)
_SVRG_BATCH = 256
_FACTOR = 4.0
"""Between sizes of steps that are tried."""


@dataclass
class Found:
    """The runs on one data set; ``initial`` are the sizes of steps that were best, by setting.

    ``at_edge`` names the settings in which the search for a size ended for want of tries.
    """

    name: str
    title: str
    rows: int
    seconds: float
    device: str
    curves: list[Curve] = field(default_factory=list)
    initial: dict[str, float] = field(default_factory=dict)
    at_edge: list[str] = field(default_factory=list)

    def of(self, method: str, setting: str = "") -> list[Curve]:
        """The runs of a method, one for each seed."""
        return [curve for curve in self.curves if (curve.method, curve.setting) == (method, setting)]

    def scores(self, method: str, setting: str = "", what: str = "objective", part: float = 1.0) -> np.ndarray:
        """The objectives, or other scores, after that part of the time, one for each seed."""
        until = _LATE * part * self.seconds
        return np.array([getattr(curve.at(until), what) for curve in self.of(method, setting)])

    @property
    def settings(self) -> list[str]:
        """The names of those that were run."""
        return [setting.name for setting in _SETTINGS if setting.name in self.initial]


@experiment(
    "dsg-figure1",
    title="Kernel machines on random features: old coordinates or new ones",
    paper="Utilize old coordinates: faster doubly stochastic gradients for kernel methods, Figure 1",
    order=50,
)
def dsg_figure1(run: Run) -> None:
    """Follow the training objective of DSG, UDSG, CDSG, SVRG and our default on three data sets."""
    size = _quick() if run.quick else full()
    show(run, size, [measure(name, size, run.seed) for name in DATA_SETS])


def _quick() -> Size:
    return Size(8000, 512, 64, 2000, seconds=0.5, seeds=1, tries=3, capacity=128, preconditioned=("cifar10",))


def full() -> Size:
    """The paper's size. What two cores do in a minute an accelerator does in two seconds."""
    seconds = 60.0 if jax.default_backend() == "cpu" else 2.0
    return Size(None, 4096, 256, 8192, seconds, seeds=2, tries=5, capacity=512, preconditioned=("cifar10",))


def measure(name: str, size: Size, seed: int) -> Found:
    """Run every method on a data set."""
    problem = _dsg.load(name, size.rows, batch=size.batch, block=size.block, sample=size.sample, seed=seed)
    return race(problem, size, seed)


def race(problem: Problem, size: Size, seed: int) -> Found:
    """Run every method for the same time."""
    device = jax.devices()[0].device_kind
    found = Found(problem.name, problem.title, len(problem.x), size.seconds, device)
    for setting in _SETTINGS:
        if not setting.precondition or problem.name in size.preconditioned:
            _three(found, problem, setting, size, seed)

    def svrg(initial: float) -> Curve:
        curve = Curve("SVRG, 4F", seed=seed)
        return _dsg.svrg(problem, initial, batch=_SVRG_BATCH, seconds=size.seconds, curve=curve)

    found.curves.append(_best(found, _SVRG, _SVRG.start(problem), svrg, size.tries))
    found.curves.append(_dsg.landmarks(problem, seconds=size.seconds, curve=Curve("landmarks", seed=seed)))
    return found


def _three(found: Found, problem: Problem, setting: Setting, size: Size, seed: int) -> None:
    rules = _dsg.MATCHED_RULES if setting.matched else _dsg.RULES

    def go(method: str, initial: float, seed: int) -> Curve:
        return _dsg.machine(
            problem,
            rules[method],
            setting.step(initial),
            precondition=setting.precondition,
            seconds=size.seconds,
            capacity=size.capacity,
            curve=Curve(method, setting.name, seed),
        )

    found.curves.append(
        _best(found, setting, setting.start(problem), lambda initial: go("DSG", initial, seed), size.tries)
    )
    best = found.initial[setting.name]
    for method in _THREE:
        seeds = range(seed, seed + size.seeds)
        found.curves += [go(method, best, one) for one in seeds if method != "DSG" or one != seed]


def _best(found: Found, setting: Setting, start: float, go: Callable[[float], Curve], tries: int) -> Curve:
    """Climb from the start, up or else down, while that lowers the objective; keep the best run."""
    curves = {start: go(start)}
    late = lambda initial: curves[initial].at(_LATE * found.seconds).objective
    best = start
    for factor in (_FACTOR, 1 / _FACTOR):
        while len(curves) < tries and factor * best not in curves:
            curves[factor * best] = go(factor * best)
            if not late(factor * best) < late(best):
                break
            best *= factor
    found.initial[setting.name] = best
    if best in (min(curves), max(curves)):
        found.at_edge.append(setting.name)
    return curves[best]


def show(run: Run, size: Size, all_found: list[Found]) -> None:
    """Draw, tabulate and comment."""
    run.note(_describe(size, all_found))
    for found in all_found:
        _draw(run, found)
        run.table(found.name, _columns(found), _TABLE.format(title=found.title))
    run.note("\n\n".join(verdicts(all_found)))
    run.note(_REMARKS)
    run.numbers("curves", {found.name: _numbers(found) for found in all_found})


def _numbers(found: Found) -> dict[str, Any]:
    curves = [
        {"method": curve.method, "setting": curve.setting, "seed": curve.seed, "seconds": curve.seconds}
        | {name: curve.column(name) for name in Score._fields}
        | {"steps": curve.steps, "blocks": curve.blocks}
        for curve in found.curves
    ]
    return {"initial": found.initial, "curves": curves}


def _draw(run: Run, found: Found) -> None:
    """A figure with the steps as published and matched side by side; another one for preconditioned blocks."""
    for precondition in (False, True):
        settings = [s for s in _SETTINGS if s.precondition == precondition and s.name in found.initial]
        if not settings:
            continue
        fig, panels = plots.figure(2)
        for axes, setting in zip(panels, settings, strict=True):
            for method, colour in _COLOURS.items():
                for curve in found.of(method, setting.name if method in _THREE else ""):
                    label = method if curve.seed == found.curves[0].seed else "_again"
                    axes.plot(curve.seconds[1:], curve.column("objective")[1:], ".-", color=colour, label=label)
            axes.axhline(found.curves[0].scores[0].objective, color=plots.INK, linestyle=":", linewidth=1)
            axes.set(xscale="log", xlabel="seconds of training", title=setting.title)
            axes.set_xlim(found.seconds / 100, _LATE * found.seconds)
        panels[0].set_ylabel("training objective")
        _share_heights(panels, found)
        plots.label_lines(panels[1])
        suffix = "-preconditioned" if precondition else ""
        how = "with" if precondition else "without"
        run.figure(f"{found.name}{suffix}", fig, _FIGURE.format(title=found.title, how=how))


def _share_heights(panels: Any, found: Found) -> None:
    """The same axis for both panels, from just below the lowest curve to just above f = 0."""
    start = found.curves[0].scores[0].objective
    lowest = min(np.nanmin(curve.column("objective")) for curve in found.curves)
    for axes in panels:
        axes.set(yscale="log", ylim=(lowest / 1.08, start * 1.25))
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 1.25, 1.5, 1.75, 2, 2.5, 3, 3.5, 4, 5, 6, 8)))
        axes.yaxis.set_major_formatter("{x:.3g}")
        axes.yaxis.set_minor_locator(NullLocator())


def _columns(found: Found) -> dict[str, list[Any]]:
    rows = []
    for name in [*found.settings, ""]:
        for method in _THREE if name else ("SVRG, 4F", "landmarks"):
            curves = found.of(method, name)
            initial = found.initial.get(name or method)
            rows.append(
                (
                    name or "–",
                    method,
                    "–" if initial is None else f"{initial:g}",
                    round(np.mean([curve.steps for curve in curves])),
                    round(np.mean([curve.blocks for curve in curves])),
                    float(np.mean(found.scores(method, name, part=_EARLY))),
                    float(np.mean(found.scores(method, name))),
                    float(np.mean(found.scores(method, name, "loss"))),
                )
            )
    headers = ("steps", "method", "size", "taken", "blocks", "early", "objective", "loss")
    return {header: list(column) for header, column in zip(headers, zip(*rows, strict=True), strict=True)}


def verdicts(all_found: list[Found]) -> list[str]:
    """What of the paper's claims holds, from the numbers."""
    said = ["What of the paper holds, at equal time. " + _dsg.LEVEL_MEANS.format(margin="1 %")]
    for setting in _SETTINGS:
        if there := [found for found in all_found if setting.name in found.settings]:
            said.append(_about_three(there, setting))
    return [*said, _about_svrg(all_found), _about_landmarks(all_found)]


def _about_three(all_found: list[Found], setting: Setting) -> str:
    def standing(one: str, other: str, what: str = "objective") -> Standing:
        of = lambda method: {found.title: found.scores(method, setting.name, what) for found in all_found}
        return Standing.of(of(one), of(other))

    pairs = (("CDSG", "DSG"), ("CDSG", "UDSG"), ("UDSG", "DSG"))
    over_dsg, over_udsg, uniform = (standing(*pair) for pair in pairs)
    reuse = np.mean([curve.reuse for found in all_found for curve in found.of("CDSG", setting.name)])
    by_loss = [standing(*pair, "loss") for pair in pairs]
    same = all(a.words == b.words for a, b in zip((over_dsg, over_udsg, uniform), by_loss, strict=True))
    loss = (
        "By the mean loss alone the order is the same."
        if same
        else (
            f"By the mean loss alone CDSG is, against DSG, {by_loss[0]}; against UDSG {by_loss[1]}; UDSG, against DSG, "
            f"is {by_loss[2]}."
        )
    )
    return (
        f"{setting.title[0].upper()}{setting.title[1:]}{', preconditioned' * setting.precondition}: that CDSG "
        f"outperforms both DSG and UDSG {holds(over_dsg, over_udsg)}: against DSG it is {over_dsg}; against UDSG "
        f"{over_udsg}. It went along old blocks in {reuse:.0%} of its steps. That UDSG generally outperforms DSG "
        f"{holds(uniform, mostly=True)}: it is {uniform}. {loss}"
    )


def _about_svrg(all_found: list[Found]) -> str:
    plain = [(method, _SETTINGS[0].name) for method in _THREE]
    early, late = (
        Standing.of(
            {found.title: found.scores("SVRG, 4F", part=part) for found in all_found},
            {found.title: _best_of(found, plain, part) for found in all_found},
        )
        for part in (_EARLY, 1.0)
    )
    return (
        f"That SVRG on 4F features made beforehand falls behind {holds(late.turned())}: against the best of the "
        f"three with steps as published and no preconditioner it is {early} after {_EARLY:.0%} of the time, and {late} "
        f"at the end of it."
    )


def _about_landmarks(all_found: list[Found]) -> str:
    ours = {found.title: found.scores("landmarks") for found in all_found}
    others = {}
    for found in all_found:
        runs = [("SVRG, 4F", ""), *((method, name) for name in found.settings for method in _THREE)]
        others[found.title] = _best_of(found, runs, 1.0)
    return (
        "Our default, landmarks visited block by block, with the same kernel and the same λ, is, against the best of "
        f"all other runs at the end of the time, {Standing.of(ours, others)}."
    )


def _best_of(found: Found, runs: list[tuple[str, str]], part: float) -> np.ndarray:
    return min((found.scores(method, name, part=part) for method, name in runs), key=np.mean)


def _describe(size: Size, all_found: list[Found]) -> str:
    rows = ", ".join(f"{found.title} {found.rows:,}" for found in all_found)
    edges = [f"{found.title} ({', '.join(found.at_edge)})" for found in all_found if found.at_edge]
    return _SETTING.format(
        rows=rows,
        batch=size.batch,
        block=size.block,
        ridge=_dsg.RIDGE,
        theory=1 / _dsg.RIDGE,
        sample=size.sample,
        seconds=size.seconds,
        device=all_found[0].device,
        seeds=size.seeds,
        svrg_batch=_SVRG_BATCH,
        factor=_FACTOR,
        tries=size.tries,
        edges=" ".join(edges) or "nowhere",
    )


_SETTING = (
    "Training rows: {rows}; images on 100 principal components with a softmax loss, Protein (UCI, nine features, "
    "standardised on its training part) with the squared loss, in place of the paper's Year. Gaussian kernel with "
    "the median bandwidth; batches of {batch} rows, blocks of {block} frequencies, λ = {ridge:g}. The objective is the "
    "mean loss plus λ/2·‖f‖² on {sample} training rows, the same for all methods. Every run has {seconds:g} s of "
    "training on one device ({device}), in which neither compiling nor evaluation counts; seeds: {seeds}. Where other "
    "programs keep the device busy seconds are noisy: the tables show how many steps were taken in them."
    "\n\n"
    "As published: γ_t = θ/t; CDSG may go up to ten times as far along an old block, by its expected line search. "
    "Matched: all three take the same steps γ₀/√(1 + t/10), CDSG along old blocks, too. P: blocks are preconditioned. "
    "θ and γ₀ are the best for DSG of sizes a factor {factor:g} apart, at most {tries} of them, and UDSG and CDSG take "
    "the same. The paper's theory asks for θλ > 1, which is θ > {theory:g}: no such step was tried. SVRG, by "
    "minimize, has batches of {svrg_batch}, a snapshot every two passes, and the best of as many sizes; making its "
    "features counts. The search ended at a largest or smallest size, so that a better one may lie beyond: {edges}."
)
_FIGURE = (
    "{title}: training objective by seconds of training, {how} block preconditioner; left with steps as published, "
    "right with the same steps for all three. The dotted line is f = 0. SVRG and the landmarks are the same runs in "
    "both panels."
)
_TABLE = (
    "{title}. Size: θ, γ₀ or SVRG's step. Taken: steps within the time (landmarks: calls). Early: objective after a "
    "tenth of the time; objective, and mean loss alone: at the end. Means over seeds."
)
_REMARKS = (
    "The three algorithms are the paper's with their misprints corrected; the step of CDSG along an old block is "
    "bounded by ten times γ, without which it grows without limit. Choosing the block by the data makes its gradient "
    "biased: the paper's rate for it has no proof. A sum of random features is in no RKHS of the kernel; its ‖f‖ is "
    "taken to be Σ‖W‖ over its blocks, the least norm that any weighting of the blocks gives it; without a "
    "preconditioner this bounds, but for noise, the norm of the function that is estimated. Preconditioned blocks are "
    "what the first DSG code has, and neither paper mentions."
)

"""Runs of the methods of Li and Póczos (2017): each for the same time, at the best size of its steps."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from papers import _dsg
from papers._dsg import KernelProblem, TrainingCurve
from papers._landmarks import run_landmarks
from thalweg.descent import Polynomial

PUBLISHED_METHODS = ("DSG", "UDSG", "CDSG")
ALL_METHODS = (*PUBLISHED_METHODS, _dsg.CAPPED)
SVRG = ("", "SVRG, 4F")
"""The setting of SVRG, which is none, and its name."""
OVERTIME = 1.1
"""A part of the training that ends later than its time by at most this factor still counts."""


@dataclass(frozen=True)
class ComparisonSize:
    """How much is run: rows, (B, F) by data set, scored rows, seconds of a run, seeds, and sizes of steps tried.

    ``preconditioned`` names the data sets on which blocks are preconditioned, too.
    """

    rows: int | None
    batches: dict[str, tuple[int, int]]
    scored_rows: int
    seconds: float
    seeds: int
    tries: int
    capacity: int
    preconditioned: tuple[str, ...]
    full: bool = False


@dataclass(frozen=True)
class StepSetting:
    """The length of steps: θ/t, or, matched, the same for all three methods.

    The search for θ starts at ``initial``, for the squared loss at ``initial_squared``.
    """

    name: str
    matched: bool
    precondition: bool
    initial: float
    initial_squared: float

    @property
    def title(self) -> str:
        """Return its name above a plot."""
        return "the same steps for all three" if self.matched else "steps as published, θ/t"

    @property
    def methods(self) -> tuple[str, ...]:
        """Return the methods that are run; where steps are the same no bound on them is needed."""
        return PUBLISHED_METHODS if self.matched else ALL_METHODS

    def start(self, problem: KernelProblem) -> float:
        """Return where the search begins."""
        return self.initial_squared if problem.labels is None else self.initial

    def step(self, initial: float) -> Polynomial:
        """Return θ/t, or a schedule that falls as 1/√t."""
        return Polynomial(initial, power=0.5, scale=10.0) if self.matched else Polynomial(initial, power=1.0)


SETTINGS = (
    StepSetting("published", False, False, 100.0, 4.0),
    StepSetting("matched", True, False, 32.0, 2.0),
    StepSetting("published, P", False, True, 1.0, 1.0),
    StepSetting("matched, P", True, True, 0.25, 0.25),
)
SVRG_SETTING = StepSetting("SVRG, 4F", True, False, 64.0, 1.0)
SVRG_BATCH = 256
STEP_FACTOR = 4.0
"""Ratio of neighbouring sizes of steps that are tried."""


@dataclass
class Comparison:
    """The runs on one data set; ``initial`` are the best sizes of steps, by setting and method.

    ``at_edge`` names those whose search for a size ended for want of tries.
    """

    name: str
    title: str
    rows: int
    batch: int
    block: int
    seconds: float
    device: str
    curves: list[TrainingCurve] = field(default_factory=list)
    initial: dict[tuple[str, str], float] = field(default_factory=dict)
    at_edge: list[tuple[str, str]] = field(default_factory=list)

    def curves_of(self, method: str, setting: str = "") -> list[TrainingCurve]:
        """Return the runs of a method, one for each seed."""
        return [curve for curve in self.curves if (curve.method, curve.setting) == (method, setting)]

    def scores(self, method: str, setting: str = "", what: str = "objective", part: float = 1.0) -> np.ndarray:
        """Return the objectives, or other scores, after that part of the time, one for each seed."""
        until = OVERTIME * part * self.seconds
        return np.array([getattr(curve.at(until), what) for curve in self.curves_of(method, setting)])

    def best_of(self, runs: list[tuple[str, str]], part: float = 1.0) -> np.ndarray:
        """Return the scores of the best of several methods."""
        return min((self.scores(method, name, part=part) for method, name in runs), key=np.mean)

    @property
    def settings(self) -> list[str]:
        """Return the names of the settings that were run."""
        return [setting.name for setting in SETTINGS if self.curves_of("DSG", setting.name)]


def compare_methods(problem: KernelProblem, size: ComparisonSize, seed: int) -> Comparison:
    """Run every method for the same time."""
    device = jax.devices()[0].device_kind
    results = Comparison(
        problem.name, problem.title, len(problem.x), problem.batch, problem.block, size.seconds, device
    )
    for precondition in (False, True) if problem.name in size.preconditioned else (False,):
        rules = [*_dsg.RULES.values(), _dsg.MATCHED_RULES["CDSG"]]
        _dsg.compile_rules(problem, rules, precondition=precondition, capacity=size.capacity)
        for setting in SETTINGS:
            for method in setting.methods if setting.precondition == precondition else ():
                _add_method(results, problem, setting, method, size, seed)

    def run_svrg(step: float) -> TrainingCurve:
        curve = TrainingCurve("SVRG, 4F", seed=seed)
        return _dsg.run_svrg(problem, step, batch=SVRG_BATCH, seconds=size.seconds, curve=curve)

    results.curves.append(best_run(results, SVRG, SVRG_SETTING.start(problem), run_svrg, size.tries))
    curve = TrainingCurve("landmarks", seed=seed)
    results.curves.append(run_landmarks(problem, seconds=size.seconds, curve=curve))
    return results


def _add_method(
    results: Comparison, problem: KernelProblem, setting: StepSetting, method: str, size: ComparisonSize, seed: int
) -> None:
    """Add the runs of a method from all seeds, at the best size of its steps."""
    rule = (_dsg.MATCHED_RULES if setting.matched else _dsg.RULES)[method]

    def run(initial: float, seed: int) -> TrainingCurve:
        return _dsg.run_machine(
            problem,
            rule,
            setting.step(initial),
            precondition=setting.precondition,
            seconds=size.seconds,
            capacity=size.capacity,
            curve=TrainingCurve(method, setting.name, seed),
        )

    # The search starts at the best size of DSG; matched steps take that size without a search.
    start = results.initial.get((setting.name, "DSG"), setting.start(problem))
    if setting.matched and method != "DSG":
        results.initial[setting.name, method] = start
        results.curves.append(run(start, seed))
    else:
        name = setting.name, method
        results.curves.append(best_run(results, name, start, lambda step: run(step, seed), size.tries))
    best = results.initial[setting.name, method]
    results.curves += [run(best, other) for other in range(seed + 1, seed + size.seeds)]


def best_run(
    results: Comparison, name: tuple[str, str], start: float, run: Callable[[float], TrainingCurve], tries: int
) -> TrainingCurve:
    """Return the run at the best size of steps; record that size, and whether it was at an edge."""
    curves = {}

    def run_and_store(step: float) -> TrainingCurve:
        curves[step] = run(step)
        return curves[step]

    results.initial[name], edge = tune_step(start, run_and_store, tries, OVERTIME * results.seconds)
    results.at_edge += [name] if edge else []
    return curves[results.initial[name]]


@dataclass(frozen=True)
class LargeSize:
    """Rows, B, F, scored rows, seconds of a run and of a trial of θ, and the number of trials.

    ``full`` says whether B, F and λ are the paper's.
    """

    rows: int
    batch: int
    block: int
    scored_rows: int
    seconds: float
    trial: float
    tries: int
    capacity: int
    full: bool


@dataclass
class TunedRuns:
    """Runs by name, the size of the steps of each, and the names of those whose best was the largest or smallest."""

    size: LargeSize
    device: str
    curves: dict[Any, TrainingCurve] = field(default_factory=dict)
    thetas: dict[Any, float] = field(default_factory=dict)
    at_edge: list[Any] = field(default_factory=list)

    @property
    def full(self) -> bool:
        """Return whether B, F and λ were the paper's; the number of rows is reported."""
        return self.size.full

    def are_tuned(self, *names: Any) -> bool:
        """Return whether these were run, with no size at an edge."""
        return all(name in self.curves and name not in self.at_edge for name in names)

    def add(self, name: Any, start: float, run: Callable[[float, float], TrainingCurve]) -> None:
        """Add ``run(step, seconds)`` at the size of steps that is best after a short trial."""
        best, edge = tune_step(start, lambda step: run(step, self.size.trial), self.size.tries)
        self.thetas[name], self.curves[name] = best, run(best, self.size.seconds)
        self.at_edge += [name] if edge else []

    def add_published(self, name: Any, problem: KernelProblem, method: str, start: float, seed: int) -> None:
        """Add a method with steps θ/t, at the θ that is best after a short trial."""
        options: dict[str, Any] = {"precondition": False, "capacity": self.size.capacity}

        def run(theta: float, seconds: float) -> TrainingCurve:
            step, curve = Polynomial(theta, power=1.0), TrainingCurve(method, "θ/t", seed)
            return _dsg.run_machine(problem, _dsg.RULES[method], step, seconds=seconds, curve=curve, **options)

        self.add(name, start, run)


def tune_step(
    start: float, run: Callable[[float], TrainingCurve], tries: int, until: float = np.inf
) -> tuple[float, bool]:
    """Search from the start, up or else down, while the objective falls.

    Return the best size of steps, and whether it is the largest or smallest tried, so that a better one may lie beyond.
    """
    objectives = {start: run(start).at(until).objective}
    best = start
    for factor in (STEP_FACTOR, 1 / STEP_FACTOR):
        while len(objectives) < tries and factor * best not in objectives:
            objectives[factor * best] = run(factor * best).at(until).objective
            if not objectives[factor * best] < objectives[best]:
                break
            best *= factor
    return best, best in (min(objectives), max(objectives))

"""The race of Figure 1 of Li and Póczos (2017): every method for the same time, each at the best size of its steps."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from thalweg.descent import Polynomial
from thalweg.experiments import _dsg
from thalweg.experiments._dsg import Curve, Problem

THREE = ("DSG", "UDSG", "CDSG")
ALL = (*THREE, _dsg.CAPPED)
SVRG = ("", "SVRG, 4F")
"""Its setting, which is none, and its name."""
LATE = 1.1
"""A part of the training that ends so much after the time is over still counts."""


@dataclass(frozen=True)
class Size:
    """How much is run: rows, (B, F) by data set, rows that judge, seconds a run, seeds, and sizes of steps tried.

    ``preconditioned`` names the data sets on which blocks are preconditioned, too.
    """

    rows: int | None
    batches: dict[str, tuple[int, int]]
    sample: int
    seconds: float
    seeds: int
    tries: int
    capacity: int
    preconditioned: tuple[str, ...]
    full: bool = False


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

    @property
    def methods(self) -> tuple[str, ...]:
        """Where steps are the same no bound on them is needed."""
        return THREE if self.matched else ALL

    def start(self, problem: Problem) -> float:
        """Where the search begins."""
        return self.middle_of_squares if problem.labels is None else self.middle

    def step(self, initial: float) -> Polynomial:
        """θ/t, or a schedule that falls as 1/√t."""
        return Polynomial(initial, power=0.5, scale=10.0) if self.matched else Polynomial(initial, power=1.0)


SETTINGS = (
    Setting("published", False, False, 100.0, 4.0),
    Setting("matched", True, False, 32.0, 2.0),
    Setting("published, P", False, True, 1.0, 1.0),
    Setting("matched, P", True, True, 0.25, 0.25),
)
_STEP_OF_SVRG = Setting("SVRG, 4F", True, False, 64.0, 1.0)
SVRG_BATCH = 256
FACTOR = 4.0
"""Between sizes of steps that are tried."""


@dataclass
class Found:
    """The runs on one data set; ``initial`` are the sizes of steps that were best, by setting and method.

    ``at_edge`` names those whose search for a size ended for want of tries.
    """

    name: str
    title: str
    rows: int
    batch: int
    block: int
    seconds: float
    device: str
    curves: list[Curve] = field(default_factory=list)
    initial: dict[tuple[str, str], float] = field(default_factory=dict)
    at_edge: list[tuple[str, str]] = field(default_factory=list)

    def of(self, method: str, setting: str = "") -> list[Curve]:
        """The runs of a method, one for each seed."""
        return [curve for curve in self.curves if (curve.method, curve.setting) == (method, setting)]

    def scores(self, method: str, setting: str = "", what: str = "objective", part: float = 1.0) -> np.ndarray:
        """The objectives, or other scores, after that part of the time, one for each seed."""
        until = LATE * part * self.seconds
        return np.array([getattr(curve.at(until), what) for curve in self.of(method, setting)])

    def best_of(self, runs: list[tuple[str, str]], part: float = 1.0) -> np.ndarray:
        """The scores of the best of several."""
        return min((self.scores(method, name, part=part) for method, name in runs), key=np.mean)

    @property
    def settings(self) -> list[str]:
        """The names of those that were run."""
        return [setting.name for setting in SETTINGS if self.of("DSG", setting.name)]


def race(problem: Problem, size: Size, seed: int) -> Found:
    """Run every method for the same time."""
    device = jax.devices()[0].device_kind
    found = Found(problem.name, problem.title, len(problem.x), problem.batch, problem.block, size.seconds, device)
    for precondition in (False, True) if problem.name in size.preconditioned else (False,):
        rules = [*_dsg.RULES.values(), _dsg.MATCHED_RULES["CDSG"]]
        _dsg.prepare(problem, rules, precondition=precondition, capacity=size.capacity)
        for setting in SETTINGS:
            for method in setting.methods if setting.precondition == precondition else ():
                _tuned(found, problem, setting, method, size, seed)

    def svrg(initial: float) -> Curve:
        curve = Curve("SVRG, 4F", seed=seed)
        return _dsg.svrg(problem, initial, batch=SVRG_BATCH, seconds=size.seconds, curve=curve)

    found.curves.append(_best(found, SVRG, _STEP_OF_SVRG.start(problem), svrg, size.tries))
    found.curves.append(_dsg.landmarks(problem, seconds=size.seconds, curve=Curve("landmarks", seed=seed)))
    return found


def _tuned(found: Found, problem: Problem, setting: Setting, method: str, size: Size, seed: int) -> None:
    """A method at the best size of its steps, from all seeds."""
    rule = (_dsg.MATCHED_RULES if setting.matched else _dsg.RULES)[method]

    def go(initial: float, seed: int) -> Curve:
        return _dsg.machine(
            problem,
            rule,
            setting.step(initial),
            precondition=setting.precondition,
            seconds=size.seconds,
            capacity=size.capacity,
            curve=Curve(method, setting.name, seed),
        )

    # What was best for DSG is a good place to begin, and steps that are to be the same are.
    start = found.initial.get((setting.name, "DSG"), setting.start(problem))
    if setting.matched and method != "DSG":
        found.initial[setting.name, method] = start
        found.curves.append(go(start, seed))
    else:
        found.curves.append(_best(found, (setting.name, method), start, lambda size: go(size, seed), size.tries))
    best = found.initial[setting.name, method]
    found.curves += [go(best, one) for one in range(seed + 1, seed + size.seeds)]


def _best(found: Found, name: tuple[str, str], start: float, go: Callable[[float], Curve], tries: int) -> Curve:
    """The run at the best size, which is noted, and whether it was at an edge."""
    curves = {}

    def run(size: float) -> Curve:
        curves[size] = go(size)
        return curves[size]

    found.initial[name], edge = tuned_size(start, run, tries, LATE * found.seconds)
    found.at_edge += [name] if edge else []
    return curves[found.initial[name]]


@dataclass(frozen=True)
class LargeSize:
    """Rows, B, F, rows that judge, seconds of a run and of a trial of θ, how many are tried; if it is the paper's."""

    rows: int
    batch: int
    block: int
    sample: int
    seconds: float
    trial: float
    tries: int
    capacity: int
    full: bool


@dataclass
class Runs:
    """Runs by name, the size of the steps of each, and the names of those whose best was the largest or smallest."""

    size: LargeSize
    device: str
    curves: dict[Any, Curve] = field(default_factory=dict)
    thetas: dict[Any, float] = field(default_factory=dict)
    at_edge: list[Any] = field(default_factory=list)

    @property
    def full(self) -> bool:
        """Whether B, F and λ were the paper's; the number of rows is told."""
        return self.size.full

    def tuned(self, *names: Any) -> bool:
        """Whether these were run, with no size at an edge."""
        return all(name in self.curves and name not in self.at_edge for name in names)

    def add(self, name: Any, start: float, go: Callable[[float, float], Curve]) -> None:
        """Run ``go(size, seconds)`` at the best size of steps after a trial."""
        best, edge = tuned_size(start, lambda size: go(size, self.size.trial), self.size.tries)
        self.thetas[name], self.curves[name] = best, go(best, self.size.seconds)
        self.at_edge += [name] if edge else []

    def add_published(self, name: Any, problem: Problem, method: str, start: float, seed: int) -> None:
        """Run a method with steps θ/t, at the best θ after a trial."""
        options: dict[str, Any] = {"precondition": False, "capacity": self.size.capacity}

        def go(theta: float, seconds: float) -> Curve:
            step, curve = Polynomial(theta, power=1.0), Curve(method, "θ/t", seed)
            return _dsg.machine(problem, _dsg.RULES[method], step, seconds=seconds, curve=curve, **options)

        self.add(name, start, go)


def tuned_size(start: float, go: Callable[[float], Curve], tries: int, until: float = np.inf) -> tuple[float, bool]:
    """Climb from the start, up or else down, while that lowers the objective; whether no size lies beyond the best."""
    ends = {start: go(start).at(until).objective}
    best = start
    for factor in (FACTOR, 1 / FACTOR):
        while len(ends) < tries and factor * best not in ends:
            ends[factor * best] = go(factor * best).at(until).objective
            if not ends[factor * best] < ends[best]:
                break
            best *= factor
    return best, best in (min(ends), max(ends))

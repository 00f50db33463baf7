"""The register of experiments: a file in this package with a decorated function is all it takes to add one.

::

    @experiment("halving", title="Halving", paper="Figure 1")
    def halving(run):
        steps = 8 if run.quick else 64
        run.note("Each step halves the error.")
        run.table("errors", {"step": range(steps), "error": [0.5**k for k in range(steps)]}, "Error by step.")
"""

import difflib
import importlib
import pkgutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from thalweg import __version__
from thalweg.errors import ThalwegError
from thalweg.experiments import plots
from thalweg.experiments.section import Run, Section, check_name

_MACHINERY = {"claims", "plots", "registry", "report", "section"}


class UnknownExperimentError(ThalwegError, LookupError):
    """A name under which no experiment is registered."""


@dataclass(frozen=True)
class Experiment:
    """One figure or table: what it is called, where it is from, and the function that makes it."""

    name: str
    title: str
    paper: str
    function: Callable[[Run], None]
    demo: bool
    order: int


_EXPERIMENTS: dict[str, Experiment] = {}


def experiment(
    name: str, *, title: str, paper: str, demo: bool = False, order: int = 100
) -> Callable[[Callable[[Run], None]], Callable[[Run], None]]:
    """Register the decorated ``function(run)`` as an experiment.

    Parameters
    ----------
    name
        What follows ``thalweg reproduce``; letters, digits, ``-`` and ``_``.
    title
        The heading of its section.
    paper
        The figure or table it reproduces, as a reader would cite it.
    demo
        Whether it is a section of ``thalweg demo``.
    order
        Its place among the others; equal numbers keep the order of registration.
    """
    check_name(name)

    def register(function: Callable[[Run], None]) -> Callable[[Run], None]:
        if name in _EXPERIMENTS:
            raise ValueError(f"name: an experiment called {name!r} is registered already")
        _EXPERIMENTS[name] = Experiment(name, title, paper, function, demo, order)
        return function

    return register


def experiments() -> list[Experiment]:
    """Return all experiments in order, importing the modules of this package that register them."""
    package = importlib.import_module("thalweg.experiments")
    for module in pkgutil.iter_modules(package.__path__):
        if not module.name.startswith("_") and module.name not in _MACHINERY:
            importlib.import_module(f"thalweg.experiments.{module.name}")
    return sorted(_EXPERIMENTS.values(), key=lambda found: found.order)


def find(name: str) -> Experiment:
    """Return the experiment of that name, or raise an error that lists those of similar names."""
    known = {found.name: found for found in experiments()}
    if name in known:
        return known[name]
    close = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(map(repr, close))}?" if close else "`thalweg reproduce --list` lists them"
    raise UnknownExperimentError(f"no experiment is called {name!r}; {hint}")


def execute(chosen: Experiment, folder: Path, *, quick: bool, seed: int) -> Section:
    """Run an experiment in the shared plot style; its output goes into ``folder``, which is made if need be."""
    folder.mkdir(parents=True, exist_ok=True)
    run = Run(folder, quick, seed)
    began = time.perf_counter()
    with plots.style():
        chosen.function(run)
    seconds = time.perf_counter() - began
    section = Section(folder, chosen.name, chosen.title, chosen.paper, quick, seed, seconds, __version__, run.items)
    section.write()
    return section

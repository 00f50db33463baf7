"""Figures 1 and 2 of PG-SVI at the authors' size, their runs spread over many cores.

Each run (a method on one data set, or at some step sizes) is a process on a core of its own; its result is written to
``--output`` and not run again. After ``--seconds`` the claims are judged by what is there. ``--only usps`` takes the
runs whose names hold that word.

``python -m benchmarks.pgsvi_figures --cores 14 --seconds 500``; needs the data sets (THALWEG_DATA).
"""

import argparse
import dataclasses
import itertools
import os
import pickle
import subprocess
import sys
import time
from pathlib import Path

from benchmarks._common import report, table

FIGURE1, FIGURE2 = "pgsvi-figure1", "pgsvi-figure2"
_TOGETHER = 3
"""Step sizes of Figure 1 in one process."""


def names() -> list[str]:
    """All runs: Figure 2's, and Figure 1's from the largest sizes, which matter most, to the smallest."""
    from papers.pgsvi_figure1 import AUTHORS
    from papers.pgsvi_figure2 import DATA_SETS

    methods = ("PG-SVI", "SGD", "AdaGrad", "RMSprop", "Adadelta", "Adam")
    second = [f"{FIGURE2} {data} {method}" for data in reversed(DATA_SETS) for method in methods]
    first = []
    for method, grid in AUTHORS.items():
        sizes = sorted(grid, key=grid.__getitem__)
        # Sizes that take about as long share a process: starting one takes a while.
        parts = [sizes[begin : begin + _TOGETHER] for begin in range(0, len(sizes), _TOGETHER)]
        # Steps of GD are the cheapest, and of its sizes the largest are the paper's point.
        cost = 100 if method == "GD" else 1
        first += [(grid[part[0]] / cost, f"{FIGURE1} {method} {','.join(map(repr, part))}") for part in parts]
    return second + [name for _, name in sorted(first)]


def run_one(name: str, seconds: float, long: int) -> object:
    """Return the result of a run."""
    import jax

    from papers import _pgsvi, pgsvi_figure1, pgsvi_figure2

    figure, what, which = name.split()
    with jax.enable_x64(True):
        if figure == FIGURE1:
            grid = {size: pgsvi_figure1.AUTHORS[what][size] for size in map(float, which.split(","))}
            seconds *= 4 if what == "GD" else 1
            return pgsvi_figure1.sweep(_pgsvi.load_problem("ionosphere"), what, grid, seeds=3, seed=0, seconds=seconds)
        keys = jax.random.split(jax.random.key(0), pgsvi_figure2.SEEDS)
        problem = _pgsvi.load_problem(what)
        curves = pgsvi_figure2.measure_curves(problem, keys, pgsvi_figure2.PASSES, only=which, long=long)
        # Without the kernel matrices, of which there would be a copy in every file.
        bare = dataclasses.replace(problem, covariance=None, cross=None, labels=None, test_labels=None)
        return dataclasses.replace(curves, problem=bare)


def spread(waiting: list[str], given: argparse.Namespace) -> None:
    """Keep all cores busy until the time is over."""
    until, running = time.monotonic() + given.seconds, {}
    free = sorted(os.sched_getaffinity(0))[: given.cores] or [None]
    while (waiting or running) and time.monotonic() < until:
        for core, (name, process) in list(running.items()):
            if process.poll() is not None:
                print(f"{given.seconds - until + time.monotonic():6.0f} s  {name}  {process.returncode}", flush=True)
                del running[core]
                free.append(core)
        while waiting and free:
            name, core = waiting.pop(0), free.pop(0)
            command = [sys.executable, "-m", "benchmarks.pgsvi_figures", "--one", name, "--output", str(given.output)]
            command += ["--each", str(given.each), "--long", str(given.long)]
            alone = {"XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false", "OMP_NUM_THREADS": "1"}
            alone |= {} if core is None else {"PIN": str(core)}
            running[core] = name, subprocess.Popen(command, env={**os.environ, **(alone if core is not None else {})})
        time.sleep(0.2)
    for _, process in running.values():
        process.kill()


def judged(output: Path) -> dict:
    """Write both figures from the results so far, and return their verdicts."""
    import numpy as np

    from papers import pgsvi_figure1, pgsvi_figure2
    from papers.pgsvi_figure1 import Sweep
    from thalweg.demo import Section

    results = {path.stem: pickle.loads(path.read_bytes()) for path in sorted(output.glob("*.pickle"))}
    parts_of = {FIGURE1: {}, FIGURE2: {}}
    for name, result in results.items():
        figure, what, _ = name.split()
        parts_of[figure].setdefault(what, []).append(result)
    outcome = {}
    if set(parts_of[FIGURE1]) == set(pgsvi_figure1.AUTHORS):
        sweeps = {}
        for name in pgsvi_figure1.AUTHORS:
            parts = [vars(part) for part in parts_of[FIGURE1][name]]
            order = np.argsort(np.concatenate([part["sizes"] for part in parts]))
            sweeps[name] = Sweep(*(np.concatenate([part[field] for part in parts])[order] for field in parts[0]))
        figure = pgsvi_figure1.Figure1Results("ionosphere", 280, sweeps, full=True)
        section = Section(_folder(output / FIGURE1), quick=False, seed=0)
        pgsvi_figure1.show_results(section, figure)
        outcome[FIGURE1] = verdicts(pgsvi_figure1.CLAIMS, figure)
    complete = [data for data in pgsvi_figure2.DATA_SETS if len(parts_of[FIGURE2].get(data, ())) == 6]
    if complete:
        figure = pgsvi_figure2.Figure2Results(
            [pgsvi_figure2.join_methods(parts_of[FIGURE2][data]) for data in complete], full=True
        )
        section = Section(_folder(output / FIGURE2), quick=False, seed=0)
        pgsvi_figure2.show_results(section, figure)
        outcome[f"{FIGURE2} on {', '.join(complete)}"] = verdicts(pgsvi_figure2.CLAIMS, figure)
        outcome["nats from the optimum after ten passes"] = {
            curves.name: {name: curves.end(name) for name in curves.bounds} for curves in figure.data_sets
        }
        outcome["seeds, and passes of the longest run"] = {
            curves.name: [len(curves.bounds["Adam"]), curves.max_passes("Adam")] for curves in figure.data_sets
        }
    outcome["runs that ended, of all"] = f"{len(results)} of {len(names())}"
    return outcome


def verdicts(claims: tuple, results: object) -> list[dict]:
    return [{"claim": c.words, "verdict": c.verdict(results), "seen": c.evidence_in(results)} for c in claims]


def _folder(path: Path) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    return path


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--cores", type=int, default=2, help="0: one process that has the machine for itself (a GPU)")
    parser.add_argument("--seconds", type=float, default=36_000.0)
    parser.add_argument("--each", type=float, default=300.0, help="for a step size of Figure 1, four times that for GD")
    parser.add_argument("--long", type=int, default=500, help="passes of the long runs of Figure 2")
    parser.add_argument("--only", default="", help="words of which a run's name must hold one, with commas between")
    parser.add_argument("--output", type=Path, default=Path("reproductions") / "pgsvi")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given = parser.parse_args()
    given.output.mkdir(parents=True, exist_ok=True)
    if given.one:
        if "PIN" in os.environ:
            os.sched_setaffinity(0, {int(os.environ["PIN"])})
        result = run_one(given.one, given.each, given.long)
        (given.output / f"{given.one}.pickle").write_bytes(pickle.dumps(result))
        return
    waiting = [name for name in names() if any(word in name for word in given.only.split(","))]
    spread([name for name in waiting if not (given.output / f"{name}.pickle").exists()], given)
    outcome = judged(given.output)
    every = list(itertools.chain(*(rows for rows in outcome.values() if isinstance(rows, list))))
    holds = bool(every) and all(row["verdict"] == "holds" for row in every)
    table({column: [row[column][:60] for row in every] for column in ("verdict", "claim", "seen")})
    report("What the paper says of Figures 1 and 2 holds", outcome, holds)


if __name__ == "__main__":
    main()

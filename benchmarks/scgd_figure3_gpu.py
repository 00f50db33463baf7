"""Figure 3 of "Stochastic Chebyshev gradient descent" on a GPU: four starts on sound and on humidity.

Results are written after each start on each data set; claims are judged once all are there. Needs the data sets
(THALWEG_DATA).
"""

import argparse
import json
import time
from pathlib import Path

import jax

from benchmarks._common import RESULTS
from papers import scgd_figure3 as figure
from thalweg.demo import Section

ORDER = (2, 3, 1, 0)
"""Starts in the order in which they are run: where time may end early, those with longer lengthscales before."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each method from each start")
    parser.add_argument("--rounds", type=int, default=40, help="the most of each")
    parser.add_argument("--limit", type=float, default=1e9, help="seconds after which no run begins")
    parser.add_argument("--output", type=Path, default=Path("reproductions") / "scgd-figure3")
    given = parser.parse_args()
    began, curves = time.perf_counter(), []
    machine = {"device": str(jax.devices()[0].device_kind), "jax": jax.__version__}
    settings = {"seconds of a run": given.seconds, "most rounds": given.rounds}
    problems = figure.load_sound(), figure.load_humidity()
    for turn, problem in ((turn, problem) for turn in ORDER for problem in problems):
        if time.perf_counter() - began > given.limit:
            break
        curves += figure.measure(problem, problem.starts[turn], given.rounds, given.seconds, 0)
        results = figure.Figure3Results(
            sorted(curves, key=lambda c: c.start), len(curves) == 3 * len(ORDER) * len(problems)
        )
        claims = [
            {"claim": c.words, "verdict": c.verdict(results), "seen": c.evidence_in(results)} for c in figure.CLAIMS
        ]
        outcome = {"benchmark": "scgd_figure3", "claims": claims, "table": figure.columns(results)}
        outcome |= {"curves": figure.numbers(results), "settings": settings, "machine": machine}
        outcome["seconds"] = time.perf_counter() - began
        (RESULTS / "scgd_figure3_gpu.json").write_text(json.dumps(outcome, indent=1, default=float) + "\n")
        ends = ", ".join(f"{c.method} {c.errors[-1]:.4g} after {len(c.errors) - 1}" for c in curves[-3:])
        print(f"{outcome['seconds']:6.1f} s: {problem.name} {problem.starts[turn]:g}: {ends}", flush=True)
    given.output.mkdir(parents=True, exist_ok=True)
    figure.show_results(Section(given.output, quick=False, seed=0), results)


if __name__ == "__main__":
    main()

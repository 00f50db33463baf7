"""Figures 1 and 2 and Tables 3 to 6 of Li and Póczos (2017) on a GPU, in the time that one gives them.

What was found is written after each data set, and after each run of Figure 2: an end by force loses the run at hand
only. Figure 2 and Tables 4 to 6 may be of fewer rows than the paper's 8.1 million, which the page then says.

``python -m benchmarks.dsg_figures_gpu figure2 --rows 4000000 --seconds 20``; needs the data sets (THALWEG_DATA).
"""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

from benchmarks._common import RESULTS
from thalweg.experiments import dsg_figure1, dsg_figure2, dsg_table3, dsg_tables456
from thalweg.experiments.section import Run


def measure(given: argparse.Namespace, keep: Callable[..., None]) -> None:
    """Run what was asked for; hand its claims, what they judge and what draws the page to ``keep`` as it grows."""
    if given.what == "figure2":
        size = dsg_figure2.full(given.rows, given.seconds)
        dsg_figure2.measure(
            size, 0, lambda found: keep(dsg_figure2.CLAIMS, found, lambda run: dsg_figure2.show(run, found))
        )
        return
    if given.what == "tables456":
        met = dsg_tables456.measure(dsg_tables456.full(given.rows, given.seconds), 0, pretraining=300)
        keep(dsg_tables456.CLAIMS, met, lambda run: dsg_tables456.show(run, met))
        return
    module: Any = dsg_figure1 if given.what == "figure1" else dsg_table3
    size, parts = module.full(given.seconds), []
    for name in given.data.split(",") if given.data else module.DATA_SETS:
        parts.append(module.measure(name, size, 0))
        print(name, f"{time.perf_counter():.0f} s", flush=True)
        judged = dsg_figure1.Race(parts, True) if given.what == "figure1" else dsg_table3.Table(parts, True)
        keep(module.CLAIMS, judged, lambda run: module.show(run, size, parts))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("figure1", "figure2", "table3", "tables456"))
    parser.add_argument("--rows", type=int, default=dsg_figure2.ROWS)
    parser.add_argument("--seconds", type=float, default=20.0, help="of training for each run")
    parser.add_argument("--data", default="", help="data sets of Figure 1 or Table 3, with commas between")
    parser.add_argument("--output", type=Path, default=Path("reproductions"))
    given = parser.parse_args()
    folder = given.output / f"dsg-{given.what}"
    folder.mkdir(parents=True, exist_ok=True)
    began = time.perf_counter()
    machine = {"device": str(jax.devices()[0].device_kind), "jax": jax.__version__}

    def keep(claims: Any, found: Any, draw: Callable[[Run], None]) -> None:
        rows = [{"claim": c.words, "verdict": c.verdict(found), "seen": c.evidence(found)} for c in claims]
        outcome = {"benchmark": f"dsg_{given.what}", "claims": rows, "seconds": time.perf_counter() - began}
        outcome |= {"settings": {"rows": given.rows, "seconds of a run": given.seconds}, "machine": machine}
        (RESULTS / f"dsg_{given.what}_gpu.json").write_text(json.dumps(outcome, indent=1) + "\n")
        print(json.dumps(outcome), flush=True)
        draw(Run(folder, quick=False, seed=0))

    measure(given, keep)


if __name__ == "__main__":
    main()

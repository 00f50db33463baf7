"""Figures 1 and 2 and Table 3 of Li and Póczos (2017) on a GPU, in the time that one gives them.

What was found is kept after each run in ``--output``: an end by force loses the run at hand only. Figure 2 may be of
fewer rows than the paper's 8.1 million, which the page then says.

``python -m benchmarks.dsg_figures_gpu figure2 --rows 4000000 --seconds 20``; needs the data sets (THALWEG_DATA).
"""

import argparse
import json
import pickle
import time
from pathlib import Path
from typing import Any

import jax

from benchmarks._common import RESULTS
from thalweg.experiments import dsg_figure1, dsg_figure2, dsg_table3
from thalweg.experiments.section import Run

DATA_SETS = {"figure1": dsg_figure1.DATA_SETS, "table3": dsg_table3.DATA_SETS}


def found_for(given: argparse.Namespace, folder: Path) -> tuple[Any, Any, Any]:
    """Run what was asked for; return its claims, what they judge, and what draws the page."""
    if given.what == "figure2":
        size = dsg_figure2.full(given.rows, given.seconds)
        keep = lambda found: (folder / "found.pickle").write_bytes(pickle.dumps(found))
        found = dsg_figure2.measure(size, 0, keep)
        return dsg_figure2.CLAIMS, found, lambda run: dsg_figure2.show(run, found)
    module, size = (
        (dsg_figure1, dsg_figure1.full(given.seconds))
        if given.what == "figure1"
        else (dsg_table3, dsg_table3.full(given.seconds))
    )
    parts = []
    for name in given.data.split(",") if given.data else DATA_SETS[given.what]:
        parts.append(module.measure(name, size, 0))
        (folder / "found.pickle").write_bytes(pickle.dumps(parts))
        print(name, f"{time.perf_counter():.0f} s", flush=True)
    judged = dsg_figure1.Race(parts, True) if given.what == "figure1" else dsg_table3.Table(parts, True)
    return module.CLAIMS, judged, lambda run: module.show(run, size, parts)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("figure1", "figure2", "table3"))
    parser.add_argument("--rows", type=int, default=dsg_figure2.ROWS)
    parser.add_argument("--seconds", type=float, default=20.0, help="of training for each run")
    parser.add_argument("--data", default="", help="data sets of Figure 1 or Table 3, with commas between")
    parser.add_argument("--output", type=Path, default=Path("reproductions"))
    given = parser.parse_args()
    folder = given.output / f"dsg-{given.what}"
    folder.mkdir(parents=True, exist_ok=True)
    began = time.perf_counter()
    claims, found, draw = found_for(given, folder)
    draw(Run(folder, quick=False, seed=0))
    rows = [{"claim": c.words, "verdict": c.verdict(found), "seen": c.evidence(found)} for c in claims]
    machine = {"device": str(jax.devices()[0].device_kind), "jax": jax.__version__}
    outcome = {"benchmark": f"dsg_{given.what}", "claims": rows, "seconds": time.perf_counter() - began}
    outcome |= {"settings": {"rows": given.rows, "seconds of a run": given.seconds}, "machine": machine}
    text = json.dumps(outcome, indent=1)
    (RESULTS / f"dsg_{given.what}_gpu.json").write_text(text + "\n")
    (folder / "claims.json").write_text(text + "\n")
    print(json.dumps(outcome))


if __name__ == "__main__":
    main()

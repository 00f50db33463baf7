"""What the search for a kernel and a ridge costs: seconds of KernelClassifier() and KernelRegressor() with and without.

Each is fitted by default, and again with the kernel and the ridge that were found given to it. The part of the first
time that the second one spares is that of the search. On whatever cores the process may use (pin it to two with
``taskset -c 0,1``). Needs the data sets (THALWEG_DATA).

    python -m benchmarks.kernel_search --rows 2000 6000 --sets bike protein
"""

import argparse
import time
from typing import Any

import numpy as np

from benchmarks._common import report, table
from benchmarks.kernel_tables import Problem, problem
from thalweg import KernelClassifier, KernelRegressor

SETS = ("covtype", "a9a", "w8a", "cifar10", "mnist", "bike", "elevators", "protein", "keggundirected", "pumadyn32nm")
ROWS = (2000, 6000, 20_000)
# Sets that are a little smaller count as of so many rows.
NEARLY = 0.75
MOST = 0.85


def fitted(p: Problem, **given: Any) -> tuple[Any, float]:
    """A machine that has learned from the training part, and the seconds that it took."""
    began = time.perf_counter()
    model = (KernelClassifier if p.labels else KernelRegressor)(random_state=0, **given).fit(p.x, p.y)
    return model, time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", nargs="+", type=int, default=ROWS)
    parser.add_argument("--sets", nargs="+", default=SETS)
    asked = parser.parse_args()
    lines = []
    for name in asked.sets:
        for rows in asked.rows:
            p = problem(name, rows)
            if len(p.y) < NEARLY * rows:
                continue
            model, seconds = fitted(p)
            _, without = fitted(p, kernel=model.kernel_, alpha=model.alpha_)
            part = 1 - without / seconds
            lines.append({"set": name, "rows": len(p.y), "seconds": seconds, "without": without, "part": part})
            print(lines[-1], flush=True)
    table({key: [line[key] for line in lines] for key in lines[0]})
    parts = lambda rows: [line["part"] for line in lines if NEARLY * rows <= line["rows"] <= rows]
    figure = {f"{rows:,} rows": [min(parts(rows)), np.median(parts(rows)), max(parts(rows))] for rows in asked.rows}
    report(
        f"The search for a kernel and a ridge takes at most {MOST:.0%} of a fit with {asked.rows[-1]:,} rows",
        figure,
        max(parts(asked.rows[-1])) <= MOST,
        lines=lines,
    )


if __name__ == "__main__":
    main()

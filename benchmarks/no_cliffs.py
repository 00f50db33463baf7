"""Error and time on either side of every row count at which a method changes, on one data set, with a picture.

For each such count the estimator learns from 2 % fewer and from 2 % more rows, with five seeds or more: 20,000 divided
by the rows, up to 200. Errors are compared by their means, times by their medians of processor seconds. What changes is
said in ``CHANGES``; the counts themselves are those of the library.

    python -m benchmarks.no_cliffs --estimators KernelRegressor --most 3000 [--workers 6]
"""

import argparse
import multiprocessing
import time
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.ticker import NullFormatter

from benchmarks._common import RESULTS, report, table
from thalweg import GPRegressor, KernelClassifier, KernelRegressor
from thalweg.machines.calibration import MIN_ROWS
from thalweg.machines.newton import MAX_FACTORISED_ROWS
from thalweg.machines.search import FIRST_RUNG, SEARCH_ROWS
from thalweg.machines.settings import Auto
from thalweg.models.kernel_classifier import _FEW_ROWS
from thalweg.processes.fit import MAX_EXACT_ROWS, MAX_UNCERTAIN_ROWS
from thalweg.processes.problem import LEAST_GROWTH, SUBSET_ROWS

MACHINES = {
    "rows left out tell of errors": MIN_ROWS,
    "the race has two rungs": FIRST_RUNG,
    "the second rung has no more rows": 2 * FIRST_RUNG,
    "float64 or float32": Auto().block_size,
    "the race has three rungs": 3 * SEARCH_ROWS,
    "factor or conjugate gradients": MAX_FACTORISED_ROWS,
}
PROCESSES = {f"kernels are compared on {rows} rows": round(LEAST_GROWTH * rows) for rows in SUBSET_ROWS["cpu"]}
CHANGES: dict[str, dict[str, int]] = {
    "KernelRegressor": MACHINES,
    "KernelClassifier": MACHINES | {"logistic or squared loss": 2 * _FEW_ROWS},
    "GPRegressor": PROCESSES
    | {"parameters are integrated over": MAX_UNCERTAIN_ROWS, "exact or iterative": MAX_EXACT_ROWS},
}
SHARE, SEEDS, NEW_ROWS, MOST_ERROR, MOST_TIME = 0.02, (5, 200), 20_000, 1.05, 1.5
MEDIAN = 14.4
"""Of the targets: labels say whether they are above it. That of the rows would make odd numbers of them unbalanced."""


def examples(rows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Five features that matter (Friedman, 1991), three that do not, and noise of a tenth of the signal."""
    rng = np.random.default_rng([seed, 7])
    x = rng.uniform(size=(rows, 8))
    signal = 10 * np.sin(np.pi * x[:, 0] * x[:, 1]) + 20 * (x[:, 2] - 0.5) ** 2 + 10 * x[:, 3] + 5 * x[:, 4]
    return x, signal + 0.5 * rng.normal(size=rows)


def measure(name: str, rows: int, seed: int) -> tuple[float, float]:
    """The error of new rows, and processor seconds of a fit."""
    x, y = examples(rows + NEW_ROWS, seed)
    if name == "KernelClassifier":
        y = (y > MEDIAN).astype(int)
        first = [np.argmax(y), np.argmin(y)]  # few rows have both classes
        order = np.concatenate([first, np.delete(np.arange(len(y)), first)])
        x, y = x[order], y[order]
    model: Any = {"KernelClassifier": KernelClassifier, "KernelRegressor": KernelRegressor, "GPRegressor": GPRegressor}
    model = model[name](random_state=seed)
    began = time.process_time()
    model.fit(x[:rows], y[:rows])
    seconds = time.process_time() - began
    found = model.predict(x[rows:])
    if name == "KernelClassifier":
        return float(np.mean(found != y[rows:])), seconds
    return float(np.sqrt(np.mean((found - y[rows:]) ** 2))), seconds


def either(rows: int) -> tuple[int, int]:
    """Fewer and more rows; the last count below and the first one above where 2 % of them are no row."""
    apart = round(SHARE * rows)
    return (rows - apart, rows + apart) if apart else (rows - 1, rows)


def either_side(change: tuple[str, str, int]) -> dict[str, Any]:
    """Errors and seconds with fewer rows and with more."""
    name, what, rows = change
    measure(name, 100, 0)  # imports and compiles
    seeds = range(max(SEEDS[0], min(20_000 // rows, SEEDS[1])))
    sides = [[measure(name, side, seed) for seed in seeds] for side in either(rows)]
    below, above = (np.array(side).T for side in sides)
    return {
        "estimator": name,
        "change": what,
        "rows": rows,
        "errors": [float(side[0].mean()) for side in (below, above)],
        "seconds": [float(np.median(side[1])) for side in (below, above)],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--estimators", nargs="+", default=list(CHANGES), choices=list(CHANGES))
    parser.add_argument("--most", type=int, default=MAX_FACTORISED_ROWS + 1)
    parser.add_argument("--workers", type=int, default=1, help="processes that fit beside each other")
    asked = parser.parse_args()
    changes = [(name, *change) for name in asked.estimators for change in CHANGES[name].items()]
    changes = sorted((change for change in changes if change[2] <= asked.most), key=lambda change: -change[2])
    lines: list[dict[str, Any]] = []
    with multiprocessing.get_context("spawn").Pool(asked.workers) as pool:
        for line in pool.imap_unordered(either_side, changes, chunksize=1):
            lines.append(line)
            print(line, flush=True)
    lines.sort(key=lambda line: (asked.estimators.index(line["estimator"]), line["rows"]))
    ratios = lambda what: [float(max(line[what]) / min(line[what])) for line in lines]
    errors, seconds = ratios("errors"), ratios("seconds")
    table(
        {
            "estimator": [line["estimator"] for line in lines],
            "rows": [line["rows"] for line in lines],
            "change": [line["change"] for line in lines],
            "error": errors,
            "time": seconds,
        }
    )
    draw(lines, asked.estimators)
    report(
        "Error and time have no cliffs where a method changes with the number of rows",
        {"largest ratio of errors": max(errors), "largest ratio of times": max(seconds)},
        max(errors) <= MOST_ERROR and max(seconds) <= MOST_TIME,
        lines=lines,
    )


def draw(lines: list[dict[str, Any]], estimators: list[str]) -> None:
    """Errors and seconds by rows; each pair of points is a change of method."""
    figure, axes = plt.subplots(2, len(estimators), figsize=(4 * len(estimators), 5), sharex="col", squeeze=False)
    for column, name in zip(axes.T, estimators, strict=True):
        mine = [line for line in lines if line["estimator"] == name]
        for axis, what in zip(column, ("errors", "seconds"), strict=True):
            for line in mine:
                axis.plot(either(line["rows"]), line[what], "o-", markersize=3)
            axis.set(xscale="log", yscale="log", ylabel=what)
            axis.xaxis.set_minor_formatter(NullFormatter())
        column[0].set_title(name)
        column[1].set_xlabel("rows")
    figure.tight_layout()
    figure.savefig(RESULTS / "no_cliffs.png", dpi=110)


if __name__ == "__main__":
    main()

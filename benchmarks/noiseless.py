"""Targets without noise: the default ``KernelRegressor`` fits them to a thousandth of their spread, or warns.

Polynomials, sines and sums of them, of 1 to 30 standard normal features, from 500 to 9,000 rows: 80 tables, every one a
first call with defaults. The errors are root mean squares over the standard deviation of the target, on the rows that
were learned from and on 1,000 new ones. A table counts as met where the first is at most 1e-3, or where the fit warned;
none may end in an error.

``python -m benchmarks.noiseless --workers 15``
"""

import argparse
import os
import time
import warnings
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from multiprocessing import get_context

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from benchmarks._common import report, table
from thalweg import KernelRegressor

ROWS, FEATURES, NEW_ROWS = (500, 2000, 5288, 9000), (1, 3, 10, 20, 30), 1000
TARGETS = {
    "polynomial": lambda x: x[:, 0] ** 3 - 2 * x[:, 0] + x[:, -1] ** 2,
    "sine": lambda x: np.sin(2 * x[:, 0] + x[:, -1]),
    "sum of sines": lambda x: np.sin(2 * x).sum(1),
    "sum of both": lambda x: np.sin(3 * x[:, 0]) + 0.5 * x[:, -1] ** 2 + x[:, len(x[0]) // 2],
}


def fitted(cell: tuple[str, int, int]) -> dict:
    """The errors of one default fit, what it warned of, and its processor seconds."""
    name, rows, features = cell
    x = np.random.default_rng([rows, features]).normal(size=(rows + NEW_ROWS, features))
    y = TARGETS[name](x)
    began = time.process_time()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            errors = (KernelRegressor(random_state=0).fit(x[:rows], y[:rows]).predict(x) - y) / np.std(y)
        except (ValueError, ArithmeticError) as error:
            return {"target": name, "rows": rows, "features": features, "raised": repr(error), "met": False}
    seen, new = (float(np.sqrt(np.mean(part**2))) for part in (errors[:rows], errors[rows:]))
    warned = [str(one.message) for one in told if issubclass(one.category, ConvergenceWarning)]
    found = {"seen": seen, "new": new, "warned": warned, "seconds": time.process_time() - began}
    return {"target": name, "rows": rows, "features": features, **found, "met": seen <= 1e-3 or bool(warned)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--most", type=int, default=max(ROWS), help="leave larger tables out")
    options = parser.parse_args()
    cells = [cell for cell in product(TARGETS, ROWS, FEATURES) if cell[1] <= options.most]
    cells.sort(key=lambda cell: -cell[1])
    found: list[dict] = []
    with ProcessPoolExecutor(options.workers, get_context("spawn")) as pool:
        for one in pool.map(fitted, cells):
            found.append(one)
            print(one, flush=True)
    shown = ("target", "rows", "features", "seen", "new", "seconds", "met")
    table({column: [one.get(column, float("nan")) for one in found] for column in shown})
    met = sum(one["met"] for one in found)
    report("noiseless targets are fitted or warned of, never an error", met / len(found), met == len(found), fits=found)


if __name__ == "__main__":
    main()

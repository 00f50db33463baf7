"""Fifty thousand rows of a known Gaussian process in 8 dimensions within 4 GB: GPRegressor() on two cores of a CPU.

The rows are those of ``gp_million_gpu``. Memory is the largest that the process ever held, imports and data included.

``JAX_PLATFORMS=cpu taskset -c 0,1 python -m benchmarks.gp_fifty_thousand`` (``--rows 13000`` is quicker).
"""

import argparse
import os
import resource
import time

import numpy as np

from benchmarks._common import report
from benchmarks.gp_million_gpu import NEW, draw
from thalweg import GPRegressor

ROWS, GIGABYTES = 50_000, 4.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=ROWS)
    rows = parser.parse_args().rows
    inputs, truth, targets = draw(rows + NEW)
    held = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(f"{rows} rows drawn, {held():.2f} GB", flush=True)
    began, busy = time.perf_counter(), time.process_time()
    model = GPRegressor(random_state=0).fit(inputs[:rows], targets[:rows])
    fitted = time.perf_counter()
    print(f"fitted in {fitted - began:.0f} s, {held():.2f} GB: {model.kernel_}, noise {model.noise_:.4g}", flush=True)
    mean, deviation = model.predict(inputs[rows:], return_std=True)
    error = targets[rows:] - mean
    figures = {
        "peak_gigabytes": held(),
        "fit_seconds": fitted - began,
        "predict_seconds": time.perf_counter() - fitted,
        "processor_seconds": time.process_time() - busy,
        "rmse_ratio": float(np.sqrt(np.mean(error**2) / np.mean((targets - truth)[rows:] ** 2))),
        "coverage": float(np.mean(np.abs(error) < 1.96 * deviation)),
    }
    cores = len(os.sched_getaffinity(0))
    holds = rows >= ROWS and cores <= 2 and figures["peak_gigabytes"] < GIGABYTES
    details = {"rows": rows, "cores": cores, "method": model.method_, "kernel": str(model.kernel_)}
    report(f"{ROWS:,} rows are fitted within {GIGABYTES:g} GB on two cores", figures, holds, **details)


if __name__ == "__main__":
    main()

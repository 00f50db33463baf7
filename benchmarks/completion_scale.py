"""MatrixCompletion at scale: 20 million synthetic ratings of 20,000 columns by 200,000 rows, rank 32.

Seconds of a sweep over all ratings once all is compiled, and memory at the peak, beside those of a quarter of the
ratings by a quarter of the rows and columns, in a process of its own: memory is linear if four times as much takes four
times as much, less what Python and JAX take for themselves.

``python -m benchmarks.completion_scale``, on a CPU or a GPU.
"""

import argparse
import json
import resource
import subprocess
import sys
import time

import jax
import numpy as np

from benchmarks._common import report, table

RANK, SWEEPS = 32, 2


def drawn(count: int, rows: int, columns: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Ratings of columns of uneven popularity, from five factors."""
    rng = np.random.default_rng(0)
    row = rng.integers(0, rows, count)
    column = (columns * rng.random(count) ** 2).astype(np.int64)
    p, q = rng.normal(size=(rows, 5)).astype(np.float32), rng.normal(size=(columns, 5)).astype(np.float32)
    values = np.empty(count, np.float64)
    for start in range(0, count, 10**6):
        some = slice(start, start + 10**6)
        values[some] = 3 + 0.5 * np.einsum("nk,nk->n", p[row[some]], q[column[some]])
    return row, column, values + 0.8 * rng.normal(size=count)


def one(count: int) -> dict:
    from thalweg.completion import FactorSettings, Options, Ratings, complete

    rows, columns = count // 100, count // 1000
    row, column, values = drawn(count, rows, columns)
    before = gigabytes()
    clock = [time.perf_counter()]
    work = [time.process_time()]

    def tick(line: str) -> None:
        clock.append(time.perf_counter())
        work.append(time.process_time())
        print(line, f"{clock[-1] - clock[-2]:.1f} s", flush=True, file=sys.stderr)

    options = Options(FactorSettings(rank=RANK, max_iter=SWEEPS, tol=0.0), presence=False)
    none = np.zeros((rows, 0)), np.zeros((columns, 0))
    found = complete(Ratings(row, column, values, None, (rows, columns)), *none, options, show=tick)
    figure = {
        "ratings": count,
        "seconds of a sweep": float(np.diff(clock)[-1]),
        "processor seconds of a sweep": float(np.diff(work)[-1]),
        "seconds of the first, with arranging and compiling": clock[1] - clock[0],
        "host GiB before": before,
        "host GiB at the peak": gigabytes(),
        "noise found (0.8)": float(found.history["noise"][-1]),
    }
    if stats := jax.devices()[0].memory_stats():
        figure["device GiB at the peak"] = stats["peak_bytes_in_use"] / 2**30
    return figure


def gigabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--ratings", type=int, default=20_000_000)
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(one(given.one)))
        return
    lines = []
    for count in (given.ratings // 4, given.ratings):
        command = (sys.executable, "-m", "benchmarks.completion_scale", "--one", str(count))
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        lines.append(json.loads(done.stdout.splitlines()[-1]))
        print(lines[-1], flush=True)
    table({name: [line[name] for line in lines] for name in lines[0]})
    small, large = (line["host GiB at the peak"] - 0.5 for line in lines)
    report(
        f"{given.ratings} ratings, rank {RANK}: memory linear in the ratings, and the seconds of a sweep",
        lines[1],
        large / small <= 4.4,
        lines=lines,
    )


if __name__ == "__main__":
    main()

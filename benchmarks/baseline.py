"""Some sixty small cases over all estimators, ``minimize`` and spectral sums: record them, and compare two recordings.

    python -m benchmarks.baseline                          # records to results/baseline.json
    python -m benchmarks.baseline --to now.json --cases kernel_ gp_
    python -m benchmarks.baseline --compare results/baseline.json now.json

Every case runs in a process of its own, once for each seed, compile time included. A recording holds predictions,
losses by test row, log densities, coverage, seconds, processor seconds and memory, with date, commit and device.

A comparison pairs test rows: an error or a log density has moved if the mean difference is more than three of its
standard errors and more than 1 % of its size, coverage if it has left its level by more than chance and more than
before, and time if both wall and processor seconds differ by more than 10 % and .2 s. It exits with the number of cases
that are worse.
"""

import argparse
import datetime
import json
import platform
import resource
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import jax
import numpy as np

from benchmarks._baseline_cases import CASES
from benchmarks._common import RESULTS

SEEDS = 3
STANDARD_ERRORS = 3.0
LEAST_SHARE, SLOWER, LEAST_SECONDS, ROUNDING = 0.01, 1.1, 0.2, 1e-9
MOST_ROWS_KEPT, PREDICTIONS_KEPT = 500, 5


def run(name: str, seed: int) -> dict[str, Any]:
    """One case in this process."""
    jax.numpy.ones(3).sum().block_until_ready()  # starts the backend outside the clock
    began, busy = time.perf_counter(), time.process_time()
    told: dict[str, Any]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            found = CASES[name](seed)
        except Exception as error:
            told = {"raised": f"{type(error).__name__}: {error}"[:300]}
        else:
            short = lambda array, most: [float(f"{value:.5g}") for value in np.ravel(array)[:most]]
            told = {"predictions": short(found.predictions, PREDICTIONS_KEPT)}
            told["losses"] = short(found.losses, MOST_ROWS_KEPT)
            if found.log_densities is not None:
                told["log_densities"] = short(found.log_densities, MOST_ROWS_KEPT)
            if found.inside is not None:
                told |= {"inside": int(np.sum(found.inside)), "of": int(np.size(found.inside)), "level": found.level}
    told |= {"seconds": time.perf_counter() - began, "processor_seconds": time.process_time() - busy}
    told["warnings"] = sorted({warning.category.__name__ for warning in caught})
    return told | {"peak_mebibytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}


def record(path: Path, wanted: list[str]) -> None:
    """Run all cases that are wanted, and write them with what they were run on."""
    names = [name for name in CASES if not wanted or name.startswith(tuple(wanted))]
    cases: dict[str, list[Any]] = {}
    for name in names:
        command = [sys.executable, "-m", "benchmarks.baseline", "--one", name]
        cases[name] = []
        for seed in range(SEEDS):
            ended = subprocess.run([*command, str(seed)], capture_output=True, text=True, check=False)
            lines = ended.stdout.splitlines()
            cases[name].append(json.loads(lines[-1]) if lines else {"raised": ended.stderr[-300:]})
        print(f"{name:42} {summary(cases[name])}", flush=True)
    if wanted and path.exists():  # further cases of an earlier recording
        cases = json.loads(path.read_text())["cases"] | cases
    about = {"date": datetime.date.today().isoformat(), "commit": _commit(), "machine": platform.machine()}
    about |= {"jax": jax.__version__, "python": platform.python_version(), "device": _device()}
    path.write_text(json.dumps(about | {"cases": cases}) + "\n")


def _commit() -> str:
    command = ["git", "describe", "--always", "--dirty"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def _device() -> str:
    command = [sys.executable, "-c", "import jax; print(jax.devices()[0].device_kind)"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def summary(runs: list[dict[str, Any]]) -> str:
    """One line for a case."""
    raised = [run["raised"] for run in runs if "raised" in run]
    if raised:
        return f"raised {len(raised)} of {len(runs)}: {raised[0]}"
    told = f"loss {np.mean([np.mean(run['losses']) for run in runs]):10.4g}"
    if "log_densities" in runs[0]:
        told += f"  log density {np.mean([np.mean(run['log_densities']) for run in runs]):8.4g}"
    if "inside" in runs[0]:
        told += f"  {100 * sum(run['inside'] for run in runs) / sum(run['of'] for run in runs):5.1f} % inside"
    return told + f"  {_median(runs, 'seconds'):6.2f} s, {_median(runs, 'processor_seconds'):6.2f} CPU s"


def _median(runs: list[dict[str, Any]], what: str) -> float:
    return float(np.median([run[what] for run in runs]))


def differences(before: list[dict[str, Any]], now: list[dict[str, Any]]) -> dict[str, tuple[float, float]]:
    """What moved by more than noise: what it was and what it is."""
    if any("raised" in run for run in before + now):
        count = [sum("raised" in run for run in runs) for runs in (before, now)]
        return {} if count[0] == count[1] else {"raised": (float(count[0]), float(count[1]))}
    moved = {}
    for what in ("losses", "log_densities"):
        if what not in before[0] or what not in now[0]:
            continue
        old, new = (np.concatenate([run[what] for run in runs]) for runs in (before, now))
        if len(old) != len(new):
            moved[what] = float(np.mean(old)), float(np.mean(new))
            continue
        apart, size = new - old, max(abs(np.mean(old)), ROUNDING / LEAST_SHARE)
        noise = STANDARD_ERRORS * np.std(apart) / np.sqrt(len(apart)) if len(apart) > SEEDS else np.std(old)
        if abs(np.mean(apart)) > max(noise, LEAST_SHARE * size):
            moved[what] = float(np.mean(old)), float(np.mean(new))
    if "inside" in before[0] and "inside" in now[0]:
        level, rows = now[0]["level"], sum(run["of"] for run in now)
        old, new = (sum(run["inside"] for run in runs) / rows for runs in (before, now))
        chance = STANDARD_ERRORS * np.sqrt(level * (1 - level) / rows)
        if abs(new - level) > max(chance, abs(old - level) + LEAST_SHARE):
            moved["coverage"] = old, new
    times = {what: (_median(before, what), _median(now, what)) for what in ("seconds", "processor_seconds")}
    further = [max(pair) > SLOWER * min(pair) and max(pair) - min(pair) > LEAST_SECONDS for pair in times.values()]
    if all(further):
        moved |= times
    return moved


def worse(what: str, before: float, now: float) -> bool:
    return now < before if what == "log_densities" else what == "coverage" or now > before


def compare(before: Path, now: Path) -> int:
    """Print what moved; return the number of cases that are worse in anything."""
    old, new = json.loads(before.read_text()), json.loads(now.read_text())
    for told in (old, new):
        print({name: told[name] for name in told if name != "cases"})
    ended = 0
    for name in old["cases"]:
        if name not in new["cases"]:
            continue
        moved = differences(old["cases"][name], new["cases"][name])
        bad = [what for what, pair in moved.items() if worse(what, *pair)]
        ended += bool(bad)
        if moved:
            shown = ", ".join(f"{what} {pair[0]:.4g} -> {pair[1]:.4g}" for what, pair in moved.items())
            print(f"{'WORSE ' if bad else 'better'} {name:42} {shown}")
    total = [sum(_median(told["cases"][name], "processor_seconds") for name in old["cases"]) for told in (old, new)]
    print(f"{ended} cases are worse; processor seconds of all cases {total[0]:.0f} -> {total[1]:.0f}")
    return ended


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--to", type=Path, default=RESULTS / "baseline.json")
    parser.add_argument("--cases", nargs="+", default=[], help="beginnings of their names")
    parser.add_argument("--compare", nargs=2, type=Path)
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.compare:
        return compare(*asked.compare)
    if asked.one:
        print(json.dumps(run(asked.one[0], int(asked.one[1]))))
        return 0
    record(asked.to, asked.cases)
    return 0


if __name__ == "__main__":
    sys.exit(main())

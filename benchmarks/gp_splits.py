"""GPRegressor() without arguments against GPyTorch over the ten splits of four small sets: predictive densities.

As ``gp_regressor_gpu``, which compares times on split 0, but each fit on one core of a CPU, or on a GPU if there is one
and ``--workers 1``. GPyTorch is granted the best of its checkpoints on each split, by the rows that are predicted. One
split of 76 to 160 rows has a standard error of about 0.1 in such a difference; the mean over ten has a third of that.

``python -m benchmarks.gp_splits --workers 14`` (``--peers PYTHON`` has torch and gpytorch, by default this one;
``--theirs FILE`` takes GPyTorch's fits from the results of an earlier run).
"""

import argparse
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

import numpy as np

from benchmarks.gp_regressor_gpu import gpytorch, scores, split

SETS = ("concrete", "energy", "airfoil", "wine")
SPLITS = range(10)


def ours(name: str, which: int) -> dict:
    import warnings

    from thalweg import GPRegressor

    inputs, targets, new, truth = split(name, which)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = GPRegressor(random_state=0).fit(inputs, targets)
    mean, deviation = model.predict(new, return_std=True)
    return {**scores(mean, deviation**2, truth, targets.std()), "kernel": type(model.kernel_).__name__}


def apart(python: str, library: str, name: str, which: int) -> dict:
    """What a fresh process prints."""
    command = (python, "-m", "benchmarks.gp_splits", "--one", library, name, str(which))
    one_thread = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **one_thread})
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    return {"library": library, "set": name, "split": which, **json.loads(done.stdout.splitlines()[-1])}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--peers", default=sys.executable)
    parser.add_argument("--alone", action="store_true", help="leave GPyTorch out")
    parser.add_argument("--theirs", help="take GPyTorch's part from the results of an earlier run")
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("sets", nargs="*", default=list(SETS))
    given = parser.parse_args()
    if given.one:
        library, name, which = given.one
        print(json.dumps({"thalweg": ours, "gpytorch": gpytorch}[library](name, int(which))))
        return
    from benchmarks._common import report, table

    pythons = {"thalweg": sys.executable}
    found: list[dict] = []
    if given.theirs:
        earlier = json.loads(Path(given.theirs).read_text())["details"]["fits"]
        found = [one for one in earlier if one["library"] == "gpytorch" and one["set"] in given.sets]
    elif not given.alone:
        pythons["gpytorch"] = given.peers
    with ThreadPoolExecutor(given.workers) as pool:
        order = [(name, which) for name in given.sets for which in SPLITS]
        asked = [pool.submit(apart, pythons[library], library, *one) for one in order for library in pythons]
        for answer in as_completed(asked):
            found.append(answer.result())
            print(json.dumps(found[-1]), flush=True)
    column = lambda name, library, key: np.array(
        [
            one[key]
            for one in sorted(found, key=lambda one: one["split"])
            if (one["set"], one["library"]) == (name, library)
        ]
    )
    rows: dict[str, list] = {key: [] for key in ("set", "ours", "coverage", "theirs", "difference", "error")}
    for name in given.sets:
        mine = column(name, "thalweg", "nlpd")
        away = mine - column(name, "gpytorch", "nlpd") if not given.alone else np.full(len(mine), np.nan)
        covered = float(np.mean(column(name, "thalweg", "coverage")))
        error = float(np.std(away, ddof=1) / np.sqrt(len(away)))
        line = (name, float(np.mean(mine)), covered, float(np.mean(mine - away)), float(np.mean(away)), error)
        for cells, cell in zip(rows.values(), line, strict=True):
            cells.append(cell)
    table(rows)
    if not given.alone and tuple(given.sets) == SETS:
        claim = "over ten splits no small set has a higher mean NLPD than GPyTorch's best checkpoints"
        figure = dict(zip(rows["set"], rows["difference"], strict=True))
        report(claim, figure, max(rows["difference"]) <= 0, **rows, fits=found)


if __name__ == "__main__":
    main()

"""Coverage of GPRegressor()'s 95 % intervals, mean ± 1.96 standard deviations, beside scikit-learn's.

Eight sets of UCI, chosen before any figure was seen, and seven that are smaller or odd as further evidence; the mean
over their ten splits. Ours are the defaults on raw columns; scikit-learn's kernel is ConstantKernel · RBF with a
lengthscale for each feature + WhiteKernel, on standardised features, with normalize_y. "density" is the mean negative
logarithm of the predictive density in units of y's standard deviation. scikit-learn gets two splits only where there
are more than 600 rows. Needs the data sets (THALWEG_DATA).

``python -m benchmarks.gp_coverage`` (``--only servo yacht``, ``--theirs FILE`` takes scikit-learn from an earlier
run's results, ``--workers 15`` does as many splits at a time).
"""

import argparse
import json
import os
import time
import warnings
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.preprocessing import StandardScaler

import thalweg
from benchmarks._common import report, table
from thalweg import GPRegressor

EIGHT = ("autompg", "concrete", "energy", "housing", "yacht", "wine", "airfoil", "servo")
FURTHER = ("fertility", "concreteslump", "challenger", "machine", "autos", "stock", "pendulum")
FIGURES = ("coverage", "density", "rmse", "width", "seconds")


def ours(X: np.ndarray, y: np.ndarray, new: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return GPRegressor(random_state=0).fit(X, y).predict(new, return_std=True)


def theirs(X: np.ndarray, y: np.ndarray, new: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    scale = StandardScaler().fit(X)
    kernel = ConstantKernel(1.0) * RBF(np.full(X.shape[1], np.sqrt(X.shape[1]))) + WhiteKernel(0.1)
    model = GaussianProcessRegressor(kernel, normalize_y=True, random_state=0).fit(scale.transform(X), y)
    return model.predict(scale.transform(new), return_std=True)


def splits(name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    data = thalweg.data.load(f"uci/{name}")
    return np.asarray(data.X, float), np.asarray(data.y, float), np.asarray(data.test_mask).T


def figures(name: str, which: int, way) -> list[float]:
    """Those of one split."""
    X, y, masks = splits(name)
    test = masks[which]
    began = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        mean, std = way(X[~test], y[~test], X[test])
    seconds = time.process_time() - began
    unit = y[~test].std()
    away, std = (y[test] - mean) / unit, std / unit
    density = np.mean((away / std) ** 2 / 2 + np.log(std) + np.log(2 * np.pi) / 2)
    covered = np.mean(np.abs(away) <= 1.96 * std)
    return [covered, density, np.sqrt(np.mean(away**2)), np.mean(3.92 * std), seconds]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", nargs="*", default=EIGHT + FURTHER)
    parser.add_argument("--theirs")
    parser.add_argument("--workers", type=int, default=1)
    given = parser.parse_args()
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1" if given.workers > 1 else str(os.cpu_count()))
    ways = {"thalweg": ours} if given.theirs else {"thalweg": ours, "scikit-learn": theirs}
    rows: dict[str, list] = {"data": [], "method": [], **{figure: [] for figure in FIGURES}}
    if given.theirs:
        earlier = json.loads(Path(given.theirs).read_text())["details"]
        lines = [line for line in zip(*(earlier[column] for column in rows), strict=True) if line[1] != "thalweg"]
        rows = {column: list(cells) for column, cells in zip(rows, zip(*lines, strict=True), strict=True)}
    with ProcessPoolExecutor(given.workers, get_context("spawn")) as pool:
        asked = []
        for name in given.only:
            _, y, masks = splits(name)
            for method, way in ways.items():
                count = 2 if way is theirs and len(y) > 600 else len(masks)
                asked.append((name, method, [pool.submit(figures, name, which, way) for which in range(count)]))
        for name, method, answers in asked:
            line = [name, method, *map(float, np.mean([answer.result() for answer in answers], axis=0))]
            print(*(f"{cell:.3f}" if isinstance(cell, float) else cell for cell in line), flush=True)
            for column, cell in zip(rows, line, strict=True):
                rows[column].append(cell)
    table(rows)
    coverage = {name: c for name, m, c in zip(*list(rows.values())[:3], strict=True) if m == "thalweg"}
    if coverage.keys() >= set(EIGHT):
        report(
            "default 95 % intervals of GPRegressor cover 93-97 % on eight UCI sets, mean over ten splits",
            {name: coverage[name] for name in EIGHT},
            all(0.93 <= coverage[name] <= 0.97 for name in EIGHT),
            **rows,
        )


if __name__ == "__main__":
    main()

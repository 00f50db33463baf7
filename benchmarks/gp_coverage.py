"""Coverage of GPRegressor()'s 95 % intervals, mean ± 1.96 standard deviations, beside scikit-learn's.

Eight sets of UCI, chosen before any figure was seen, and seven that are smaller or odd as further evidence; the mean
over their ten splits. Ours are the defaults on raw columns; scikit-learn's kernel is ConstantKernel · RBF with a
lengthscale for each feature + WhiteKernel, on standardised features, with normalize_y. "density" is the mean negative
logarithm of the predictive density in units of y's standard deviation. scikit-learn gets two splits only where there
are more than 600 rows. Needs the data sets (THALWEG_DATA).

``python -m benchmarks.gp_coverage`` (``--only servo yacht``, ``--alone`` leaves scikit-learn out, ``--workers 15`` does
as many sets at a time).
"""

import argparse
import os
import time
import warnings
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

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


def figures(name: str, way) -> np.ndarray:
    """Means over the splits."""
    data = thalweg.data.load(f"uci/{name}")
    X, y = np.asarray(data.X, float), np.asarray(data.y, float)
    found = []
    splits = np.asarray(data.test_mask).T
    for test in splits[:2] if way is theirs and len(y) > 600 else splits:
        began = time.process_time()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            mean, std = way(X[~test], y[~test], X[test])
        seconds = time.process_time() - began
        unit = y[~test].std()
        away, std = (y[test] - mean) / unit, std / unit
        density = np.mean((away / std) ** 2 / 2 + np.log(std) + np.log(2 * np.pi) / 2)
        covered = np.mean(np.abs(away) <= 1.96 * std)
        found.append([covered, density, np.sqrt(np.mean(away**2)), np.mean(3.92 * std), seconds])
    return np.mean(found, axis=0)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", nargs="*", default=EIGHT + FURTHER)
    parser.add_argument("--alone", action="store_true")
    parser.add_argument("--workers", type=int, default=1)
    given = parser.parse_args()
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1" if given.workers > 1 else str(os.cpu_count()))
    ways = {"thalweg": ours} if given.alone else {"thalweg": ours, "scikit-learn": theirs}
    rows: dict[str, list] = {"data": [], "method": [], **{figure: [] for figure in FIGURES}}
    with ProcessPoolExecutor(given.workers, get_context("spawn")) as pool:
        asked = [(name, method, pool.submit(figures, name, way)) for name in given.only for method, way in ways.items()]
        for name, method, answer in asked:
            line = [name, method, *map(float, answer.result())]
            print(*(f"{cell:.3f}" if isinstance(cell, float) else cell for cell in line), flush=True)
            for column, cell in zip(rows, line, strict=True):
                rows[column].append(cell)
    table(rows)
    coverage = {name: c for name, m, c in zip(*list(rows.values())[:3], strict=True) if m == "thalweg"}
    if not given.alone and set(given.only) >= set(EIGHT + FURTHER):
        report(
            "default 95 % intervals of GPRegressor cover 93-97 % on eight UCI sets, mean over ten splits",
            {name: coverage[name] for name in EIGHT},
            all(0.93 <= coverage[name] <= 0.97 for name in EIGHT),
            **rows,
        )


if __name__ == "__main__":
    main()

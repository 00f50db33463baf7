"""Default 95 % credible intervals of the GLMs cover 93–97 % of the effects, over 500 runs a cell.

Four GLMs × {30, 100, 1,000} examples × {no, small, large} effects × {standardised, raw} units: 72 cells. There are
three features; an effect is that of a standard deviation of a feature. Small effects are 0.1, −0.15 and 0.2, large ones
are drawn from N(0, 1) in every run. Raw units are an income, a group of 0 or 1, and a year around 2000, and y around
1e5 for linear regression. A cell's coverage is the mean over effects and runs.

``python -m benchmarks.glm_coverage --runs 500 --workers 15``; the runs of a cell are shared among processes.
"""

import argparse
import os
import time
import warnings
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from multiprocessing import get_context

import numpy as np

from benchmarks._common import report, table
from thalweg.models import BernoulliGLM, GaussianGLM, NegativeBinomialGLM, PoissonGLM

MODELS = {kind.__name__: kind for kind in (BernoulliGLM, GaussianGLM, PoissonGLM, NegativeBinomialGLM)}
SIZES, EFFECTS, UNITS = (30, 100, 1000), ("none", "small", "large"), ("standardised", "raw")
CHUNK = 50


def features(units: str, n: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Features, and the means and standard deviations that they are drawn with."""
    if units == "standardised":
        return rng.normal(size=(n, 3)), np.zeros(3), np.ones(3)
    income = np.exp(rng.normal(10.3, 0.6, size=n))
    mean = np.exp(10.3 + 0.18)
    X = np.column_stack([income, rng.integers(0, 2, size=n), rng.normal(2000, 8, size=n)])
    return X, np.array([mean, 0.5, 2000]), np.array([mean * np.sqrt(np.expm1(0.36)), 0.5, 8])


def effects(kind: str, rng: np.random.Generator) -> np.ndarray:
    return {"none": np.zeros(3), "small": np.array([0.1, -0.15, 0.2]), "large": rng.normal(size=3)}[kind]


def targets(model: str, units: str, z: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    match model:
        case "BernoulliGLM":
            return (rng.uniform(size=len(z)) < 1 / (1 + np.exp(-z - 0.3))).astype(int)
        case "GaussianGLM":
            return z + rng.normal(size=len(z)) + (1e5 if units == "raw" else 0.0)
        case "PoissonGLM":
            return rng.poisson(np.exp(0.5 + z))
        case _:  # A dispersion of 0.5.
            return rng.poisson(np.exp(0.5 + z) * rng.gamma(2, 0.5, size=len(z)))


def hits(cell: tuple[str, int, str, str], runs: range, options: dict) -> tuple[np.ndarray, float]:
    """How many of the effects each run covers, and the processor seconds of a fit."""
    model, n, size, units = cell
    found, seconds = [], []
    for run in runs:
        rng = np.random.default_rng([run, list(MODELS).index(model), n, EFFECTS.index(size), UNITS.index(units)])
        while True:
            X, means, deviations = features(units, n, rng)
            truth = effects(size, rng)
            y = targets(model, units, ((X - means) / deviations) @ truth, rng)
            if model != "BernoulliGLM" or 0 < y.sum() < n:
                break
        began = time.process_time()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            low, high = MODELS[model](**options).fit(X, y).interval()[1:].T * deviations
        seconds.append(time.process_time() - began)
        found.append((low < truth) & (truth < high))
    return np.array(found), float(np.median(seconds))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=500)
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--only", default="", help="cells whose name holds this word")
    parser.add_argument("--prior", default="auto", help="prior_scale")
    given = parser.parse_args()
    cells = [cell for cell in product(MODELS, SIZES, EFFECTS, UNITS) if given.only in " ".join(map(str, cell))]
    tasks = [(cell, range(k, min(k + CHUNK, given.runs))) for cell in cells for k in range(0, given.runs, CHUNK)]
    # Workers are many: each keeps to one core.
    os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", XLA_FLAGS="--xla_cpu_multi_thread_eigen=false")
    began = time.perf_counter()
    with ProcessPoolExecutor(given.workers, get_context("spawn")) as pool:
        done = list(
            pool.map(
                hits,
                *zip(*tasks, strict=True),
                [{"prior_scale": given.prior if given.prior.isalpha() else float(given.prior)}] * len(tasks),
            )
        )
    rows = []
    for cell in cells:
        parts = [outcome for (its, _), outcome in zip(tasks, done, strict=True) if its == cell]
        covered = np.concatenate([part for part, _ in parts])
        error = covered.mean(axis=1).std() / np.sqrt(len(covered))
        rows.append([*cell, float(covered.mean()), float(error), float(np.median([s for _, s in parts]))])
    names = ["model", "n", "effects", "units", "coverage", "error", "seconds"]
    table(dict(zip(names, map(list, zip(*rows, strict=True)), strict=True)))
    figures = [row[4] for row in rows]
    print(f"{time.perf_counter() - began:.0f} s; outside 93-97 %: {sum(not 0.93 <= f <= 0.97 for f in figures)}")
    if len(cells) == 72:
        report(
            f"default 95 % intervals of four GLMs cover 93-97 % in {given.runs} runs of each of 72 cells",
            {"lowest": min(figures), "highest": max(figures)},
            all(0.93 <= figure <= 0.97 for figure in figures),
            runs=given.runs,
            cells=[dict(zip(names, row, strict=True)) for row in rows],
        )


if __name__ == "__main__":
    main()

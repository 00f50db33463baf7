"""Bare calls of KernelClassifier and KernelRegressor beside scikit-learn's: seconds of fit and errors on rows held out.

Everything by default, on data as they come; our first fit of a shape, which compiles, and one more. On whatever cores
the process may use (pin it to two with ``taskset -c 0,1``).
"""

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_wine, make_classification
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.linear_model import Ridge
from sklearn.metrics import log_loss
from sklearn.model_selection import cross_val_score, train_test_split
from sklearn.svm import SVC, SVR

from benchmarks._common import report, table
from thalweg import KernelClassifier, KernelRegressor
from thalweg.machines import DSG, Auto

CLASSIFIERS = {
    "ours": lambda: KernelClassifier(random_state=0),
    "SVC": SVC,
    "HistGradientBoosting": lambda: HistGradientBoostingClassifier(random_state=0),
}
REGRESSORS = {
    "ours": lambda: KernelRegressor(random_state=0),
    "SVR": SVR,
    "Ridge": Ridge,
    "HistGradientBoosting": lambda: HistGradientBoostingRegressor(random_state=0),
}
# Seconds that the calls of the issue may take, on two quiet cores and compile time included.
LIMITS = {"five folds of 2,503 rows": 8.0, "a single row": 0.02}


def raw(rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Features of 1e8 ± 1, an income and 0 or 1; of the labels 17 % are positive."""
    draws = np.random.default_rng(1)
    x = np.column_stack([1e8 + draws.normal(size=rows), np.exp(draws.normal(10, 1, rows)), draws.integers(0, 2, rows)])
    chance = 1 / (1 + np.exp(3 - 2 * x[:, 2] - (x[:, 0] - 1e8)))
    return x, (draws.uniform(size=rows) < chance).astype(int)


def problems() -> dict[str, tuple[np.ndarray, np.ndarray, bool]]:
    made = lambda rows: make_classification(rows, 10, n_informative=6, random_state=0)
    return {
        "raw units, 1,200 rows": (*raw(1200), True),
        "digits": (*load_digits(return_X_y=True), True),
        "breast cancer": (*load_breast_cancer(return_X_y=True), True),
        "wine": (*load_wine(return_X_y=True), True),
        "1,999 rows learned": (*made(2666), True),
        "2,001 rows learned": (*made(2668), True),
        "2,049 rows learned": (*made(2732), True),
        "diabetes": (*load_diabetes(return_X_y=True), False),
    }


def seconds(act: Callable[[], Any]) -> float:
    began = time.perf_counter()
    act()
    return time.perf_counter() - began


def main() -> None:
    columns: dict[str, list[Any]] = {name: [] for name in ("data", "model", "first", "again", "error", "log-loss")}
    for name, (x, y, classes) in problems().items():
        rows, held, targets, truth = train_test_split(x, y, test_size=0.25, random_state=0)
        for contender, make in (CLASSIFIERS if classes else REGRESSORS).items():
            model = make()
            line = [name, contender, *(seconds(lambda m=model, r=rows, t=targets: m.fit(r, t)) for _ in range(2))]
            loss = log_loss(truth, model.predict_proba(held)) if hasattr(model, "predict_proba") else float("nan")
            for column, value in zip(columns.values(), (*line, 1 - model.score(held, truth), loss), strict=True):
                column.append(value)
    table(columns)

    x, y = make_classification(2503, 10, n_informative=6, random_state=0)
    calls = {"five folds of 2,503 rows": seconds(lambda: cross_val_score(KernelClassifier(random_state=0), x, y, cv=5))}
    stream = KernelClassifier(random_state=0).partial_fit(x[:300], y[:300])
    single = [seconds(lambda i=i: stream.partial_fit(x[i : i + 1], y[i : i + 1])) for i in range(300, 400)]
    calls["a single row"] = float(np.median(single))
    for method in (Auto(features="orthogonal"), Auto(batch_size=1, features="orthogonal"), DSG(batch_size=1)):
        model = KernelClassifier(method=method, random_state=0)
        calls[f"80 rows, {method}"] = seconds(lambda m=model: m.fit(x[:80], y[:80]))
    table({"call": list(calls), "seconds": list(calls.values())})
    report(
        "Bare calls: five folds of 2,503 rows in at most 8 s, a single row of a stream in at most 20 ms",
        {name: calls[name] for name in LIMITS},
        all(calls[name] <= limit for name, limit in LIMITS.items()),
        problems=columns,
        calls=calls,
    )


if __name__ == "__main__":
    main()

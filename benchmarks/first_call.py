"""Bare calls of the nine tabular estimators on families that nothing was tuned for, against peers' bare calls.

33 families, drawn anew with each seed, of 300 and 1,500 rows; errors are of 2,000 new rows. Labels: the share that is
missed, by ``KernelClassifier`` and ``GPClassifier`` (300 rows), against HistGradientBoosting, LightGBM, SVC and
logistic regression of standardised columns, and scikit-learn's Gaussian process (300 rows). Numbers: root mean squared
errors of ``KernelRegressor`` and ``GPRegressor`` against boosting, SVR, ridge regression by cross-validation and
scikit-learn's Gaussian process (300 rows); and the share of new targets in their 90 % intervals. Rows that a GLM draws:
mean negative log-likelihoods against statsmodels', in nats. What is 10 % (of GLMs 0.01 nats) or more behind the best
peer, by the geometric mean over seeds, is told; the documentation says when to expect it.

``python -m benchmarks.first_call --seeds 3 --rows 300``
"""

import argparse
import os
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from multiprocessing import get_context
from typing import Any

import numpy as np
from sklearn.datasets import (
    make_circles,
    make_classification,
    make_friedman1,
    make_friedman2,
    make_friedman3,
    make_gaussian_quantiles,
    make_hastie_10_2,
    make_moons,
    make_regression,
    make_s_curve,
    make_sparse_uncorrelated,
    make_swiss_roll,
)
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.gaussian_process import GaussianProcessClassifier, GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.linear_model import LogisticRegression, RidgeCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC, SVR

import thalweg
from benchmarks._common import report, table

NEW, BEHIND, EXACT = 2000, 1.1, 300


def _labels(x: np.ndarray, f: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    return x, (rng.random(len(f)) < 1 / (1 + np.exp(-f))).astype(int)


def _with_noise(xy: tuple[np.ndarray, np.ndarray], features: int, rng: np.random.Generator) -> tuple:
    x, y = xy
    return np.column_stack([x, rng.normal(size=(len(x), features))]), y


def _xor(n: int, rng: np.random.Generator) -> tuple:
    x = rng.normal(size=(n, 10))
    return x, (np.prod(x[:, :3], axis=1) > 0).astype(int)


def _tree(n: int, rng: np.random.Generator) -> tuple:
    x = rng.uniform(size=(n, 8))
    leaf = (x[:, 0] > 0.5) * 4 + (x[:, 1] > 0.3) * 2 + (x[:, 2] > 0.6)
    y = np.array([0, 1, 1, 2, 2, 0, 1, 0])[leaf]
    return x, np.where(rng.random(n) < 0.1, rng.integers(0, 3, n), y)


def _categories(n: int, rng: np.random.Generator) -> tuple:
    codes = rng.integers(0, 6, (n, 5))
    effects = np.random.default_rng(5).normal(size=(5, 6))
    f = 1.5 * np.sum(effects[np.arange(5), codes], axis=1) + 2.0 * (codes[:, 0] == codes[:, 1])
    return _labels(np.eye(6)[codes].reshape(n, -1), f, rng)


def _words(n: int, rng: np.random.Generator) -> tuple:
    rates = np.random.default_rng(6).gamma(0.3, 1.0, (3, 120))
    y = rng.integers(0, 3, n)
    return rng.poisson(0.5 * rates[y] + 0.3).astype(float), y


def _skewed(n: int, rng: np.random.Generator) -> tuple:
    x = np.exp(1.5 * rng.normal(size=(n, 6))) * 10.0 ** np.arange(-3, 3)
    z = np.log(x / 10.0 ** np.arange(-3, 3))
    return _labels(x, 1.5 * z[:, 0] - z[:, 1] * z[:, 2], rng)


def _rare(n: int, rng: np.random.Generator) -> tuple:
    x = rng.normal(size=(n, 6))
    return _labels(x, -4.0 + 1.5 * x[:, 0] + x[:, 1] ** 2, rng)


def _rings(n: int, rng: np.random.Generator) -> tuple:
    seed = int(rng.integers(1 << 31))
    return _with_noise(make_circles(n, noise=0.15, factor=0.5, random_state=seed), 3, rng)


def _classes(n: int, rng: np.random.Generator, classes: int = 3, features: int = 20) -> tuple:
    return make_classification(
        n, features, n_informative=6, n_classes=classes, n_clusters_per_class=2, random_state=int(rng.integers(1 << 31))
    )


LABELS: dict[str, Callable[[int, np.random.Generator], tuple]] = {
    "four shells": lambda n, r: make_gaussian_quantiles(n_samples=n, n_features=10, n_classes=4, random_state=_seed(r)),
    "three shells": lambda n, r: make_gaussian_quantiles(n_samples=n, n_features=4, n_classes=3, random_state=_seed(r)),
    "hastie": lambda n, r: make_hastie_10_2(n, random_state=_seed(r)),
    "clusters": _classes,
    "moons and noise": lambda n, r: _with_noise(make_moons(n, noise=0.3, random_state=_seed(r)), 5, r),
    "rings and noise": _rings,
    "xor of three": _xor,
    "tree": _tree,
    "categories": _categories,
    "words": _words,
    "skewed features": _skewed,
    "rare class": _rare,
    "sparse line": lambda n, r: _labels(x := r.normal(size=(n, 40)), 2 * x[:, 0] - 2 * x[:, 1] + x[:, 2], r),
}


def _seed(rng: np.random.Generator) -> int:
    return int(rng.integers(1 << 31))


def _waves(n: int, rng: np.random.Generator) -> tuple:
    x = rng.uniform(-3, 3, (n, 2))
    return x, np.sin(3 * x[:, 0]) * np.cos(2 * x[:, 1]) + 0.2 * rng.normal(size=n)


def _series(n: int, rng: np.random.Generator) -> tuple:
    t = np.sort(rng.uniform(0, 10, n))
    return t[:, None], 0.3 * t + np.sin(2 * np.pi * t) + 0.3 * rng.normal(size=n)


def _heavy(n: int, rng: np.random.Generator) -> tuple:
    x = rng.normal(size=(n, 5))
    return x, np.sin(2 * x[:, 0]) + x[:, 1] + 0.3 * rng.standard_t(2.5, n)


def _steps(n: int, rng: np.random.Generator) -> tuple:
    x = rng.uniform(size=(n, 6))
    return x, 3.0 * (x[:, 0] > 0.4) + 2.0 * (x[:, 1] > 0.7) * (x[:, 2] > 0.5) + 0.3 * rng.normal(size=n)


def _logarithms(n: int, rng: np.random.Generator) -> tuple:
    x = np.exp(rng.normal(size=(n, 5)) * 1.5)
    return x, np.log(x[:, 0]) + np.sqrt(x[:, 1]) + 0.3 * rng.normal(size=n)


def _products(n: int, rng: np.random.Generator) -> tuple:
    x = rng.uniform(1, 3, (n, 4))
    return x, x[:, 0] * x[:, 1] / x[:, 2] * np.exp(0.1 * rng.normal(size=n))


def _changing(n: int, rng: np.random.Generator) -> tuple:
    x = rng.uniform(-2, 2, (n, 3))
    return x, np.sin(2 * x[:, 0]) + (0.1 + 0.4 * np.abs(x[:, 1])) * rng.normal(size=n)


def _groups(n: int, rng: np.random.Generator) -> tuple:
    group, x = rng.integers(0, 12, n), rng.normal(size=(n, 3))
    means = np.random.default_rng(8).normal(size=12)
    return np.column_stack([x, np.eye(12)[group]]), means[group] + x[:, 0] * x[:, 1] + 0.3 * rng.normal(size=n)


NUMBERS: dict[str, Callable[[int, np.random.Generator], tuple]] = {
    "friedman1": lambda n, r: make_friedman1(n, noise=1.0, random_state=_seed(r)),
    "friedman2": lambda n, r: make_friedman2(n, noise=100.0, random_state=_seed(r)),
    "friedman3": lambda n, r: make_friedman3(n, noise=0.1, random_state=_seed(r)),
    "line of 50": lambda n, r: make_regression(n, 50, n_informative=10, noise=30.0, random_state=1 + _seed(r)),
    "four of 30": lambda n, r: make_sparse_uncorrelated(n, 30, random_state=_seed(r)),
    "swiss roll": lambda n, r: make_swiss_roll(n, noise=0.3, random_state=_seed(r)),
    "s curve": lambda n, r: make_s_curve(n, noise=0.1, random_state=_seed(r)),
    "waves": _waves,
    "series": _series,
    "heavy tails": _heavy,
    "steps": _steps,
    "logarithms": _logarithms,
    "products": _products,
    "changing noise": _changing,
    "groups": _groups,
}


def _counts(n: int, rng: np.random.Generator, spread: float = 0.0) -> tuple:
    x = rng.normal(size=(n, 6))
    mean = np.exp(0.5 + 0.6 * x[:, 0] - 0.4 * x[:, 1])
    return x, rng.poisson(mean * (rng.gamma(1 / spread, spread, n) if spread else 1.0)).astype(float)


def _line(n: int, rng: np.random.Generator) -> tuple:
    x = rng.normal(size=(n, 6)) * 10.0 ** np.arange(-2, 4)
    return x, 3 + x @ (np.array([1, -2, 0.5, 0, 0, 1]) / 10.0 ** np.arange(-2, 4)) + rng.normal(size=n)


def _bernoulli(n: int, rng: np.random.Generator) -> tuple:
    x = rng.normal(size=(n, 6))
    return _labels(x, 0.5 + 1.5 * x[:, 0] - x[:, 1], rng)


def _categorical(n: int, rng: np.random.Generator) -> tuple:
    x = rng.normal(size=(n, 6))
    f = x @ np.random.default_rng(9).normal(size=(6, 4)) + rng.gumbel(size=(n, 4))
    return x, np.argmax(f, axis=1)


GLMS: dict[str, tuple[Callable, str]] = {
    "PoissonGLM": (_counts, "Poisson"),
    "NegativeBinomialGLM": (lambda n, r: _counts(n, r, 0.8), "NegativeBinomial"),
    "GaussianGLM": (_line, "Gaussian"),
    "BernoulliGLM": (_bernoulli, "logistic"),
    "CategoricalGLM": (_categorical, "logistic"),
}


def _gaussian_process(kind: type) -> Any:
    kernel = ConstantKernel() * RBF() + (WhiteKernel() if kind is GaussianProcessRegressor else ConstantKernel(1e-6))
    options = {"normalize_y": True} if kind is GaussianProcessRegressor else {}
    return make_pipeline(StandardScaler(), kind(kernel, random_state=0, **options))


def _contenders(labels: bool, rows: int) -> Iterator[tuple[str, Any]]:
    import lightgbm

    kinds = (
        (thalweg.KernelClassifier, HistGradientBoostingClassifier, lightgbm.LGBMClassifier, SVC)
        if labels
        else (thalweg.KernelRegressor, HistGradientBoostingRegressor, lightgbm.LGBMRegressor, SVR)
    )
    yield kinds[0].__name__, kinds[0](random_state=0)
    yield "boosting", kinds[1](random_state=0)
    yield "LightGBM", kinds[2](random_state=0, verbose=-1, n_jobs=1)
    yield "SVM", make_pipeline(StandardScaler(), kinds[3]())
    yield "linear", make_pipeline(StandardScaler(), LogisticRegression() if labels else RidgeCV(np.logspace(-3, 3, 13)))
    if not labels or rows <= EXACT:
        ours = thalweg.GPClassifier if labels else thalweg.GPRegressor
        yield ours.__name__, ours(random_state=0)
    if rows <= EXACT:
        yield "Gaussian process", _gaussian_process(GaussianProcessClassifier if labels else GaussianProcessRegressor)


def _learned(cell: tuple[str, str, int, int]) -> dict:
    kind, name, rows, seed = cell
    labels = kind == "labels"
    draw = (LABELS if labels else NUMBERS)[name]
    x, y = draw(rows + NEW, np.random.default_rng([seed, rows]))
    order = np.random.default_rng(seed).permutation(len(y))  # some families come in order
    x, y = x[order], y[order]
    new, truth = x[rows:], y[rows:]
    found: dict[str, Any] = {"kind": kind, "name": name, "rows": rows, "seed": seed}
    for method, model in _contenders(labels, rows):
        began = time.process_time()
        try:
            model.fit(x[:rows], y[:rows])
            guess = model.predict(new)
            error = np.mean(guess != truth) if labels else np.sqrt(np.mean((guess - truth) ** 2)) / np.std(truth)
            found[method] = float(error)
            if labels and hasattr(model, "predict_proba") and method != "SVM":
                p = model.predict_proba(new)[np.arange(NEW), np.searchsorted(model.classes_, truth)]
                found[method + " log loss"] = float(-np.mean(np.log(np.maximum(p, 1e-15))))
            if method in ("KernelRegressor", "GPRegressor"):
                low, high = _interval(model, new)
                found[method + " coverage"] = float(np.mean((low <= truth) & (truth <= high)))
        except Exception:  # a raw error is what is looked for
            found[method + " raised"] = traceback.format_exc()[-600:]
        found[method + " seconds"] = time.process_time() - began
    return found


def _interval(model: Any, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The 90 % interval of new targets."""
    if isinstance(model, thalweg.KernelRegressor):
        return model.predict_interval(x, 0.9)
    mean, spread = model.predict(x, return_std=True)
    return mean - 1.645 * spread, mean + 1.645 * spread


def _drawn_from_a_glm(cell: tuple[str, str, int, int]) -> dict:
    import statsmodels.api as sm

    _, name, rows, seed = cell
    draw, family = GLMS[name]
    x, y = draw(rows + NEW, np.random.default_rng([seed, rows]))
    new, truth = x[rows:], y[rows:]
    found: dict[str, Any] = {"kind": "glm", "name": name, "rows": rows, "seed": seed}
    began = time.process_time()
    try:
        model = getattr(thalweg, name)().fit(x[:rows], y[:rows])
        found[name] = float(-np.mean(_log_density(model, new, truth, family)))
    except Exception:  # a raw error is what is looked for
        found[name + " raised"] = traceback.format_exc()[-600:]
    found[name + " seconds"], began = time.process_time() - began, time.process_time()
    if family == "logistic":
        peer = make_pipeline(StandardScaler(), LogisticRegression(C=1e4, max_iter=1000)).fit(x[:rows], y[:rows])
        found["statsmodels"] = float(-np.mean(_log_density(peer, new, truth, family)))
    else:
        columns = sm.add_constant(x)
        spread = {"alpha": 0.8} if family == "NegativeBinomial" else {}
        fitted = sm.GLM(y[:rows], columns[:rows], family=getattr(sm.families, family)(**spread)).fit()
        mean = np.asarray(fitted.predict(columns[rows:]))
        found["statsmodels"] = float(-np.mean(_density(family, mean, truth, fitted.scale)))
    found["statsmodels seconds"] = time.process_time() - began
    return found


def _log_density(model: Any, x: np.ndarray, y: np.ndarray, family: str) -> np.ndarray:
    if family == "logistic":
        return np.log(model.predict_proba(x)[np.arange(len(y)), np.searchsorted(model.classes_, y)])
    scale = np.mean((model.predict(x) - y) ** 2) if family == "Gaussian" else 1.0
    return _density(family, np.asarray(model.predict(x)), y, scale)


def _density(family: str, mean: np.ndarray, y: np.ndarray, scale: float) -> np.ndarray:
    from scipy import stats

    if family == "Poisson":
        return stats.poisson.logpmf(y, mean)
    if family == "NegativeBinomial":
        return stats.nbinom.logpmf(y, 1 / 0.8, 1 / (1 + 0.8 * mean))
    return stats.norm.logpdf(y, mean, np.sqrt(scale))


def _one(cell: tuple[str, str, int, int]) -> dict:
    warnings.simplefilter("ignore")
    found = _drawn_from_a_glm(cell) if cell[0] == "glm" else _learned(cell)
    print({key: round(value, 4) if isinstance(value, float) else value for key, value in found.items()}, flush=True)
    return found


OURS = ("KernelClassifier", "KernelRegressor", "GPRegressor", "GPClassifier", *GLMS)
PEERS = ("boosting", "LightGBM", "SVM", "linear", "Gaussian process", "statsmodels")


def _mean(found: list[dict], method: str) -> float:
    """The geometric mean of its errors."""
    return float(np.exp(np.mean([np.log(one[method] + 1e-9) for one in found if method in one])))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rows", type=int, nargs="+", default=[300, 1500])
    parser.add_argument("--only", nargs="*", help="names of families")
    options = parser.parse_args()
    kinds = {"labels": LABELS, "numbers": NUMBERS, "glm": GLMS}
    cells = [(k, name, n, s) for k in kinds for name, n, s in product(kinds[k], options.rows, range(options.seeds))]
    cells = [cell for cell in cells if not options.only or cell[1] in options.only]
    with ProcessPoolExecutor(options.workers, get_context("spawn")) as pool:
        found = list(pool.map(_one, cells, chunksize=1))
    raised = [text for one in found for key, text in one.items() if key.endswith("raised")]
    rows = []
    for kind, name, n in dict.fromkeys((one["kind"], one["name"], one["rows"]) for one in found):
        some = [one for one in found if (one["name"], one["rows"]) == (name, n)]
        peers = {method: _mean(some, method) for method in PEERS if any(method in one for one in some)}
        best = min(peers, key=peers.get)
        for method in OURS:
            if any(method in one for one in some):
                gap = _mean(some, method) - peers[best] if kind == "glm" else _mean(some, method) / peers[best]
                extra = [
                    np.mean([one[f"{method} {what}"] for one in some if f"{method} {what}" in one] or [np.nan])
                    for what in ("log loss", "coverage", "seconds")
                ]
                rows.append((name, n, method, _mean(some, method), best, peers[best], gap, *map(float, extra)))
    titles = ("family", "rows", "method", "error", "best peer", "its error", "ratio", "log loss", "coverage", "seconds")
    table({title: [row[i] for row in rows] for i, title in enumerate(titles)})
    for text in dict.fromkeys(raised):
        print(text)
    behind = [row for row in rows if row[6] > (0.01 if row[2] in GLMS else BEHIND)]
    report(
        "bare calls are at most 10 % behind the best peer's, and never raise",
        {"behind": len(behind), "of": len(rows), "raised": len(raised)},
        not behind and not raised,
        behind=behind,
        rows=rows,
    )


if __name__ == "__main__":
    main()

"""Handwritten digits by a kernel machine: accuracy as features are added, what is confused, and calibration."""

from typing import Any

import numpy as np
from scipy.stats import beta
from sklearn.datasets import load_digits
from sklearn.metrics import confusion_matrix

from thalweg.experiments import plots
from thalweg.experiments.registry import experiment
from thalweg.experiments.section import Run
from thalweg.machines import DSG, Auto
from thalweg.models import KernelClassifier

_TRAIN, _BLOCK, _BINS = 1200, 64, 8


@experiment("demo-digits", title="A kernel machine that streams", paper="Demonstration", demo=True, order=4)
def demo_digits(run: Run) -> None:
    """Stream, grow, and look at the mistakes."""
    X, y = load_digits(return_X_y=True)
    order = np.random.default_rng(run.seed).permutation(len(y))
    train, test = order[:_TRAIN], order[_TRAIN:]
    model = KernelClassifier(random_state=run.seed).fit(X[train], y[train])
    probability = model.predict_proba(X[test])
    error = float(np.mean(model.classes_[np.argmax(probability, axis=1)] != y[test]))
    run.note(
        f"scikit-learn's digits: {len(train)} images of 8 × 8 to learn from, {len(test)} to test. KernelClassifier as "
        f"it comes, with every training image a landmark, misses {error:.1%} of them. The first figure shows the same "
        f"machine as it grows: the images arrive {_BLOCK} at a time, and each is seen once. Beside it is DSG, which "
        "draws new random features in every step, with and without the preconditioner of each block; it sees the "
        "images again and again."
    )
    _growth(run, X[train], y[train], X[test], y[test])
    _mistakes(run, confusion_matrix(y[test], np.argmax(probability, axis=1)))
    _calibration(run, probability, y[test])
    run.numbers("test", {"error": error, "rows": len(test)})


def _growth(run: Run, X: np.ndarray, y: np.ndarray, new: np.ndarray, labels: np.ndarray) -> None:
    steps = 8 if run.quick else 20
    shuffle = np.random.default_rng(run.seed)
    once = [np.arange(i, min(i + _BLOCK, len(X))) for i in range(0, len(X), _BLOCK)]
    often = [shuffle.permutation(len(X))[: 4 * _BLOCK] for _ in range(steps)]
    common: dict[str, Any] = {"bandwidth": 0.5, "alpha": 0.01, "random_state": run.seed}
    dsg = lambda precondition: KernelClassifier(
        method=DSG(batch_size=4 * _BLOCK, block_size=_BLOCK // 2, precondition=precondition), **common
    )
    machines = {
        "landmarks, each seen once": (KernelClassifier(method=Auto(block_size=_BLOCK), **common), once),
        "DSG, preconditioned": (dsg(True), often),
        "DSG": (dsg(False), often),
    }
    fig, axes = plots.figure()
    ends: dict[str, list[Any]] = {"machine": [], "features": [], "error on test images": []}
    for name, (model, parts) in machines.items():
        features, errors = [], []
        for part in parts:
            model.partial_fit(X[part], y[part], classes=np.arange(10))
            features.append(model.n_features_used_)
            errors.append(1 - model.score(new, labels))
        axes.plot(features, 1 - np.array(errors), label=name)
        for column, value in zip(ends.values(), (name, features[-1], errors[-1]), strict=True):
            column.append(value)
    axes.set(xlabel="features in use", ylabel="accuracy on test images", ylim=(None, 1.0))
    axes.legend(loc="lower right")
    run.figure("growth", fig, "Accuracy against the number of features in use, as machines grow block by block.")
    run.table("growth", ends, "Where each machine ends.")


def _mistakes(run: Run, counts: np.ndarray) -> None:
    fig, axes = plots.figure(height=3.8)
    wrong = counts - np.diag(np.diagonal(counts))
    axes.imshow(wrong, cmap="Oranges", vmin=0, vmax=3 * max(int(wrong.max()), 1))  # pale, so that counts can be read
    for i, row in enumerate(counts):
        for j, count in enumerate(row):
            if count:
                axes.text(j, i, str(count), ha="center", va="center", color=plots.INK, fontsize=8)
    axes.set(xlabel="predicted digit", ylabel="true digit", xticks=range(10), yticks=range(10))
    axes.grid(visible=False)
    run.figure("confusion", fig, "Test images by true and predicted digit; shaded where they differ.")


def _calibration(run: Run, probability: np.ndarray, labels: np.ndarray) -> None:
    truth, given = np.eye(10)[labels].ravel(), probability.ravel()
    part = np.minimum((_BINS * given).astype(int), _BINS - 1)
    counts, hits, sums = (np.bincount(part, weights, _BINS) for weights in (None, truth, given))
    some = counts > 0
    counts, hits, predicted = counts[some], hits[some], sums[some] / counts[some]
    # Jeffreys' intervals: most parts have a handful of images.
    low, high = beta.ppf(np.array([[0.025], [0.975]]), hits + 0.5, counts - hits + 0.5)
    observed = hits / counts
    reach = np.maximum([observed - low, high - observed], 0)
    fig, axes = plots.figure()
    axes.plot([0, 1], [0, 1], color=plots.PALETTE[-1], linewidth=1, linestyle="--", label="calibrated")
    axes.errorbar(predicted, observed, reach, fmt="o", capsize=3, label="KernelClassifier")
    axes.set(xlabel="predicted probability", ylabel="observed frequency")
    axes.legend()
    caption = (
        "Calibration: how often a digit was the one, against the probability that it was given, for all ten digits; "
        "bars are 95 % intervals of the frequency."
    )
    run.figure("calibration", fig, caption)

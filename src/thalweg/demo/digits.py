"""Handwritten digits by a kernel machine: accuracy as features are added, confusions, and calibration."""

from typing import Any

import numpy as np
from scipy.stats import beta
from sklearn.datasets import load_digits
from sklearn.metrics import confusion_matrix

from thalweg.demo import plots
from thalweg.demo.section import Section, experiment
from thalweg.machines import DSG, Auto
from thalweg.models import KernelClassifier

# Training images, of 1,797: with twice as many there would be none to test on.
TRAINING_ROWS = 1200
# Images that arrive at a time. Twice as many give the curves half as many points.
BLOCK_SIZE = 64
# Bins of the calibration plot. Most hold a handful of images; twice as many would hold half of that.
BINS = 8


@experiment("demo-digits", title="A kernel machine that streams", paper="Demonstration")
def digits(section: Section) -> None:
    """Fit a classifier at once and as a stream, and look at its mistakes."""
    X, y = load_digits(return_X_y=True)
    order = np.random.default_rng(section.seed).permutation(len(y))
    train, test = order[:TRAINING_ROWS], order[TRAINING_ROWS:]
    model = KernelClassifier(random_state=section.seed).fit(X[train], y[train])
    probability = model.predict_proba(X[test])
    predicted = model.classes_[np.argmax(probability, axis=1)]
    error = float(np.mean(predicted != y[test]))
    section.note(
        f"scikit-learn's digits: {len(train)} images of 8 × 8 to learn from, {len(test)} to test. KernelClassifier as "
        f"it comes, with every training image a landmark, misses {error:.1%} of them. The first figure shows the same "
        f"machine as it grows: the images arrive {BLOCK_SIZE} at a time, and each is seen once. Beside it is DSG, "
        "which draws new random features in every step, with and without the preconditioner of each block; it sees the "
        "images again and again."
    )
    _show_growth(section, X[train], y[train], X[test], y[test])
    _draw_confusion(section, confusion_matrix(y[test], predicted))
    _draw_calibration(section, probability, y[test])
    section.numbers("test", {"error": error, "rows": len(test)})


def _show_growth(section: Section, X: np.ndarray, y: np.ndarray, X_test: np.ndarray, y_test: np.ndarray) -> None:
    shuffle = np.random.default_rng(section.seed)
    once = [np.arange(i, min(i + BLOCK_SIZE, len(X))) for i in range(0, len(X), BLOCK_SIZE)]
    repeated = [shuffle.permutation(len(X))[: 4 * BLOCK_SIZE] for _ in range(8)]
    common: dict[str, Any] = {"bandwidth": 0.5, "alpha": 0.01, "random_state": section.seed}
    dsg: dict[str, Any] = {"batch_size": 4 * BLOCK_SIZE, "block_size": BLOCK_SIZE // 2}
    streams = {
        "landmarks, each seen once": (KernelClassifier(method=Auto(block_size=BLOCK_SIZE), **common), once),
        "DSG, preconditioned": (KernelClassifier(method=DSG(precondition=True, **dsg), **common), repeated),
        "DSG": (KernelClassifier(method=DSG(precondition=False, **dsg), **common), repeated),
    }
    errors = []
    caption = "Accuracy against the number of features in use, as machines grow block by block."
    with section.figure("growth", caption) as axes:
        for name, (model, batches) in streams.items():
            features, accuracies = [], []
            for batch in batches:
                model.partial_fit(X[batch], y[batch], classes=np.arange(10))
                features.append(model.n_features_used_)
                accuracies.append(model.score(X_test, y_test))
            axes.plot(features, accuracies, label=name)
            errors.append(1 - accuracies[-1])
        axes.set(xlabel="features in use", ylabel="accuracy on test images", ylim=(None, 1.0))
        axes.legend(loc="lower right")
    used = [model.n_features_used_ for model, _ in streams.values()]
    columns: dict[str, list[Any]] = {"machine": list(streams), "features": used, "error on test images": errors}
    section.table("growth", columns, "Where each machine ends.")


def _draw_confusion(section: Section, counts: np.ndarray) -> None:
    errors = counts - np.diag(np.diagonal(counts))
    caption = "Test images by true and predicted digit; shaded where they differ."
    with section.figure("confusion", caption, height=3.8) as axes:
        axes.imshow(errors, cmap="Oranges", vmin=0, vmax=3 * max(int(errors.max()), 1))  # pale: counts can be read
        for i, j in np.argwhere(counts):
            axes.text(j, i, str(counts[i, j]), ha="center", va="center", color=plots.INK, fontsize=8)
        axes.set(xlabel="predicted digit", ylabel="true digit", xticks=range(10), yticks=range(10))
        axes.grid(visible=False)


def _draw_calibration(section: Section, probability: np.ndarray, labels: np.ndarray) -> None:
    truth, given = np.eye(10)[labels].ravel(), probability.ravel()
    bins = np.minimum((BINS * given).astype(int), BINS - 1)
    counts, hits, sums = (np.bincount(bins, weights, BINS) for weights in (None, truth, given))
    filled = counts > 0
    counts, hits, sums = counts[filled], hits[filled], sums[filled]
    # Jeffreys intervals, since most bins have a handful of images.
    low, high = beta.ppf(np.array([[0.025], [0.975]]), hits + 0.5, counts - hits + 0.5)
    bars = np.maximum([hits / counts - low, high - hits / counts], 0)
    caption = (
        "Calibration: how often a digit was the one, against the probability that it was given, for all ten digits; "
        "bars are 95 % intervals of the frequency."
    )
    with section.figure("calibration", caption) as axes:
        axes.plot([0, 1], [0, 1], color=plots.PALETTE[-1], linewidth=1, linestyle="--", label="calibrated")
        axes.errorbar(sums / counts, hits / counts, bars, fmt="o", capsize=3, label="KernelClassifier")
        axes.set(xlabel="predicted probability", ylabel="observed frequency")
        axes.legend()

"""KernelClassifier to SVC's 1.40 % on MNIST-60k (PCA-100) on a GPU: data transfer included, compile time excluded.

Ten seeds, each a fit and the prediction of 10,000 rows, after runs of the same seeds that compile and do not count: a
seed that chooses another family of kernels needs other programs. Needs the data sets (THALWEG_DATA).
"""

import jax
import numpy as np

from benchmarks._common import report, table
from benchmarks._digits import digits
from benchmarks.kernel_mnist import measured
from thalweg import KernelClassifier

SEEDS = 10
SECONDS, ERROR = 10.0, 0.0140


def main() -> None:
    data = digits()
    found = {}
    for loss in ("logistic", "squared"):
        run = lambda seed, loss=loss: measured(KernelClassifier(loss=loss, random_state=seed), data)
        compiling, *_ = (run(seed)["seconds"] for seed in range(SEEDS))
        runs = [run(seed) for seed in range(SEEDS)]
        found[loss] = {key: float(np.mean([run[key] for run in runs])) for key in runs[0]}
        found[loss] |= {
            "highest error": max(run["error"] for run in runs),
            "longest": max(run["seconds"] for run in runs),
            "with compiling": compiling,
        }
    table({"loss": list(found), **{key: [row[key] for row in found.values()] for key in found["squared"]}})
    best = found["squared"]
    report(
        "KernelClassifier(loss='squared') reaches SVC's 1.40 % on MNIST-60k in ten seconds on a GPU, mean of ten seeds",
        {"error": best["error"], "seconds": best["seconds"]},
        best["error"] <= ERROR and best["longest"] <= SECONDS,
        losses=found,
        devices=str(jax.devices()),
    )


if __name__ == "__main__":
    main()

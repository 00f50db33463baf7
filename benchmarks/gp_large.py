"""GPClassifier at fixed hyper-parameters on 5,000 rows, on a CPU: seconds, steps and memory.

Two moons that overlap; the fit runs until less than a thousandth of a nat is left.
"""

import resource
import time

import jax
from sklearn.datasets import make_moons

from benchmarks._common import report, table
from thalweg import GPClassifier
from thalweg.kernels import Gaussian

LIMIT = 180.0


def main(rows: int) -> None:
    X, y = make_moons(rows + 2000, noise=0.3, random_state=0)
    X, new, y, labels = X[:rows], X[rows:], y[:rows], y[rows:]
    began = time.perf_counter()
    model = GPClassifier(Gaussian(0.5, 10.0), jitter=1e-3, learn=False).fit(X, y)
    seconds = time.perf_counter() - began
    began = time.perf_counter()
    accuracy = model.score(new, labels)
    predicting = time.perf_counter() - began
    gigabytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    device = jax.devices()[0]
    figure = {"rows": rows, "seconds": seconds, "steps": model.n_iter_, "host GiB at the peak": gigabytes}
    if stats := device.memory_stats():
        figure["device GiB at the peak"] = stats["peak_bytes_in_use"] / 2**30
    table({name: [value] for name, value in figure.items()})
    residual = float(model.history_["residual"][-1])
    report(
        f"GPClassifier.fit, {rows} rows, compile time included, within three minutes",
        figure,
        seconds <= LIMIT and residual <= model.tol,
        elbo=model.elbo_,
        residual=residual,
        accuracy=accuracy,
        seconds_to_predict_2000=predicting,
    )


if __name__ == "__main__":
    main(5_000)

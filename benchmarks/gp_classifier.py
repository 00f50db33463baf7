"""GPClassifier.fit against GPJax's dual natural gradient and GPflow's VGP, to the same bound, compile time included.

Fixed hyper-parameters (the paper's), Ionosphere (280 rows) and USPS 2 against 4 (884 rows), Bernoulli-logit. Every fit
runs in a process of its own; imports, loading and the start of the runtime are outside the clock. What is timed is the
way to a thousandth of a nat below the optimum, which we stop at by ourselves and the peers are stopped at by the
optimum, known from us. The peers get the best fixed step of a sweep, a likelihood and a quadrature that work here
(with their own they do not reach this bound on USPS), and GPflow runs eagerly or compiled, whichever is the faster.
OpenBLAS has one thread, for all: on matrices of this size two are hardly faster, and on a busy machine far slower.

GPflow needs NumPy 1: name a Python that has it in the environment variable THALWEG_GPFLOW_PYTHON, or it is left out,
and THALWEG_GPJAX_PYTHON one that has GPJax if this one does not. Needs the data sets (THALWEG_DATA).
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import jax.numpy as jnp
import numpy as np

import thalweg
from benchmarks._common import report, table
from thalweg import GPClassifier
from thalweg.kernels import Gaussian

HERE = Path(__file__).parent
REPEATS = {"ionosphere": 3, "usps": 1}
LIMIT = 3.0
STEPS = {"ionosphere": 0.65, "usps": 0.5}
MODES = {"ionosphere": "eager", "usps": "compiled"}
NODES = {"ionosphere": 100, "usps": 800}


def problems() -> dict[str, dict]:
    ionosphere = thalweg.data.load("ionosphere")
    part = np.asarray(ionosphere.is_train, bool)
    usps = thalweg.data.load("usps")
    X, digits = np.concatenate([usps.X_train, usps.X_test]), np.concatenate([usps.y_train, usps.y_test])
    chosen = (digits == 2) | (digits == 4)
    X, y = X[chosen], digits[chosen] == 2
    rows = np.sort(np.random.default_rng(0).permutation(len(y))[:884])
    as_floats = lambda X, y: {"X": np.asarray(X, float), "y": np.asarray(y, float)}
    return {
        "ionosphere": as_floats(ionosphere.X[part], np.asarray(ionosphere.y)[part] > 0)
        | {"lengthscale": np.e, "variance": np.exp(5.0), "jitter": 1e-2},
        "usps": as_floats(X[rows], y[rows]) | {"lengthscale": np.exp(2.5), "variance": np.exp(10.0), "jitter": 1e-4},
    }


def fit(path: str, tol: float, max_iter: int) -> dict:
    data = np.load(path)
    jnp.ones(3).sum().block_until_ready()  # starts the backend outside the clock
    kernel = Gaussian(float(data["lengthscale"]), float(data["variance"]))
    began = time.perf_counter()
    model = GPClassifier(kernel, jitter=float(data["jitter"]), learn=False, tol=tol, max_iter=max_iter)
    model.fit(data["X"], data["y"])
    first = time.perf_counter() - began
    began = time.perf_counter()
    model.fit(data["X"], data["y"])
    return {
        "seconds": first,
        "seconds once compiled": time.perf_counter() - began,
        "bound": model.elbo_,
        "steps": model.n_iter_,
    }


def run(*command: str) -> dict:
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def main() -> None:
    gpjax = os.environ.get("THALWEG_GPJAX_PYTHON", sys.executable)
    gpflow = os.environ.get("THALWEG_GPFLOW_PYTHON")
    figure, rows = {}, {"data": [], "method": [], "seconds": [], "steps": [], "bound": []}
    with tempfile.TemporaryDirectory() as folder:
        for name, problem in problems().items():
            path = str(Path(folder) / f"{name}.npz")
            np.savez(path, **problem)
            ours = (sys.executable, "-m", "benchmarks.gp_classifier", path)
            optimum = run(*ours, "1e-3", "500")["bound"]
            peer = (path, str(STEPS[name]), str(NODES[name]), str(optimum))
            contenders = {"thalweg": (*ours, "1e-2", "200"), "gpjax": (gpjax, str(HERE / "_gpjax_peer.py"), *peer)}
            if gpflow:
                contenders["gpflow"] = (gpflow, str(HERE / "_gpflow_peer.py"), *peer, MODES[name])
            outcomes = {method: [] for method in contenders}
            for _ in range(REPEATS[name]):
                for method, command in contenders.items():
                    outcomes[method].append(run(*command))
            seconds = {method: np.median([o["seconds"] for o in found]) for method, found in outcomes.items()}
            for method, found in outcomes.items():
                rows["data"].append(name)
                rows["method"].append(method)
                rows["seconds"].append(float(seconds[method]))
                rows["steps"].append(found[0]["steps"])
                rows["bound"].append(found[0]["bound"])
            assert optimum - outcomes["thalweg"][0]["bound"] < 1e-3
            figure |= {
                f"{m} / thalweg, {name}": float(s / seconds["thalweg"]) for m, s in seconds.items() if m != "thalweg"
            }
            figure[f"thalweg once compiled, seconds, {name}"] = outcomes["thalweg"][0]["seconds once compiled"]
    table(rows)
    report(
        "GPClassifier.fit at fixed hyper-parameters is at least 3 x faster to the same bound than GPJax's dual natural "
        "gradient and GPflow's VGP, compile time included",
        figure,
        min(value for name, value in figure.items() if " / thalweg" in name) >= LIMIT,
        **rows,
    )


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps(fit(sys.argv[1], float(sys.argv[2]), int(sys.argv[3]))))
    else:
        main()

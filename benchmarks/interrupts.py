"""Ctrl-C at random moments: a fit ends within a second, its process goes on and exits cleanly.

Every interrupt is a real SIGINT to a fresh process, at a moment drawn between the first line of a fit and its usual
end. The process then fits ten rows of a small problem, and ends by itself. A fit may return what it reached, with a
warning, or raise KeyboardInterrupt; times are from the signal to that.

``python -m benchmarks.interrupts --runs 100``
"""

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import threading
import time

import numpy as np

from benchmarks._common import report, table

CHILD = """
import json, signal, sys, time, warnings
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in jobs of the background
import numpy as np
import jax, jax.numpy as jnp
import thalweg
from thalweg import *
from thalweg.spectral import logdet
warnings.simplefilter("ignore")
rng = np.random.default_rng(0)
def xy(n, d): x = rng.normal(size=(n, d)); return x, np.sin(x[:, 0]) + x[:, 1] ** 2 + 0.3 * rng.normal(size=n)
CASES
def say(**what): print(json.dumps(what), flush=True)
fit, small = cases[sys.argv[1]]()
fit = fit()
say(began=time.time())
try:
    fit()
    say(ended=time.time(), how="returned")
except KeyboardInterrupt:
    say(ended=time.time(), how="raised")
except BaseException as error:
    say(ended=time.time(), how=repr(error)[:300])
try:
    small()
    say(later="works")
except BaseException as error:
    say(later=repr(error)[:300])
"""
CASES = """
def made(kind, n, d, target=lambda y: y, **options):
    x, y = xy(n, d)
    return (lambda: lambda: kind(random_state=0, **options).fit(x, target(y)),
            lambda: kind(random_state=0, **options).fit(x[:60], target(y)[:60]))
def glm(kind, n, d, target):
    x, y = xy(n, d)
    return (lambda: lambda: kind().fit(x, target(y)), lambda: kind().fit(x[:60], target(y)[:60]))
classes = lambda y: np.digitize(y, [0, 1, 2])
two = lambda y: (y > 0.5).astype(int)
counts = lambda y: np.round(np.exp(np.clip(y, -2, 2)))
def topics():
    counts = rng.poisson(0.3, (1500, 400))
    return (lambda: lambda: CorrelatedTopicModel(20, random_state=0).fit(counts),
            lambda: CorrelatedTopicModel(3, random_state=0).fit(counts[:60, :50]))
def completion(**options):
    u, v = rng.integers(0, 3000, 200_000), rng.integers(0, 1000, 200_000)
    r = rng.normal(size=200_000) + u % 3
    return (lambda: lambda: MatrixCompletion(random_state=0, **options).fit(np.column_stack([u, v]), r),
            lambda: MatrixCompletion(random_state=0).fit(np.column_stack([u, v])[:300], r[:300]))
def spectral():
    a = rng.normal(size=(2500, 2600)); a = jnp.asarray(a @ a.T / 2600 + np.eye(2500))
    return (lambda: lambda: [logdet(a, jax.random.key(k), method="stochastic") for k in range(5)],
            lambda: logdet(a[:50, :50], jax.random.key(0)))
def descent():
    a = jnp.asarray(rng.normal(size=(4000, 500)))
    f = lambda x: jnp.mean(jnp.log1p(jnp.exp(-a @ x)))
    return (lambda: lambda: minimize(f, np.zeros(500), tol=0.0, steps=100_000),
            lambda: minimize(lambda x: jnp.sum(x**2), np.ones(3)))
cases = {
    "KernelClassifier": lambda: made(KernelClassifier, 6000, 10, classes),
    "KernelRegressor": lambda: made(KernelRegressor, 8000, 10),
    "KernelRegressor, huber": lambda: made(KernelRegressor, 4000, 10, loss="huber"),
    "KernelClassifier, hinge": lambda: made(KernelClassifier, 4000, 10, two, loss="hinge"),
    "GPRegressor": lambda: made(GPRegressor, 3000, 5),
    "GPRegressor, 6,000 rows": lambda: made(GPRegressor, 6000, 5),
    "GPRegressor, iterative": lambda: made(GPRegressor, 6000, 3, method="iterative"),
    "GPClassifier": lambda: made(GPClassifier, 1200, 6, two),
    "GPClassifier, four classes": lambda: made(GPClassifier, 600, 6, classes),
    "BernoulliGLM": lambda: glm(BernoulliGLM, 200_000, 30, two),
    "CategoricalGLM": lambda: glm(CategoricalGLM, 20_000, 40, classes),
    "PoissonGLM": lambda: glm(PoissonGLM, 200_000, 30, counts),
    "NegativeBinomialGLM": lambda: glm(NegativeBinomialGLM, 100_000, 20, counts),
    "GaussianGLM": lambda: glm(GaussianGLM, 400_000, 30, lambda y: y),
    "CorrelatedTopicModel": lambda: topics(),
    "MatrixCompletion": lambda: completion(),
    "MatrixCompletion, nuclear": lambda: completion(method="nuclear"),
    "logdet": lambda: spectral(),
    "minimize": lambda: descent(),
}
"""
SECONDS, LONGEST = 8.0, 120.0
NAMES = [line.split('"')[1] for line in CASES.splitlines() if line.startswith('    "')]


def interrupted(name: str, after: float) -> dict:
    """What became of one fit."""
    code = CHILD.replace("CASES", CASES)
    with tempfile.TemporaryFile("w+") as told:
        child = subprocess.Popen([sys.executable, "-c", code, name], stdout=subprocess.PIPE, stderr=told, text=True)
        assert child.stdout is not None
        json.loads(child.stdout.readline())
        time.sleep(after)
        sent = time.time()
        child.send_signal(signal.SIGINT)
        killer = threading.Timer(LONGEST, child.kill)
        killer.start()
        rest = child.stdout.read()  # not communicate(), which would lose what was read ahead
        child.wait()
        killer.cancel()
        told.seek(0)
        errors = told.read()
    found = {"name": name, "after": after, "exit": child.returncode, "how": "died", "later": ""}
    for line in rest.splitlines():
        found |= json.loads(line)
    found["seconds"] = found.pop("ended", np.inf) - sent
    if found["seconds"] < 0:
        found["how"] = "had ended"
        found["seconds"] = 0.0
    return found | ({"stderr": errors[-400:]} if child.returncode else {})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rng = np.random.default_rng(options.seed)
    found = []
    for k in range(options.runs):
        found.append(interrupted(NAMES[k % len(NAMES)], float(rng.uniform(0.02, SECONDS) * rng.uniform())))
        print(found[-1], flush=True)
    table({c: [one[c] for one in found] for c in ("name", "after", "how", "seconds", "later", "exit")})
    clean = [
        (one["exit"] == 0 or one["how"] == "had ended")
        and one["later"] == "works"
        and one["how"] in ("returned", "raised", "had ended")
        for one in found
    ]
    slow = [one for one in found if not one["seconds"] <= 1]
    report(
        "Ctrl-C ends any fit within a second, and its process goes on and exits cleanly",
        {"clean": sum(clean), "within a second": len(found) - len(slow), "of": len(found)},
        all(clean) and not slow,
        runs=found,
    )


if __name__ == "__main__":
    main()

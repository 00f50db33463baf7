"""GPRegressor() without arguments against GPyTorch, on regressions of 800 to 60,000 rows, on a GPU.

Both learn from the training part of split 0 and predict 2,000 rows of the test part with their variances. GPyTorch has
standardised features and targets, an ARD Matérn-3/2 kernel and 100 steps of Adam at 0.1; it is granted the best of its
checkpoints, and its time is that of all steps and one prediction. Each library has a process of its own.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

SETS = ("concrete", "energy", "airfoil", "wine", "skillcraft", "sml", "pumadyn32nm", "elevators", "bike", "protein",
        "keggundirected")  # fmt: skip
PREDICTED = 2_000
CHECKPOINTS = (30, 50, 100)


def split(name: str, which: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Training and test rows of a split; two columns of bike give its target away."""
    with np.load(Path(os.environ["THALWEG_DATA"]) / "uci_regression" / f"{name}.npz") as file:
        inputs, targets, test = file["X"].astype(float), file["y"].astype(float), file["test_mask"][:, which]
    inputs = inputs[:, :-2] if name == "bike" else inputs
    chosen = np.random.default_rng(0).permutation(np.flatnonzero(test))[:PREDICTED]
    return inputs[~test], targets[~test], inputs[chosen], targets[chosen]


def scores(mean: np.ndarray, variance: np.ndarray, truth: np.ndarray, spread: float) -> dict[str, float]:
    """Root mean squared error, negative log predictive density and coverage, in units of the targets' spread."""
    error, variance = (truth - mean) / spread, variance / spread**2
    return {
        "rmse": float(np.sqrt(np.mean(error**2))),
        "nlpd": float(np.mean(np.log(2 * np.pi * variance) + error**2 / variance) / 2),
        "coverage": float(np.mean(np.abs(error) < 1.96 * np.sqrt(variance))),
    }


def ours(name: str) -> dict:
    """The first and the second fit of a process."""
    from thalweg import GPRegressor

    inputs, targets, new, truth = split(name)
    found: dict = {}
    for round_ in ("first", "warm"):
        began = time.perf_counter()
        model = GPRegressor(random_state=0).fit(inputs, targets)
        fitted = time.perf_counter()
        mean, deviation = model.predict(new, return_std=True)
        found[f"{round_}_fit"], found[f"{round_}_predict"] = fitted - began, time.perf_counter() - fitted
    more = {"method": model.method_, "kernel": type(model.kernel_).__name__, "evaluations": model.n_iter_}
    return {"rows": len(inputs), **found, **scores(mean, deviation**2, truth, targets.std()), **more}


def gpytorch(name: str, which: int = 0) -> dict:
    """Its ExactGP, trained by Adam, on the GPU if there is one."""
    import gpytorch as peer
    import torch

    class Process(peer.models.ExactGP):
        def __init__(self, inputs, targets, likelihood):
            super().__init__(inputs, targets, likelihood)
            self.mean_module = peer.means.ConstantMean()
            self.covar_module = peer.kernels.ScaleKernel(peer.kernels.MaternKernel(1.5, ard_num_dims=inputs.shape[1]))

        def forward(self, x):
            return peer.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))

    torch.manual_seed(0)
    inputs, targets, new, truth = split(name, which)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    centre, scale = inputs.mean(0), inputs.std(0)
    scale[scale == 0] = 1
    on_device = lambda array: torch.tensor(array, dtype=torch.float32, device=device)
    x, z = on_device((inputs - centre) / scale), on_device((new - centre) / scale)
    y = on_device((targets - targets.mean()) / targets.std())
    likelihood = peer.likelihoods.GaussianLikelihood().to(device)
    model = Process(x, y, likelihood).to(device)
    objective = peer.mlls.ExactMarginalLogLikelihood(likelihood, model)
    adam = torch.optim.Adam(model.parameters(), lr=0.1)
    found: dict = {"rows": len(inputs), "checkpoints": {}}
    fitting = 0.0
    for step in range(1, CHECKPOINTS[-1] + 1):
        began = time.perf_counter()
        model.train(), likelihood.train(), adam.zero_grad()
        loss = -objective(model(x), y)
        loss.backward()
        adam.step()
        if device == "cuda":
            torch.cuda.synchronize()
        fitting += time.perf_counter() - began
        if step in CHECKPOINTS:
            began = time.perf_counter()
            model.eval(), likelihood.eval()
            with torch.no_grad(), peer.settings.fast_pred_var(False):
                predicted = likelihood(model(z))
                mean, variance = predicted.mean.double().cpu().numpy(), predicted.variance.double().cpu().numpy()
            mean, variance = mean * targets.std() + targets.mean(), variance * targets.std() ** 2
            found["checkpoints"][step] = scores(mean, variance, truth, targets.std())
            found |= {"fit": fitting, "predict": time.perf_counter() - began}
    best = min(found["checkpoints"].values(), key=lambda one: one["nlpd"] if np.isfinite(one["nlpd"]) else np.inf)
    return found | best


def in_process(library: str, names: list[str], limit: float) -> dict[str, dict]:
    """Run a library over the sets in a process of its own; what is found before the time is up counts."""
    command = [sys.executable, "-m", "benchmarks.gp_regressor_gpu", "--contender", library, *names]
    found = {}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        began = time.perf_counter()
        assert process.stdout is not None
        for line in process.stdout:
            print(library, line.strip(), flush=True)
            if line.startswith("{"):
                one = json.loads(line)
                found[one.pop("set")] = one
            if time.perf_counter() - began > limit:
                process.kill()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--contender", choices=("ours", "gpytorch"), help="only this one, in this process")
    parser.add_argument("--limit", type=float, default=1e9, help="seconds for each library")
    parser.add_argument("sets", nargs="*", default=list(SETS))
    options = parser.parse_args()
    if options.contender:
        for name in options.sets:
            try:
                one = {"ours": ours, "gpytorch": gpytorch}[options.contender](name)
            except Exception as error:  # a set that does not fit is a result
                one = {"error": f"{type(error).__name__}: {error}"[:300]}
            print(json.dumps({"set": name, **one}), flush=True)
        return
    from benchmarks._common import report, table

    found = {library: in_process(library, options.sets, options.limit) for library in ("ours", "gpytorch")}
    both = [name for name in options.sets if all("nlpd" in found[library].get(name, {}) for library in found)]
    mine, theirs = ([found[library][name] for name in both] for library in found)
    times = [(a["warm_fit"] + a["warm_predict"]) / (b["fit"] + b["predict"]) for a, b in zip(mine, theirs, strict=True)]
    behind = [a["nlpd"] - b["nlpd"] for a, b in zip(mine, theirs, strict=True)]
    columns = {name: [a[name] for a in mine] for name in ("rows", "nlpd", "coverage", "warm_fit", "first_fit")}
    table({"set": both, **columns, "theirs": [b["nlpd"] for b in theirs], "time ratio": times})
    holds = len(both) == len(options.sets) and max(behind) <= 0 and max(times) <= 0.5
    claim = "no set has a higher NLPD than GPyTorch's best checkpoint, and none takes more than half of its time"
    report(claim, {"worst_nlpd_difference": max(behind), "worst_time_ratio": max(times)}, holds, **found)


if __name__ == "__main__":
    main()

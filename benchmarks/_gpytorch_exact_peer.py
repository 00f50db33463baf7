"""GPyTorch's exact GP, ARD Matérn-3/2, by Adam: run by gp_regressor with a Python that has torch and gpytorch.

Arguments: the data file, the log marginal likelihood to reach and the most steps. Prints JSON: seconds (wall and
processor) until it is reached, or after those steps, and what was reached. Features and targets are
standardised, in float64.
"""

import json
import sys
import time

import gpytorch
import numpy as np
import torch


class Model(gpytorch.models.ExactGP):
    def __init__(self, X, y, likelihood):
        super().__init__(X, y, likelihood)
        self.mean_module = gpytorch.means.ConstantMean()
        self.covar_module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.MaternKernel(nu=1.5, ard_num_dims=X.shape[1]))

    def forward(self, x):
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


def main(path, goal, most):
    data = np.load(path)
    began = time.perf_counter(), time.process_time()
    X, y = (torch.tensor((part - part.mean(0)) / part.std(0)) for part in (data["X"], data["y"]))
    likelihood = gpytorch.likelihoods.GaussianLikelihood().double()
    model = Model(X, y, likelihood).double().train()
    likelihood.train()
    evidence = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
    optimiser = torch.optim.Adam(model.parameters(), lr=0.1)
    best, steps = -np.inf, 0
    # The factorisation that it uses up to 800 rows, at all sizes: exact values, by which it can be stopped.
    with gpytorch.settings.fast_computations(log_prob=False):
        while steps < most and best < goal:
            optimiser.zero_grad()
            loss = -evidence(model(X), y)
            best = max(best, -loss.item() * len(y) - len(y) * np.log(data["y"].std()))
            loss.backward()
            optimiser.step()
            steps += 1
    wall, cpu = time.perf_counter() - began[0], time.process_time() - began[1]
    print(json.dumps({"seconds": wall, "processor": cpu, "evidence": float(best), "evaluations": steps}))


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), int(sys.argv[3]))

"""GPyTorch's KISS-GP in one dimension from one start: run by gp_grid with a Python that has GPyTorch.

Arguments: the data file and the share of the range to start the lengthscale at. Adam 0.1, as in its own examples, in
float32 as there; errors on the rows held out are taken every few steps, outside the clock.
"""

import json
import sys
import time
import warnings

import gpytorch
import numpy as np
import torch

STEPS, EVERY = 60, 5
warnings.filterwarnings("ignore")


class Model(gpytorch.models.ExactGP):
    def __init__(self, x, y, likelihood, nodes):
        super().__init__(x, y, likelihood)
        self.mean_module = gpytorch.means.ConstantMean()
        inner = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())
        bounds = [(float(x.min()), float(x.max()))]
        self.covar_module = gpytorch.kernels.GridInterpolationKernel(
            inner, grid_size=nodes, num_dims=1, grid_bounds=bounds
        )

    def forward(self, x):
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


def main(path, share, most_seconds):
    data = np.load(path)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    move = lambda array: torch.tensor(array, dtype=torch.float32, device=device)
    held = data["held"]
    unit = np.ptp(data["x"])
    x, y = move((data["x"] - data["x"].min()) / unit), move(data["y"])
    x, new, y, truth = x[~held], x[held], y[~held], y[held]
    torch.zeros(1, device=device).sum().item()
    spread = float(y.var())
    likelihood = gpytorch.likelihoods.GaussianLikelihood(noise_constraint=gpytorch.constraints.GreaterThan(1e-8))
    model = Model(x, y, likelihood, int(data["nodes"])).to(device)
    likelihood.to(device)
    inner = model.covar_module.base_kernel
    inner.base_kernel.lengthscale, inner.outputscale, likelihood.noise = share, spread, 0.1 * spread
    model.mean_module.constant.data.fill_(float(y.mean()))
    optimiser = torch.optim.Adam(model.parameters(), lr=0.1)
    objective = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
    clock, used, seconds, processor, errors, found = 0.0, 0.0, [], [], [], []
    for step in range(STEPS):
        begun, busy = time.perf_counter(), time.process_time()
        model.train(), likelihood.train()
        optimiser.zero_grad()
        loss = -objective(model(x), y)
        loss.backward()
        optimiser.step()
        float(loss)
        clock, used = clock + time.perf_counter() - begun, used + time.process_time() - busy
        if (step + 1) % EVERY == 0 or clock > most_seconds:
            model.eval(), likelihood.eval()
            # Covariances of two thousand rows would take minutes of solves; only the mean is asked for.
            with torch.no_grad(), gpytorch.settings.skip_posterior_variances():
                begun = time.perf_counter()
                mean = model(new).mean
                error = float(torch.sqrt(torch.mean((mean - truth) ** 2)))
                predicting = time.perf_counter() - begun
            seconds.append(clock + predicting)
            processor.append(used + predicting)
            errors.append(error)
            found.append(float(inner.base_kernel.lengthscale))
        if clock > most_seconds:
            break
    return {
        "seconds": seconds,
        "processor": processor,
        "errors": errors,
        "lengthscales": found,
        "version": gpytorch.__version__,
    }


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], float(sys.argv[2]), float(sys.argv[3]))))

"""
A trend, a season and what is left
==================================

Sums and products of kernels say what a series is made of. Here: a level that rises, a season whose shape drifts slowly,
and short-lived irregularities, as in measurements of carbon dioxide in the air. The series is generated, so that the
forecast can be compared with what comes next.
"""

import matplotlib.pyplot as plt
import numpy as np

from thalweg import GPRegressor
from thalweg.kernels import Gaussian, Matern32, Periodic

# %%
# Thirty years of monthly values; the last ten are held back.

rng = np.random.default_rng(0)
year = np.arange(0, 30, 1 / 12)
trend = 330 + 1.4 * year + 0.012 * year**2
season = (3 + 0.02 * year) * np.sin(2 * np.pi * year) + 1.1 * np.cos(4 * np.pi * year)
level = trend + season + 0.3 * rng.normal(size=year.size)
seen = year < 20

# %%
# Lengthscales and variances are where the search starts, in years and in the square of the unit of the series.

kernel = (
    Gaussian(50.0, 2000.0)  # a trend over decades
    + Periodic(1.0, 1.0, 10.0) * Gaussian(80.0)  # a season that drifts
    + Matern32(1.0, 0.5)  # irregularities
)
model = GPRegressor(kernel, mean="linear", random_state=0).fit(year[seen, None], level[seen])
mean, deviation = model.predict(year[:, None], return_std=True)
print(model.kernel_)
print(f"noise {np.sqrt(model.noise_):.2f} (true 0.30)")

# %%
# How the forecast does against a line with a fixed season, by least squares, and how often its interval holds.

basis = np.column_stack(
    [np.ones_like(year), year, *(f(2 * np.pi * k * year) for k in (1, 2) for f in (np.sin, np.cos))]
)
line = basis @ np.linalg.lstsq(basis[seen], level[seen], rcond=None)[0]
for name, forecast in {"Gaussian process": mean, "line and season": line}.items():
    print(f"{name}: RMSE over the ten years {np.sqrt(np.mean((forecast - level)[~seen] ** 2)):.2f}")
within = np.abs(level - mean)[~seen] < 1.96 * deviation[~seen]
print(f"within the 95 % interval: {100 * within.mean():.0f} %")

# %%
# The band widens with the distance, as the trend and the drift of the season become less certain.

figure, axes = plt.subplots(figsize=(8, 3.6), layout="constrained")
axes.fill_between(year, mean - 1.96 * deviation, mean + 1.96 * deviation, alpha=0.25, label="95 % interval")
axes.plot(year, mean, linewidth=1, label="mean")
axes.plot(year[seen], level[seen], ".", markersize=2, label="seen")
axes.plot(year[~seen], level[~seen], ".", markersize=2, label="what came")
axes.axvline(20, color="k", linewidth=0.5)
axes.set(xlabel="year", ylabel="level")
axes.legend()
plt.show()

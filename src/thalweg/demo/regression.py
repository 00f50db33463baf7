"""A curve with its band and a map with its doubt: GPRegressor without arguments, against what was drawn."""

import numpy as np

from thalweg.experiments import plots
from thalweg.experiments.registry import experiment
from thalweg.experiments.section import Run
from thalweg.models import GPRegressor

_NOISE = 0.15


@experiment(
    "demo-regression",
    title="A regression that says how far it may be off",
    paper="Demonstration",
    demo=True,
    order=4,
)
def demo_regression(run: Run) -> None:
    """Fit a curve and a surface, and count how often intervals hold."""
    rng = np.random.default_rng(run.seed)
    curve = _curve(run, rng)
    surface = _map(run, rng)
    run.table(
        "intervals",
        {
            "data": ["curve", "map"],
            "rows": [curve[0], surface[0]],
            "new observations within the 95 % interval": [f"{100 * part[1]:.1f} %" for part in (curve, surface)],
            "noise, learned": [part[2] for part in (curve, surface)],
            "noise, true": [_NOISE, _NOISE],
        },
        "Intervals hold about as often as they say, where there are rows and where there are none. Noise as a standard "
        "deviation.",
    )


def _truth(x: np.ndarray) -> np.ndarray:
    return np.sin(x) + 0.5 * np.sin(2.7 * x + 1) + 0.05 * x


def _curve(run: Run, rng: np.random.Generator) -> tuple[int, float, float]:
    x = np.concatenate([rng.uniform(0, 5, 35), rng.uniform(7.5, 12, 25)])
    y = _truth(x) + _NOISE * rng.normal(size=x.size)
    model = GPRegressor(random_state=run.seed).fit(x[:, None], y)
    new = np.linspace(-1.5, 14, 400)
    mean, deviation = model.predict(new[:, None], return_std=True)
    fig, axes = plots.figure()
    axes.fill_between(
        new, mean - 1.96 * deviation, mean + 1.96 * deviation, color=plots.PALETTE[0], alpha=0.18, linewidth=0
    )
    for drawn in model.sample_y(new[:, None], 3, random_state=run.seed).T:
        axes.plot(new, drawn, color=plots.PALETTE[0], linewidth=0.6, alpha=0.7)
    axes.plot(new, mean, color=plots.PALETTE[0], label="mean, three draws and the 95 % band")
    axes.plot(new, _truth(new), color=plots.INK, linewidth=1, linestyle="--", label="truth")
    axes.scatter(x, y, s=10, color=plots.PALETTE[1], zorder=3, label="rows")
    axes.set(xlabel="x", ylabel="y")
    axes.legend()
    caption = "Between 5 and 7.5, and beyond 12, there are no rows: there the band opens, and the draws differ."
    run.figure("curve", fig, caption)
    held_out = rng.uniform(0, 12, 2000)
    mean, deviation = model.predict(held_out[:, None], return_std=True)
    observed = _truth(held_out) + _NOISE * rng.normal(size=held_out.size)
    return x.size, float(np.mean(np.abs(observed - mean) < 1.96 * deviation)), float(np.sqrt(model.noise_))


def _surface(points: np.ndarray) -> np.ndarray:
    return np.sin(1.5 * points[:, 0]) * np.cos(points[:, 1]) + 0.3 * points[:, 0]


def _map(run: Run, rng: np.random.Generator) -> tuple[int, float, float]:
    points = rng.uniform(-3, 3, size=(220, 2))
    points = points[np.hypot(points[:, 0] - 1, points[:, 1] + 1) > 1.2]  # a hole without rows
    values = _surface(points) + _NOISE * rng.normal(size=len(points))
    model = GPRegressor(random_state=run.seed).fit(points, values)
    across, up = np.meshgrid(np.linspace(-4, 4, 70), np.linspace(-4, 4, 70))
    grid = np.column_stack([across.ravel(), up.ravel()])
    mean, variance = model.latent(grid)
    fig, axes = plots.figure(2, height=3.2)
    shown = ((mean, "RdBu_r", "mean"), (np.sqrt(variance), "viridis", "standard deviation"))
    for ax, (level, colours, title) in zip(axes, shown, strict=True):
        shades = ax.contourf(across, up, level.reshape(across.shape), levels=12, cmap=colours)
        fig.colorbar(shades, ax=ax)
        ax.scatter(*points.T, s=5, color="white", edgecolors=plots.INK, linewidths=0.4)
        ax.set_title(title)
        ax.grid(visible=False)
    run.figure("map", fig, "Left: the mean of a surface. Right: its standard deviation, large in the hole and outside.")
    inside = rng.uniform(-3, 3, size=(2000, 2))
    mean, deviation = model.predict(inside, return_std=True)
    observed = _surface(inside) + _NOISE * rng.normal(size=len(inside))
    return len(points), float(np.mean(np.abs(observed - mean) < 1.96 * deviation)), float(np.sqrt(model.noise_))

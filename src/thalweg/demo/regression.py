"""A curve and a surface with their uncertainty: GPRegressor without arguments, against the truth."""

from collections.abc import Callable

import numpy as np

from thalweg.demo import plots
from thalweg.demo.section import Section, experiment
from thalweg.models import GPRegressor

# Standard deviation of the noise. Twice as much makes the bands about twice as wide where there are rows.
NOISE = 0.15


@experiment("demo-regression", title="A regression that says how far it may be off", paper="Demonstration")
def regression(section: Section) -> None:
    """Fit a curve and a surface, and count how often intervals hold."""
    rng = np.random.default_rng(section.seed)
    x = np.concatenate([rng.uniform(0, 5, 35), rng.uniform(7.5, 12, 25)])[:, None]
    y = _curve(x) + NOISE * rng.normal(size=len(x))
    curve_model = GPRegressor(random_state=section.seed).fit(x, y)
    _draw_curve(section, curve_model, x, y)
    curve_coverage = _coverage(curve_model, _curve, rng.uniform(0, 12, (2000, 1)), rng)
    points = rng.uniform(-3, 3, size=(220, 2))
    points = points[np.hypot(points[:, 0] - 1, points[:, 1] + 1) > 1.2]  # a hole without rows
    values = _surface(points) + NOISE * rng.normal(size=len(points))
    surface_model = GPRegressor(random_state=section.seed).fit(points, values)
    _draw_surface(section, surface_model, points)
    surface_coverage = _coverage(surface_model, _surface, rng.uniform(-3, 3, size=(2000, 2)), rng)
    percent = lambda share: f"{100 * share:.1f} %"
    section.table(
        "intervals",
        {
            "data": ["curve", "map"],
            "rows": [len(x), len(points)],
            "new observations within the 95 % interval": [percent(curve_coverage), percent(surface_coverage)],
            "noise, learned": [float(np.sqrt(model.noise_)) for model in (curve_model, surface_model)],
            "noise, true": [NOISE, NOISE],
        },
        "Intervals hold about as often as they say, where there are rows and where there are none. Noise as a standard "
        "deviation.",
    )


def _curve(x: np.ndarray) -> np.ndarray:
    return np.sin(x[:, 0]) + 0.5 * np.sin(2.7 * x[:, 0] + 1) + 0.05 * x[:, 0]


def _surface(points: np.ndarray) -> np.ndarray:
    return np.sin(1.5 * points[:, 0]) * np.cos(points[:, 1]) + 0.3 * points[:, 0]


def _coverage(
    model: GPRegressor, truth: Callable[[np.ndarray], np.ndarray], new: np.ndarray, rng: np.random.Generator
) -> float:
    """Return the share of new observations within their 95 % intervals."""
    mean, deviation = model.predict(new, return_std=True)
    observed = truth(new) + NOISE * rng.normal(size=len(new))
    return float(np.mean(np.abs(observed - mean) < 1.96 * deviation))


def _draw_curve(section: Section, model: GPRegressor, x: np.ndarray, y: np.ndarray) -> None:
    new = np.linspace(-1.5, 14, 400)[:, None]
    mean, deviation = model.predict(new, return_std=True)
    band, colour = (mean - 1.96 * deviation, mean + 1.96 * deviation), plots.PALETTE[0]
    caption = "Between 5 and 7.5, and beyond 12, there are no rows: there the band opens, and the draws differ."
    with section.figure("curve", caption) as axes:
        axes.fill_between(new[:, 0], *band, color=colour, alpha=0.18, linewidth=0)
        axes.plot(new, model.sample_y(new, 3, random_state=section.seed), color=colour, linewidth=0.6, alpha=0.7)
        axes.plot(new, mean, color=colour, label="mean, three draws and the 95 % band")
        axes.plot(new, _curve(new), color=plots.INK, linewidth=1, linestyle="--", label="truth")
        axes.scatter(x, y, s=10, color=plots.PALETTE[1], zorder=3, label="rows")
        axes.set(xlabel="x", ylabel="y")
        axes.legend()


def _draw_surface(section: Section, model: GPRegressor, points: np.ndarray) -> None:
    grid = plots.square_grid([-4, -4], [4, 4], 70)
    mean, variance = model.latent(grid)
    caption = "Left: the mean of a surface. Right: its standard deviation, large in the hole and outside."
    with section.figure("map", caption, columns=2, height=3.2) as axes:
        plots.draw_map(axes[0], grid, mean, levels=12, colours="RdBu_r", title="mean")
        plots.draw_map(axes[1], grid, np.sqrt(variance), levels=12, colours="viridis", title="standard deviation")
        for ax in axes:
            ax.scatter(*points.T, s=5, color="white", edgecolors=plots.INK, linewidths=0.4)

"""The look of all plots: figures without global state, in colours that colour-blind readers can tell apart."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np

from thalweg.extras import extra

with extra("report"):
    import matplotlib
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

_STYLE = matplotlib.rc_params_from_file(Path(__file__).with_name("style.mplstyle"), use_default_template=False)
PALETTE: tuple[str, ...] = tuple(_STYLE["axes.prop_cycle"].by_key()["color"])
INK: str = _STYLE["text.color"]


def style() -> AbstractContextManager[None]:
    """Return a context in which Matplotlib draws in our style; experiments run inside it."""
    return matplotlib.rc_context(_STYLE)


def figure(columns: int = 1, *, height: float = 3.4) -> tuple[Figure, Any]:
    """Return a figure and its axes: one, or an array of ``columns`` side by side.

    Two columns fill the page of the report; on a phone one is easier to read.

    Examples
    --------
    >>> fig, ax = figure()
    >>> _ = ax.semilogy([1, 0.1, 0.01], label="descent")
    """
    fig = Figure(figsize=(5.4 if columns == 1 else 3.8 * columns, height), layout="constrained")
    return fig, fig.subplots(1, columns)


def label_lines(axes: Axes, *, gap: float = 0.075) -> None:
    """Write each line's label at its right end, instead of a legend.

    Parameters
    ----------
    axes
        Where the lines are.
    gap
        The least distance between two labels, as a fraction of the height of the axes.
    """
    lines = [line for line in axes.get_lines() if not str(line.get_label()).startswith("_")]
    axes.autoscale_view()
    to_axes = axes.transData + axes.transAxes.inverted()
    ends = np.array([to_axes.transform(_last_finite_point(line))[1] for line in lines])
    for index, height in zip(order := np.argsort(ends), _spread(ends[order], gap), strict=True):
        line = lines[index]
        axes.plot(
            [1.01, 1.04],
            [height, height],
            color=line.get_color(),
            linestyle=line.get_linestyle(),
            transform=axes.transAxes,
            clip_on=False,
        )
        axes.text(1.055, height, str(line.get_label()), transform=axes.transAxes, va="center")


def draw_map(axes: Axes, points: np.ndarray, values: np.ndarray, *, levels: Any, colours: str, title: str) -> None:
    """Draw values at the points of a square grid as filled contours with a colour bar."""
    side = int(np.sqrt(len(points)))
    across, up, values = (column.reshape(side, side) for column in (*points.T, values))
    axes.figure.colorbar(axes.contourf(across, up, values, levels=levels, cmap=colours), ax=axes)
    axes.set_title(title)
    axes.grid(visible=False)


def square_grid(low: Any, high: Any, side: int) -> np.ndarray:
    """Return the ``side × side`` points of a regular grid over a rectangle, one a row.

    Examples
    --------
    >>> square_grid([0, 0], [1, 2], 2)
    array([[0., 0.],
           [1., 0.],
           [0., 2.],
           [1., 2.]])
    """
    axes = np.meshgrid(*(np.linspace(*ends, side) for ends in zip(low, high, strict=True)))
    return np.column_stack([axis.ravel() for axis in axes])


def save(figure: Figure, stem: Path) -> None:
    """Write a figure as ``stem.png``, on white, and as ``stem.svg``, on a transparent background."""
    figure.savefig(stem.with_name(f"{stem.name}.png"), dpi=150, facecolor="white")
    # The salt makes the file reproducible, and its ids differ from those of other figures on one page.
    with matplotlib.rc_context({"svg.hashsalt": stem.name}):
        figure.savefig(stem.with_name(f"{stem.name}.svg"), transparent=True, metadata={"Date": None})


def _last_finite_point(line: Line2D) -> tuple[float, float]:
    x, y = (np.asarray(values, float) for values in line.get_data())
    finite = np.flatnonzero(np.isfinite(x) & np.isfinite(y))
    return (x[finite[-1]], y[finite[-1]]) if finite.size else (0.0, 1.0)


def _spread(heights: Sequence[float] | np.ndarray, gap: float) -> np.ndarray:
    """Move sorted heights apart, up first and then down from the top, as little as that takes."""
    shifts = gap * np.arange(len(heights))
    upwards = np.maximum.accumulate(np.clip(heights, 0.0, 1.0) - shifts) + shifts
    return np.minimum(upwards, 1.0 - shifts[::-1])

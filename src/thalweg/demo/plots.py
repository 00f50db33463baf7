"""The look of our plots: figures without global state, colours that the colour-blind can tell apart."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from cycler import cycler
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

# After Okabe and Ito, without black and yellow, which vanish on dark and on light.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#8C6D46", "#7F7F7F")
# Text and axes; the report replaces it by the colour of its own text, so it must occur nowhere else.
INK = "#2b2c2d"

_STYLE: dict[Any, Any] = {
    "axes.axisbelow": True,
    "axes.edgecolor": INK,
    "axes.grid": True,
    "axes.labelcolor": INK,
    "axes.prop_cycle": cycler(color=PALETTE),
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlecolor": INK,
    "axes.titlelocation": "left",
    "axes.titlesize": 11,
    "font.size": 10,
    "grid.alpha": 0.3,
    "grid.color": PALETTE[-1],
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "lines.linewidth": 1.8,
    "svg.fonttype": "path",
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
}


def style() -> AbstractContextManager[None]:
    """Return a context in which Matplotlib draws in our style; experiments run inside it."""
    return matplotlib.rc_context(_STYLE)


def figure(columns: int = 1, *, height: float = 3.4) -> tuple[Figure, Any]:
    """Return a figure and its axes: one, or an array of ``columns`` side by side.

    Two columns fill the page of the report; on a phone one is easier to read.

    >>> fig, ax = figure()
    >>> _ = ax.semilogy([1, 0.1, 0.01], label="descent")
    """
    made = Figure(figsize=(5.4 if columns == 1 else 3.8 * columns, height), layout="constrained")
    return made, made.subplots(1, columns)


def label_lines(axes: Axes, *, gap: float = 0.075) -> None:
    """Write each line's label at its right end, instead of a legend; labels are kept ``gap`` apart.

    The gap is in units of the height of the axes.
    """
    lines = [line for line in axes.get_lines() if not str(line.get_label()).startswith("_")]
    axes.autoscale_view()
    to_axes = axes.transData + axes.transAxes.inverted()
    ends = np.array([to_axes.transform(_last_finite(line))[1] for line in lines])
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


def save(figure: Figure, stem: Path) -> None:
    """Write a figure as ``stem.png``, on white, and as ``stem.svg``, on nothing."""
    figure.savefig(stem.with_name(f"{stem.name}.png"), dpi=150, facecolor="white")
    # The salt makes the file reproducible, and its ids differ from those of other figures on one page.
    with matplotlib.rc_context({"svg.hashsalt": stem.name}):
        figure.savefig(stem.with_name(f"{stem.name}.svg"), transparent=True, metadata={"Date": None})


def _last_finite(line: Line2D) -> tuple[float, float]:
    x, y = (np.asarray(values, float) for values in line.get_data())
    finite = np.flatnonzero(np.isfinite(x) & np.isfinite(y))
    return (x[finite[-1]], y[finite[-1]]) if finite.size else (0.0, 1.0)


def _spread(heights: Sequence[float] | np.ndarray, gap: float) -> np.ndarray:
    """Move sorted heights apart, up first and then down from the top, as little as that takes."""
    placed = np.clip(heights, 0.0, 1.0)
    for i in range(1, len(placed)):
        placed[i] = max(placed[i], placed[i - 1] + gap)
    if len(placed):
        placed[-1] = min(placed[-1], 1.0)
    for i in range(len(placed) - 2, -1, -1):
        placed[i] = min(placed[i], placed[i + 1] - gap)
    return placed

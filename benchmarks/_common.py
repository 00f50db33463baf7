"""What the benchmarks share: timing side by side, and one way to report."""

import json
import platform
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

RESULTS = Path(__file__).parent / "results"


def side_by_side(contenders: Mapping[str, Callable[[], Any]], repeats: int = 7) -> dict[str, np.ndarray]:
    """Time functions in turn, after one call each to compile; return the seconds of every repeat.

    Machines are noisy, so what counts is the ratio of times taken next to each other: see :func:`ratio`.
    """
    for function in contenders.values():
        jax.block_until_ready(function())
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(repeats):
        for name, function in contenders.items():
            began = time.perf_counter()
            jax.block_until_ready(function())
            seconds[name].append(time.perf_counter() - began)
    return {name: np.array(times) for name, times in seconds.items()}


def ratio(seconds: Mapping[str, np.ndarray], ours: str, theirs: str) -> float:
    """The median over repeats of our time divided by theirs."""
    return float(np.median(seconds[ours] / seconds[theirs]))


def table(columns: Mapping[str, list[Any]]) -> None:
    """Print a small table."""
    shown = {name: [f"{v:.4g}" if isinstance(v, float) else str(v) for v in column] for name, column in columns.items()}
    widths = [max(map(len, [name, *column])) for name, column in shown.items()]
    for row in [list(shown), *zip(*shown.values(), strict=True)]:
        print("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)))


def report(claim: str, figure: float | dict, holds: bool, **details: Any) -> None:
    """Print one line of JSON, and write it with the details to ``results/NAME.json``."""
    spec = sys.modules["__main__"].__spec__
    name = (spec.name if spec else Path(sys.argv[0]).stem).rsplit(".", 1)[-1]
    outcome = {"benchmark": name, "claim": claim, "figure": figure, "holds": bool(holds)}
    machine = {"device": str(jax.devices()[0].device_kind), "jax": jax.__version__, "python": platform.python_version()}
    RESULTS.mkdir(exist_ok=True)
    text = json.dumps({**outcome, "details": details, "machine": machine}, indent=1, default=float)
    (RESULTS / f"{name}.json").write_text(text + "\n")
    print(json.dumps(outcome, default=float))

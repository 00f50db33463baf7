"""The full sizes of dsg-figure1 and dsg-table3, measured on one machine and shown on another.

Usage, where the accelerator is (Matplotlib need not be there), one data set at a time::

    python -m benchmarks.dsg_gpu measure figure1 cifar10 FOLDER
    python -m benchmarks.dsg_gpu measure table3 cifar10 FOLDER

and then, where Matplotlib is, ``python -m benchmarks.dsg_gpu show figure1 FOLDER OUTPUT``: the same section that
``thalweg reproduce dsg-figure1 --full`` makes, of the data sets that are in the folder. Measurements are pickles: show
none but your own.
"""

import importlib.util
import pickle
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock


def measure(name: str, data_set: str, folder: Path) -> None:
    """Run everything on one data set at its full size, and keep what was found."""
    if importlib.util.find_spec("matplotlib") is None:
        for part in ("", ".axes", ".figure", ".lines", ".ticker"):
            sys.modules[f"matplotlib{part}"] = MagicMock()
        sys.modules["cycler"] = MagicMock()
    module = importlib.import_module(f"thalweg.experiments.dsg_{name}")
    size = module.full()
    began = time.perf_counter()
    found = module.measure(data_set, size, 0)
    seconds = time.perf_counter() - began
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}-{data_set}.pickle").write_bytes(pickle.dumps((size, found, seconds)))
    print(f"{name} {data_set}: {seconds:.0f} s on {found.device}")


def show(name: str, folder: Path, output: Path) -> None:
    """Draw, tabulate and comment what was measured."""
    from thalweg.experiments import registry, report

    module = importlib.import_module(f"thalweg.experiments.dsg_{name}")
    kept: list[tuple[Any, Any, float]] = [
        pickle.loads(path.read_bytes())
        for data_set in module.DATA_SETS
        if (path := folder / f"{name}-{data_set}.pickle").exists()
    ]
    size, all_found = kept[0][0], [found for _, found, _ in kept]
    chosen = replace(registry.find(f"dsg-{name}"), function=lambda run: module.show(run, size, all_found))
    section = registry.execute(chosen, output, quick=False, seed=0)
    section = replace(section, seconds=sum(seconds for *_, seconds in kept))
    section.write()
    report.write(output / "index.html", chosen.title, "", [section])
    print(output / "index.html")


if __name__ == "__main__":
    what, name, *rest = sys.argv[1:]
    if what == "measure":
        measure(name, rest[0], Path(rest[1]))
    else:
        show(name, Path(rest[0]), Path(rest[1]))

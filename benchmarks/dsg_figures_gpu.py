"""Figures 1 and 2 and Tables 3 to 6 of Li and Póczos (2017) on a GPU, in the time that one gives them.

Results are written after each data set, and each run of Figure 2 and Tables 3 to 6: an end by force loses the run
at hand only, and a data set of Figure 1 or Table 3 that is done is not run again. Figure 2 and Tables 4 to 6 may be of
fewer rows than the paper's 8.1 million, which the page then says; ``--brief`` leaves out what the paper does not have.
LIBSVM needs no GPU: ``libsvm`` trains it for Table 3, which finds what it took in ``--output``, or else trains it.

``python -m benchmarks.dsg_figures_gpu figure2 --rows 4000000 --seconds 20``; needs the data sets (THALWEG_DATA).
"""

import argparse
import json
import pickle
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

from benchmarks._common import RESULTS
from papers import dsg_figure1, dsg_figure2, dsg_table3, dsg_tables456
from thalweg.demo import Section

Keep = Callable[[Any, Any, dict[str, Any]], None]
"""A function of claims, the results that they judge, and tables by name."""


def figure1(given: argparse.Namespace, keep: Keep) -> Callable[[Section], None]:
    size, parts = dsg_figure1.full_size(given.seconds, not given.brief), []
    for name in _names(given, dsg_figure1.DATA_SETS):
        parts.append(_kept(given, name, lambda name=name: dsg_figure1.measure(name, size, 0)))
        tables = {part.name: dsg_figure1.columns(part) for part in parts}
        keep(dsg_figure1.CLAIMS, dsg_figure1.Figure1Results(parts, True), tables)
    return lambda section: dsg_figure1.show_results(section, size, parts)


def figure2(given: argparse.Namespace, keep: Keep) -> Callable[[Section], None]:
    size = dsg_figure2.full_size(given.rows, given.seconds)
    results = dsg_figure2.measure(
        size, 0, lambda results: keep(dsg_figure2.CLAIMS, results, {"ends": dsg_figure2.columns(results)})
    )
    return lambda section: dsg_figure2.show_results(section, results)


def table3(given: argparse.Namespace, keep: Keep) -> Callable[[Section], None]:
    size, parts = dsg_table3.full_size(given.seconds, not given.brief), []
    for name in _names(given, dsg_table3.DATA_SETS):
        known = _of_libsvm(given, name)
        exact = tuple(json.loads(known.read_text())) if known.exists() else None
        done = list(parts)

        def on_progress(part: dsg_table3.DataSetErrors, done: list[dsg_table3.DataSetErrors] = done) -> None:
            every = [*done, part]
            keep(dsg_table3.CLAIMS, dsg_table3.Table3Results(every, True), {"errors": dsg_table3.columns(every)})

        measure = lambda name=name, exact=exact, report=on_progress: dsg_table3.measure(name, size, 0, exact, report)
        parts.append(_kept(given, name, measure))
        on_progress(parts[-1])
    return lambda section: dsg_table3.show_results(section, size, parts)


def tables456(given: argparse.Namespace, keep: Keep) -> Callable[[Section], None]:
    size = dsg_tables456.full_size(given.rows, given.seconds)
    write = lambda results: keep(dsg_tables456.CLAIMS, results, {"tables": dsg_tables456.columns(results)})
    results = dsg_tables456.measure(size, 0, pretraining=300, on_progress=write)
    return lambda section: dsg_tables456.show_results(section, results)


def _names(given: argparse.Namespace, every: tuple[str, ...]) -> list[str]:
    return given.data.split(",") if given.data else list(every)


def _kept(given: argparse.Namespace, name: str, measure: Callable[[], Any]) -> Any:
    """Return the stored results on a data set, or measure them now."""
    path = given.output / f"{given.what}-{name}.pickle"
    if not path.exists():
        path.write_bytes(pickle.dumps(measure()))
    return pickle.loads(path.read_bytes())


def _of_libsvm(given: argparse.Namespace, name: str) -> Path:
    return given.output / f"libsvm-{name}.json"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "what", nargs="?", default="figure2", choices=("libsvm", "figure1", "figure2", "table3", "tables456")
    )
    parser.add_argument("--rows", type=int, default=dsg_figure2.ROWS)
    parser.add_argument("--seconds", type=float, default=20.0, help="of training for each run")
    parser.add_argument("--data", default="", help="data sets of Figure 1 or Table 3, with commas between")
    parser.add_argument("--brief", action="store_true", help="less that the paper does not have")
    parser.add_argument("--output", type=Path, default=Path("reproductions"))
    given = parser.parse_args()
    folder = given.output / f"dsg-{given.what}"
    folder.mkdir(parents=True, exist_ok=True)
    began = time.perf_counter()
    if given.what == "libsvm":
        for name in _names(given, dsg_table3.DATA_SETS):
            took = dsg_table3.train_libsvm(dsg_table3.load_problem(name, dsg_table3.full_size(), 0))
            _of_libsvm(given, name).write_text(json.dumps(took))
            print(name, *took, flush=True)
        return
    machine = {"device": str(jax.devices()[0].device_kind), "jax": jax.__version__}

    def keep(claims: Any, results: Any, tables: dict[str, Any]) -> None:
        rows = [{"claim": c.words, "verdict": c.verdict(results), "seen": c.evidence_in(results)} for c in claims]
        outcome = {"benchmark": f"dsg_{given.what}", "claims": rows, "tables": tables}
        outcome |= {"seconds": time.perf_counter() - began, "machine": machine}
        rows_of = {} if given.what in ("figure1", "table3") else {"rows": given.rows}
        outcome["settings"] = rows_of | {"seconds of a run": given.seconds, "brief": given.brief}
        (RESULTS / f"dsg_{given.what}_gpu.json").write_text(json.dumps(outcome, indent=1, default=float) + "\n")
        judged = sum(row["verdict"] != "not tested at this size" for row in rows)
        print(f"{time.perf_counter() - began:6.1f} s, {judged} of {len(rows)} claims judged", flush=True)

    draw = {"figure1": figure1, "figure2": figure2, "table3": table3, "tables456": tables456}[given.what](given, keep)
    draw(Section(folder, quick=False, seed=0))


if __name__ == "__main__":
    main()

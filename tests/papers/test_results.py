"""The results of full-size runs on file have the claims as they are worded now."""

import json
from pathlib import Path

import pytest

from papers import dsg_figure1, dsg_figure2, dsg_table3, dsg_tables456, pgsvi_figure1, pgsvi_figure2
from papers.claims import FAILS, HOLDS, UNTESTED

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"


def recorded_claims():
    """Yield the claims of a module and the rows of its file, for all that was run."""
    modules = {"figure1": dsg_figure1, "figure2": dsg_figure2, "table3": dsg_table3, "tables456": dsg_tables456}
    for name, module in modules.items():
        yield module.CLAIMS, json.loads((RESULTS / f"dsg_{name}_gpu.json").read_text())["claims"]
    figures = json.loads((RESULTS / "pgsvi_figures.json").read_text())["figure"]
    for name, rows in figures.items():
        if name.startswith("pgsvi-figure"):
            yield (pgsvi_figure1 if name == "pgsvi-figure1" else pgsvi_figure2).CLAIMS, rows


@pytest.mark.parametrize(("claims", "rows"), list(recorded_claims()))
def test_a_file_has_a_verdict_on_each_claim(claims, rows):
    assert [row["claim"] for row in rows] == [claim.words for claim in claims]
    verdicts = {row["verdict"] for row in rows}
    assert verdicts <= {HOLDS, FAILS, UNTESTED}
    # A file without a verdict is of no use.
    assert verdicts != {UNTESTED}
    assert all(row["seen"] or row["verdict"] == UNTESTED for row in rows)
